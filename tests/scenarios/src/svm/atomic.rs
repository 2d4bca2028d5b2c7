// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Atomic operations of a GPU and of the CPU on the same words: none is lost, whether the memory
//! stays, is on the GPU, or moves.
//!
//! A GPU on a bus that has no atomic operations would need the memory to itself meanwhile (Linux's
//! `make_device_exclusive`); this one's are the CPU's own on the same memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vkfd_client::{GpuVa, SvmAccess, PAGE};
use vkfd_driver::seams::device_memory::Kind;

use super::{both, Svm};
use crate::memory::{Backing, Memory};
use crate::verdict::Stop;
use crate::world::{Seen, WorldSpec};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "svm_gpus_and_cpu_count_in_the_same_words",
        about: "Two CPU threads and two GPUs add to words of memory that stays where it is: the sums are exact.",
        run: in_system_memory,
    },
    Scenario {
        name: "svm_gpu_and_cpu_count_in_words_that_move",
        about: "The same while the memory goes to the GPU and back.",
        run: || both(while_moving),
    },
    Scenario {
        name: "svm_a_gpu_does_not_count_in_memory_that_it_may_not_write",
        about: "After mprotect an atomic faults and changes nothing; after a fork it adds to the parent's copy only.",
        run: not_writable,
    },
];

const PAGES: u64 = 8;
/// A word on each page, not at its beginning.
const WORD: u64 = 264;

fn words(svm: &Svm) -> Vec<GpuVa> {
    (0..PAGES).map(|page| svm.va(page).offset(WORD)).collect()
}

/// Has `threads` threads of the CPU add to each word for as long as `work` runs; each word must
/// have counted everyone then. `work` says how often the GPUs have added to each.
fn with_cpu(svm: &Svm, threads: u64, work: impl FnOnce(&AtomicU64) -> Result<u64, Stop>) -> Result<(), Stop> {
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let word = |page: u64| {
        // SAFETY: mapped as long as the memory, aligned; everyone accesses it atomically.
        unsafe { AtomicU64::from_ptr(svm.memory.at(page * PAGE + WORD).cast()) }
    };
    let before: Vec<u64> = (0..PAGES).map(|page| word(page).load(Ordering::SeqCst)).collect();
    let by_gpus = std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for page in 0..PAGES {
                        word(page).fetch_add(1, Ordering::SeqCst);
                    }
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let result = work(&rounds);
        stop.store(true, Ordering::Relaxed);
        result
    })?;
    let by_cpu = rounds.load(Ordering::SeqCst);
    ensure!(by_cpu > 0 && by_gpus > 0, "{by_cpu} rounds of the CPU, {by_gpus} of the GPUs");
    for (page, before) in (0..PAGES).zip(before) {
        let counted = word(page).load(Ordering::SeqCst) - before;
        ensure_eq!(counted, by_cpu + by_gpus, "page {page}: the CPU has added {by_cpu}, the GPUs {by_gpus}");
    }
    Ok(())
}

/// Waits until the CPU has done another round: it is at work beside the GPUs.
fn another(rounds: &AtomicU64) {
    let before = rounds.load(Ordering::SeqCst);
    while rounds.load(Ordering::SeqCst) == before {
        std::thread::yield_now();
    }
}

fn in_system_memory() -> Result<(), Stop> {
    const ROUNDS: u64 = 50;
    for backing in [Backing::Anonymous, Backing::Shared] {
        let svm = Svm::new(WorldSpec { gpus: 2, ..WorldSpec::default() }, Memory::new(backing, PAGES * PAGE)?)?;
        svm.memory.fill(1);
        svm.give(0, PAGES, &[(0, SvmAccess::InPlace), (1, SvmAccess::InPlace)])?;
        let words = words(&svm);
        with_cpu(&svm, 2, |rounds| {
            for _ in 0..10 {
                another(rounds);
                std::thread::scope(|scope| {
                    let gpus = [0, 1].map(|gpu| {
                        let (svm, words) = (&svm, &words);
                        scope.spawn(move || svm.count(gpu, words, ROUNDS))
                    });
                    gpus.into_iter().try_for_each(|gpu| gpu.join().map_err(|_| anyhow::anyhow!("a GPU's thread"))?)
                })?;
            }
            Ok(10 * 2 * ROUNDS)
        })?;
        ensure_eq!(svm.moves()?, (0, 0), "pages moved in and out");
    }
    Ok(())
}

fn while_moving(kind: Kind) -> Result<(), Stop> {
    const ROUNDS: u64 = 20;
    let svm = Svm::moving(WorldSpec::default(), kind, Memory::anonymous(PAGES * PAGE)?)?;
    svm.memory.fill(1);
    svm.give(0, PAGES, &[(0, SvmAccess::Migrate)])?;
    let words = words(&svm);
    with_cpu(&svm, 2, |rounds| {
        let mut counted = 0;
        for round in 0..12 {
            another(rounds);
            svm.prefetch(0, PAGES, (round % 2 == 0).then_some(0))?;
            svm.count(0, &words, ROUNDS)?;
            counted += ROUNDS;
        }
        Ok(counted)
    })?;
    ensure!(svm.moves()?.0 > 0, "nothing has moved");
    Ok(())
}

fn not_writable() -> Result<(), Stop> {
    let svm = Svm::new(WorldSpec::default(), Memory::anonymous(PAGES * PAGE)?)?;
    svm.world.sees(Seen::Protect)?;
    svm.world.sees(Seen::Fork)?;
    svm.memory.fill(1);
    svm.give(0, PAGES, &[(0, SvmAccess::InPlace)])?;
    let words = words(&svm);
    let values = || {
        let bytes = words.iter().zip(0..).map(|(_, page)| svm.memory.read(page * PAGE + WORD, 8));
        bytes.map(|bytes| bytes.try_into().map_or(0, u64::from_ne_bytes)).collect::<Vec<_>>()
    };
    let before = values();
    svm.memory.protect(0, PAGES * PAGE, libc::PROT_READ)?;
    svm.world.told();
    ensure!(svm.count(0, &words, 1).is_err(), "an atomic on read-only memory");
    ensure_eq!(values(), before);
    svm.memory.protect(0, PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
    svm.world.told();
    svm.settle()?;
    svm.give(0, PAGES, &[(0, SvmAccess::InPlace)])?;
    svm.set(0, PAGES, &[vkfd_client::SvmSet::Flags(0)])?;
    // The child writes all over its own copy, and looks at it again in the end.
    svm.with_child(|| {
        svm.count(0, &words, 3)?;
        ensure_eq!(values(), before.iter().map(|value| value.wrapping_add(3)).collect::<Vec<_>>());
        Ok(())
    })?;
    ensure_eq!(values(), before.iter().map(|value| value.wrapping_add(3)).collect::<Vec<_>>());
    Ok(())
}

impl Svm {
    /// GPU number `gpu` adds 1 to each word, `rounds` times.
    fn count(&self, gpu: usize, words: &[GpuVa], rounds: u64) -> Result<(), Stop> {
        Ok(self.world.with_engine(gpu, |engine| engine.count(words, rounds))?)
    }
}
