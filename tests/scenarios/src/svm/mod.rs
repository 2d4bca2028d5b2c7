// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM: GPUs use the process's memory at its own addresses, and memory lives where it is used.
//!
//! | module | what is shown |
//! | --- | --- |
//! | `mapped` | memory of every kind at its own addresses, with XNACK off and on; access, permission, attributes |
//! | `permission` | read-only, forbidden and never written memory |
//! | `atomic` | a GPU's atomic operations against the CPU's, on memory that stays and that moves |
//! | [`change`] | munmap, discard, replacement, mremap, mprotect and fork under live ranges |
//! | [`neighbour`] | threads with memory of their own in one 2 MiB |
//! | `place` | prefetch and faults move memory; in place it is used by all without moving (coherent), or comes back (private) |
//! | `life` | what happens to memory that is on a GPU: fork, copy-on-write, partial unmap, release, writers while it moves |
//! | [`compute`] | a kernel at work on memory that moves |
//! | `huge` | huge pages: whole, empty, given up, unmapped and moved in parts |
//! | `repeat` | the same again and again: memory that comes and goes, goes there and half back |
//! | `event` | the SMI events for all this |
//! | `pressure` | more than VRAM: eviction by faults, prefetches and buffer objects |
//!
//! Those from `place` on, and some before, run twice, with coherent and with private memory, and
//! are skipped where the host has not that kind.

mod atomic;
pub mod change;
pub mod compute;
mod event;
mod huge;
pub mod life;
mod mapped;
pub mod neighbour;
mod permission;
mod place;
mod pressure;
mod repeat;

use vkfd_client::uapi::vkfd::{SVM_MEMORY_COHERENT, SVM_MEMORY_NONE, SVM_MEMORY_PRIVATE};
use vkfd_client::{ClientError, GpuVa, Location, SvmAccess, SvmSet, UserptrRange, PAGE};
use vkfd_driver::seams::device_memory::Kind;

use crate::memory::{pattern, wrong_page, Memory};
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};
use crate::Scenario;

/// 2 MiB.
const GRANULE: u64 = 2 << 20;

/// The scenarios.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    let used = [mapped::SCENARIOS, permission::SCENARIOS, atomic::SCENARIOS, change::SCENARIOS, neighbour::SCENARIOS];
    let moved = [
        place::SCENARIOS,
        life::SCENARIOS,
        compute::SCENARIOS,
        huge::SCENARIOS,
        repeat::SCENARIOS,
        pressure::SCENARIOS,
    ];
    [used.concat(), moved.concat(), event::SCENARIOS.to_vec()].concat()
}

/// A world, with memory that GPUs use at its own addresses.
struct Svm {
    world: World,
    memory: Memory,
}

impl Svm {
    fn new(spec: WorldSpec, memory: Memory) -> Result<Self, Stop> {
        Ok(Self { world: World::new(spec)?, memory })
    }

    /// As [`new`](Self::new), with memory that can move to a GPU of this kind.
    fn moving(spec: WorldSpec, kind: Kind, memory: Memory) -> Result<Self, Stop> {
        let svm = Self::new(WorldSpec { device_memory: kind, ..spec }, memory)?;
        let wanted = if kind == Kind::Coherent { SVM_MEMORY_COHERENT } else { SVM_MEMORY_PRIVATE };
        match svm.world.client().svm()?.memory {
            has if has == wanted => Ok(svm),
            SVM_MEMORY_NONE => Err(Stop::Skip("this host moves no memory to GPUs".into())),
            _ => Err(Stop::Skip(format!("this host has no {kind:?} memory on GPUs"))),
        }
    }

    fn va(&self, page: u64) -> GpuVa {
        GpuVa(self.memory.whole().start + page * PAGE)
    }

    fn pages(&self, first: u64, pages: u64) -> UserptrRange {
        self.memory.range(first * PAGE, pages * PAGE)
    }

    /// Gives GPUs access to pages.
    fn give(&self, first: u64, pages: u64, access: &[(usize, SvmAccess)]) -> Result<(), Stop> {
        let list: Vec<_> = access.iter().map(|(gpu, access)| SvmSet::Access(self.world.gpu(*gpu), *access)).collect();
        self.set(first, pages, &list)
    }

    fn set(&self, first: u64, pages: u64, list: &[SvmSet]) -> Result<(), Stop> {
        // SAFETY: the memory is a scenario's, of which no reference is ever made.
        Ok(unsafe { self.world.client().svm_set(self.pages(first, pages), list) }?)
    }

    /// To GPU number `gpu`, or to system memory.
    fn prefetch(&self, first: u64, pages: u64, gpu: Option<usize>) -> Result<(), Stop> {
        let to = gpu.map_or(Location::System, |gpu| Location::Gpu(self.world.gpu(gpu)));
        Ok(self.world.client().prefetch(self.pages(first, pages), to)?)
    }

    /// GPU number `gpu` must see the pattern of `seed` in pages.
    fn expect(&self, gpu: usize, first: u64, pages: u64, seed: u64) -> Result<(), Stop> {
        let bytes = self.world.with_engine(gpu, |engine| engine.read(self.va(first), pages * PAGE))?;
        ensure_eq!(wrong_page(&bytes, first..first + pages, seed), None, "GPU {gpu}, pages from {first} on");
        Ok(())
    }

    /// The CPU must see the pattern of `seed`.
    fn cpu_expects(&self, first: u64, pages: u64, seed: u64) -> Result<(), Stop> {
        ensure_eq!(self.memory.find_wrong(first..first + pages, seed), None, "the CPU, pages from {first} on");
        Ok(())
    }

    /// GPU number `gpu` writes the pattern of `seed` to pages.
    fn write(&self, gpu: usize, first: u64, pages: u64, seed: u64) -> Result<(), Stop> {
        let bytes: Vec<u8> = (first..first + pages).flat_map(|page| pattern(page, seed)).collect();
        Ok(self.world.with_engine(gpu, |engine| engine.write(self.va(first), &bytes))?)
    }

    /// An access of GPU number `gpu` to a page must be refused.
    fn expect_fault(&self, gpu: usize, page: u64, write: bool) -> Result<(), Stop> {
        let va = self.va(page);
        let bytes = pattern(page, 0);
        let result = self.world.with_engine(gpu, |engine| match write {
            true => engine.write(va, &bytes),
            false => engine.read(va, PAGE).map(drop),
        });
        match result {
            Err(ClientError::GpuFault { va: at, .. }) => ensure_eq!(at, va, "the address that the fault reports"),
            other => bail!("an access to {va} should fault, but: {other:?}"),
        }
        Ok(())
    }

    /// Pages of all ranges that are in VRAM.
    fn in_vram(&self) -> Result<u64, Stop> {
        Ok(self.world.client().svm()?.vram_pages)
    }

    /// Pages that have moved so far, in and out.
    fn moves(&self) -> Result<(u64, u64), Stop> {
        let info = self.world.client().svm()?;
        Ok((info.pages_in, info.pages_out))
    }

    /// With nothing waited for: queues may be stopped for a restore, which goes on by itself.
    fn settle(&self) -> Result<(), Stop> {
        self.world.until("the process is restored", |info| info.evicted == 0)
    }
}

/// Runs it with coherent and with private memory. Skipped where the host has neither.
fn both(run: fn(Kind) -> Result<(), Stop>) -> Result<(), Stop> {
    let skipped = |result: &Result<(), Stop>| matches!(result, Err(Stop::Skip(_)));
    match [run(Kind::Coherent), run(Kind::Private)] {
        [coherent, private] if skipped(&private) => coherent,
        [coherent, private] if skipped(&coherent) => private,
        [coherent, private] => coherent.and(private),
    }
}
