// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd bench opencl`: nine kernels on the software GPU and, where PoCL is installed, by PoCL on
//! the processor itself, from the same source and with the same data.
//!
//! A second software GPU translates nothing: no kernel is to be slower for being translated. All
//! use all processors, and take turns in each round. Their results are compared with a plain model,
//! those of whole numbers and of fused operations bit by bit.
//!
//! | module | |
//! |---|---|
//! | `work` | the kernels' data and sizes, and the models (the source: `nine.cl`) |
//! | `pocl` | PoCL, as a library that may be missing |

mod pocl;
mod work;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde::Serialize;
use vkfd_client::Buffer;
use vkfd_gpu::Translate;

use crate::compute::Rig;
use crate::goal::Goal;
use crate::progress::Progress;
use crate::report::Head;
use crate::run::{Document, Options};
use crate::spread::{Samples, Spread};
use crate::{page, text};
use pocl::Pocl;
use work::{Case, Work, IN_BYTES, OUT_BYTES};

/// Measure nine OpenCL kernels on the software GPU and by PoCL
///
/// Five kernels compute much: an n-body simulation, a mix of integers, a tiled product of matrices,
/// Mandelbrot's set, prices of options. Four move much: a sum, a histogram, a matrix times a vector
/// in double precision, a stencil. PoCL, where it is installed (Debian: pocl-opencl-icd), compiles
/// the same source for the processor. A second GPU interprets all code. All use all processors,
/// take turns in each round, and have their results compared with a plain model. A speed relative
/// to PoCL's is PoCL's time by the GPU's, in the same round; so is one relative to the interpreter.
///
/// With --json the output is one object: schema (2), and version, host and parameters as of `vkfd
/// bench userptr`. It has the lists targets (what, bound, measured, met), left_out (what, why) and
/// measurements (what, seconds, interpreter_seconds, relative_to_interpreter, pocl_seconds,
/// relative_to_pocl), and the number geometric_mean.
///
/// Exit code: 0 when the run completed, 3 with --check when a target was missed.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    options: Options,

    /// Measure only these, one or more of a list with commas (default: all)
    #[arg(long, value_name = "WORK", value_delimiter = ',')]
    only: Vec<Work>,

    /// Do not look for PoCL
    #[arg(long)]
    no_pocl: bool,
}

/// The kernels, compiled from `nine.cl`, and their source.
const CODE: &[u8] = include_bytes!("nine.co");
const SOURCE: &str = include_str!("nine.cl");

const LEAST: &str = "the slowest kernel: speed relative to the interpreter";
const MEAN: &str = "all kernels: geometric mean of speeds relative to PoCL";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Gpu,
    Interpreter,
    Pocl,
}

/// A kernel's times.
#[derive(Clone, Debug, Serialize)]
struct Measurement {
    what: &'static str,
    seconds: Spread,
    interpreter_seconds: Spread,
    relative_to_interpreter: Spread,
    pocl_seconds: Option<Spread>,
    relative_to_pocl: Option<Spread>,
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    measurements: Vec<Measurement>,
    /// Of the speeds relative to PoCL's.
    geometric_mean: Option<f64>,
}

/// A software GPU with room for the kernels' data.
struct Gpu {
    rig: Rig,
    from: Buffer,
    to: Buffer,
}

impl Gpu {
    fn new(translate: Translate) -> Result<Gpu> {
        let rig = Rig::with(CODE, translate)?;
        let (from, to) = (rig.memory(IN_BYTES)?, rig.memory(OUT_BYTES)?);
        Ok(Gpu { rig, from, to })
    }

    /// Runs a kernel; its results are in `found`.
    fn run(&mut self, work: Work, case: &Case, found: &mut [u8]) -> Result<Duration> {
        let buffers = [&self.from, &self.to].into_iter().flat_map(|buffer| buffer.gpu_va().0.to_le_bytes());
        let args: Vec<u8> = buffers.chain(case.numbers.iter().flat_map(|number| number.to_le_bytes())).collect();
        self.to.write(0, &vec![0; case.out_bytes])?;
        let took = self.rig.run(work.kernel(), &args, case.grid, case.group)?;
        self.to.read(0, found)?;
        Ok(took)
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

fn measure(args: &Args) -> Result<Report> {
    let options = &args.options;
    let mut report =
        Report { head: options.head(0, "none".to_owned()), measurements: Vec::new(), geometric_mean: None };
    let works: Vec<Work> =
        Work::ALL.iter().copied().filter(|w| args.only.is_empty() || args.only.contains(w)).collect();
    for work in Work::ALL.iter().filter(|work| !works.contains(work)) {
        report.head.leave_out(work.kernel(), "not asked for (--only)");
    }
    let mut pocl = if args.no_pocl { Err("not asked for (--no-pocl)".to_owned()) } else { Pocl::new(SOURCE) };
    if let Err(why) = &pocl {
        report.head.leave_out("PoCL", why.clone());
    }
    let (progress, rounds) = (Progress::new(), options.rounds());
    let bar = progress.bar("running kernels", works.len() * rounds);
    let (mut gpu, mut interpreter) = (Gpu::new(Translate::On)?, Gpu::new(Translate::Off)?);
    for work in works {
        let case = Case::of(work, options.quick);
        let input = case.input();
        gpu.from.write(0, &input)?;
        interpreter.from.write(0, &input)?;
        if let Ok(pocl) = &mut pocl {
            pocl.write(&input)?;
        }
        let expected = case.expected(&input);
        let mut samples = Samples::default();
        let mut found = vec![0; case.out_bytes];
        // The first turn is not counted: code is compiled or translated in it.
        for round in 0..=rounds {
            let mut add = |who, time: Duration| {
                if round > 0 {
                    samples.add_to(round, who, time);
                }
            };
            for turn in 0..3 {
                match ((round + turn) % 3, &mut pocl) {
                    (0, _) => add(Who::Gpu, gpu.run(work, &case, &mut found)?),
                    (1, _) => add(Who::Interpreter, interpreter.run(work, &case, &mut found)?),
                    (_, Ok(pocl)) => add(Who::Pocl, pocl.run(&case, &mut found)?),
                    _ => continue,
                }
                case.check(&expected, &found).with_context(|| work.kernel().to_owned())?;
            }
            if round > 0 {
                bar.advance();
            }
        }
        let seconds = samples.spread(Who::Gpu).context("no samples")?;
        let ratio = samples.ratio(Who::Pocl, Who::Gpu);
        let interpreted = samples.ratio(Who::Interpreter, Who::Gpu).context("no samples")?;
        report.measurements.push(Measurement {
            what: work.kernel(),
            seconds,
            interpreter_seconds: samples.spread(Who::Interpreter).context("no samples")?,
            relative_to_interpreter: interpreted,
            pocl_seconds: samples.spread(Who::Pocl),
            relative_to_pocl: ratio,
        });
        if ratio.is_some() {
            report.head.targets.push(Goal::at_least(work.goal(), work.limit(is_wide()), ratio));
        }
    }
    let relative = report.measurements.iter().map(|m| m.relative_to_interpreter);
    let least = relative.min_by(|one, other| one.median.total_cmp(&other.median));
    if least.is_some() {
        report.head.targets.push(Goal::at_least(LEAST, 0.9, least));
    }
    let ratios: Vec<f64> = report.measurements.iter().filter_map(|m| m.relative_to_pocl).map(|r| r.median).collect();
    if ratios.len() == Work::ALL.len() {
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        ensure!(mean.is_finite(), "a kernel took no time");
        report.geometric_mean = Some(mean);
        report.head.targets.push(Goal::at_least(MEAN, if is_wide() { 1.4 } else { 1.0 }, Spread::of([mean])));
    }
    Ok(report)
}

/// Whether the translator has vectors of 64 bytes, from which more is expected.
fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512dq");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl Document for Report {
    fn head(&mut self) -> &mut Head {
        &mut self.head
    }

    fn text(&self) -> String {
        let mut out = text::head(&self.head);
        text::heading(&mut out, "Times in ms");
        let ms = |spread: Spread| format!("{:.2}", spread.median * 1e3);
        let maybe = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let mut rows: Vec<Vec<String>> = self
            .measurements
            .iter()
            .map(|m| {
                let ratio = m.relative_to_pocl.map(|ratio| format!("{:.2}", ratio.median));
                let interpreted = format!("{:.2}", m.relative_to_interpreter.median);
                let times = [ms(m.seconds), ms(m.interpreter_seconds), interpreted];
                let pocl = [maybe(m.pocl_seconds.map(ms)), maybe(ratio)];
                [m.what.to_owned()].into_iter().chain(times).chain(pocl).collect()
            })
            .collect();
        if let Some(mean) = self.geometric_mean {
            let empty = String::new;
            rows.push(vec!["geometric mean".to_owned(), empty(), empty(), empty(), empty(), format!("{mean:.2}")]);
        }
        let titles =
            ["  kernel", "software GPU", "interpreter", "speed by the interpreter's", "PoCL", "speed by PoCL's"];
        text::table(&mut out, &titles, &rows);
        text::tail(&self.head, &mut out);
        out
    }

    fn page(&self) -> (&'static str, String) {
        let mut body = String::from("<p>Nine kernels on the software GPU, and by PoCL on the processor.</p>");
        page::head(&self.head, &mut body);
        page::targets(&self.head, &mut body);
        page::left_out(&self.head, &mut body);
        ("vkfd bench opencl", body)
    }
}
