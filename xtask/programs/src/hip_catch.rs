// SPDX-License-Identifier: GPL-2.0 OR MIT
//! AMD's hip-tests: the Catch2 tests of the HIP runtime, as their user has built them. A program is
//! a source file, a case is a `TEST_CASE`.
//!
//! Mechanism: hip-tests makes a program of each category. With its option `STANDALONE_TESTS=1` it
//! makes one of each file. The expectation file goes by files, because other cases need other
//! GPUs. So a file without a program of its own is the part of its category's program that has the
//! file's cases: a case's name is in the program as text. Cases after one that ended the program,
//! or hung, are run by name.
//!
//! Lock: `FOUND`, while the programs of a build directory are looked through.
//!
//! Limits: of a category's program only those cases run that the expectation file names in full.
//! The tests are younger than Debian 12's HIP 5.2.3; files that use what came later do not compile
//! with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use super::built;
use super::catch;
use super::expected::Expectations;
use super::machine::Machine;
use super::ran::Ran;
use super::select::matches;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;

pub struct HipCatch;

const NAME: &str = "hip-catch";
/// Where the programs are in a build directory.
const UNITS: &str = "catch_tests/unit";
/// A text that each Catch2 program has, and a helper of a test has not.
const OF_CATCH: &[u8] = b"--list-test-names-only";
/// The programs of files, by the build directory that was looked through last.
static FOUND: Mutex<Option<(PathBuf, Arc<Programs>)>> = Mutex::new(None);

type Programs = BTreeMap<String, PathBuf>;

/// Random operands of the tests of functions, by default 2^32, and the GPU's memory for them. Then
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
    /// Names of cases as one argument for Catch2.
    fn spec(names: &[String]) -> String {
        let escaped = names.iter().map(|name| name.replace('\\', "\\\\").replace(',', "\\,").replace('[', "\\["));
        escaped.collect::<Vec<_>>().join(",")
    }
}

impl Suite for HipCatch {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "AMD's Catch2 tests of the HIP runtime, as their user has built them"
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn source(&self) -> Source {
        Source::Built {
            how: "build ROCm/hip-tests by its README (`cmake ../catch -DHIP_PLATFORM=amd`, `make -k \
                  build_tests`), and say --built with the build directory",
        }
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
        Ok(programs(source)?.keys().cloned().collect())
    }

    fn built(&self, source: &Path, unit: &str) -> Result<Option<PathBuf>> {
        let programs = programs(source)?;
        let program = programs.get(unit).with_context(|| format!("{unit} was not built in {}", source.display()))?;
        Ok(Some(program.clone()))
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &[]
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
        let is_own = is_own(unit);
        let list = || -> Result<Vec<String>> {
            let listed = run(&["--list-test-names-only".into()])?;
            let names = listed.stdout.lines().map(str::trim).filter(|name| !name.is_empty());
            let is_mine = |name: &str| is_own || unit.named.contains(&name);
            let begun = |name: &&str| is_mine(name) && !unit.left_out.iter().any(|pattern| matches(pattern, name));
            Ok(names.filter(begun).map(ToOwned::to_owned).collect())
        };
        let mut cases: Vec<Case> = Vec::new();
        let mut left = Vec::new();
        if !unit.left_out.is_empty() || sharing || !is_own {
            left = list()?;
            // No names would be all of them.
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

/// Whether a unit's program is its file's alone.
fn is_own(unit: &Unit<'_>) -> bool {
    let file = unit.name.rsplit('/').next().unwrap_or_default();
    unit.program.file_name().is_some_and(|program| program == file)
}

/// The programs in a build directory, by the names of their files.
fn programs(source: &Path) -> Result<Arc<Programs>> {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    match &*found {
        Some((of, programs)) if of == source => Ok(Arc::clone(programs)),
        _ => {
            let programs = Arc::new(look(source, &Expectations::read(NAME)?)?);
            *found = Some((source.into(), Arc::clone(&programs)));
            Ok(programs)
        }
    }
}

/// Looks through a build directory.
fn look(source: &Path, expected: &Expectations) -> Result<Programs> {
    let units = expected.units();
    let mut found = Programs::new();
    let all = source.join(UNITS);
    let entries =
        fs::read_dir(&all).with_context(|| format!("read {}: is it hip-tests' build directory?", all.display()))?;
    for category in entries {
        let category = category?;
        let category_name = category.file_name().to_string_lossy().into_owned();
        // The text of each case, and the same without a template's type, with the file that has it.
        let mut wanted: BTreeMap<&[u8], BTreeSet<&str>> = BTreeMap::new();
        for unit in units.iter().filter(|unit| unit.split_once('/').is_some_and(|(of, _)| of == category_name)) {
            for case in expected.named(unit) {
                for text in [case, case.split(" - ").next().unwrap_or(case)] {
                    wanted.entry(text.as_bytes()).or_default().insert(unit);
                }
            }
        }
        for program in built::programs(&category.path())? {
            let bytes = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
            // A script has lines, and a compiled program has text that ends in a zero.
            let texts = || bytes.split(|byte| matches!(byte, 0 | b'\n'));
            if !texts().any(|text| text.ends_with(OF_CATCH)) {
                continue;
            }
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            found.insert(format!("{category_name}/{name}"), program.clone());
            for unit in texts().filter_map(|text| wanted.get(text)).flatten() {
                let own = all.join(unit);
                if !built::is_program(&own)? {
                    found.insert((*unit).to_owned(), program.clone());
                }
            }
        }
    }
    Ok(found)
}
