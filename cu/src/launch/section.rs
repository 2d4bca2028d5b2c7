// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The code between a barrier and the next ones, by the accesses in it.
//!
//! Waves of a group may read none of the bytes of LDS that others write, and only read memory or
//! only write it. Then none of them sees how far another one is. [`super::Workgroup`] lets such
//! waves run to their next barrier one after the other.

/// Bytes of LDS, from the first one to behind the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    from: u32,
    to: u32,
}

impl Span {
    const NOWHERE: Span = Span { from: u32::MAX, to: 0 };
    /// Bytes that nobody knows.
    pub const ANYWHERE: Span = Span { from: 0, to: u32::MAX };

    #[must_use]
    pub const fn new(from: u32, to: u32) -> Span {
        Span { from, to }
    }

    /// All from the first byte of both to the last one.
    const fn and(self, other: Span) -> Span {
        let from = if self.from < other.from { self.from } else { other.from };
        let to = if self.to > other.to { self.to } else { other.to };
        Span { from, to }
    }

    const fn meets(self, other: Span) -> bool {
        self.from < other.to && other.from < self.to
    }
}

/// The accesses that a wave may make before its next barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    reads_memory: bool,
    writes_memory: bool,
    /// The bytes of LDS that it reads, and those that it writes.
    read: Span,
    written: Span,
}

impl Section {
    pub const NONE: Section =
        Section { reads_memory: false, writes_memory: false, read: Span::NOWHERE, written: Span::NOWHERE };
    pub const READS_MEMORY: Section = Section { reads_memory: true, ..Section::NONE };
    pub const WRITES_MEMORY: Section = Section { writes_memory: true, ..Section::NONE };
    pub const READS_LDS: Section = Section::reads(Span::ANYWHERE);
    pub const WRITES_LDS: Section = Section::writes(Span::ANYWHERE);
    /// All of them, as of code that nobody has read.
    pub const UNKNOWN: Section =
        Section { reads_memory: true, writes_memory: true, read: Span::ANYWHERE, written: Span::ANYWHERE };

    /// Reads of these bytes of LDS.
    #[must_use]
    pub const fn reads(read: Span) -> Section {
        Section { read, ..Section::NONE }
    }

    /// Writes of these bytes of LDS.
    #[must_use]
    pub const fn writes(written: Span) -> Section {
        Section { written, ..Section::NONE }
    }

    /// The accesses of both.
    #[must_use]
    pub const fn and(self, other: Section) -> Section {
        Section {
            reads_memory: self.reads_memory || other.reads_memory,
            writes_memory: self.writes_memory || other.writes_memory,
            read: self.read.and(other.read),
            written: self.written.and(other.written),
        }
    }

    /// Whether one of two waves may see how far the other one is: it reads what the other writes.
    #[must_use]
    pub const fn meets(self, other: Section) -> bool {
        self.sees(other) || other.sees(self)
    }

    const fn sees(self, other: Section) -> bool {
        self.reads_memory && other.writes_memory || self.read.meets(other.written)
    }

    /// Whether waves that all have it may see how far others are.
    #[must_use]
    pub const fn shows_order(self) -> bool {
        self.sees(self)
    }
}
