// SPDX-License-Identifier: GPL-2.0 OR MIT
//! KFD's calls in the form that a context needs, which the client library does not wrap. They are
//! memory at an address of the context, queues with the guest's rings, and events by number.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

use vkfd_client::{Client, ClientError, Embedded, Errno, GpuId, MmapFile, Transport};
use vkfd_uapi::event::{
    CreateEventArgs, DestroyEventArgs, EventData, ResetEventArgs, SetEventArgs, WaitEventsArgs, WAIT_RESULT_COMPLETE,
};
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::memory::{AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, MapMemoryToGpuArgs, UnmapMemoryFromGpuArgs};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::queue::{CreateQueueArgs, DestroyQueueArgs};
use vkfd_uapi::{command, vkfd};

type Result<T, E = Errno> = std::result::Result<T, E>;

/// Bytes of a GPU's doorbell pages.
pub const DOORBELL_BYTES: u64 = 8192;

/// A KFD process.
#[derive(Clone)]
pub struct Kfd {
    client: Client,
    file: Arc<Embedded>,
}

impl Kfd {
    /// Of a process that was opened for it.
    ///
    /// # Errors
    /// The errors of the first calls.
    pub fn new(file: Arc<Embedded>) -> std::result::Result<Self, ClientError> {
        Ok(Self { client: Client::with_transport(file.clone())?, file })
    }

    /// The client library's view of it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn call<T: Pod>(&self, command: Command, args: &mut T) -> Result<()> {
        // SAFETY: the argument is the command's own, and the callers in this module pass pointers
        // to live memory of the size that they say.
        unsafe { self.client.raw_ioctl(command, args) }
    }

    /// Allocates `bytes` at `at`. The handle.
    pub fn alloc(&self, gpu: GpuId, at: u64, bytes: u64, flags: u32) -> Result<u64> {
        let mut args =
            AllocMemoryOfGpuArgs { va_addr: at, size: bytes, handle: 0, mmap_offset: 0, gpu_id: gpu.0, flags };
        self.call(command::ALLOC_MEMORY_OF_GPU, &mut args)?;
        Ok(args.handle)
    }

    /// Maps on all of `gpus`, or on none.
    pub fn map(&self, handle: u64, gpus: &[GpuId]) -> Result<()> {
        let mut args = MapMemoryToGpuArgs {
            handle,
            device_ids_array_ptr: gpus.as_ptr().expose_provenance() as u64,
            n_devices: count(gpus),
            n_success: 0,
        };
        let result = self.call(command::MAP_MEMORY_TO_GPU, &mut args);
        if result.is_err() {
            let done = (args.n_success as usize).min(gpus.len());
            let _ = self.unmap(handle, &gpus[..done]);
        }
        result
    }

    /// Unmaps from all of `gpus`.
    pub fn unmap(&self, handle: u64, gpus: &[GpuId]) -> Result<()> {
        if gpus.is_empty() {
            return Ok(());
        }
        let mut args = UnmapMemoryFromGpuArgs {
            handle,
            device_ids_array_ptr: gpus.as_ptr().expose_provenance() as u64,
            n_devices: count(gpus),
            n_success: 0,
        };
        self.call(command::UNMAP_MEMORY_FROM_GPU, &mut args)
    }

    pub fn free(&self, handle: u64) -> Result<()> {
        self.call(command::FREE_MEMORY_OF_GPU, &mut FreeMemoryOfGpuArgs { handle })
    }

    /// Makes a queue.
    pub fn create_queue(&self, args: &mut CreateQueueArgs) -> Result<()> {
        self.call(command::CREATE_QUEUE, args)
    }

    /// Ends a queue.
    pub fn destroy_queue(&self, queue_id: u32) -> Result<()> {
        self.call(command::DESTROY_QUEUE, &mut DestroyQueueArgs { queue_id, pad: 0 })
    }

    /// The open file.
    pub fn file(&self) -> &Arc<Embedded> {
        &self.file
    }

    /// Maps the doorbell that CREATE_QUEUE's `offset` names.
    pub fn doorbell(&self, offset: u64) -> Result<Doorbell> {
        Doorbell::map(&self.file, offset)
    }

    /// Makes an event.
    pub fn create_event(&self, args: &mut CreateEventArgs) -> Result<()> {
        self.call(command::CREATE_EVENT, args)
    }

    /// Ends an event.
    pub fn destroy_event(&self, event_id: u32) -> Result<()> {
        self.call(command::DESTROY_EVENT, &mut DestroyEventArgs { event_id, pad: 0 })
    }

    /// Signals an event.
    pub fn set_event(&self, event_id: u32) -> Result<()> {
        self.call(command::SET_EVENT, &mut SetEventArgs { event_id, pad: 0 })
    }

    /// Resets an event.
    pub fn reset_event(&self, event_id: u32) -> Result<()> {
        self.call(command::RESET_EVENT, &mut ResetEventArgs { event_id, pad: 0 })
    }

    /// Waits for events; whether they were signalled in time.
    pub fn wait_events(&self, events: &mut [EventData], all: bool, milliseconds: u32) -> Result<bool> {
        let mut args = WaitEventsArgs {
            events_ptr: events.as_mut_ptr().expose_provenance() as u64,
            num_events: count(events),
            wait_for_all: u32::from(all),
            timeout: milliseconds,
            wait_result: 0,
        };
        match self.call(command::WAIT_EVENTS, &mut args) {
            Ok(()) => Ok(args.wait_result == WAIT_RESULT_COMPLETE),
            Err(Errno::TIME) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

/// Tells the driver that a doorbell was written.
pub fn ringed(file: &Embedded) {
    // SAFETY: the command has no argument.
    if let Err(errno) = unsafe { file.ioctl(vkfd::RINGED.0, std::ptr::null_mut()) } {
        tracing::warn!("RINGED: {errno}");
    }
}

fn count<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

/// A mapped doorbell of the driver.
#[derive(Debug)]
pub struct Doorbell {
    page: NonNull<std::ffi::c_void>,
    offset: usize,
}

// SAFETY: the page belongs to this object and is accessed atomically.
unsafe impl Send for Doorbell {}

impl Doorbell {
    /// Maps the doorbell that CREATE_QUEUE's `offset` names.
    pub fn map(file: &Embedded, offset: u64) -> Result<Self> {
        let base = offset & !(DOORBELL_BYTES - 1);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let bytes = super::window::size(DOORBELL_BYTES);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let at = unsafe { file.mmap(MmapFile::Kfd, std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, base)? };
        let page = NonNull::new(at).ok_or(Errno::NOMEM)?;
        Ok(Self { page, offset: super::window::size(offset & (DOORBELL_BYTES - 1) & !7) })
    }

    /// Its 64 bits.
    pub fn word(&self) -> &AtomicU64 {
        // SAFETY: the offset is an aligned word of the pages, which stay mapped as long as `self`;
        // all accesses are atomic.
        unsafe { AtomicU64::from_ptr(self.page.byte_add(self.offset).cast().as_ptr()) }
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        // SAFETY: `doorbell` made this mapping, and its only user is gone.
        unsafe { libc::munmap(self.page.as_ptr(), super::window::size(DOORBELL_BYTES)) };
    }
}
