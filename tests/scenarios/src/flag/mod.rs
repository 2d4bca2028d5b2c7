// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Many ranges in one object by ALLOC's flag, with KFD's own calls only. So every driver that has
//! the flag runs the same scenarios: vkfd's, and AMD's with `vm/amdgpu-batch-userptr.patch`.
//!
//! The checks are of the contents that GPU and CPU read, and of the calls' results. On AMD's driver
//! a page fault ends a process's queues, so a scenario that makes one ends with it.

mod calls;
mod change;
mod race;

use vkfd_client::{Buffer, GpuSet, RegisterOptions, Strategy, UserptrRange, PAGE};

use crate::coherence::batch::{Batch, FIRST, RANGE_PAGES};
use crate::memory::{Layout, Memory};
use crate::{Scenario, Stop, World, WorldSpec};

/// The scenarios.
pub(crate) fn scenarios() -> Vec<Scenario> {
    [calls::SCENARIOS, change::SCENARIOS, race::SCENARIOS].concat()
}

/// What [`Stop::Skip`] says of a driver without the flag.
pub(crate) const LACKS: &str = "requires many ranges in one object";

/// A world whose driver says that it has the flag.
fn world() -> Result<World, Stop> {
    let world = World::new(WorldSpec::default())?;
    if !world.client().caps().batch_flag {
        return Err(Stop::Skip(LACKS.into()));
    }
    Ok(world)
}

fn options(map: bool) -> RegisterOptions {
    RegisterOptions { strategy: Strategy::BatchFlag, map, ..RegisterOptions::default() }
}

/// Shuffled ranges of anonymous memory with the pattern of [`FIRST`].
fn batch(world: &World, n: u64) -> Result<Batch, Stop> {
    Batch::with(world, n, Layout::Shuffled, &options(true))
}

/// Ranges of [`RANGE_PAGES`] pages, each with a gap of that size behind it.
fn with_gaps(world: &World, n: u64) -> Result<Batch, Stop> {
    Batch::with(world, n, Layout::Gaps, &options(true))
}

/// Registers ranges of a scenario's memory, and maps them.
fn register(world: &World, ranges: &[UserptrRange]) -> vkfd_client::Result<Buffer> {
    // SAFETY: the scenario accesses the memory by volatile operations only.
    unsafe { world.client().register_ranges(ranges, &options(true)) }
}

/// Where the gap behind a range of [`with_gaps`] begins.
fn gap(batch: &Batch, range: usize) -> u64 {
    batch.offset(range) + RANGE_PAGES * PAGE
}

/// Maps and unmaps an object: the GPU's entries are made anew.
fn map_anew(batch: &Batch) -> Result<(), Stop> {
    batch.buffer.unmap(&GpuSet::All)?;
    Ok(batch.buffer.map(&GpuSet::All)?)
}

/// All ranges are as the CPU sees them, read at once.
fn expect_same(world: &World, batch: &Batch) -> Result<(), Stop> {
    let seen = world.read_gpu(batch.buffer.gpu_va(), batch.buffer.len())?;
    ensure!(seen == crate::memory::gather(&batch.ranges), "GPU and CPU see different memory");
    Ok(())
}

/// A memory's pages, all with the pattern of [`FIRST`].
fn filled(pages: u64) -> Result<Memory, Stop> {
    let memory = Memory::anonymous(pages * PAGE)?;
    memory.fill(FIRST);
    Ok(memory)
}
