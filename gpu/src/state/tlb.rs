// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The TLB: a queue's cache of translations.
//!
//! Each queue thread owns a TLB, which needs no lock. It is four-way set-associative, with a
//! separate table for blocks of 2 MiB. Entries carry the VMID's flush epoch at the time of the walk
//! and are good for exactly that epoch. Only a flush or many other translations remove them. If a
//! driver changes an entry and forgets to flush, the old page is used, as on hardware.
//!
//! The last few translations are looked at first, whatever the address. The table has a run of
//! pages only under the 16 KiB of its first lookup.
//!
//! Besides translations it caches where the last-level tables are, under the same rule: a walk in 2
//! MiB that were walked lately reads one word instead of four.

use crate::memory::fabric::FabricAddr;
use crate::memory::pte::{HUGE_BYTES, PAGE_SHIFT};
use crate::memory::walk::{Translation, Walked};
use crate::state::vmid::Epoch;

const WAYS: usize = 4;
/// Translations looked at first.
const RECENT: usize = 4;
/// Pages, as a power of two, that are looked up in one set. Neighbours that are one translation are
/// found under each of their addresses. A set has a way for each neighbour otherwise.
const NEAR: u32 = 2;
/// Last-level tables remembered, one a set.
const TABLES: usize = 64;

/// Translations of one queue.
pub(crate) struct Tlb {
    recent: [Option<(Epoch, Translation)>; RECENT],
    /// Which of `recent` were used since they were last passed over, and the one to look at next
    /// for replacement.
    used: [bool; RECENT],
    hand: usize,
    pages: Table,
    blocks: Table,
    /// The epoch of the last block of 2 MiB that was cached: in others there is none to find.
    huge: Option<Epoch>,
    tables: [Option<(Epoch, u64, FabricAddr)>; TABLES],
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

/// The translation in `slot` if it is of this epoch and covers `va`.
fn serving(slot: &Option<(Epoch, Translation)>, va: u64, epoch: Epoch) -> Option<Translation> {
    let (at, hit) = (*slot)?;
    (at == epoch && va.wrapping_sub(hit.base) < hit.span).then_some(hit)
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
        self.set(va)?.ways.iter().find_map(|way| serving(way, va, epoch))
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
        Tlb {
            recent: [None; RECENT],
            used: [false; RECENT],
            hand: 0,
            pages: Table::new(entries, PAGE_SHIFT + NEAR),
            blocks: Table::new(entries / 4, HUGE_BYTES.trailing_zeros()),
            huge: None,
            tables: [None; TABLES],
        }
    }

    /// The cached translation of `va`, if it is of this epoch.
    pub(crate) fn find(&mut self, va: u64, epoch: Epoch) -> Option<Translation> {
        for (slot, used) in self.recent.iter().zip(&mut self.used) {
            if let Some(hit) = serving(slot, va, epoch) {
                *used = true;
                return Some(hit);
            }
        }
        let block = if self.huge == Some(epoch) { self.blocks.find(va, epoch) } else { None };
        let hit = block.or_else(|| self.pages.find(va, epoch))?;
        self.remember(epoch, hit);
        Some(hit)
    }

    fn remember(&mut self, epoch: Epoch, translation: Translation) {
        while std::mem::take(&mut self.used[self.hand]) {
            self.hand = (self.hand + 1) % RECENT;
        }
        self.recent[self.hand] = Some((epoch, translation));
        self.hand = (self.hand + 1) % RECENT;
    }

    /// The last-level table for `va`, if it was seen in this epoch.
    pub(crate) fn table(&self, va: u64, epoch: Epoch) -> Option<FabricAddr> {
        let (at, block, table) = (*self.tables.get(Self::table_set(va))?)?;
        (at == epoch && block == va / HUGE_BYTES).then_some(table)
    }

    fn table_set(va: u64) -> usize {
        usize::try_from(va / HUGE_BYTES % TABLES as u64).unwrap_or(0)
    }

    /// Caches what a walk for `va` found.
    pub(crate) fn insert(&mut self, va: u64, epoch: Epoch, walked: &Walked) {
        self.remember(epoch, walked.found);
        if walked.found.span == HUGE_BYTES {
            self.blocks.insert(va, epoch, walked.found);
            self.huge = Some(epoch);
        } else {
            self.pages.insert(va, epoch, walked.found);
        }
        if let (Some(table), Some(slot)) = (walked.table, self.tables.get_mut(Self::table_set(va))) {
            *slot = Some((epoch, va / HUGE_BYTES, table));
        }
    }
}
