// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs in a guest, on the kernel module or on AMD's own driver: nothing is between them and
//! `/dev/kfd`.
//!
//! Mechanism: to boot takes longer than most programs do, so they share a guest. A suite runs its
//! programs again and again. A new start is only noted. Then all noted programs run in a guest, and
//! the next time each start gets its program's output from there. A program of a root is started in
//! that root, which the guest sees read-only.
//!
//! Lock: `state`, for a moment each time.
//!
//! Limits: after a few guests, what comes after a case that took the program with it does not show.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;

use super::place::Place;
use super::ran::Ran;
use super::unit::environment;
use super::unit::Unit;
use xtask_vm::others::{self, Ended, Like, Started, Wanted};

/// See the module.
pub struct Guest {
    like: Like,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    starts: Vec<Start>,
    /// Nothing more is noted.
    closed: bool,
}

/// How a program is started, and how it ended, if it has.
struct Start {
    unit: String,
    how: How,
    ended: Option<Ran>,
}

#[derive(PartialEq, Eq)]
struct How {
    started: Started,
    directory: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, &'static str)>,
    gpus: u32,
    patience: Duration,
}

impl Guest {
    /// Where its programs run.
    pub fn place(&self) -> Place {
        match self.like {
            Like::Vkfd { .. } => Place::Guest,
            Like::Amd { .. } => Place::Amdgpu,
        }
    }

    /// One like this for each number of GPUs.
    pub fn new(like: Like) -> Guest {
        Guest { like, state: Mutex::default() }
    }

    /// What the program wrote in the guest; nothing as long as it has not run, which is noted. A
    /// program of a root is named, with the root; another one is the unit's own.
    pub fn run(
        &self,
        unit: &Unit<'_>,
        program: Option<(&Path, &str)>,
        options: &[&str],
        arguments: &[&str],
        patience: Duration,
    ) -> Ran {
        let started = match program {
            Some((root, program)) => {
                let source = (unit.source != root).then(|| unit.source.into());
                Started::InRoot { root: root.into(), program: program.into(), source }
            }
            None => Started::Here,
        };
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let (directory, environment, gpus) = (unit.at.into(), environment(unit).collect(), gpus(options));
        let how = How { started, directory, arguments, environment, gpus, patience };
        let mut state = self.state();
        let State { starts, closed } = &mut *state;
        match starts.iter().find(|start| start.unit == unit.name && start.how == how) {
            Some(Start { ended: Some(ran), .. }) => ran.clone(),
            None if *closed => Ran { stderr: "it was not run once more in the guest".into(), ..Ran::default() },
            None => {
                starts.push(Start { unit: unit.name.into(), how, ended: None });
                Ran::default()
            }
            Some(_) => Ran::default(),
        }
    }

    /// Runs what was noted and has not run, a guest for each number of GPUs. What was wrong with
    /// the guests; none if there was nothing to run.
    pub fn boot(&self, target: &str, libraries: &[&str]) -> Result<Option<Vec<String>>> {
        let mut state = self.state();
        let mut findings = None;
        let waiting = state.starts.iter().filter(|start| start.ended.is_none());
        for gpus in waiting.map(|start| start.how.gpus).collect::<BTreeSet<_>>() {
            let mut mine: Vec<_> =
                state.starts.iter_mut().filter(|start| start.ended.is_none() && start.how.gpus == gpus).collect();
            let wanted: Vec<Wanted> = mine.iter().enumerate().map(|(number, start)| start.wanted(number)).collect();
            let mut seen = others::run(target, gpus, libraries, &self.like, &wanted)?;
            findings.get_or_insert_with(Vec::new).append(&mut seen.findings);
            for (start, Wanted { name, .. }) in mine.iter_mut().zip(wanted) {
                start.ended = Some(ran(seen.programs.remove(&name).unwrap_or_default()));
            }
        }
        Ok(findings)
    }

    /// Notes nothing from here on.
    pub fn close(&self) {
        self.state().closed = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Start {
    /// For a guest in which it is the `number`th.
    fn wanted(&self, number: usize) -> Wanted {
        let How { started, directory, arguments, environment, patience, .. } = &self.how;
        Wanted {
            name: format!("{number} {}", self.unit),
            started: started.clone(),
            directory: directory.clone(),
            arguments: arguments.clone(),
            environment: environment.clone(),
            patience: *patience,
        }
    }
}

/// As `vkfd run` understands its options.
fn gpus(options: &[&str]) -> u32 {
    let number = options.iter().skip_while(|option| **option != "--gpus").nth(1);
    number.and_then(|number| number.parse().ok()).unwrap_or(1)
}

/// As `timeout` and the shell tell it: 124 and 137 for a program that had to be ended, 128 and a
/// signal's number for one that a signal ended.
fn ran(Ended { code, stdout, stderr }: Ended) -> Ran {
    let hung = matches!(code, None | Some(124 | 137));
    Ran { code: code.filter(|code| *code < 128), stdout, stderr, hung }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_exit_codes_are_understood() {
        assert_eq!((gpus(&[]), gpus(&["--vram", "2G", "--gpus", "2"])), (1, 2));
        let end = |code| {
            let Ran { code, hung, .. } = ran(Ended { code, ..Ended::default() });
            (code, hung)
        };
        assert_eq!(end(Some(0)), (Some(0), false));
        assert_eq!(end(Some(1)), (Some(1), false));
        assert_eq!(end(Some(124)), (Some(124), true));
        assert_eq!(end(Some(134)), (None, false));
        assert_eq!(end(None), (None, true));
    }
}
