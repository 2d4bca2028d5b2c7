// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd bench compute`: the software GPU's speed of computing, relative to the host's own.
//!
//! The first rows are of the engine by itself: one wave on one thread, on memory without a driver.
//! The others are of launches through the driver, with all threads. Each yardstick runs in the same
//! rounds.
//!
//! | module | |
//! |---|---|
//! | `code` | the kernels' machine code (its source: `kernels/`) |
//! | `decoding` | what the decoder does |
//! | `host` | the yardsticks |
//! | `machine` | a wave and its memory |
//! | `launches` | kernels that are launched |

mod code;
mod decoding;
mod host;
mod launches;
mod machine;

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{ensure, Result};
use clap::ValueEnum;
use serde::Serialize;
use vkfd_isa::Target;

use crate::goal::Goal;
use crate::progress::Progress;
use crate::report::Head;
use crate::run::{Document, Options};
use crate::spread::{Samples, Spread};
use crate::{page, text};
pub(crate) use launches::Rig;
use machine::Machine;

/// Measure how fast the software GPU computes, against the host's own instructions
///
/// One thread runs kernels of machine code: chains of FMAs of 64 and 32 lanes, a mix of
/// instructions, products of matrices by matrix instructions. Then kernels are launched on a GPU in
/// this process, with all its threads. They fill and copy 192 MiB, multiply matrices through LDS,
/// do nothing, or fill scattered ranges. The GPU is suspended meanwhile. The yardsticks run in the
/// same rounds: the host's AVX2 FMAs, memset, memcpy and naive code on one thread, the reference
/// engine, a barrier packet, one contiguous range.
///
/// With --json the output is one object: schema (2), and version, host and parameters as of `vkfd
/// bench userptr`. It has four lists: targets (what, bound, measured, met), left_out (what, why),
/// measurements, and published (what, value, source). A measurement has what, unit, per_second,
/// yardstick and yardstick_per_second. The object suspending has samples, median, p90, p99 and
/// longest, in microseconds.
///
/// Exit code: 0 when the run completed, 3 with --check when a target was missed.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    options: Options,

    /// Measure only these, one or more of a list with commas (default: all)
    #[arg(long, value_name = "WORK", value_delimiter = ',')]
    only: Vec<Work>,
}

/// What can be measured by itself.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// The chain of FMAs
    Fma,
    /// The same of 32 lanes, single and dual
    Fma32,
    /// Products by matrix instructions of gfx11
    Wmma,
    /// The decoder
    Decoding,
    /// The mix of instructions
    Mix,
    /// The product of matrices by matrix instructions
    Gemm,
    /// Filling and copying
    Memory,
    /// The product of matrices through LDS
    Matmul,
    /// The empty kernel
    Launch,
    /// Suspending meanwhile
    Suspend,
    /// Filling scattered ranges
    Scattered,
}

/// One kind of work.
#[derive(Clone, Debug, Serialize)]
struct Measurement {
    what: &'static str,
    /// What is counted.
    unit: &'static str,
    /// How much of it in a second.
    per_second: Spread,
    /// What it is compared with.
    yardstick: &'static str,
    /// How much that does.
    yardstick_per_second: Spread,
}

/// What others have published of such work.
#[derive(Clone, Copy, Debug, Serialize)]
struct Published {
    what: &'static str,
    value: &'static str,
    source: &'static str,
}

const PUBLISHED: [Published; 3] = [
    Published {
        what: "AMD's rocjitsu, FP8 GEMM 1024^3 on gfx950, one thread",
        value: "4.21 s, 0.51 GFLOPS",
        source: "ROCm/rocm-systems, emulation/rocjitsu/docs/async-thread-scaling.md (Threadripper PRO 9995WX)",
    },
    Published {
        what: "AMD's rocjitsu, filling 192 MiB, eight cores",
        value: "1.07 s, 0.19 GB/s",
        source: "ROCm/rocm-systems, pull request 11679",
    },
    Published {
        what: "AMD's rocjitsu, v_add_u32 of 64 lanes, scalar",
        value: "1902 ns",
        source: "ROCm/rocm-systems, pull request 11730",
    },
];

/// A run.
#[derive(Clone, Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    measurements: Vec<Measurement>,
    suspending: Option<Quantiles>,
    published: [Published; 3],
}

/// How long suspending took, over all rounds, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Quantiles {
    samples: usize,
    median: f64,
    p90: f64,
    p99: f64,
    longest: f64,
}

impl Quantiles {
    /// Of times in any order.
    fn of(mut times: Vec<Duration>) -> Option<Quantiles> {
        times.sort_unstable();
        let last = times.len().checked_sub(1)?;
        let at = |hundredths: usize| times[last * hundredths / 100].as_secs_f64() * 1e6;
        Some(Quantiles { samples: times.len(), median: at(50), p90: at(90), p99: at(99), longest: at(100) })
    }
}

/// Runs the benchmark and reports.
///
/// # Errors
///
/// When a kernel's result is wrong, or the report cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.options.run(|| measure(args))
}

/// The works that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Engine,
    Yardstick,
}

/// A row of the report.
struct Row {
    what: &'static str,
    unit: &'static str,
    yardstick: &'static str,
    /// What each did in its time.
    amounts: [f64; 2],
    limit: f64,
}

/// Adds what both did in the rounds, each its amount in its times.
fn note(report: &mut Report, samples: &Samples<Who>, row: &Row) {
    let spread = |who| samples.spreads().find(|(cell, _)| *cell == who).map(|(_, spread)| spread);
    let (Some(engine), Some(other)) = (spread(Who::Engine), spread(Who::Yardstick)) else { return };
    report.measurements.push(Measurement {
        what: row.what,
        unit: row.unit,
        per_second: engine.inverted().scaled(row.amounts[0]),
        yardstick: row.yardstick,
        yardstick_per_second: other.inverted().scaled(row.amounts[1]),
    });
}

/// Adds it, and the goal.
fn add(report: &mut Report, samples: &Samples<Who>, row: Row) {
    note(report, samples, &row);
    let ratio = samples.ratio(Who::Yardstick, Who::Engine);
    let ratio = ratio.map(|ratio| ratio.scaled(row.amounts[0] / row.amounts[1]));
    report.head.targets.push(Goal::at_least(row.what, row.limit, ratio));
}

const FMA: &str = "chain of FMAs of 64 lanes, one thread: speed relative to the host's AVX2 FMAs";
const MIX: &str = "4 FMAs, addition, SALU, comparison, load: times as fast as the reference engine";
const GEMM: &str = "f16 MFMA product of 1024 x 1024 matrices, one thread: speed relative to the host's AVX2 FMAs";

fn measure(args: &Args) -> Result<Report> {
    let options = &args.options;
    let progress = Progress::new();
    let mut report = Report {
        head: options.head(0, "none".to_owned()),
        measurements: Vec::new(),
        suspending: None,
        published: PUBLISHED,
    };
    let wanted = |work: &Work| args.only.is_empty() || args.only.contains(work);
    let works: Vec<Work> = Work::value_variants().iter().copied().filter(wanted).collect();
    for work in Work::value_variants().iter().filter(|work| !works.contains(work)) {
        report.head.leave_out(format!("{work:?}").to_lowercase(), "not asked for (--only)");
    }
    let rounds = options.rounds();
    let of = |work| match work {
        Work::Gemm => rounds.min(if options.quick { 2 } else { 5 }),
        _ => rounds,
    };
    let turns = |work| of(work) * if work == Work::Fma32 { 2 } else { 1 };
    let bar = progress.bar("computing", works.iter().map(|work| turns(*work)).sum());
    let advance = || bar.advance();
    let mut rig = None;
    for work in works {
        match work {
            Work::Fma => chain(&mut report, of(work), &LANES64, advance),
            Work::Fma32 => {
                chain(&mut report, of(work), &LANES32, advance);
                chain(&mut report, of(work), &DUAL, advance);
            }
            Work::Wmma => chain(&mut report, of(work), &WMMA, advance),
            Work::Decoding => decoding::measure(&mut report, of(work), advance),
            Work::Mix => mix(&mut report, of(work), advance),
            Work::Gemm => gemm(&mut report, of(work), advance)?,
            _ => {
                let rig = match &mut rig {
                    Some(rig) => rig,
                    none => none.insert(launches::Rig::new()?),
                };
                launches::measure(work, rig, &mut report, of(work), advance)?;
            }
        }
    }
    Ok(report)
}

/// What is to be reached by the host's instructions.
#[derive(Clone, Copy)]
struct Limit {
    avx2: f64,
    avx512: f64,
    /// By the interpreter, which other processors have alone.
    interpreted: f64,
}

impl Limit {
    fn here(self) -> f64 {
        match machine::lanes() {
            16 => self.avx512,
            8 => self.avx2,
            _ => self.interpreted,
        }
    }
}

/// A kernel that does the same operation again and again.
struct Chain {
    what: &'static str,
    target: Target,
    code: &'static [u32],
    lanes: u8,
    turns: u32,
    /// Floating-point operations of a turn.
    flops: f64,
    /// What it is to reach; nothing: it is only told.
    limit: Option<Limit>,
}

const LANES64: Chain = Chain {
    what: FMA,
    target: Target::Gfx900,
    code: code::FMA,
    lanes: 64,
    turns: 20_000,
    flops: 32.0 * 64.0 * 2.0,
    limit: Some(Limit { avx2: 0.65, avx512: 1.6, interpreted: 0.2 }),
};

const LANES32: Chain = Chain {
    what: "chain of FMAs of 32 lanes, one thread: speed relative to the host's AVX2 FMAs",
    target: Target::Gfx1100,
    code: code::FMA32,
    lanes: 32,
    turns: 40_000,
    flops: 32.0 * 32.0 * 2.0,
    limit: Some(Limit { avx2: 0.5, avx512: 1.2, interpreted: 0.15 }),
};

const DUAL: Chain = Chain {
    what: "chain of dual FMAs of 32 lanes, one thread: speed relative to the host's AVX2 FMAs",
    code: code::DUAL,
    limit: None,
    ..LANES32
};

const WMMA: Chain = Chain {
    what: "f16 WMMA of 16 x 16 x 16, one thread: speed relative to the host's AVX2 FMAs",
    code: code::WMMA,
    turns: 1000,
    flops: 32.0 * 2.0 * 16.0 * 16.0 * 16.0,
    limit: Some(Limit { avx2: 0.2, avx512: 0.4, interpreted: 0.2 }),
    ..LANES32
};

fn chain(report: &mut Report, rounds: usize, chain: &Chain, advance: impl Fn()) {
    let mut samples = Samples::default();
    let mut machine = Machine::new(chain.target, chain.code, 1);
    for round in 0..rounds {
        let time = machine.run(|wave| {
            wave.scalar[0] = chain.turns;
            wave.lanes = chain.lanes;
            // What are offsets otherwise would be denormal factors.
            (wave.rows[2], wave.rows[3]) = (wave.rows[0], wave.rows[0]);
        });
        samples.add_to(round, Who::Engine, time);
        samples.add_to(round, Who::Yardstick, host::fma(500_000));
        advance();
    }
    let amounts = [f64::from(chain.turns) * chain.flops, host::fma_flops(500_000)];
    let row = |limit| Row { what: chain.what, unit: "flop", yardstick: "AVX2 FMAs", amounts, limit };
    match chain.limit {
        Some(limit) => add(report, &samples, row(limit.here())),
        None => note(report, &samples, &row(0.0)),
    }
}

fn mix(report: &mut Report, rounds: usize, advance: impl Fn()) {
    let mut samples = Samples::default();
    let mut machine = Machine::new(Target::Gfx900, code::MIX, 1);
    let turns = [10_000, 20];
    for round in 0..rounds {
        samples.add_to(round, Who::Engine, machine.run(|wave| wave.scalar[0] = turns[0]));
        samples.add_to(round, Who::Yardstick, machine.run_reference(|wave| wave.scalar[0] = turns[1]));
        advance();
    }
    let amounts = turns.map(|turns| f64::from(turns) * 32.0);
    add(report, &samples, Row { what: MIX, unit: "instructions", yardstick: "reference engine", amounts, limit: 50.0 });
}

/// Rows, columns and length of the sums.
const SIZE: usize = 1024;

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of a product of one size")]
fn gemm(report: &mut Report, rounds: usize, advance: impl Fn()) -> Result<()> {
    let mut samples = Samples::default();
    let bytes = SIZE * SIZE * 2;
    let mut machine = Machine::new(Target::Gfx90a, code::GEMM, (2 * bytes + 2 * SIZE * SIZE * 2) / 4096);
    let (a, b, c) = (machine::DATA, machine::DATA + bytes as u64, machine::DATA + 2 * bytes as u64);
    // Small integers: all sums are exact in any order.
    let element = |row: usize, k: usize, add: usize| ((row * 3 + k * 5 + add) % 7) as f32 - 3.0;
    let half = |value: f32| -> u16 {
        let magnitude = match value.abs() as u32 {
            0 => 0,
            1 => 0x3c00,
            2 => 0x4000,
            _ => 0x4200,
        };
        magnitude | if value < 0.0 { 0x8000 } else { 0 }
    };
    for (base, add) in [(a, 0), (b, 2)] {
        for row in 0..SIZE {
            let line: Vec<u8> = (0..SIZE).flat_map(|k| half(element(row, k, add)).to_le_bytes()).collect();
            machine.write(base + (row * SIZE * 2) as u64, &line);
        }
    }
    // A lane's offsets in a matrix: its row, and the half of each 16 of k that it has.
    let offset = |lane: usize, tile: usize| ((tile * 32 + lane % 32) * SIZE * 2 + lane / 32 * 16) as u32;
    for round in 0..rounds {
        let mut time = Duration::ZERO;
        for tile in 0..(SIZE / 64) * (SIZE / 64) {
            let (row, column) = (tile / (SIZE / 64) * 64, tile % (SIZE / 64) * 64);
            time += machine.run(|wave| {
                wave.scalar[0] = (SIZE / 16) as u32;
                wave.set_pair(4, a + (row * SIZE * 2) as u64);
                wave.set_pair(6, b + (column * SIZE * 2) as u64);
                wave.set_pair(8, c + (tile * 64 * 64 * 4) as u64);
                for lane in 0..64 {
                    for (register, tile) in [0, 1, 0, 1].into_iter().enumerate() {
                        wave.rows[register].0[lane] = offset(lane, tile);
                    }
                    wave.rows[4].0[lane] = 4 * lane as u32;
                }
            });
        }
        samples.add_to(round, Who::Engine, time);
        samples.add_to(round, Who::Yardstick, host::fma(5_000_000));
        advance();
    }
    for sample in 0..200 {
        let (row, column) = (sample * 37 % SIZE, sample * 101 % SIZE);
        let expected: f32 = (0..SIZE).map(|k| element(row, k, 0) * element(column, k, 2)).sum();
        let (tile, i, j) = (row / 64 * (SIZE / 64) + column / 64, row % 64, column % 64);
        // Which of the four products, the register in it, and the lane.
        let product = i / 32 * 2 + j / 32;
        let (register, lane) = (i % 32 / 8 * 4 + i % 4, j % 32 + i % 8 / 4 * 32);
        let at = c + ((tile * 64 + product * 16 + register) * 256 + 4 * lane) as u64;
        let found = machine.words(at, 1).first().copied().map(f32::from_bits);
        ensure!(found == Some(expected), "element {row}, {column} of the product is {found:?}, not {expected}");
    }
    let amounts = [2.0 * (SIZE * SIZE * SIZE) as f64, host::fma_flops(5_000_000)];
    let limit = Limit { avx2: 0.3, avx512: 0.5, interpreted: 0.2 }.here();
    add(report, &samples, Row { what: GEMM, unit: "flop", yardstick: "AVX2 FMAs", amounts, limit });
    Ok(())
}

impl Document for Report {
    fn head(&mut self) -> &mut Head {
        &mut self.head
    }

    fn text(&self) -> String {
        let mut out = text::head(&self.head);
        text::heading(&mut out, "Speeds");
        let rows: Vec<Vec<String>> = self
            .measurements
            .iter()
            .map(|m| {
                let rate = |spread: Spread| format!("{:.3} G{}/s", spread.median / 1e9, m.unit);
                let what = m.what.split(':').next().unwrap_or(m.what);
                vec![what.to_owned(), rate(m.per_second), format!("{} ({})", rate(m.yardstick_per_second), m.yardstick)]
            })
            .collect();
        text::table(&mut out, &["  work", "speed", "yardstick"], &rows);
        if let Some(Quantiles { samples, median, p90, p99, longest }) = self.suspending {
            let _ = writeln!(
                out,
                "  suspending, {samples} times, in microseconds: median {median:.0}, 90% {p90:.0}, 99% {p99:.0}, longest {longest:.0}"
            );
        }
        text::heading(&mut out, "Published by others");
        for published in &self.published {
            let _ = writeln!(out, "  {}: {} ({})", published.what, published.value, published.source);
        }
        text::tail(&self.head, &mut out);
        out
    }

    fn page(&self) -> (&'static str, String) {
        let mut body = String::from("<p>What the software GPU computes in a second, by what the host does itself.</p>");
        page::head(&self.head, &mut body);
        page::targets(&self.head, &mut body);
        page::left_out(&self.head, &mut body);
        ("vkfd bench compute", body)
    }
}
