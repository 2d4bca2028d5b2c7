// SPDX-License-Identifier: GPL-2.0 OR MIT
//! AMD's hip-tests: the Catch2 tests of the HIP runtime. A program is a source file, a case is a
//! `TEST_CASE`.
//!
//! Mechanism: the tests' main and a precompiled `catch.hpp` are made once a target. A program is
//! run whole; cases after one that ended the program, or hung, are run by name, one at a time.
//!
//! Limits: the tests are younger than Debian 12's HIP 5.2.3, so that files which use what came
//! later do not compile.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::catch;
use super::machine::{Machine, Ran};
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite, Unit};

pub(crate) struct HipCatch;

/// What the shared part is made of.
const MAIN: &[&str] = &["main", "hip_test_context", "hip_test_features"];
/// Random operands of the tests of functions, by default 2^32, the GPU's memory that they use, and
/// rounds of grids that wait.
const QUICK: &[&str] = &["--accuracy-iterations", "4096", "--accuracy-max-memory", "5", "--cg-iterations", "1"];
/// Categories whose tests want several GPUs have them.
const SEVERAL: &[&str] = &[
    "device/",
    "event/Unit_hipEventMGpu",
    "memory/hipMallocManaged_MultiScenario",
    "memory/hipMemcpyPeer",
    "multiThread/",
    "p2p/",
];

impl HipCatch {
    /// The compiler with what all files want.
    fn compiler(source: &Path, target: &str) -> Command {
        let mut command = Command::new("hipcc");
        let catch = source.join("catch");
        command.arg(format!("--offload-arch={target}")).args(["-O1", "-std=c++17", "-w"]);
        command.args([
            "-DCATCH_CONFIG_NO_POSIX_SIGNALS",
            "-D__HIP_PLATFORM_AMD__",
            "-DHT_LINUX=1",
            "-DHT_AMD=1",
            // What HIP 5.2.3 has no wall clock for is measured by the other one.
            "-DTEST_CLOCK_CYCLE",
            "-DhipDeviceAttributeWallClockRate=hipDeviceAttributeClockRate",
        ]);
        command.arg(format!("-DKERNELS_PATH=\"{}/\"", catch.join("kernels").display()));
        for directory in ["include", "kernels", "external/Catch2", "external/picojson", "unit/memory"] {
            command.arg("-I").arg(catch.join(directory));
        }
        command
    }
}

impl Suite for HipCatch {
    fn name(&self) -> &'static str {
        "hip-catch"
    }

    fn about(&self) -> &'static str {
        "AMD's Catch2 tests of the HIP runtime, as far as HIP 5.2.3 compiles them"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["hipcc", "libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"]
    }

    fn source(&self) -> Source {
        Source::Git {
            name: "hip-tests",
            repository: "https://github.com/ROCm/hip-tests",
            commit: "87c8a0417c6f4ef2c7d905b71eb42e02a0c4ef4a",
        }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx900", "gfx90a", "gfx1030"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(60 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(240)
    }

    fn units(&self, source: &Path) -> Result<Vec<String>> {
        let all = source.join("catch/unit");
        let mut units = Vec::new();
        for category in fs::read_dir(&all).with_context(|| format!("read {}", all.display()))? {
            let category = category?;
            if !category.path().is_dir() {
                continue;
            }
            for file in fs::read_dir(category.path())? {
                let file = file?.path();
                let is_test = file.extension().is_some_and(|extension| extension == "cc");
                if let (true, Some(stem)) = (is_test, file.file_stem()) {
                    units.push(format!("{}/{}", category.file_name().to_string_lossy(), stem.to_string_lossy()));
                }
            }
        }
        units.sort_unstable();
        Ok(units)
    }

    fn shared(&self, source: &Path, _root: Option<&Path>, target: &str, at: &Path) -> Result<Vec<Command>> {
        let object = |name: &&str| {
            let mut command = Self::compiler(source, target);
            command.arg("-c").arg(source.join("catch/hipTestMain").join(name).with_extension("cc"));
            command.arg("-o").arg(at.join(name).with_extension("o"));
            command
        };
        Ok(MAIN.iter().map(object).collect())
    }

    fn compile(&self, unit: &Unit<'_>, shared: &Path) -> Result<Vec<Command>> {
        let file = unit.source.join("catch/unit").join(unit.name).with_extension("cc");
        let object = unit.at.join("program.o");
        let mut compile = Self::compiler(unit.source, unit.target);
        compile.arg("-c").arg(file).arg("-o").arg(&object);
        let mut link = Command::new("hipcc");
        link.arg(&object).args(MAIN.iter().map(|name| shared.join(name).with_extension("o")));
        link.args(["-ldl", "-lpthread", "-o"]).arg(unit.at.join("program"));
        Ok(vec![compile, link])
    }

    fn libraries(&self) -> &'static [&'static str] {
        // HIP loads the compiler when it is asked for a device.
        &["/usr/lib/x86_64-linux-gnu/libamd_comgr.so.2"]
    }

    fn options(&self, unit: &str) -> &'static [&'static str] {
        if SEVERAL.iter().any(|start| unit.starts_with(start)) {
            &["--gpus", "2"]
        } else {
            &[]
        }
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let options = self.options(unit.name);
        let run = |arguments: &[&str]| {
            let arguments = [QUICK, &["--reporter", "xml"], arguments].concat();
            machine.run(unit, options, &arguments, self.patience())
        };
        let ran = run(&[])?;
        let seen = catch::cases(&ran.stdout);
        let (ended, lost): (Vec<_>, Vec<_>) = seen.into_iter().partition(|(_, outcome)| outcome.is_some());
        let mut cases: Vec<_> =
            ended.into_iter().filter_map(|(name, outcome)| Some(Case::of(unit.name, &name, outcome?))).collect();
        let Some((lost, _)) = lost.into_iter().next() else {
            if ran.code.is_none() || ran.hung || cases.is_empty() {
                cases.push(Case { name: unit.name.into(), outcome: Outcome::Failed(ran.why()) });
            }
            return Ok(cases);
        };
        // That one took the program with it: those after it are run by name.
        cases.push(Case::of(unit.name, &lost, Outcome::Failed(ran.why())));
        let listed = run(&["--list-test-names-only"])?;
        for name in listed.stdout.lines().map(str::trim).filter(|name| !name.is_empty()) {
            if cases.iter().any(|case| case.name == format!("{}: {name}", unit.name)) {
                continue;
            }
            let spec = name.replace('\\', "\\\\").replace(',', "\\,").replace('[', "\\[");
            let ran = run(&[&spec])?;
            let outcome = catch::cases(&ran.stdout).into_iter().find(|(seen, _)| seen == name);
            let outcome = outcome.and_then(|(_, outcome)| outcome).unwrap_or_else(|| Outcome::Failed(ran.why()));
            cases.push(Case::of(unit.name, name, outcome));
        }
        Ok(cases)
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        if ran.code == Some(0) {
            Outcome::Passed
        } else {
            Outcome::Failed(ran.why())
        }
    }

    fn controls(&self) -> &'static [Control] {
        &[
            Control { sabotage: "cu.handler=v_add_u32", unit: "kernel/hipTestConstant", target: "gfx900" },
            Control { sabotage: "driver.invalidation", unit: "memory/hipMallocManaged", target: "gfx900" },
            Control { sabotage: "driver.invalidation", unit: "memory/hipMemPrefetchAsync", target: "gfx900" },
        ]
    }
}
