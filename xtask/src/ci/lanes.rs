// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs the steps of a plan, in two lanes where that is possible.
//!
//! Mechanism: a guest without KVM keeps one processor busy and waits between its commands. Rings
//! that the table marks with `beside` therefore have a lane of their own. It begins when the first
//! ring of the plan, which builds nearly everything, has passed. A lane is a thread; its steps run
//! one after the other. While there are two lanes, a step's output goes to a file of the lane and
//! is shown in one piece. After a failure no lane begins another step.
//!
//! [`Shared`] has the only lock: the standard output and the rows are behind it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{anyhow, Context, Result};

use super::progress::Progress;
use super::table::Planned;
use super::times::{self, Meter, Row, SHELL};
use xtask_base::{cache, cargo, tree, Verdict};

/// A step that does not end when it is told to is killed after so many seconds.
const KILL: &str = "30";

/// How a plan is run.
pub(super) struct Lanes {
    /// After a failure, too.
    pub(super) keep_going: bool,
    /// In one lane, with all output as it comes.
    pub(super) one: bool,
    /// Where steps that have passed are noted.
    pub(super) progress: Option<Progress>,
}

/// What came of a run.
pub(super) struct Ran(Vec<Row>);

impl Ran {
    pub(super) fn failed(&self) -> Vec<String> {
        self.0.iter().filter(|row| row.failed).map(|row| format!("{} failed", row.name)).collect()
    }

    pub(super) fn verdict(&self) -> Verdict {
        match self.failed() {
            failed if failed.is_empty() => Verdict::Clean(format!("{} steps passed", self.0.len())),
            failed => Verdict::Findings(failed),
        }
    }
}

/// What lanes have together.
struct Shared<'a> {
    lanes: &'a Lanes,
    /// The program of `cargo xtask`.
    this: &'a Path,
    /// A row for each step of the plan that has ended, with its place in the plan.
    rows: Mutex<Vec<(usize, Row)>>,
}

impl Lanes {
    pub(super) fn run(&self, plan: &[Planned<'_>]) -> Result<Ran> {
        cache::used(&cargo::target()?);
        let directory = cargo::target()?.join("ci");
        fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
        let this = copy_of_this(&directory)?;
        let began = Instant::now();
        let rows = self.rows(plan, &directory, &this)?;
        println!("\n== what it took (CONTRIBUTING.md says how to read this)\n{}", times::table(&rows, began.elapsed()));
        Ok(Ran(rows))
    }

    fn rows(&self, plan: &[Planned<'_>], directory: &Path, this: &Path) -> Result<Vec<Row>> {
        let shared = Shared { lanes: self, this, rows: Mutex::default() };
        let all: Vec<_> = plan.iter().enumerate().collect();
        let (main, beside) = (Meter::new(directory, "main")?, Meter::new(directory, "beside")?);
        let (first, later) = match plan.first() {
            Some(first) if !self.one => all.split_at(plan.partition_point(|step| step.ring.name == first.ring.name)),
            _ => (&all[..], &[][..]),
        };
        shared.lane(&main, first, None)?;
        let (guests, others): (Vec<_>, Vec<_>) = later.iter().partition(|(_, planned)| planned.ring.beside);
        if guests.is_empty() || others.is_empty() {
            shared.lane(&main, later, None)?;
        } else {
            thread::scope(|scope| {
                let [main_said, said] = ["main", "beside"].map(|name| directory.join(format!("said-{name}")));
                let lane = scope.spawn(|| shared.lane(&beside, &guests, Some(said)));
                shared.lane(&main, &others, Some(main_said))?;
                lane.join().map_err(|_| anyhow!("a lane panicked"))?
            })?;
        }
        let mut rows = shared.rows.into_inner().unwrap_or_else(PoisonError::into_inner);
        rows.sort_by_key(|(place, _)| *place);
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }
}

/// `cargo xtask` would have cargo look at the whole tree once more, and steps build this program
/// anew, which takes it away from under its name.
fn copy_of_this(directory: &Path) -> Result<PathBuf> {
    let this = directory.join("xtask");
    let copied = directory.join(format!("xtask-{}", std::process::id()));
    fs::copy(std::env::current_exe().context("find this program")?, &copied).context("copy this program")?;
    fs::rename(&copied, &this).context("copy this program")?;
    Ok(this)
}

impl Shared<'_> {
    /// Runs steps one after the other; with a file for their output, if another lane runs.
    fn lane(&self, meter: &Meter, steps: &[(usize, &Planned<'_>)], said: Option<PathBuf>) -> Result<()> {
        for (place, planned) in steps {
            let name = planned.name();
            {
                let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
                if !self.lanes.keep_going && rows.iter().any(|(_, row)| row.failed) {
                    return Ok(());
                }
                match said {
                    Some(_) => println!("\n-- begun: {name}"),
                    None => println!("\n== {name}"),
                }
            }
            let row = meter.measured(&name, || self.step(planned, meter, said.as_deref()))?;
            let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(said) = &said {
                println!("\n== {name}");
                let mut said = File::open(said).with_context(|| format!("read {}", said.display()))?;
                let mut output = io::stdout().lock();
                io::copy(&mut said, &mut output)
                    .and_then(|_| output.flush())
                    .context("show what a step has written")?;
            }
            if let Some(progress) = self.lanes.progress.as_ref().filter(|_| !row.failed) {
                progress.passed(&name)?;
            }
            rows.push((*place, row));
        }
        Ok(())
    }

    /// Whether a step passed.
    fn step(&self, planned: &Planned<'_>, meter: &Meter, said: Option<&Path>) -> Result<bool> {
        let Planned { step, command, form, .. } = planned;
        let minutes = step.minutes(*form);
        // With this program its steps end, too; `timeout` has a group of its own with them.
        let mut limited = Command::new("setpriv");
        limited.args(["--pdeathsig", "TERM", "timeout", &format!("--kill-after={KILL}")]);
        let command = command.replace("cargo xtask ", "\"$XTASK\" ");
        limited.arg(format!("{minutes}m")).args(["bash", "-euo", "pipefail", "-c", &format!("{SHELL}{command}")]);
        limited.env("XTASK", self.this).current_dir(tree::root()).env("CARGO_TARGET_DIR", cargo::target()?);
        limited.stdin(Stdio::null());
        if let Some(said) = said {
            let file = File::create(said).with_context(|| format!("create {}", said.display()))?;
            limited.stdout(file.try_clone().context("share a file")?).stderr(file);
        }
        meter.watch(&mut limited)?;
        let status = limited.status().context("run setpriv (util-linux) and timeout (coreutils)")?;
        if matches!(status.code(), Some(124 | 137)) {
            println!("{} has not ended in {minutes} minutes", step.name);
        }
        Ok(status.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::table::{Form, Scope, Table};

    /// The rows of a table's run: a name and whether it failed.
    fn ran(text: &str, lanes: &Lanes, directory: &Path) -> Vec<(String, bool)> {
        let table = Table::parse(text).expect("a table");
        let plan = table.plan(&Scope::Form(Form::Short));
        let rows = lanes.rows(&plan, directory, Path::new("xtask")).expect("rows");
        rows.into_iter().map(|row| (row.name, row.failed)).collect()
    }

    fn ring(name: &str, beside: bool, command: &str) -> String {
        let step = format!("[[ring.step]]\nname = 's{name}'\nshort = \"{command}\"\n");
        format!("[[ring]]\nname = '{name}'\nabout = 'a'\nbeside = {beside}\n{step}")
    }

    #[test]
    fn a_ring_of_guests_runs_beside_the_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = directory.path().display();
        // Each waits for the other, which needs the first ring's file.
        let wait = |mine: &str, others: &str| {
            format!("[ -e {at}/first ]; touch {at}/{mine}; until [ -e {at}/{others} ]; do sleep 0.01; done")
        };
        let first = ring("first", false, &format!("touch {at}/first"));
        let text = [first, ring("guest", true, &wait("a", "b")), ring("other", false, &wait("b", "a"))].concat();
        let lanes = Lanes { keep_going: false, one: false, progress: None };
        let row = |name: &str| (format!("{name}: s{name} (short)"), false);
        assert_eq!(ran(&text, &lanes, directory.path()), [row("first"), row("guest"), row("other")]);
    }

    #[test]
    fn steps_that_passed_are_noted() {
        let directory = tempfile::tempdir().expect("a directory");
        let begin = |resumes| Progress::at(directory.path().join("steps"), Some("a"), resumes).expect("a file");
        let text = [ring("first", false, "true"), ring("second", false, "false"), ring("third", false, "true")];
        let lanes = Lanes { keep_going: true, one: true, progress: Some(begin(false).0) };
        ran(&text.concat(), &lanes, directory.path());
        assert_eq!(begin(true).1, ["first: sfirst (short)", "third: sthird (short)"]);
    }

    #[test]
    fn nothing_begins_after_a_failure() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = [ring("first", false, "false"), ring("guest", true, "true"), ring("other", false, "true")].concat();
        let failed = |keep_going, one| {
            let rows = ran(&text, &Lanes { keep_going, one, progress: None }, directory.path());
            rows.iter().map(|(_, failed)| *failed).collect::<Vec<_>>()
        };
        assert_eq!(failed(false, false), [true]);
        assert_eq!(failed(false, true), [true]);
        assert_eq!(failed(true, false), [true, false, false]);
    }
}
