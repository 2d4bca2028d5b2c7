// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Page-table entries in the gfx9 format (`AMDGPU_PTE_*`, `AMDGPU_PDE_*` of the amdgpu driver).
//!
//! | bits | meaning |
//! | --- | --- |
//! | 0 | valid |
//! | 1 | system memory (a physical address); clear: VRAM (a fabric address) |
//! | 2 | snooped |
//! | 4, 5, 6 | executable, readable, writable |
//! | 11:7 | fragment: the entry belongs to 2^n pages that are contiguous and aligned on both sides |
//! | 47:12 | address (a directory entry: 47:6) |
//! | 54 | in a level-0 directory: the entry maps 2 MiB itself |
//! | 58:57 | memory type: how caches of the GPU treat it |

use crate::base::addr::{FabricAddr, PhysAddr};

/// The entry holds something.
pub const VALID: u64 = 1 << 0;
/// The address is physical system memory.
pub const SYSTEM: u64 = 1 << 1;
/// CPU caches are snooped.
pub const SNOOPED: u64 = 1 << 2;
/// Instructions may be fetched.
pub const EXECUTABLE: u64 = 1 << 4;
/// Reads are allowed.
pub const READABLE: u64 = 1 << 5;
/// Writes are allowed.
pub const WRITEABLE: u64 = 1 << 6;
/// A directory entry that maps 2 MiB itself.
pub const HUGE: u64 = 1 << 54;

/// Memory type UC: not cached by the GPU. Without it NC: cached, coherent at the ends of kernels.
pub const UNCACHED: u64 = 3 << 57;

const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
const FRAGMENT_SHIFT: u32 = 7;
/// The largest fragment written: 2 MiB; above that a huge entry says the same.
pub const MAX_FRAGMENT: u32 = 9;

/// Where an entry points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// System memory.
    System(PhysAddr),
    /// VRAM of some GPU of the hive.
    Vram(FabricAddr),
}

impl Target {
    /// The address bits and, for system memory, the bit that marks it.
    pub const fn bits(self) -> u64 {
        match self {
            Self::System(at) => (at.0 & ADDRESS) | SYSTEM | SNOOPED,
            Self::Vram(at) => at.0 & ADDRESS,
        }
    }
}

/// A leaf entry. `access` is of [`READABLE`], [`WRITEABLE`], [`EXECUTABLE`], [`UNCACHED`];
/// `fragment` is the log2 of its pages.
pub const fn leaf(target: Target, access: u64, fragment: u32) -> u64 {
    with_fragment(target.bits() | access | VALID, fragment)
}

/// The address in an entry.
pub const fn address(entry: u64) -> u64 {
    entry & ADDRESS
}

/// A leaf entry that has no fragment yet, with one of 2^`fragment` pages.
pub const fn with_fragment(entry: u64, fragment: u32) -> u64 {
    entry | (fragment as u64) << FRAGMENT_SHIFT
}

/// A leaf entry as it would be of its own page alone.
pub const fn without_fragment(entry: u64) -> u64 {
    entry & !(0x1f << FRAGMENT_SHIFT) & !HUGE
}

/// The log2 of the pages that a leaf entry belongs to.
pub const fn fragment(entry: u64) -> u32 {
    ((entry >> FRAGMENT_SHIFT) & 0x1f) as u32
}

/// A directory entry that points at a table in VRAM.
pub const fn directory(table: FabricAddr) -> u64 {
    (table.0 & ADDRESS) | VALID
}
