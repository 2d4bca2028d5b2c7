// SPDX-License-Identifier: GPL-2.0 OR MIT
//! AMD's test of its kernel driver, kfdtest, from the source of Debian sid's rocr-runtime.
//!
//! Mechanism: kfdtest speaks to the ioctls through libhsakmt alone, without ROCR. Both are compiled
//! from the package's upstream archive, by xtask/programs/kfdtest.mk, against Debian 12's LLVM 19,
//! which assembles the tests' shaders. There is one program; what stands for a program here is one
//! of its groups of tests. Each test has a process of its own, as kfdtest's own script does it.
//!
//! Limits: a child of a process has no GPU, so a test that forks fails. Groups for features that
//! this GPU does not have are left out: the debugger's protocol, sampling, performance counters,
//! RAS, RDMA, power.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Result};

use super::gtest;
use super::machine::Machine;
use super::matches;
use super::place::Place;
use super::ran::Ran;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;
use xtask_base::tree;

pub struct Kfdtest;

/// Groups of tests.
const GROUPS: [&str; 17] = [
    "KFDASMTest",
    "KFDCWSRTest",
    "KFDEventTest",
    "KFDEvictTest",
    "KFDExceptionTest",
    "KFDGWSTest",
    "KFDGraphicsInterop",
    "KFDHWSTest",
    "KFDIPCTest",
    "KFDLocalMemoryTest",
    "KFDMemoryTest",
    "KFDNegativeTest",
    "KFDOpenCloseKFDTest",
    "KFDQMTest",
    "KFDSVMEvictTest",
    "KFDSVMRangeTest",
    "KFDTopologyTest",
];

impl Suite for Kfdtest {
    fn name(&self) -> &'static str {
        "kfdtest"
    }

    fn about(&self) -> &'static str {
        "AMD's tests of KFD: its ioctls, queues, events, memory, SVM, exceptions"
    }

    fn packages(&self) -> &'static [&'static str] {
        &[
            "g++",
            "libc6-dev",
            "libdrm-dev",
            "libgtest-dev",
            "libnuma-dev",
            "llvm-19-dev",
            "make",
            "pkg-config",
            "xz-utils",
        ]
    }

    fn source(&self) -> Source {
        Source::Upstream {
            suite: "sid",
            package: "rocr-runtime",
            archive: "rocr-runtime_6.4.3+dfsg.orig.tar.xz",
            directory: "ROCm-ROCR-Runtime-1cd4eea/libhsakmt",
        }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx900"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(60 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(90)
    }

    fn units(&self, _source: &Path) -> Result<Vec<String>> {
        Ok(GROUPS.map(str::to_owned).into())
    }

    fn kept_for(&self, _target: &'static str) -> &'static str {
        "all"
    }

    fn shared(&self, source: &Path, _root: Option<&Path>, _target: &str, at: &Path) -> Result<Vec<Command>> {
        let mut make = Command::new("make");
        make.arg("-C").arg(at).arg("-f").arg(tree::root().join("xtask/programs/kfdtest.mk"));
        make.args(["--silent", "--jobs=2", "program"]).arg(format!("SOURCE={}", source.display()));
        Ok(vec![make])
    }

    fn compile(&self, unit: &Unit<'_>, shared: &Path) -> Result<Vec<Command>> {
        let mut link = Command::new("ln");
        link.arg("-sf").arg(shared.join("program")).arg(unit.at.join("program"));
        Ok(vec![link])
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &[]
    }

    fn on_amdgpu(&self) -> &'static [&'static str] {
        &GROUPS
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let start = |arguments: &[&str]| machine.run(unit, self.options(unit.name), arguments, self.patience());
        let listed = start(&["--gtest_list_tests"])?;
        let mut cases = Vec::new();
        for whole in gtest::listed(&listed.stdout) {
            let Some(name) = whole.strip_prefix(unit.name).and_then(|rest| rest.strip_prefix('.')) else { continue };
            if unit.left_out.iter().any(|pattern| matches(pattern, name)) {
                continue;
            }
            let ran = start(&[&format!("--gtest_filter={whole}"), "--gtest_color=no"])?;
            cases.push(Case::of(unit.name, name, outcome(&whole, &ran)));
        }
        // A guest may have only noted what is to be started.
        let listed_here = machine.place() == Place::Process;
        ensure!(!cases.is_empty() || !listed_here, "{} has no test: {}", unit.name, listed.why());
        Ok(cases)
    }

    fn judge(&self, unit: &str, ran: &Ran) -> Outcome {
        outcome(unit, ran)
    }

    fn controls(&self) -> &'static [Control] {
        const { &[Control::new("driver.invalidation", "KFDMemoryTest", "gfx900")] }
    }
}

/// How a test ended. One that has nothing to test says so, and passes.
fn outcome(name: &str, ran: &Ran) -> Outcome {
    // It says so on the one output or the other.
    let skipped = ran.stdout.lines().chain(ran.stderr.lines()).find(|line| line.contains("Skipping test"));
    match (gtest::of_lines(&ran.stdout).into_iter().find(|(ended, _)| ended == name), skipped) {
        (Some((_, Some(Outcome::Passed))), Some(why)) if ran.code == Some(0) => Outcome::Skipped(why.trim().into()),
        (Some((_, Some(outcome))), _) if outcome != Outcome::Passed || ran.code == Some(0) => outcome,
        _ => Outcome::Failed(ran.why()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_skips_itself_has_not_passed() {
        let ran = |said: &str, code| Ran {
            code: Some(code),
            stdout: format!("[ RUN      ] KFDTest.One\n{said}[       OK ] KFDTest.One (3 ms)\n"),
            ..Ran::default()
        };
        assert_eq!(outcome("KFDTest.One", &ran("", 0)), Outcome::Passed);
        let why = "[          ] Skipping test: one GPU is not enough.";
        assert_eq!(outcome("KFDTest.One", &ran(&format!("{why}\n"), 0)), Outcome::Skipped(why.into()));
        let elsewhere = Ran { stderr: format!("{why}\n"), ..ran("", 0) };
        assert_eq!(outcome("KFDTest.One", &elsewhere), Outcome::Skipped(why.into()));
        assert!(matches!(outcome("KFDTest.One", &ran("", 1)), Outcome::Failed(_)));
        assert!(matches!(outcome("KFDTest.Two", &ran("", 0)), Outcome::Failed(_)));
    }
}
