// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Registered memory in swap: pages that are pinned cannot be there.
//!
//! The clients are processes in a memory cgroup. The GPU's own accesses do not make a page look
//! used, and so reclaim takes registered pages first.

use vkfd_client::{GpuSet, RegisterOptions, PAGE};

use super::cgroup::Cgroup;
use super::client_process::{ClientProcess, Scenario};
use super::pages;
use super::stage::{Stage, Work};
use crate::coherence::batch::{since, Batch, FIRST};
use crate::memory::{Layout, Memory};
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};

const RANGES: u64 = 4096;
/// Of a range.
const PAGES: u64 = 1;
const REGISTERED: u64 = RANGES * PAGES * PAGE;
const MIB: u64 = 1 << 20;

/// Writes to `memory` a MiB at a time, and calls `f` after each.
pub(super) fn press(memory: &Memory, seed: u64, mut f: impl FnMut() -> Result<(), Stop>) -> Result<(), Stop> {
    let step = usize::try_from(MIB / PAGE)?;
    for first in (0..memory.pages()).step_by(step) {
        memory.fill_pages(first..memory.pages().min(first + MIB / PAGE), seed);
        f()?;
    }
    Ok(())
}

/// How often a client may be killed for want of memory that there is: reclaim may still find a
/// picture of the cgroup that is too old.
const KILLS: u64 = 3;

/// Runs the client of `role` with at most `limit` bytes in memory; `check` looks at the cgroup
/// while it is alive.
pub(super) fn bounded(role: &str, limit: u64, check: impl Fn(&Cgroup) -> Result<(), Stop>) -> Result<(), Stop> {
    let _world = super::world()?;
    let mut kills = 0;
    loop {
        let cgroup = Cgroup::new(limit)?;
        let mut client = ClientProcess::start(role, Some(&cgroup))?;
        let result = client.expect("look").and_then(|_| {
            check(&cgroup)?;
            client.tell("end")?;
            client.finish()
        });
        kills += 1;
        if result.is_ok() || cgroup.events("oom_kill")? == 0 || kills > KILLS {
            return result;
        }
    }
}

/// Memory pressure from the same process while the GPU works on everything.
pub(super) fn under_pressure(role: &str) -> Result<(), Stop> {
    bounded(role, REGISTERED + REGISTERED / 2, |cgroup| {
        ensure!(cgroup.read("memory.swap.current")? > 0, "nothing is in swap");
        Ok(())
    })
}

pub(super) fn under_pressure_role(scenario: &mut Scenario, work: Work) -> Result<(), Stop> {
    let stage = Stage::new(WorldSpec::default(), RANGES, PAGES)?;
    let hog = Memory::anonymous(REGISTERED / 2)?;
    let before = stage.world.client().snapshot()?;
    let most = stage.under(work, FIRST, |work| {
        let mut most = 0;
        for seed in 0..3 {
            press(&hog, seed, || {
                most = most.max(pages::swapped(stage.memory())?);
                Ok(())
            })?;
            work.more(1)?;
            ensure_eq!(hog.find_wrong(0..hog.pages(), seed), None);
        }
        Ok(most)
    })?;
    ensure!(most >= 64, "at most {most} registered pages were in swap at a time");
    stage.world.settle()?;
    let happened = since(&stage.world, &before)?;
    // Another one may have begun since.
    ensure!(happened.evictions > 0 && happened.evictions - happened.restores <= 1, "{happened:?}");
    ensure!(happened.ranges_restored >= 64, "{happened:?}");
    ensure!(pages::vm_swap()? > 0, "nothing is in swap");
    stage.gpu_sees(FIRST)?;
    stage.exchange(2)?;
    scenario.say("look")?;
    scenario.await_order("end")
}

/// Half of the registered memory fits. With XNACK on the GPU takes it page by page.
pub(super) fn half_fits() -> Result<(), Stop> {
    // Skipped where the GPU cannot.
    drop(World::new(WorldSpec { xnack: true, ..super::world_spec()? })?);
    bounded("half_fits", REGISTERED / 2, |cgroup| {
        ensure!(cgroup.read("memory.current")? <= REGISTERED / 2, "the limit does not hold");
        ensure!(cgroup.read("memory.swap.current")? >= REGISTERED / 2, "less than half is in swap");
        Ok(())
    })
}

/// At least half of the registered pages are in swap: there is no room for more.
fn half_is_in_swap(memory: &Memory) -> Result<(), Stop> {
    let swapped = pages::swapped(memory)?;
    ensure!(swapped as u64 >= memory.pages() / 2, "only {swapped} of {} registered pages are in swap", memory.pages());
    ensure!(pages::vm_swap()? >= memory.bytes() / 2, "VmSwap says {:#x}", pages::vm_swap()?);
    Ok(())
}

pub(super) fn half_fits_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let stage = Stage::new(WorldSpec { xnack: true, ..WorldSpec::default() }, RANGES, PAGES)?;
    half_is_in_swap(stage.memory())?;
    stage.gpu_sees(FIRST)?;
    half_is_in_swap(stage.memory())?;
    stage.exchange(2)?;
    half_is_in_swap(stage.memory())?;
    let before = stage.world.client().snapshot()?.ranges_restored;
    stage.stir(2)?;
    // Were each wave to go through memory by itself, all of it would be brought for each.
    let brought = stage.world.client().snapshot()?.ranges_restored - before;
    ensure!(brought < 4 * RANGES, "a kernel over {RANGES} pages had {brought} brought from swap");
    half_is_in_swap(stage.memory())?;
    let info = stage.world.client().snapshot()?;
    ensure!(info.gpu_faults > 0 && info.evictions == 0, "{info:?}");
    scenario.say("look")?;
    scenario.await_order("end")
}

/// The same with XNACK off, where what is mapped has to be in memory while the queues run: four
/// batches that take turns.
pub(super) fn half_fits_in_turns() -> Result<(), Stop> {
    bounded("half_fits_in_turns", REGISTERED / 2, |cgroup| {
        ensure!(cgroup.read("memory.swap.current")? >= REGISTERED / 2, "less than half is in swap");
        Ok(())
    })
}

pub(super) fn half_fits_in_turns_role(scenario: &mut Scenario) -> Result<(), Stop> {
    const BATCHES: u64 = 4;
    let world = World::new(WorldSpec::default())?;
    let options = RegisterOptions { map: false, ..RegisterOptions::default() };
    let mut batches = Vec::new();
    for seed in 1..=BATCHES {
        let memory = Memory::anonymous(REGISTERED / BATCHES)?;
        memory.fill(seed);
        let ranges = memory.scatter(RANGES / BATCHES, PAGES * PAGE, Layout::Shuffled);
        batches.push(Batch::of(world.client(), memory, ranges, &options)?);
    }
    let in_swap = |batches: &[Batch]| -> Result<usize, Stop> {
        batches.iter().map(|batch| Ok(pages::swapped(&batch.memory)?)).sum()
    };
    let least = usize::try_from(REGISTERED / PAGE / 2)?;
    for _ in 0..2 {
        for (seed, batch) in (1..).zip(&batches) {
            batch.buffer.map(&GpuSet::All)?;
            for range in (0..batch.ranges.len()).step_by(16) {
                batch.expect(&world, range, seed)?;
                batch.write_from_gpu(&world, range, seed)?;
            }
            batch.buffer.unmap(&GpuSet::All)?;
            let swapped = in_swap(&batches)?;
            ensure!(swapped >= least, "only {swapped} registered pages are in swap");
        }
    }
    // The CPU writes, mostly to pages that come from swap, and the GPU sees these writes.
    for (seed, batch) in (11..).zip(&batches) {
        batch.memory.fill(seed);
    }
    for (seed, batch) in (11..).zip(&batches) {
        batch.buffer.map(&GpuSet::All)?;
        batch.expect_all_but(&world, &[], seed)?;
        batch.buffer.unmap(&GpuSet::All)?;
    }
    ensure!(in_swap(&batches)? >= least, "less than half of the registered pages are in swap");
    scenario.say("look")?;
    scenario.await_order("end")
}
