// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Coherent device memory: pages that move to a GPU and back, what they hold, and what the client
//! does to them there.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the tests' own memory

mod common;
#[path = "common/moving.rs"]
mod moving;

use common::{advise, pointer, protect, serial, unmap, Area, Watched, RW};
use moving::{aligned, check, fill, huge_kib, rig, rig_of, rig_on, word, Rig};
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::{Access, Faulted};
use vkfd_host::MachineOptions;
use vkfd_sabotage::Switch;

/// No thread allocates while the event reader waits for it.
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<std::alloc::System> = vkfd_rt::section::Checked(std::alloc::System);

const MB: u64 = 1 << 20;

macro_rules! rig {
    ($vram:expr) => {
        match rig(true, $vram) {
            Some(rig) => rig,
            None => return,
        }
    };
}

#[test]
fn contents_go_and_come_back() {
    let _one = serial();
    let rig = rig!(64 * MB);
    for pages in [1, 2, 511, 512, 513, 3 * 512 + 7] {
        let area = aligned(pages);
        fill(&area, 1000);
        assert_eq!(rig.go(area.all()), pages);
        assert_eq!(rig.held(), index(pages));
        check(&area, 1000, 0, pages);
        // The CPU writes in place, and the GPU sees it; and the other way round.
        fill(&area, 5000);
        for (page, place) in (0..).zip(rig.places(area.all())) {
            let place = place.expect("on the device");
            assert_eq!(rig.vram_word(place), 5000 + page);
            rig.set_vram_word(place, 9000 + page);
        }
        check(&area, 9000, 0, pages);
        assert_eq!(rig.held(), index(pages), "nothing moved back for all that");
        assert_eq!(rig.back(area.all()), pages);
        assert_eq!(rig.held(), 0);
        check(&area, 9000, 0, pages);
        assert!(rig.places(area.all()).iter().all(Option::is_none));
    }
}

/// As under `vkfd run`: VRAM of all GPUs is in one file, together with whatever else clients map.
#[test]
fn contents_go_and_come_back_where_all_memory_is_in_one_file() {
    let _one = serial();
    let options = MachineOptions { gpus: 2, vram_bytes: 16 * MB, device_file: true, ..MachineOptions::default() };
    for coherent in [true, false] {
        let Some(rigs) = rig_on(coherent, &options) else { return };
        for rig in &rigs {
            let area = aligned(700);
            fill(&area, 1000);
            assert_eq!((rig.go(area.all()), rig.held()), (700, 700));
            for (page, place) in (0..).zip(rig.places(area.all())) {
                let place = place.expect("on the device");
                assert_eq!(rig.vram_word(place), 1000 + page);
                rig.set_vram_word(place, 9000 + page);
            }
            check(&area, 9000, 0, 700);
            if coherent {
                fill(&area, 9000);
                assert_eq!(rig.held(), 700, "nothing moved back for all that");
                unmap(area.pages(100, 50));
                rig.wait_held(650);
                check(&area, 9000, 150, 550);
                assert_eq!(rig.back(area.all()), 650);
            }
            rig.wait_held(0);
            check(&area, 9000, 0, 100);
        }
    }
}

#[test]
fn parts_move_by_themselves() {
    let _one = serial();
    let rig = rig!(64 * MB);
    let area = aligned(2048);
    fill(&area, 7);
    assert_eq!(rig.go(area.pages(100, 1000)), 1000);
    assert_eq!(rig.go(area.pages(600, 1000)), 500, "what is there already stays there");
    assert_eq!(rig.back(area.pages(300, 300)), 300);
    check(&area, 7, 0, 2048);
    let there: Vec<bool> = rig.places(area.all()).iter().map(Option::is_some).collect();
    let expected: Vec<bool> = (0..2048).map(|p| (100..300).contains(&p) || (600..1600).contains(&p)).collect();
    assert_eq!(there, expected);
    assert_eq!(rig.held(), 1200);
    assert_eq!(rig.back(area.all()), 1200);
    check(&area, 7, 0, 2048);
    assert_eq!(rig.held(), 0);
}

#[test]
fn memory_never_touched_is_zeros_there() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = aligned(1024);
    // What was in VRAM before is not what the client sees.
    let first = aligned(1024);
    fill(&first, 77);
    assert_eq!(rig.go(first.all()), 1024);
    assert_eq!(rig.back(first.all()), 1024);
    unsafe { word(&area, 3).write_volatile(5) };
    assert_eq!(rig.go(area.all()), 1024);
    for page in 0..1024 {
        assert_eq!(unsafe { word(&area, page).read_volatile() }, if page == 3 { 5 } else { 0 });
    }
}

#[test]
fn a_watch_around_the_hosts_own_memory_keeps_nothing_from_moving() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = aligned(1024);
    fill(&area, 1);
    assert_eq!((rig.go(area.all()), rig.back(area.all())), (1024, 1024));
    // SVM ranges are watched 512 MiB at a time, and what the host takes pages out to may lie
    // between them.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let spans = maps.lines().filter(|line| line.contains(" rw-p ") && line.ends_with(' ')).filter_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let at = |text| u64::from_str_radix(text, 16).ok().map(CpuVa);
        Some(CpuSpan::between(at(start)?, at(end)?))
    });
    let large: Vec<_> = spans.filter(|span| span.bytes() > 64 * MB).collect();
    assert!(!large.is_empty(), "the host's own memory is not to be found");
    let watch = || large.iter().map(|span| Watched::new(rig.mm, *span)).collect::<Vec<_>>();
    let _watched = watch();
    assert_eq!((rig.go(area.all()), rig.back(area.all())), (1024, 1024));
    // Each of these empties what pages were kept in: no discard of the client, which nothing would
    // move before a second after.
    for round in 0..300 {
        assert_eq!((round, rig.go(area.pages(0, 512))), (round, 512));
        let _watched = watch();
        assert_eq!((round, rig.back(area.pages(0, 512))), (round, 512));
    }
    check(&area, 1, 0, 1024);
}

#[test]
fn discards_elsewhere_keep_nothing_from_moving() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = aligned(512);
    fill(&area, 1);
    // As the C library discards the stacks of threads that end: not through its symbol, many, and
    // in memory that is watched.
    let elsewhere = aligned(2048);
    let _watched = Watched::new(rig.mm, elsewhere.all());
    for page in 0..1024 {
        let gone = elsewhere.pages(2 * page, 1).start().0;
        assert_eq!(unsafe { libc::syscall(libc::SYS_madvise, gone, PAGE, libc::MADV_DONTNEED) }, 0);
    }
    assert_eq!(rig.go(area.all()), 512);
    assert_eq!(rig.back(area.all()), 512);
    check(&area, 1, 0, 512);
}

#[test]
fn watches_are_told_and_frames_die() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = aligned(64);
    let w = Watched::new(rig.mm, area.all());
    let pages = w.fault(area.all(), Access::Write);
    assert_eq!(rig.go(area.pages(8, 16)), 16);
    let told = w.counter.take().expect("told");
    assert!(told.contains(area.pages(8, 1).start()) && told.contains(area.pages(23, 1).start()));
    assert!(!w.is_live(pages[8], area.pages(8, 1).start()));
    // On the device it is told, too; and of moving back.
    assert!(w.fault(area.all(), Access::Write)[8].is_device());
    assert_eq!(rig.back(area.all()), 16);
    assert!(w.counter.take().is_some());
    let again = w.fault(area.all(), Access::Write);
    assert!(again.iter().all(|p| !p.is_device()));
    // Its events are seen as before.
    w.counter.take();
    let gone = area.pages(10, 2);
    assert_eq!(unsafe { libc::syscall(libc::SYS_munmap, gone.start().0, gone.bytes()) }, 0);
    rig.mm.settle();
    assert!(w.counter.take().is_some());
}

/// A page is unmapped, past libc, while the events of its memory go from one descriptor to another,
/// as it has come `back` or is to move. How often nobody was told.
fn unmapped_meanwhile(rig: &Rig, back: bool, times: u64) -> u64 {
    let missed = (0..times).filter(|round| {
        let area = aligned(16);
        fill(&area, 1);
        let w = Watched::new(rig.mm, area.all());
        if back {
            assert_eq!(rig.go(area.all()), 16);
        }
        w.counter.take_gone();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                vkfd_host::sabotage::switches().turn(Switch::HandOverSlowly, true);
                if back {
                    rig.back(area.all());
                } else {
                    rig.go(area.all());
                }
                vkfd_host::sabotage::switches().turn(Switch::HandOverSlowly, false);
            });
            std::thread::sleep(Duration::from_millis(3 + round % 15));
            let gone = area.pages(10, 2);
            assert_eq!(unsafe { libc::syscall(libc::SYS_munmap, gone.start().0, gone.bytes()) }, 0);
            rig.mm.settle();
            w.counter.take_gone() == 0
        })
    });
    missed.count() as u64
}

#[test]
fn what_is_unmapped_while_its_events_change_hands_is_told_of() {
    let _one = serial();
    let rig = rig!(16 * MB);
    for back in [true, false] {
        assert_eq!((back, unmapped_meanwhile(&rig, back, 30)), (back, 0));
        vkfd_host::sabotage::switches().turn(Switch::ForgetWhatWent, true);
        let forgotten = (0..30).any(|_| unmapped_meanwhile(&rig, back, 15) != 0);
        vkfd_host::sabotage::switches().turn(Switch::ForgetWhatWent, false);
        assert!(forgotten, "this test can fail, back: {back}");
    }
}

#[test]
fn what_cannot_move_stays() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let shared = Area::map(0, 16, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    assert_eq!(rig.go(shared.all()), 0);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let mapped = Area::map(0, 4, libc::PROT_READ, libc::MAP_PRIVATE, std::os::fd::AsRawFd::as_raw_fd(&file));
    assert_eq!(rig.go(mapped.all()), 0);
    let locked = Area::new(16);
    fill(&locked, 1);
    assert_eq!(unsafe { libc::mlock(pointer(locked.all()), index(locked.bytes)) }, 0);
    assert_eq!(rig.go(locked.all()), 0);
    check(&locked, 1, 0, 16);
    // A hole in the middle, and a part without permission.
    let area = Area::new(64);
    fill(&area, 2);
    unmap(area.pages(10, 10));
    protect(area.pages(30, 4), libc::PROT_READ);
    assert_eq!(rig.go(area.all()), 50);
    for (first, count) in [(0, 10), (20, 44)] {
        check(&area, 2, first, count);
    }
    assert_eq!(rig.held(), 50);
    // malloc's memory: a page that nothing else is on, neither the test's nor the driver's.
    let small = vec![3u8; index(3 * PAGE)];
    let page = CpuVa((small.as_ptr().expose_provenance() as u64).next_multiple_of(PAGE));
    rig.go(CpuSpan::between(page, CpuVa(page.0 + PAGE)));
    assert!(small.iter().all(|byte| *byte == 3));
    assert_eq!(rig.memory_unknown(), libc::ENODEV);
}

#[test]
fn system_calls_reach_it_in_place() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = aligned(512);
    fill(&area, 40);
    assert_eq!(rig.go(area.all()), 512);
    let (mut ends, mut byte) = ([0; 2], [0u8; 8]);
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(libc::write(ends[1], word(&area, 9).cast(), 8), 8);
        assert_eq!(libc::read(ends[0], byte.as_mut_ptr().cast(), 8), 8);
        assert_eq!(u64::from_ne_bytes(byte), 49);
        assert_eq!(libc::write(ends[1], 1234u64.to_ne_bytes().as_ptr().cast(), 8), 8);
        assert_eq!(libc::read(ends[0], word(&area, 9).cast(), 8), 8);
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
    assert_eq!(rig.vram_word(rig.places(area.pages(9, 1))[0].unwrap()), 1234);
    // Another process's view of this one, and I/O that bypasses the page cache.
    let mut seen = 0u64;
    let local = libc::iovec { iov_base: (&raw mut seen).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: word(&area, 10).cast(), iov_len: 8 };
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    assert_eq!((read, seen), (8, 50));
    direct_io(&area);
    assert_eq!(rig.held(), 512, "nothing moved for that");
}

/// Writes pages 16..32 of the area to a file and reads them into 32..48, without the page cache
/// where the file system can.
fn direct_io(area: &Area) {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let path = std::env::temp_dir().join(format!("vkfd-direct-{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.clone().custom_flags(libc::O_DIRECT).open(&path).or_else(|_| options.open(&path)).unwrap();
    let bytes = index(16 * PAGE);
    unsafe {
        let wrote = libc::pwrite(file.as_raw_fd(), word(area, 16).cast(), bytes, 0);
        assert_eq!(usize::try_from(wrote).unwrap(), bytes);
        let read = libc::pread(file.as_raw_fd(), word(area, 32).cast(), bytes, 0);
        assert_eq!(usize::try_from(read).unwrap(), bytes);
        for page in 0..16 {
            assert_eq!(word(area, 32 + page).read_volatile(), word(area, 16 + page).read_volatile());
        }
    }
    drop(file);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn munmap_releases() {
    let _one = serial();
    let rig = rig!(16 * MB);
    for raw in [false, true] {
        let area = aligned(1024);
        fill(&area, 3);
        assert_eq!(rig.go(area.all()), 1024);
        let gone = area.pages(100, 700);
        if raw {
            assert_eq!(unsafe { libc::syscall(libc::SYS_munmap, gone.start().0, gone.bytes()) }, 0);
        } else {
            unmap(gone);
        }
        rig.wait_held(324);
        check(&area, 3, 0, 100);
        check(&area, 3, 800, 224);
        let (faulted, _) = rig.fault(gone, Access::Read);
        assert_eq!(faulted, Faulted { spans: 0, error: Some(Errno::EFAULT) });
        drop(area);
        rig.wait_held(0);
    }
}

#[test]
fn a_discard_gives_zeros() {
    let _one = serial();
    let rig = rig!(16 * MB);
    for raw in [false, true] {
        for advice in [libc::MADV_DONTNEED, libc::MADV_FREE] {
            if raw && advice == libc::MADV_FREE {
                continue; // refused, as for any shared mapping: a documented limit
            }
            let area = aligned(1024);
            fill(&area, 3);
            assert_eq!(rig.go(area.all()), 1024);
            let gone = area.pages(100, 700);
            if raw {
                let done = unsafe { libc::syscall(libc::SYS_madvise, gone.start().0, gone.bytes(), advice) };
                assert_eq!(done, 0);
            } else {
                advise(gone, advice);
            }
            if advice == libc::MADV_DONTNEED {
                // At once, and what is written now stays.
                for page in 100..800 {
                    assert_eq!(unsafe { word(&area, page).read_volatile() }, 0, "page {page}");
                    unsafe { word(&area, page).write_volatile(3 + page) };
                }
                check(&area, 3, 0, 1024);
                rig.wait_held(324);
                check(&area, 3, 0, 1024);
            }
            drop(area);
            rig.wait_held(0);
        }
    }
}

#[test]
fn a_mapping_over_it_releases() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = aligned(64);
    fill(&area, 3);
    assert_eq!(rig.go(area.all()), 64);
    let over = area.pages(16, 16);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let at = unsafe { libc::syscall(libc::SYS_mmap, over.start().0, over.bytes(), RW, flags, -1, 0) };
    assert_eq!(u64::try_from(at).unwrap(), over.start().0);
    assert_eq!(unsafe { word(&area, 20).read_volatile() }, 0);
    rig.wait_held(48);
    check(&area, 3, 0, 16);
}

#[test]
fn mremap_takes_it_along() {
    let _one = serial();
    let rig = rig!(16 * MB);
    for raw in [false, true] {
        let area = aligned(64);
        let target = aligned(64);
        fill(&area, 3);
        assert_eq!(rig.go(area.all()), 64);
        let from = area.pages(8, 32);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let to = target.pages(4, 32);
        let bytes = index(from.bytes());
        let moved = unsafe {
            if raw {
                libc::syscall(libc::SYS_mremap, from.start().0, bytes, bytes, flags, to.start().0)
            } else {
                let moved = libc::mremap(pointer(from), bytes, bytes, flags, pointer(to));
                libc::c_long::try_from(moved.expose_provenance()).unwrap()
            }
        };
        assert_eq!(u64::try_from(moved).unwrap(), to.start().0);
        for page in 0..32 {
            assert_eq!(unsafe { word(&target, 4 + page).read_volatile() }, 3 + 8 + page);
        }
        rig.mm.settle();
        let there = rig.places(to);
        assert!(there.iter().all(|p| p.is_some() == raw), "through libc it moves back first");
        assert_eq!(rig.held(), if raw { 64 } else { 32 });
        rig.back(target.all());
        for page in 0..32 {
            assert_eq!(unsafe { word(&target, 4 + page).read_volatile() }, 3 + 8 + page);
        }
        drop((area, target));
        rig.wait_held(0);
    }
}

#[test]
fn what_mremap_took_elsewhere_is_evicted_by_its_place() {
    let _one = serial();
    for coherent in [true, false] {
        let Some(rigs) = rig_of(coherent, 16 * MB, 2) else { return };
        let (area, target) = (aligned(64), aligned(64));
        fill(&area, 3);
        // As many pages of another GPU at the same places stay.
        let other = aligned(64);
        fill(&other, 900);
        assert_eq!((rigs[0].go(area.all()), rigs[1].go(other.all())), (64, 64));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let moved = unsafe { libc::syscall(libc::SYS_mremap, area.at, area.bytes, area.bytes, flags, target.at) };
        assert_eq!(u64::try_from(moved), Ok(target.at));
        assert_eq!((rigs[0].back(area.all()), rigs[0].held()), (0, 64));
        assert_eq!(rigs[0].evict(60..80), 4);
        assert_eq!((rigs[0].evict(60..80), rigs[0].evict(0..64)), (0, 60));
        assert_eq!((rigs[0].held(), rigs[1].held()), (0, 64));
        check(&target, 3, 0, 64);
        check(&other, 900, 0, 64);
        assert_eq!(rigs[1].back(other.all()), if coherent { 64 } else { 0 });
        std::mem::forget(area);
    }
}

#[test]
fn growing_by_mremap_shows_nothing_of_others() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = Area::new(16);
    let other = aligned(512);
    fill(&area, 3);
    fill(&other, 900);
    assert_eq!(rig.go(area.all()), 16);
    assert_eq!(rig.go(other.all()), 512);
    let grown = unsafe { libc::mremap(pointer(area.all()), index(16 * PAGE), index(32 * PAGE), libc::MREMAP_MAYMOVE) };
    assert_ne!(grown, libc::MAP_FAILED);
    let grown = Area { at: grown.expose_provenance() as u64, bytes: 32 * PAGE };
    check(&grown, 3, 0, 16);
    for page in 16..32 {
        assert_eq!(unsafe { word(&grown, page).read_volatile() }, 0);
    }
    std::mem::forget(area);
}

#[test]
fn mprotect_works_there_and_stays() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = aligned(64);
    fill(&area, 3);
    assert_eq!(rig.go(area.all()), 64);
    let only = area.pages(8, 8);
    protect(only, libc::PROT_READ);
    let (faulted, _) = rig.fault(only, Access::Write);
    assert_eq!(faulted.error, Some(Errno::EPERM));
    let (faulted, pages) = rig.fault(only, Access::Read);
    assert!(faulted.error.is_none() && pages.iter().all(|p| p.is_device()));
    assert_eq!(rig.back(area.all()), 64);
    check(&area, 3, 0, 64);
    let (faulted, _) = rig.fault(only, Access::Write);
    assert_eq!(faulted.error, Some(Errno::EPERM));
    protect(only, RW);
    fill(&area, 4);
    check(&area, 4, 0, 64);
    // None at all, and back.
    assert_eq!(rig.go(area.all()), 64);
    protect(area.all(), libc::PROT_NONE);
    assert_eq!(rig.back(area.all()), 64);
    protect(area.all(), RW);
    check(&area, 4, 0, 64);
}

#[test]
fn a_child_has_copies_of_its_own() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = aligned(600);
    fill(&area, 3);
    assert_eq!(rig.go(area.all()), 600);
    let child = unsafe { libc::fork() };
    if child == 0 {
        fill(&area, 100);
        let mine = (0..600).all(|p| unsafe { word(&area, p).read_volatile() } == 100 + p);
        unsafe { libc::_exit(if mine { 7 } else { 1 }) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
    check(&area, 3, 0, 600);
    rig.wait_held(0);
    // Pages that were shared with a child move again.
    assert_eq!(rig.go(area.all()), 600);
    check(&area, 3, 0, 600);
}

#[test]
fn pinned_pages_stay() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = aligned(64);
    fill(&area, 3);
    // A page in a pipe is only read; nothing user space can do unprivileged pins for longer than a
    // call, so this is about not failing.
    let mut ends = [0; 2];
    let piece = libc::iovec { iov_base: word(&area, 5).cast(), iov_len: index(PAGE) };
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(libc::vmsplice(ends[1], &raw const piece, 1, 0), isize::try_from(PAGE).unwrap());
    }
    let moved = rig.go(area.all());
    assert!(moved == 63 || moved == 64, "{moved}");
    check(&area, 3, 0, 64);
    unsafe {
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
}

#[test]
fn two_gpus_have_pages_side_by_side() {
    let _one = serial();
    let Some(rigs) = rig_of(true, 16 * MB, 2) else { return };
    let area = aligned(512);
    fill(&area, 3);
    assert_eq!(rigs[0].go(area.pages(0, 200)), 200);
    assert_eq!(rigs[1].go(area.pages(100, 412)), 312);
    check(&area, 3, 0, 512);
    assert_eq!((rigs[0].held(), rigs[1].held()), (200, 312));
    assert_eq!(rigs[0].back(area.all()), 512);
    check(&area, 3, 0, 512);
    assert_eq!((rigs[0].held(), rigs[1].held()), (0, 0));
}

#[test]
fn neighbours_take_one_mapping() {
    let _one = serial();
    let rig = rig!(128 * MB);
    let area = aligned(64 * 256);
    fill(&area, 3);
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let before = maps();
    assert_eq!(rig.go(area.all()), 64 * 256);
    let after = maps();
    assert!(after <= before + 8, "{before} mappings before, {after} after");
    assert_eq!(rig.mm.moved().1, 1);
    assert_eq!(rig.back(area.all()), 64 * 256);
    check(&area, 3, 0, 64 * 256);
}

#[test]
fn a_huge_page_goes_and_comes_back_whole() {
    let _one = serial();
    let rig = rig!(16 * MB);
    loop {
        let area = aligned(2 * 512);
        advise(area.all(), libc::MADV_HUGEPAGE);
        fill(&area, 3);
        if huge_kib(&area) != 4096 {
            eprintln!("SKIPPED: no huge pages to be had");
            return;
        }
        let start = Instant::now();
        assert_eq!((rig.go(area.all()), rig.back(area.all())), (1024, 1024));
        check(&area, 3, 0, 1024);
        if huge_kib(&area) == 4096 {
            return;
        }
        // It comes back in the pages that it went by, which are kept for a second.
        assert!(start.elapsed() > Duration::from_millis(900), "{} KiB in huge pages", huge_kib(&area));
    }
}

#[test]
fn what_came_back_page_by_page_goes_at_once() {
    let _one = serial();
    let rig = rig!(16 * MB);
    let area = aligned(2 * 512);
    fill(&area, 3);
    for page in 0..2 * 512 {
        assert_eq!(rig.go(area.pages(page, 1)), 1);
    }
    for page in 0..2 * 512 {
        assert_eq!(rig.back(area.pages(page, 1)), 1);
    }
    check(&area, 3, 0, 2 * 512);
    // A page that stays: what is on either side of it is another step.
    protect(area.pages(700, 1), libc::PROT_READ);
    let steps = rig.mm.steps();
    assert_eq!(rig.go(area.all()), 2 * 512 - 1);
    assert_eq!(rig.mm.steps() - steps, 3);
    check(&area, 3, 0, 2 * 512);
    assert_eq!(rig.back(area.all()), 2 * 512 - 1);
    check(&area, 3, 0, 2 * 512);
    assert_eq!(rig.held(), 0);
}
