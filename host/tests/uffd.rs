// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Notification by userfaultfd, event by event, with raw system calls so that no hook can have a
//! part in it.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the tests' own memory

mod common;

use common::{advise, memory, pointer, protect, serial, unmap, Area, Watched, RW};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, PAGE};
use vkfd_driver::seams::address_space::Access;
use vkfd_host::frame::Resolved;
use vkfd_host::Source;

fn raw_unmap(span: CpuSpan) {
    assert_eq!(unsafe { libc::syscall(libc::SYS_munmap, span.start().0, span.bytes()) }, 0);
}

macro_rules! mm {
    () => {
        match memory(Source::Userfaultfd) {
            Some(mm) => mm,
            None => return,
        }
    };
}

#[test]
fn nothing_is_told_when_nothing_changes() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(16);
    let w = Watched::new(mm, area.all());
    let pages = w.fault(area.all(), Access::Write);
    unsafe { area.byte(5).write_volatile(1) };
    // A mapping next door comes and goes.
    drop(Area::new(16));
    assert_eq!(w.told(area.all(), &pages, CpuSpan::between(CpuVa(0), CpuVa(0))), None);
}

/// Memory that is mapped where a watch has been for a while.
#[test]
fn what_is_mapped_later_is_told_of_once_it_is_listened_to() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(16);
    let wide = CpuSpan::between(CpuVa(area.at), CpuVa(area.at + (1 << 30)));
    let w = Watched::new(mm, wide);
    for listen in [false, true] {
        let later = Area::map(area.at + 64 * PAGE, 16, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        assert_eq!(later.at, area.at + 64 * PAGE);
        if listen {
            w.watch.listen(later.all()).unwrap();
        }
        w.fault(later.all(), Access::Write);
        w.counter.take_gone();
        raw_unmap(later.pages(4, 2));
        mm.settle();
        assert_eq!(w.counter.take_gone() != 0, listen);
    }
}

#[test]
fn munmap_of_a_part() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(16);
    let w = Watched::new(mm, area.all());
    let pages = w.fault(area.all(), Access::Write);
    let gone = area.pages(4, 2);
    raw_unmap(gone);
    assert_eq!(w.told(area.all(), &pages, gone), Some(gone));
}

#[test]
fn memory_that_goes_is_told_apart_from_pages_that_change() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(64);
    let target = Area::new(8);
    let w = Watched::new(mm, area.all());
    w.fault(area.all(), Access::Write);
    let gone = || {
        mm.settle();
        w.counter.take_gone()
    };
    let call = |number, args: [u64; 5]| {
        assert_ne!(unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4]) }, -1);
    };
    let span = area.pages(0, 8);
    call(libc::SYS_madvise, [span.start().0, span.bytes(), libc::MADV_DONTNEED as u64, 0, 0]);
    assert_eq!(gone(), 0, "a discard");
    let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    call(libc::SYS_mremap, [span.start().0, span.bytes(), span.bytes(), fixed, target.at]);
    assert!(gone() >= 1, "mremap");
    raw_unmap(area.pages(16, 4));
    assert_eq!(gone(), 1, "munmap");
    std::mem::forget(Area::map(
        area.at + 32 * PAGE,
        2,
        RW,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        -1,
    ));
    assert_eq!(gone(), 1, "mmap over it");
}

#[test]
fn a_discard() {
    let _one = serial();
    let mm = mm!();
    for advice in [libc::MADV_DONTNEED, libc::MADV_FREE] {
        let area = Area::new(16);
        let w = Watched::new(mm, area.all());
        let pages = w.fault(area.all(), Access::Write);
        let gone = area.pages(3, 5);
        let done = unsafe { libc::syscall(libc::SYS_madvise, gone.start().0, gone.bytes(), advice) };
        assert_eq!(done, 0);
        assert_eq!(w.told(area.all(), &pages, gone), Some(gone), "advice {advice}");
    }
}

#[test]
fn mremap_tells_of_the_old_place() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(8);
    let target = Area::new(8);
    let w = Watched::new(mm, area.all());
    let pages = w.fault(area.all(), Access::Write);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let moved = unsafe { libc::syscall(libc::SYS_mremap, area.at, area.bytes, area.bytes, flags, target.at) };
    assert_eq!(u64::try_from(moved).unwrap(), target.at);
    assert_eq!(w.told(area.all(), &pages, area.all()), Some(area.all()));
}

#[test]
fn a_fixed_mapping_over_it() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(8);
    let w = Watched::new(mm, area.all());
    let pages = w.fault(area.all(), Access::Write);
    let gone = area.pages(2, 3);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let at = unsafe { libc::syscall(libc::SYS_mmap, gone.start().0, gone.bytes(), RW, flags, -1, 0) };
    assert_eq!(u64::try_from(at).unwrap(), gone.start().0);
    assert_eq!(w.told(area.all(), &pages, gone), Some(gone));
}

#[test]
fn fork_tells_every_watch_and_the_child_can_exit() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(8);
    let w = Watched::new(mm, area.all());
    let pages = w.fault(area.all(), Access::Write);
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The child is another process to the driver: its parent's memory is not its own, and it
        // has one of its own. It must not block on locks that its parent's threads held.
        let own = vkfd_host::mm::Mm::get(Source::Auto);
        let another = !mm.is_current() && own.is_ok_and(|own| own.is_current());
        drop(w);
        unsafe { libc::_exit(if another { 7 } else { 1 }) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
    assert!(w.told(area.all(), &pages, area.all()).is_some_and(|s| s.contains(area.all().start())));
}

#[test]
fn memory_mapped_in_place_of_unmapped_is_watched_again() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(8);
    let w = Watched::new(mm, area.all());
    w.fault(area.all(), Access::Write);
    for round in 0..3 {
        let gone = area.pages(2, 4);
        raw_unmap(gone);
        mm.settle();
        assert!(w.counter.take().is_some(), "round {round}: the munmap");
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        std::mem::forget(Area::map(gone.start().0, 4, RW, flags, -1));
        let pages = w.fault(area.all(), Access::Write);
        advise(gone, libc::MADV_DONTNEED);
        assert_eq!(w.told(area.all(), &pages, gone), Some(gone), "round {round}: the new mapping");
    }
}

#[test]
fn memory_that_is_mapped_only_after_the_watch_began() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(8);
    raw_unmap(area.all());
    let w = Watched::new(mm, area.all());
    let (faulted, _) = w.fault_spans(&[area.all()], Access::Read);
    assert!(faulted.error.is_some());
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    std::mem::forget(Area::map(area.at, 8, RW, flags, -1));
    let pages = w.fault(area.all(), Access::Write);
    advise(area.pages(0, 1), libc::MADV_DONTNEED);
    assert_eq!(w.told(area.all(), &pages, area.pages(0, 1)), Some(area.pages(0, 1)));
}

#[test]
fn a_hull_with_what_cannot_be_registered_in_it() {
    let _one = serial();
    let mm = mm!();
    // Read-only shared mappings of a file cannot be registered.
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let area = Area::new(12);
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    std::mem::forget(Area::map(area.at + 4 * PAGE, 4, libc::PROT_READ, flags, file.as_raw_fd()));
    let w = Watched::new(mm, area.all());
    let pages = w.fault(area.pages(8, 4), Access::Write);
    let gone = area.pages(9, 1);
    advise(gone, libc::MADV_DONTNEED);
    assert_eq!(w.told(area.pages(8, 4), &pages, gone), Some(gone));
    let pages = w.fault(area.pages(0, 4), Access::Write);
    let gone = area.pages(1, 1);
    advise(gone, libc::MADV_DONTNEED);
    assert_eq!(w.told(area.pages(0, 4), &pages, gone), Some(gone));
}

/// A program that unmaps a part of its file and gets other memory there: the hook tells, no event
/// does.
#[test]
fn what_cannot_be_registered_is_told_of_when_it_is_unmapped() {
    let _one = serial();
    let mm = mm!();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let area = Area::map(0, 8, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd());
    let w = Watched::new(mm, area.all());
    w.fault(area.all(), Access::Read);
    w.counter.take_gone();
    unmap(area.pages(2, 3));
    assert_eq!(w.counter.take_gone(), 1);
    raw_unmap(area.pages(6, 1));
    mm.settle();
    assert_eq!(w.counter.take_gone(), 0, "control: no event tells of it");
}

#[test]
fn a_file_mapping() {
    let _one = serial();
    let mm = mm!();
    if !mm.capabilities().files {
        eprintln!("SKIPPED: this kernel registers no file mappings");
        return;
    }
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let area = Area::map(0, 8, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd());
    let w = Watched::new(mm, area.all());
    let pages = w.fault(area.all(), Access::Read);
    raw_unmap(area.pages(0, 2));
    assert_eq!(w.told(area.all(), &pages, area.pages(0, 2)), Some(area.pages(0, 2)));
}

#[test]
fn memory_of_malloc_that_is_given_back() {
    let _one = serial();
    let mm = mm!();
    // Large enough for a mapping of its own, which `free` unmaps without passing any hook.
    let block = unsafe { libc::malloc(64 << 20) };
    let at = (block.expose_provenance() as u64).next_multiple_of(PAGE);
    let span = CpuSpan::new(CpuVa(at), 16 * PAGE).unwrap();
    let w = Watched::new(mm, span);
    let pages = w.fault(span, Access::Write);
    unsafe { libc::free(block) };
    assert!(w.told(span, &pages, span).is_some());
}

#[test]
fn two_watches_share_frames_which_die_with_the_last() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(16);
    let left = Watched::new(mm, area.pages(0, 10));
    let right = Watched::new(mm, area.pages(6, 10));
    let a = left.fault(area.pages(0, 10), Access::Write);
    let b = right.fault(area.pages(6, 10), Access::Write);
    assert_eq!(a[6..], b[..4]);
    advise(area.pages(8, 1), libc::MADV_DONTNEED);
    mm.settle();
    assert_eq!((left.counter.calls(), right.counter.calls()), (1, 1));
    drop(left);
    assert_eq!(mm.frames().resolve(a[0].phys(), 1), Resolved::Stale);
    assert!(right.is_live(b[0], area.pages(6, 1).start()));
    // What the other watch covers is still registered.
    raw_unmap(area.pages(6, 1));
    mm.settle();
    assert_eq!(right.counter.calls(), 2);
    drop(right);
    assert_eq!(mm.frames().resolve(b[9].phys(), 1), Resolved::Stale);
}

#[test]
fn an_ended_watch_is_told_nothing() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(4);
    let w = Watched::new(mm, area.all());
    w.fault(area.all(), Access::Write);
    let counter = w.counter.clone();
    drop(w);
    advise(area.all(), libc::MADV_DONTNEED);
    mm.settle();
    assert_eq!(counter.calls(), 0);
}

#[test]
fn mprotect_is_seen_by_the_hook_alone() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(8);
    let w = Watched::new(mm, area.all());
    let pages = w.fault(area.all(), Access::Write);
    let done = unsafe { libc::syscall(libc::SYS_mprotect, area.at, PAGE, libc::PROT_READ) };
    assert_eq!(done, 0);
    let none = CpuSpan::between(CpuVa(0), CpuVa(0));
    assert_eq!(w.told(area.all(), &pages, none), None, "control: a raw mprotect raises no event");
    assert!(mm.capabilities().protect);
    protect(area.pages(3, 1), libc::PROT_READ);
    assert_eq!(w.told(area.all(), &pages, area.pages(3, 1)), Some(area.pages(3, 1)));
}

#[test]
fn what_no_source_saw_becomes_an_invalidation_when_an_access_fails() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(8);
    let w = Watched::new(mm, area.all());
    let pages = w.fault(area.all(), Access::Write);
    unsafe { libc::syscall(libc::SYS_mprotect, area.at, area.bytes, libc::PROT_NONE) };
    mm.lost(pages[5].phys());
    assert_eq!(w.told(area.all(), &pages, area.pages(5, 1)), Some(area.pages(5, 1)));
    // A second loss of the same page explains nothing new.
    mm.lost(pages[5].phys());
    assert_eq!(w.counter.take(), None);
    let (faulted, _) = w.fault_spans(&[area.pages(5, 1)], Access::Write);
    assert_eq!(faulted.error, Some(vkfd_driver::base::errno::Errno::EPERM));
}

#[test]
fn sixty_five_thousand_spans_in_one_hull() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(2 * 65_536);
    let w = Watched::new(mm, area.all());
    let spans: Vec<CpuSpan> = (0..65_536).map(|i| area.pages(2 * i, 1)).collect();
    let before = mappings();
    let (faulted, pages) = w.fault_spans(&spans, Access::Write);
    assert_eq!((faulted.spans, faulted.error), (65_536, None));
    assert!(mappings() < before + 100, "no mapping a range");
    for (i, page) in pages.iter().enumerate() {
        assert!(w.is_live(*page, spans[i].start()));
    }
    unmap(area.pages(70_000, 10));
    mm.settle();
    assert_eq!(w.counter.take(), Some(area.pages(70_000, 10)));
    assert_eq!(w.resolve(pages[35_000].phys()), Resolved::Stale);
    let (faulted, _) = w.fault_spans(&spans, Access::Write);
    assert_eq!((faulted.spans, faulted.error), (35_000, Some(vkfd_driver::base::errno::Errno::EFAULT)));
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn shared_memory_through_another_mapping_is_not_confused() {
    let _one = serial();
    let mm = mm!();
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC)) };
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), libc::off_t::try_from(4 * PAGE).unwrap()) }, 0);
    let a = Area::map(0, 4, RW, libc::MAP_SHARED, fd.as_raw_fd());
    let b = Area::map(0, 4, RW, libc::MAP_SHARED, fd.as_raw_fd());
    let w = Watched::new(mm, a.all());
    let pages = w.fault(a.all(), Access::Write);
    raw_unmap(b.pages(0, 1));
    let none = CpuSpan::between(CpuVa(0), CpuVa(0));
    assert_eq!(w.told(a.all(), &pages, none), None);
    raw_unmap(a.pages(0, 1));
    assert_eq!(w.told(a.all(), &pages, a.pages(0, 1)), Some(a.pages(0, 1)));
    assert_eq!(pointer(a.all()).expose_provenance(), index(a.at));
}

/// Whether the mapping at `at` is registered for events ("uw" among its flags).
fn is_registered(at: CpuVa) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    for line in maps.lines() {
        let span = line.split(' ').next().and_then(|s| s.split_once('-'));
        let number = |s| u64::from_str_radix(s, 16).ok();
        if let Some((Some(start), Some(end))) = span.map(|(a, b)| (number(a), number(b))) {
            here = start <= at.0 && at.0 < end;
        } else if here && line.starts_with("VmFlags:") {
            return line.split(' ').any(|flag| flag == "uw");
        }
    }
    false
}

#[test]
fn what_nothing_watches_any_more_is_unregistered_in_the_end_and_what_is_watched_stays() {
    let _one = serial();
    let mm = mm!();
    let area = Area::new(16);
    let kept = Watched::new(mm, area.pages(0, 4));
    let ended = Watched::new(mm, area.all());
    assert!(is_registered(area.pages(8, 1).start()));
    drop(ended);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while is_registered(area.pages(8, 1).start()) && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!is_registered(area.pages(8, 1).start()));
    assert!(is_registered(area.pages(2, 1).start()));
    drop(kept);
}

/// A thread that unmaps sleeps until its event was read; the place is free before that.
#[test]
fn what_is_mapped_where_another_thread_is_still_unmapping_is_not_told_of_that() {
    let _one = serial();
    let mm = mm!();
    for round in 0..1000 {
        let area = Area::new(1);
        let old = Watched::new(mm, area.all());
        old.fault(area.all(), Access::Write);
        std::thread::scope(|scope| {
            scope.spawn(|| raw_unmap(area.all()));
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            while unsafe { libc::mmap(pointer(area.all()), index(PAGE), RW, flags, -1, 0) } == libc::MAP_FAILED {}
            let new = Watched::new(mm, area.all());
            std::thread::sleep(std::time::Duration::from_micros(200));
            assert_eq!(new.counter.take_gone(), 0, "round {round}");
        });
    }
}
