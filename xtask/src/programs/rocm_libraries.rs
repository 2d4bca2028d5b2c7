// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ROCm libraries' own test programs, as Debian 13 packages them: rocRAND, rocPRIM, rocThrust
//! and hipCUB, on HIP 5.7.1. A program is a file of the package, a case is one of its tests.
//!
//! Mechanism: a program runs whole, without the tests that the expectation file leaves out. What
//! comes after a test that took the program with it, or hung, is run anew without it.
//!
//! Limits: programs are not compiled here, so that a target is one that Debian compiled for.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::gtest;
use super::machine::{Machine, Ran};
use super::root::{self, WORK};
use super::select::matches;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite, Unit};
use super::thrust;

pub(crate) struct RocmLibrary {
    name: &'static str,
    framework: Framework,
    about: &'static str,
    package: &'static [&'static str],
    targets: &'static [&'static str],
    controls: &'static [Control],
}

/// What the tests of a library are written with.
#[derive(Clone, Copy)]
enum Framework {
    GoogleTest,
    /// Thrust's own: small sizes are asked for.
    Thrust,
}

/// What a run of a program showed.
enum Shown {
    /// All tests that it was asked for.
    Whole(Vec<(String, Outcome)>),
    /// Those that it came to; none for one that has not ended.
    Part(Vec<(String, Option<Outcome>)>),
}

pub(crate) const ROCRAND: RocmLibrary = RocmLibrary {
    name: "rocrand",
    framework: Framework::GoogleTest,
    about: "rocRAND's own tests: generators of random numbers and their distributions",
    package: &["librocrand1-tests"],
    targets: &["gfx900", "gfx90a"],
    controls: &[Control { sabotage: "cu.handler=v_add_u32", unit: "test_rocrand_kernel_xorwow", target: "gfx900" }],
};

pub(crate) const ROCPRIM: RocmLibrary = RocmLibrary {
    name: "rocprim",
    framework: Framework::GoogleTest,
    about: "rocPRIM's own tests: scans, reductions and sorts by warp, block and device",
    package: &["librocprim-tests"],
    targets: &["gfx900", "gfx90a", "gfx1100"],
    controls: &[Control { sabotage: "cu.handler=v_mov_b32", unit: "test_warp_load", target: "gfx900" }],
};

pub(crate) const ROCTHRUST: RocmLibrary = RocmLibrary {
    name: "rocthrust",
    framework: Framework::Thrust,
    about: "rocThrust's own tests: algorithms on vectors of the GPU",
    package: &["librocthrust-tests"],
    targets: &["gfx900"],
    controls: &[Control { sabotage: "cu.handler=v_add_u32", unit: "test_thrust_advance", target: "gfx900" }],
};

pub(crate) const HIPCUB: RocmLibrary = RocmLibrary {
    name: "hipcub",
    framework: Framework::GoogleTest,
    about: "hipCUB's own tests: rocPRIM by CUB's interface",
    package: &["libhipcub-tests"],
    targets: &["gfx900"],
    controls: &[],
};

/// So many times the time of a program is there for it with its runs anew.
const AGAIN: u32 = 2;
/// Where a program writes its verdicts, in its directory.
const VERDICTS: &str = "verdicts.json";

impl RocmLibrary {
    /// Where Debian puts the tests.
    fn directory(&self) -> String {
        format!("/usr/libexec/rocm/{}", self.package[0])
    }

    fn start(&self, machine: &Machine, unit: &Unit<'_>, arguments: &[&str]) -> Result<Ran> {
        let program = format!("{}/{}", self.directory(), unit.name);
        machine.run_in_root(unit, &program, self.options(unit.name), arguments, self.patience())
    }

    /// Runs a GoogleTest program without what is left out and what has ended.
    fn google(&self, machine: &Machine, unit: &Unit<'_>, ended: &BTreeMap<String, Outcome>) -> Result<(Ran, Shown)> {
        let without = filter(unit.left_out.iter().copied().chain(ended.keys().map(String::as_str)));
        let written = unit.at.join(VERDICTS);
        if written.exists() {
            fs::remove_file(&written).with_context(|| format!("remove {}", written.display()))?;
        }
        let output = format!("--gtest_output=json:{WORK}/{VERDICTS}");
        let ran = self.start(machine, unit, &[&without, &output, "--gtest_color=no"])?;
        let text = (!ran.hung && ran.code.is_some()).then(|| fs::read_to_string(&written).ok()).flatten();
        let shown = match text {
            Some(text) => Shown::Whole(gtest::of_json(&text)?.into_iter().collect()),
            None => Shown::Part(gtest::of_lines(&ran.stdout)),
        };
        Ok((ran, shown))
    }

    /// Runs a program of Thrust's without what is left out and what has ended.
    fn thrust(&self, machine: &Machine, unit: &Unit<'_>, ended: &BTreeMap<String, Outcome>) -> Result<(Ran, Shown)> {
        let mut arguments = vec!["--sizes=small", "--verbose"];
        let listed;
        if !unit.left_out.is_empty() || !ended.is_empty() {
            listed = self.start(machine, unit, &["--list"])?.stdout;
            let left_out = |name: &str| unit.left_out.iter().any(|pattern| matches(pattern, name));
            let names = listed.lines().map(str::trim).filter(|name| !name.is_empty());
            let rest: Vec<_> = names.filter(|name| !left_out(name) && !ended.contains_key(*name)).collect();
            // No names would be all of them.
            if rest.is_empty() {
                return Ok((Ran { code: Some(0), ..Ran::default() }, Shown::Whole(Vec::new())));
            }
            arguments.extend(rest);
        }
        let ran = self.start(machine, unit, &arguments)?;
        let cases = thrust::cases(&ran.stdout);
        let shown = match thrust::is_whole(&ran.stdout) {
            true => Shown::Whole(cases.into_iter().filter_map(|(name, outcome)| Some((name, outcome?))).collect()),
            false => Shown::Part(cases),
        };
        Ok((ran, shown))
    }
}

impl Suite for RocmLibrary {
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
        Source::Root { suite: "trixie", packages: self.package }
    }

    fn targets(&self) -> &'static [&'static str] {
        self.targets
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(60 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(600)
    }

    fn units(&self, source: &Path) -> Result<Vec<String>> {
        root::programs(source, &self.directory())
    }

    fn compile(&self, _unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        Ok(Vec::new())
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let mut ended: BTreeMap<String, Outcome> = BTreeMap::new();
        let begun = Instant::now();
        while begun.elapsed() < AGAIN * self.patience() {
            let (ran, shown) = match self.framework {
                Framework::GoogleTest => self.google(machine, unit, &ended)?,
                Framework::Thrust => self.thrust(machine, unit, &ended)?,
            };
            let is_whole = matches!(shown, Shown::Whole(_));
            let mut lost = false;
            match shown {
                Shown::Whole(cases) => ended.extend(cases),
                Shown::Part(cases) => {
                    lost = cases.iter().any(|(_, outcome)| outcome.is_none());
                    let why = || Outcome::Failed(ran.why());
                    ended.extend(cases.into_iter().map(|(name, outcome)| (name, outcome.unwrap_or_else(why))));
                }
            }
            let failed = ended.values().any(|outcome| matches!(outcome, Outcome::Failed(_)));
            if is_whole && (ran.code == Some(0) || failed) {
                break;
            }
            if !lost {
                // Before the first test, or after the last.
                let all = Case { name: unit.name.into(), outcome: Outcome::Failed(ran.why()) };
                return Ok(cases(unit, ended).chain([all]).collect());
            }
        }
        Ok(cases(unit, ended).collect())
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

fn cases<'a>(unit: &'a Unit<'_>, ended: BTreeMap<String, Outcome>) -> impl Iterator<Item = Case> + 'a {
    ended.into_iter().map(|(name, outcome)| Case::of(unit.name, &name, outcome))
}

/// GoogleTest's option for all tests but these; its patterns are those of the expectation files.
fn filter<'a>(without: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = without.collect();
    match names.is_empty() {
        true => "--gtest_filter=*".into(),
        false => format!("--gtest_filter=-{}", names.join(":")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_a_filter() {
        assert_eq!(filter(["a.one", "b/*"].into_iter()), "--gtest_filter=-a.one:b/*");
        assert_eq!(filter([].into_iter()), "--gtest_filter=*");
    }
}
