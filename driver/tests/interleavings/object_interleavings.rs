// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Userptr objects of several threads under shuttle, as [`svm_block_interleavings`] does for SVM.
//! Each thread registers, maps, unmaps and frees objects on its own memory in a random order.
//! Meanwhile memory of the same 2 MiB is moved to the GPU and back by MOVE, evicted, replaced,
//! unmapped and restored. A call about existing memory succeeds. The GPU maps the CPU's pages, or
//! the queues are stopped until it does.
//!
//! Built only with `RUSTFLAGS="--cfg vkfd_shuttle"` (`cargo xtask interleavings`).
#![cfg(vkfd_shuttle)]

use shuttle::rand::{thread_rng, Rng};
use std::sync::Arc;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::sabotage::{Switch, Switches};
use vkfd_driver::seams::device_memory::Kind;
use vkfd_driver::seams::gpu::FaultReason;
use vkfd_sim::interleaved::{at_random, check, until_found, Accesses, Owner};
use vkfd_sim::{Rig, WRITABLE_USERPTR};
use vkfd_uapi::memory::{ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_uapi::vkfd::{MOVE_TO_GPU, MOVE_TO_SYSTEM};

/// Each thread's memory: of one 2 MiB, in two pieces.
const OWN: [[(u64, u64); 2]; 3] =
    [[(0x10_0000, 2), (0x10_0010, 1)], [(0x10_0004, 2), (0x10_0020, 1)], [(0x10_01ff, 2), (0x10_0030, 1)]];
/// Pages of it.
const PAGES: u64 = 3;
/// Where each thread's object is: the first two in one 2 MiB, too.
const VA: [u64; 3] = [0x10_0000_0000, 0x10_0000_8000, 0x10_001f_f000];

struct Objects {
    number: usize,
    xnack: bool,
    there: bool,
    object: Option<(u64, bool)>,
}

impl Objects {
    /// The pages in the order of the object.
    fn pages(&self) -> impl Iterator<Item = u64> {
        OWN[self.number].into_iter().flat_map(|(first, count)| first..first + count)
    }

    fn holds(&self, rig: &Rig) {
        for (page, place) in self.pages().zip(0..) {
            let va = VA[self.number] + place * 4096;
            match self.object {
                Some((_, true)) => rig.gpu.access_with(va, |frame| {
                    // With retried faults an entry may be missing, never wrong.
                    let lacks = self.xnack && frame.is_none();
                    assert!(lacks || frame == rig.mm.frame(page), "page {page:#x}: {frame:x?}");
                }),
                _ => assert!(rig.gpu.walk(va).is_none(), "page {page:#x} is mapped nowhere"),
            }
        }
    }

    fn move_pages(&self, rig: &Rig, direction: u32) {
        let (first, pages) = OWN[self.number][0];
        // Without room in VRAM it is refused.
        let _ = rig.move_pages(first, pages, direction);
    }

    /// A buffer of the driver's memory.
    fn buffer(&self, rig: &Rig, kind: u32) {
        let va_addr = VA[self.number] + (1 << 30);
        let flags = kind | ALLOC_MEM_FLAGS_WRITABLE;
        let Ok(handle) = rig.alloc(va_addr, 8192, flags) else { return };
        if rig.map(handle).is_ok() {
            assert!(rig.gpu.walk(va_addr).is_some() && rig.gpu.walk(va_addr + 4096).is_some());
            rig.unmap(handle).unwrap();
        }
        rig.free(handle).unwrap();
        assert!(rig.gpu.walk(va_addr).is_none());
    }
}

impl Owner for Objects {
    fn act(&mut self, rig: &Rig) {
        let own = OWN[self.number];
        if !self.there {
            for (first, count) in own {
                rig.mm.map(first, count, true);
            }
            self.there = true;
        }
        match thread_rng().gen_range(0..12) {
            0..=3 => match self.object {
                None => {
                    let handle = rig.register(VA[self.number], &own, WRITABLE_USERPTR).unwrap();
                    self.object = Some((handle, false));
                }
                Some((handle, false)) => {
                    rig.map(handle).unwrap();
                    self.object = Some((handle, true));
                }
                Some((handle, true)) => {
                    rig.unmap(handle).unwrap();
                    self.object = Some((handle, false));
                }
            },
            4 => {
                if let Some((handle, mapped)) = self.object.take() {
                    if mapped {
                        rig.unmap(handle).unwrap();
                    }
                    rig.free(handle).unwrap();
                }
            }
            5 | 6 => rig.mm.renew(own[0].0, 1),
            7 => {
                rig.mm.unmap(own[0].0, own[0].1);
                rig.mm.map(own[0].0, own[0].1, true);
                // It has no mapping for a moment, and is looked at again with the next call.
                if let Some((handle, true)) = self.object {
                    rig.map(handle).unwrap();
                }
            }
            8 => self.move_pages(rig, MOVE_TO_GPU),
            9 => self.move_pages(rig, MOVE_TO_SYSTEM),
            10 => rig.use_vram(40),
            _ => self.buffer(rig, [ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_GTT][thread_rng().gen_range(0..2)]),
        }
        self.holds(rig);
        rig.audit();
    }
}

fn threads_at_random(threads: usize, xnack: bool, options: Options) {
    let device_memory = [Kind::Coherent, Kind::Private][thread_rng().gen_range(0..2)];
    let rig = Arc::new(Rig::with_gpus(Options { device_memory, ..options }, 1, 64));
    rig.process.set_xnack(xnack).unwrap();
    let at = |turn: u64| VA[usize::try_from(turn).unwrap_or(0) % VA.len()] + turn % PAGES * 4096;
    let accesses = Accesses::start(&rig, 0, at, move |rig, va| {
        if xnack {
            rig.fault(0, va / 4096, true, FaultReason::NotPresent);
        }
    });
    at_random(&rig, accesses, threads, 6, move |number| Objects { number, xnack, there: false, object: None });
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

mod planted {
    use super::*;

    #[test]
    #[should_panic]
    fn a_lost_invalidation_is_found() {
        let sabotage = Switches::from(Switch::Invalidation);
        until_found(move || threads_at_random(2, false, Options { sabotage, ..Options::default() }));
    }
}
