// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm native bench`: what the guest's registrations cost, in each way that there is on
//! the host.
//!
//! A boot for each way; in each the same memory is registered in few pieces and in many, in turn.
//! So every ratio is of one run on one machine.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use vkfd_guest::Record;

use super::machine::{Machine, Wanted};
use super::suite;
use xtask_base::cargo::Build;
use xtask_base::Verdict;

/// Measure registration in three ways, of memory in few pieces and in many
#[derive(clap::Args)]
pub struct Args {
    /// Pages of each buffer; many pieces of 65,536 pages need a guest of 3 GiB
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 256, 4096, 16384])]
    pages: Vec<u64>,
    /// Memory of a program (userptr), on the tree's kernel
    #[arg(long)]
    userptr: bool,
    /// Times that each is measured
    #[arg(long, default_value_t = 7)]
    runs: u32,
}

const WAYS: [&str; 3] = ["batch", "per-range", "remap"];

/// How many mappings a process may have (`vm.max_map_count`).
const MAPPINGS: u64 = 65_530;

/// The series' own figures for one call for each range, and for a batch, of 100 without a guest.
const SERIES: (&str, &str) = ("40", "80 to 95");

/// As `vkfd-native bench` prints it, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Times {
    pages: u64,
    scattered: bool,
    register: f64,
    map: f64,
    crc: f64,
    sum: f64,
    copy: f64,
    free: f64,
    round_trip: f64,
}

/// Kinds of pass: a kernel that computes a CRC, one that only adds words up, the GPU's copier.
const PASSES: [(&str, Part); 3] = [("crc", |t| t.crc), ("sum", |t| t.sum), ("copy", |t| t.copy)];

/// A part of a job's time.
type Part = fn(&Times) -> f64;

impl Times {
    /// The job around the pass.
    fn rest(&self) -> f64 {
        self.register + self.map + self.free
    }
}

/// A kind of pass, in one way.
#[derive(Serialize)]
struct Pass {
    name: &'static str,
    /// The whole job in many pieces, of 100 for the same in few.
    percent: f64,
    /// Of memory in many pieces and in few.
    us: [f64; 2],
}

/// Medians of one size in one way.
#[derive(Serialize)]
struct Row {
    way: &'static str,
    pages: u64,
    passes: Vec<Pass>,
    round_trip_us: f64,
    /// Of memory in many pieces and in few.
    register_us: [f64; 2],
    map_us: [f64; 2],
    free_us: [f64; 2],
    /// The host's own part of the registration.
    host_register_us: Option<f64>,
    pieces: Option<u64>,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let machine = if args.userptr { Machine::patched()? } else { Machine::new(Build::Released)? };
    let total: u64 = args.pages.iter().sum();
    // Seven times the scattered memory, both buffers and their copies, and the guest itself.
    let memory_mib = ((total * 4096 * 10) >> 20) + 640;
    let pages: Vec<String> = args.pages.iter().map(ToString::to_string).collect();
    let command = format!("vkfd-native bench --pages {} --runs {}", pages.join(","), args.runs);
    let mut rows = Vec::new();
    let mut findings = Vec::new();
    for way in WAYS {
        let wanted = Wanted {
            name: &format!("bench-{way}"),
            memory_mib,
            device: &["--register", way],
            commands: &[(&command, 1200)],
            more: None,
        };
        let ran = machine.boot(&wanted, |_, _| true)?;
        let found = suite::findings(&ran).into_iter().map(|finding| format!("{way}: {finding}"));
        // Both take a mapping or a notifier of the host for each piece.
        if way != WAYS[0] && args.pages.iter().any(|pages| *pages >= MAPPINGS) {
            found.for_each(|refused| println!("as it must with {MAPPINGS} mappings: {refused}"));
        } else {
            findings.extend(found);
        }
        let times = ran.outcome.records.iter().filter_map(|record| match record {
            Record::Output { line, .. } => serde_json::from_str::<Times>(line).ok(),
            _ => None,
        });
        let times: Vec<Times> = times.collect();
        rows.extend(args.pages.iter().filter_map(|pages| row(way, *pages, &times, &ran.log)));
    }
    let text = text(&rows);
    println!("{text}");
    let path = super::directory("bench.json")?;
    fs::write(&path, serde_json::to_string_pretty(&rows)?).with_context(|| format!("write {}", path.display()))?;
    println!("as JSON: {}", path.display());
    Ok(if findings.is_empty() { Verdict::Clean("measured".into()) } else { Verdict::Findings(findings) })
}

fn row(way: &'static str, pages: u64, times: &[Times], log: &str) -> Option<Row> {
    let of = |scattered: bool| times.iter().filter(move |t| t.pages == pages && t.scattered == scattered);
    let ratio = |pass: Part| {
        let whole = |t: &Times| t.rest() + pass(t);
        median(of(false).zip(of(true)).map(|(few, many)| 100.0 * whole(few) / whole(many)).collect())
    };
    let host = host_registrations(log, pages);
    let both = |part: &dyn Fn(&Times) -> f64| {
        Some([median(of(true).map(part).collect())?, median(of(false).map(part).collect())?])
    };
    Some(Row {
        way,
        pages,
        passes: PASSES
            .into_iter()
            .map(|(name, pass)| Some(Pass { name, percent: ratio(pass)?, us: both(&pass)? }))
            .collect::<Option<_>>()?,
        register_us: both(&|t| t.register)?,
        map_us: both(&|t| t.map)?,
        free_us: both(&|t| t.free)?,
        round_trip_us: median(times.iter().map(|t| t.round_trip).collect())?,
        pieces: host.iter().map(|(pieces, _)| *pieces).max(),
        host_register_us: host
            .iter()
            .map(|(pieces, _)| *pieces)
            .max()
            .and_then(|most| median(host.iter().filter(|(pieces, _)| *pieces == most).map(|(_, us)| *us).collect())),
    })
}

/// Pieces and microseconds of the registrations of so many pages, by the device's log.
fn host_registrations(log: &str, pages: u64) -> Vec<(u64, f64)> {
    let field = |line: &str, name: &str| line.split_once(name)?.1.split(' ').next()?.trim().parse::<u64>().ok();
    let lines = log.lines().filter(|line| field(line, "bytes=") == Some(pages * 4096));
    #[allow(clippy::cast_precision_loss)]
    let entry = |line: &str| Some((field(line, "ranges=")?, field(line, "microseconds=")? as f64));
    lines.filter_map(entry).collect()
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

fn text(rows: &[Row]) -> String {
    let mut text = String::from(
        "register, map, one pass, free: percent, of memory in many pieces, of 100 for the same job on memory in few; milliseconds, in many and in few pieces.\n\
         Passes: a kernel that computes a CRC-32, a kernel that adds all words up, a copy by the GPU's copier.\n\
         way         pages  pieces  percent: crc  sum  copy       register            map           crc           sum            copy            free  host alone  round trip\n",
    );
    let pair = |[many, few]: [f64; 2]| format!("{:>7.2} {:>6.2}", many / 1000.0, few / 1000.0);
    for row in rows {
        let percents: String = row.passes.iter().map(|pass| format!(" {:>6.1}", pass.percent)).collect();
        let passes: String = row.passes.iter().map(|pass| format!("{} ", pair(pass.us))).collect();
        let _ = writeln!(
            text,
            "{:<10} {:>6} {:>7}{percents} {} {} {passes}{} {:>11.2} {:>11.2}",
            row.way,
            row.pages,
            row.pieces.unwrap_or(0),
            pair(row.register_us),
            pair(row.map_us),
            pair(row.free_us),
            row.host_register_us.unwrap_or(0.0) / 1000.0,
            row.round_trip_us / 1000.0
        );
    }
    let (one, batch) = SERIES;
    let _ = write!(text, "the series' own figures: one call for each range {one}, batch {batch}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_neighbours_in_one_run() {
        let t = |scattered, register| Times {
            pages: 4,
            scattered,
            register,
            map: 0.0,
            crc: 0.0,
            sum: 10.0,
            copy: 0.0,
            free: 0.0,
            round_trip: 1.0,
        };
        let times = [t(false, 10.0), t(true, 20.0), t(false, 30.0), t(true, 40.0), t(false, 9.0), t(true, 10.0)];
        let log = "x registered ranges=1 bytes=16384 microseconds=5\nx registered ranges=4 bytes=16384 microseconds=8";
        let row = row("batch", 4, &times, log).unwrap();
        assert_eq!((row.pieces, row.host_register_us), (Some(4), Some(8.0)));
        let percents: Vec<f64> = row.passes.iter().map(|pass| pass.percent.round()).collect();
        assert_eq!(percents, [75.0, 80.0, 75.0]);
    }
}
