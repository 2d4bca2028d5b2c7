// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a command reports: steps with their checks, as text while they happen or as one JSON
//! document at the end.
//!
//! A step has a description, checks, and numbers. It is `ok` when all its checks held. It is
//! `FAILED` when one did not or the step could not be finished, and `skipped` with a reason when
//! this system cannot do or show it.

use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value};
use vkfd_client::ProcessInfo;

use crate::format;

/// Bars that are shown at the same time have a line each.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
/// What a step is said to lack that could not be finished. Programs see it as a check; people see
/// the reason alone.
const BROKE: &str = "the step could be finished";
/// What a step's further lines begin with.
const INDENT: &str = "           ";

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All checks held.
    Ok,
    /// A check did not hold, or the step could not be finished.
    Failed,
    /// Not done.
    Skipped,
}

/// Something that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What should be.
    pub what: String,
    /// Whether it is.
    pub ok: bool,
    /// What is instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
}

/// A step in words.
pub struct Title {
    /// While it is done, beside the spinner.
    doing: String,
    /// Afterwards, unless the step says more.
    did: String,
}

/// The same words for both.
impl<T: Into<String>> From<T> for Title {
    fn from(words: T) -> Self {
        let did = words.into();
        Self { doing: did.clone(), did }
    }
}

impl Title {
    /// Words for while it is done, and for afterwards.
    pub fn new(doing: impl Into<String>, did: impl Into<String>) -> Self {
        Self { doing: doing.into(), did: did.into() }
    }
}

/// A step.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Its name, stable for programs.
    pub name: &'static str,
    /// What was done, in words.
    pub did: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The same as a boolean: whether nothing went wrong.
    pub ok: bool,
    /// Why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was checked.
    pub checks: Vec<Check>,
    /// What was measured and counted.
    pub numbers: Map<String, Value>,
    /// Lines of numbers in words.
    #[serde(skip)]
    notes: Vec<String>,
    #[serde(skip)]
    table: Vec<String>,
}

impl Step {
    /// A step called `name`.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            did: String::new(),
            outcome: Outcome::Ok,
            ok: true,
            reason: None,
            checks: Vec::new(),
            numbers: Map::new(),
            notes: Vec::new(),
            table: Vec::new(),
        }
    }

    /// Says what was done.
    pub fn did(&mut self, did: impl Into<String>) -> &mut Self {
        self.did = did.into();
        self
    }

    /// Notes a check and, for the case that it does not hold, what is there instead.
    pub fn check(&mut self, what: impl Into<String>, ok: bool, instead: impl FnOnce() -> String) -> &mut Self {
        if !ok {
            self.outcome = Outcome::Failed;
            self.ok = false;
        }
        self.checks.push(Check { what: what.into(), ok, instead: (!ok).then(instead) });
        self
    }

    /// It could not be finished.
    fn broke(&mut self, error: &anyhow::Error) {
        self.check(BROKE, false, || format!("{error:#}"));
    }

    /// Adds a number for programs.
    pub fn number(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        self.numbers.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a time for programs, in milliseconds.
    pub fn took(&mut self, name: &str, time: Duration) -> &mut Self {
        self.number(&format!("{name}_ms"), format::milliseconds(time))
    }

    /// Adds a line for people.
    pub fn note(&mut self, note: impl Into<String>) -> &mut Self {
        self.notes.push(note.into());
        self
    }

    /// Adds a line of a table, which is not broken.
    pub fn line(&mut self, line: String) -> &mut Self {
        self.table.push(line);
        self
    }

    /// Shows the driver's counters that report changed mappings, before and after.
    pub fn counters(&mut self, before: &ProcessInfo, after: &ProcessInfo) -> &mut Self {
        let mut rows = vec![
            ("invalidations", before.invalidations, after.invalidations),
            ("evictions", before.evictions, after.evictions),
            ("restores", before.restores, after.restores),
            ("ranges_restored", before.ranges_restored, after.ranges_restored),
        ];
        // Page faults of the GPU are the exception: shown to people when there were some.
        if before.gpu_faults == after.gpu_faults {
            let faults = serde_json::json!({ "before": before.gpu_faults, "after": after.gpu_faults });
            self.number("gpu_faults", faults);
        } else {
            rows.push(("gpu_faults", before.gpu_faults, after.gpu_faults));
        }
        self.counts(&rows)
    }

    /// Shows counters before and after.
    pub fn counts(&mut self, rows: &[(&str, u64, u64)]) -> &mut Self {
        let mut words = Vec::new();
        for (name, before, after) in rows {
            self.number(name, serde_json::json!({ "before": before, "after": after }));
            words.push(format!("{} {} -> {}", name.replace('_', " "), format::count(*before), format::count(*after)));
        }
        self.line(format!("counters: {}", words.join(", ")))
    }

    /// Marks it as not done.
    pub fn skip(&mut self, reason: impl Into<String>) -> &mut Self {
        self.outcome = Outcome::Skipped;
        self.reason = Some(reason.into());
        self
    }
}

/// Where output goes: text now or JSON later, colour, progress.
pub struct Output {
    json: bool,
    colour: bool,
    verbose: bool,
}

impl Output {
    /// As the terminal and the environment ask for it (`NO_COLOR`).
    pub fn new(json: bool) -> Self {
        let asked_not_to = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        Self { json, colour: !json && !asked_not_to && !dumb && io::stdout().is_terminal(), verbose: false }
    }

    /// Also says what each step has checked.
    pub fn with_checks(self, verbose: bool) -> Self {
        Self { verbose, ..self }
    }

    /// Whether the result is one JSON document.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a line of text, unless the output is JSON.
    ///
    /// # Errors
    ///
    /// What writing failed with.
    pub fn line(&self, text: &str) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        writeln!(io::stdout().lock(), "{text}")
    }

    /// Prints text broken into lines.
    ///
    /// # Errors
    ///
    /// What writing failed with.
    pub fn text(&self, text: &str) -> io::Result<()> {
        self.hanging("", "", text)
    }

    /// Prints a heading.
    ///
    /// # Errors
    ///
    /// What writing failed with.
    pub fn heading(&self, text: &str) -> io::Result<()> {
        self.line("")?;
        self.line(&self.paint("1", text))
    }

    fn hanging(&self, first: &str, rest: &str, text: &str) -> io::Result<()> {
        for (i, line) in format::wrap(text, format::width() - rest.len()).iter().enumerate() {
            self.line(&format!("{}{line}", if i == 0 { first } else { rest }))?;
        }
        Ok(())
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Prints a finished step.
    ///
    /// # Errors
    ///
    /// What writing failed with.
    pub fn step(&self, step: &Step) -> io::Result<()> {
        let (word, code) = match step.outcome {
            Outcome::Ok => ("ok     ", "32"),
            Outcome::Failed => ("FAILED ", "1;31"),
            Outcome::Skipped => ("skipped", "33"),
        };
        self.hanging(&format!("  {}  ", self.paint(code, word)), INDENT, &step.did)?;
        if let Some(reason) = &step.reason {
            self.hanging(INDENT, INDENT, &format!("because {reason}"))?;
        }
        let held: Vec<&str> = step.checks.iter().filter(|c| c.ok).map(|c| c.what.as_str()).collect();
        if self.verbose && !held.is_empty() {
            self.hanging(INDENT, INDENT, &format!("checked: {}", held.join("; ")))?;
        }
        for check in step.checks.iter().filter(|c| !c.ok) {
            let instead = check.instead.as_deref().unwrap_or("it is not so");
            let (what, text) = match check.what.as_str() {
                BROKE => ("could not be finished:", instead.to_owned()),
                what => ("does not hold:", format!("{what}: {instead}")),
            };
            self.hanging(&format!("{INDENT}{} ", self.paint("1;31", what)), INDENT, &text)?;
        }
        step.notes.iter().try_for_each(|note| self.hanging(INDENT, INDENT, note))?;
        step.table.iter().try_for_each(|line| self.line(&format!("{INDENT}{line}")))
    }

    /// Prints the JSON document, if the output is JSON.
    ///
    /// # Errors
    ///
    /// What writing failed with.
    pub fn document(&self, document: &Value) -> anyhow::Result<()> {
        if self.json {
            let mut out = io::stdout().lock();
            serde_json::to_writer_pretty(&mut out, document).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        Ok(())
    }

    /// A bar for something that takes long; shown when standard error is a terminal. `total` 0:
    /// nothing is known of how long.
    pub fn progress(&self, what: impl Into<String>, total: u64) -> Progress {
        if !io::stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let bar = if total == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(total) };
        if total != 0 {
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {wide_bar} {pos}/{len}") {
                bar.set_style(style);
            }
        }
        bar.set_message(what.into());
        let bar = BARS.add(bar);
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress(bar)
    }
}

/// A progress bar, which disappears when it is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// So much more is done.
    pub fn advance(&self, n: u64) {
        self.0.inc(n);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The steps of a run.
pub struct Report<'a> {
    output: &'a Output,
    /// Those done.
    pub steps: Vec<Step>,
}

impl<'a> Report<'a> {
    /// Without a step.
    pub fn new(output: &'a Output) -> Self {
        Self { output, steps: Vec::new() }
    }

    /// Where it goes.
    pub fn output(&self) -> &'a Output {
        self.output
    }

    /// Does a step. Its own errors make it `FAILED`; whether it went well is returned.
    ///
    /// # Errors
    ///
    /// What writing failed with.
    pub fn step(
        &mut self,
        name: &'static str,
        title: impl Into<Title>,
        body: impl FnOnce(&mut Step) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let Title { doing, did } = title.into();
        let mut step = Step::new(name);
        step.did(did);
        let progress = self.output.progress(doing, 0);
        let result = body(&mut step);
        drop(progress);
        if let Err(error) = result {
            step.broke(&error);
        }
        self.output.step(&step)?;
        let ok = step.ok;
        self.steps.push(step);
        Ok(ok)
    }

    /// Notes a step that is not done.
    ///
    /// # Errors
    ///
    /// What writing failed with.
    pub fn skip(
        &mut self,
        name: &'static str,
        title: impl Into<Title>,
        reason: impl Into<String>,
    ) -> anyhow::Result<()> {
        self.step(name, title, |step| {
            step.skip(reason);
            Ok(())
        })
        .map(drop)
    }

    /// Whether nothing failed.
    pub fn ok(&self) -> bool {
        self.steps.iter().all(|step| step.ok)
    }

    /// How many steps came to this.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.steps.iter().filter(|step| step.outcome == outcome).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Output = Output { json: true, colour: false, verbose: false };

    #[test]
    fn one_check_that_does_not_hold_fails_the_step_and_the_run() {
        let mut report = Report::new(&QUIET);
        let fine = report.step("a", "did a", |step| {
            step.check("x is 1", true, || unreachable!());
            Ok(())
        });
        assert!(fine.unwrap() && report.ok());
        let bad = report.step("b", "did b", |step| {
            step.check("x is 1", true, || unreachable!()).check("y is 2", false, || "y is 3".into());
            step.check("z is 3", true, || unreachable!());
            Ok(())
        });
        assert!(!bad.unwrap() && !report.ok());
        assert_eq!(report.steps[1].outcome, Outcome::Failed);
        let json = serde_json::to_value(&report.steps[1]).unwrap();
        assert_eq!(json["outcome"], "failed");
        assert_eq!(json["checks"][1]["instead"], "y is 3");
        assert!(json["checks"][0].get("instead").is_none());
    }

    #[test]
    fn an_error_fails_the_step_and_a_skip_does_not() {
        let mut report = Report::new(&QUIET);
        report.skip("s", "a step", "there is no swap").unwrap();
        assert!(report.ok());
        assert_eq!((report.count(Outcome::Skipped), report.steps[0].reason.as_deref()), (1, Some("there is no swap")));
        assert!(!report.step("e", "another", |_| anyhow::bail!("it broke")).unwrap());
        assert!(!report.ok());
        assert_eq!(report.steps[1].checks[0].instead.as_deref(), Some("it broke"));
    }
}
