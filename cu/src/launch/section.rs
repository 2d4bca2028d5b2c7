// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The code between a barrier and the next ones, by the accesses in it.
//!
//! Where waves of a group only read LDS, or only write there, and the same is true of memory, none
//! of them sees how far another one is. [`super::Workgroup`] lets such waves run to their next
//! barrier one after the other.

/// The accesses that a wave may make before its next barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Section(u8);

impl Section {
    pub const NONE: Section = Section(0);
    pub const READS_LDS: Section = Section(1);
    pub const WRITES_LDS: Section = Section(2);
    pub const READS_MEMORY: Section = Section(4);
    pub const WRITES_MEMORY: Section = Section(8);
    /// All of them, as of code that nobody has read.
    pub const UNKNOWN: Section = Section(15);

    /// The accesses of both.
    #[must_use]
    pub const fn and(self, other: Section) -> Section {
        Section(self.0 | other.0)
    }

    /// Whether a wave may see how far others are: one reads and one writes the same kind of memory.
    #[must_use]
    pub const fn shows_order(self) -> bool {
        const LDS: u8 = Section::READS_LDS.and(Section::WRITES_LDS).0;
        const MEMORY: u8 = Section::READS_MEMORY.and(Section::WRITES_MEMORY).0;
        self.0 & LDS == LDS || self.0 & MEMORY == MEMORY
    }
}
