// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host's own pages between two places. Pages taken from the client stay here while they are
//! copied to a GPU, and for a while longer. The client gets them again when pages come back,
//! because the kernel's allocating and freeing costs more than the copy.
//!
//! One area of anonymous memory, divided into slots of 2 MiB. A slot is registered with the mover's
//! descriptor only while pages are moved into it. Only the worker touches it.

use crate::sys;
use std::io;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, HUGE};

/// Slots; what they hold while nothing moves is at most [`KEPT`] of them.
const SLOTS: usize = 64;
/// Full slots that are kept: 64 MiB.
const KEPT: usize = 32;

/// What a slot that is given back holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holds {
    /// All its pages.
    Everything,
    /// Not a page: what can be known only of a slot that never had one, or lost each to somebody.
    Nothing,
    /// Some, perhaps.
    Something,
}

/// A slot that its holder has alone.
#[derive(Debug)]
pub(super) struct Slot {
    number: usize,
    pub(super) span: CpuSpan,
}

/// The slots.
pub(super) struct Stash {
    base: CpuVa,
    empty: Vec<usize>,
    full: Vec<usize>,
}

impl Stash {
    /// # Errors
    /// What the system calls say.
    pub(super) fn new() -> io::Result<Self> {
        let bytes = SLOTS as u64 * HUGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        let area = sys::map_anonymous(vkfd_driver::base::addr::index(bytes + HUGE), flags)?;
        let base = CpuVa((area.as_ptr().expose_provenance() as u64).next_multiple_of(HUGE));
        // So that neither of the lists ever allocates.
        let mut empty = Vec::with_capacity(SLOTS);
        empty.extend((0..SLOTS).rev());
        Ok(Self { base, empty, full: Vec::with_capacity(SLOTS) })
    }

    /// Where its memory is.
    pub(super) fn memory(&self) -> CpuSpan {
        CpuSpan::between(self.base, CpuVa(self.base.0 + SLOTS as u64 * HUGE))
    }

    fn slot(&self, number: usize) -> Slot {
        let start = CpuVa(self.base.0 + number as u64 * HUGE);
        Slot { number, span: CpuSpan::between(start, CpuVa(start.0 + HUGE)) }
    }

    /// A slot without pages.
    pub(super) fn take_empty(&mut self) -> Option<Slot> {
        if self.empty.is_empty() {
            let number = self.full.pop()?;
            self.discard(number);
        }
        self.empty.pop().map(|number| self.slot(number))
    }

    /// A slot with all its pages, whatever is in them.
    pub(super) fn take_full(&mut self) -> Option<Slot> {
        self.full.pop().map(|number| self.slot(number))
    }

    /// Gives a slot back.
    pub(super) fn put(&mut self, slot: Slot, holds: Holds) {
        match holds {
            Holds::Everything if self.full.len() < KEPT => self.full.push(slot.number),
            // Even to discard nothing takes a while, in which the kernel gives the page table back.
            Holds::Nothing => self.empty.push(slot.number),
            _ => self.discard(slot.number),
        }
    }

    /// Frees all pages that are kept.
    pub(super) fn trim(&mut self) {
        while let Some(number) = self.full.pop() {
            self.discard(number);
        }
    }

    pub(super) fn is_trimmed(&self) -> bool {
        self.full.is_empty()
    }

    fn discard(&mut self, number: usize) {
        let slot = self.slot(number);
        // SAFETY: the stash's own memory, whose contents are nobody's.
        unsafe { sys::discard(slot.span.start().0, slot.span.bytes()) };
        self.empty.push(number);
    }
}
