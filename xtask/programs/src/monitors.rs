// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs that show the state of GPUs, from Debian 13: AMD's rocm-smi, nvtop, radeontop.
//!
//! Mechanism: each runs once, for a program (rocm-smi reads sysfs; nvtop and radeontop ask libdrm).
//! The numbers that are true here have to be in its output: the memory of the GPU, how much of it
//! is in use, and the load. What is of silicon has to be missing without an error.
//!
//! Limits: without a machine that several programs share, a monitor sees its own process alone, and
//! that uses nothing.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::machine::Machine;
use super::ran::Ran;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;

pub struct Monitors;

/// The GPU's memory, 1,342,177,280 bytes: no other number of a machine is this one.
const VRAM: &str = "1280M";

/// A program with its arguments, and texts of its output.
struct Monitor {
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    says: &'static [&'static str],
}

const PYTHON: &str = "/usr/bin/python3.13";
const ROCM_SMI: &str = "/usr/bin/rocm-smi";

const MONITORS: &[Monitor] = &[
    // Temperature, power, partitions and clocks are of silicon.
    Monitor {
        name: "rocm-smi",
        program: PYTHON,
        arguments: &[ROCM_SMI],
        says: &["N/A     N/A    N/A, N/A, 0         None  None", "Unsupported  0%     0%"],
    },
    Monitor {
        name: "rocm-smi-memory",
        program: PYTHON,
        arguments: &[ROCM_SMI, "--showmeminfo", "all", "--json"],
        says: &[
            "\"VRAM Total Memory (B)\": \"1342177280\"",
            "\"VRAM Total Used Memory (B)\": \"0\"",
            "\"VIS_VRAM Total Memory (B)\": \"1342177280\"",
            "\"GTT Total Used Memory (B)\": \"0\"",
        ],
    },
    Monitor {
        name: "rocm-smi-load",
        program: PYTHON,
        arguments: &[ROCM_SMI, "--showuse", "--json"],
        says: &["\"GPU use (%)\": \"0\""],
    },
    Monitor {
        name: "nvtop",
        program: "/usr/bin/nvtop",
        arguments: &["-s"],
        says: &["\"device_name\"", "\"gpu_util\": \"0%\"", "\"mem_util\": \"0%\""],
    },
    Monitor {
        name: "radeontop",
        program: "/usr/bin/radeontop",
        arguments: &["-d", "-", "-l", "1"],
        says: &["bus 03, gpu 0.00%", "vram 0.00% 0.00mb", "gtt 0.00% 0.00mb"],
    },
];

impl Suite for Monitors {
    fn name(&self) -> &'static str {
        "monitors"
    }

    fn about(&self) -> &'static str {
        "rocm-smi 6.1.2, nvtop, radeontop (Debian 13): memory in use and load, and no error where there is no silicon"
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn source(&self) -> Source {
        Source::Root {
            suite: "trixie",
            packages: &["rocm-smi", "nvtop", "radeontop", "python3.13", "dash", "coreutils", "grep"],
        }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx900", "gfx90a", "gfx942", "gfx1030", "gfx1100"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(10 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn units(&self, _source: &Path) -> Result<Vec<String>> {
        Ok(MONITORS.iter().map(|monitor| monitor.name.into()).collect())
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &[]
    }

    fn options(&self, _unit: &str) -> &'static [&'static str] {
        &["--vram", VRAM]
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let monitor = of(unit.name).context("one of the monitors")?;
        let options = self.options(unit.name);
        let ran = machine.run_in_root(unit, monitor.program, options, monitor.arguments, self.patience())?;
        Ok(vec![Case { name: unit.name.into(), outcome: self.judge(unit.name, &ran) }])
    }

    fn judge(&self, unit: &str, ran: &Ran) -> Outcome {
        let says = of(unit).map_or(&[][..], |monitor| monitor.says);
        match says.iter().find(|text| !ran.stdout.contains(*text)) {
            _ if ran.code != Some(0) => Outcome::Failed(ran.why()),
            Some(text) => Outcome::Failed(format!("it does not say {text}")),
            None => Outcome::Passed,
        }
    }

    fn controls(&self) -> &'static [Control] {
        const { &[Control::new("program.usage_at_start", "rocm-smi-memory", "gfx90a")] }
    }
}

fn of(unit: &str) -> Option<&'static Monitor> {
    MONITORS.iter().find(|monitor| monitor.name == unit)
}
