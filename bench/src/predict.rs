// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How long given ranges take as one batch on this machine: measured on memory of that shape, or
//! taken from a run of this benchmark.

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde::Deserialize;

use crate::arena::{Arena, Pages, Random};
use crate::baseline::SCHEMA;
use crate::rig::Rig;
use crate::spread::Spread;
use crate::subject::Subject;
use vkfd_client::PAGE;

/// What is measured at most; larger lists are taken in proportion.
const MOST_BYTES: u64 = 512 << 20;
const ROUNDS: usize = 5;

/// Registering and mapping.
#[derive(Clone, Copy, Debug)]
pub struct Prediction {
    /// All ranges by one call.
    pub batch: Duration,
    /// A call for each.
    pub single: Duration,
}

/// Measures ranges of these sizes in bytes, whole pages, scattered in new memory, by the driver in
/// this process.
///
/// # Errors
///
/// When there is nothing to measure, no memory for it, or the driver refuses it.
pub fn measure(sizes: &[u64]) -> Result<Prediction> {
    let mut random = Random(sizes.len() as u64);
    let (mut pieces, mut at) = (Vec::new(), 0);
    for bytes in sizes {
        if !pieces.is_empty() && at + bytes > MOST_BYTES {
            break;
        }
        pieces.push((at, *bytes));
        at += bytes + (1 + random.below(3)) * PAGE;
    }
    if pieces.is_empty() {
        bail!("there are no ranges to measure");
    }
    let whole = sizes.len() as f64 / pieces.len() as f64;
    for i in (1..pieces.len()).rev() {
        pieces.swap(i, random.position(i + 1));
    }
    let arena = Arena::new(&pieces, Pages::Small).context("no memory of that size to measure on")?;
    let mut rig = Rig::new(None)?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (times, subject) in times.iter_mut().zip([Subject::Batch, Subject::Multi]) {
            let seat = rig.seat(subject)?;
            let start = Instant::now();
            let buffer = seat.register_and_map(&arena.ranges)?;
            times.push(start.elapsed().as_secs_f64());
            drop(buffer);
        }
    }
    let [batch, single] = times.map(|times| Spread::of(times).map_or(0.0, |spread| spread.median * whole));
    Ok(Prediction { batch: Duration::from_secs_f64(batch), single: Duration::from_secs_f64(single) })
}

/// The part of the benchmark's JSON that is of interest here.
#[derive(Deserialize)]
struct Recorded {
    schema: u32,
    measurements: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    section: String,
    ranges: usize,
    bytes: u64,
    subject: String,
    operation: String,
    seconds: Median,
}

#[derive(Deserialize)]
struct Median {
    median: f64,
}

/// A run of the benchmark.
pub struct Benchmark(Vec<Point>);

impl Benchmark {
    /// Reads the output of `vkfd bench userptr --json`.
    ///
    /// # Errors
    ///
    /// When it is none, or of another version.
    pub fn read(from: impl Read) -> Result<Self> {
        let recorded: Recorded =
            serde_json::from_reader(from).context("this is not the output of `vkfd bench userptr --json`")?;
        if recorded.schema != SCHEMA {
            bail!(
                "it is of schema {}, this program's is {SCHEMA}: run `vkfd bench userptr --json` again",
                recorded.schema
            );
        }
        Ok(Self(recorded.measurements))
    }

    /// What it says of this many ranges with so many bytes: from the shape whose ranges are nearest
    /// in size, then in number, and in proportion to the number.
    ///
    /// # Errors
    ///
    /// When it has no sweep.
    pub fn predict(&self, ranges: usize, bytes: u64) -> Result<Prediction> {
        let time = |subject| self.time(subject, ranges, bytes).with_context(|| format!("it has no sweep of {subject}"));
        Ok(Prediction { batch: time("batch")?, single: time("multi")? })
    }

    fn time(&self, subject: &str, ranges: usize, bytes: u64) -> Option<Duration> {
        let far = |point: &Point| {
            let size = (point.bytes as f64 / point.ranges as f64 / (bytes as f64 / ranges as f64)).ln().abs();
            let number = (point.ranges as f64 / ranges as f64).ln().abs();
            (size, number)
        };
        let of = |operation: &'static str| {
            let points = self.0.iter().filter(move |point| {
                let small = point.ranges > 1 && point.section == "sweep";
                small && point.subject == subject && point.operation == operation
            });
            points.min_by(|a, b| far(a).partial_cmp(&far(b)).unwrap_or(std::cmp::Ordering::Equal))
        };
        let scaled = |point: &Point| point.seconds.median * ranges as f64 / point.ranges as f64;
        Some(Duration::from_secs_f64(scaled(of("register")?) + scaled(of("map")?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_scattered_pages_is_measured() {
        let measured = measure(&[PAGE; 64]).unwrap();
        assert!(measured.batch > Duration::ZERO && measured.single > Duration::ZERO);
        assert!(measure(&[]).is_err());
    }

    #[test]
    fn the_nearest_shape_is_taken_in_proportion() {
        let point = |ranges: usize, bytes: u64, subject: &str, operation: &str, median: f64| {
            serde_json::json!({"section": "sweep", "ranges": ranges, "bytes": bytes, "subject": subject,
                "operation": operation, "seconds": {"median": median}})
        };
        let mut points = Vec::new();
        for subject in ["batch", "multi"] {
            for (ranges, size, median) in [(1024, 4096, 0.001), (4096, 4096, 0.003), (1024, 65536, 1.0)] {
                points.push(point(ranges, ranges as u64 * size, subject, "register", median));
                points.push(point(ranges, ranges as u64 * size, subject, "map", median));
            }
        }
        let text = serde_json::json!({"schema": SCHEMA, "measurements": points}).to_string();
        let benchmark = Benchmark::read(text.as_bytes()).unwrap();
        let predicted = benchmark.predict(8192, 8192 * 5000).unwrap();
        assert_eq!(predicted.batch, Duration::from_secs_f64(2.0 * 0.003 * 2.0));
        assert!(Benchmark::read(&b"{}"[..]).is_err());
    }
}
