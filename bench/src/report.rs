// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a run found. Its serialization is the output of `--json`; see [`crate::Args`] for the
//! schema in words.

use serde::Serialize;

use crate::baseline::Comparison;
use crate::goal::Goal;
use crate::host::Host;
use crate::parts::Part;
use crate::plan::Shape;
use crate::spread::{Samples, Spread};
use crate::subject::{Operation, Subject};

/// Part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Cost against the number and size of ranges, and the recorded lists.
    Sweep,
    /// The whole job.
    Job,
    /// One page invalidated.
    Invalidate,
    /// k of n ranges restored.
    Restore,
    /// Copies in and out.
    Copies,
    /// The client library's kernels.
    Kernels,
}

/// One thing measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Part of the run.
    pub section: Section,
    /// A recorded list's or a kernel's name; `THP` for memory with huge pages.
    pub label: Option<String>,
    /// How many ranges were registered.
    pub ranges: usize,
    /// Bytes of all ranges.
    pub bytes: u64,
    /// Restore: how many ranges were invalidated.
    pub touched: Option<usize>,
    pub subject: Subject,
    pub operation: Operation,
    /// The time.
    pub seconds: Spread,
    /// The time relative to `contiguous`'s in the same round.
    pub relative_to_contiguous: Option<Spread>,
}

/// What the driver says that it holds for a buffer.
#[derive(Clone, Debug, Serialize)]
pub struct Footprint {
    /// How many ranges.
    pub ranges: usize,
    /// How many pages.
    pub pages: u64,
    /// Bytes held, page tables apart, while mapped on one GPU.
    pub driver_bytes: u64,
    /// `64 * ranges + 16 * pages`.
    pub allowed_bytes: u64,
}

/// What was left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    pub what: String,
    pub why: String,
}

/// A part of the run that is not to be trusted.
#[derive(Clone, Debug, Serialize)]
pub struct Doubt {
    pub section: Section,
    pub why: String,
}

/// How the run was done.
#[derive(Clone, Debug, Serialize)]
pub struct Parameters {
    /// A short run.
    pub quick: bool,
    /// Samples of each thing, at most.
    pub rounds: usize,
    /// Samples longer than this were not repeated.
    pub slow_seconds: f64,
    /// Bytes of memory used at a time.
    pub memory_budget: u64,
    /// How long the run took.
    pub took_seconds: f64,
    /// The command line.
    pub command: String,
}

/// What the report of any benchmark has.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// [`SCHEMA`](crate::baseline::SCHEMA).
    pub schema: u32,
    /// vkfd's version.
    pub version: &'static str,
    /// When the run began.
    pub date: String,
    /// The computer.
    pub host: Host,
    pub parameters: Parameters,
    /// What was to be reached.
    pub targets: Vec<Goal>,
    /// What was left out, and why.
    pub left_out: Vec<LeftOut>,
    /// What has changed since an earlier run (`--baseline`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

impl Head {
    /// Why no time in this report is to be trusted, if it is not.
    pub fn doubt(&self) -> Option<String> {
        let (load, cores) = (self.host.load, self.host.cores);
        (load > 0.5 * cores as f64).then(|| {
            format!(
                "The load was {load:.1} on {cores} processors when the run began: other programs used them as well. Times, and targets that were \
                 missed, are not to be trusted. Run it again on a quiet machine."
            )
        })
    }

    /// What was left out, each reason once.
    pub fn left_out_by_reason(&self) -> Vec<(String, &str)> {
        let mut reasons: Vec<(Vec<&str>, &str)> = Vec::new();
        for LeftOut { what, why } in &self.left_out {
            match reasons.iter_mut().find(|(_, reason)| reason == why) {
                Some((list, _)) => list.push(what),
                None => reasons.push((vec![what], why)),
            }
        }
        reasons.into_iter().map(|(list, why)| (list.join("; "), why)).collect()
    }

    /// Notes what was left out; the same is noted once.
    pub fn leave_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let left_out = LeftOut { what: what.into(), why: why.into() };
        if !self.left_out.contains(&left_out) {
            self.left_out.push(left_out);
        }
    }
}

/// A run of `vkfd bench userptr`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What every report has.
    #[serde(flatten)]
    pub head: Head,
    /// The whole job as a score: contiguous is 100.
    pub scores: Vec<(Subject, Spread)>,
    /// Where the time of 4,096 ranges of 64 KiB goes.
    pub parts: Vec<Part>,
    /// Everything measured.
    pub measurements: Vec<Measurement>,
    /// Parts of the run that are not to be trusted.
    pub doubts: Vec<Doubt>,
    /// Driver memory.
    pub footprints: Vec<Footprint>,
    /// Ranges invalidated per call that discarded one page, as the driver counted them.
    pub ranges_invalidated_per_call: Option<f64>,
}

impl Report {
    /// Adds everything in `samples`.
    pub fn add(&mut self, section: Section, shape: &Shape, samples: &Samples) {
        self.add_as(section, shape.label, shape, None, samples);
    }

    /// As [`Report::add`], with a label and a number of ranges touched.
    pub fn add_as(
        &mut self,
        section: Section,
        label: Option<&str>,
        shape: &Shape,
        touched: Option<usize>,
        samples: &Samples,
    ) {
        for ((subject, operation), seconds) in samples.spreads() {
            let other = (Subject::Contiguous, operation);
            let relative = samples.ratio((subject, operation), other).filter(|_| subject != Subject::Contiguous);
            self.measurements.push(Measurement {
                section,
                label: label.map(str::to_owned),
                ranges: shape.ranges,
                bytes: shape.total,
                touched,
                subject,
                operation,
                seconds,
                relative_to_contiguous: relative,
            });
        }
    }

    /// Why a section is not to be trusted, if it is not.
    pub fn doubt(&self, section: Section) -> Option<&str> {
        self.doubts.iter().find(|doubt| doubt.section == section).map(|doubt| doubt.why.as_str())
    }

    /// The measurements of a section.
    pub fn of(&self, section: Section) -> impl Iterator<Item = &Measurement> + '_ {
        self.measurements.iter().filter(move |m| m.section == section)
    }
}

#[cfg(test)]
impl Report {
    /// An empty one.
    pub fn sample() -> Self {
        let parameters = Parameters {
            quick: true,
            rounds: 1,
            slow_seconds: 1.0,
            memory_budget: 0,
            took_seconds: 0.0,
            command: String::new(),
        };
        let head = Head {
            schema: crate::baseline::SCHEMA,
            version: "0",
            date: String::new(),
            host: Host::describe(String::new()),
            parameters,
            targets: Vec::new(),
            left_out: Vec::new(),
            comparison: None,
        };
        Self {
            head,
            scores: Vec::new(),
            parts: Vec::new(),
            measurements: Vec::new(),
            doubts: Vec::new(),
            footprints: Vec::new(),
            ranges_invalidated_per_call: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_told() {
        let mut head = Report::sample().head;
        (head.host.load, head.host.cores) = (12.0, 2);
        assert!(head.doubt().is_some_and(|why| why.contains("12.0 on 2")));
        head.host.load = 0.3;
        assert_eq!(head.doubt(), None);
    }

    #[test]
    fn each_reason_is_given_once() {
        let mut head = Report::sample().head;
        for (what, why) in [("a", "x"), ("b", "y"), ("c", "x"), ("a", "x")] {
            head.leave_out(what, why);
        }
        assert_eq!(head.left_out_by_reason(), [("a; c".to_owned(), "x"), ("b".to_owned(), "y")]);
    }
}
