// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The TLB: a queue's cache of translations.
//!
//! Each queue thread owns one, so it needs no lock. It is four-way set-associative, with a table of its own
//! for blocks of 2 MiB. Entries carry the VMID's flush epoch at the time of the walk and are good for exactly
//! that epoch: only a flush makes them go away (or many other translations), so a driver that changes an
//! entry and forgets to flush sees the old page used, as on hardware.

use crate::pte::{HUGE_BYTES, PAGE_SHIFT};
use crate::vmid::Epoch;
use crate::walk::Translation;

const WAYS: usize = 4;

/// Translations of one queue.
pub(crate) struct Tlb {
    pages: Table,
    blocks: Table,
}

#[derive(Clone, Copy, Default)]
struct Set {
    ways: [Option<(Epoch, Translation)>; WAYS],
    /// The way to replace next when all are in use.
    victim: usize,
}

struct Table {
    shift: u32,
    sets: Box<[Set]>,
}

impl Table {
    fn new(entries: usize, shift: u32) -> Table {
        let sets = entries.div_ceil(WAYS).max(1).next_power_of_two();
        Table { shift, sets: vec![Set::default(); sets].into_boxed_slice() }
    }

    /// The set of `va`. Hashed, since buffers tend to start at round addresses.
    fn set(&mut self, va: u64) -> Option<&mut Set> {
        let hash = (va >> self.shift).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let index = hash & (self.sets.len() as u64 - 1);
        self.sets.get_mut(usize::try_from(index).ok()?)
    }

    fn find(&mut self, va: u64, epoch: Epoch) -> Option<Translation> {
        let good = |&(at, hit): &(Epoch, Translation)| at == epoch && va.wrapping_sub(hit.base) < hit.span;
        self.set(va)?.ways.iter().flatten().find(|way| good(way)).map(|&(_, hit)| hit)
    }

    fn insert(&mut self, va: u64, epoch: Epoch, translation: Translation) {
        let Some(set) = self.set(va) else { return };
        let replaceable = |way: &Option<(Epoch, Translation)>| {
            way.is_none_or(|(at, old)| at != epoch || old.base == translation.base)
        };
        let free = set.ways.iter().position(replaceable);
        let way = free.unwrap_or_else(|| {
            set.victim = (set.victim + 1) % WAYS;
            set.victim
        });
        if let Some(slot) = set.ways.get_mut(way) {
            *slot = Some((epoch, translation));
        }
    }
}

impl Tlb {
    /// A TLB of at least `entries` for pages, and a quarter as many for 2 MiB blocks.
    pub(crate) fn new(entries: usize) -> Tlb {
        Tlb { pages: Table::new(entries, PAGE_SHIFT), blocks: Table::new(entries / 4, HUGE_BYTES.trailing_zeros()) }
    }

    /// The cached translation of `va`, if it is of this epoch.
    pub(crate) fn find(&mut self, va: u64, epoch: Epoch) -> Option<Translation> {
        self.blocks.find(va, epoch).or_else(|| self.pages.find(va, epoch))
    }

    /// Caches the translation that a walk for `va` found.
    pub(crate) fn insert(&mut self, va: u64, epoch: Epoch, translation: Translation) {
        let table = if translation.span == HUGE_BYTES { &mut self.blocks } else { &mut self.pages };
        table.insert(va, epoch, translation);
    }
}
