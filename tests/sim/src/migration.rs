// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages that move between system memory and VRAM, word and all.
//!
//! A place in VRAM belongs to the page that moved there, through a fork, until the last owner has
//! gone or moved back. It is then released, with no lock held.

use crate::lock;
use crate::memory::{pages, span, SimMm};
use crate::notifiers::Change;
use crate::patience::turn;
use crate::table::{CpuPage, Place};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use vkfd_driver::base::addr::{CpuSpan, VramOffset, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::device_memory::DeviceMemory;

/// The frame of a place in a GPU's VRAM.
pub fn fabric_frame(gpu_id: u32, at: VramOffset) -> u64 {
    (u64::from(gpu_id) << 18) + at.0 / PAGE
}

impl SimMm {
    pub(crate) fn move_in(
        &self,
        moving: CpuSpan,
        device: &Arc<dyn DeviceMemory>,
        places: &mut [Option<VramOffset>],
    ) -> u64 {
        let numbers = pages(moving);
        // Linux notifies before it looks which pages there are to move.
        if let Some(hook) = self.hooks.before_move.get() {
            self.notify(numbers.start, moving.pages(), true);
            hook(self, &[moving]);
        }
        let mut moved = 0;
        self.change(Change::Place, numbers.start, moving.pages(), || {
            let (mut table, pinned) = (lock(&self.table), lock(&self.pinned));
            for (number, place) in numbers.zip(places) {
                let here = table.pages.get(&number).is_some_and(|page| page.device.is_none());
                if here && !pinned.contains(&number) {
                    let Some(at) = place.take() else { continue };
                    table.put(number, fabric_frame(device.gpu_id(), at), Some((device.clone(), at)));
                    moved += 1;
                }
            }
        });
        self.moves.fetch_add(moved, Ordering::SeqCst);
        moved
    }

    pub(crate) fn move_out(&self, moving: CpuSpan) -> u64 {
        let numbers = pages(moving);
        let mut left = Vec::new();
        self.change(Change::Place, numbers.start, moving.pages(), || {
            let (mut table, pinned) = (lock(&self.table), lock(&self.pinned));
            // Not each address: the span may be as long as a client likes.
            let there = table.pages.range(numbers).filter(|(_, page)| page.device.is_some());
            let there: Vec<u64> = there.map(|(number, _)| *number).filter(|number| !pinned.contains(number)).collect();
            for number in there {
                let frame = table.fresh_frames(number, 1);
                left.extend(table.put(number, frame, None));
            }
        });
        turn();
        self.release(left)
    }

    /// Pages at `places` of whichever owner. A page on its way there stays.
    pub(crate) fn move_out_places(&self, device: &dyn DeviceMemory, places: &[VramOffset]) -> u64 {
        let here = |page: &CpuPage| {
            let at = page.device.as_ref().filter(|(other, _)| other.gpu_id() == device.gpu_id());
            at.is_some_and(|(_, at)| places.contains(at))
        };
        let own = lock(&self.table).pages.iter().filter(|(_, page)| here(page)).map(|(n, _)| *n).collect::<Vec<_>>();
        let moved: u64 = own.into_iter().map(|number| self.move_out(span(number, 1))).sum();
        let mut left = Vec::new();
        {
            let table = &mut *lock(&self.table);
            let child: Vec<u64> = table.child.iter().filter(|(_, page)| here(page)).map(|(n, _)| *n).collect();
            for number in child {
                let frame = table.fresh_frames(number, 1);
                if let Some(page) = table.child.get_mut(&number) {
                    let from = std::mem::replace(&mut page.frame, frame);
                    left.extend(page.device.take());
                    table.copy(from, frame);
                }
            }
        }
        moved + self.release(left)
    }

    fn release(&self, left: Vec<Place>) -> u64 {
        let moved = left.len() as u64;
        self.moves.fetch_add(moved, Ordering::SeqCst);
        for (device, at) in left {
            device.released(at, 1);
        }
        moved
    }

    /// Lets the next move to a GPU end with an error, when pages have moved.
    pub fn fail_move(&self, errno: Errno) {
        *lock(&self.move_error) = Some(errno);
    }

    /// The word that a forked child reads in a page that only it has.
    fn child_reads(&self, page: u64) -> u64 {
        let frame = lock(&self.table).child[&page].frame;
        self.load(frame)
    }

    /// The child unmaps its pages.
    pub fn end_child(&self) {
        let pages = std::mem::take(&mut lock(&self.table).child);
        self.let_go(pages.into_values().collect());
    }

    /// The memory that a page is in: a `gpu_id`, or 0 for system memory.
    pub fn location(&self, page: u64) -> Option<u32> {
        let table = lock(&self.table);
        table.pages.get(&page).map(|page| page.device.as_ref().map_or(0, |(device, _)| device.gpu_id()))
    }

    /// How many pages are in VRAM.
    pub fn device_pages(&self) -> usize {
        lock(&self.table).pages.values().filter(|page| page.device.is_some()).count()
    }

    /// The frame of a page for the CPU: private memory comes back first.
    fn touch(&self, page: u64) -> u64 {
        let device = lock(&self.table).pages.get(&page).and_then(|page| page.device.clone());
        if let Some((device, at)) = device.filter(|(device, _)| !device.coherent()) {
            device.came_back(at, 1);
            self.move_out(span(page, 1));
        }
        self.frame(page).unwrap_or_else(|| panic!("the CPU accesses page {page:#x}, which is not mapped"))
    }

    /// The CPU writes to a page.
    pub fn cpu_write(&self, page: u64, word: u64) {
        let frame = self.touch(page);
        self.store(frame, word);
    }

    /// The CPU reads a page.
    pub fn cpu_read(&self, page: u64) -> u64 {
        let frame = self.touch(page);
        self.load(frame)
    }

    /// The CPU writes a word of its own to each page: its number, three times.
    pub fn fill(&self, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| self.cpu_write(page, page * 3));
    }

    /// Checks that the CPU reads [these](Self::fill) words.
    #[track_caller]
    pub fn check_filled(&self, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| assert_eq!(self.cpu_read(page), page * 3, "page {page:#x}"));
    }

    /// Checks that a forked child reads [these](Self::fill) words.
    #[track_caller]
    pub fn check_child(&self, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| assert_eq!(self.child_reads(page), page * 3, "page {page:#x}"));
    }
}
