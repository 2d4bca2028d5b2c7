// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HIP: copies of every kind, on streams, between four GPUs. A copy within one GPU is a kernel, and must end with words.

use anyhow::Result;

use super::{Client, Report, Stand};

pub(crate) const CLIENT: Client =
    Client { name: "hip", packages: &["libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"], check };

const BUFFERS: &str = "500";

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    let program = stand.compile("clients/hip/hip_copies.cpp", &["-D__HIP_PLATFORM_AMD__", "-lamdhip64"])?;
    for (options, gpus) in [
        (&["--target", "gfx900"][..], "1"),
        (&["--target", "gfx1030"], "1"),
        (&["--target", "gfx90a", "--gpus", "4"], "4"),
        (&["--preset", "frontier-node"], "4"),
    ] {
        let ran = stand.run(options, &program, &[gpus, BUFFERS], &[])?;
        let right = ran.succeeded() && ran.stdout.contains("all bytes right") && ran.stdout.ends_with("ok\n");
        let what = format!("HIP, {}: copies of every kind, {BUFFERS} registered buffers a GPU", options.join(" "));
        report.expect(right, &what, &ran);
    }
    let within = stand.run(&[], &program, &["within"], &[])?;
    let named = within.stderr.contains("cannot run kernel __amd_rocclr_copyBuffer");
    let ended = !within.succeeded() && !within.stdout.contains("copied");
    report.expect(named && ended, "HIP: a kernel ends the program, and is named", &within);
    // The same library unbroken: what follows is the sabotage's doing.
    let sound = stand.broken("", &[], &program, &["1", "20"])?;
    report.expect(sound.succeeded(), "HIP: copies with the library of the controls, nothing broken", &sound);
    for (sabotage, what) in [
        ("copy", "a GPU that leaves the last byte of a copy out"),
        ("identity", "a driver that takes GPU addresses for CPU addresses"),
    ] {
        let ran = stand.broken(sabotage, &[], &program, &["1", "20"])?;
        let noticed = !ran.succeeded() && !ran.stdout.contains("all bytes right\nok");
        report.expect(noticed, &format!("control: {what} is noticed"), &ran);
    }
    Ok(())
}
