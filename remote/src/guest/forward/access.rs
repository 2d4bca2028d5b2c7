// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The program's memory as a kernel would access it: what is not there is EFAULT.
//!
//! By guarded copies (crate `vkfd-raw`) and not by system calls: a guest's kernel does not let
//! calls for another process's memory reach pages that a device's driver has mapped.

use std::ffi::c_void;

/// Reads.
///
/// # Safety
/// Another writer there risks only racy contents.
pub unsafe fn read(from: *const c_void, to: &mut [u8]) -> Result<(), i32> {
    if from.is_null() && !to.is_empty() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the destination is exclusive and as long; what is not mapped is an error.
    unsafe { vkfd_raw::copy(to.as_mut_ptr(), from.cast(), to.len()) }.map_err(|_| libc::EFAULT)
}

/// Writes.
///
/// # Safety
/// It is memory that the caller of an ioctl lets be written.
pub unsafe fn write(to: *mut c_void, from: &[u8]) -> Result<(), i32> {
    if to.is_null() && !from.is_empty() {
        return Err(libc::EFAULT);
    }
    // SAFETY: promised by the caller; what is not mapped is an error.
    unsafe { vkfd_raw::copy(to.cast(), from.as_ptr(), from.len()) }.map_err(|_| libc::EFAULT)
}
