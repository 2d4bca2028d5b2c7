// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory of every kind at its own addresses, and the permission to use it.

use std::cell::UnsafeCell;

use vkfd_client::uapi::svm::{
    SVM_FLAG_GPU_ALWAYS_MAPPED, SVM_FLAG_GPU_READ_MOSTLY, SVM_FLAG_GPU_RO, SVM_FLAG_HOST_ACCESS,
};
use vkfd_client::{GpuVa, Location, SvmAccess, SvmSet};

use super::Svm;
use crate::memory::{Backing, Memory};
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "svm_every_kind_of_memory_is_used_at_its_own_address",
        about: "Anonymous, shared, file-backed private and shared: GPU and CPU see each other's writes, XNACK off and on.",
        run: every_kind,
    },
    Scenario {
        name: "svm_memory_beside_a_range_is_no_gpus",
        about: "XNACK off: a GPU's access to the page before a range faults, at that page.",
        run: beside,
    },
    Scenario {
        name: "svm_memory_that_nobody_registered_faults_in",
        about: "XNACK on: the stack of mappings a program has, used by a GPU without a call; a range is made for what was touched.",
        run: unregistered,
    },
    Scenario {
        name: "svm_a_programs_stack_heap_and_statics_are_used_by_gpus",
        about: "XNACK on: what nobody mapped for the purpose, in the middle of memory that the program goes on using meanwhile.",
        run: own_memory,
    },
    Scenario {
        name: "svm_access_is_kept_for_each_gpu",
        about: "ACCESS, IN_PLACE and NO_ACCESS by GPU, taken away and given again; GPU_RO refuses writes.",
        run: access,
    },
    Scenario {
        name: "svm_always_mapped_memory_is_restored_without_a_fault",
        about: "XNACK on: with ALWAYS_MAPPED a discard stops the queues and is made good at once; without, the GPU faults.",
        run: always_mapped,
    },
    Scenario {
        name: "svm_attributes_come_back_as_they_were_set",
        about: "Locations, flags, granularity of split ranges, and what holds for several at once.",
        run: attributes,
    },
    Scenario {
        name: "svm_and_userptr_are_restored_together",
        about: "One eviction and one restore for both when both are invalidated.",
        run: together,
    },
];

const KINDS: [Backing; 4] = [Backing::Anonymous, Backing::Shared, Backing::FilePrivate, Backing::FileShared];

fn every_kind() -> Result<(), Stop> {
    for xnack in [false, true] {
        for kind in KINDS {
            // Not a whole number of granules, and not at the beginning of one.
            let svm = Svm::new(WorldSpec { xnack, ..WorldSpec::default() }, Memory::new(kind, 1100 * 4096)?)?;
            svm.memory.fill(1);
            if !xnack {
                svm.give(50, 1000, &[(0, SvmAccess::Migrate)])?;
            }
            svm.expect(0, 50, 1000, 1)?;
            svm.write(0, 50, 1000, 2)?;
            svm.cpu_expects(50, 1000, 2)?;
            svm.cpu_expects(0, 50, 1)?;
            svm.memory.fill(3);
            svm.expect(0, 50, 1000, 3)?;
        }
    }
    Ok(())
}

/// A scenario of its own: on AMD's driver no queue of the process goes on after a fault.
fn beside() -> Result<(), Stop> {
    let svm = Svm::new(WorldSpec::default(), Memory::anonymous(64 * 4096)?)?;
    svm.memory.fill(1);
    svm.give(50, 10, &[(0, SvmAccess::Migrate)])?;
    svm.expect(0, 50, 10, 1)?;
    svm.expect_fault(0, 49, false)
}

fn unregistered() -> Result<(), Stop> {
    let svm = Svm::new(WorldSpec { xnack: true, gpus: 2, ..WorldSpec::default() }, Memory::anonymous(1024 * 4096)?)?;
    svm.memory.fill(1);
    svm.expect(0, 0, 1024, 1)?;
    svm.write(1, 0, 1024, 2)?;
    svm.expect(0, 0, 1024, 2)?;
    svm.cpu_expects(0, 1024, 2)?;
    ensure!(svm.world.client().svm()?.unregistered >= 1, "no range was made");
    // A hole is a hole, once the driver was notified of it.
    if svm.world.sees(crate::Seen::Unmap).is_ok() {
        svm.memory.unmap(512 * 4096, 4096)?;
        svm.world.told();
        svm.expect_fault(0, 512, false)?;
        svm.expect(0, 0, 512, 2)?;
        svm.expect(1, 513, 500, 2)?;
    }
    Ok(())
}

/// Memory of the program that is accessed by pointers only.
struct Cell(UnsafeCell<[u64; WORDS]>);

// SAFETY: a scenario alone uses it, and scenarios run one after the other.
unsafe impl Sync for Cell {}

const WORDS: usize = 1024;
static INITIALISED: Cell = Cell(UnsafeCell::new([7; WORDS]));
static ZERO: Cell = Cell(UnsafeCell::new([0; WORDS]));

/// A GPU adds up words at `at` and writes others, while their neighbourhood is in use.
fn used_by_a_gpu(world: &World, gpu: usize, what: &str, at: *mut u64) -> Result<(), Stop> {
    let va = GpuVa(at.expose_provenance() as u64);
    for round in 1..4_u64 {
        for word in 0..WORDS {
            // SAFETY: the caller's array, which is accessed by pointers only, and by no GPU at this
            // time.
            unsafe { at.add(word).write_volatile(round * 1000 + word as u64) };
        }
        let sum = (0..WORDS as u64).map(|word| round * 1000 + word).sum::<u64>();
        let seen = world.with_engine(gpu, |engine| engine.sum64(va, 8 * WORDS as u64))?;
        ensure_eq!(seen, sum, "{what}: what GPU {gpu} adds up");
        let half = (WORDS / 2) as u64;
        world.with_engine(gpu, |engine| engine.fill(va, 0x0101_0101, 8 * half))?;
        for word in 0..WORDS {
            let expected = if word < WORDS / 2 { 0x0101_0101_0101_0101 } else { round * 1000 + word as u64 };
            // SAFETY: as above.
            ensure_eq!(unsafe { at.add(word).read_volatile() }, expected, "{what}: word {word}, after GPU {gpu} wrote");
        }
    }
    Ok(())
}

fn own_memory() -> Result<(), Stop> {
    let world = World::new(WorldSpec { xnack: true, gpus: 2, ..WorldSpec::default() })?;
    let stack = |gpu: usize, whose: &str| {
        let here = Cell(UnsafeCell::new([0; WORDS]));
        used_by_a_gpu(&world, gpu, whose, here.0.get().cast())
    };
    for gpu in [0, 1] {
        used_by_a_gpu(&world, gpu, "a static", INITIALISED.0.get().cast())?;
        used_by_a_gpu(&world, gpu, "a static of zeroes", ZERO.0.get().cast())?;
        let small = Box::new(Cell(UnsafeCell::new([0; WORDS])));
        used_by_a_gpu(&world, gpu, "the heap", small.0.get().cast())?;
        let mut large = vec![0_u64; 1 << 20];
        used_by_a_gpu(&world, gpu, "a large allocation", large.as_mut_ptr().wrapping_add(1 << 19))?;
        stack(gpu, "this thread's stack")?;
        std::thread::scope(|scope| {
            let other = scope.spawn(|| stack(gpu, "another thread's stack"));
            other.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })?;
    }
    ensure!(world.client().svm()?.unregistered >= 3, "no ranges were made: {:?}", world.client().svm()?);
    Ok(())
}

fn access() -> Result<(), Stop> {
    for xnack in [false, true] {
        let spec = WorldSpec { xnack, gpus: 2, ..WorldSpec::default() };
        let svm = Svm::new(spec, Memory::anonymous(64 * 4096)?)?;
        svm.memory.fill(1);
        svm.give(0, 64, &[(0, SvmAccess::Migrate), (1, SvmAccess::InPlace)])?;
        svm.expect(0, 0, 64, 1)?;
        svm.expect(1, 0, 64, 1)?;
        svm.give(10, 10, &[(1, SvmAccess::None)])?;
        svm.expect(1, 0, 10, 1)?;
        svm.expect_fault(1, 10, false)?;
        svm.expect(0, 0, 64, 1)?;
        svm.give(10, 10, &[(1, SvmAccess::Migrate)])?;
        svm.write(1, 0, 64, 2)?;
        svm.expect(0, 0, 64, 2)?;
        svm.set(20, 20, &[SvmSet::Flags(SVM_FLAG_GPU_RO)])?;
        svm.expect(0, 20, 20, 2)?;
        svm.expect_fault(0, 25, true)?;
        svm.cpu_expects(0, 64, 2)?;
        svm.set(20, 20, &[SvmSet::NoFlags(SVM_FLAG_GPU_RO)])?;
        svm.write(0, 20, 20, 3)?;
        svm.cpu_expects(20, 20, 3)?;
        // What is mostly read can be written.
        svm.set(0, 64, &[SvmSet::Flags(SVM_FLAG_GPU_READ_MOSTLY)])?;
        svm.expect(1, 20, 20, 3)?;
        if xnack {
            svm.write(1, 0, 20, 4)?;
            svm.cpu_expects(0, 20, 4)?;
        }
    }
    Ok(())
}

fn always_mapped() -> Result<(), Stop> {
    const PAGES: u64 = 64;
    let svm = Svm::new(WorldSpec { xnack: true, ..WorldSpec::default() }, Memory::anonymous(PAGES * 4096)?)?;
    svm.world.sees(crate::Seen::Discard)?;
    svm.memory.fill(1);
    // In place, so that nothing moves; a page's entry is the only thing that can be missing.
    svm.give(0, PAGES, &[(0, SvmAccess::InPlace)])?;
    for (always, seed) in [(true, 2), (false, 3), (true, 4)] {
        let flags = SVM_FLAG_GPU_ALWAYS_MAPPED;
        svm.set(0, PAGES, &[if always { SvmSet::Flags(flags) } else { SvmSet::NoFlags(flags) }])?;
        svm.expect(0, 0, PAGES, seed - 1)?;
        svm.settle()?;
        let evictions = svm.world.client().snapshot()?.evictions;
        svm.memory.discard(8 * 4096, 8 * 4096)?;
        svm.world.told();
        svm.settle()?;
        let stopped = svm.world.client().snapshot()?.evictions - evictions;
        ensure_eq!(stopped > 0, always, "queues were stopped {stopped} times; always mapped: {always}");
        svm.memory.fill(seed);
        svm.settle()?;
        let faults = svm.world.client().svm()?.faults;
        svm.expect(0, 0, PAGES, seed)?;
        let faulted = svm.world.client().svm()?.faults - faults;
        ensure_eq!(faulted > 0, !always, "{faulted} faults; always mapped: {always}");
    }
    Ok(())
}

fn attributes() -> Result<(), Stop> {
    let svm = Svm::new(WorldSpec { gpus: 2, ..WorldSpec::default() }, Memory::anonymous(64 * 4096)?)?;
    let (client, gpu) = (svm.world.client(), svm.world.gpu(0));
    let unset = client.svm_get(svm.memory.whole(), gpu)?;
    ensure_eq!(
        (unset.preferred, unset.prefetch, unset.access),
        (Location::Undefined, Location::Undefined, SvmAccess::None)
    );
    svm.set(0, 32, &[SvmSet::Preferred(Location::Gpu(gpu)), SvmSet::Granularity(4)])?;
    svm.set(32, 32, &[SvmSet::Preferred(Location::System), SvmSet::Flags(SVM_FLAG_GPU_RO)])?;
    svm.set(8, 8, &[SvmSet::Access(gpu, SvmAccess::InPlace), SvmSet::NoFlags(SVM_FLAG_HOST_ACCESS)])?;
    let get = |first, pages| client.svm_get(svm.pages(first, pages), gpu);
    ensure_eq!((get(0, 8)?.preferred, get(0, 8)?.granularity), (Location::Gpu(gpu), 4));
    ensure_eq!((get(8, 8)?.access, get(8, 8)?.flags & SVM_FLAG_HOST_ACCESS), (SvmAccess::InPlace, 0));
    ensure_eq!(get(32, 32)?.preferred, Location::System);
    let all = get(0, 64)?;
    ensure_eq!((all.preferred, all.granularity, all.access), (Location::Undefined, 4, SvmAccess::None));
    // Every flag by itself, also those that change nothing here.
    for flag in (0..8).map(|bit| 1 << bit) {
        svm.set(48, 8, &[SvmSet::NoFlags(u32::MAX)])?;
        svm.set(48, 8, &[SvmSet::Flags(flag)])?;
        ensure_eq!(get(48, 8)?.flags, flag);
        ensure_eq!(get(40, 16)?.flags, get(40, 8)?.flags & flag, "flags that two ranges have both");
    }
    svm.set(48, 8, &[SvmSet::NoFlags(u32::MAX), SvmSet::Flags(get(40, 8)?.flags)])?;
    let ranges = client.svm_ranges()?;
    let starts: Vec<_> = ranges.iter().map(|r| ((r.start - svm.memory.whole().start) / 4096, r.size / 4096)).collect();
    ensure_eq!(starts, [(0, 8), (8, 8), (16, 16), (32, 32)]);
    ensure_eq!(client.svm()?.notifiers, 1);
    Ok(())
}

fn together() -> Result<(), Stop> {
    let svm = Svm::new(WorldSpec::default(), Memory::anonymous(64 * 4096)?)?;
    svm.world.sees(crate::Seen::Discard)?;
    svm.memory.fill(1);
    svm.give(0, 16, &[(0, SvmAccess::Migrate)])?;
    let options = vkfd_client::RegisterOptions::default();
    // SAFETY: the memory is the scenario's own, of which no reference is ever made.
    let batch = unsafe { svm.world.client().register_ranges(&[svm.pages(32, 8), svm.pages(20, 8)], &options) }?;
    for seed in 2..10 {
        svm.memory.discard(8 * 4096, 32 * 4096)?;
        svm.world.told();
        svm.memory.fill(seed);
        svm.expect(0, 0, 16, seed)?;
        let bytes = svm.world.read_gpu(batch.gpu_va(), batch.len())?;
        ensure_eq!(crate::wrong_page(&bytes, (32..40).chain(20..28), seed), None);
        svm.settle()?;
    }
    let info = svm.world.client().snapshot()?;
    ensure_eq!(info.evictions, info.restores);
    Ok(())
}
