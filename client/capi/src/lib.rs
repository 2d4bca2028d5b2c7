// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The client library for C; `include/vkfd.h` documents it.
//!
//! Mechanism: opaque boxes, negative error numbers, and a message a thread. A panic ends at the boundary as `-EIO`.
//!
//! Lock: `queues` guards the copy queues, one for each GPU, made at first use and held for a copy; copies on one GPU therefore
//! run one after the other.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vkfd_client::{AllocOptions, Buffer, Client, ClientError, CopyQueue, GpuVa, RegisterOptions, Result, Strategy};

/// `vkfd_client`.
pub struct VkfdClient {
    client: Client,
    queues: Mutex<Vec<Option<CopyQueue>>>,
}

/// `vkfd_buffer`.
pub struct VkfdBuffer(Buffer);

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
    /// GPUs.
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

const READ_ONLY: u32 = 1 << 0;
const EXECUTABLE: u32 = 1 << 1;
const COHERENT: u32 = 1 << 2;
const PER_RANGE: u32 = 1 << 3;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

fn remember(message: &str) {
    // Messages have no zero byte; one that had would be cut there.
    let text = message.split('\0').next().unwrap_or_default();
    let text = CString::new(text).unwrap_or_default();
    // A thread that is ending has no message any more.
    let _ = MESSAGE.try_with(|slot| slot.replace(text));
}

/// Runs a function of the interface: no panic leaves it, and a failure is remembered.
fn guard(body: impl FnOnce() -> Result) -> c_int {
    let (errno, message) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => (errno_of(&error), error.to_string()),
        Err(_) => (libc::EIO, "the library panicked; this is a bug".to_owned()),
    };
    remember(&message);
    -errno
}

fn errno_of(error: &ClientError) -> c_int {
    match error {
        ClientError::GpuFault { .. } => libc::EFAULT,
        ClientError::QueueError { .. } => libc::EIO,
        other => other.errno().map_or(libc::EIO, |errno| errno.0),
    }
}

fn null(what: &str) -> ClientError {
    ClientError::Invalid(format!("{what} is NULL"))
}

/// The object of a handle.
///
/// # Safety
///
/// `handle` is null or came from this library and is not freed.
unsafe fn object<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: promised by the caller.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// Makes an object and hands it out.
///
/// # Safety
///
/// `out` is null or can be written.
unsafe fn hand_out<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T>) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(null("out"));
        }
        // SAFETY: not null, so it can be written.
        unsafe { out.write(ptr::null_mut()) };
        let made = Box::into_raw(Box::new(make()?));
        // SAFETY: as above.
        unsafe { out.write(made) };
        Ok(())
    })
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
    unsafe { hand_out(out, || embedded(gpus, vram_bytes).map(VkfdClient::new)) }
}

#[cfg(feature = "embedded")]
fn embedded(gpus: u32, vram_bytes: u64) -> Result<Client> {
    let mut options = vkfd_client::MachineOptions::default();
    if gpus != 0 {
        options.gpus = gpus;
    }
    if vram_bytes != 0 {
        options.vram_bytes = vram_bytes;
    }
    Client::embedded(options)
}

#[cfg(not(feature = "embedded"))]
fn embedded(_gpus: u32, _vram_bytes: u64) -> Result<Client> {
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
        if out.is_null() {
            return Err(null("out"));
        }
        // SAFETY: not null, and the first member is there whatever the size is.
        let room = unsafe { out.cast::<u32>().read() };
        let bytes = usize::try_from(room).unwrap_or(usize::MAX).min(size_of::<VkfdCaps>());
        if bytes < 8 {
            return Err(ClientError::Invalid(format!("vkfd_caps.size is {room}")));
        }
        let caps = client.client.caps();
        let flag = |set, bit| if set { bit } else { 0 };
        let filled = VkfdCaps {
            size: u32::try_from(bytes).unwrap_or(0),
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
        // SAFETY: the caller has `size` bytes there, and `bytes` is not more than that or than the source has.
        unsafe { ptr::copy_nonoverlapping((&raw const filled).cast::<u8>(), out.cast::<u8>(), bytes) };
        Ok(())
    })
}

/// Registers CPU ranges as one GPU range.
///
/// # Safety
///
/// `client` as for [`vkfd_close`]; `ranges` has `count` entries; `out` is null or can be written. For the memory, as for
/// [`Client::register_ranges`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_register_ranges(
    client: *mut VkfdClient,
    ranges: *const libc::iovec,
    count: usize,
    flags: u32,
    out: *mut *mut VkfdBuffer,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { register(client, None, ranges, count, flags, out) }
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
    unsafe { register(client, Some(GpuVa(gpu_va)), ranges, count, flags, out) }
}

/// # Safety
///
/// As for [`vkfd_register_ranges`].
unsafe fn register(
    client: *mut VkfdClient,
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
            at,
            strategy: if flags & PER_RANGE != 0 { Strategy::PerRange } else { Strategy::Auto },
            ..RegisterOptions::default()
        };
        // SAFETY: the caller promises the entries, and for the memory what `register_ranges` asks for.
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
/// `client` as for [`vkfd_close`]; `out` is null or can be written.
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

fn gpu_at(client: &VkfdClient, number: u32) -> Result<(usize, vkfd_client::GpuId)> {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    let gpus = client.client.gpus();
    let gpu = gpus.get(index).ok_or_else(|| ClientError::Invalid(format!("GPU {number} of {}", gpus.len())))?;
    Ok((index, gpu.id))
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
/// `client` as for [`vkfd_close`].
#[no_mangle]
pub unsafe extern "C" fn vkfd_copy(
    client: *mut VkfdClient,
    gpu: u32,
    dst: u64,
    src: u64,
    bytes: u64,
    timeout_ms: u32,
) -> c_int {
    guard(|| {
        // SAFETY: promised by the caller.
        let client = unsafe { object(client, "client")? };
        let (index, gpu) = gpu_at(client, gpu)?;
        let mut queues = client.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = queues.get_mut(index).ok_or_else(|| null("queue"))?;
        let mut queue = match slot.take() {
            Some(queue) => queue,
            None => CopyQueue::new(&client.client, gpu)?,
        };
        let timeout = Duration::from_millis(timeout_ms.into());
        // A queue whose copy failed is dropped: it has stopped, or still works on something that is not waited for any more.
        queue.copy_now(GpuVa(dst), GpuVa(src), bytes, timeout)?;
        *slot = Some(queue);
        Ok(())
    })
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

/// This thread's last message.
#[no_mangle]
pub extern "C" fn vkfd_last_error() -> *const c_char {
    MESSAGE.try_with(|slot| slot.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

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
