// SPDX-License-Identifier: GPL-2.0 OR MIT
//! tinygrad's own tests, from its repository: of single instructions, which ran on AMD's hardware
//! (`test/amd/hw`), and of its backends (`test/backend`). A program is a file of tests, a case is a
//! test.
//!
//! Mechanism: Debian 13's Python, LLVM and clang run the checkout as it is, with a plugin of pytest
//! (`xtask/programs/tinygrad_plugin.py`) that writes each verdict when it is known. A test that
//! loses the GPU ends the program; what comes after it is run anew without it. A test of an
//! instruction runs it on the AMD device and on tinygrad's own emulator of the instruction set, and
//! compares all registers. Tests of backends run on the AMD device and, outside a guest, on the
//! CPU's. The report has the times of tests that pass on both.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::machine::Machine;
use super::pytest::{self, Verdict};
use super::ran::Ran;
use super::root::SOURCE;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;
use xtask_base::{tree, venv};
use xtask_clients::profile;

pub struct Tinygrad {
    name: &'static str,
    about: &'static str,
    /// The files of tests, below the source.
    directory: &'static str,
    packages: &'static [&'static str],
    targets: &'static [&'static str],
    /// Whether the tests run on the CPU's device as well.
    compares: bool,
    controls: &'static [Control],
    in_guest: &'static [&'static str],
}

/// What is set for the tests of a device.
macro_rules! environment {
    ($device:literal) => {
        &[
            ("DEV", $device),
            ("USE_HW", "1"),
            ("CC", "clang-19"),
            ("LLVM_PATH", "/usr/lib/x86_64-linux-gnu/libLLVM.so.19.1"),
            // Packages in a root are not configured: these two have no links.
            ("LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack"),
            ("PYTHONPATH", "/source:/work"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
            // A kernel may take longer than on a GPU.
            ("RUN_SLOW", "1"),
            ("HCQDEV_WAIT_TIMEOUT_MS", "600000"),
            ("TEST_TIMEOUT", "900"),
            ("VKFD_WITHOUT", "/work/without"),
        ]
    };
}

const GPU: &[(&str, &str)] = environment!("AMD:LLVM");
const CPU: &[(&str, &str)] = environment!("CPU:LLVM");

pub const HARDWARE: Tinygrad = Tinygrad {
    name: "tinygrad-hw",
    about: "tinygrad's tests of single instructions, against its emulator and what hardware gave",
    directory: "test/amd/hw",
    packages: &["python3", "python3-numpy", "python3-pytest", "libllvm19", "clang-19"],
    targets: &["gfx1100"],
    compares: false,
    controls: &[Control::new("cu.handler=v_mov_b32", "test_dpp", "gfx1100")],
    in_guest: &["test_dpp", "test_ds"],
};

pub const BACKEND: Tinygrad = Tinygrad {
    name: "tinygrad-backend",
    about: "tinygrad's tests of a backend, compiled by LLVM 19, beside its CPU's",
    directory: "test/backend",
    packages: &[
        "python3",
        "python3-numpy",
        "python3-pytest",
        "python3-hypothesis",
        "python3-torch",
        "libllvm19",
        "clang-19",
    ],
    targets: &["gfx1100", "gfx942"],
    compares: true,
    controls: &[Control::new("cu.handler=v_lshlrev_b32", "test_setitem", "gfx1100")],
    in_guest: &["test_uops", "test_setitem", "test_symbolic_ops"],
};

/// Files with tests for several GPUs, which have up to eight.
const SEVERAL: &[&str] = &[
    "test_arange",
    "test_asm_gemm",
    "test_graph",
    "test_jit",
    "test_llama_kernels",
    "test_multitensor",
    "test_profiler",
    "test_randomness",
    "test_subbuffer",
];
/// So many times the time of a program is there for it with its runs anew.
const AGAIN: u32 = 2;
const WITHOUT: &str = "without";
const PLUGIN: &str = "tinygrad_plugin.py";
/// pytest's exit codes: all passed, some failed, nothing to run.
const ENDS: [Option<i32>; 3] = [Some(0), Some(1), Some(5)];

/// What a program showed on a device.
struct Shown {
    /// Tests that began.
    ended: BTreeMap<String, Verdict>,
    /// Time in kernels.
    kernels: Duration,
    /// Its last run.
    ran: Ran,
}

impl Tinygrad {
    /// Runs the program, and again for its remaining tests.
    fn all(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Shown> {
        let mut ended = BTreeMap::new();
        let mut kernels = Duration::ZERO;
        let begun = Instant::now();
        let file = format!("{SOURCE}/{}/{}.py", self.directory, unit.name);
        let root = format!("--rootdir={SOURCE}");
        let arguments = ["-m", "pytest", "-p", "tinygrad_plugin", "-p", "no:cacheprovider", "-q", &root, &file];
        loop {
            let without = unit.left_out.iter().copied().chain(ended.keys().map(String::as_str));
            let file = unit.at.join(WITHOUT);
            let without = without.collect::<Vec<_>>().join("\n");
            fs::write(&file, without).with_context(|| format!("write {}", file.display()))?;
            let options = self.options(unit.name);
            let ran = machine.run_in_root(unit, "/usr/bin/python3", options, &arguments, self.patience())?;
            kernels += profile::in_kernels(&ran.stderr);
            let before = ended.len();
            for (name, verdict) in pytest::verdicts(&ran.stdout)? {
                let why = || Verdict { outcome: Outcome::Failed(ran.why()), took: Duration::ZERO };
                ended.insert(name, verdict.unwrap_or_else(why));
            }
            let is_whole = ENDS.contains(&ran.code);
            if is_whole || ended.len() == before || begun.elapsed() > AGAIN * self.patience() {
                return Ok(Shown { ended, kernels, ran });
            }
        }
    }

    /// Says how long what passes on both devices took on each.
    fn compare(&self, machine: &Machine, unit: &Unit<'_>, gpu: &Shown) -> Result<()> {
        let Unit { name, target, ref left_out, .. } = *unit;
        let on_cpu = Unit { left_out: left_out.clone(), environment: CPU, ..*unit };
        let cpu = self.all(machine, &on_cpu)?;
        let both = gpu.ended.iter().filter_map(|(name, gpu)| Some((gpu, cpu.ended.get(name)?)));
        let both: Vec<_> = both
            .filter(|(gpu, cpu)| [&gpu.outcome, &cpu.outcome].into_iter().all(|end| *end == Outcome::Passed))
            .collect();
        let gpu_took: Duration = both.iter().map(|(gpu, _)| gpu.took).sum();
        let cpu_took: Duration = both.iter().map(|(_, cpu)| cpu.took).sum();
        println!(
            "  {}, {target}: {name}: {} tests pass on both devices: {:.1} s on the GPU, {:.1} s on the CPU, {:.1} times; {:.1} s in kernels",
            self.name,
            both.len(),
            gpu_took.as_secs_f64(),
            cpu_took.as_secs_f64(),
            gpu_took.as_secs_f64() / cpu_took.as_secs_f64().max(0.001),
            gpu.kernels.as_secs_f64(),
        );
        Ok(())
    }
}

impl Suite for Tinygrad {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn source(&self) -> Source {
        Source::GitInRoot {
            name: "tinygrad",
            repository: "https://github.com/tinygrad/tinygrad",
            commit: "a9069c177a9da9cca18593edf55acd2e6073cca6",
            suite: "trixie",
            packages: self.packages,
        }
    }

    fn targets(&self) -> &'static [&'static str] {
        self.targets
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(120 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(30 * 60)
    }

    fn units(&self, source: &Path) -> Result<Vec<String>> {
        let at = source.join(self.directory);
        let mut names = Vec::new();
        for entry in fs::read_dir(&at).with_context(|| format!("read {}", at.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let file = name.strip_suffix(".py").filter(|name| name.starts_with("test_"));
            names.extend(file.map(str::to_owned));
        }
        ensure!(!names.is_empty(), "{} has no tests: this is another version of tinygrad", at.display());
        names.sort_unstable();
        Ok(names)
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        let plugin = tree::root().join("xtask/programs").join(PLUGIN);
        let mut copy = Command::new("cp");
        copy.arg(&plugin).arg(unit.at);
        Ok(vec![venv::made_from(&[plugin])?, copy])
    }

    fn in_guest(&self) -> &'static [&'static str] {
        self.in_guest
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        GPU
    }

    fn options(&self, unit: &str) -> &'static [&'static str] {
        match (self.compares, SEVERAL.contains(&unit)) {
            (true, true) => &["--profile", "--gpus", "8"],
            (true, false) => &["--profile"],
            (false, _) => &[],
        }
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let shown = self.all(machine, unit)?;
        if self.compares && matches!(machine, Machine::Here(_)) {
            self.compare(machine, unit, &shown)?;
        }
        let Shown { ended, ran, .. } = shown;
        let mut cases: Vec<_> =
            ended.into_iter().map(|(name, verdict)| Case::of(unit.name, &name, verdict.outcome)).collect();
        if !ENDS.contains(&ran.code) {
            // Before the first test, or after the last.
            cases.push(Case { name: unit.name.into(), outcome: Outcome::Failed(ran.why()) });
        }
        Ok(cases)
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        match ran.code {
            Some(0) => Outcome::Passed,
            _ => Outcome::Failed(ran.why()),
        }
    }

    fn controls(&self) -> &'static [Control] {
        self.controls
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::WORK;
    use super::*;

    #[test]
    fn the_environment_names_the_places_in_the_root() {
        assert!(GPU.contains(&("VKFD_WITHOUT", &format!("{WORK}/{WITHOUT}"))));
        assert!(GPU.contains(&("PYTHONPATH", &format!("{SOURCE}:{WORK}"))));
        let differ: Vec<_> = GPU.iter().zip(CPU).filter(|(gpu, cpu)| gpu != cpu).map(|((name, _), _)| *name).collect();
        assert_eq!(differ, ["DEV"]);
    }
}
