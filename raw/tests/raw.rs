// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recoverable accesses, and that other faults stay fatal.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use vkfd_raw::{self as raw, Faulted};

const PAGE: usize = 4096;

/// A private mapping of some pages, of which the last can be taken away.
struct Pages {
    base: *mut u8,
    len: usize,
}

impl Pages {
    fn new(pages: usize) -> Pages {
        let len = pages * PAGE;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Pages { base: base.cast(), len }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.base.wrapping_add(offset)
    }

    fn protect_last(&self, protection: libc::c_int) {
        // SAFETY: a page of this mapping, to which no reference exists.
        assert_eq!(unsafe { libc::mprotect(self.at(self.len - PAGE).cast(), PAGE, protection) }, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this mapping, no longer used.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

type Copy = unsafe fn(*mut u8, *const u8, usize) -> Result<(), Faulted>;
const COPIES: [Copy; 2] = [raw::copy, raw::copy_nontemporal];

/// Bytes that every copy can write.
#[repr(align(32))]
struct Aligned([u8; 192]);

/// [`raw::copy_lines`] and its like.
type CopyLines = unsafe fn(*mut u8, *const u8, usize) -> Result<(), Faulted>;

#[test]
fn a_fault_on_either_side_stops_at_the_exact_byte() {
    COPIES.into_iter().for_each(stops_at_the_exact_byte);
}

fn stops_at_the_exact_byte(copy: Copy) {
    let (bad, good) = (Pages::new(5), Pages::new(5));
    // SAFETY: own mapping.
    unsafe { raw::fill(good.base, 7, 5 * PAGE) }.unwrap();
    let end = 4 * PAGE;
    // Across the boundary of small and large copies, and from any alignment.
    for before in [0, 1, 7, 8, 9, 63, 64, 200, 255, 256, 257, 1000, PAGE, 3 * PAGE + 5] {
        for len in [before + 1, before + 8, before + 100, before + PAGE] {
            for skew in [0, 3] {
                bad.protect_last(libc::PROT_NONE);
                let start = bad.at(end - before);
                // SAFETY: own mappings; the fault is the point.
                let fault = unsafe { copy(good.at(skew), start, len) }.unwrap_err();
                assert_eq!(fault, Faulted { done: before, addr: bad.at(end).addr(), write: false });
                // SAFETY: as above.
                let fault = unsafe { copy(start, good.at(skew), len) }.unwrap_err();
                assert_eq!((fault.done, fault.write), (before, true));
                // SAFETY: as above.
                let fault = unsafe { raw::fill(start, 1, len) }.unwrap_err();
                assert_eq!((fault.done, fault.addr, fault.write), (before, bad.at(end).addr(), true));
                // Readable now, writable not.
                bad.protect_last(libc::PROT_READ);
                // SAFETY: as above.
                let fault = unsafe { copy(start, good.at(skew), len) }.unwrap_err();
                assert_eq!((fault.done, fault.write), (before, true));
                // SAFETY: as above.
                unsafe { copy(good.at(skew), start, len) }.unwrap();
            }
        }
    }
}

#[test]
fn copies_are_right() {
    let pages = Pages::new(20);
    for index in 0..10 * PAGE {
        // SAFETY: own mapping.
        unsafe { pages.at(index).write(index.to_le_bytes()[0] ^ index.to_le_bytes()[1]) };
    }
    for len in (0..300).chain([511, 4096, 9 * PAGE - 7]) {
        for (copy, skew) in COPIES.into_iter().flat_map(|copy| [(copy, 1), (copy, 16)]) {
            let (src, dst) = (pages.at(3), pages.at(10 * PAGE + skew));
            // SAFETY: own mapping, apart; read back through a buffer nobody else has.
            unsafe {
                raw::fill(dst.wrapping_sub(1), 0xee, len + 2).unwrap();
                copy(dst, src, len).unwrap();
                assert_eq!(std::slice::from_raw_parts(dst, len), std::slice::from_raw_parts(src, len));
                assert_eq!((dst.wrapping_sub(1).read(), dst.wrapping_add(len).read()), (0xee, 0xee));
            }
        }
    }
}

#[test]
fn a_run_of_words_stops_at_the_word_that_faults() {
    let pages = Pages::new(2);
    let near: *mut u64 = pages.at(PAGE - 24).cast();
    // SAFETY: own mapping, aligned.
    unsafe {
        let read = || [0, 1, 2, 3].map(|i| raw::load_u64(near.wrapping_add(i)).unwrap());
        raw::store_run(near, 7, u64::MAX, 0).unwrap();
        assert_eq!(read(), [0; 4]);
        raw::store_run(near, 7, 0x1000, 4).unwrap();
        assert_eq!(read(), [7, 0x1007, 0x2007, 0x3007]);
        raw::store_run(near, 1, u64::MAX, 3).unwrap();
        assert_eq!(read(), [1, 0, u64::MAX, 0x3007], "a step may be negative");
        pages.protect_last(libc::PROT_READ);
        let end = near.wrapping_add(3);
        assert_eq!(raw::store_run(near, 5, 0, 9), Err(Faulted { done: 24, addr: end.addr(), write: true }));
        assert_eq!(raw::store_run(end, 5, 0, 1), Err(Faulted { done: 0, addr: end.addr(), write: true }));
        assert_eq!(read(), [5, 5, 5, 0x3007]);
    }
}

#[test]
fn words_work_and_fault() {
    let pages = Pages::new(2);
    let (word, half): (*mut u64, *mut u32) = (pages.at(0).cast(), pages.at(8).cast());
    // SAFETY: own mapping, aligned.
    unsafe {
        raw::store_u64(word, 40).unwrap();
        assert_eq!(raw::atomic_add_u64(word, u64::MAX).unwrap(), 40);
        assert_eq!(raw::compare_exchange_u64(word, 40, 1).unwrap(), 39);
        assert_eq!(raw::compare_exchange_u64(word, 39, 1 << 63 | 2).unwrap(), 39);
        assert_eq!(raw::atomic_update_u64(word, |old| old ^ 3).unwrap(), 1 << 63 | 2);
        assert_eq!(raw::load_u64(word).unwrap(), 1 << 63 | 1);
        raw::store_u32(half, u32::MAX).unwrap();
        assert_eq!(raw::compare_exchange_u32(half, u32::MAX, 5).unwrap(), u32::MAX);
        assert_eq!(raw::atomic_update_u32(half, |old| old + 1).unwrap(), 5);
        assert_eq!(raw::load_u32(half).unwrap(), 6);
        assert_eq!(raw::load_u32(half.wrapping_add(1)).unwrap(), 0);
        assert_eq!(raw::atomic_add_u32(half, u32::MAX).unwrap(), 6);
        assert_eq!(raw::atomic_swap_u32(half, 0x8000_0001).unwrap(), 5);
        assert_eq!(raw::atomic_swap_u64(word, 7).unwrap(), 1 << 63 | 1);
        // Words of 8 and 16 bits change nothing beside them, at any address.
        let byte = pages.at(8);
        raw::store_u8(byte.wrapping_add(1), 0xab).unwrap();
        raw::store_u16(byte.wrapping_add(2).cast(), 0xcdef).unwrap();
        assert_eq!(raw::load_u32(half).unwrap(), 0xcdef_ab01);
        assert_eq!(raw::load_u8(byte.wrapping_add(3)).unwrap(), 0xcd);
        assert_eq!(raw::load_u16(half.cast()).unwrap(), 0xab01);
        assert_eq!(raw::load_u64(word).unwrap(), 7);
    }
    pages.protect_last(libc::PROT_READ);
    let (word, half): (*mut u64, *mut u32) = (pages.at(PAGE).cast(), pages.at(PAGE).cast());
    let fault = Faulted { done: 0, addr: word.addr(), write: true };
    // SAFETY: as above.
    unsafe {
        assert_eq!(raw::load_u64(word), Ok(0));
        assert_eq!(raw::store_u64(word, 1), Err(fault));
        assert_eq!(raw::store_u32(half, 1), Err(fault));
        assert_eq!(raw::atomic_add_u64(word, 1), Err(fault));
        assert_eq!(raw::atomic_add_u32(half, 1), Err(fault));
        assert_eq!(raw::atomic_swap_u32(half, 1), Err(fault));
        assert_eq!(raw::atomic_swap_u64(word, 1), Err(fault));
        assert_eq!(raw::store_u8(half.cast(), 1), Err(fault));
        assert_eq!(raw::store_u16(half.cast(), 1), Err(fault));
        assert_eq!(raw::compare_exchange_u64(word, 1, 1), Err(fault));
        assert_eq!(raw::compare_exchange_u32(half, 1, 1), Err(fault));
        assert_eq!(raw::atomic_update_u64(word, |old| old), Err(fault));
        pages.protect_last(libc::PROT_NONE);
        assert_eq!(raw::load_u64(word), Err(Faulted { write: false, ..fault }));
        assert_eq!(raw::load_u32(half), Err(Faulted { write: false, ..fault }));
        assert_eq!(raw::load_u16(half.cast()), Err(Faulted { write: false, ..fault }));
        assert_eq!(raw::load_u8(half.cast()), Err(Faulted { write: false, ..fault }));
        // A non-canonical address faults without naming itself.
        let nowhere = std::ptr::without_provenance(0x8000_0000_0000_0000);
        assert_eq!(raw::load_u64(nowhere).unwrap_err().done, 0);
        assert_eq!(raw::copy(pages.at(0), nowhere.cast(), 1000).unwrap_err().done, 0);
    }
}

#[test]
fn a_truncated_file_is_a_fault() {
    // SAFETY: a memfd of two pages, mapped and then cut to one; accesses are recoverable.
    unsafe {
        let fd = libc::memfd_create(c"truncated".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        assert_eq!(libc::ftruncate(fd, 8192), 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let base = libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, libc::MAP_SHARED, fd, 0).cast::<u8>();
        let mut bytes = vec![0u8; 2 * PAGE];
        raw::copy(bytes.as_mut_ptr(), base, 2 * PAGE).unwrap();
        assert_eq!(libc::ftruncate(fd, 4096), 0);
        let fault = raw::copy(bytes.as_mut_ptr(), base, 2 * PAGE).unwrap_err();
        assert_eq!((fault.done, fault.write), (PAGE, false));
        let fault = raw::copy(base.wrapping_add(1), bytes.as_ptr(), 2 * PAGE).unwrap_err();
        assert_eq!((fault.done, fault.write), (PAGE - 1, true));
        assert_eq!(raw::load_u64(base.wrapping_add(PAGE).cast()).unwrap_err().done, 0);
        libc::munmap(base.cast(), 2 * PAGE);
        libc::close(fd);
    }
}

#[test]
fn faults_on_many_threads_at_once() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let bad = Pages::new(2);
                bad.protect_last(libc::PROT_NONE);
                let mut bytes = vec![0u8; 2 * PAGE];
                for _ in 0..2000 {
                    // SAFETY: own mapping and buffer.
                    let fault = unsafe { raw::copy(bytes.as_mut_ptr(), bad.base, 2 * PAGE) }.unwrap_err();
                    assert_eq!((fault.done, fault.addr), (PAGE, bad.at(PAGE).addr()));
                }
            });
        }
    });
}

/// Runs [`child`] in a process of its own.
fn run_child(what: &str) -> Output {
    let executable = std::env::current_exe().unwrap();
    let mut command = Command::new(executable);
    command.args(["--exact", "child", "--nocapture"]).env("VKFD_RAW_CHILD", what).output().unwrap()
}

/// Not a test by itself: what the children do.
#[test]
fn child() {
    let Ok(what) = std::env::var("VKFD_RAW_CHILD") else { return };
    let pages = Pages::new(2);
    pages.protect_last(libc::PROT_NONE);
    // A recovered fault first, so that the handler is known to be there.
    let mut byte = 0;
    // SAFETY: own mapping; in the last arms, the death of this process is the point.
    unsafe {
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &limit);
        assert!(raw::copy(&raw mut byte, pages.at(PAGE), 1).is_err());
        match what.as_str() {
            "recover" => {}
            "segfault" => drop(pages.at(PAGE).read_volatile()),
            "copy" => std::ptr::copy_nonoverlapping(pages.at(PAGE), pages.at(0), std::hint::black_box(PAGE)),
            "overflow" => drop(overflow(1)),
            _ => unreachable!(),
        }
    }
    println!("survived");
}

#[allow(unconditional_recursion)]
fn overflow(depth: usize) -> usize {
    let frame = std::hint::black_box([depth; 1000]);
    overflow(depth + 1) + std::hint::black_box(frame)[depth % 1000]
}

#[test]
fn only_marked_faults_are_survived() {
    let output = run_child("recover");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("survived"));
    for what in ["segfault", "copy"] {
        assert_eq!(run_child(what).status.signal(), Some(libc::SIGSEGV), "{what}");
    }
}

#[test]
fn rust_still_reports_stack_overflows() {
    let output = run_child("overflow");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    assert!(String::from_utf8_lossy(&output.stderr).contains("overflowed its stack"));
}

#[test]
fn a_copy_to_a_little_below_its_source_moves_the_bytes() {
    let pages = Pages::new(1);
    let pattern: Vec<u8> = (0..2000u32).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect();
    for distance in [1, 8, 40, 63, 64, 65, 300] {
        // SAFETY: own mapping and own array.
        unsafe { raw::copy(pages.at(distance), pattern.as_ptr(), pattern.len()) }.unwrap();
        // SAFETY: own mapping; the regions overlap with the target below.
        unsafe { raw::copy(pages.at(0), pages.at(distance), pattern.len()) }.unwrap();
        let mut seen = vec![0; pattern.len()];
        // SAFETY: as above.
        unsafe { raw::copy(seen.as_mut_ptr(), pages.at(0), seen.len()) }.unwrap();
        assert!(seen == pattern, "distance {distance}");
    }
}

#[test]
fn lanes_are_accessed_in_order_and_stop_at_the_one_that_faults() {
    let pages = Pages::new(2);
    let end = pages.at(PAGE);
    // Unaligned, and one across the pages.
    let lanes: Vec<*mut u8> = [1, 9, 17, PAGE - 3, 40].map(|offset| pages.at(offset)).to_vec();
    // SAFETY: own mapping.
    unsafe {
        raw::fill(pages.base, 0xee, 2 * PAGE).unwrap();
        let longer: [u128; 3] = [7 << 100 | 1, u128::MAX, 9];
        let ends = [1, PAGE - 9, 40].map(|offset| pages.at(offset));
        raw::store_each(longer.as_ptr().cast(), &ends, 16).unwrap();
        let mut out = [0u128; 3];
        raw::load_each(out.as_mut_ptr().cast(), &ends, 16).unwrap();
        assert_eq!(out, longer);
        assert_eq!([0, 17, 56].map(|at| raw::load_u8(pages.at(at)).unwrap()), [0xee; 3]);
        for bytes in [1, 2, 4, 8] {
            raw::fill(pages.base, 0xee, 2 * PAGE).unwrap();
            let words = [0x0102_0304_0506_0708u64, u64::MAX, 7, 8, 9];
            let narrow = words.map(|word| u32::try_from(word & 0xffff_ffff).unwrap());
            let src: *const u8 = if bytes == 8 { words.as_ptr().cast() } else { narrow.as_ptr().cast() };
            raw::store_each(src, &lanes, bytes).unwrap();
            let mut out = [0u64; 5];
            raw::load_each(out.as_mut_ptr().cast(), &lanes, bytes).unwrap();
            let mask = u64::MAX >> (64 - 8 * bytes);
            if bytes == 8 {
                assert_eq!(out, words);
            } else {
                let out = [out[0] & 0xffff_ffff, out[0] >> 32, out[1] & 0xffff_ffff, out[1] >> 32, out[2]];
                assert_eq!(out, words.map(|word| word & mask), "{bytes}");
            }
            let after = if bytes == 8 { 25 } else { 1 + bytes };
            assert_eq!([0, after].map(|at| raw::load_u8(pages.at(at)).unwrap()), [0xee, 0xee]);
        }
        let mut aligned = Aligned([0; 192]);
        let lines = &mut aligned.0;
        let mut copies: Vec<CopyLines> = vec![raw::copy_lines];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx") {
            copies.extend([raw::copy_lines_avx as CopyLines, raw::copy_lines_past]);
        }
        for copy_lines in &copies {
            lines.fill(0);
            copy_lines(lines.as_mut_ptr(), pages.at(5), 3).unwrap();
            raw::fence_stores();
            assert_eq!(lines[..8], [4, 3, 2, 1, 0xff, 0xff, 0xff, 0xff]);
            let mut back = [0u8; 192];
            raw::copy(back.as_mut_ptr(), pages.at(5), 192).unwrap();
            assert_eq!(*lines, back);
        }
        pages.protect_last(libc::PROT_READ);
        let fault = Faulted { done: 3, addr: end.addr(), write: true };
        let given = [0u64; 5];
        assert_eq!(raw::store_each(given.as_ptr().cast(), &lanes, 8), Err(fault));
        for copy_lines in &copies {
            assert_eq!(copy_lines(pages.at(PAGE - 64), lines.as_ptr(), 2), Err(Faulted { done: 64, ..fault }));
        }
        pages.protect_last(libc::PROT_NONE);
        let mut out = [0u32; 5];
        let fault = Faulted { write: false, ..fault };
        assert_eq!(raw::load_each(out.as_mut_ptr().cast(), &lanes, 4), Err(fault));
        for copy_lines in copies {
            assert_eq!(copy_lines(lines.as_mut_ptr(), end, 1), Err(Faulted { done: 0, ..fault }));
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn rows_get_each_lane_s_words() {
    if !is_x86_feature_detected!("avx512f") {
        return;
    }
    let pages = Pages::new(2);
    let numbers: Vec<u32> = (0..1024).collect();
    // SAFETY: own mapping.
    unsafe { raw::copy(pages.at(6), numbers.as_ptr().cast(), 4096).unwrap() };
    for words in [1, 2, 4] {
        for groups in [2, 4] {
            let mut rows = [[7u32; 64]; 4];
            // Each line is two lines behind the one before, unaligned.
            let lines: Vec<*mut u8> = (0..groups * words).map(|line| pages.at(6 + 128 * line)).collect();
            // SAFETY: own mapping; there are four rows.
            unsafe { raw::load_rows(rows.as_mut_ptr().cast(), &lines, words).unwrap() };
            for (n, row) in rows.iter().enumerate() {
                for (lane, value) in row.iter().enumerate() {
                    let at = lane * words + n;
                    let expected = if n < words && lane < 16 * groups { 32 * (at / 16) + at % 16 } else { 7 };
                    assert_eq!(*value, u32::try_from(expected).unwrap(), "{words} words, row {n}, lane {lane}");
                }
            }
        }
        pages.protect_last(libc::PROT_NONE);
        let mut lines = vec![pages.at(6); 3 * words];
        lines[3 * words - 1] = pages.at(PAGE - 60);
        let mut rows = [[7u32; 64]; 4];
        // SAFETY: as above.
        let result = unsafe { raw::load_rows(rows.as_mut_ptr().cast(), &lines, words) };
        assert_eq!(result, Err(Faulted { done: 128 * words, addr: pages.at(PAGE).addr(), write: false }));
        assert_eq!((rows[words - 1][31] == 7, rows[0][32]), (false, 7));
        pages.protect_last(libc::PROT_READ | libc::PROT_WRITE);
    }
}
