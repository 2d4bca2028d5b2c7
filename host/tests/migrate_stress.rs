// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages that move while others use them: no write is lost and no read is stale, whatever the
//! client does to its mappings meanwhile.
//!
//! Writers count up, each in words of its own, and check before each write that the last one is
//! there. Bounded by iterations, not by time.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the tests' own memory

mod common;
#[path = "common/moving.rs"]
mod moving;

use common::{serial, Area, RW};
use moving::{aligned, rig, Rig};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, PAGE};
use vkfd_sabotage::Switch;

/// No thread allocates while the event reader waits for it.
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<std::alloc::System> = vkfd_rt::section::Checked(std::alloc::System);

const MB: u64 = 1 << 20;

/// Counts up in words of its own, `lane` of each page, until told to stop. How often the last write
/// was not there.
fn write_on(area: &Area, lane: u64, stop: &AtomicBool, rounds: &AtomicU64) -> u64 {
    let pages = area.bytes / PAGE;
    let word = |page: u64| -> *mut u64 { area.byte(page * PAGE + lane * 8).cast() };
    let mut lost = 0;
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        for page in 0..pages {
            unsafe {
                let found = word(page).read_volatile();
                if found != count {
                    lost += 1;
                    if lost <= 8 {
                        eprintln!("lane {lane}, page {page}: {found} instead of {count}");
                    }
                }
                word(page).write_volatile(count + 1);
            }
        }
        count += 1;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    for page in 0..pages {
        lost += u64::from(unsafe { word(page).read_volatile() } != count);
    }
    lost
}

/// Moves an area to and fro `times` times while two threads write. How many writes were lost.
fn writers(rig: &Rig, area: &Area, times: u64) -> u64 {
    let stop = AtomicBool::new(false);
    let rounds = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        let writing: Vec<_> = (0..2)
            .map(|lane| {
                let (stop, rounds) = (&stop, &rounds[index(lane)]);
                scope.spawn(move || write_on(area, lane, stop, rounds))
            })
            .collect();
        for i in 0..times {
            // Whole, and parts across granules.
            let span = match i % 4 {
                0 | 2 => area.all(),
                1 => area.pages(500, 30),
                _ => area.pages(7, 1),
            };
            rig.go(span);
            rig.back(span);
        }
        // Both have written while pages moved, however slow they are.
        while rounds.iter().any(|r| r.load(Ordering::Relaxed) < 2) {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        writing.into_iter().map(|w| w.join().unwrap()).sum()
    })
}

#[test]
fn no_write_is_lost() {
    let _one = serial();
    for coherent in [true, false] {
        let Some(rig) = rig(coherent, 16 * MB) else { return };
        let area = aligned(1024);
        assert_eq!(writers(&rig, &area, 400), 0, "coherent: {coherent}");
        rig.back(area.all());
        assert_eq!(rig.held(), 0);
    }
}

#[test]
fn without_the_protection_writes_are_lost() {
    let _one = serial();
    let Some(rig) = rig(true, 16 * MB) else { return };
    let area = aligned(1024);
    moving::fill(&area, 0);
    (0..1024).for_each(|page| unsafe { moving::word(&area, page).write_volatile(0) });
    vkfd_host::sabotage::switches().turn(Switch::CopyUnsealed, true);
    let lost = (0..50).map(|_| writers(&rig, &area, 20)).find(|lost| *lost != 0);
    vkfd_host::sabotage::switches().turn(Switch::CopyUnsealed, false);
    assert!(lost.is_some(), "this test can fail");
}

/// System calls that write: the kernel waits as user mode does, where it is privileged to.
#[test]
fn no_write_of_a_system_call_is_lost() {
    let _one = serial();
    let Some(rig) = rig(true, 16 * MB) else { return };
    let area = aligned(512);
    let stop = AtomicBool::new(false);
    let wrong = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut ends = [0; 2];
            assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
            let (mut wrong, mut count) = (0u64, 0u64);
            while !stop.load(Ordering::Relaxed) {
                count += 1;
                for page in 0..64 {
                    let at: *mut u64 = area.byte(page * 8 * PAGE).cast();
                    unsafe {
                        assert_eq!(libc::write(ends[1], (&raw const count).cast(), 8), 8);
                        match libc::read(ends[0], at.cast(), 8) {
                            8 => wrong += u64::from(at.read_volatile() != count),
                            _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => {
                                return None; // not privileged: documented
                            }
                            other => panic!("{other}"),
                        }
                    }
                }
            }
            unsafe {
                libc::close(ends[0]);
                libc::close(ends[1]);
            }
            Some(wrong)
        });
        for _ in 0..300 {
            rig.go(area.all());
            rig.back(area.all());
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    match wrong {
        None => eprintln!("SKIPPED: system calls do not wait without privilege"),
        Some(wrong) => assert_eq!(wrong, 0),
    }
}

#[test]
fn mappings_change_under_it() {
    changes(false);
}

#[test]
fn mappings_move_under_it() {
    changes(true);
}

/// Another thread maps, fills, discards, perhaps moves, protects and unmaps memory while that
/// memory is moved to the device and back.
fn changes(moves: bool) {
    let _one = serial();
    for (coherent, raw) in [(true, true), (true, false), (false, true)] {
        let Some(rig) = rig(coherent, 64 * MB) else { return };
        eprintln!("coherent {coherent}, without libc {raw}");
        // Four slots at fixed places, each either mapped or not.
        let pages = 700;
        let home = Area::new(8 * 1024);
        let slots: Vec<CpuSpan> = (0..4).map(|i| home.pages(i * 1024, pages)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                let mut i = 0usize;
                while !stop.load(Ordering::Relaxed) {
                    let slot = slots[i % 4];
                    let part = CpuSpan::between(slot.start(), CpuVa(slot.start().0 + (1 + i as u64 % pages) * PAGE));
                    rig.go(part);
                    if i % 3 != 0 {
                        rig.back(slot);
                    }
                    i += 1;
                }
            });
            let changers: Vec<_> = [(0, 1), (2, 3)]
                .into_iter()
                .map(|(a, b)| {
                    let ends = (slots[a], slots[b]);
                    let turn = move |round| match (moves, round % 2) {
                        (true, _) => ends,
                        (false, 0) => (ends.0, ends.0),
                        (false, _) => (ends.1, ends.1),
                    };
                    scope.spawn(move || (0..20).for_each(|round| change(turn(round), pages, round, raw)))
                })
                .collect();
            let changed: Vec<_> = changers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, Ordering::Relaxed);
            mover.join().unwrap();
            assert!(changed.iter().all(Result::is_ok));
        });
        drop(home);
        rig.wait_held(0);
    }
}

/// Changes memory in `a`, and moves it from `b`, which may be the same.
fn change((a, b): (CpuSpan, CpuSpan), pages: u64, round: u64, raw: bool) {
    let word = |span: CpuSpan, page: u64| -> *mut u64 {
        std::ptr::with_exposed_provenance_mut(index(span.start().0 + page * PAGE))
    };
    let call = |number: libc::c_long, args: [u64; 5]| -> i64 {
        unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], 0) }
    };
    let pointer = |span: CpuSpan| std::ptr::with_exposed_provenance_mut::<libc::c_void>(index(span.start().0));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // The slots belong to this thread; through libc, whose hook announces the replacement.
    let mapped = unsafe { libc::mmap(pointer(a), index(a.bytes()), RW, flags, -1, 0) };
    assert_eq!(mapped, pointer(a));
    let value = |page: u64| round << 32 | page;
    for page in 0..pages {
        unsafe {
            assert_eq!(word(a, page).read_volatile(), 0, "fresh page {page}");
            word(a, page).write_volatile(value(page));
        }
    }
    let ok = |when: &str, page: u64, span: CpuSpan, expected: u64| {
        let found = unsafe { word(span, page).read_volatile() };
        assert_eq!(found, expected, "{when}: page {page}, round {round}");
    };
    for page in 0..pages {
        ok("written", page, a, value(page));
    }
    // Discard a part.
    let (first, count) = (round * 37 % 600, 90);
    let at = a.start().0 + first * PAGE;
    if raw {
        assert_eq!(call(libc::SYS_madvise, [at, count * PAGE, u64::try_from(libc::MADV_DONTNEED).unwrap(), 0, 0]), 0);
    } else {
        let at = std::ptr::with_exposed_provenance_mut(index(at));
        assert_eq!(unsafe { libc::madvise(at, index(count * PAGE), libc::MADV_DONTNEED) }, 0);
    }
    for page in 0..pages {
        let discarded = (first..first + count).contains(&page);
        ok("discarded", page, a, if discarded { 0 } else { value(page) });
    }
    // Move it.
    let remap = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    if a == b {
        // It stays.
    } else if raw {
        // Page by page: a system call that meets several mappings, which the host makes of one,
        // moves some and refuses others.
        for page in 0..pages {
            let (from, to) = (a.start().0 + page * PAGE, b.start().0 + page * PAGE);
            let moved = call(libc::SYS_mremap, [from, PAGE, PAGE, u64::try_from(remap).unwrap(), to]);
            assert_eq!(u64::try_from(moved).ok(), Some(to), "{}", std::io::Error::last_os_error());
        }
    } else {
        let to = unsafe { libc::mremap(pointer(a), index(a.bytes()), index(a.bytes()), remap, pointer(b)) };
        assert_eq!(to, pointer(b), "{}", std::io::Error::last_os_error());
    }
    for page in 0..pages {
        let discarded = (first..first + count).contains(&page);
        ok("moved", page, b, if discarded { 0 } else { value(page) });
        unsafe { word(b, page).write_volatile(7 + page) };
    }
    assert_eq!(unsafe { libc::mprotect(pointer(b), index(40 * PAGE), libc::PROT_READ) }, 0);
    for page in 0..pages {
        ok("protected", page, b, 7 + page);
    }
    if raw {
        assert_eq!(call(libc::SYS_munmap, [b.start().0, b.bytes(), 0, 0, 0]), 0);
    } else {
        assert_eq!(unsafe { libc::munmap(pointer(b), index(b.bytes())) }, 0);
    }
}

/// New memory instead of the area.
fn renew(area: &Area) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    std::mem::forget(Area::map(area.at, area.bytes / PAGE, RW, flags, -1));
}

/// While `moving` is under way in another thread, a page is moved by mremap, past libc. What its
/// first word is there then.
fn moved_meanwhile<R: Send>(moving: impl FnOnce() -> R + Send, page: CpuVa, to: CpuVa) -> u64 {
    std::thread::scope(|scope| {
        scope.spawn(moving);
        std::thread::sleep(std::time::Duration::from_millis(8));
        let fixed = u64::try_from(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED).unwrap();
        let moved = unsafe { libc::syscall(libc::SYS_mremap, page.0, PAGE, PAGE, fixed, to.0) };
        assert_eq!(u64::try_from(moved).ok(), Some(to.0), "{}", std::io::Error::last_os_error());
        unsafe { std::ptr::with_exposed_provenance::<u64>(index(to.0)).read_volatile() }
    })
}

/// Private memory on the device is moved by mremap, past libc, into memory that the host is just
/// ending to look after. How often it was lost.
fn arrivals(rig: &Rig, times: u64) -> u64 {
    let (from, into) = (aligned(1), aligned(64));
    let mut lost = 0;
    for round in 1..=times {
        renew(&from);
        renew(&into);
        moving::fill(&from, round << 32);
        moving::fill(&into, 1);
        assert_eq!(rig.go(from.all()), 1);
        // All but the last page is offered a place; that one is registered with the rest.
        let last = into.pages(63, 1).start();
        let found = moved_meanwhile(|| rig.go_without(into.all(), 63), from.all().start(), last);
        lost += u64::from(found != round << 32);
        rig.back(into.all());
        moving::check(&into, 1, 0, 63);
    }
    lost
}

#[test]
fn what_arrives_while_memory_is_let_go_is_kept() {
    let _one = serial();
    let Some(rig) = rig(false, 16 * MB) else { return };
    vkfd_host::sabotage::switches().turn(Switch::EndSlowly, true);
    let sound = arrivals(&rig, 10);
    vkfd_host::sabotage::switches().turn(Switch::EndCarelessly, true);
    let careless = (0..200).find(|_| arrivals(&rig, 1) != 0);
    vkfd_host::sabotage::switches().turn(Switch::EndCarelessly, false);
    vkfd_host::sabotage::switches().turn(Switch::EndSlowly, false);
    assert_eq!(sound, 0);
    assert!(careless.is_some(), "this test can fail");
    rig.wait_held(0);
}

/// A page is moved by mremap, past libc, from the middle of memory whose mapping is just being
/// replaced, on its way to a device or `back`. How often anything was lost.
fn departures(rig: &Rig, back: bool, times: u64) -> u64 {
    let (from, into) = (aligned(16), Area::new(1));
    let mut lost = 0;
    for round in 1..=times {
        renew(&from);
        moving::fill(&from, round << 32);
        if back {
            vkfd_host::sabotage::switches().turn(Switch::ReplaceSlowly, false);
            assert_eq!(rig.go(from.all()), 16);
            vkfd_host::sabotage::switches().turn(Switch::ReplaceSlowly, true);
        }
        let moving = || if back { rig.back(from.all()) } else { rig.go(from.all()) };
        let found = moved_meanwhile(moving, from.pages(5, 1).start(), into.all().start());
        lost += u64::from(found != (round << 32) + 5);
        for page in (0..16).filter(|page| *page != 5) {
            let found = unsafe { moving::word(&from, page).read_volatile() };
            lost += u64::from(found != (round << 32) + page);
        }
        // Addresses without the client's mapping have no mapping.
        let mut there = 0u8;
        let hole = common::pointer(from.pages(5, 1));
        lost += u64::from(unsafe { libc::mincore(hole, index(PAGE), &raw mut there) } == 0);
    }
    lost
}

#[test]
fn what_leaves_while_mappings_are_replaced_is_kept() {
    let _one = serial();
    let Some(rig) = rig(true, 16 * MB) else { return };
    vkfd_host::sabotage::switches().turn(Switch::ReplaceSlowly, true);
    let sound = [false, true].map(|back| departures(&rig, back, 10));
    rig.wait_held(0);
    vkfd_host::sabotage::switches().turn(Switch::ForgetWhatMoved, true);
    let forgetful = (0..200).find(|_| departures(&rig, false, 1) != 0);
    vkfd_host::sabotage::switches().turn(Switch::ForgetWhatMoved, false);
    vkfd_host::sabotage::switches().turn(Switch::ReplaceSlowly, false);
    assert_eq!(sound, [0, 0]);
    assert!(forgetful.is_some(), "this test can fail");
}

#[test]
fn forks_under_it() {
    let _one = serial();
    let Some(rig) = rig(true, 16 * MB) else { return };
    let area = aligned(1024);
    for page in 0..1024 {
        unsafe { area.byte(page * PAGE).cast::<u64>().write_volatile(page) };
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                rig.go(area.all());
                rig.back(area.pages(0, 512));
            }
        });
        for _ in 0..40 {
            let child = unsafe { libc::fork() };
            if child == 0 {
                let mut right = true;
                for page in 0..1024 {
                    let at = area.byte(page * PAGE).cast::<u64>();
                    right &= unsafe { at.read_volatile() } == page;
                    unsafe { at.write_volatile(0) };
                }
                unsafe { libc::_exit(if right { 7 } else { 1 }) };
            }
            let mut status = 0;
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
            for page in 0..1024 {
                assert_eq!(unsafe { area.byte(page * PAGE).cast::<u64>().read_volatile() }, page);
            }
        }
        stop.store(true, Ordering::Relaxed);
        mover.join().unwrap();
    });
    rig.back(area.all());
    assert_eq!(rig.held(), 0);
}
