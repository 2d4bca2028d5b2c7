// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An RDMA device uses memory in a GPU's: with page faults of its own (on-demand paging) in place,
//! and pinned in system memory.
//!
//! Transfers begin with a page, so that no packet crosses from one to the next: there soft-RoCE of
//! Linux 7.3 copies the first bytes twice.

use vkfd_client::PAGE;

use super::device_stage::{count, expect_resident, moved, Kind};
use super::pages;
use super::rdma_link::Link;
use super::rdma_verbs::{Region, Verbs, Work};
use crate::coherence::batch::FIRST;
use crate::memory::Memory;
use crate::verdict::Stop;

const PAGES: u64 = 16;
/// A word that is added to.
const WORD: u64 = 3 * PAGE + 64;

/// An RDMA device that is registered with memory to be used, and has a buffer of its own to copy to
/// and from.
struct Rdma {
    verbs: Verbs,
    buffer: Memory,
    local: Region,
}

impl Rdma {
    fn new() -> Result<Self, Stop> {
        let mut verbs = Verbs::new(&Link::new()?)?;
        let buffer = Memory::anonymous(PAGES * PAGE)?;
        buffer.fill(77);
        let local = verbs.register(buffer.whole(), false)?;
        Ok(Self { verbs, buffer, local })
    }

    /// The device sees the pattern of `seed`.
    fn sees(&mut self, memory: &Memory, region: &Region, seed: u64) -> Result<(), Stop> {
        self.buffer.fill(77);
        let work = Work::Read(region, self.buffer.whole());
        self.verbs.run(memory.whole().start, &self.local, &work)?;
        ensure_eq!(self.buffer.find_wrong(0..PAGES, seed), None, "a page that the RDMA device reads");
        Ok(())
    }

    /// The device writes the pattern of `seed`.
    fn writes(&mut self, memory: &Memory, region: &Region, seed: u64) -> Result<(), Stop> {
        self.buffer.fill(seed);
        let work = Work::Write(region, self.buffer.whole());
        self.verbs.run(memory.whole().start, &self.local, &work)?;
        ensure_eq!(memory.find_wrong(0..PAGES, seed), None, "a page that the RDMA device has written");
        Ok(())
    }

    /// The device adds to the word.
    fn adds(&mut self, memory: &Memory, region: &Region, value: u64) -> Result<(), Stop> {
        let word = |memory: &Memory, at| memory.read(at, 8).try_into().map_or(0, u64::from_ne_bytes);
        let before = word(memory, WORD);
        let work = Work::Add(region, self.buffer.range(0, 8), value);
        self.verbs.run(memory.whole().start + WORD, &self.local, &work)?;
        ensure_eq!(word(&self.buffer, 0), before, "the old value");
        ensure_eq!(word(memory, WORD), before.wrapping_add(value));
        Ok(())
    }
}

/// Reads, writes and adds in a GPU's memory, with page faults: nothing moves. Then it moves under
/// the registration, there and back.
pub(super) fn on_demand() -> Result<(), Stop> {
    let mut rdma = Rdma::new()?;
    let (world, memory) = moved(Kind::Coherent, PAGES)?;
    let (before, frames) = (count(&world)?, pages::frames(&memory)?);
    let region = rdma.verbs.register(memory.whole(), true)?;
    rdma.sees(&memory, &region, FIRST)?;
    rdma.writes(&memory, &region, 2)?;
    rdma.adds(&memory, &region, 5)?;
    ensure_eq!(pages::frames(&memory)?, frames, "frames of pages that were only used");
    ensure_eq!(count(&world)?, before, "what was moved by use");
    for seed in 3..8 {
        memory.fill(seed);
        ensure_eq!(world.client().move_to_system(memory.whole(), world.gpu(0))?.moved, PAGES);
        expect_resident(&world, 0)?;
        rdma.sees(&memory, &region, seed)?;
        rdma.writes(&memory, &region, seed + 100)?;
        ensure_eq!(world.client().move_to_gpu(memory.whole(), world.gpu(0))?.moved, PAGES);
        rdma.sees(&memory, &region, seed + 100)?;
        rdma.writes(&memory, &region, seed + 200)?;
        rdma.adds(&memory, &region, seed)?;
        expect_resident(&world, PAGES)?;
    }
    // What is there no longer the device does not get.
    memory.unmap(0, PAGES * PAGE)?;
    expect_resident(&world, 0)?;
    let work = Work::Read(&region, rdma.buffer.whole());
    ensure!(rdma.verbs.run(memory.whole().start, &rdma.local, &work).is_err(), "the device reads what has gone");
    rdma.verbs.unregister(region)
}

/// The same with memory that only the GPU reaches: it comes back to the device as to a processor.
pub(super) fn on_demand_private() -> Result<(), Stop> {
    let mut rdma = Rdma::new()?;
    let (world, memory) = moved(Kind::Private, PAGES)?;
    let region = rdma.verbs.register(memory.whole(), true)?;
    expect_resident(&world, PAGES)?;
    rdma.sees(&memory, &region, FIRST)?;
    expect_resident(&world, 0)?;
    for seed in 2..5 {
        memory.fill(seed);
        ensure_eq!(world.client().move_to_gpu(memory.whole(), world.gpu(0))?.moved, PAGES);
        rdma.writes(&memory, &region, seed + 100)?;
        rdma.adds(&memory, &region, seed)?;
        expect_resident(&world, 0)?;
    }
    rdma.verbs.unregister(region)
}

/// Without page faults the device pins its memory, in system memory; it stays there as long as it
/// is registered.
pub(super) fn pinned() -> Result<(), Stop> {
    for kind in [Kind::Coherent, Kind::Private] {
        let mut rdma = Rdma::new()?;
        let (world, memory) = moved(kind, PAGES)?;
        let region = rdma.verbs.register(memory.whole(), false)?;
        expect_resident(&world, 0)?;
        rdma.sees(&memory, &region, FIRST)?;
        let still = world.client().move_to_gpu(memory.whole(), world.gpu(0))?;
        ensure_eq!(
            (still.moved, still.resident),
            (0, 0),
            "{kind:?}: pages moved away under a device that has them pinned"
        );
        rdma.writes(&memory, &region, 2)?;
        rdma.verbs.unregister(region)?;
        // The device may let go of them a moment later.
        world.until("all pages are the process's again", |_| {
            world.client().move_to_gpu(memory.whole(), world.gpu(0)).is_ok_and(|moved| moved.resident == PAGES)
        })?;
        ensure_eq!(memory.find_wrong(0..PAGES, 2), None);
    }
    Ok(())
}
