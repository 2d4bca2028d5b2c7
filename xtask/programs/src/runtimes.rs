// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Debian 13's runtimes, HIP 5.7.1 and OpenCL on ROCR 6.1.2: clinfo, and the programs by which
//! `cargo xtask clients` tries Debian 12's HIP.
//!
//! Mechanism: the programs are compiled here, against HIP 5.2.3, and run in the root: HIP 5.7.1 has
//! the same interface. They compare every byte. clinfo says what the OpenCL runtime found.
//!
//! Limits: clinfo runs no kernel.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::machine::Machine;
use super::ran::Ran;
use super::root::WORK;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;
use xtask_base::tree;

pub struct Runtimes;

/// Programs of tests/clients/hip, with their arguments.
const HIP: &[(&str, &[&str])] = &[("hip_copies", &["1", "100"]), ("hip_managed", &["1"])];
const CLINFO: &str = "clinfo";
/// What clinfo says of a GPU that the OpenCL runtime takes, each on a line with its value.
const SAID: &[(&str, &str)] = &[
    ("Number of devices", "1"),
    ("Device Type", "GPU"),
    ("Device Available", "Yes"),
    ("Compiler Available", "Yes"),
    ("Platform Name", "AMD Accelerated Parallel Processing"),
];

impl Suite for Runtimes {
    fn name(&self) -> &'static str {
        "runtimes"
    }

    fn about(&self) -> &'static str {
        "Debian 13's HIP 5.7.1 and OpenCL: copies, managed memory, clinfo"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"]
    }

    fn source(&self) -> Source {
        Source::Root { suite: "trixie", packages: &["libamdhip64-5", "rocm-opencl-icd", "clinfo"] }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx900", "gfx90a", "gfx1030", "gfx1100"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(10 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(120)
    }

    fn units(&self, _source: &Path) -> Result<Vec<String>> {
        Ok([CLINFO].into_iter().chain(HIP.iter().map(|(name, _)| *name)).map(str::to_owned).collect())
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        if unit.name == CLINFO {
            return Ok(Vec::new());
        }
        let mut command = Command::new("c++");
        command.args(["-O1", "-w", "-o"]).arg(unit.at.join("program"));
        command.arg(tree::root().join("tests/clients/hip").join(unit.name).with_extension("cpp"));
        command.args(["-D__HIP_PLATFORM_AMD__", "-lamdhip64"]);
        Ok(vec![command])
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let compiled = format!("{WORK}/program");
        let (program, arguments) = match HIP.iter().find(|(name, _)| *name == unit.name) {
            Some((_, arguments)) => (compiled.as_str(), *arguments),
            None => ("/usr/bin/clinfo", &[][..]),
        };
        let ran = machine.run_in_root(unit, program, self.options(unit.name), arguments, self.patience())?;
        Ok(vec![Case { name: unit.name.into(), outcome: self.judge(unit.name, &ran) }])
    }

    fn judge(&self, unit: &str, ran: &Ran) -> Outcome {
        let right = match unit {
            CLINFO => SAID.iter().all(|(what, value)| says(&ran.stdout, what, value)),
            _ => ran.stdout.contains("all bytes right") && ran.stdout.ends_with("ok\n"),
        };
        match right && ran.code == Some(0) {
            true => Outcome::Passed,
            false => Outcome::Failed(ran.why()),
        }
    }

    fn controls(&self) -> &'static [Control] {
        const { &[Control::new("cu.handler=v_mov_b32", "hip_copies", "gfx900")] }
    }
}

/// Whether clinfo has a line with this property and value.
fn says(text: &str, what: &str, value: &str) -> bool {
    text.lines().any(|line| line.trim().strip_prefix(what).is_some_and(|said| said.trim() == value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clinfo_is_read_by_lines() {
        let text = "Number of devices                  1\n  Device Type                       GPU\n";
        assert!(says(text, "Number of devices", "1") && says(text, "Device Type", "GPU"));
        assert!(!says(text, "Device Type", "CPU") && !says(text, "Device", "GPU"));
    }
}
