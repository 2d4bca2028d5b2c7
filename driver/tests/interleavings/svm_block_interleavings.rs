// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM memory of several threads in one 2 MiB under shuttle. Each thread sets, unmaps, maps again,
//! faults, moves and evicts in a random order, while a GPU accesses all of it. Each thread checks
//! its own pages, whatever the others do. A call about existing memory succeeds, and the memory is
//! mapped afterwards. Unmapped memory is not reached. The driver's audit finds entries without an
//! owner ([`Rig::audit`], after each call).
//!
//! Built only with `RUSTFLAGS="--cfg vkfd_shuttle"` (`cargo xtask interleavings`).
#![cfg(vkfd_shuttle)]

use shuttle::rand::{thread_rng, Rng};
use shuttle::thread;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::device::damping::Damping;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::sabotage::{Switch, Switches};
use vkfd_driver::seams::gpu::FaultReason;
use vkfd_sim::interleaved::{at_random, check, until_found, with, Accesses, Owner};
use vkfd_sim::{Rig, GPU_ID, WRITABLE_USERPTR};
use vkfd_uapi::svm::*;

/// The last block of a window.
const BLOCK: u64 = 0x10_0000 + (1 << 17) - 512;
/// Of the same window.
const OTHER_BLOCK: u64 = BLOCK - 1024;
/// What each thread has: the third's reaches into the next window.
const OWN: [u64; 3] = [BLOCK, BLOCK + 8, BLOCK + 511];
const PAGES: u64 = 2;

fn rig(options: Options, gpus: u32) -> Arc<Rig> {
    // Time stands still, so that everything bounces.
    let damping = Damping { bounces: u32::MAX, ..options.damping };
    Arc::new(Rig::with_gpus(Options { damping, ..options }, gpus, 64))
}

fn access(rig: &Rig, first: u64, pages: u64) -> Result<(), Errno> {
    rig.set(first, pages, &[(SVM_ATTR_ACCESS, GPU_ID)])
}

/// There is something in it when there is nothing left in the block.
fn keep_the_window(rig: &Rig) {
    rig.mm.map(OTHER_BLOCK, 1, true);
    access(rig, OTHER_BLOCK, 1).unwrap();
}

/// The queues are stopped, or the GPU reaches these pages where the CPU does.
#[track_caller]
fn reached(rig: &Rig, first: u64, pages: u64) {
    for page in first..first + pages {
        rig.gpu.access_with(page * 4096, |frame| assert_eq!(frame, rig.mm.frame(page), "page {page:#x}"));
    }
}

/// The GPU accesses all pages of all; with `faults` it raises a fault for a missing page now and
/// then.
fn gpu(rig: &Arc<Rig>, faults: bool) -> Accesses {
    let at = |turn: u64| (OWN[usize::try_from(turn).unwrap_or(0) % OWN.len()] + turn % PAGES) * 4096;
    Accesses::start(rig, 0, at, move |rig, va| {
        if faults && thread_rng().gen_range(0..4) == 0 {
            rig.fault(0, va / 4096, true, FaultReason::NotPresent);
        }
    })
}

/// A thread's own memory, and what it knows of it.
struct Memory {
    first: u64,
    xnack: bool,
    mapped: bool,
    given: bool,
}

impl Memory {
    fn holds(&self, rig: &Rig) {
        match (self.mapped && self.given, self.xnack) {
            (false, _) if !self.xnack || !self.mapped => assert!(rig.nothing_mapped(0, self.first, PAGES)),
            (true, false) => reached(rig, self.first, PAGES),
            _ => {}
        }
    }

    fn prefetch(&self, rig: &Rig, to: u32) {
        assert_eq!(rig.set(self.first, PAGES, &[(SVM_ATTR_PREFETCH_LOC, to)]), Ok(()));
    }

    /// An object where the range was: nothing of the range comes back there.
    fn other_object(&self, rig: &Rig) {
        let memory = self.first + (1 << 20);
        rig.mm.map(memory, PAGES, true);
        let list = [(memory, PAGES)];
        let handle = rig.register(self.first * 4096, &list, WRITABLE_USERPTR).unwrap();
        rig.map(handle).unwrap();
        rig.check(self.first * 4096, &list);
        rig.unmap(handle).unwrap();
        rig.free(handle).unwrap();
    }
}

impl Owner for Memory {
    fn act(&mut self, rig: &Rig) {
        let first = self.first;
        if !self.mapped {
            rig.mm.map(first, PAGES, true);
            (self.mapped, self.given) = (true, false);
        }
        match thread_rng().gen_range(0..12) {
            0..=2 => {
                assert_eq!(access(rig, first, PAGES), Ok(()));
                self.given = true;
            }
            3 | 4 => {
                rig.mm.unmap(first, PAGES);
                self.mapped = false;
                self.holds(rig);
                if thread_rng().gen_range(0..3) == 0 {
                    self.other_object(rig);
                }
            }
            5 => rig.mm.renew(first, 1),
            6 => {
                assert_eq!(rig.set(first, PAGES, &[(SVM_ATTR_NO_ACCESS, GPU_ID)]), Ok(()));
                self.given = false;
                assert!(rig.nothing_mapped(0, first, PAGES));
            }
            7 if self.xnack => match rig.reach(0, first + 1, true) {
                Ok(_) => self.given = true,
                // It was taken away, and has not come back with other memory.
                Err(_) => assert!(!self.given),
            },
            7 => rig.process.acquire_vm(GPU_ID).unwrap(),
            8 => self.prefetch(rig, GPU_ID),
            9 => self.prefetch(rig, SVM_LOCATION_SYSMEM),
            10 => rig.use_vram(40),
            _ => assert_eq!(rig.get(first, PAGES, &[]), Ok(vec![])),
        }
        self.holds(rig);
    }
}

fn threads_at_random(threads: usize, xnack: bool, options: Options) {
    let rig = rig(options, 1);
    rig.process.set_xnack(xnack).unwrap();
    if thread_rng().gen_range(0..2) == 0 {
        keep_the_window(&rig);
    }
    let accesses = gpu(&rig, xnack);
    at_random(&rig, accesses, threads, 5, move |number| Memory {
        first: OWN[number],
        xnack,
        mapped: false,
        given: false,
    });
}

#[test]
fn two_threads_without_faults() {
    check(|| threads_at_random(2, false, Options::default()));
}

#[test]
fn three_threads_without_faults() {
    check(|| threads_at_random(3, false, Options::default()));
}

#[test]
fn two_threads_with_faults() {
    check(|| threads_at_random(2, true, Options::default()));
}

#[test]
fn three_threads_with_faults() {
    check(|| threads_at_random(3, true, Options::default()));
}

fn registered_beside_an_unmap(options: Options) {
    let rig = rig(options, 1);
    let (first, other) = (OWN[0], OWN[thread_rng().gen_range(1..3)]);
    if thread_rng().gen_range(0..2) == 0 {
        keep_the_window(&rig);
    }
    rig.mm.map(first, PAGES, true);
    rig.mm.map(other, PAGES, true);
    access(&rig, first, PAGES).unwrap();
    // At any time, or after the call has looked for unmapped memory, when it makes the next window.
    let unmap = match other == OWN[2] {
        false => Some(with(&rig, move |rig| rig.mm.unmap(first, PAGES))),
        true => {
            rig.mm.before_watch(move |mm| {
                mm.unmap(first, PAGES);
                (0..thread_rng().gen_range(0..40)).for_each(|_| thread::yield_now());
            });
            None
        }
    };
    assert_eq!(access(&rig, other, PAGES), Ok(()));
    if let Some(unmap) = unmap {
        unmap.join().unwrap();
    }
    // Whatever is to be dropped has been.
    rig.get(other, 1, &[]).unwrap();
    rig.settle();
    rig.check_svm(0, other, PAGES);
    rig.mm.unmap(other, PAGES);
    assert!(rig.nothing_mapped(0, first, PAGES) && rig.nothing_mapped(0, other, PAGES));
    rig.process.release();
}

#[test]
fn what_is_registered_beside_an_unmap_is_mapped_and_goes() {
    check(|| registered_beside_an_unmap(Options::default()));
}

/// A restore takes its time in a block whose ranges go, another call makes the next block there,
/// and threads that ask for the VM again map what there is.
fn blocks_follow_one_another(options: Options) {
    let rig = rig(options, 1);
    let last = OWN[2];
    if thread_rng().gen_range(0..2) == 0 {
        keep_the_window(&rig);
    }
    rig.mm.map(BLOCK, 1, true);
    rig.mm.map(last, PAGES, true);
    access(&rig, BLOCK, 1).unwrap();
    let (set, faults) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (called, count) = (set.clone(), faults.clone());
    rig.mm.after_fault(move |_, _| {
        for _ in 0..400 * u32::from(count.fetch_add(1, Ordering::SeqCst) == 0) {
            if called.load(Ordering::SeqCst) {
                break;
            }
            thread::yield_now();
        }
    });
    rig.mm.renew(BLOCK, 1);
    while faults.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    rig.mm.before_watch(|mm| {
        mm.unmap(BLOCK, 1);
        (0..40).for_each(|_| thread::yield_now());
    });
    access(&rig, last, PAGES).unwrap();
    set.store(true, Ordering::SeqCst);
    let again = [(); 2].map(|()| {
        with(&rig, |rig| {
            for _ in 0..4 {
                rig.process.acquire_vm(GPU_ID).unwrap();
            }
        })
    });
    again.into_iter().for_each(|thread| thread.join().unwrap());
    rig.get(last, 1, &[]).unwrap();
    rig.settle();
    rig.check_svm(0, last, PAGES);
    // What the restore had found is nobody's: other memory is there now.
    rig.mm.map(BLOCK, 1, true);
    access(&rig, BLOCK, 1).unwrap();
    rig.settle();
    rig.check_svm(0, BLOCK, 1);
    rig.mm.unmap(last, PAGES);
    assert!(rig.nothing_mapped(0, last, PAGES));
    rig.process.release();
}

#[test]
fn a_block_follows_another_while_a_restore_is_in_it() {
    check(|| blocks_follow_one_another(Options::default()));
}

/// Access ends, the memory is replaced, and a restore comes before the call that ends access gets
/// on: it must not let the queues go on with the old entry.
#[test]
fn access_ends_while_memory_is_replaced() {
    check(|| {
        let rig = rig(Options::default(), 1);
        rig.mm.map(OWN[0], PAGES, true);
        access(&rig, OWN[0], PAGES).unwrap();
        let accesses = gpu(&rig, false);
        let renew = with(&rig, |rig| {
            for _ in 0..3 {
                rig.mm.renew(OWN[0], 1);
            }
        });
        for attribute in [SVM_ATTR_NO_ACCESS, SVM_ATTR_ACCESS, SVM_ATTR_NO_ACCESS] {
            rig.set(OWN[0], PAGES, &[(attribute, GPU_ID)]).unwrap();
        }
        assert!(rig.nothing_mapped(0, OWN[0], PAGES));
        renew.join().unwrap();
        rig.settle();
        accesses.end();
        rig.process.release();
    });
}

/// mprotect(PROT_NONE) of memory of the same block.
fn registered_beside_denied_memory(options: Options) {
    let rig = rig(options, 1);
    rig.mm.map(OWN[0], PAGES, true);
    rig.mm.map(OWN[1], PAGES, true);
    access(&rig, OWN[0], PAGES).unwrap();
    let deny = with(&rig, |rig| rig.mm.deny(OWN[0], 1, true));
    assert_eq!(access(&rig, OWN[1], PAGES), Ok(()));
    reached(&rig, OWN[1], PAGES);
    deny.join().unwrap();
    rig.settle();
    assert!(rig.nothing_mapped(0, OWN[0], 1));
    rig.check_svm(0, OWN[0] + 1, 1);
    rig.process.release();
}

#[test]
fn what_is_registered_beside_denied_memory_is_mapped() {
    check(|| registered_beside_denied_memory(Options::default()));
}

/// mprotect(PROT_NONE) and back, beside calls that look for missing memory.
fn denied_memory_comes_back(options: Options) {
    let rig = rig(options, 1);
    rig.mm.map(OWN[0], PAGES, true);
    access(&rig, OWN[0], PAGES).unwrap();
    let calls = with(&rig, |rig| {
        for _ in 0..3 {
            // Refused as long as it is denied.
            let _ = access(rig, OWN[0], PAGES);
        }
    });
    for _ in 0..3 {
        rig.mm.deny(OWN[0], 1, true);
        (0..thread_rng().gen_range(0..40)).for_each(|_| thread::yield_now());
        rig.mm.deny(OWN[0], 1, false);
        reached(&rig, OWN[0], PAGES);
    }
    calls.join().unwrap();
    rig.settle();
    rig.check_svm(0, OWN[0], PAGES);
    rig.process.release();
}

#[test]
fn denied_memory_that_comes_back_is_reached() {
    check(|| denied_memory_comes_back(Options::default()));
}

#[test]
fn a_gpu_gets_its_vm_while_memory_is_registered_for_it() {
    check(|| {
        let rig = Arc::new(Rig::with_vms(Options::default(), 2, 64, 1));
        rig.mm.map(OWN[0], PAGES, true);
        rig.mm.map(OWN[1], PAGES, true);
        let both = [(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_ACCESS, GPU_ID + 1)];
        let vm = with(&rig, |rig| rig.process.acquire_vm(GPU_ID + 1).unwrap());
        let other = with(&rig, move |rig| rig.set(OWN[1], PAGES, &both).unwrap());
        rig.set(OWN[0], PAGES, &both).unwrap();
        other.join().unwrap();
        vm.join().unwrap();
        for gpu in 0..2 {
            rig.check_svm(gpu, OWN[0], PAGES);
            rig.check_svm(gpu, OWN[1], PAGES);
        }
        rig.process.release();
    });
}

/// Calls that are under way when the process ends leave nothing behind it.
#[test]
fn the_process_ends_under_its_calls() {
    check(|| {
        let rig = rig(Options::default(), 1);
        let calls = [0, 2].map(|number| {
            with(&rig, move |rig| {
                let first = OWN[number];
                rig.mm.map(first, PAGES, true);
                let _ = access(rig, first, PAGES);
                let _ = rig.set(first, PAGES, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]);
                rig.mm.renew(first, 1);
                rig.mm.unmap(first, PAGES);
                rig.mm.map(first, PAGES, true);
                let _ = access(rig, first, PAGES);
            })
        });
        for _ in 0..thread_rng().gen_range(0..60) {
            thread::yield_now();
        }
        rig.process.release();
        calls.into_iter().for_each(|thread| thread.join().unwrap());
        for first in [OWN[0], OWN[2]] {
            rig.mm.unmap(first, PAGES);
        }
        assert_eq!((rig.mm.watch_count(), rig.mm.device_pages(), rig.vram_used(0)), (0, 0, 0));
    });
}

mod planted {
    use super::*;

    fn broken(sabotage: Switches) -> Options {
        Options { sabotage, ..Options::default() }
    }

    #[test]
    #[should_panic]
    fn a_block_that_ends_although_it_is_used_again_is_found() {
        until_found(|| registered_beside_an_unmap(broken(Switches::from(Switch::BlockEnd))));
    }

    #[test]
    #[should_panic]
    fn a_block_that_is_taken_for_the_one_before_is_found() {
        until_found(|| blocks_follow_one_another(broken(Switches::from(Switch::BlockIdentity))));
    }

    #[test]
    #[should_panic]
    fn a_call_that_looks_at_more_than_it_names_is_found() {
        until_found(|| registered_beside_denied_memory(broken(Switches::from(Switch::OthersErrors))));
    }

    #[test]
    #[should_panic]
    fn missing_memory_that_is_forgotten_before_it_is_looked_for_is_found() {
        until_found(|| denied_memory_comes_back(broken(Switches::from(Switch::ForgottenMissing))));
    }

    #[test]
    #[should_panic]
    fn memory_that_is_mapped_after_it_left_the_ranges_is_found() {
        until_found(|| threads_at_random(2, true, broken(Switches::from(Switch::Forgotten))));
    }
}
