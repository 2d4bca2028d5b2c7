// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory: registered, allocated, mapped and unmapped; and copies.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::PoisonError;
use std::time::Duration;

use vkfd_client::{AllocOptions, Buffer, ClientError, CopyQueue, GpuVa, RegisterOptions, Result, Strategy};

use crate::call::{guard, hand_out, null, object};
use crate::{gpu_at, gpus_of, VkfdClient, ALL_GPUS};

/// `vkfd_buffer`.
pub struct VkfdBuffer(Buffer);

const READ_ONLY: u32 = 1 << 0;
const EXECUTABLE: u32 = 1 << 1;
const COHERENT: u32 = 1 << 2;
const PER_RANGE: u32 = 1 << 3;

/// Registers CPU ranges as one GPU range.
///
/// # Safety
///
/// `client` as for [`vkfd_close`](crate::vkfd_close); `ranges` has `count` entries; `out` is null
/// or can be written. For the memory, as for [`vkfd_client::Client::register_ranges`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_register_ranges(
    client: *mut VkfdClient,
    ranges: *const libc::iovec,
    count: usize,
    flags: u32,
    out: *mut *mut VkfdBuffer,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { register(client, ALL_GPUS, None, ranges, count, flags, out) }
}

/// Registers CPU ranges as one GPU range at an address of the caller's choice.
///
/// # Safety
///
/// As for [`vkfd_register_ranges`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_register_ranges_at(
    client: *mut VkfdClient,
    gpu_va: u64,
    ranges: *const libc::iovec,
    count: usize,
    flags: u32,
    out: *mut *mut VkfdBuffer,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { register(client, ALL_GPUS, Some(GpuVa(gpu_va)), ranges, count, flags, out) }
}

/// Registers CPU ranges as one GPU range, for some of the GPUs.
///
/// # Safety
///
/// As for [`vkfd_register_ranges`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_register_ranges_on(
    client: *mut VkfdClient,
    gpus: u64,
    gpu_va: u64,
    ranges: *const libc::iovec,
    count: usize,
    flags: u32,
    out: *mut *mut VkfdBuffer,
) -> c_int {
    let at = (gpu_va != 0).then_some(GpuVa(gpu_va));
    // SAFETY: promised by the caller.
    unsafe { register(client, gpus, at, ranges, count, flags, out) }
}

/// # Safety
///
/// As for [`vkfd_register_ranges`].
unsafe fn register(
    client: *mut VkfdClient,
    gpus: u64,
    at: Option<GpuVa>,
    ranges: *const libc::iovec,
    count: usize,
    flags: u32,
    out: *mut *mut VkfdBuffer,
) -> c_int {
    let register = || {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        if ranges.is_null() {
            return Err(null("ranges"));
        }
        if flags & !(READ_ONLY | EXECUTABLE | COHERENT | PER_RANGE) != 0 {
            return Err(ClientError::Invalid(format!("unknown flags {flags:#x}")));
        }
        let options = RegisterOptions {
            writable: flags & READ_ONLY == 0,
            executable: flags & EXECUTABLE != 0,
            coherent: flags & COHERENT != 0,
            gpus: gpus_of(&client.client, gpus)?,
            at,
            strategy: if flags & PER_RANGE != 0 { Strategy::PerRange } else { Strategy::Auto },
            ..RegisterOptions::default()
        };
        // SAFETY: the caller promises the entries, and for the memory what `register_ranges` asks
        // for.
        let buffer = unsafe { client.client.register_ranges(std::slice::from_raw_parts(ranges, count), &options)? };
        Ok(VkfdBuffer(buffer))
    };
    // SAFETY: promised by the caller.
    unsafe { hand_out(out, register) }
}

/// Allocates VRAM.
///
/// # Safety
///
/// `client` as for [`vkfd_close`](crate::vkfd_close); `out` is null or can be written.
#[no_mangle]
pub unsafe extern "C" fn vkfd_alloc_vram(
    client: *mut VkfdClient,
    gpu: u32,
    bytes: u64,
    out: *mut *mut VkfdBuffer,
) -> c_int {
    let alloc = || {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        let (_, gpu) = gpu_at(client, gpu)?;
        client.client.alloc(&AllocOptions::vram(gpu, bytes)).map(VkfdBuffer)
    };
    // SAFETY: promised by the caller.
    unsafe { hand_out(out, alloc) }
}

/// Allocates system memory that GPUs and CPU see.
///
/// # Safety
///
/// `client` as for [`vkfd_close`](crate::vkfd_close); `out` is null or can be written.
#[no_mangle]
pub unsafe extern "C" fn vkfd_alloc_gtt(client: *mut VkfdClient, bytes: u64, out: *mut *mut VkfdBuffer) -> c_int {
    let alloc = || {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        client.client.alloc(&AllocOptions::gtt(bytes)).map(VkfdBuffer)
    };
    // SAFETY: promised by the caller.
    unsafe { hand_out(out, alloc) }
}

/// Maps a buffer on GPUs where it is not mapped yet.
///
/// # Safety
///
/// As for [`vkfd_buffer_gpu_va`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_map(buffer: *mut VkfdBuffer, gpus: u64) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let buffer = unsafe { object(buffer, "buffer")? };
        buffer.0.map(&gpus_of(buffer.0.client(), gpus)?)
    })
}

/// Unmaps a buffer from GPUs where it is mapped.
///
/// # Safety
///
/// As for [`vkfd_buffer_gpu_va`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_unmap(buffer: *mut VkfdBuffer, gpus: u64) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let buffer = unsafe { object(buffer, "buffer")? };
        buffer.0.unmap(&gpus_of(buffer.0.client(), gpus)?)
    })
}

/// Unmaps a buffer and maps it again where it was.
///
/// # Safety
///
/// As for [`vkfd_buffer_gpu_va`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_revalidate(buffer: *mut VkfdBuffer) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        unsafe { object(buffer, "buffer")? }.0.revalidate()
    })
}

/// Which range of the list that was registered is at an address.
///
/// # Safety
///
/// As for [`vkfd_buffer_gpu_va`]; `range` and `offset` are null or can be written.
#[no_mangle]
pub unsafe extern "C" fn vkfd_buffer_range_at(
    buffer: *const VkfdBuffer,
    gpu_va: u64,
    range: *mut usize,
    offset: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let buffer = unsafe { object(buffer, "buffer")? };
        let none = || ClientError::Invalid(format!("{gpu_va:#x} is in no range of this buffer"));
        let (index, into) = buffer.0.range_at(GpuVa(gpu_va)).ok_or_else(none)?;
        if !range.is_null() {
            // SAFETY: not null, so it can be written.
            unsafe { range.write(index) };
        }
        if !offset.is_null() {
            // SAFETY: as above.
            unsafe { offset.write(into) };
        }
        Ok(())
    })
}

/// A buffer's first GPU address; 0 for null.
///
/// # Safety
///
/// `buffer` is null or came from this library and is not freed yet.
#[no_mangle]
pub unsafe extern "C" fn vkfd_buffer_gpu_va(buffer: *const VkfdBuffer) -> u64 {
    // SAFETY: promised by the caller.
    unsafe { buffer.as_ref() }.map_or(0, |buffer| buffer.0.gpu_va().0)
}

/// A buffer's bytes; 0 for null.
///
/// # Safety
///
/// As for [`vkfd_buffer_gpu_va`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_buffer_len(buffer: *const VkfdBuffer) -> u64 {
    // SAFETY: promised by the caller.
    unsafe { buffer.as_ref() }.map_or(0, |buffer| buffer.0.len())
}

/// Where the CPU sees an allocated buffer.
///
/// # Safety
///
/// As for [`vkfd_buffer_gpu_va`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_buffer_cpu(buffer: *const VkfdBuffer) -> *mut c_void {
    // SAFETY: promised by the caller.
    let buffer = unsafe { buffer.as_ref() };
    buffer.and_then(|buffer| buffer.0.cpu_ptr()).map_or(ptr::null_mut(), |at| at.as_ptr().cast())
}

/// Copies and waits.
///
/// # Safety
///
/// `client` as for [`vkfd_close`](crate::vkfd_close).
#[no_mangle]
pub unsafe extern "C" fn vkfd_copy(
    client: *mut VkfdClient,
    gpu: u32,
    dst: u64,
    src: u64,
    bytes: u64,
    timeout_ms: u32,
) -> c_int {
    let copy = |queue: &mut CopyQueue, timeout| queue.copy_now(GpuVa(dst), GpuVa(src), bytes, timeout);
    // SAFETY: promised by the caller.
    guard(|| with_queue(unsafe { object(client, "client")? }, gpu, timeout_ms, copy))
}

/// Fills with a 32-bit word and waits.
///
/// # Safety
///
/// `client` as for [`vkfd_close`](crate::vkfd_close).
#[no_mangle]
pub unsafe extern "C" fn vkfd_fill(
    client: *mut VkfdClient,
    gpu: u32,
    dst: u64,
    word: u32,
    bytes: u64,
    timeout_ms: u32,
) -> c_int {
    let fill = |queue: &mut CopyQueue, timeout| queue.fill(GpuVa(dst), word, bytes)?.submit()?.wait(timeout);
    // SAFETY: promised by the caller.
    guard(|| with_queue(unsafe { object(client, "client")? }, gpu, timeout_ms, fill))
}

/// Does something on a GPU's copy queue.
fn with_queue(
    client: &VkfdClient,
    gpu: u32,
    timeout_ms: u32,
    work: impl FnOnce(&mut CopyQueue, Duration) -> Result,
) -> Result {
    let (index, gpu) = gpu_at(client, gpu)?;
    let mut queues = client.queues.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = queues.get_mut(index).ok_or_else(|| null("queue"))?;
    let mut queue = match slot.take() {
        Some(queue) => queue,
        None => CopyQueue::new(&client.client, gpu)?,
    };
    // A queue whose work failed is dropped: it has stopped, or still works on something that is not
    // waited for any more.
    work(&mut queue, Duration::from_millis(timeout_ms.into()))?;
    *slot = Some(queue);
    Ok(())
}

/// Unmaps and frees a buffer.
///
/// # Safety
///
/// As for [`vkfd_buffer_gpu_va`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_free(buffer: *mut VkfdBuffer) -> c_int {
    guard(|| {
        if buffer.is_null() {
            return Ok(());
        }
        // SAFETY: `hand_out` made it with `Box::into_raw`, and the caller gives it up.
        unsafe { Box::from_raw(buffer) }.0.free()
    })
}
