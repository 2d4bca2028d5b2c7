// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Kernels: code objects in a GPU's memory, queues that run them, and fences to wait for.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vkfd_client::{ClientError, CodeObject, ComputeQueue, Fence, Launch, Result};

use crate::call::{guard, hand_out, null, object, read};
use crate::{gpu_at, VkfdClient};

/// `vkfd_code`.
pub struct VkfdCode(CodeObject);

/// `vkfd_queue`.
pub struct VkfdQueue(Mutex<ComputeQueue>);

/// `vkfd_fence`.
pub struct VkfdFence(Fence);

/// `struct vkfd_launch`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VkfdLaunch {
    /// The caller's size.
    pub size: u32,
    /// Work-items in x, y and z.
    pub grid: [u32; 3],
    /// Work-items of a work-group; 0 counts as 1.
    pub group: [u16; 3],
    /// 0.
    pub reserved: u16,
    /// LDS of a work-group beyond what the kernel has without asking.
    pub lds_bytes: u32,
    /// Bytes of the arguments.
    pub args_bytes: u32,
    /// The arguments, as the kernel's code object lays them out.
    pub args: *const c_void,
}

/// Loads a code object.
///
/// # Safety
///
/// `client` as for [`vkfd_close`](crate::vkfd_close); `file` has `bytes` bytes; `out` is null or
/// can be written.
#[no_mangle]
pub unsafe extern "C" fn vkfd_code_load(
    client: *mut VkfdClient,
    gpu: u32,
    file: *const c_void,
    bytes: usize,
    out: *mut *mut VkfdCode,
) -> c_int {
    let load = || {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        let (_, gpu) = gpu_at(client, gpu)?;
        if file.is_null() {
            return Err(null("file"));
        }
        // SAFETY: not null, and the caller promises the bytes.
        let file = unsafe { std::slice::from_raw_parts(file.cast::<u8>(), bytes) };
        CodeObject::load(&client.client, gpu, file).map(VkfdCode)
    };
    // SAFETY: promised by the caller.
    unsafe { hand_out(out, load) }
}

/// Frees a code object.
///
/// # Safety
///
/// `code` is null or came from this library and is not freed yet; no work of it is under way.
#[no_mangle]
pub unsafe extern "C" fn vkfd_code_free(code: *mut VkfdCode) {
    // SAFETY: promised by the caller.
    unsafe { free(code) };
}

/// Makes a compute queue.
///
/// # Safety
///
/// `client` as for [`vkfd_close`](crate::vkfd_close); `out` is null or can be written.
#[no_mangle]
pub unsafe extern "C" fn vkfd_queue_new(client: *mut VkfdClient, gpu: u32, out: *mut *mut VkfdQueue) -> c_int {
    let make = || {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        let (_, gpu) = gpu_at(client, gpu)?;
        ComputeQueue::new(&client.client, gpu).map(|queue| VkfdQueue(Mutex::new(queue)))
    };
    // SAFETY: promised by the caller.
    unsafe { hand_out(out, make) }
}

/// Ends a queue.
///
/// # Safety
///
/// `queue` is null or came from this library and is not freed yet.
#[no_mangle]
pub unsafe extern "C" fn vkfd_queue_free(queue: *mut VkfdQueue) {
    // SAFETY: promised by the caller.
    unsafe { free(queue) };
}

/// Submits a kernel.
///
/// # Safety
///
/// The handles are null or came from this library and are not freed. `kernel` is null or a C
/// string. `launch` is null or has `size` bytes, with `args_bytes` bytes at `args`. `out` is null
/// or can be written.
#[no_mangle]
pub unsafe extern "C" fn vkfd_launch(
    queue: *mut VkfdQueue,
    code: *const VkfdCode,
    kernel: *const c_char,
    launch: *const VkfdLaunch,
    out: *mut *mut VkfdFence,
) -> c_int {
    let submit = || -> Result<Fence> {
        // SAFETY: promised by the caller.
        let (queue, code) = unsafe { (object(queue, "queue")?, object(code, "code")?) };
        if kernel.is_null() {
            return Err(null("kernel"));
        }
        // SAFETY: not null, so a C string.
        let name = unsafe { CStr::from_ptr(kernel) }.to_string_lossy();
        let known = || code.0.names().collect::<Vec<_>>().join(", ");
        let kernel = code.0.kernel(&name);
        let kernel =
            kernel.ok_or_else(|| ClientError::Invalid(format!("no kernel {name} in the code object: {}", known())))?;
        let nothing = std::ptr::null();
        let default = VkfdLaunch {
            size: 0,
            grid: [0; 3],
            group: [0; 3],
            reserved: 0,
            lds_bytes: 0,
            args_bytes: 0,
            args: nothing,
        };
        // SAFETY: promised by the caller; any bytes are valid.
        let launch = unsafe { read(launch, "vkfd_launch", default)? };
        let bytes = usize::try_from(launch.args_bytes).unwrap_or(usize::MAX);
        let args = match bytes {
            0 => &[],
            _ if launch.args.is_null() => return Err(null("vkfd_launch.args")),
            // SAFETY: not null, and the caller promises the bytes.
            _ => unsafe { std::slice::from_raw_parts(launch.args.cast::<u8>(), bytes) },
        };
        let mut queue = queue.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.dispatch(&Launch {
            kernel,
            args,
            grid: launch.grid.map(|items| items.max(1)),
            workgroup: launch.group.map(|items| items.max(1)),
            dynamic_bytes: launch.lds_bytes,
        })
    };
    if out.is_null() {
        return guard(|| submit().map(drop));
    }
    // SAFETY: promised by the caller.
    unsafe { hand_out(out, || submit().map(VkfdFence)) }
}

/// Waits until all that was submitted to a queue is done.
///
/// # Safety
///
/// As for [`vkfd_queue_free`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_queue_wait(queue: *mut VkfdQueue, timeout_ms: u32) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let queue = unsafe { object(queue, "queue")? };
        let fence = queue.0.lock().unwrap_or_else(PoisonError::into_inner).barrier()?;
        fence.wait(Duration::from_millis(timeout_ms.into()))
    })
}

/// Waits for a fence.
///
/// # Safety
///
/// `fence` is null or came from this library and is not freed yet.
#[no_mangle]
pub unsafe extern "C" fn vkfd_fence_wait(fence: *const VkfdFence, timeout_ms: u32) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let fence = unsafe { object(fence, "fence")? };
        fence.0.wait(Duration::from_millis(timeout_ms.into()))
    })
}

/// Whether the work is done; 0 for null.
///
/// # Safety
///
/// As for [`vkfd_fence_wait`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_fence_done(fence: *const VkfdFence) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { fence.as_ref() }.map_or(0, |fence| fence.0.is_done().into())
}

/// Frees a fence; the work goes on.
///
/// # Safety
///
/// As for [`vkfd_fence_wait`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_fence_free(fence: *mut VkfdFence) {
    // SAFETY: promised by the caller.
    unsafe { free(fence) };
}

/// # Safety
///
/// `handle` is null or came from this library and is not freed yet.
unsafe fn free<T>(handle: *mut T) {
    guard(|| {
        if !handle.is_null() {
            // SAFETY: `hand_out` made it with `Box::into_raw`, and the caller gives it up.
            drop(unsafe { Box::from_raw(handle) });
        }
        Ok(())
    });
}
