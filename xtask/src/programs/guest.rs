// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs in a guest, on the kernel module: nothing is between them and `/dev/kfd`.
//!
//! Mechanism: to boot takes longer than most programs do, so they share a guest. A suite runs its
//! programs twice: the first time it is only noted how each is started, then all run in the guest,
//! and the second time each gets what its program wrote there.
//!
//! Lock: `state`, for a moment each time.
//!
//! Limits: a program runs once, so that cases after one that took the program with it do not show.
//! Programs of a root are not run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;

use super::machine::Ran;
use super::suite::Unit;
use crate::vm::others::{self, Ended, Wanted};

/// See the module.
#[derive(Default)]
pub(crate) struct Guest {
    state: Mutex<State>,
}

/// By the programs' names.
#[derive(Default)]
struct State {
    starts: BTreeMap<String, Start>,
    ended: BTreeMap<String, Ran>,
}

/// How a program is started.
#[derive(PartialEq, Eq)]
struct Start {
    directory: PathBuf,
    arguments: Vec<String>,
    gpus: u32,
    patience: Duration,
}

impl Guest {
    /// What the program wrote in the guest; nothing as long as it has not run, which is noted the
    /// first time.
    pub(crate) fn run(&self, unit: &Unit<'_>, options: &[&str], arguments: &[&str], patience: Duration) -> Ran {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let start = Start { directory: unit.at.into(), arguments, gpus: gpus(options), patience };
        let mut state = self.state();
        let State { starts, ended } = &mut *state;
        match ended.get(unit.name) {
            Some(ran) if starts.get(unit.name) == Some(&start) => ran.clone(),
            Some(_) => Ran { stderr: "it was not run once more in the guest".into(), ..Ran::default() },
            None => {
                starts.entry(unit.name.into()).or_insert(start);
                Ran::default()
            }
        }
    }

    /// Runs what was noted, a guest for each number of GPUs. What was wrong with the guests.
    pub(crate) fn boot(&self, target: &str, libraries: &[&str]) -> Result<Vec<String>> {
        let mut state = self.state();
        let State { starts, ended } = &mut *state;
        let mut findings = Vec::new();
        for gpus in starts.values().map(|start| start.gpus).collect::<BTreeSet<_>>() {
            let mine = starts.iter().filter(|(_, start)| start.gpus == gpus);
            let wanted: Vec<Wanted> = mine
                .map(|(name, start)| Wanted {
                    name: name.clone(),
                    directory: start.directory.clone(),
                    arguments: start.arguments.clone(),
                    patience: start.patience,
                })
                .collect();
            let mut seen = others::run(target, gpus, libraries, &wanted)?;
            findings.append(&mut seen.findings);
            for Wanted { name, .. } in wanted {
                let ran = ran(seen.programs.remove(&name).unwrap_or_default());
                ended.insert(name, ran);
            }
        }
        Ok(findings)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As `vkfd run` understands its options.
fn gpus(options: &[&str]) -> u32 {
    let number = options.iter().skip_while(|option| **option != "--gpus").nth(1);
    number.and_then(|number| number.parse().ok()).unwrap_or(1)
}

/// As `timeout` and the shell tell it: 124 and 137 for what had to be ended, 128 and a signal's
/// number for what one ended.
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
