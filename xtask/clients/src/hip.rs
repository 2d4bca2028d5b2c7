// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HIP: copies of every kind, on streams, within each GPU and between four, memset, and managed
//! memory, and a kernel that the program compiles while it runs.

use anyhow::Result;
use vkfd_sabotage::Switch;

use super::source::Source;
use super::{Client, Report, Stand};
use xtask_base::debian;

pub const CLIENT: Client =
    Client { name: "hip", packages: &["libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"], check };

/// The program that is run.
pub const PROGRAM: Source =
    Source { file: "tests/clients/hip/hip_copies.cpp", arguments: &["-D__HIP_PLATFORM_AMD__", "-lamdhip64"] };

/// The program that uses managed memory.
pub const MANAGED: Source =
    Source { file: "tests/clients/hip/hip_managed.cpp", arguments: &["-D__HIP_PLATFORM_AMD__", "-lamdhip64"] };

/// What [`MANAGED`] says where a GPU leaves the last byte of a copy out.
pub const MANAGED_SHORT: &str = "FAILED: the GPU reads";

const BUFFERS: &str = "500";

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    let program = stand.compile(&PROGRAM)?;
    let old = debian::version("libamdhip64-5")?.starts_with("5.2");
    // HIP 5.2 does not know gfx1100, and another target's kernels are not its own.
    let newer = (!old).then_some((&["--target", "gfx1100"][..], "1", &[][..]));
    let managed = stand.compile(&MANAGED)?;
    for (options, gpus, environment) in [
        (&["--target", "gfx900"][..], "1", &[][..]),
        (&["--target", "gfx1030"], "1", &[]),
        (&["--target", "gfx90a", "--gpus", "4"], "4", &[]),
        (&["--preset", "frontier-node"], "4", &[]),
    ]
    .into_iter()
    .chain(newer)
    {
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
    let right = kernel.succeeded() && kernel.stdout.contains("the kernel has run");
    report.expect(right, "HIP: a kernel that the program compiles runs", &kernel);
    // The same library unbroken: what follows is the sabotage's doing.
    let sound = stand.broken("", &[], &program, &["1", "20"])?;
    report.expect(sound.succeeded(), "HIP: copies with the library of the controls, nothing broken", &sound);
    let all = &["1", "20"][..];
    for (sabotage, arguments, what, sign) in [
        (Switch::ShortCopy, all, "a GPU that leaves the last byte of a copy out", "FAILED: pageable memory"),
        (Switch::ShortGrid, &["memset"], "a GPU that leaves the last work-item out, in a memset", "FAILED: memset"),
        (Switch::Identity, all, "a driver that takes GPU addresses for CPU addresses", ""),
    ] {
        let ran = stand.broken(sabotage.name(), &[], &program, arguments)?;
        let noticed = !ran.succeeded() && !ran.stdout.ends_with("ok\n") && ran.stdout.contains(sign);
        report.expect(noticed, &format!("control: {what} is noticed"), &ran);
    }
    let short = stand.broken(Switch::ShortCopy.name(), &[], &managed, &["1"])?;
    let noticed = !short.succeeded() && short.stdout.contains(MANAGED_SHORT);
    report.expect(
        noticed,
        "control: a GPU that leaves the last byte of a copy out is noticed in managed memory",
        &short,
    );
    Ok(())
}
