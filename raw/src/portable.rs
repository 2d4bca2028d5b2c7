// SPDX-License-Identifier: GPL-2.0 OR MIT
//! [`raw`](super) without a signal handler: the kernel copies (`process_vm_readv` on the own
//! process), page by page so that the count is exact.

use super::Faulted;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pieces do not cross a boundary of this size: no supported system has smaller pages.
const PAGE: usize = 4096;

fn to_boundary(addr: usize) -> usize {
    PAGE - addr % PAGE
}

/// Copies within the own process through the kernel; false if either side cannot be touched.
unsafe fn kernel_copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
    let local = libc::iovec { iov_base: dst.cast(), iov_len: len };
    let remote = libc::iovec { iov_base: src.cast_mut().cast(), iov_len: len };
    // SAFETY: the kernel checks both addresses; the caller allows `dst` to be written.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(copied) == Ok(len)
}

#[cfg(not(target_arch = "x86_64"))] // Where it is not only tested.
pub(super) fn chain(_: libc::c_int, _: Option<libc::sigaction>) -> Option<libc::sigaction> {
    None
}

pub(super) fn install() {}

pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Faulted> {
    let mut done = 0;
    while done < len {
        let (to, from) = (dst.wrapping_add(done), src.wrapping_add(done));
        let step = (len - done).min(to_boundary(to.addr())).min(to_boundary(from.addr()));
        // SAFETY: forwarded to the caller; the step lies within both regions.
        if !unsafe { kernel_copy(to, from, step) } {
            let mut probe = 0;
            // SAFETY: writes only the local byte.
            let write = unsafe { kernel_copy(&raw mut probe, from, 1) };
            return Err(Faulted { done, addr: if write { to.addr() } else { from.addr() }, write });
        }
        done += step;
    }
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))] // As above.
pub(super) unsafe fn copy_nontemporal(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { copy(dst, src, len) }
}

pub(super) unsafe fn fill(dst: *mut u8, value: u8, len: usize) -> Result<(), Faulted> {
    let page = [value; PAGE];
    let mut done = 0;
    while done < len {
        let step = (len - done).min(PAGE);
        // SAFETY: forwarded to the caller; the step lies within the region.
        unsafe { copy(dst.wrapping_add(done), page.as_ptr(), step) }
            .map_err(|fault| Faulted { done: done + fault.done, ..fault })?;
        done += step;
    }
    Ok(())
}

/// Checks that a word can be read. Whether it can be written, the kernel tells only by writing,
/// which would not be atomic.
unsafe fn probe(ptr: *const u8, len: usize) -> Result<(), Faulted> {
    let mut word = [0u8; 8];
    // SAFETY: writes only the local buffer, and `len` is at most its size.
    unsafe { copy(word.as_mut_ptr(), ptr, len) }.map_err(|fault| Faulted { write: true, ..fault })
}

pub(super) unsafe fn load_u32(ptr: *const u32) -> Result<u32, Faulted> {
    let mut value = 0u32;
    // SAFETY: writes only the local word; aligned words do not cross a page.
    unsafe { copy((&raw mut value).cast(), ptr.cast(), 4) }?;
    std::sync::atomic::fence(Ordering::Acquire);
    Ok(value)
}

pub(super) unsafe fn load_u64(ptr: *const u64) -> Result<u64, Faulted> {
    let mut value = 0u64;
    // SAFETY: as in `load_u32`.
    unsafe { copy((&raw mut value).cast(), ptr.cast(), 8) }?;
    std::sync::atomic::fence(Ordering::Acquire);
    Ok(value)
}

pub(super) unsafe fn store_u32(ptr: *mut u32, value: u32) -> Result<(), Faulted> {
    std::sync::atomic::fence(Ordering::Release);
    // SAFETY: forwarded to the caller.
    unsafe { copy(ptr.cast(), (&raw const value).cast(), 4) }
}

pub(super) unsafe fn store_u64(ptr: *mut u64, value: u64) -> Result<(), Faulted> {
    std::sync::atomic::fence(Ordering::Release);
    // SAFETY: forwarded to the caller.
    unsafe { copy(ptr.cast(), (&raw const value).cast(), 8) }
}

pub(super) unsafe fn store_run(ptr: *mut u64, first: u64, step: u64, count: usize) -> Result<(), Faulted> {
    let mut entry = first;
    for index in 0..count {
        // SAFETY: forwarded to the caller.
        unsafe { store_u64(ptr.wrapping_add(index), entry) }.map_err(|f| Faulted { done: index * 8, ..f })?;
        entry = entry.wrapping_add(step);
    }
    Ok(())
}

pub(super) unsafe fn add_u64(ptr: *mut u64, value: u64) -> Result<u64, Faulted> {
    // SAFETY: forwarded to the caller; the probe found the word readable.
    unsafe {
        probe(ptr.cast(), 8)?;
        Ok(AtomicU64::from_ptr(ptr).fetch_add(value, Ordering::SeqCst))
    }
}

pub(super) unsafe fn compare_exchange_u32(ptr: *mut u32, expected: u32, new: u32) -> Result<u32, Faulted> {
    // SAFETY: as in `add_u64`.
    unsafe {
        probe(ptr.cast(), 4)?;
        let word = AtomicU32::from_ptr(ptr);
        Ok(word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|seen| seen))
    }
}

pub(super) unsafe fn compare_exchange_u64(ptr: *mut u64, expected: u64, new: u64) -> Result<u64, Faulted> {
    // SAFETY: as in `add_u64`.
    unsafe {
        probe(ptr.cast(), 8)?;
        let word = AtomicU64::from_ptr(ptr);
        Ok(word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|seen| seen))
    }
}

pub(super) unsafe fn load_u8(ptr: *const u8) -> Result<u8, Faulted> {
    let mut value = 0u8;
    // SAFETY: writes only the local byte.
    unsafe { copy(&raw mut value, ptr, 1) }?;
    std::sync::atomic::fence(Ordering::Acquire);
    Ok(value)
}

pub(super) unsafe fn load_u16(ptr: *const u16) -> Result<u16, Faulted> {
    let mut value = 0u16;
    // SAFETY: as in `load_u32`.
    unsafe { copy((&raw mut value).cast(), ptr.cast(), 2) }?;
    std::sync::atomic::fence(Ordering::Acquire);
    Ok(value)
}

pub(super) unsafe fn store_u8(ptr: *mut u8, value: u8) -> Result<(), Faulted> {
    std::sync::atomic::fence(Ordering::Release);
    // SAFETY: forwarded to the caller.
    unsafe { copy(ptr, &raw const value, 1) }
}

pub(super) unsafe fn store_u16(ptr: *mut u16, value: u16) -> Result<(), Faulted> {
    std::sync::atomic::fence(Ordering::Release);
    // SAFETY: forwarded to the caller.
    unsafe { copy(ptr.cast(), (&raw const value).cast(), 2) }
}

pub(super) unsafe fn add_u32(ptr: *mut u32, value: u32) -> Result<u32, Faulted> {
    // SAFETY: as in `add_u64`.
    unsafe {
        probe(ptr.cast(), 4)?;
        Ok(AtomicU32::from_ptr(ptr).fetch_add(value, Ordering::SeqCst))
    }
}

pub(super) unsafe fn swap_u32(ptr: *mut u32, value: u32) -> Result<u32, Faulted> {
    // SAFETY: as in `add_u64`.
    unsafe {
        probe(ptr.cast(), 4)?;
        Ok(AtomicU32::from_ptr(ptr).swap(value, Ordering::SeqCst))
    }
}

pub(super) unsafe fn swap_u64(ptr: *mut u64, value: u64) -> Result<u64, Faulted> {
    // SAFETY: as in `add_u64`.
    unsafe {
        probe(ptr.cast(), 8)?;
        Ok(AtomicU64::from_ptr(ptr).swap(value, Ordering::SeqCst))
    }
}

pub(crate) unsafe fn load_each(dst: *mut u8, from: &[*mut u8], bytes: usize) -> Result<(), Faulted> {
    let word = bytes.max(4);
    for (index, ptr) in from.iter().enumerate() {
        let mut value = [0u8; 16];
        // SAFETY: writes only the local word.
        unsafe { copy(value.as_mut_ptr(), *ptr, bytes) }.map_err(|fault| Faulted { done: index, ..fault })?;
        // SAFETY: the caller has as many words.
        unsafe { dst.wrapping_add(index * word).copy_from(value.as_ptr(), word) };
    }
    Ok(())
}

pub(crate) unsafe fn store_each(src: *const u8, to: &[*mut u8], bytes: usize) -> Result<(), Faulted> {
    for (index, ptr) in to.iter().enumerate() {
        let from = src.wrapping_add(index * bytes.max(4));
        // SAFETY: forwarded to the caller.
        unsafe { copy(*ptr, from, bytes) }.map_err(|fault| Faulted { done: index, ..fault })?;
    }
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))] // As above.
pub(crate) unsafe fn copy_lines(dst: *mut u8, src: *const u8, lines: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { copy(dst, src, lines * 64) }
}

#[cfg(not(target_arch = "x86_64"))] // As above.
pub(crate) unsafe fn copy_lines_avx(dst: *mut u8, src: *const u8, lines: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { copy(dst, src, lines * 64) }
}

#[cfg(not(target_arch = "x86_64"))] // As above.
pub(crate) unsafe fn copy_lines_past(dst: *mut u8, src: *const u8, lines: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { copy(dst, src, lines * 64) }
}

pub(crate) unsafe fn load_rows(dst: *mut u32, from: &[*mut u8], words: usize) -> Result<(), Faulted> {
    for (group, lines) in from.chunks_exact(words).enumerate() {
        let mut loaded = [[0u8; 64]; 4];
        for (line, loaded) in lines.iter().zip(&mut loaded) {
            let done = 64 * words * group;
            // SAFETY: writes only the local line.
            unsafe { copy(loaded.as_mut_ptr(), *line, 64) }.map_err(|fault| Faulted { done, ..fault })?;
        }
        for (index, word) in loaded.as_flattened().chunks_exact(4).take(16 * words).enumerate() {
            let to = dst.wrapping_add(64 * (index % words) + 16 * group + index / words);
            // SAFETY: the caller has as many rows.
            unsafe { to.cast::<u8>().copy_from(word.as_ptr(), 4) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_stop_at_the_exact_byte() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: own mapping of two pages, of which the second loses its permissions; only
        // accessed through the kernel.
        unsafe {
            install();
            let base = libc::mmap(std::ptr::null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let base: *mut u8 = base.cast();
            let end = base.wrapping_add(PAGE);
            let mut buffer = vec![9u8; 2 * PAGE];
            copy(base, buffer.as_ptr(), 2 * PAGE).unwrap();
            copy(buffer.as_mut_ptr(), base, 2 * PAGE).unwrap();
            assert!(buffer.iter().all(|&byte| byte == 9));
            assert_eq!(load_u8(base), Ok(9));
            assert_eq!(load_u16(base.cast()), Ok(0x0909));
            store_u16(base.cast(), 0x1234).unwrap();
            store_u8(base, 0x56).unwrap();
            assert_eq!(swap_u32(base.cast(), 0xffff_ffff), Ok(0x0909_1256));
            assert_eq!(add_u32(base.cast(), 2), Ok(0xffff_ffff));
            assert_eq!(swap_u64(base.cast(), 0x0909_0909_0909_0909), Ok(0x0909_0909_0000_0001));
            assert_eq!(add_u64(base.cast(), 1), Ok(0x0909_0909_0909_0909));
            assert_eq!(load_u64(base.cast()), Ok(0x0909_0909_0909_090a));
            assert_eq!(compare_exchange_u32(base.cast(), 0, 0), Ok(0x0909_090a));
            assert_eq!(compare_exchange_u64(base.cast(), 0x0909_0909_0909_090a, 1), Ok(0x0909_0909_0909_090a));

            let lanes = [base, base.wrapping_add(3), base.wrapping_add(8)];
            let mut words = [0u32; 3];
            store_each([5u32, 6, 7].as_ptr().cast(), &lanes, 2).unwrap();
            load_each(words.as_mut_ptr().cast(), &lanes, 2).unwrap();
            assert_eq!(words, [5, 6, 7]);
            let numbers: [u32; 128] = std::array::from_fn(|n| u32::try_from(n).unwrap());
            let lines: [*mut u8; 8] = std::array::from_fn(|n| numbers.as_ptr().wrapping_add(16 * n).cast_mut().cast());
            let mut rows = [[0u32; 64]; 4];
            load_rows(rows.as_mut_ptr().cast(), &lines, 4).unwrap();
            assert_eq!((rows[0][31], rows[3][2], rows[1][32]), (124, 11, 0));

            libc::mprotect(end.cast(), PAGE, libc::PROT_READ);
            let fault = |done, write| Err(Faulted { done, addr: end.addr(), write });
            assert_eq!(copy(end.wrapping_sub(5), buffer.as_ptr(), 9), fault(5, true));
            assert_eq!(fill(base, 1, 2 * PAGE), fault(PAGE, true));
            assert_eq!(store_u8(end, 1), fault(0, true));
            assert_eq!(store_u16(end.cast(), 1), fault(0, true));
            assert_eq!(store_u32(end.cast(), 1), fault(0, true));
            assert_eq!(store_u64(end.cast(), 1), fault(0, true));
            assert_eq!(store_run(end.wrapping_sub(16).cast(), 1, 1, 3), fault(16, true));
            assert_eq!(load_u32(end.cast()), Ok(0x0909_0909));
            assert_eq!(store_each(words.as_ptr().cast(), &[base, base, end], 4), fault(2, true));
            libc::mprotect(end.cast(), PAGE, libc::PROT_NONE);
            assert_eq!(load_each(words.as_mut_ptr().cast(), &[base, end, base], 4), fault(1, false));
            assert_eq!(
                copy(buffer.as_mut_ptr().wrapping_add(3), base.wrapping_add(1), 2 * PAGE - 3),
                fault(PAGE - 1, false)
            );
            assert_eq!(load_u8(end), Err(Faulted { done: 0, addr: end.addr(), write: false }));
            assert_eq!(load_u16(end.cast()), Err(Faulted { done: 0, addr: end.addr(), write: false }));
            assert_eq!(add_u64(end.cast(), 1), Err(Faulted { done: 0, addr: end.addr(), write: true }));
            assert_eq!(add_u32(end.cast(), 1), Err(Faulted { done: 0, addr: end.addr(), write: true }));
            assert_eq!(swap_u32(end.cast(), 1), Err(Faulted { done: 0, addr: end.addr(), write: true }));
            assert_eq!(swap_u64(end.cast(), 1), Err(Faulted { done: 0, addr: end.addr(), write: true }));
            libc::munmap(base.cast(), 2 * PAGE);
        }
    }
}
