// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Address kinds. Each is its own type; arithmetic is checked and stays within the kind.
//!
//! The driver knows five. Two are virtual: the CPU's ([`CpuVa`]) and the GPU's ([`GpuVa`]). A
//! system physical address ([`PhysAddr`]) has the SYSTEM bit in a page-table entry. A fabric
//! address ([`FabricAddr`]) is VRAM for every GPU of the hive, and [`VramOffset`] is an offset into
//! one GPU's VRAM.
#![expect(clippy::arithmetic_side_effects, reason = "a span does not wrap, which its constructors check")]

use core::fmt;

/// Bytes in a page, for CPU and GPU alike.
pub const PAGE: u64 = 4096;
/// log2 of [`PAGE`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes that one page-table block (or one huge entry) covers.
pub const HUGE: u64 = 2 << 20;
/// The beginning of the page that an address is in.
pub const fn page_start(at: u64) -> u64 {
    at & !(PAGE - 1)
}

/// The beginning of the aligned [`HUGE`] bytes that an address is in, or that many bytes rounded
/// down to whole ones.
pub const fn block_start(at: u64) -> u64 {
    at & !(HUGE - 1)
}

/// Pages in [`HUGE`].
pub const HUGE_PAGES: u64 = HUGE / PAGE;

const _: () = assert!(usize::BITS == 64, "the driver is for 64-bit machines");

/// `u64` to `usize`; lossless on the 64-bit machines this builds for.
#[allow(clippy::cast_possible_truncation)] // asserted above
pub const fn index(n: u64) -> usize {
    n as usize
}

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// This address plus `bytes`, unless that wraps.
            pub fn checked_add(self, bytes: u64) -> Option<Self> {
                self.0.checked_add(bytes).map(Self)
            }

            /// Whether a page starts here.
            pub const fn is_page_aligned(self) -> bool {
                self.0 % PAGE == 0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

address! {
    /// An address in a process's CPU address space.
    CpuVa
}
address! {
    /// An address in a GPU address space (a VM).
    GpuVa
}
address! {
    /// A system physical address, as the GPU's bus takes it.
    PhysAddr
}
address! {
    /// VRAM in the address space that all GPUs of a hive share.
    FabricAddr
}
address! {
    /// A byte offset into one GPU's VRAM.
    VramOffset
}

macro_rules! span {
    ($(#[$doc:meta])* $name:ident of $address:ident) => {
        $(#[$doc])*
        ///
        /// # Invariants
        /// `start + bytes` does not wrap.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name {
            start: u64,
            bytes: u64,
        }

        impl $name {
            /// Nothing, at 0.
            pub const EMPTY: Self = Self { start: 0, bytes: 0 };

            /// The span, unless its end wraps.
            pub fn new(start: $address, bytes: u64) -> Option<Self> {
                start.0.checked_add(bytes)?;
                Some(Self { start: start.0, bytes })
            }

            /// `[start, end)`; empty when `end` is not above `start`.
            pub fn between(start: $address, end: $address) -> Self {
                Self { start: start.0, bytes: end.0.saturating_sub(start.0) }
            }

            /// First address.
            pub const fn start(self) -> $address {
                $address(self.start)
            }

            /// One past the last address.
            pub const fn end(self) -> $address {
                $address(self.start + self.bytes)
            }

            /// Length in bytes.
            pub const fn bytes(self) -> u64 {
                self.bytes
            }

            /// Length in whole pages.
            pub const fn pages(self) -> u64 {
                self.bytes / PAGE
            }

            /// Whether start and length are page aligned and there is something in it.
            pub const fn is_whole_pages(self) -> bool {
                self.bytes != 0 && self.bytes % PAGE == 0 && self.start % PAGE == 0
            }

            /// Whether the two share a byte.
            pub const fn overlaps(self, other: Self) -> bool {
                self.start < other.start + other.bytes && other.start < self.start + self.bytes
            }

            /// What the two share; empty where that is nothing.
            pub fn overlap(self, other: Self) -> Self {
                Self::between(self.start().max(other.start()), self.end().min(other.end()))
            }

            /// Whether `at` lies inside.
            pub const fn contains(self, at: $address) -> bool {
                self.start <= at.0 && at.0 < self.start + self.bytes
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "[{:#x}, {:#x})", self.start, self.start + self.bytes)
            }
        }
    };
}

span! {
    /// Consecutive CPU virtual addresses.
    CpuSpan of CpuVa
}
span! {
    /// Consecutive GPU virtual addresses.
    GpuSpan of GpuVa
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_refuse_to_wrap_and_know_their_neighbours() {
        assert!(CpuSpan::new(CpuVa(u64::MAX - 10), 11).is_none());
        let a = CpuSpan::between(CpuVa(0x1000), CpuVa(0x3000));
        let b = CpuSpan::between(CpuVa(0x3000), CpuVa(0x4000));
        assert!(!a.overlaps(b) && !b.overlaps(a));
        assert!(a.overlaps(CpuSpan::between(CpuVa(0x2fff), CpuVa(0x3001))));
        assert!(a.contains(CpuVa(0x2fff)) && !a.contains(CpuVa(0x3000)));
        assert!(a.is_whole_pages() && !CpuSpan::between(CpuVa(0), CpuVa(0)).is_whole_pages());
    }
}
