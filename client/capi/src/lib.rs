// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The client library for C; `include/vkfd.h` documents it.
//!
//! | module | what |
//! | --- | --- |
//! | `call` | results, messages and handles, as all functions have them |
//! | `buffer` | registered and allocated memory, copies |
//! | `compute` | code objects, queues, fences |
//! | `svm` | memory that CPU and GPUs use at the same addresses |
//!
//! Mechanism: opaque boxes, negative error numbers, and a message a thread. A panic ends at the
//! boundary as `-EIO`.
//!
//! Lock: `queues` guards the copy queues, one for each GPU, made at first use and held for a copy;
//! copies on one GPU therefore run one after the other. Each compute queue has a lock of its own.

mod buffer;
mod call;
mod compute;
mod svm;

use std::ffi::{c_char, c_int, CStr};
use std::sync::Mutex;

use vkfd_client::{Client, ClientError, CopyQueue, GpuId, GpuSet, Result};

use call::{fill, guard, hand_out, object};

/// `vkfd_client`.
pub struct VkfdClient {
    client: Client,
    queues: Mutex<Vec<Option<CopyQueue>>>,
}

/// `struct vkfd_caps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VkfdCaps {
    /// In: the caller's size. Out: bytes filled.
    pub size: u32,
    /// `VKFD_CAP_*`.
    pub flags: u32,
    /// Ranges that a batch may have.
    pub max_ranges: u64,
    /// Bytes that may be registered now.
    pub max_bytes: u64,
    /// How many GPUs the machine has.
    pub gpus: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<VkfdCaps>() == 32);

const CAP_VKFD: u32 = 1 << 0;
const CAP_BATCH: u32 = 1 << 1;
const CAP_BATCH_FLAG: u32 = 1 << 2;
const CAP_READ_ONLY: u32 = 1 << 3;
const CAP_XNACK: u32 = 1 << 4;

/// `struct vkfd_gpu_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VkfdGpuInfo {
    /// In: the caller's size. Out: bytes filled.
    pub size: u32,
    /// KFD's number of it.
    pub gpu_id: u32,
    /// major * 10000 + minor * 100 + stepping.
    pub gfx_target_version: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes of VRAM.
    pub vram_bytes: u64,
    /// Memory that is left; 0 where the driver does not say.
    pub vram_free: u64,
    /// `gfx900`, with a zero at the end.
    pub name: [c_char; 32],
}

/// `struct vkfd_machine`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VkfdMachine {
    /// The caller's size.
    pub size: u32,
    /// GPUs; 0 for one.
    pub gpus: u32,
    /// Memory of each; 0 for 1 GiB.
    pub vram_bytes: u64,
    /// `gfx90a` and such; null for gfx900.
    pub target: *const c_char,
}

impl VkfdClient {
    fn new(client: Client) -> Self {
        let queues = client.gpus().iter().map(|_| None).collect();
        Self { client, queues: Mutex::new(queues) }
    }
}

/// Opens the system's KFD.
///
/// # Safety
///
/// `out` is null or can be written.
#[no_mangle]
pub unsafe extern "C" fn vkfd_open(out: *mut *mut VkfdClient) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { hand_out(out, || Client::open().map(VkfdClient::new)) }
}

/// Starts a machine in this process and opens it.
///
/// # Safety
///
/// `out` is null or can be written.
#[no_mangle]
pub unsafe extern "C" fn vkfd_open_embedded(gpus: u32, vram_bytes: u64, out: *mut *mut VkfdClient) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { hand_out(out, || embedded(gpus, vram_bytes, None).map(VkfdClient::new)) }
}

/// The same, of more choices.
///
/// # Safety
///
/// `machine` is null or has `size` bytes, and its target is null or a C string; `out` is null or
/// can be written.
#[no_mangle]
pub unsafe extern "C" fn vkfd_open_machine(machine: *const VkfdMachine, out: *mut *mut VkfdClient) -> c_int {
    let open = || {
        let default = VkfdMachine { size: 0, gpus: 0, vram_bytes: 0, target: std::ptr::null() };
        // SAFETY: promised by the caller; any bytes are valid.
        let machine = unsafe { call::read(machine, "vkfd_machine", default)? };
        // SAFETY: promised by the caller.
        let target = (!machine.target.is_null()).then(|| unsafe { CStr::from_ptr(machine.target) });
        embedded(machine.gpus, machine.vram_bytes, target).map(VkfdClient::new)
    };
    // SAFETY: promised by the caller.
    unsafe { hand_out(out, open) }
}

#[cfg(feature = "embedded")]
fn embedded(gpus: u32, vram_bytes: u64, target: Option<&CStr>) -> Result<Client> {
    let mut options = vkfd_client::MachineOptions::default();
    if gpus != 0 {
        options.gpus = gpus;
    }
    if vram_bytes != 0 {
        options.vram_bytes = vram_bytes;
    }
    if let Some(target) = target {
        let name = target.to_string_lossy();
        options.target = name.parse().map_err(|error| ClientError::Invalid(format!("{name:?} is {error}")))?;
    }
    Client::embedded(options)
}

#[cfg(not(feature = "embedded"))]
fn embedded(_gpus: u32, _vram_bytes: u64, _target: Option<&CStr>) -> Result<Client> {
    Err(ClientError::Call { call: "vkfd_open_embedded (built without it)", errno: vkfd_client::Errno(libc::ENOSYS) })
}

/// Closes a client.
///
/// # Safety
///
/// `client` is null or came from this library and is not closed yet.
#[no_mangle]
pub unsafe extern "C" fn vkfd_close(client: *mut VkfdClient) {
    guard(|| {
        if !client.is_null() {
            // SAFETY: `hand_out` made it with `Box::into_raw`, and the caller gives it up.
            drop(unsafe { Box::from_raw(client) });
        }
        Ok(())
    });
}

/// Tells what the driver can do.
///
/// # Safety
///
/// `client` as for [`vkfd_close`]; `out` is null or has `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn vkfd_caps(client: *const VkfdClient, out: *mut VkfdCaps) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        let caps = client.client.caps();
        let flag = |set, bit| if set { bit } else { 0 };
        let filled = |size| VkfdCaps {
            size,
            flags: flag(caps.vkfd, CAP_VKFD)
                | flag(caps.batch, CAP_BATCH)
                | flag(caps.batch_flag, CAP_BATCH_FLAG)
                | flag(caps.read_only, CAP_READ_ONLY)
                | flag(caps.xnack, CAP_XNACK),
            max_ranges: caps.max_ranges,
            max_bytes: caps.max_bytes,
            gpus: u32::try_from(client.client.gpus().len()).unwrap_or(u32::MAX),
            reserved: 0,
        };
        // SAFETY: promised by the caller; the structure's members leave no room between them.
        unsafe { fill(out, "vkfd_caps", |size| Ok(filled(size))) }
    })
}

/// Tells what a GPU is.
///
/// # Safety
///
/// `client` as for [`vkfd_close`]; `out` is null or has `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn vkfd_gpu(client: *const VkfdClient, gpu: u32, out: *mut VkfdGpuInfo) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        let (_, id) = gpu_at(client, gpu)?;
        let info = client.client.gpu(id)?;
        let mut name = [0; 32];
        // The last byte stays zero.
        for (to, from) in name.iter_mut().take(31).zip(info.name.bytes()) {
            *to = c_char::from_ne_bytes([from]);
        }
        let filled = |size| VkfdGpuInfo {
            size,
            gpu_id: id.0,
            gfx_target_version: info.gfx_target_version,
            reserved: 0,
            vram_bytes: info.vram_bytes,
            vram_free: client.client.available_vram(id).unwrap_or(0),
            name,
        };
        // SAFETY: promised by the caller; the structure's members leave no room between them.
        unsafe { fill(out, "vkfd_gpu_info", |size| Ok(filled(size))) }
    })
}

/// Switches retry of page faults on or off.
///
/// # Safety
///
/// `client` as for [`vkfd_close`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_set_xnack(client: *mut VkfdClient, on: c_int) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        client.client.set_xnack(on != 0)
    })
}

fn gpu_at(client: &VkfdClient, number: u32) -> Result<(usize, GpuId)> {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    let gpus = client.client.gpus();
    let gpu = gpus.get(index).ok_or_else(|| ClientError::Invalid(format!("GPU {number} of {}", gpus.len())))?;
    Ok((index, gpu.id))
}

/// All GPUs, of a set.
const ALL_GPUS: u64 = u64::MAX;

/// The GPUs of a set: a bit for each, from GPU 0 on.
fn gpus_of(client: &Client, set: u64) -> Result<GpuSet> {
    if set == ALL_GPUS {
        return Ok(GpuSet::All);
    }
    let gpus = client.gpus();
    let chosen = (0..64).filter(|bit| set >> bit & 1 != 0);
    let chosen = chosen.map(|bit| {
        let gpu = usize::try_from(bit).ok().and_then(|index| gpus.get(index));
        gpu.map(|gpu| gpu.id).ok_or_else(|| ClientError::Invalid(format!("GPU {bit} of {}", gpus.len())))
    });
    match chosen.collect::<Result<Vec<_>>>()? {
        chosen if chosen.is_empty() => Err(ClientError::Invalid("a set of no GPUs".into())),
        chosen => Ok(GpuSet::Only(chosen)),
    }
}

#[cfg(test)]
mod tests {
    use super::buffer::{vkfd_buffer_gpu_va, vkfd_copy, vkfd_free};
    use super::call::{remember, vkfd_last_error};
    use super::*;
    use std::ptr;

    fn message() -> String {
        // SAFETY: the message is valid until this thread's next failure.
        unsafe { CStr::from_ptr(vkfd_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_ends_at_the_boundary() {
        std::panic::set_hook(Box::new(|_| {}));
        assert_eq!(guard(|| panic!("inside")), -libc::EIO);
        let _ = std::panic::take_hook();
        assert!(message().contains("panicked"));
    }

    #[test]
    fn null_is_an_error_with_a_message() {
        let mut caps = VkfdCaps { size: 32, flags: 0, max_ranges: 0, max_bytes: 0, gpus: 0, reserved: 0 };
        // SAFETY: null is allowed everywhere.
        unsafe {
            assert_eq!(vkfd_open(ptr::null_mut()), -libc::EINVAL);
            assert_eq!(vkfd_caps(ptr::null(), &raw mut caps), -libc::EINVAL);
            assert_eq!(message(), "client is NULL");
            assert_eq!(vkfd_copy(ptr::null_mut(), 0, 0, 0, 0, 0), -libc::EINVAL);
            assert_eq!(vkfd_free(ptr::null_mut()), 0);
            vkfd_close(ptr::null_mut());
            assert_eq!(vkfd_buffer_gpu_va(ptr::null()), 0);
        }
    }

    #[test]
    fn messages_are_of_their_thread() {
        remember("mine");
        std::thread::spawn(|| {
            assert_eq!(message(), "");
            remember("cut\0here");
            assert_eq!(message(), "cut");
        })
        .join()
        .unwrap();
        assert_eq!(message(), "mine");
    }
}
