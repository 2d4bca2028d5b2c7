// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages that go and come back while a kernel uses them: with evictions, and by retried faults.

use anyhow::Result;
use vkfd_sabotage::Switch;

use super::hip_kernels::TARGETS;
use super::source::Source;
use super::{Client, Ran, Report, Stand};

pub const CLIENT: Client =
    Client { name: "hip-pages", packages: &["hipcc", "libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"], check };

/// The program.
pub const PROGRAM: Source = Source { file: "tests/clients/hip/hip_pages.hip", arguments: TARGETS };

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    let program = stand.compile(&PROGRAM)?;
    let followed = |ran: &Ran, event: &str| {
        let words = format!("100 of 100 pages were followed by {event}");
        ran.succeeded() && ran.stdout.contains(&words)
    };
    for target in ["gfx900", "gfx90a", "gfx1030"] {
        let ran = stand.run(&["--target", target], &program, &["evictions", "100"], &[])?;
        let empty = ran.stdout.contains("0 of 100 new pages had the old contents");
        let what = format!("HIP, {target}: a running kernel follows 100 pages that were replaced");
        report.expect(followed(&ran, "an eviction") && empty, &what, &ran);
    }
    // A running kernel may see what was in a GPU's memory for a moment more:
    // docs/design/user-host.md.
    for (how, about) in [("retries", "side by side"), ("apart", "without neighbours")] {
        let ran = stand.run(&["--target", "gfx90a", "--xnack"], &program, &[how, "100"], &[("HSA_XNACK", "1")])?;
        let what = format!("HIP, gfx90a with XNACK: the same by retried faults, without an eviction, {about}");
        report.expect(followed(&ran, "a fault"), &what, &ran);
    }

    let few = ["evictions", "3", "3"];
    let sound = stand.broken("", &[], &program, &few)?;
    report.expect(sound.succeeded(), "HIP: replaced pages with the library of the controls, nothing broken", &sound);
    let broken = stand.broken(Switch::Invalidation.name(), &[], &program, &few)?;
    // The GPU finds the old page gone, or the kernel still has it.
    let told = broken.stderr.contains("STALE PAGE") || broken.stdout.contains("FAILED: the kernel");
    let noticed = !broken.succeeded() && told;
    report.expect(noticed, "control: a driver that ignores invalidations is noticed", &broken);
    Ok(())
}
