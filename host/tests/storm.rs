// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Threads that map, unmap, fault, watch and allocate at the same time: it ends, and nothing stale
//! is taken for live.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the tests' own memory

mod common;

use common::{advise, memory, protect, Area, Counter, Watched, RW};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::{Access, AddressSpace};
use vkfd_host::address_space::ProcessMemory;
use vkfd_host::Source;

/// No thread allocates while the event reader waits for it.
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<std::alloc::System> = vkfd_rt::section::Checked(std::alloc::System);

#[test]
fn a_storm_ends() {
    let Some(mm) = memory(Source::Auto) else {
        return;
    };
    let area = Area::new(4096);
    let stop = AtomicBool::new(false);
    let (faults, changes) = (AtomicU64::new(0), AtomicU64::new(0));
    let running = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|s| {
        // One that changes the mappings.
        for seed in 1..=2u64 {
            let (area, changes) = (&area, &changes);
            s.spawn(move || {
                let mut random = seed;
                while running() {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let part = area.pages((random >> 33) % 4000, 1 + (random >> 50) % 96);
                    match random >> 61 {
                        0 | 1 => advise(part, libc::MADV_DONTNEED),
                        2 => {
                            protect(part, libc::PROT_READ);
                            protect(part, RW);
                        }
                        _ => {
                            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                            std::mem::forget(Area::map(part.start().0, part.pages(), RW, flags, -1));
                        }
                    }
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Threads that fault in the changing pages.
        for half in 0..2 {
            let (area, faults) = (&area, &faults);
            s.spawn(move || {
                let spans: Vec<_> = (0..1024).map(|i| area.pages(half * 2000 + 2 * i, 1)).collect();
                let w = Watched::new(mm, area.all());
                while running() {
                    let (faulted, _) = w.fault_spans(&spans, Access::Write);
                    assert!(
                        matches!(faulted.error, None | Some(Errno::EPERM | Errno::EFAULT | Errno::EBUSY)),
                        "{faulted:?}"
                    );
                    faults.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // One that watches and ends watches, over memory that others free.
        s.spawn(|| {
            let memory = ProcessMemory::new(mm);
            while running() {
                let watches: Vec<_> =
                    (0..40).map(|i| memory.watch(area.pages(i * 100, 90), Counter::new()).unwrap()).collect();
                drop(watches);
            }
        });
        // One whose malloc maps and unmaps inside watched intervals.
        s.spawn(|| {
            let memory = ProcessMemory::new(mm);
            while running() {
                let blocks: Vec<Vec<u8>> = (0..8).map(|i| vec![1; (256 << 10) + i * 4096]).collect();
                let at = blocks[0].as_ptr().expose_provenance() as u64 / 4096 * 4096;
                let hull = vkfd_driver::base::addr::CpuSpan::new(vkfd_driver::base::addr::CpuVa(at), 4 << 20).unwrap();
                let watch = memory.watch(hull, Counter::new()).unwrap();
                drop(blocks);
                drop(watch);
            }
        });
        let begun = Instant::now();
        let is_enough = || faults.load(Ordering::Relaxed) > 0 && changes.load(Ordering::Relaxed) > 0;
        while begun.elapsed() < Duration::from_secs(1) || (!is_enough() && begun.elapsed() < Duration::from_secs(60)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(faults.load(Ordering::Relaxed) > 0 && changes.load(Ordering::Relaxed) > 0);
    // Nobody watches any more: no frame is left.
    mm.settle();
    assert_eq!(mm.frames().live(), 0);
}
