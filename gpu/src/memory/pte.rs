// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The gfx9 page-table format: 48-bit addresses, four levels of 512 eight-byte entries.
//!
//! | level | index bits | entry covers |
//! |-------|-----------|--------------|
//! | PDB2  | 47:39     | 512 GiB      |
//! | PDB1  | 38:30     | 1 GiB        |
//! | PDB0  | 29:21     | 2 MiB        |
//! | PTB   | 20:12     | 4 KiB        |
//!
//! The bits are those of `amdgpu_vm.h` (AMDGPU_PTE_*, AMDGPU_PDE_*) for VEGA10. This is the GPU's
//! reading of the format; the driver has its own encoder, so that a mistake on either side shows.

use crate::memory::bus::PhysAddr;
use crate::memory::fabric::FabricAddr;
use bitflags::bitflags;

bitflags! {
    /// Flag bits of page-table and page-directory entries.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EntryFlags: u64 {
        /// The entry means something.
        const VALID = 1 << 0;
        /// The address is a system physical address rather than a fabric address.
        const SYSTEM = 1 << 1;
        /// Accesses are coherent with the CPU; the software GPU always is.
        const SNOOPED = 1 << 2;
        /// Instructions may be fetched.
        const EXECUTABLE = 1 << 4;
        /// Reads are permitted.
        const READABLE = 1 << 5;
        /// Writes are permitted.
        const WRITEABLE = 1 << 6;
        /// Partially resident texture. Decoded only: an entry that has it without VALID faults like
        /// any other.
        const PRT = 1 << 51;
        /// A directory entry in PDB0 that is itself the entry of a 2 MiB page.
        const PDE_PTE = 1 << 54;
        /// Below a directory with blocks ([`Entry::block`]): the entry is a table rather than a
        /// page ("translate further").
        const FURTHER = 1 << 56;
    }
}

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes of a page mapped by one PDB0 entry.
pub const HUGE_BYTES: u64 = 1 << 21;
/// Entries of a table of any level.
pub const TABLE_ENTRIES: u64 = 512;
/// Bits of a GPU virtual address.
pub const VA_BITS: u32 = 48;
/// Address bits of a page-table entry.
pub const PTE_ADDR_MASK: u64 = 0x0000_ffff_ffff_f000;
/// Address bits of a directory entry.
pub const PDE_ADDR_MASK: u64 = 0x0000_ffff_ffff_ffc0;
/// Lowest bit of the fragment field (11:7): the entry is one of 2^fragment pages that are
/// contiguous and lie at an address aligned to that.
pub const FRAGMENT_SHIFT: u32 = 7;
/// The fragment field, shifted down.
pub const FRAGMENT_MASK: u64 = 0x1f;
/// Lowest bit of a directory entry's block fragment (63:59). If that is not 0, the table below
/// holds pages of that many pages, or of fewer, and tables where an entry says so.
pub const BLOCK_SHIFT: u32 = 59;
/// Lowest bit of the memory type (58:57), which the software GPU ignores.
pub const MTYPE_SHIFT: u32 = 57;

/// Level of a table, from the root down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The root.
    Pdb2,
    Pdb1,
    /// Its entries are tables or 2 MiB pages.
    Pdb0,
    /// Its entries are 4 KiB pages.
    Ptb,
}

impl Level {
    /// log2 of the bytes one entry covers.
    pub const fn shift(self) -> u32 {
        match self {
            Level::Pdb2 => 39,
            Level::Pdb1 => 30,
            Level::Pdb0 => 21,
            Level::Ptb => 12,
        }
    }

    /// Index of `va`'s entry in a table of this level.
    pub const fn index(self, va: u64) -> u64 {
        (va >> self.shift()) % TABLE_ENTRIES
    }

    /// The level below.
    pub const fn next(self) -> Option<Level> {
        match self {
            Level::Pdb2 => Some(Level::Pdb1),
            Level::Pdb1 => Some(Level::Pdb0),
            Level::Pdb0 => Some(Level::Ptb),
            Level::Ptb => None,
        }
    }
}

/// Where an entry points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// System memory.
    System(PhysAddr),
    /// Some GPU's VRAM.
    Vram(FabricAddr),
}

impl Target {
    /// The address `bytes` further on.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Target {
        match self {
            Target::System(pa) => Target::System(PhysAddr(pa.0.wrapping_add(bytes))),
            Target::Vram(addr) => Target::Vram(FabricAddr(addr.0.wrapping_add(bytes))),
        }
    }
}

/// A page-table or page-directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    /// A directory entry that points at a table in VRAM.
    pub const fn table(addr: FabricAddr) -> Entry {
        Entry((addr.0 & PDE_ADDR_MASK) | EntryFlags::VALID.bits())
    }

    /// A 4 KiB entry, valid, with the given fragment exponent; `flags` gives the permissions.
    pub const fn page(target: Target, flags: EntryFlags, fragment: u8) -> Entry {
        let (addr, system) = match target {
            Target::System(pa) => (pa.0, EntryFlags::SYSTEM.bits()),
            Target::Vram(addr) => (addr.0, 0),
        };
        let fragment = (fragment as u64 & FRAGMENT_MASK) << FRAGMENT_SHIFT;
        Entry((addr & PTE_ADDR_MASK) | system | fragment | flags.bits() | EntryFlags::VALID.bits())
    }

    /// A directory entry whose table holds pages of 2^`block` pages each.
    pub const fn block_table(addr: FabricAddr, block: u8) -> Entry {
        Entry(Entry::table(addr).0 | (block as u64) << BLOCK_SHIFT)
    }

    /// Block fragment of a directory entry: its table holds pages of 2^n pages. 0 if it does not.
    pub const fn block(self) -> u64 {
        self.0 >> BLOCK_SHIFT
    }

    /// A 2 MiB entry for PDB0.
    pub const fn huge_page(target: Target, flags: EntryFlags) -> Entry {
        Entry(Entry::page(target, flags, 9).0 | EntryFlags::PDE_PTE.bits())
    }

    /// Flag bits.
    pub const fn flags(self) -> EntryFlags {
        EntryFlags::from_bits_truncate(self.0)
    }

    /// Whether the valid bit is set.
    pub const fn is_valid(self) -> bool {
        self.0 & EntryFlags::VALID.bits() != 0
    }

    /// Fragment exponent: 2^n pages.
    pub const fn fragment(self) -> u32 {
        // A 5-bit field.
        ((self.0 >> FRAGMENT_SHIFT) & FRAGMENT_MASK) as u32
    }

    /// Whether a fault at this page is final, also where a process's faults wait for the driver.
    /// AMD's driver writes such an entry where it has nothing to map
    /// (`AMDGPU_VM_NORETRY_FLAGS_TF`).
    pub const fn is_final(self) -> bool {
        let marks = EntryFlags::VALID.union(EntryFlags::SYSTEM).union(EntryFlags::PRT);
        let permissions = EntryFlags::READABLE.union(EntryFlags::WRITEABLE).union(EntryFlags::EXECUTABLE);
        self.flags().contains(marks) && !self.flags().intersects(permissions)
    }

    /// Address of the table this directory entry points at; `None` if it is in system memory, which
    /// this GPU does not walk.
    pub const fn table_addr(self) -> Option<FabricAddr> {
        if self.0 & EntryFlags::SYSTEM.bits() == 0 {
            Some(FabricAddr(self.0 & PDE_ADDR_MASK))
        } else {
            None
        }
    }

    /// Where this page entry points.
    pub const fn target(self) -> Target {
        let addr = self.0 & PTE_ADDR_MASK;
        if self.0 & EntryFlags::SYSTEM.bits() != 0 {
            Target::System(PhysAddr(addr))
        } else {
            Target::Vram(FabricAddr(addr))
        }
    }
}
