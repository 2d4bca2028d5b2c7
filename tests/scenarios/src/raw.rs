// SPDX-License-Identifier: GPL-2.0 OR MIT
//! KFD calls as they are, with arguments that a library would never pass.

use std::ffi::c_void;
use std::ptr;

use vkfd_client::uapi::batch::{AllocMemoryOfGpuBatchArgs, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_client::uapi::ioctl::Command;
use vkfd_client::uapi::memory::{
    AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, MapMemoryToGpuArgs, UnmapMemoryFromGpuArgs, ALLOC_MEM_FLAGS_USERPTR,
    ALLOC_MEM_FLAGS_USERPTR_BATCH, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::svm::{SVM_ATTR_GRANULARITY, SVM_OP_SET_ATTR};
use vkfd_client::uapi::vkfd::{reason_text, LastErrorArgs, LAST_ERROR};
use vkfd_client::uapi::{command, svm};
use vkfd_client::{Client, CpuVa, Errno, GpuId, Transport, UserptrRange};

use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::World;

/// The flags of an ordinary registration.
pub(crate) const USERPTR: u32 = ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE;

/// Sends an ioctl as it is.
pub(crate) fn ioctl<T: Pod>(client: &Client, command: Command, args: &mut T) -> Result<(), Errno> {
    // SAFETY: the argument has the command's size. Its pointers are to the scenario's own memory,
    // or to none, which a driver must refuse. The call can take away only the scenario's own
    // memory.
    unsafe { client.raw_ioctl(command, args) }
}

/// Sends an ioctl with any pointer as its argument.
pub(crate) fn send(transport: &dyn Transport, command: Command, argument: u64) -> Result<(), Errno> {
    let argument = ptr::with_exposed_provenance_mut::<c_void>(usize::try_from(argument).unwrap_or(0));
    // SAFETY: the scenarios pass pointers to memory of theirs, or to none, which a driver must
    // refuse.
    unsafe { transport.ioctl(command.0, argument) }
}

/// Why this thread's last call failed.
pub(crate) fn last_error(client: &Client) -> Result<LastErrorArgs, Errno> {
    let mut last = LastErrorArgs::zeroed();
    ioctl(client, LAST_ERROR, &mut last)?;
    Ok(last)
}

/// How a batch is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// By the command of its own (v2).
    Command,
    /// By ALLOC's flag (v3, v4).
    Flag,
}

pub(crate) const FORMS: [Form; 2] = [Form::Command, Form::Flag];

/// A batch registration, every part of which can be made wrong.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) form: Form,
    pub(crate) va: u64,
    pub(crate) total: u64,
    pub(crate) ranges: Vec<UserptrRange>,
    pub(crate) count: u32,
    pub(crate) gpu: u32,
    pub(crate) flags: u32,
    /// The command form's padding, the flag form's reserved word.
    pub(crate) reserved: u32,
    /// Another pointer than to `ranges` (with their header).
    pub(crate) list: Option<u64>,
}

impl Request {
    /// A correct one.
    pub(crate) fn new(form: Form, gpu: GpuId, va: u64, ranges: &[UserptrRange]) -> Self {
        Self {
            form,
            va,
            total: ranges.iter().map(|r| r.size).sum(),
            ranges: ranges.to_vec(),
            count: u32::try_from(ranges.len()).unwrap_or(u32::MAX),
            gpu: gpu.0,
            flags: USERPTR,
            reserved: 0,
            list: None,
        }
    }

    /// The list as the form wants it in memory.
    fn words(&self) -> Vec<u64> {
        let header = u64::from(self.count) | u64::from(self.reserved) << 32;
        let ranges = self.ranges.iter().flat_map(|r| [r.start, r.size]);
        match self.form {
            Form::Command => ranges.collect(),
            Form::Flag => std::iter::once(header).chain(ranges).collect(),
        }
    }

    /// The bytes that the list takes in memory.
    pub(crate) fn list_bytes(&self) -> Vec<u8> {
        self.words().into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    /// Sends it and returns the handle.
    pub(crate) fn send(&self, client: &Client) -> Result<u64, Errno> {
        let words = self.words();
        let list = self.list.unwrap_or_else(|| CpuVa::of(words.as_ptr()).0);
        match self.form {
            Form::Command => {
                let mut args = AllocMemoryOfGpuBatchArgs {
                    va_addr: self.va,
                    total_size: self.total,
                    handle: 0,
                    ranges_ptr: list,
                    num_ranges: self.count,
                    gpu_id: self.gpu,
                    flags: self.flags,
                    pad: self.reserved,
                };
                ioctl(client, ALLOC_MEMORY_OF_GPU_BATCH, &mut args).map(|()| args.handle)
            }
            Form::Flag => {
                let flags = self.flags | ALLOC_MEM_FLAGS_USERPTR_BATCH;
                alloc(client, self.va, self.total, list, self.gpu, flags).map(|args| args.handle)
            }
        }
    }

    /// Sends it; it must fail as said and leave nothing behind.
    pub(crate) fn must_fail(&self, client: &Client, errno: Errno, reason: u32, range: Option<u64>) -> Result<(), Stop> {
        let before = client.snapshot()?;
        let what = format!("{:?} form, reason {:?}", self.form, reason_text(reason));
        let result = self.send(client);
        let last = last_error(client)?;
        ensure_eq!(result, Err(errno), "{what}");
        explained(&last, errno, reason, range, &what)?;
        if let Some(at) = range.and_then(|i| usize::try_from(i).ok()).and_then(|i| self.ranges.get(i)) {
            ensure_eq!((last.address, last.size), (at.start, at.size), "{what}: the range at fault");
        }
        let after = client.snapshot()?;
        ensure_eq!((after.bos, after.userptr_bytes), (before.bos, before.userptr_bytes), "{what}: BOs");
        ensure_eq!(after.notifiers, before.notifiers, "{what}: notifiers");
        ensure_eq!(after.page_table_bytes, before.page_table_bytes, "{what}: page tables");
        Ok(())
    }
}

/// Checks what the driver says of the last call, which has failed, if it says anything, and that
/// there is no object.
pub(crate) fn nothing_made(
    client: &Client,
    errno: Errno,
    reason: u32,
    range: Option<u64>,
    what: &str,
) -> Result<(), Stop> {
    if client.caps().vkfd {
        explained(&last_error(client)?, errno, reason, range, what)?;
        ensure_eq!(client.snapshot()?.bos, 0, "{what}: BOs left");
    }
    Ok(())
}

/// Checks what the driver said of a failed call.
pub(crate) fn explained(
    last: &LastErrorArgs,
    errno: Errno,
    reason: u32,
    range: Option<u64>,
    what: &str,
) -> Result<(), Stop> {
    ensure_eq!(last.errno, errno.0.unsigned_abs(), "{what}: the recorded error");
    ensure_eq!(reason_text(last.reason), reason_text(reason), "{what}: the recorded reason");
    ensure_eq!((last.has_index == 1).then_some(last.index), range, "{what}: the recorded range");
    Ok(())
}

/// ALLOC. `cpu` is the argument's `mmap_offset`.
pub(crate) fn alloc(
    client: &Client,
    va: u64,
    size: u64,
    cpu: u64,
    gpu: u32,
    flags: u32,
) -> Result<AllocMemoryOfGpuArgs, Errno> {
    let mut args = AllocMemoryOfGpuArgs { va_addr: va, size, handle: 0, mmap_offset: cpu, gpu_id: gpu, flags };
    ioctl(client, command::ALLOC_MEMORY_OF_GPU, &mut args).map(|()| args)
}

pub(crate) fn free(client: &Client, handle: u64) -> Result<(), Errno> {
    ioctl(client, command::FREE_MEMORY_OF_GPU, &mut FreeMemoryOfGpuArgs { handle })
}

/// MAP on `gpus` from number `done` on; how many are done then, and how it ended.
pub(crate) fn map(client: &Client, handle: u64, gpus: &[u32], done: u32) -> (u32, Result<(), Errno>) {
    let n_devices = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let device_ids_array_ptr = CpuVa::of(gpus.as_ptr()).0;
    let mut args = MapMemoryToGpuArgs { handle, device_ids_array_ptr, n_devices, n_success: done };
    let result = ioctl(client, command::MAP_MEMORY_TO_GPU, &mut args);
    (args.n_success, result)
}

/// UNMAP, as [`map`].
pub(crate) fn unmap(client: &Client, handle: u64, gpus: &[u32], done: u32) -> (u32, Result<(), Errno>) {
    let n_devices = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let device_ids_array_ptr = CpuVa::of(gpus.as_ptr()).0;
    let mut args = UnmapMemoryFromGpuArgs { handle, device_ids_array_ptr, n_devices, n_success: done };
    let result = ioctl(client, command::UNMAP_MEMORY_FROM_GPU, &mut args);
    (args.n_success, result)
}

/// Makes CPU memory an SVM range, by setting an attribute that changes nothing else.
pub(crate) fn register_svm(client: &Client, range: UserptrRange) -> Result<(), Errno> {
    set_svm(client, range, SVM_ATTR_GRANULARITY, 9)
}

/// Sets one attribute of memory.
pub(crate) fn set_svm(client: &Client, range: UserptrRange, attribute: u32, value: u32) -> Result<(), Errno> {
    let op_and_count = u64::from(SVM_OP_SET_ATTR) | 1 << 32;
    let mut words = [range.start, range.size, op_and_count, u64::from(attribute) | u64::from(value) << 32];
    let size = svm::args_size(1).unwrap_or(0);
    ioctl(client, command::SVM.with_size(size).unwrap_or(command::SVM), &mut words)
}

/// A GPU address range that nothing uses: the address of CPU memory that is only reserved, as
/// clients do it.
pub(crate) fn gpu_window(bytes: u64) -> std::io::Result<Memory> {
    let window = Memory::anonymous(bytes)?;
    window.protect(0, bytes, libc::PROT_NONE)?;
    Ok(window)
}

impl World {
    /// The first GPU's identifier as a number.
    pub(crate) fn id(&self) -> u32 {
        self.gpu(0).0
    }
}
