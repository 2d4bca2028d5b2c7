// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The driver's real code under shuttle: invalidations, restores, GPU faults, mapping, freeing and
//! the end of the process in thousands of interleavings that a scheduler chose and can repeat.
//!
//! A GPU thread accesses all the time; an access that reaches a frame which is no page's any more
//! is the failure that all of it is about. Built only with `RUSTFLAGS="--cfg vkfd_shuttle"`
//! (`cargo xtask interleavings`).
#![cfg(vkfd_shuttle)]

use shuttle::thread;
use std::sync::Arc;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::seams::gpu::FaultReason;
use vkfd_sim::interleaved::{check, with, Accesses};
use vkfd_sim::{Rig, WRITABLE_USERPTR};

const VA: u64 = 0x10_0000_0000;
const LIST: [(u64, u64); 3] = [(200, 2), (100, 1), (300, 1)];
const PAGES: u64 = 4;

fn rig(options: Options) -> Arc<Rig> {
    let rig = Rig::new(options);
    for (first, count) in LIST {
        rig.mm.map(first, count, true);
    }
    Arc::new(rig)
}

/// The GPU accesses all pages; with `faults` it raises a fault for a missing page, and does not
/// wait for the answer.
fn gpu(rig: &Arc<Rig>, faults: bool) -> Accesses {
    Accesses::start(
        rig,
        0,
        |turn| VA + turn % PAGES * 4096,
        move |rig, va| {
            if faults {
                rig.report_fault(0, va / 4096, true, FaultReason::NotPresent);
            }
        },
    )
}

fn invalidator(rig: &Arc<Rig>) -> thread::JoinHandle<()> {
    with(rig, |rig| {
        // Long enough to meet whatever runs at the same time.
        for _ in 0..4 {
            rig.mm.renew(201, 1);
            rig.mm.renew(100, 1);
            rig.mm.renew(150, 1);
            rig.mm.renew(200, 2);
        }
    })
}

fn whole_life(xnack: bool, options: Options) {
    let rig = rig(options);
    rig.process.set_xnack(xnack).unwrap();
    let changes = invalidator(&rig);
    let handle = rig.register(VA, &LIST, WRITABLE_USERPTR).unwrap();
    let accesses = gpu(&rig, xnack);
    rig.map(handle).unwrap();
    changes.join().unwrap();
    rig.settle();
    if xnack {
        rig.map(handle).unwrap();
    }
    rig.check(VA, &LIST);
    let more = invalidator(&rig);
    rig.unmap(handle).unwrap();
    rig.free(handle).unwrap();
    more.join().unwrap();
    accesses.end();
    assert_eq!((rig.mm.watch_count(), rig.info().bos), (0, 0));
}

#[test]
fn a_life_under_invalidations_with_xnack_off() {
    check(|| whole_life(false, Options::default()));
}

#[test]
fn a_life_under_invalidations_with_xnack_on() {
    check(|| whole_life(true, Options::default()));
}

#[test]
fn the_process_ends_in_the_middle() {
    check(|| {
        let rig = rig(Options::default());
        let handle = rig.register(VA, &LIST, WRITABLE_USERPTR).unwrap();
        rig.map(handle).unwrap();
        let changes = invalidator(&rig);
        rig.process.release();
        changes.join().unwrap();
        assert_eq!(rig.mm.watch_count(), 0);
        assert_eq!(rig.process.kfd().limit().used(), 0);
    });
}

#[test]
fn two_threads_map_and_unmap_one_object() {
    check(|| {
        let rig = rig(Options::default());
        let handle = rig.register(VA, &LIST, WRITABLE_USERPTR).unwrap();
        let changes = invalidator(&rig);
        let other = with(&rig, move |rig| {
            rig.map(handle).unwrap();
            rig.unmap(handle).unwrap();
        });
        rig.map(handle).unwrap();
        other.join().unwrap();
        changes.join().unwrap();
        rig.map(handle).unwrap();
        rig.settle();
        rig.check(VA, &LIST);
    });
}

#[cfg(debug_assertions)]
mod planted {
    use super::*;
    use vkfd_driver::sabotage::{Switch, Switches};

    /// The checks above find what they are for: with the generation not compared, some interleaving
    /// reaches a dead frame.
    #[test]
    #[should_panic]
    fn a_commit_without_the_generation_check_is_found() {
        let sabotage = Switches::from(Switch::GenerationCheck);
        check(move || whole_life(false, Options { sabotage, ..Options::default() }));
    }

    #[test]
    #[should_panic]
    fn a_lost_invalidation_is_found() {
        let sabotage = Switches::from(Switch::Invalidation);
        check(move || whole_life(true, Options { sabotage, ..Options::default() }));
    }
}
