// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The seam for data that moves between system memory and a GPU's.
//!
//! The driver owns a GPU's VRAM and decides what goes there; the host knows what a CPU page is and
//! moves it. A page that has moved keeps its CPU address. *Coherent* memory the CPU and other
//! devices then use in place; *private* memory they cannot reach, and the host brings a page back
//! when the CPU touches it. (MEMORY_DEVICE_COHERENT and MEMORY_DEVICE_PRIVATE are Linux's words for
//! the two.)
//!
//! The owner of a page of VRAM: the driver takes it from its allocator and offers it in
//! `migrate_to_device`. If a page moves there, the host owns it, through any number of forks and
//! mappings. The host gives it back by [`DeviceMemory::released`] when the last use has gone: moved
//! back, unmapped, or the process exited. Faulting a span returns the pages' present places
//! ([`crate::seams::address_space::Page::target`]).

use crate::base::addr::VramOffset;

/// What a host can move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Migration {
    /// Pages can be in a GPU's memory with the CPU using them there.
    pub coherent: bool,
    /// Pages can be in a GPU's memory out of the CPU's reach.
    pub private: bool,
}

/// What a machine's GPUs do with pages that are in their memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// The CPU and other devices use them there.
    #[default]
    Coherent,
    /// They come back when the CPU touches them.
    Private,
}

impl Migration {
    /// Whether pages can be in memory of this kind.
    pub const fn has(self, kind: Kind) -> bool {
        match kind {
            Kind::Coherent => self.coherent,
            Kind::Private => self.private,
        }
    }
}

/// A GPU's memory, as a host sees it that puts pages there. Outlives every page in it.
pub trait DeviceMemory: Send + Sync {
    /// Whose memory.
    fn gpu_id(&self) -> u32;

    /// Whether the CPU uses it in place.
    fn coherent(&self) -> bool;

    /// `pages` pages of private memory from `at` on have moved back to system memory because the
    /// CPU touched them. For the record, and before they are [`released`](Self::released). Called
    /// from a context that may sleep, perhaps with the host's lock of the address space, and with
    /// no lock of the driver.
    fn came_back(&self, at: VramOffset, pages: u64) {
        let _ = (at, pages);
    }

    /// The host does not use `pages` pages from `at` on any more; no CPU mapping of them is left.
    /// The contents are nobody's. Called from a context that may sleep, without locks that a
    /// migration takes.
    fn released(&self, at: VramOffset, pages: u64);
}
