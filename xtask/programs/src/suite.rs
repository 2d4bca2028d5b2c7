// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a suite is: programs, how they are compiled and run, and how their output is read.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::machine::Machine;
use super::memory::Memory;
use super::place::Place;
use super::ran::Ran;
use super::source::Source;
use super::unit::Unit;
use xtask_vm::others::AMDGPU_TARGET;

/// How a case ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The program says so.
    Passed,
    /// With the program's message.
    Failed(String),
    /// The program says that the case has nothing to test here, and why.
    Skipped(String),
    /// It does not compile, with the compiler's first error.
    NotBuilt(String),
}

/// A case: all of a program, or one of its tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// The program's name, or `PROGRAM: CASE`.
    pub name: String,
    pub outcome: Outcome,
}

impl Case {
    /// A case of the program `unit`.
    pub fn of(unit: &str, name: &str, outcome: Outcome) -> Case {
        Case { name: format!("{unit}: {name}"), outcome }
    }
}

/// The program that a case belongs to.
pub fn unit_of(case: &str) -> &str {
    case.split_once(": ").map_or(case, |(unit, _)| unit)
}

/// How a program of ours in Python ended that compares: it names what it compared, and says `end`,
/// or why not.
pub fn compared(unit: &str, end: &str, ran: &Ran) -> Outcome {
    let said = ran.stdout.lines().find_map(|line| line.strip_prefix("FAILED: "));
    let right = ran.stdout.starts_with(&format!("{unit}: ")) && ran.stdout.ends_with(end);
    match said {
        Some(said) => Outcome::Failed(said.into()),
        None if right && ran.code == Some(0) => Outcome::Passed,
        None => Outcome::Failed(ran.why()),
    }
}

/// A machine that is broken, and a program that must notice.
pub struct Control {
    /// What `VKFD_SABOTAGE` names.
    pub sabotage: &'static str,
    pub unit: &'static str,
    pub target: &'static str,
    /// What the program's device memory is.
    pub memory: Memory,
}

impl Control {
    pub const fn new(sabotage: &'static str, unit: &'static str, target: &'static str) -> Control {
        Control { sabotage, unit, target, memory: Memory::Device }
    }

    pub const fn on(self, memory: Memory) -> Control {
        Control { memory, ..self }
    }
}

/// See the module.
pub trait Suite: Sync {
    fn name(&self) -> &'static str;
    /// What it is, in a line.
    fn about(&self) -> &'static str;
    /// Debian packages.
    fn packages(&self) -> &'static [&'static str];
    fn source(&self) -> Source;
    /// A short run uses the first.
    fn targets(&self) -> &'static [&'static str];
    /// No program is begun after so long.
    fn budget(&self) -> Duration;
    /// A program that takes longer hangs.
    fn patience(&self) -> Duration;
    /// The programs that the source has, in an order that stays.
    fn units(&self, source: &Path) -> Result<Vec<String>>;
    /// Under which name what is compiled for a target is kept; one for all where it is the same.
    fn kept_for(&self, target: &'static str) -> &'static str {
        target
    }
    /// What all programs for a target share, compiled into `at` before any of them.
    fn shared(&self, _source: &Path, _root: Option<&Path>, _target: &str, _at: &Path) -> Result<Vec<Command>> {
        Ok(Vec::new())
    }
    /// Compiles a program; `shared` is the directory of [`Suite::shared`].
    fn compile(&self, _unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        Ok(Vec::new())
    }
    /// Where a program is that the suite's user has built; none if it is compiled here. It works in
    /// its directory.
    fn built(&self, _source: &Path, _unit: &str) -> Result<Option<PathBuf>> {
        Ok(None)
    }
    /// Libraries that its programs load by themselves, which a guest must have.
    fn libraries(&self) -> &'static [&'static str] {
        &[]
    }
    /// What is set when its programs run.
    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
    /// Patterns of the programs that run in a guest if none is asked for by name: all, unless that
    /// takes too long.
    fn in_guest(&self) -> &'static [&'static str] {
        &["*"]
    }
    /// The same on AMD's own driver; none if it has not been tried there.
    fn on_amdgpu(&self) -> &'static [&'static str] {
        &[]
    }
    /// The targets at a place: the device for AMD's driver is one of its own.
    fn targets_at(&self, place: Place) -> &'static [&'static str] {
        match place {
            Place::Amdgpu => &[AMDGPU_TARGET],
            Place::Process | Place::Guest => self.targets(),
        }
    }
    /// Patterns of the programs that run at a place.
    fn runs_at(&self, place: Place) -> &'static [&'static str] {
        match place {
            Place::Process => &["*"],
            Place::Guest => self.in_guest(),
            Place::Amdgpu => self.on_amdgpu(),
        }
    }
    /// Options of `vkfd run` besides the target.
    fn options(&self, _unit: &str) -> &'static [&'static str] {
        &[]
    }
    /// The program of the root that runs the user's scripts (`--script`), if it has one.
    fn interpreter(&self) -> Option<String> {
        None
    }
    /// What is done before a program runs.
    fn prepare(&self, _unit: &Unit<'_>) -> Result<()> {
        Ok(())
    }
    /// Runs it.
    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let ran = machine.run(unit, self.options(unit.name), &[], self.patience())?;
        Ok(vec![Case { name: unit.name.into(), outcome: self.judge(unit.name, &ran) }])
    }
    /// How a program that is one case ended.
    fn judge(&self, unit: &str, ran: &Ran) -> Outcome;
    /// The negative controls.
    fn controls(&self) -> &'static [Control];
}
