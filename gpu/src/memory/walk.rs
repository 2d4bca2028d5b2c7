// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The page-table walker.
//!
//! Reads at most four words of VRAM, none of which it keeps; what is kept is in
//! [`tlb`](crate::state::tlb). The driver may change tables meanwhile: each entry is read once,
//! atomically.
//!
//! The tables have one of two forms, and say themselves which. With PDE_PTE, an entry of PDB0 is a
//! table unless the bit makes it a page. Below an entry of PDB1 with a block fragment it is a page
//! unless FURTHER makes it a table; AMD's driver uses that form on MI200 (`translate_further`).

use crate::base::fault::{Access, FaultReason};
use crate::memory::fabric::{Fabric, FabricAddr};
use crate::memory::gart::Gart;
use crate::memory::pte::{
    Entry, EntryFlags, Level, Target, FRAGMENT_MASK, HUGE_BYTES, PAGE_BYTES, PAGE_SHIFT, VA_BITS,
};

/// What a walk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The entry as it stands in the table.
    pub entry: Entry,
    /// The level it was found at: [`Level::Ptb`], or [`Level::Pdb0`] for a 2 MiB page.
    pub level: Level,
    /// First GPU address of the block this entry speaks for: its page, or its fragment.
    pub base: u64,
    /// Bytes of the block; a power of two, at most 2 MiB.
    pub span: u64,
    /// Where the first byte of the block is.
    pub target: Target,
}

impl Translation {
    /// Whether the entry permits `access`.
    pub fn permits(&self, access: Access) -> bool {
        self.entry.flags().contains(match access {
            Access::Read => EntryFlags::READABLE,
            Access::Write => EntryFlags::WRITEABLE,
            Access::Execute => EntryFlags::EXECUTABLE,
        })
    }
}

/// A walk that ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no translation for GPU address {va:#x}: {reason:?} at {level:?}, entry {:#x}", .entry.0)]
pub struct WalkError {
    /// The address.
    pub va: u64,
    /// [`FaultReason::NotPresent`], or [`FaultReason::NoMemory`] if a table lies outside VRAM.
    pub reason: FaultReason,
    /// The level that failed.
    pub level: Level,
    /// The entry at that level; 0 if it could not be read.
    pub entry: Entry,
}

/// A walk that came to its end, and the last table that it read, if that has entries of 4 KiB. A
/// later walk for the same 2 MiB can begin there.
pub(crate) struct Walked {
    pub(crate) found: Translation,
    pub(crate) table: Option<FabricAddr>,
}

/// Translates `va` through the tables at `root`.
#[inline]
pub(crate) fn walk(fabric: &Fabric, root: Option<FabricAddr>, va: u64) -> Result<Walked, WalkError> {
    match root.filter(|_| va >> VA_BITS == 0) {
        Some(root) => descend(fabric, Level::Pdb2, root, va),
        None => Err(WalkError { va, reason: FaultReason::NotPresent, level: Level::Pdb2, entry: Entry(0) }),
    }
}

/// Translates `va` through the last-level table of its 2 MiB.
pub(crate) fn walk_leaf(fabric: &Fabric, table: FabricAddr, va: u64) -> Result<Walked, WalkError> {
    descend(fabric, Level::Ptb, table, va)
}

/// Most bytes that [`extend`] makes of a block, give or take one: what an access touches at most.
const RUN_BYTES: u64 = 256 << 10;

/// Takes the following blocks into the one that was found, as long as their entries are alike and
/// their memory continues it. So pages that lie side by side cost one walk, even if their addresses
/// are not aligned for a fragment, as in processors' TLBs. Stays within the table.
pub(crate) fn extend(fabric: &Fabric, walked: &mut Walked) {
    let (Some(table), found) = (walked.table, &mut walked.found) else { return };
    while found.span < RUN_BYTES {
        let end = found.base + found.span;
        let Some(index) = Some(Level::Ptb.index(end)).filter(|index| *index != 0) else { return };
        let word = fabric.resolve(table).and_then(|(vram, offset)| vram.read_u64(offset + index * 8).ok());
        let Some(entry) = word.map(Entry).filter(|entry| entry.flags() == found.entry.flags()) else { return };
        if entry.target() != found.target.offset(found.span) {
            return;
        }
        let next = page(entry, end);
        found.span = next.base + next.span - found.base;
    }
}

fn descend(fabric: &Fabric, mut level: Level, mut table: FabricAddr, va: u64) -> Result<Walked, WalkError> {
    let fail = |reason, level, entry| Err(WalkError { va, reason, level, entry: Entry(entry) });
    // What makes an entry a page: its PDE_PTE is set, or below a directory with a block fragment
    // its FURTHER is not.
    let (mut mark, mut page_has) = (EntryFlags::PDE_PTE.bits(), EntryFlags::PDE_PTE.bits());
    loop {
        let word = fabric.resolve(table).and_then(|(vram, offset)| vram.read_u64(offset + level.index(va) * 8).ok());
        let Some(word) = word else {
            return fail(FaultReason::NoMemory, level, 0);
        };
        let entry = Entry(word);
        if !entry.is_valid() {
            return fail(FaultReason::NotPresent, level, word);
        }
        let Some(below) = level.next() else {
            return Ok(Walked { found: page(entry, va), table: Some(table) });
        };
        if word & mark == page_has {
            // 1 GiB pages do not exist on gfx9 with four levels.
            return match level {
                Level::Pdb0 => Ok(Walked { found: huge_page(entry, va), table: None }),
                _ => fail(FaultReason::NotPresent, level, word),
            };
        }
        let Some(addr) = entry.table_addr() else {
            return fail(FaultReason::NoMemory, level, word);
        };
        (mark, page_has) = match level == Level::Pdb1 && entry.block() != 0 {
            true => (EntryFlags::FURTHER.bits(), 0),
            false => (EntryFlags::PDE_PTE.bits(), EntryFlags::PDE_PTE.bits()),
        };
        (table, level) = (addr, below);
    }
}

/// Translates an address of VMID 0.
pub(crate) fn walk_gart(fabric: &Fabric, gart: &Gart, va: u64) -> Result<Walked, WalkError> {
    let fail = |reason, entry| Err(WalkError { va, reason, level: Level::Ptb, entry: Entry(entry) });
    let found = |found| Ok(Walked { found, table: None });
    if let Some(offset) = va.checked_sub(gart.frame_buffer).filter(|offset| *offset < gart.frame_buffer_bytes) {
        // The aperture has no entries: it stands for those that permit everything.
        let block = offset & !(HUGE_BYTES - 1);
        let target = Target::Vram(FabricAddr(block));
        let flags = EntryFlags::READABLE | EntryFlags::WRITEABLE | EntryFlags::EXECUTABLE;
        let span = HUGE_BYTES.min(gart.frame_buffer_bytes - block);
        let base = va - (offset - block);
        return found(Translation { entry: Entry::page(target, flags, 0), level: Level::Pdb0, base, span, target });
    }
    if va < gart.first || va > gart.last {
        return fail(FaultReason::NotPresent, 0);
    }
    let table = FabricAddr(gart.table.0.wrapping_add(((va - gart.first) >> PAGE_SHIFT) * 8));
    let word = fabric.resolve(table).and_then(|(vram, offset)| vram.read_u64(offset).ok());
    match word.map(Entry) {
        None => fail(FaultReason::NoMemory, 0),
        Some(entry) if !entry.is_valid() => fail(FaultReason::NotPresent, entry.0),
        // One page at a time: the driver aligns nothing here for fragments.
        Some(entry) => {
            let base = va & !(PAGE_BYTES - 1);
            found(Translation { entry, level: Level::Ptb, base, span: PAGE_BYTES, target: entry.target() })
        }
    }
}

/// The block of a 2 MiB entry. Its memory begins at any page: a driver that maps contiguous memory
/// at an address of other alignment makes such entries.
fn huge_page(entry: Entry, va: u64) -> Translation {
    let base = va & !(HUGE_BYTES - 1);
    Translation { entry, level: Level::Pdb0, base, span: HUGE_BYTES, target: entry.target() }
}

/// The block of a 4 KiB entry. As in hardware, the fragment is believed: the pages around this one
/// are taken to be contiguous with it without looking at their entries. Fragments over 2 MiB count
/// as 2 MiB.
fn page(entry: Entry, va: u64) -> Translation {
    debug_assert!(u64::from(entry.fragment()) <= FRAGMENT_MASK);
    let page = va & !(PAGE_BYTES - 1);
    let span = PAGE_BYTES << entry.fragment().min(21 - PAGE_SHIFT);
    let base = va & !(span - 1);
    let addr = match entry.target() {
        Target::System(pa) => pa.0,
        Target::Vram(addr) => addr.0,
    };
    // A fragment that would begin below address 0 is nonsense; use the page alone.
    let (base, span) = if addr >= page - base { (base, span) } else { (page, PAGE_BYTES) };
    let target = entry.target().offset((page - base).wrapping_neg());
    Translation { entry, level: Level::Ptb, base, span, target }
}
