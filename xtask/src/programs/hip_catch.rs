// SPDX-License-Identifier: GPL-2.0 OR MIT
//! AMD's hip-tests: the Catch2 tests of the HIP runtime. A program is a source file, a case is a
//! `TEST_CASE`.
//!
//! Mechanism: a program is compiled as [`build`] says, and run whole, without the cases that the
//! expectation file leaves out. Cases after one that ended the program, or hung, are run by name.
//!
//! Limits: the tests are younger than Debian 12's HIP 5.2.3, so that files which use what came
//! later do not compile.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::catch;
use super::hip_catch_build as build;
use super::machine::{Machine, Ran};
use super::select::matches;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite, Unit, LOADED_BY_HIP};

pub(crate) struct HipCatch;

/// HIP's samples are in it as well.
pub(crate) const SOURCE: Source = Source::Git {
    name: "hip-tests",
    repository: "https://github.com/ROCm/hip-tests",
    commit: "87c8a0417c6f4ef2c7d905b71eb42e02a0c4ef4a",
};

/// Random operands of the tests of functions, by default 2^32, the GPU's memory that they use,
/// rounds of grids that wait, and rounds of all else, by default ten and a hundred.
const QUICK: &[&str] = &[
    "--accuracy-iterations",
    "4096",
    "--accuracy-max-memory",
    "5",
    "--cg-iterations",
    "1",
    "--iterations",
    "1",
    "--warmups",
    "1",
];
/// Programs that pass memory to other processes, or to themselves, share a machine with those.
const SHARING: &[&str] = &["device/hipIpc"];
/// Categories whose tests want several GPUs have them.
const SEVERAL: &[&str] = &[
    "atomics/atomicAnd_system",
    "atomics/atomicExch_system",
    "atomics/atomicMax_system",
    "atomics/atomicMin_system",
    "atomics/atomicOr_system",
    "atomics/atomicXor_system",
    "cooperativeGrps/hipCGMultiGridGroupType_old",
    "cooperativeGrps/hipLaunchCooperativeKernelMultiDevice_old",
    "device/",
    "event/Unit_hipEventMGpu",
    "graph/hipGraphAddMemcpyNode_old",
    "graph/hipGraphExecEventRecordNodeSetEvent",
    "graph/hipGraphExecMemcpyNodeSetParamsToSymbol",
    "graph/hipGraphExecMemsetNodeSetParams",
    "graph/hipGraphExecUpdate",
    "memory/hipMallocManaged_MultiScenario",
    "memory/hipMemcpyPeer",
    "multiThread/",
    "p2p/",
    "synchronization/cache_coherency_gpu_gpu",
    "threadfence/",
];

/// A program that fills more memory than a GPU has by default.
const LARGE: &str = "memory/hipMemset";

impl HipCatch {
    /// Names of cases as one argument of Catch2's.
    fn spec(names: &[String]) -> String {
        let escaped = names.iter().map(|name| name.replace('\\', "\\\\").replace(',', "\\,").replace('[', "\\["));
        escaped.collect::<Vec<_>>().join(",")
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
        &["hipcc", "libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev", "libboost-dev"]
    }

    fn source(&self) -> Source {
        SOURCE
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx900", "gfx1030"]
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
                if !is_test || !build::has_cases(&build::read(&file)?) {
                    continue;
                }
                if let Some(stem) = file.file_stem() {
                    units.push(format!("{}/{}", category.file_name().to_string_lossy(), stem.to_string_lossy()));
                }
            }
        }
        units.sort_unstable();
        Ok(units)
    }

    fn kept_for(&self, target: &'static str) -> &'static str {
        build::kept_for(target)
    }

    fn shared(&self, source: &Path, _root: Option<&Path>, target: &str, at: &Path) -> Result<Vec<Command>> {
        Ok(build::shared(source, target, at))
    }

    fn compile(&self, unit: &Unit<'_>, shared: &Path) -> Result<Vec<Command>> {
        build::program(unit.source, unit.target, unit.name, shared, unit.at)
    }

    fn libraries(&self) -> &'static [&'static str] {
        LOADED_BY_HIP
    }

    fn in_guest(&self) -> &'static [&'static str] {
        // Where the processor is emulated, each takes five seconds and more.
        &[
            "event/hipEvent*",
            "kernel/*",
            "memory/hipHostG*",
            "memory/hipHostMallocTests",
            "memory/hipHostRegister",
            "memory/hipMalloc",
            "memory/hipMallocManaged*",
            "memory/hipMemAdvise*",
            "memory/hipMemPrefetchAsync*",
            "memory/hipMemRange*",
            "memory/hipPointerGetAttribute",
            "stream/hipStreamCreate",
            "stream/hipStreamCreateWithFlags",
        ]
    }

    fn options(&self, unit: &str) -> &'static [&'static str] {
        if SEVERAL.iter().any(|start| unit.starts_with(start)) {
            &["--gpus", "2"]
        } else if unit == LARGE {
            &["--vram", "8G"]
        } else {
            &[]
        }
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let options = self.options(unit.name);
        // A program that forks has no runtime before that: their cases run one at a time.
        let sharing = SHARING.iter().any(|start| unit.name.starts_with(start));
        let run = |more: &[String]| {
            let more = more.iter().map(String::as_str);
            let arguments: Vec<_> = QUICK.iter().copied().chain(["--reporter", "xml"]).chain(more).collect();
            match sharing {
                true => machine.run_served(unit, options, &arguments, self.patience()),
                false => machine.run(unit, options, &arguments, self.patience()),
            }
        };
        let list = || -> Result<Vec<String>> {
            let listed = run(&["--list-test-names-only".into()])?;
            let names = listed.stdout.lines().map(str::trim).filter(|name| !name.is_empty());
            let begun = |name: &&str| !unit.left_out.iter().any(|pattern| matches(pattern, name));
            Ok(names.filter(begun).map(ToOwned::to_owned).collect())
        };
        let mut cases: Vec<Case> = Vec::new();
        let mut left = Vec::new();
        if !unit.left_out.is_empty() || sharing {
            left = list()?;
            // No names would be all of them. In a guest they are only noted at first.
            if left.is_empty() {
                return Ok(cases);
            }
        }
        loop {
            let rest = if sharing && !left.is_empty() { left.split_off(1) } else { Vec::new() };
            let spec = Self::spec(&left);
            let ran = run(if left.is_empty() { &[] } else { std::slice::from_ref(&spec) })?;
            let mut lost = None;
            let before = cases.len();
            for (name, outcome) in catch::cases(&ran.stdout) {
                let failed = || Outcome::Failed(ran.why());
                lost = outcome.is_none().then(|| name.clone());
                cases.push(Case::of(unit.name, &name, outcome.unwrap_or_else(failed)));
            }
            if lost.is_none() && (ran.code.is_none() || ran.hung || cases.len() == before) {
                cases.push(Case { name: unit.name.into(), outcome: Outcome::Failed(ran.why()) });
                return Ok(cases);
            }
            left = match lost {
                None => rest,
                // That one took the program with it: those after it have another.
                Some(_) => {
                    let done = |name: &String| cases.iter().any(|case| case.name == format!("{}: {name}", unit.name));
                    list()?.into_iter().filter(|name| !done(name)).collect()
                }
            };
            if left.is_empty() {
                return Ok(cases);
            }
        }
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        if ran.code == Some(0) {
            Outcome::Passed
        } else {
            Outcome::Failed(ran.why())
        }
    }

    fn controls(&self) -> &'static [Control] {
        const {
            &[
                Control::new("cu.handler=v_add_u32", "kernel/hipTestConstant", "gfx900"),
                Control::new("driver.invalidation", "memory/hipMallocManaged", "gfx900"),
                Control::new("driver.invalidation", "memory/hipMemPrefetchAsync", "gfx900"),
            ]
        }
    }
}
