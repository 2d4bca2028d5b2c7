// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What every function of the interface does: turn a result into an error number and a message of
//! the thread, a panic into `-EIO`, and handles into objects.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

use vkfd_client::{ClientError, Errno, Result};

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
    static FAULT: Cell<Option<VkfdFault>> = const { Cell::new(None) };
}

/// `struct vkfd_fault`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VkfdFault {
    /// In: the caller's size. Out: bytes filled.
    pub size: u32,
    /// KFD's number of the GPU.
    pub gpu_id: u32,
    /// The page's address.
    pub gpu_va: u64,
    /// Nothing is mapped there.
    pub not_present: u32,
    /// A write to a page that is mapped read-only.
    pub read_only: u32,
}

pub(crate) fn remember(message: &str) {
    // Messages have no zero byte; one that had would be cut there.
    let text = message.split('\0').next().unwrap_or_default();
    let text = CString::new(text).unwrap_or_default();
    // A thread that is ending has no message any more.
    let _ = MESSAGE.try_with(|slot| slot.replace(text));
}

/// Runs a function of the interface: no panic leaves it, and a failure is remembered.
pub(crate) fn guard(body: impl FnOnce() -> Result) -> c_int {
    let (errno, message) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => {
            if let ClientError::GpuFault { gpu, va, not_present, read_only } = error {
                let (not_present, read_only) = (not_present.into(), read_only.into());
                let fault = VkfdFault { size: 0, gpu_id: gpu.0, gpu_va: va.0, not_present, read_only };
                // A thread that is ending has no fault any more.
                let _ = FAULT.try_with(|slot| slot.set(Some(fault)));
            }
            (errno_of(&error), error.to_string())
        }
        Err(_) => (libc::EIO, "the library panicked; this is a bug".to_owned()),
    };
    remember(&message);
    -errno
}

fn errno_of(error: &ClientError) -> c_int {
    match error {
        ClientError::GpuFault { .. } => libc::EFAULT,
        ClientError::QueueError { .. } => libc::EIO,
        ClientError::NoGpu(_) => libc::EINVAL,
        other => other.errno().map_or(libc::EIO, |errno| errno.0),
    }
}

pub(crate) fn null(what: &str) -> ClientError {
    ClientError::Invalid(format!("{what} is NULL"))
}

/// The object of a handle.
///
/// # Safety
///
/// `handle` is null or came from this library and is not freed.
pub(crate) unsafe fn object<'a, T>(handle: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: promised by the caller.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// Makes an object and hands it out.
///
/// # Safety
///
/// `out` is null or can be written.
pub(crate) unsafe fn hand_out<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T>) -> c_int {
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

/// Fills a structure of a caller that may know a shorter form of it: the first member is the
/// caller's size, and then how much was filled.
///
/// # Safety
///
/// `out` is null or has as many bytes as its first member says. `T` begins with that member, a
/// `u32`, and has no padding.
pub(crate) unsafe fn fill<T: Copy>(out: *mut T, what: &str, make: impl FnOnce(u32) -> Result<T>) -> Result {
    if out.is_null() {
        return Err(null("out"));
    }
    // SAFETY: not null, and the first member is there whatever the size is.
    let room = unsafe { out.cast::<u32>().read() };
    let bytes = usize::try_from(room).unwrap_or(usize::MAX).min(size_of::<T>());
    if bytes < 8 {
        return Err(ClientError::Invalid(format!("{what}.size is {room}")));
    }
    let filled = make(u32::try_from(bytes).unwrap_or(0))?;
    // SAFETY: the caller has `size` bytes there, and `bytes` is not more than that or than the
    // source has.
    unsafe { ptr::copy_nonoverlapping((&raw const filled).cast::<u8>(), out.cast::<u8>(), bytes) };
    Ok(())
}

/// Reads a structure of a caller that may know a shorter form of it: what it does not know is as in
/// `value`.
///
/// # Safety
///
/// `given` is null or has as many bytes as its first member says. `T` begins with that member, a
/// `u32`, and is valid for every bit pattern.
pub(crate) unsafe fn read<T: Copy>(given: *const T, what: &str, mut value: T) -> Result<T> {
    if given.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the first member is there whatever the size is.
    let size = unsafe { given.cast::<u32>().read() };
    let bytes = usize::try_from(size).unwrap_or(usize::MAX).min(size_of::<T>());
    if bytes < 8 {
        return Err(ClientError::Invalid(format!("{what}.size is {size}")));
    }
    // SAFETY: both have that many bytes, and any bytes are a `T`.
    unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut value).cast::<u8>(), bytes) };
    Ok(value)
}

/// This thread's last message.
#[no_mangle]
pub extern "C" fn vkfd_last_error() -> *const c_char {
    MESSAGE.try_with(|slot| slot.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// This thread's last page fault of a GPU.
///
/// # Safety
///
/// `out` is null or has `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn vkfd_last_fault(out: *mut VkfdFault) -> c_int {
    guard(|| {
        let fault = FAULT.try_with(Cell::get).ok().flatten();
        let none =
            || ClientError::Call { call: "vkfd_last_fault (none of this thread's waits met one)", errno: Errno::NOENT };
        // SAFETY: promised by the caller; the structure's members leave no room between them.
        unsafe { fill(out, "vkfd_fault", |size| Ok(VkfdFault { size, ..fault.ok_or_else(none)? })) }
    })
}
