// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Private device memory: out of the CPU's reach while on a GPU, and back when the CPU touches it.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the tests' own memory

mod common;
#[path = "common/moving.rs"]
mod moving;

use common::{pointer, protect, serial, unmap, Watched, RW};
use moving::{aligned, check, fill, rig, word};
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::{index, PAGE};
use vkfd_driver::seams::address_space::Access;

const MB: u64 = 1 << 20;

macro_rules! rig {
    () => {
        match rig(false, 64 * MB) {
            Some(rig) => rig,
            None => return,
        }
    };
}

#[test]
fn a_touch_brings_its_granule_back() {
    let _one = serial();
    let rig = rig!();
    let area = aligned(4 * 512);
    fill(&area, 3);
    let w = Watched::new(rig.mm, area.all());
    assert_eq!(rig.go(area.all()), 4 * 512);
    assert!(w.counter.take().is_some());
    assert!(rig.places(area.all()).iter().all(Option::is_some));
    assert_eq!(rig.held(), 4 * 512, "looking where it is does not bring it back");
    // The CPU finds the GPU's words.
    let place = rig.places(area.pages(600, 1))[0].unwrap();
    assert_eq!(rig.vram_word(place), 603);
    rig.set_vram_word(place, 42);
    w.counter.take();
    assert_eq!(unsafe { word(&area, 600).read_volatile() }, 42);
    let told = w.counter.take().expect("told before the page was back");
    assert!(told.contains(area.pages(512, 1).start()) && told.contains(area.pages(1023, 1).start()));
    rig.wait_held(3 * 512);
    assert!(rig.places(area.pages(512, 512)).iter().all(Option::is_none));
    unsafe { word(&area, 600).write_volatile(603) };
    check(&area, 3, 0, 4 * 512);
    rig.wait_held(0);
}

#[test]
fn it_comes_back_on_request() {
    let _one = serial();
    let rig = rig!();
    for pages in [1, 511, 512, 1300] {
        let area = aligned(pages);
        fill(&area, 3);
        assert_eq!(rig.go(area.all()), pages);
        assert_eq!(rig.back(area.all()), pages);
        assert_eq!(rig.held(), 0);
        check(&area, 3, 0, pages);
    }
}

#[test]
fn system_calls_bring_it_back() {
    let _one = serial();
    let rig = rig!();
    let area = aligned(512);
    fill(&area, 3);
    assert_eq!(rig.go(area.all()), 512);
    let mut ends = [0; 2];
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let wrote = libc::write(ends[1], word(&area, 9).cast(), 8);
        let errno = std::io::Error::last_os_error().raw_os_error();
        // Unprivileged, system calls fail where user mode would wait.
        assert!(wrote == 8 || (wrote == -1 && errno == Some(libc::EFAULT)), "{wrote} {errno:?}");
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
    check(&area, 3, 0, 512);
}

#[test]
fn what_the_client_does_to_it() {
    let _one = serial();
    let rig = rig!();
    // munmap
    let area = aligned(1024);
    fill(&area, 3);
    assert_eq!(rig.go(area.all()), 1024);
    unmap(area.pages(100, 200));
    rig.wait_held(824);
    // MADV_DONTNEED, at once and without libc
    let gone = area.pages(400, 100);
    let done = unsafe { libc::syscall(libc::SYS_madvise, gone.start().0, gone.bytes(), libc::MADV_DONTNEED) };
    assert_eq!(done, 0);
    for page in 400..500 {
        assert_eq!(unsafe { word(&area, page).read_volatile() }, 0);
        unsafe { word(&area, page).write_volatile(3 + page) };
    }
    check(&area, 3, 300, 724);
    check(&area, 3, 0, 100);
    rig.wait_held(0);
    // mprotect
    assert_eq!(rig.go(area.pages(512, 512)), 512);
    protect(area.pages(600, 10), libc::PROT_READ);
    check(&area, 3, 512, 512);
    protect(area.pages(600, 10), RW);
    rig.wait_held(0);
    // mremap, without libc
    let target = aligned(512);
    assert_eq!(rig.go(area.pages(512, 512)), 512);
    let from = area.pages(512, 512);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let moved =
        unsafe { libc::syscall(libc::SYS_mremap, from.start().0, from.bytes(), from.bytes(), flags, target.at) };
    assert_eq!(u64::try_from(moved).unwrap(), target.at);
    for page in 0..512 {
        assert_eq!(unsafe { word(&target, page).read_volatile() }, 3 + 512 + page);
    }
    rig.wait_held(0);
}

#[test]
fn a_child_has_copies_of_its_own() {
    let _one = serial();
    let rig = rig!();
    let area = aligned(600);
    fill(&area, 3);
    assert_eq!(rig.go(area.all()), 600);
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mine = (0..600).all(|p| unsafe { word(&area, p).read_volatile() } == 3 + p);
        unsafe { libc::_exit(if mine { 7 } else { 1 }) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
    check(&area, 3, 0, 600);
}

/// What coherent memory buys, in one run: the CPU reads a hundredth of the pages.
#[test]
fn reading_a_little_moves_nothing_when_coherent() {
    let _one = serial();
    let pages = 64 * MB / PAGE;
    let time = |coherent: bool| -> Option<Duration> {
        let rig = rig(coherent, 64 * MB)?;
        let area = aligned(pages);
        fill(&area, 3);
        assert_eq!(rig.go(area.all()), pages);
        let start = Instant::now();
        for page in (0..pages).step_by(100) {
            assert_eq!(unsafe { word(&area, page).read_volatile() }, 3 + page);
        }
        let took = start.elapsed();
        // Every granule came back; none did.
        rig.wait_held(if coherent { index(pages) } else { 0 });
        Some(took)
    };
    let (Some(coherent), Some(private)) = (time(true), time(false)) else { return };
    // The benchmark measures the difference: a test must not depend on the machine.
    eprintln!("1% of 64 MiB: coherent {coherent:?}, private {private:?}");
}

#[test]
fn hands_off_what_was_never_there() {
    let _one = serial();
    let rig = rig!();
    let area = aligned(512);
    unsafe { word(&area, 3).write_volatile(5) };
    // Pages without contents go, too, and come back as zeros.
    assert_eq!(rig.go(area.all()), 512);
    let w = Watched::new(rig.mm, area.all());
    assert!(w.fault(area.all(), Access::Write).iter().all(|p| p.is_device()));
    for page in 0..512 {
        assert_eq!(unsafe { word(&area, page).read_volatile() }, if page == 3 { 5 } else { 0 });
    }
    assert_eq!(unsafe { libc::munmap(pointer(area.all()), index(area.bytes)) }, 0);
    std::mem::forget(area);
    rig.wait_held(0);
}
