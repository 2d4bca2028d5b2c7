// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd doctor`: what works on this system, what does not, and what to do about it.
//!
//! Mechanism: the code that needs the answers asks the questions. The host checks userfaultfd and
//! the page tables, the machine of `vkfd demo` is made, and `vkfd run` runs a shell that opens
//! /dev/kfd. Nothing is changed.

mod run;
mod software;
mod system;

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use crate::format;

/// Columns before what is said of something.
const INDENT: usize = 18;

#[derive(clap::Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How it is with something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Good,
    /// It works, with less than there could be.
    Limited,
    /// Not there, and only some people need it.
    Absent,
    /// It does not work.
    Bad,
}

/// Something that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    /// A word, for programs.
    name: &'static str,
    state: State,
    /// What was found.
    found: String,
    /// Its consequence for the user.
    means: String,
    /// What to do; empty where nothing has to be.
    advice: String,
}

impl Check {
    fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), means: String::new(), advice: String::new() }
    }

    fn means(self, text: impl Into<String>) -> Self {
        Self { means: text.into(), ..self }
    }

    fn advice(self, text: impl Into<String>) -> Self {
        Self { advice: text.into(), ..self }
    }
}

pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let mut checks = vec![run::check()];
    // What decides the exit code; the rest is about more and less.
    let works = checks.iter().all(|check| check.state != State::Bad);
    checks.push(run::library());
    checks.extend(system::checks());
    checks.extend(software::checks());
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json!({ "vkfd": env!("CARGO_PKG_VERSION"), "run": works, "checks": checks }))?;
    } else {
        write!(out, "{}", text(&checks))?;
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(checks: &[Check]) -> String {
    let mut text = format!("vkfd {} on {}\n\n", env!("CARGO_PKG_VERSION"), system::title());
    for check in checks {
        let mark = match check.state {
            State::Good => "ok",
            State::Limited => "less",
            State::Absent => "-",
            State::Bad => "BAD",
        };
        let advice = if check.advice.is_empty() { String::new() } else { format!("To do: {}", check.advice) };
        let mut start = format!("{mark:<5}{:<13}", check.name);
        for part in [&check.found, &check.means, &advice].into_iter().filter(|part| !part.is_empty()) {
            for line in format::wrap(part, format::width() - INDENT) {
                let _ = writeln!(text, "{start:INDENT$}{line}");
                start.clear();
            }
        }
    }
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    text.push_str(&match (count(State::Bad), count(State::Limited)) {
        (0, 0) => "\nAll of it works here.\n".to_owned(),
        (0, 1) => "\n`vkfd run` works here; one thing could be better.\n".to_owned(),
        (0, less) => format!("\n`vkfd run` works here; {less} things could be better.\n"),
        (1, _) => "\nOne thing does not work here: see BAD.\n".to_owned(),
        (bad, _) => format!("\n{bad} things do not work here: see BAD.\n"),
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_bad_is_said_with_what_to_do() {
        let good = || Check::new("run", State::Good, "a program found the machine");
        let shown = text(&[good()]);
        assert!(shown.contains("ok   run          a program found the machine\n\nAll of it works"), "{shown}");
        let limited = Check::new("memory", State::Limited, "1 MiB").means("demo does not fit").advice("more memory");
        let shown = text(&[good(), limited]);
        assert!(
            shown.contains(
                "less memory       1 MiB\n                  demo does not fit\n                  To do: more memory\n"
            ),
            "{shown}"
        );
        assert!(shown.ends_with("`vkfd run` works here; one thing could be better.\n"), "{shown}");
        let shown = text(&[Check::new("run", State::Bad, "no")]);
        assert!(shown.contains("BAD  run          no\n"), "{shown}");
    }
}
