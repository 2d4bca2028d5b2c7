// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ranges of memory: which there are, which there were, and what may be reached of them.
//!
//! There are two layers. A *block* is an object of the driver: whole pages, which page tables bound
//! anyway. An *allocation* is a part of a block that a runtime has given its program, to the byte.
//! A block of device memory that has held an allocation is the runtime's. There, bytes of no
//! allocation are out of bounds. In the host's memory a runtime also places objects of its own, so
//! that only the rest of an allocation's last page is out of bounds there.

use super::bits::Bits;
use std::sync::Arc;

/// A runtime gives out whole pages.
const PAGE: u64 = 4096;

/// A block.
#[derive(Clone, Debug)]
pub struct Block {
    pub va: u64,
    pub bytes: u64,
    /// It is the GPU's memory.
    pub device: bool,
    /// The program's processors may write it without anybody's notice.
    pub visible: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) va: u64,
    pub(super) bytes: u64,
    /// The call that allocated it.
    pub(super) by: Option<Arc<str>>,
    /// It is a block without allocations, in device memory; or an allocation.
    pub(super) bits: Option<Arc<Bits>>,
}

impl Live {
    pub(super) fn end(&self) -> u64 {
        self.va.saturating_add(self.bytes)
    }
}

/// A freed range.
#[derive(Clone, Debug)]
pub(super) struct Freed {
    pub(super) va: u64,
    pub(super) bytes: u64,
    pub(super) by: Option<Arc<str>>,
    pub(super) freed_by: Option<Arc<str>>,
}

impl Freed {
    fn contains(&self, va: u64) -> bool {
        va.wrapping_sub(self.va) < self.bytes
    }
}

/// A block, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) live: Live,
    pub(super) device: bool,
    pub(super) visible: bool,
    /// A runtime has placed an allocation in it.
    pub(super) managed: bool,
}

/// A copy of all ranges, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    pub(super) version: u64,
    pub(super) blocks: Vec<Held>,
    pub(super) allocations: Vec<Live>,
    pub(super) freed: Vec<Freed>,
    /// No range found no room.
    pub(super) complete: bool,
}

/// What is to be said about an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Beyond the bounds.
    Beyond,
    /// In freed memory.
    Freed,
}

fn below<T>(list: &[T], va: u64, start: impl Fn(&T) -> u64) -> Option<&T> {
    list.partition_point(|item| start(item) <= va).checked_sub(1).and_then(|at| list.get(at))
}

impl Map {
    fn allocation(&self, va: u64) -> Option<&Live> {
        below(&self.allocations, va, |live| live.va)
    }

    fn block(&self, va: u64) -> Option<&Held> {
        below(&self.blocks, va, |held| held.live.va).filter(|held| va < held.live.end())
    }

    /// The newest freed range at an address.
    pub(super) fn freed(&self, va: u64) -> Option<&Freed> {
        self.freed.iter().rev().find(|freed| freed.contains(va))
    }

    /// The allocation, or the block without any, that contains an address, and its bounds.
    pub(super) fn bounds(&self, va: u64) -> Option<(u64, u64)> {
        let inside = self.allocation(va).filter(|live| va < live.end());
        let inside = inside.or_else(|| self.block(va).filter(|held| !held.managed).map(|held| &held.live));
        inside.map(|live| (live.va, live.end()))
    }

    /// The nearest allocation or block.
    pub(super) fn nearest(&self, va: u64) -> Option<&Live> {
        let next = self.allocations.get(self.allocations.partition_point(|live| live.va <= va));
        let block = self.block(va);
        let managed = block.is_some_and(|held| held.managed);
        if !managed {
            return block
                .map(|held| &held.live)
                .or_else(|| below(&self.blocks, va, |held| held.live.va).map(|h| &h.live));
        }
        let distance =
            |live: &&Live| if live.va > va { live.va - va } else { (va - live.va).saturating_sub(live.bytes) };
        [self.allocation(va), next].into_iter().flatten().min_by_key(distance)
    }

    /// Judges `bytes` at an address. `missed`: the page tables have nothing there.
    pub(super) fn judge(&self, va: u64, bytes: u64, missed: bool) -> Verdict {
        let end = va.saturating_add(bytes);
        if !self.complete {
            return Verdict::Fine;
        }
        let allocation = self.allocation(va);
        if let Some(live) = allocation.filter(|live| va < live.end()) {
            return if end <= live.end() { Verdict::Fine } else { Verdict::Beyond };
        }
        let Some(block) = self.block(va) else {
            return if missed && self.freed(va).is_some() { Verdict::Freed } else { Verdict::Fine };
        };
        match (block.managed, block.device) {
            (false, _) if end <= block.live.end() => Verdict::Fine,
            (false, _) => Verdict::Beyond,
            (true, true) if self.freed(va).is_some() => Verdict::Freed,
            (true, true) => Verdict::Beyond,
            (true, false) => match allocation {
                Some(live) if va < live.end().next_multiple_of(PAGE) => Verdict::Beyond,
                _ => Verdict::Fine,
            },
        }
    }

    /// The bits that say which bytes at an address were written, and where in them the address is.
    pub(super) fn bits(&self, va: u64) -> Option<(&Arc<Bits>, u64)> {
        let live = self.allocation(va).filter(|live| va < live.end());
        let live = live.or_else(|| self.block(va).filter(|held| !held.managed).map(|held| &held.live))?;
        live.bits.as_ref().map(|bits| (bits, va - live.va))
    }

    /// Whether an address is the device's memory.
    pub(super) fn is_device(&self, va: u64) -> bool {
        self.block(va).is_none_or(|held| held.device)
    }
}
