// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd bench native`: the cost for a virtual machine of letting a GPU use its memory, measured
//! without the virtual machine. The device of `vkfd virtio-gpu` and its guests are in this process.
//!
//! | module | |
//! |---|---|
//! | `cell` | what is measured |
//! | `rig` | the machine, its guests, one job |
//! | `report` | what was found |

mod cell;
mod page;
mod render;
mod report;
mod rig;
mod text;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, ensure, Result};
use vkfd_sabotage::Switches;

use crate::goal::{Goal, GUEST_JOB, GUEST_REGISTER};
use crate::peer::max_map_count;
use crate::progress::Progress;
use crate::run::Options;
use crate::spread::{turns, Samples};
use crate::text::{bytes, count, time};
use cell::{Cell, Pass, Stage, Way};
use report::Report;
use rig::{List, Rig};

/// Measure what a virtual machine's buffer costs: register, map, one pass of the GPU, free
///
/// A guest's buffer is one range to the guest and thousands of pieces to the host. The device of
/// `vkfd virtio-gpu` runs in this process, and so do its guests, whose memory is a file. Without a
/// virtual machine, the host's work is measured alone. Buffers have 1 to 65,536 pages, which are no
/// neighbours and in an order without a pattern. They are registered by batch, by one call per
/// range, and by mremap into one range; 100 is the same job with a buffer in one piece. All take
/// turns in every round. A pass is a kernel of the guest that adds all words up, or a copy by SDMA,
/// or a plain copy of the same pieces by the processor. The result of each pass is checked: a wrong
/// sum or copy ends the run.
///
/// Times are of the processor, not of the clock: what this process and all threads of its GPU have
/// used. Other programs disturb them less.
///
/// With --json the output is one object: schema (2), and version, date, host and parameters as of
/// `vkfd bench userptr`. Its lists are targets (what, bound, measured, met), left_out (what, why),
/// jobs (pages, pieces, way, pass, percent), registrations (pages, relative_to_local),
/// measurements, and published (what, way, percent, source). A measurement has pages, pieces, way,
/// pass, stage, seconds and relative_to_not_scattered. Ways are not_scattered, batch, per_range,
/// mremap and local, passes kernel, copy and processor. A spread is median, q1, q3 (quartiles) and
/// the number of samples; times are in seconds.
///
/// --device is refused: there the guests are the kernel's own.
///
/// Exit code: 0 when the run completed, 2 when a pass found other memory than the guest has, 3 with
/// --check when a target was missed.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    options: Options,
}

/// Pages of the buffers, in a full run and in a quick one.
const SIZES: [u64; 6] = [1, 16, 256, 4096, 16_384, 65_536];
const QUICK: [u64; 4] = [1, 256, 4096, 16_384];
/// The one that the targets are of.
const AIM: u64 = 16_384;

/// Runs the benchmark and reports.
///
/// # Errors
///
/// When the driver cannot be started, it refuses something, a pass finds other memory than the
/// guest has, or the report cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.options.run(|| measure(&args.options))
}

fn measure(options: &Options) -> Result<Report> {
    ensure!(
        options.device.is_none(),
        "this benchmark's device is in this process: --device is of `vkfd bench userptr` and `migrate`"
    );
    let sizes = if options.quick { &QUICK[..] } else { &SIZES };
    let plan = Plan { rounds: options.rounds(), slow: options.slow(), budget: options.budget() };
    let fits = |pages: &u64| rig::needed(*pages) <= plan.budget;
    let Some(largest) = sizes.iter().copied().filter(fits).max() else {
        bail!("{} of memory (--memory) are too little for a page", bytes(plan.budget));
    };
    let mut rig = Rig::new(largest, Switches::NONE)?;
    let mut report = Report::new(options.head(plan.budget, rig.source()));
    for pages in sizes.iter().filter(|pages| !fits(pages)) {
        let why = format!("needs {} of memory (--memory)", bytes(rig::needed(*pages)));
        report.head.leave_out(pieces(*pages), why);
    }
    let sizes: Vec<u64> = sizes.iter().copied().filter(fits).collect();
    compare(&mut rig, &plan, &sizes, &mut report)?;
    Ok(report)
}

/// How much is measured.
struct Plan {
    rounds: usize,
    slow: Duration,
    budget: u64,
}

/// A buffer's pieces in words.
fn pieces(pages: u64) -> String {
    let pieces = if pages == 1 { "piece" } else { "pieces" };
    format!("{} {pieces}", count(usize::try_from(pages).unwrap_or(usize::MAX)))
}

/// All sizes, and the targets.
fn compare(rig: &mut Rig, plan: &Plan, sizes: &[u64], report: &mut Report) -> Result<()> {
    let progress = Progress::new();
    let bar = progress.bar("a guest's buffer", sizes.len() * (plan.rounds + 1));
    // With how many pieces a way first took too long for one sample.
    let mut slow: BTreeMap<Way, u64> = BTreeMap::new();
    for &pages in sizes {
        let lists = [rig.whole(pages), rig.scattered(pages)];
        for (way, before) in &slow {
            let why = format!("{} took longer than {} (--slow)", pieces(*before), time(plan.slow.as_secs_f64()));
            report.head.leave_out(format!("{}, {}", pieces(pages), way.name()), why);
        }
        let mut ways: Vec<Way> = Way::ALL.into_iter().filter(|way| !slow.contains_key(way)).collect();
        for way in Way::SCATTERED {
            if let Some(why) = rig.cannot(way, &lists[1]) {
                report.head.leave_out(format!("{}, {}", pieces(pages), way.name()), why);
                ways.retain(|other| *other != way);
            }
        }
        let mut samples = Samples::default();
        // The first round warms up; a way that is slow has no more than one after it.
        for round in 0..=plan.rounds {
            let mut gone = Vec::new();
            for way in turns(&ways, round) {
                let list = &lists[usize::from(way != Way::NotScattered)];
                let done = one(rig, way, list, round, &mut samples)?;
                rig.rest(way, list);
                match done {
                    // All others are relative to memory that is not scattered, in the same round.
                    Ok(took) if took > plan.slow && way != Way::NotScattered => {
                        slow.entry(way).or_insert(pages);
                        if round > 0 {
                            gone.push(way);
                        }
                    }
                    Ok(_) => {}
                    Err(status) => {
                        let why = refusal(way, status)?;
                        report.head.leave_out(format!("{}, {}", pieces(pages), way.name()), why);
                        gone.push(way);
                    }
                }
            }
            ways.retain(|way| !gone.contains(way));
            beside(rig, &lists, round, &mut samples)?;
            bar.advance();
        }
        report.add(pages, &samples);
    }
    let job = report.jobs.iter().find(|job| (job.pages, job.way, job.pass) == (AIM, Way::Batch, Pass::Kernel));
    report.head.targets.push(Goal::at_least(GUEST_JOB, 90.0, job.map(|job| job.percent)));
    let registration = report.registrations.iter().find(|registration| registration.pages == AIM);
    let ratio = registration.map(|registration| registration.relative_to_local);
    report.head.targets.push(Goal::at_most(GUEST_REGISTER, 1.3, ratio));
    Ok(())
}

/// Why a way is left out that the device has refused. Batch has no excuse.
fn refusal(way: Way, status: i32) -> Result<String> {
    match way {
        Way::PerRange | Way::Mremap => {
            let limit = count(max_map_count());
            Ok(format!("refused with status {status}: a process may have {limit} mappings (vm.max_map_count)"))
        }
        _ => bail!("the device refuses to register a buffer ({}): status {status}", way.name()),
    }
}

/// One way's jobs of a round, of which the first is not counted: how long the longest took by the
/// clock, or the status with which it was refused.
fn one(
    rig: &mut Rig,
    way: Way,
    list: &List,
    round: usize,
    samples: &mut Samples<Cell>,
) -> Result<Result<Duration, i32>> {
    let mut longest = Duration::ZERO;
    for pass in Pass::JOBS {
        let mut sums = [Duration::ZERO; Stage::PARTS.len()];
        let times = list.times();
        for _ in 0..times {
            let job = match rig.job(way, list, pass)? {
                Ok(job) => job,
                Err(status) => return Ok(Err(status)),
            };
            longest = longest.max(job.clock);
            for (sum, part) in sums.iter_mut().zip(job.parts) {
                *sum += part;
            }
        }
        if round > 0 {
            let cell = |stage| Cell { way, pass: Some(pass), stage };
            for (stage, sum) in Stage::PARTS.into_iter().zip(sums) {
                samples.add_to(round, cell(stage), sum / times);
            }
            samples.add_to(round, cell(Stage::Job), sums.iter().sum::<Duration>() / times);
        }
    }
    Ok(Ok(longest))
}

/// What stands beside the jobs in a round: the same registration by a local client, and plain
/// copies.
fn beside(rig: &mut Rig, lists: &[List; 2], round: usize, samples: &mut Samples<Cell>) -> Result<()> {
    let local = rig.local(&lists[1])?;
    let plain = [rig.plain(&lists[0])?, rig.plain(&lists[1])?];
    if round > 0 {
        samples.add_to(round, Cell { way: Way::Local, pass: None, stage: Stage::Register }, local);
        for (way, took) in [Way::NotScattered, Way::Batch].into_iter().zip(plain) {
            samples.add_to(round, Cell { way, pass: Some(Pass::Processor), stage: Stage::Pass }, took);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(rig: &mut Rig, way: Way) -> Result<()> {
        let list = match way {
            Way::NotScattered => rig.whole(64),
            _ => rig.scattered(64),
        };
        for pass in Pass::JOBS {
            rig.job(way, &list, pass)?.map_err(|status| anyhow::anyhow!("status {status}"))?;
        }
        Ok(())
    }

    #[test]
    fn every_way_does_the_whole_job_and_leaves_nothing() {
        let mut rig = Rig::new(64, Switches::NONE).unwrap();
        for way in Way::ALL {
            let before = rig.left();
            small(&mut rig, way).unwrap();
            assert_eq!(rig.left(), before, "what {way:?} has not freed");
        }
    }

    #[test]
    fn a_scattered_list_has_no_neighbours_and_no_pattern() {
        let rig = Rig::new(256, Switches::NONE).unwrap();
        let list = rig.scattered(256);
        assert_eq!(list.runs.len(), 256);
        let steps = list.runs.windows(2).map(|pair| pair[1].address.wrapping_sub(pair[0].address));
        let steps: std::collections::BTreeSet<u64> = steps.collect();
        assert!(!steps.contains(&4096) && steps.len() > 100, "{} steps", steps.len());
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_device_that_registers_other_memory_fails_the_run() {
        use vkfd_sabotage::Switch;
        let broken = |switch: Switch| {
            let mut rig = Rig::new(64, switch.into()).unwrap();
            let wrong = small(&mut rig, Way::Batch).err().map(|error| error.to_string());
            wrong.unwrap_or_else(|| panic!("{switch:?} was not noticed"))
        };
        for switch in [Switch::LastRange, Switch::FirstOnly, Switch::Shifted] {
            let wrong = broken(switch);
            assert!(wrong.contains("the GPU's sum"), "{switch:?}: {wrong}");
        }
        // The sum does not see an order; the copy does.
        let wrong = broken(Switch::Swapped);
        assert!(wrong.contains("of a copy"), "{wrong}");
    }
}
