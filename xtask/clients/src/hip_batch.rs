// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Batch userptr from end to end in a HIP program: 4,000 scattered mallocs as one range, kernels on
//! it, pages that go, eviction and restore. At the end the program asks a GPU for more memory than
//! it has.

use anyhow::Result;
use vkfd_sabotage::Switch;

use super::hip_kernels::TARGETS;
use super::source::Source;
use super::{Client, Report, Stand};

pub const CLIENT: Client =
    Client { name: "hip-batch", packages: &["hipcc", "libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"], check };

pub const BATCH: Source = Source { file: "tests/clients/hip/hip_batch.hip", arguments: TARGETS };

/// As many pieces as the patch series speaks of.
pub const PIECES: &str = "4000";
/// What the program says of each thing that it has done.
const DONE: &[&str] = &[
    "as registered: right\n",
    "discarded: right, evicted and restored\n",
    "replaced: right, evicted and restored\n",
    "paged out while a kernel runs: right, evicted and restored\n",
    "oversubscribed: right\n",
];

/// Whether the program of [`BATCH`] said that all was right.
pub fn all_right(stdout: &str) -> bool {
    DONE.iter().all(|line| stdout.contains(line)) && stdout.ends_with("ok\n")
}

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    let program = stand.compile(&BATCH)?;
    for (options, arguments) in [
        (&["--target", "gfx900"][..], &[PIECES][..]),
        (&["--target", "gfx900", "--vram", "256M"], &[PIECES, "command"]),
        (&["--target", "gfx90a", "--gpus", "2"], &[PIECES]),
        (&["--target", "gfx1030"], &[PIECES]),
    ] {
        let ran = stand.run(options, &program, arguments, &[])?;
        let what = format!("HIP batch of {}, {}", arguments.join(" by "), options.join(" "));
        report.expect(ran.succeeded() && all_right(&ran.stdout), &what, &ran);
    }

    let few = &["400"][..];
    let sound = stand.broken("", &[], &program, few)?;
    report.expect(all_right(&sound.stdout), "HIP batch with the library of the controls, nothing broken", &sound);
    for (switch, what, sign) in [
        // The GPU may see old pages, or none.
        (Switch::Invalidation, "a driver that ignores invalidations", "as registered: right"),
        (Switch::PrefixSum, "a batch whose second range begins a page early", "FAILED: as registered"),
        (Switch::ShortGrid, "a GPU that leaves the last work-item out", "FAILED: as registered"),
    ] {
        let ran = stand.broken(switch.name(), &[], &program, few)?;
        let noticed = !ran.succeeded() && ran.stdout.contains(sign);
        report.expect(noticed, &format!("control: {what} is noticed by a batch's program"), &ran);
    }
    Ok(())
}
