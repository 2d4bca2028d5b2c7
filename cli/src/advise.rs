// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd advise FILE`: runs of many single registrations in a trace, and what one batch each would
//! have cost.
//!
//! A run is a series of registrations by one thread, range by range, with the same flags for the
//! same GPU. It has no long pauses, and nothing of it is freed in between. The parts of a run would
//! be one contiguous GPU range in a batch; only the program knows whether it can use them so.

mod trace;

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use vkfd_bench::predict::{self, Benchmark, Prediction};

use self::trace::{Call, What};
use crate::format;

#[derive(clap::Args)]
pub struct AdviseArgs {
    /// The trace
    file: PathBuf,
    /// The output of `vkfd bench userptr --json`, instead of measuring now
    #[arg(long, value_name = "FILE")]
    bench: Option<PathBuf>,
    /// Report runs of at least N registrations
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..))]
    least: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A pause that ends a run.
const PAUSE: f64 = 0.1;

/// Registrations that could have been one.
#[derive(Debug, PartialEq)]
struct Run {
    thread: u64,
    gpu: String,
    flags: String,
    /// Seconds, as the trace has them.
    begin: f64,
    end: f64,
    /// Bytes of each, whole pages.
    sizes: Vec<u64>,
    handles: Vec<u64>,
    /// Seconds in the calls that registered and mapped them.
    cost: f64,
}

/// Finds the runs of at least `least`.
fn runs(calls: impl Iterator<Item = Result<Call>>, least: usize) -> Result<(Vec<Run>, usize)> {
    let (mut open, mut done): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
    let mut registrations = 0;
    for call in calls {
        let call = call?;
        let (old, current) = open.into_iter().partition(|run| call.time - run.end > PAUSE);
        done.extend::<Vec<Run>>(old);
        open = current;
        match call.what {
            What::Register { size, handle, gpu, flags } => {
                registrations += 1;
                let same = |run: &&mut Run| run.thread == call.thread && run.gpu == gpu && run.flags == flags;
                if let Some(run) = open.iter_mut().find(same) {
                    run.end = call.time + call.took;
                    run.sizes.push(size);
                    run.handles.push(handle);
                    run.cost += call.took;
                } else {
                    let (begin, end) = (call.time, call.time + call.took);
                    open.push(Run {
                        thread: call.thread,
                        gpu,
                        flags,
                        begin,
                        end,
                        sizes: vec![size],
                        handles: vec![handle],
                        cost: call.took,
                    });
                }
            }
            What::Map { handle } => {
                if let Some(run) = open.iter_mut().find(|run| run.handles.contains(&handle)) {
                    run.cost += call.took;
                    run.end = call.time + call.took;
                }
            }
            What::Free { handle } => {
                // What comes after may be in the same memory.
                let (ended, current) = open.into_iter().partition(|run| run.handles.contains(&handle));
                done.extend::<Vec<Run>>(ended);
                open = current;
            }
            What::Other => {}
        }
    }
    done.extend(open);
    done.retain(|run| run.sizes.len() >= least);
    done.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    Ok((done, registrations))
}

pub fn run(args: &AdviseArgs) -> Result<ExitCode> {
    let name = args.file.display();
    let file = File::open(&args.file).with_context(|| format!("cannot open {name}"))?;
    let calls = trace::read(BufReader::new(file));
    let least = usize::try_from(args.least)?;
    let (runs, registrations) = runs(calls, least).with_context(|| format!("cannot read {name}"))?;
    let benchmark = match &args.bench {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            Some(Benchmark::read(BufReader::new(file)).with_context(|| format!("cannot use {}", path.display()))?)
        }
        None => None,
    };
    let mut advice = Vec::new();
    for run in &runs {
        let predicted = match &benchmark {
            Some(benchmark) => benchmark.predict(run.sizes.len(), run.sizes.iter().sum())?,
            None => predict::measure(&run.sizes)?,
        };
        advice.push((run, predicted));
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", document(registrations, &advice))?;
    } else {
        out.write_all(text(registrations, &advice, least, args.bench.is_some()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn document(registrations: usize, advice: &[(&Run, Prediction)]) -> serde_json::Value {
    let runs = advice.iter().map(|(run, predicted)| {
        json!({
            "thread": run.thread, "gpu": run.gpu, "flags": run.flags, "begin": run.begin, "end": run.end,
            "registrations": run.sizes.len(), "bytes": run.sizes.iter().sum::<u64>(), "seconds": run.cost,
            "predicted": { "batch_seconds": predicted.batch.as_secs_f64(), "single_seconds": predicted.single.as_secs_f64() },
        })
    });
    json!({ "registrations": registrations, "runs": runs.collect::<Vec<_>>() })
}

fn text(registrations: usize, advice: &[(&Run, Prediction)], least: usize, recorded: bool) -> String {
    let mut text = format!("{} single registrations\n", format::count(registrations as u64));
    if advice.is_empty() {
        text += &format!("No run of {least} or more that could have been one batch.\n");
        return text;
    }
    let time = |seconds: f64| format::time(Duration::from_secs_f64(seconds));
    for (number, (run, predicted)) in (1..).zip(advice) {
        let (count, bytes) = (run.sizes.len(), run.sizes.iter().sum::<u64>());
        text += &format!(
            "\n{number}. thread {}, {:.3} s to {:.3} s: {} registrations, {}, {} for GPU {}\n",
            run.thread,
            run.begin,
            run.end,
            format::count(count as u64),
            format::bytes(bytes),
            run.flags,
            run.gpu
        );
        text += &format!("   in the trace {}, registering and mapping\n", time(run.cost));
        text += &format!(
            "   here one batch takes {}, one call per range {} ({}): {:.1} times faster\n",
            format::time(predicted.batch),
            format::time(predicted.single),
            if recorded { "by the benchmark's result" } else { "measured now, on memory of this shape" },
            predicted.single.as_secs_f64() / predicted.batch.as_secs_f64().max(1e-9)
        );
    }
    text += "\nA batch makes one contiguous GPU range of all of them, in one call: `register_ranges` of the client library, or the\n\
             ioctl 0xC0304B28 where the driver says that it has it. Its parts are freed together.\n\
             This is for who writes the runtime. A program that uses HIP does not open KFD itself; its runtime would make the call.\n";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: u64, gap: f64) -> String {
        let mut text = String::new();
        for i in 0..count {
            let (at, handle) = (100.0 + i as f64 * gap, i + 16);
            text += &format!(
                "{at:13.6} 7 ALLOC_MEMORY_OF_GPU va_addr={:#x} size=8192 handle=0x0 mmap_offset=0x7f0000000000 gpu_id=0x4b01 \
                 flags=USERPTR|WRITABLE -> ok handle={handle:#x} mmap_offset=0x0 (10.0 us)\n",
                0x1000_0000 + i * 8192
            );
            text +=
                &format!("{at:13.6} 7 MAP_MEMORY_TO_GPU handle={handle:#x} n_devices=1 -> ok n_success=1 (5.0 us)\n");
        }
        text
    }

    fn found(text: &str) -> (Vec<Run>, usize) {
        runs(trace::read(text.as_bytes()), 16).unwrap()
    }

    #[test]
    fn many_single_registrations_are_a_run() {
        let (runs, registrations) = found(&lines(100, 0.0001));
        assert_eq!((runs.len(), registrations), (1, 100));
        assert_eq!((runs[0].sizes.len(), runs[0].sizes[0], runs[0].thread), (100, 8192, 7));
        assert!((runs[0].cost - 100.0 * 15e-6).abs() < 1e-9, "{}", runs[0].cost);
    }

    #[test]
    fn a_trace_that_was_cut_is_used_up_to_there() {
        let text = lines(100, 0.0001);
        let (_, whole) = found(&text);
        // In the middle of a line, in a number of several bytes, and between two.
        for cut in [text.len() - 20, text.len() - 1] {
            let (runs, registrations) = found(&text[..cut]);
            assert!(runs.len() == 1 && registrations >= whole - 1, "{cut}");
        }
        let bad = text.replacen(" -> ", " ", 1);
        assert!(runs(trace::read(bad.as_bytes()), 16).is_err(), "but not one that is wrong elsewhere");
    }

    #[test]
    fn few_or_rare_or_batch_registrations_are_none() {
        assert_eq!(found(&lines(15, 0.0001)).0.len(), 0);
        assert_eq!(found(&lines(100, 1.0)).0.len(), 0);
        assert_eq!(found(&lines(100, 0.0001).replace("=USERPTR|", "=USERPTR|USERPTR_BATCH|")), (vec![], 0));
        assert_eq!(found(&lines(100, 0.0001).replace("flags=USERPTR|", "flags=VRAM|")), (vec![], 0));
    }

    #[test]
    fn freeing_ends_a_run() {
        let text = lines(30, 0.0001);
        let (first, rest) = text.split_at(text.match_indices('\n').nth(19).unwrap().0 + 1);
        let freed = format!("{first}   100.001000 7 FREE_MEMORY_OF_GPU handle=0x10 -> ok (1.0 us)\n{rest}");
        let (runs, _) = found(&freed);
        assert_eq!(runs.iter().map(|run| run.sizes.len()).collect::<Vec<_>>(), [20]);
    }
}
