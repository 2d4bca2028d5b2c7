// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An engine's translator: its settings, its report, and what its checks have found.
//! [`super::region`] has its code among the steps of blocks.

use crate::wave::Row;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;
use vkfd_isa::Op;
pub use vkfd_translate::{has as is_translated, Accesses, Why, Width};
use vkfd_translate::{Context, Ring, Translator};

/// So often a block runs before it is translated.
const HOT: u32 = 50;

/// What an engine has translated, and what it has not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Blocks that were hot.
    pub blocks: u64,
    /// Their instructions, and those of them that regions do.
    pub instructions: u64,
    pub translated: u64,
    /// Bytes of code.
    pub bytes: u64,
    /// Loops of several blocks.
    pub rings: u64,
    /// Blocks that are done as one.
    pub superblocks: u64,
    /// How long all of it took.
    pub time: Duration,
    /// Instructions that no region has, by operation.
    pub refused: BTreeMap<(Op, Why), u64>,
}

impl Report {
    /// Adds another engine's.
    pub fn add(&mut self, other: &Report) {
        self.blocks += other.blocks;
        self.instructions += other.instructions;
        self.translated += other.translated;
        self.bytes += other.bytes;
        self.rings += other.rings;
        self.superblocks += other.superblocks;
        self.time += other.time;
        for (key, times) in &other.refused {
            *self.refused.entry(*key).or_default() += times;
        }
    }
}

/// What checks have found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Regions that were run twice.
    pub checked: u64,
    /// Those of them that differed.
    pub wrong: u64,
    /// The first of those.
    pub first: Option<String>,
}

/// How an engine translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The host's vectors.
    pub width: Width,
    /// So often a block runs before it is translated.
    pub after: u32,
    /// What regions may access.
    pub accesses: Accesses,
    /// Regions are run twice.
    pub is_checked: bool,
    /// Code is listed in /tmp/perf-PID.map.
    pub perf_map: bool,
}

impl Translation {
    /// What the processor has; `None`: nothing is translated on it.
    #[must_use]
    pub fn detect() -> Option<Translation> {
        Some(Translation {
            width: Width::detect()?,
            after: HOT,
            accesses: Accesses::Last,
            is_checked: false,
            perf_map: false,
        })
    }

    /// What all engines of a test program do: with `VKFD_TRANSLATE=avx2` or `avx512` in its
    /// environment they translate each block before it runs the second time.
    #[cfg(debug_assertions)]
    pub(super) fn of_environment() -> Option<Translation> {
        static WIDTH: std::sync::OnceLock<Option<Width>> = std::sync::OnceLock::new();
        let of = |name: &str| match name {
            "avx2" => Some(Width::Avx2),
            "avx512" => Some(Width::Avx512),
            _ => None,
        };
        let width = WIDTH.get_or_init(|| of(&std::env::var("VKFD_TRANSLATE").ok()?));
        Some(Translation { width: (*width)?, after: 1, accesses: Accesses::All, is_checked: false, perf_map: false })
    }
}

/// An engine's translator.
pub(super) struct Native {
    pub(super) how: Translation,
    pub(super) translator: Translator,
    pub(super) context: Box<Context>,
    pub(super) check: Check,
    pub(super) report: Report,
    /// A region has turned out to be no gain: its block is to be translated without accesses.
    pub(super) gave_up: bool,
}

/// Registers of a wave before and behind a region.
#[derive(Default)]
pub(super) struct Check {
    pub(super) before: Vec<Row>,
    pub(super) behind: Vec<Row>,
    /// Where the reference engine has gone behind a ring.
    pub(super) expected: Option<u64>,
    pub(super) found: Differences,
}

impl Check {
    /// Also for blocks of other layouts.
    pub(super) fn make_room(&mut self, rows: usize) {
        let rows = self.before.len().max(rows);
        self.before.resize(rows, Row::ZERO);
        self.behind.resize(rows, Row::ZERO);
    }

    /// Compares where a ring has led to.
    pub(super) fn compare_place(&mut self, pc: u64) {
        if let Some(expected) = self.expected.take().filter(|expected| *expected != pc) {
            self.found.wrong += 1;
            self.found.first.get_or_insert(format!("a ring leads to {pc:#x}, not {expected:#x}"));
        }
    }
}

/// A translated loop of several blocks, in the first of them (see [`super::rings`]).
pub(super) struct RingEntry {
    pub(super) ring: Ring,
    /// Each block: its address, its number, and where its branch leads out of the ring.
    pub(super) blocks: Box<[(u64, u64, u64)]>,
    /// The run in which all of them were looked at.
    pub(super) run: Cell<u64>,
    pub(super) dead: Cell<bool>,
    /// One of them orders stores.
    pub(super) orders: bool,
}

impl RingEntry {
    pub(super) fn bytes(&self) -> usize {
        size_of::<RingEntry>() + self.ring.bytes() + size_of_val(&*self.blocks)
    }
}

impl Native {
    /// `context`: how its code reaches the wave that it runs for.
    pub(super) fn new(how: Translation, context: Box<Context>) -> Option<Native> {
        vkfd_translate::is_exact(how.width).then(|| Native {
            how,
            translator: Translator::default(),
            context,
            gave_up: false,
            check: Check::default(),
            report: Report::default(),
        })
    }

    /// Forgets the code that is being filled in; the rest goes with the blocks.
    pub(super) fn forget(&mut self) {
        self.translator.clear();
    }
}
