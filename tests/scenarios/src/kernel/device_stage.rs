// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A batch whose pages can be in the GPU's memory, and the known places of its pages.
//!
//! Three witnesses: the driver's count of pages that processes have there, the frame numbers that
//! the kernel shows of a process's pages, and the GPU's own page-table entries.

use std::time::{Duration, Instant};

use vkfd_client::{Errno, Moved, PAGE};
pub(super) use vkfd_driver::seams::device_memory::Kind;

use super::pages;
use super::stage::Stage;
use crate::coherence::batch::FIRST;
use crate::memory::{Layout, Memory};
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};

/// In a GPU's page-table entry: the page is in system memory.
const SYSTEM: u64 = 1 << 1;
const PATIENCE: Duration = Duration::from_secs(60);

/// A kernel's world in which data can move to the GPU's memory.
pub(super) fn spec(kind: Kind) -> Result<WorldSpec, Stop> {
    Ok(WorldSpec { device_memory: kind, ..super::world_spec()? })
}

/// What is in the first GPU's memory.
pub(super) fn count(world: &World) -> Result<Moved, Stop> {
    match world.client().moved_pages(world.gpu(0)) {
        Ok(moved) => Ok(moved),
        Err(error) if error.errno() == Some(Errno::OPNOTSUPP) => {
            Err(Stop::Skip("memory cannot be moved to the GPU: the module's parameter memory=0?".into()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Waits until `pages` pages are in the first GPU's memory: some are given back by a worker.
pub(super) fn expect_resident(world: &World, pages: u64) -> Result<(), Stop> {
    let start = Instant::now();
    loop {
        let now = count(world)?;
        if now.resident == pages {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "{now:?}, where {pages} pages should be in the GPU's memory");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// So many pages with the pattern of [`FIRST`], moved to the first GPU of a world.
pub(super) fn moved(kind: Kind, pages: u64) -> Result<(World, Memory), Stop> {
    let world = World::new(spec(kind)?)?;
    expect_resident(&world, 0)?;
    let memory = Memory::anonymous(pages * PAGE)?;
    memory.fill(FIRST);
    ensure_eq!(world.client().move_to_gpu(memory.whole(), world.gpu(0))?.moved, pages);
    Ok((world, memory))
}

/// A batch that is in the GPU's memory.
pub(super) struct DeviceStage {
    pub(super) stage: Stage,
}

impl DeviceStage {
    /// `count` ranges of `pages` pages, not moved yet.
    pub(super) fn new(spec: WorldSpec, count: u64, pages: u64) -> Result<Self, Stop> {
        let stage = Stage::with(spec, count, pages, Layout::Shuffled, &vkfd_client::RegisterOptions::default())?;
        expect_resident(&stage.world, 0)?;
        Ok(Self { stage })
    }

    /// As [`DeviceStage::new`], and all of it moved.
    pub(super) fn moved(spec: WorldSpec, count: u64, pages: u64) -> Result<Self, Stop> {
        let this = Self::new(spec, count, pages)?;
        this.move_to_gpu(this.pages())?;
        Ok(this)
    }

    pub(super) fn world(&self) -> &World {
        &self.stage.world
    }

    pub(super) fn memory(&self) -> &Memory {
        self.stage.memory()
    }

    pub(super) fn pages(&self) -> u64 {
        self.memory().pages()
    }

    /// Moves all, of which `pages` pages must move.
    pub(super) fn move_to_gpu(&self, pages: u64) -> Result<(), Stop> {
        let moved = self.world().client().move_to_gpu(self.memory().whole(), self.world().gpu(0))?;
        ensure_eq!(moved.moved, pages, "pages moved to the GPU");
        Ok(())
    }

    /// Moves all back, of which `pages` pages must move.
    pub(super) fn move_to_system(&self, pages: u64) -> Result<(), Stop> {
        let moved = self.world().client().move_to_system(self.memory().whole(), self.world().gpu(0))?;
        ensure_eq!(moved.moved, pages, "pages moved to system memory");
        Ok(())
    }

    /// The frames of the pages, all of which are present.
    pub(super) fn frames(&self) -> Result<Vec<Option<u64>>, Stop> {
        let frames = pages::frames(self.memory())?;
        ensure!(frames.iter().all(Option::is_some), "not all pages are there for the CPU");
        Ok(frames)
    }

    /// The GPU's entries for `pages` pages name its own memory, the others system memory.
    pub(super) fn expect_entries(&self, pages: usize) -> Result<(), Stop> {
        self.world().settle()?;
        let entries = self.stage.batch.all_ptes(self.world().gpu(0))?;
        let local = entries.iter().filter(|entry| **entry != 0 && **entry & SYSTEM == 0).count();
        ensure_eq!(local, pages, "entries that name the GPU's memory");
        Ok(())
    }

    /// CPU and GPU see the pattern of [`FIRST`].
    pub(super) fn expect_first(&self) -> Result<(), Stop> {
        self.stage.gpu_sees(FIRST)?;
        self.stage.cpu_sees(FIRST)
    }
}
