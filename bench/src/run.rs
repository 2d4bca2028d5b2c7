// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What every benchmark does around its measuring: options, the report as text, JSON and a page,
//! the exit code.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use crate::baseline::{Baseline, SCHEMA};
use crate::budget;
use crate::date;
use crate::host::Host;
use crate::page;
use crate::page_file::PageFile;
use crate::report::{Head, Parameters};

/// The options of every benchmark.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// A short run, about a minute on a quiet machine: fewer shapes and samples
    #[arg(long)]
    pub(crate) quick: bool,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,

    /// Also write an HTML page with plots to this file; the page needs no other file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Compare with an earlier run: FILE is its output with --json
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,

    /// Use this KFD device (such as /dev/kfd) instead of the driver and the software GPU in this
    /// process
    #[arg(long, value_name = "PATH")]
    pub(crate) device: Option<PathBuf>,

    /// Use at most this much memory at a time, such as 2G; at least 16M (default: a third of the
    /// available memory, at most 6G)
    #[arg(long, value_name = "SIZE", value_parser = budget::parse)]
    memory: Option<u64>,

    /// Samples of each thing (default: 11, quick 5)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,

    /// Do not repeat a sample that takes longer than this, nor try it with more ranges (default:
    /// 15, quick 1.5)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    slow: Option<Duration>,

    /// Exit with 3 when a target was missed
    #[arg(long)]
    check: bool,
}

/// A time on the command line.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0.1 to 3600, such as 1.5".into())
}

/// The command line, as one could type it again.
fn command() -> String {
    let plain = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "-_=./,:+@%".contains(c));
    let quoted = |word: String| if plain(&word) { word } else { format!("'{}'", word.replace('\'', "'\\''")) };
    let words = std::env::args_os().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    std::iter::once("vkfd".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// The exit code for a missed target.
const MISSED: u8 = 3;

/// What a benchmark has found.
pub trait Document: Serialize {
    /// What every report has.
    fn head(&mut self) -> &mut Head;
    /// For a terminal.
    fn text(&self) -> String;
    /// The page's title, and what is on it.
    fn page(&self) -> (&'static str, String);
}

impl Options {
    /// Samples of each thing.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.map_or(if self.quick { 5 } else { 11 }, usize::from)
    }

    /// What takes longer than this for one sample is not asked again.
    pub(crate) fn slow(&self) -> Duration {
        let default = Duration::from_millis(if self.quick { 1500 } else { 15_000 });
        self.slow.unwrap_or(default)
    }

    /// Bytes of memory that may be used at a time.
    pub(crate) fn budget(&self) -> u64 {
        self.memory.unwrap_or_else(budget::compute)
    }

    /// How a report of a run with these options begins; `source` names the source of notifications
    /// of changed mappings.
    pub(crate) fn head(&self, budget: u64, source: String) -> Head {
        Head {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            date: date::now(),
            host: Host::describe(source),
            parameters: Parameters {
                quick: self.quick,
                rounds: self.rounds(),
                slow_seconds: self.slow().as_secs_f64(),
                memory_budget: budget,
                took_seconds: 0.0,
                command: command(),
            },
            targets: Vec::new(),
            left_out: Vec::new(),
            comparison: None,
        }
    }

    /// Measures and reports.
    ///
    /// # Errors
    ///
    /// What measuring failed with, and when the report cannot be written.
    pub(crate) fn run<D: Document>(&self, measure: impl FnOnce() -> Result<D>) -> Result<ExitCode> {
        // Before the long run, not after it.
        let page = self.html.as_deref().map(PageFile::new).transpose()?;
        let baseline = self.baseline.as_deref().map(Baseline::read).transpose()?;
        let start = Instant::now();
        let mut report = measure()?;
        report.head().parameters.took_seconds = start.elapsed().as_secs_f64();
        if let Some(baseline) = baseline {
            let comparison = baseline.compare(&serde_json::to_value(&report)?);
            report.head().comparison = Some(comparison);
        }
        if let Some(file) = page {
            let (title, body) = report.page();
            file.write(&page::document(title, &body))?;
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
            writeln!(out)?;
        } else {
            out.write_all(report.text().as_bytes())?;
        }
        let missed = self.check && report.head().targets.iter().any(|goal| !goal.met);
        Ok(if missed { ExitCode::from(MISSED) } else { ExitCode::SUCCESS })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_fractions_and_bounds() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for wrong in ["0", "-1", "3601", "NaN", "1s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
