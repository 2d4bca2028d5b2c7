// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs that show the state of GPUs, from Debian 13: AMD's rocm-smi and amd-smi, nvtop,
//! radeontop.
//!
//! Mechanism: each runs once, for a program (AMD's read sysfs; nvtop and radeontop ask libdrm). The
//! numbers that are true here have to be in its output: the memory of the GPU, how much of it is in
//! use, and the load. What is of silicon has to be missing without an error.
//!
//! Without a machine that several programs share, a monitor sees its own process alone, and that
//! uses nothing. Monitors of processes run on a shared machine, beside a program with 64 MiB
//! ([`Way::Beside`]).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::machine::Machine;
use super::ran::Ran;
use super::root::WORK;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;
use xtask_base::tree;

pub struct Monitors;

/// The GPU's memory, 1,342,177,280 bytes: no other number of a machine is this one.
const VRAM: &str = "1280M";

/// How a monitor runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// On a machine of its own.
    Alone,
    /// As a child of a program that uses a GPU (`xtask/programs/beside.py`), with these words
    /// before its own. The program's number is PID in the output.
    Beside(&'static [&'static str]),
}

/// The program that uses a GPU.
const BESIDE: &str = "beside.py";

/// A program with its arguments, and texts of its output.
struct Monitor {
    name: &'static str,
    way: Way,
    program: &'static str,
    arguments: &'static [&'static str],
    says: &'static [&'static str],
}

const PYTHON: &str = "/usr/bin/python3.13";
const ROCM_SMI: &str = "/usr/bin/rocm-smi";
const AMD_SMI: &str = "/usr/bin/amd-smi";

const MONITORS: &[Monitor] = &[
    // Temperature, power, partitions and clocks are of silicon.
    Monitor {
        name: "rocm-smi",
        way: Way::Alone,
        program: PYTHON,
        arguments: &[ROCM_SMI],
        says: &["N/A     N/A    N/A, N/A, 0         None  None", "Unsupported  0%     0%"],
    },
    Monitor {
        name: "rocm-smi-memory",
        way: Way::Alone,
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
        way: Way::Alone,
        program: PYTHON,
        arguments: &[ROCM_SMI, "--showuse", "--json"],
        says: &["\"GPU use (%)\": \"0\""],
    },
    Monitor {
        name: "nvtop",
        way: Way::Alone,
        program: "/usr/bin/nvtop",
        arguments: &["-s"],
        says: &["\"device_name\"", "\"gpu_util\": \"0%\"", "\"mem_util\": \"0%\""],
    },
    Monitor {
        name: "radeontop",
        way: Way::Alone,
        program: "/usr/bin/radeontop",
        arguments: &["-d", "-", "-l", "1"],
        says: &["bus 03, gpu 0.00%", "vram 0.00% 0.00mb", "gtt 0.00% 0.00mb"],
    },
    Monitor {
        name: "amd-smi",
        way: Way::Alone,
        program: PYTHON,
        arguments: &[AMD_SMI, "static"],
        says: &["NAME: amdgpu", "SIZE: 1280 MB", "VBIOS: N/A"],
    },
    Monitor {
        name: "amd-smi-memory",
        way: Way::Alone,
        program: PYTHON,
        arguments: &[AMD_SMI, "metric", "--mem-usage"],
        says: &["TOTAL_VRAM: 1280 MB", "USED_VRAM: 0 MB", "USED_GTT: 0 MB"],
    },
    Monitor {
        name: "amd-smi-monitor",
        way: Way::Beside(&[]),
        program: PYTHON,
        arguments: &[AMD_SMI, "monitor", "--vram-usage", "--temperature"],
        says: &["64 MB", "1280 MB", "N/A"],
    },
    // The memory of page tables is the process's, too.
    Monitor {
        name: "amd-smi-processes",
        way: Way::Beside(&[]),
        program: PYTHON,
        arguments: &[AMD_SMI, "process"],
        says: &["NAME: python3.13", "PID: PID", "GTT_MEM: 8.0 KB", "VRAM_MEM: 64.0 MB"],
    },
    // The last column is 0, because no kernel runs; on gfx10 nobody counts waves.
    Monitor {
        name: "rocm-smi-processes",
        way: Way::Beside(&[]),
        program: PYTHON,
        arguments: &[ROCM_SMI, "--showpids"],
        says: &["python3.13  \t1     \t67108864 \t0        \t"],
    },
    Monitor {
        name: "nvtop-processes",
        way: Way::Beside(&["--screen"]),
        program: "/usr/bin/nvtop",
        arguments: &[],
        says: &["PID N/A 0 ", " 64MiB 5% ", "MEM [ || 0.06"],
    },
];

impl Suite for Monitors {
    fn name(&self) -> &'static str {
        "monitors"
    }

    fn about(&self) -> &'static str {
        "rocm-smi and amd-smi 6.1.2, nvtop, radeontop (Debian 13): memory in use, load and processes, and no error where there is no silicon"
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn source(&self) -> Source {
        Source::Root {
            suite: "trixie",
            packages: &[
                "rocm-smi",
                "amd-smi",
                "nvtop",
                "radeontop",
                "ncurses-base",
                "python3.13",
                "dash",
                "coreutils",
                "grep",
                "procps",
                "util-linux",
            ],
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

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        if of(unit.name).is_none_or(|monitor| monitor.way == Way::Alone) {
            return Ok(Vec::new());
        }
        let mut copy = Command::new("cp");
        copy.arg(tree::root().join("xtask/programs").join(BESIDE)).arg(unit.at);
        Ok(vec![copy])
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &[]
    }

    fn options(&self, _unit: &str) -> &'static [&'static str] {
        &["--vram", VRAM]
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let monitor = of(unit.name).context("one of the monitors")?;
        let (options, patience) = (self.options(unit.name), self.patience());
        let ran = match monitor.way {
            Way::Alone => machine.run_in_root(unit, monitor.program, options, monitor.arguments, patience)?,
            Way::Beside(words) => {
                let script = format!("{WORK}/{BESIDE}");
                let arguments = [&[script.as_str()], words, &[monitor.program], monitor.arguments].concat();
                machine.run_served_in_root(unit, PYTHON, options, &arguments, patience)?
            }
        };
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
        const {
            &[
                Control::new("program.usage_at_start", "rocm-smi-memory", "gfx90a"),
                Control::new("program.lists_at_start", "rocm-smi-processes", "gfx90a"),
                Control::new("program.lists_at_start", "amd-smi-processes", "gfx1030"),
                Control::new("program.lists_at_start", "nvtop-processes", "gfx1100"),
            ]
        }
    }
}

fn of(unit: &str) -> Option<&'static Monitor> {
    MONITORS.iter().find(|monitor| monitor.name == unit)
}
