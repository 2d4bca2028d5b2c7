// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HIP: copies of every kind, on streams, within each GPU and between four, memset, and managed memory. A kernel of the program's own must end with
//! words.

use anyhow::Result;

use super::source::Source;
use super::{packages, Client, Report, Stand};

pub(crate) const CLIENT: Client =
    Client { name: "hip", packages: &["libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"], check };

/// The program that is run.
pub(crate) const PROGRAM: Source =
    Source { file: "clients/hip/hip_copies.cpp", arguments: &["-D__HIP_PLATFORM_AMD__", "-lamdhip64"] };

/// The program that uses managed memory.
pub(crate) const MANAGED: Source =
    Source { file: "clients/hip/hip_managed.cpp", arguments: &["-D__HIP_PLATFORM_AMD__", "-lamdhip64"] };

/// What [`MANAGED`] says where a GPU leaves the last byte of a copy out.
pub(crate) const MANAGED_SHORT: &str = "FAILED: the GPU reads";

const BUFFERS: &str = "500";

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    let program = stand.compile(&PROGRAM)?;
    let old = packages::version("libamdhip64-5")?.starts_with("5.2");
    // What is newer than HIP 5.2 can be taken for its predecessor.
    let newer = if old { &[("HSA_OVERRIDE_GFX_VERSION", "10.3.0")][..] } else { &[] };
    let managed = stand.compile(&MANAGED)?;
    for (options, gpus, environment) in [
        (&["--target", "gfx900"][..], "1", &[][..]),
        (&["--target", "gfx1030"], "1", &[]),
        (&["--target", "gfx1100"], "1", newer),
        (&["--target", "gfx90a", "--gpus", "4"], "4", &[]),
        (&["--preset", "frontier-node"], "4", &[]),
    ] {
        let ran = stand.run(options, &program, &[gpus, BUFFERS], environment)?;
        let right = ran.succeeded() && ran.stdout.contains("all bytes right") && ran.stdout.ends_with("ok\n");
        let what = format!("HIP, {}: copies of every kind, {BUFFERS} registered buffers a GPU", options.join(" "));
        report.expect(right, &what, &ran);
        let ran = stand.run(options, &managed, &[gpus], environment)?;
        let right = ran.succeeded() && ran.stdout.contains("all bytes right") && ran.stdout.ends_with("ok\n");
        let what = format!("HIP, {}: managed memory, prefetched, advised, set and copied", options.join(" "));
        report.expect(right, &what, &ran);
    }
    let kernel = stand.run(&[], &program, &["kernel"], &[])?;
    let named = kernel.stderr.contains("cannot run kernel add_one");
    let ended = !kernel.succeeded() && !kernel.stdout.contains("has run");
    report.expect(named && ended, "HIP: a kernel of the program's own ends it, and is named", &kernel);
    // The same library unbroken: what follows is the sabotage's doing.
    let sound = stand.broken("", &[], &program, &["1", "20"])?;
    report.expect(sound.succeeded(), "HIP: copies with the library of the controls, nothing broken", &sound);
    let all = &["1", "20"][..];
    for (sabotage, arguments, what, sign) in [
        ("copy", all, "a GPU that leaves the last byte of a copy out", "FAILED: pageable memory"),
        ("blit", all, "a GPU that leaves the last byte out of copies within it", "FAILED: within a GPU"),
        ("blit", &["memset"], "a GPU that leaves the last byte out of a memset", "FAILED: memset"),
        ("identity", all, "a driver that takes GPU addresses for CPU addresses", ""),
    ] {
        let ran = stand.broken(sabotage, &[], &program, arguments)?;
        let noticed = !ran.succeeded() && !ran.stdout.ends_with("ok\n") && ran.stdout.contains(sign);
        report.expect(noticed, &format!("control: {what} is noticed"), &ran);
    }
    let short = stand.broken("copy", &[], &managed, &["1"])?;
    let noticed = !short.succeeded() && short.stdout.contains(MANAGED_SHORT);
    report.expect(
        noticed,
        "control: a GPU that leaves the last byte of a copy out is noticed in managed memory",
        &short,
    );
    Ok(())
}
