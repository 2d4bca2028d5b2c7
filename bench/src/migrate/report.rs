// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a run of `vkfd bench migrate` found. Its serialization is the output of `--json`; see
//! [`super::Args`] for the schema in words.

use serde::Serialize;

use super::cell::{Cell, Memory};
use crate::report::Head;
use crate::spread::{Samples, Spread};

/// Part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Moving a buffer by requests of several sizes.
    Transfer,
    /// One page fault.
    Fault,
    /// The CPU reads part of a buffer that is on a GPU.
    Touch,
    /// More than there is room for.
    Pressure,
}

/// One thing measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Part of the run.
    pub section: Section,
    #[serde(flatten)]
    pub cell: Cell,
    /// Bytes that one sample is about.
    pub bytes: u64,
    /// The time.
    pub seconds: Spread,
    /// The time relative to the yardstick's in the same round. Transfers have memcpy of the same
    /// bytes in the same pieces; faults have an access without a fault, or a touch of new memory.
    /// Touches have the same read in system memory; pressure has an allocation with free room.
    pub relative_to_yardstick: Option<Spread>,
}

/// How a working set of twice the room went, by the driver's counters, in all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Oversubscription {
    /// Whose memory.
    pub memory: Memory,
    /// Passes of the GPU over it.
    pub passes: u64,
    /// Bytes of the working set.
    pub bytes: u64,
    /// Times that something was evicted.
    pub evictions: u64,
    /// Pages that moved to the GPU.
    pub pages_in: u64,
    /// Pages that moved back.
    pub pages_out: u64,
    /// Times that a granule came back soon after it had left.
    pub bounces: u64,
    /// Times that it was left in system memory for that reason.
    pub damped: u64,
}

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What every report has.
    #[serde(flatten)]
    pub head: Head,
    /// Everything measured.
    pub measurements: Vec<Measurement>,
    /// Working sets of twice the room.
    pub oversubscription: Vec<Oversubscription>,
}

impl Report {
    /// Adds everything in `samples`, which are of `bytes` each, with its ratio to `yardstick`.
    pub fn add(
        &mut self,
        section: Section,
        bytes: u64,
        samples: &Samples<Cell>,
        yardstick: impl Fn(Cell) -> Option<Cell>,
    ) {
        for (cell, seconds) in samples.spreads() {
            let relative_to_yardstick = yardstick(cell).and_then(|other| samples.ratio(cell, other));
            self.measurements.push(Measurement { section, cell, bytes, seconds, relative_to_yardstick });
        }
    }

    /// The measurements of a section.
    pub fn of(&self, section: Section) -> impl Iterator<Item = &Measurement> + '_ {
        self.measurements.iter().filter(move |m| m.section == section)
    }

    /// One of them.
    pub fn find(&self, section: Section, cell: Cell) -> Option<&Measurement> {
        self.of(section).find(|m| m.cell == cell)
    }
}
