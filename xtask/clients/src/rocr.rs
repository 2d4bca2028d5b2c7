// SPDX-License-Identifier: GPL-2.0 OR MIT
//! ROCR: thousands of locked buffers, asynchronous copies both ways, compared byte for byte; and
//! SVM memory, prefetched and used in place.

use anyhow::Result;
use vkfd_sabotage::Switch;

use super::source::Source;
use super::{Client, Report, Stand};

pub const CLIENT: Client = Client {
    name: "rocr",
    packages: &["libhsa-runtime-dev", "libhsa-runtime64-1", "libhsakmt1", "gcc", "libc6-dev"],
    check,
};

/// The program that is run.
pub const PROGRAM: Source = Source { file: "tests/clients/rocr/copies.c", arguments: &["-lhsa-runtime64"] };

/// The program that uses SVM.
pub const SVM: Source = Source { file: "tests/clients/rocr/svm.c", arguments: &["-lhsa-runtime64"] };

/// What [`SVM`] says where a GPU leaves a part of a copy out.
pub const SVM_SHORT: &str = "FAILED: a GPU: word";

const BUFFERS: &str = "2000";
/// MiB that go to each GPU.
const MIB: &str = "16";
const MACHINES: [&[&str]; 4] =
    [&["--target", "gfx900"], &["--target", "gfx1030"], &["--target", "gfx90a"], &["--preset", "frontier-node"]];

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    let program = stand.compile(&PROGRAM)?;
    for options in MACHINES {
        let ran = stand.run(options, &program, &[BUFFERS], &[])?;
        let right = ran.succeeded() && ran.stdout.contains("all bytes right") && ran.stdout.ends_with("ok\n");
        report.expect(right, &format!("ROCR, {}: {BUFFERS} locked buffers, copied both ways", options.join(" ")), &ran);
    }
    // The same library unbroken: what follows is the sabotage's doing.
    let sound = stand.broken("", &[], &program, &["50"])?;
    report.expect(sound.succeeded(), "ROCR: 50 buffers with the library of the controls, nothing broken", &sound);
    for (sabotage, what, sign) in [
        (Switch::ShortCopy, "a GPU that leaves the last byte of a copy out", "FAILED: buffer"),
        (Switch::Identity, "a driver that takes GPU addresses for CPU addresses", "FAILED: "),
    ] {
        let ran = stand.broken(sabotage.name(), &[], &program, &["50"])?;
        let noticed = ran.code == Some(1) && ran.stdout.contains(sign);
        report.expect(noticed, &format!("control: {what} is noticed"), &ran);
    }
    check_svm(stand, report)
}

fn check_svm(stand: &Stand, report: &mut Report) -> Result<()> {
    let program = stand.compile(&SVM)?;
    for options in MACHINES {
        let ran = stand.run(options, &program, &[MIB], &[])?;
        let right = ran.succeeded() && ran.stdout.contains("all bytes right") && ran.stdout.ends_with("ok\n");
        let what = format!("ROCR, {}: SVM memory prefetched to each GPU, used there in place", options.join(" "));
        report.expect(right, &what, &ran);
    }
    let short = stand.broken(Switch::ShortGrid.name(), &[], &program, &["2"])?;
    let noticed = short.code == Some(1) && short.stdout.contains(SVM_SHORT);
    report.expect(noticed, "control: a GPU that leaves the last work-item out is noticed in SVM memory", &short);
    Ok(())
}
