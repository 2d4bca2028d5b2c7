// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A suite on a target: its programs are compiled, unless they are, and run, several at a time.

use std::fs;
use std::mem::take;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use super::cache::{words, Cache};
use super::expected::Expectations;
use super::machine::Machine;
use super::memory::Memory;
use super::place::Place;
use super::ran::Ran;
use super::root::WORK;
use super::select::{matches, Selection};
use super::suite::{Case, Outcome, Suite};
use super::unit::{Observed, Unit};
use xtask_base::made::once;

/// What a program did not come to in the first guest is run in another.
const BOOTS: usize = 3;

/// See the module.
pub struct Session<'a> {
    pub suite: &'static dyn Suite,
    pub source: &'a Path,
    pub root: Option<&'a Path>,
    pub target: &'static str,
    pub machine: &'a Machine,
    pub expected: &'a Expectations,
    pub cache: &'a Cache,
    /// No program is begun after so long.
    pub patience: Duration,
    pub memory: Memory,
    pub observed: Observed,
}

/// What a session showed.
#[derive(Default)]
pub struct Seen {
    pub cases: Vec<Case>,
    /// Programs that were run, or tried to be compiled.
    pub units: Vec<String>,
    /// Programs for which there was no time.
    pub late: Vec<String>,
    pub took: Duration,
    pub place: Place,
    pub memory: Memory,
    /// What was wrong with the guest, or with the programs' kernels.
    pub findings: Vec<String>,
}

impl Session<'_> {
    /// Compiles and runs the programs that are selected.
    pub fn run(&self, selection: &Selection, jobs: Option<usize>) -> Result<Seen> {
        let begun = Instant::now();
        let units = self.selected(selection)?;
        if units.is_empty() {
            return Ok(Seen::default());
        }
        let shared = self.shared()?;
        let in_guest = matches!(self.machine, Machine::Guest(_));
        let findings = self.boot(&units, &shared)?;
        let jobs = jobs.or_else(|| thread::available_parallelism().ok().map(NonZero::get)).unwrap_or(1);
        let next = AtomicUsize::new(0);
        let seen = Mutex::new(Ok(Seen::default()));
        thread::scope(|scope| {
            for _ in 0..jobs.min(units.len()) {
                scope.spawn(|| {
                    while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let late = !in_guest && begun.elapsed() >= self.patience;
                        let cases = if late { Ok(Vec::new()) } else { self.unit(unit, &shared) };
                        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                        let Ok(all) = &mut *seen else { break };
                        match cases {
                            Ok(_) if late => all.late.push(unit.clone()),
                            Ok(cases) => {
                                tell(self.suite.name(), self.target, &cases, self.expected);
                                all.units.push(unit.clone());
                                all.cases.extend(cases);
                            }
                            Err(error) => *seen = Err(error.context(format!("{}: {unit}", self.suite.name()))),
                        }
                    }
                });
            }
        });
        let mut seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        seen.cases.sort_by(|a, b| a.name.cmp(&b.name));
        seen.units.sort_unstable();
        seen.took = begun.elapsed();
        (seen.place, seen.findings, seen.memory) = (self.machine.place(), findings, self.memory);
        seen.findings.append(&mut take(&mut *self.observed.findings.lock().unwrap_or_else(PoisonError::into_inner)));
        if self.machine.checks() {
            if selection.only.is_empty() {
                let unused = take(&mut *self.observed.unused.lock().unwrap_or_else(PoisonError::into_inner));
                let missed = |line| format!("no finding is that of {}.accepted: {line}", self.suite.name());
                seen.findings.extend(unused.into_iter().flatten().map(missed));
            }
            match self.observed.launches.load(Ordering::Relaxed) {
                0 => seen.findings.push("no launch of a kernel was checked".into()),
                launches => println!("  {}, {}: {launches} launches were checked", self.suite.name(), self.target),
            }
        }
        match (self.memory, self.observed.memory.load(Ordering::Relaxed)) {
            (Memory::Device, _) => {}
            (_, 0) => seen.findings.push("no program has had such memory".into()),
            (Memory::Oversubscribed, times) => {
                println!("  {}, {}: the GPU had too little memory {times} times", self.suite.name(), self.target);
            }
            (Memory::Batch, _) => {}
        }
        Ok(seen)
    }

    /// The programs that are selected, by their names.
    fn selected(&self, selection: &Selection) -> Result<Vec<String>> {
        let all = self.suite.units(self.source)?;
        let patterns = self.suite.runs_at(self.machine.place());
        let fits = |unit: &str| patterns.iter().any(|pattern| matches(pattern, unit));
        let selected = selection.of(&all, |unit| fits(unit) && self.expected.runs(unit, self.target));
        Ok(selected.into_iter().map(ToOwned::to_owned).collect())
    }

    /// Compiles what the programs share, and says where it is.
    fn shared(&self) -> Result<PathBuf> {
        let shared = self.cache.built(self.suite.name(), self.suite.kept_for(self.target), "shared");
        let commands = |at: &Path| self.suite.shared(self.source, self.root, self.target, at);
        if commands(&shared)?.is_empty() {
            return Ok(shared);
        }
        compile(&shared, commands)?.map_err(anyhow::Error::msg).context("what the suite's programs share")?;
        Ok(shared)
    }

    /// If they run in a guest: compiles the programs, boots, and runs them there; and once more, as
    /// long as their output asks for it. What was wrong with the guests.
    fn boot(&self, units: &[String], shared: &Path) -> Result<Vec<String>> {
        let Machine::Guest(guest) = self.machine else { return Ok(Vec::new()) };
        let mut findings = Vec::new();
        for _ in 0..BOOTS {
            for unit in units {
                // Notes how it is started.
                self.unit(unit, shared).with_context(|| format!("{}: {unit}", self.suite.name()))?;
            }
            match guest.boot(self.target, self.suite.libraries())? {
                Some(mut seen) => findings.append(&mut seen),
                None => break,
            }
        }
        guest.close();
        Ok(findings)
    }

    /// A program, compiled and run.
    pub fn unit(&self, name: &str, shared: &Path) -> Result<Vec<Case>> {
        match self.with_unit(name, shared, |unit| self.suite.run(self.machine, unit))? {
            Ok(cases) => Ok(cases),
            Err(error) => Ok(vec![Case { name: name.into(), outcome: Outcome::NotBuilt(error) }]),
        }
    }

    /// The user's script, run as the suite's first program is.
    pub fn script(&self, file: &Path) -> Result<Ran> {
        let interpreter = self.suite.interpreter().with_context(|| format!("{} has no scripts", self.suite.name()))?;
        let name = file.file_name().and_then(|name| name.to_str()).context("a script has a name")?;
        let units = self.suite.units(self.source)?;
        let first = units.first().context("a suite without a program")?;
        let run = |unit: &Unit<'_>| {
            fs::copy(file, unit.at.join(name)).with_context(|| format!("copy {}", file.display()))?;
            let (options, script) = (self.suite.options(first), format!("{WORK}/{name}"));
            self.machine.run_in_root(unit, &interpreter, options, &[&script], self.patience)
        };
        self.with_unit(first, &self.shared()?, run)?.map_err(anyhow::Error::msg)
    }

    /// Compiles a program, and calls `run` with it, prepared. The inner error is the compiler's.
    fn with_unit<T>(
        &self,
        name: &str,
        shared: &Path,
        run: impl FnOnce(&Unit<'_>) -> Result<T>,
    ) -> Result<Result<T, String>> {
        let Session { suite, source, root, target, memory, expected, ref observed, .. } = *self;
        let built = suite.built(source, name)?;
        let at = match built.as_deref().map(Path::parent) {
            None => self.cache.built(suite.name(), suite.kept_for(target), name),
            Some(directory) => directory.context("a program without a directory")?.into(),
        };
        let program = built.clone().unwrap_or_else(|| at.join("program"));
        let (left_out, named) = (expected.left_out(name, target), expected.named(name));
        let unit = Unit {
            name,
            suite: suite.name(),
            target,
            source,
            root,
            at: &at,
            program: &program,
            left_out,
            named: &named,
            environment: suite.environment(),
            memory,
            observed,
        };
        let run = || {
            suite.prepare(&unit)?;
            run(&unit).map(Ok)
        };
        if built.is_some() {
            return run();
        }
        let commands = |at: &Path| {
            let mut commands = self.suite.compile(&unit, shared)?;
            commands.extend(memory.compile(at)?);
            Ok(commands)
        };
        match compile(&at, commands)? {
            Ok(()) => run(),
            Err(error) => Ok(Err(error)),
        }
    }

    /// A program of a suite whose shared part is there.
    pub fn unit_alone(&self, name: &str) -> Result<Vec<Case>> {
        self.unit(name, &self.shared()?)
    }
}

/// A line for each case that ended otherwise than expected.
fn tell(suite: &str, target: &str, cases: &[Case], expected: &Expectations) {
    for Case { name, outcome } in cases {
        let standing = expected.compare(name, target, outcome);
        if standing != super::expected::Standing::AsExpected {
            println!("  {suite}, {target}: {name}: {standing:?}: {outcome:?}");
        }
    }
}

/// Compiles into a directory, once. The inner error has the compiler's output.
fn compile(at: &Path, commands: impl Fn(&Path) -> Result<Vec<Command>>) -> Result<Result<(), String>> {
    let how = words(&commands(at)?);
    let mut said = None;
    let made = once(at, &how, || {
        for command in &mut commands(at)? {
            let output = command.stdin(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
            if !output.status.success() {
                let log = String::from_utf8_lossy(&output.stderr);
                fs::write(at.join("log"), log.as_bytes()).context("write the compiler's log")?;
                let first = log.lines().find(|line| line.contains("error")).or_else(|| log.lines().next());
                said = Some(first.unwrap_or("the compiler failed without a word").trim().to_owned());
                bail!("not built");
            }
        }
        Ok(())
    });
    match (made, said) {
        (Ok(()), _) => Ok(Ok(())),
        (Err(_), Some(said)) => Ok(Err(said)),
        (Err(error), None) => Err(error),
    }
}
