// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a run of `vkfd bench native` found. Its serialization is the output of `--json`; see
//! [`super::Args`] for the schema in words.

use serde::Serialize;

use super::cell::{Cell, Pass, Stage, Way};
use crate::report::Head;
use crate::spread::{Samples, Spread};

/// One thing measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Pages of the buffer.
    pub pages: u64,
    /// Pieces that they are in.
    pub pieces: u64,
    #[serde(flatten)]
    pub cell: Cell,
    /// Processor time.
    pub seconds: Spread,
    /// The time relative to that of the same buffer in one piece, in the same round.
    pub relative_to_not_scattered: Option<Spread>,
}

/// A way's whole job, or a plain copy by the processor.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Job {
    /// Pages of the buffer.
    pub pages: u64,
    /// Pieces that they are in.
    pub pieces: u64,
    /// How it was registered.
    pub way: Way,
    /// What passed over it.
    pub pass: Pass,
    /// Its speed, where the same buffer in one piece is 100.
    pub percent: Spread,
}

/// A registration by batch.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Registration {
    /// Pages of the buffer, each a piece.
    pub pages: u64,
    /// Its time relative to that of the same list by a local client, in the same round.
    pub relative_to_local: Spread,
}

/// What the authors of batch registration have published.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Published {
    /// The pass or stage.
    pub what: &'static str,
    /// How it was registered.
    pub way: Way,
    /// The lowest and the highest percentage; 100 is a buffer that is not scattered, or bare metal.
    pub percent: [f64; 2],
    pub source: &'static str,
}

const SOURCE: &str = "reported with the batch userptr series, which does not name the benchmark";

/// The series' own figures.
pub const PUBLISHED: [Published; 2] = [
    Published {
        what: "the series, a KVM guest relative to bare metal",
        way: Way::Batch,
        percent: [80.0, 95.0],
        source: SOURCE,
    },
    Published {
        what: "the series, a KVM guest relative to bare metal",
        way: Way::PerRange,
        percent: [40.0, 40.0],
        source: SOURCE,
    },
];

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What every report has.
    #[serde(flatten)]
    pub head: Head,
    /// Whole jobs.
    pub jobs: Vec<Job>,
    /// Registrations by batch.
    pub registrations: Vec<Registration>,
    /// Everything measured.
    pub measurements: Vec<Measurement>,
    /// The series' own figures.
    pub published: [Published; 2],
}

impl Report {
    /// An empty one.
    pub fn new(head: Head) -> Self {
        Self { head, jobs: Vec::new(), registrations: Vec::new(), measurements: Vec::new(), published: PUBLISHED }
    }

    /// Adds what was measured of a size.
    pub fn add(&mut self, pages: u64, samples: &Samples<Cell>) {
        let pieces = |way| if way == Way::NotScattered { 1 } else { pages };
        for (cell, seconds) in samples.spreads() {
            let scattered = cell.way != Way::NotScattered;
            let relative = samples.ratio(cell, cell.yardstick()).filter(|_| scattered);
            let pieces = pieces(cell.way);
            self.measurements.push(Measurement { pages, pieces, cell, seconds, relative_to_not_scattered: relative });
        }
        for way in Way::SCATTERED {
            for pass in Pass::ALL {
                let stage = if pass == Pass::Processor { Stage::Pass } else { Stage::Job };
                let cell = Cell { way, pass: Some(pass), stage };
                if let Some(ratio) = samples.ratio(cell.yardstick(), cell) {
                    self.jobs.push(Job { pages, pieces: pieces(way), way, pass, percent: ratio.scaled(100.0) });
                }
            }
        }
        let registration = Cell { way: Way::Batch, pass: Some(Pass::Kernel), stage: Stage::Register };
        let local = Cell { way: Way::Local, pass: None, stage: Stage::Register };
        if let Some(relative_to_local) = samples.ratio(registration, local) {
            self.registrations.push(Registration { pages, relative_to_local });
        }
    }

    /// The sizes, rising.
    pub fn sizes(&self) -> Vec<u64> {
        self.registrations.iter().map(|registration| registration.pages).collect()
    }

    /// A job.
    pub fn job(&self, pages: u64, way: Way, pass: Pass) -> Option<Spread> {
        let found = self.jobs.iter().find(|job| (job.pages, job.way, job.pass) == (pages, way, pass));
        found.map(|job| job.percent)
    }

    /// The time of a cell.
    pub fn time(&self, pages: u64, cell: Cell) -> Option<Spread> {
        let found = self.measurements.iter().find(|m| m.pages == pages && m.cell == cell);
        found.map(|measurement| measurement.seconds)
    }
}
