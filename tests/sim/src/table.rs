// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The table of pages. Each page is a frame that no other page ever has, with one word of contents.
//!
//! Frames of pages that are mapped together are aligned as their addresses are in 2 MiB, so that
//! large entries come about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use vkfd_driver::base::addr::VramOffset;
use vkfd_driver::seams::device_memory::DeviceMemory;

/// The first frame: above the VRAM of all GPUs, below the driver's own memory.
const FIRST_FRAME: u64 = 1 << 28;
/// Pages of a large entry.
const BLOCK: u64 = 512;

/// A page in a GPU's memory.
pub(crate) type Place = (Arc<dyn DeviceMemory>, VramOffset);

#[derive(Clone)]
pub(crate) struct CpuPage {
    pub(crate) frame: u64,
    pub(crate) writable: bool,
    /// In a GPU's memory, which the frame is of.
    pub(crate) device: Option<Place>,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) pages: BTreeMap<u64, CpuPage>,
    /// Pages that only a forked child still has.
    pub(crate) child: BTreeMap<u64, CpuPage>,
    /// The frames of `pages`.
    pub(crate) live: BTreeSet<u64>,
    /// The words that are not zero, by frame.
    pub(crate) data: BTreeMap<u64, u64>,
    frames: u64,
}

impl Table {
    pub(crate) fn remove(&mut self, number: u64) -> Option<CpuPage> {
        let page = self.pages.remove(&number)?;
        self.live.remove(&page.frame);
        Some(page)
    }

    pub(crate) fn insert(&mut self, number: u64, page: CpuPage) -> Option<CpuPage> {
        let old = self.remove(number);
        self.live.insert(page.frame);
        self.pages.insert(number, page);
        old
    }

    /// Frames for pages from `first` on.
    pub(crate) fn fresh_frames(&mut self, first: u64, count: u64) -> u64 {
        let at = self.frames.next_multiple_of(BLOCK) + first % BLOCK;
        self.frames = at + count;
        FIRST_FRAME + at
    }

    /// Fresh pages, all of them or those that are there already. The old ones.
    pub(crate) fn fresh(&mut self, first: u64, count: u64, writable: Option<bool>) -> Vec<CpuPage> {
        let frame = self.fresh_frames(first, count);
        let mut old = Vec::new();
        for (number, frame) in (first..first + count).zip(frame..) {
            let Some(writable) = writable.or_else(|| Some(self.pages.get(&number)?.writable)) else { continue };
            old.extend(self.insert(number, CpuPage { frame, writable, device: None }));
        }
        old
    }

    /// A frame's word goes to another frame.
    pub(crate) fn copy(&mut self, from: u64, to: u64) {
        if let Some(word) = self.data.remove(&from) {
            self.data.insert(to, word);
        }
    }

    /// A page of [`pages`](Self::pages) and its word are at another frame from now on. Where they
    /// were, if that was in a GPU's memory.
    pub(crate) fn put(&mut self, number: u64, frame: u64, device: Option<Place>) -> Option<Place> {
        let page = self.remove(number)?;
        self.copy(page.frame, frame);
        self.insert(number, CpuPage { frame, device, ..page });
        page.device
    }
}
