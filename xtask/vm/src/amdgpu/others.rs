// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs that others wrote, on AMD's driver: what `cargo xtask programs --amdgpu` runs.
//!
//! Mechanism: as [`super::super::others`], in a guest of [`Machine`]. Tests of a driver make it
//! report errors, so of the kernel's log only a warning, a bug and a driver that does not answer
//! are findings. A register that the device does not model is one, too.

use std::path::Path;

use anyhow::{ensure, Result};

use super::super::others::{self, Seen, AMDGPU_TARGET};
use super::super::progress::minutes;
use super::super::Flavor;
use super::machine::{Machine, Wanted};
use super::series::Series;
use super::{unmodelled, SETTLE};

/// Some of them fill twice the GPU's memory, and the save areas of 65 queues have 4 GB.
const MIB: u32 = 10240;

/// Runs `programs` in a guest whose kernel has the patches of `series`, if there are any.
pub fn run(
    target: &str,
    libraries: &[&str],
    series: Option<&Path>,
    parameters: &str,
    programs: &[others::Wanted],
) -> Result<Seen> {
    ensure!(target == AMDGPU_TARGET, "the device for AMD's driver is a {AMDGPU_TARGET} and no {target}");
    let series = series.map(|path| Series { path: path.into(), flavor: Flavor::Plain });
    let machine = Machine::new(series.as_ref())?;
    println!("{target}, on amdgpu.ko of Linux {}, in QEMU {}", machine.kernel.version, machine.parts.qemu_version);
    let commands = [(SETTLE, 60)];
    let wanted = Wanted {
        name: "others",
        parameters,
        commands: &commands,
        others: programs,
        others_libraries: libraries,
        memory_mib: Some(MIB),
        ..Wanted::default()
    };
    let ran = machine.boot(&wanted, |record| {
        others::tell(record);
        true
    })?;
    let (ended, _) = others::ended(&ran.outcome.records);
    let wrote = ran.directory.join("programs.log");
    others::keep(&ended, &wrote)?;
    let names: Vec<(&str, u64)> = programs.iter().map(|program| (program.name.as_str(), 0)).chain(commands).collect();
    let mut findings = super::findings(&ran, &names, true);
    findings.extend(unmodelled(&ran)?);
    println!(
        "  from power-on to the end {}; {}; logs and what the programs wrote: {}",
        minutes(ran.outcome.took),
        ran.summary.counts,
        ran.directory.display()
    );
    Ok(Seen { programs: ended, findings })
}
