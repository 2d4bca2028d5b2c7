// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HIP programs with kernels of their own, compiled by the distribution's hipcc: atomics, scratch,
//! cooperative groups, functions, streams, managed and registered memory, printf, assert, and what
//! they do wrong.

use anyhow::Result;
use vkfd_sabotage::Switch;

use super::source::Source;
use super::{Client, Report, Stand};

pub const CLIENT: Client =
    Client { name: "hip-kernels", packages: &["hipcc", "libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"], check };

/// What programs with kernels are compiled for.
pub const TARGETS: &[&str] = &["--offload-arch=gfx900", "--offload-arch=gfx90a", "--offload-arch=gfx1030"];
pub const KERNELS: Source = Source { file: "tests/clients/hip/hip_kernels.hip", arguments: TARGETS };
const ERRORS: Source = Source { file: "tests/clients/hip/hip_errors.hip", arguments: TARGETS };

/// Whether the program of [`KERNELS`] said that all was right, and its kernels printed.
pub fn all_right(stdout: &str) -> bool {
    let printed = ["block 0, thread 1\n", "block 1, thread 0\n"].iter().all(|line| stdout.contains(line));
    stdout.matches(": right").count() == 8 && stdout.ends_with("ok\n") && printed
}

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    let program = stand.compile(&KERNELS)?;
    for options in [
        &["--target", "gfx900"][..],
        &["--target", "gfx900", "--threads", "1"],
        &["--target", "gfx90a", "--gpus", "2"],
        &["--target", "gfx1030"],
    ] {
        let ran = stand.run(options, &program, &[], &[])?;
        report.expect(ran.succeeded() && all_right(&ran.stdout), &format!("HIP kernels, {}", options.join(" ")), &ran);
    }
    let ran = stand.run(&["--profile", "--fidelity"], &program, &["vectors", "functions"], &[])?;
    let named = ran.stderr.contains("3addEPKf") && ran.stderr.contains("7computeEPdPfi");
    let inexact = ran.stderr.contains("approximate  v_rcp_f64");
    report.expect(ran.succeeded() && named && inexact, "HIP kernels: what they cost, and what is approximate", &ran);

    let errors = stand.compile(&ERRORS)?;
    for (what, words) in [
        ("assert", &["Device-side assertion `n == 3 && \"three\"' failed"][..]),
        ("trap", &["trap 2 (abort"]),
        // The runtime learns of it, too, and may end the program before the GPU has said its own
        // words.
        ("fault", &["page fault: Write of GPU address 0x1000", "Memory access fault by GPU node-1"]),
    ] {
        let ran = stand.run(&[], &errors, &[what], &[])?;
        let ended = !ran.succeeded() && !ran.stdout.contains("still there");
        let told = words.iter().any(|words| ran.stderr.contains(words) || ran.stdout.contains(words));
        report.expect(ended && told, &format!("HIP kernels: {what} ends the program, and is told"), &ran);
    }

    let sound = stand.broken("", &[], &program, &["atomics"])?;
    report.expect(sound.succeeded(), "HIP kernels with the library of the controls, nothing broken", &sound);
    // A histogram, to which every work-item adds: vectors end before the last one of their grid.
    let broken = stand.broken(Switch::ShortGrid.name(), &[], &program, &["atomics"])?;
    let noticed = !broken.succeeded() && broken.stdout.contains("FAILED");
    report.expect(
        noticed,
        "control: a GPU that leaves the last work-item out is noticed by a kernel's program",
        &broken,
    );
    Ok(())
}
