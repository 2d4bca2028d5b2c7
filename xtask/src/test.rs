// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask test`: all tests of the workspace.
//!
//! Mechanism: cargo-nextest, where it is installed, runs each test in a process of its own and ends
//! one that hangs, by name (.config/nextest.toml). Where it is not, cargo runs them, several in a
//! process. Such a process names a test that runs for a minute. Some minutes later all is ended,
//! and the test is a finding. Examples in the documentation are cargo's in both cases. All is built
//! first, by one call of cargo, with the programs that other checks run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{kill_process_group, Pid, Signal};

use xtask_base::{cargo, Verdict};

/// Run all tests of the workspace, by cargo-nextest where that is installed
///
/// The results of cargo-nextest are also in target/nextest/ci/junit.xml. A report of the compiled
/// crates is in cargo-timings/ of cargo's target directory.
///
/// Exit status: 0 all passed, 1 some failed or do not build, 2 cannot run.
#[derive(clap::Args)]
pub struct Args {
    /// Only build
    #[arg(long)]
    no_run: bool,
    /// Leave cargo-nextest alone
    #[arg(long)]
    plain: bool,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let mut build = cargo::cargo();
    build.args(["test", "--workspace", "--locked", "--no-run", "--quiet", "--timings"]);
    if !succeeds(&mut build)? {
        return Ok(Verdict::Findings(vec!["the tests do not build".into()]));
    }
    if args.no_run {
        return Ok(Verdict::Clean("all tests are built".into()));
    }
    let nextest = cargo::cargo().args(["nextest", "--version"]).output();
    let nextest = !args.plain && nextest.is_ok_and(|output| output.status.success());
    let mut tests = cargo::cargo();
    match nextest {
        true => tests.args(["nextest", "run", "--profile", "ci"]),
        // What fails first does not keep the others from being run.
        false => tests.args(["test", "--lib", "--bins", "--tests", "--no-fail-fast"]),
    };
    let mut findings = Vec::new();
    tests.args(["--workspace", "--locked"]);
    match nextest {
        true if succeeds(&mut tests)? => {}
        true => findings.push("tests have failed; they are named above".into()),
        false => match watched(&mut tests, LIMIT)? {
            Ended::Well => {}
            Ended::Badly => findings.push("tests have failed; they are named above".into()),
            Ended::Hung(names) => findings.extend(names.into_iter().map(|name| format!("{name} hangs"))),
        },
    }
    let mut examples = cargo::cargo();
    if !succeeds(examples.args(["test", "--doc", "--workspace", "--locked"]))? {
        findings.push("examples of the documentation have failed; they are named above".into());
    }
    Ok(match (findings.is_empty(), nextest) {
        (true, true) => Verdict::Clean("all tests have passed".into()),
        (true, false) => {
            Verdict::Clean("all tests have passed; with cargo-nextest each has a process of its own".into())
        }
        (false, _) => Verdict::Findings(findings),
    })
}

fn succeeds(command: &mut Command) -> Result<bool> {
    Ok(command.status().context("start cargo")?.success())
}

/// After its minute, a test has so long.
const LIMIT: Duration = Duration::from_secs(4 * 60);
/// What a test program says of a test that has run for a minute.
const SLOW: &str = " has been running for over 60 seconds";

/// How cargo's tests ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Well,
    Badly,
    /// With the tests that had not ended.
    Hung(Vec<String>),
}

/// Runs tests, shows what they say, and ends them when one has said for `limit` that it is slow.
fn watched(tests: &mut Command, limit: Duration) -> Result<Ended> {
    let mut child = tests.stdout(Stdio::piped()).process_group(0).spawn().context("start cargo")?;
    let said = BufReader::new(child.stdout.take().context("cargo has no stdout")?);
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || said.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
    let mut slow: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                println!("{line}");
                note(&mut slow, &line);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let hung: Vec<_> =
            slow.iter().filter(|(_, since)| since.elapsed() > limit).map(|(name, _)| name.clone()).collect();
        if !hung.is_empty() {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                kill_process_group(group, Signal::KILL).context("end the tests")?;
            }
            child.wait().context("wait for cargo")?;
            return Ok(Ended::Hung(hung));
        }
    }
    Ok(if child.wait().context("wait for cargo")?.success() { Ended::Well } else { Ended::Badly })
}

/// Keeps the list of slow tests, by a line that a test program has said.
fn note(slow: &mut BTreeMap<String, Instant>, line: &str) {
    if line.starts_with("running ") {
        // Of another program: the one before has ended.
        slow.clear();
    }
    let Some(rest) = line.strip_prefix("test ") else { return };
    match (rest.strip_suffix(SLOW), rest.split_once(" ... ")) {
        (Some(name), _) => drop(slow.insert(name.into(), Instant::now())),
        (None, Some((name, _))) => drop(slow.remove(name)),
        (None, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that says this, and then ends as `end` says.
    fn program(said: &str, end: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("printf '{said}'; {end}")]);
        shell
    }

    #[test]
    fn a_test_that_hangs_is_named_and_ended() {
        let line = |name: &str| format!("test {name}{SLOW}\\n");
        let said = format!("running 2 tests\\ntest a ... ok\\n{}", line("b"));
        let begun = Instant::now();
        let ended = watched(&mut program(&said, "sleep 1000"), Duration::from_millis(1)).expect("ended");
        assert_eq!(ended, Ended::Hung(vec!["b".into()]));
        assert!(begun.elapsed() < Duration::from_secs(500));
        for (end, wanted) in [("true", Ended::Well), ("false", Ended::Badly)] {
            let said = format!("running 1 test\\n{}test a ... ok\\n", line("a"));
            assert_eq!(watched(&mut program(&said, end), Duration::from_secs(1000)).expect("ended"), wanted);
        }
    }

    #[test]
    fn a_slow_test_that_ends_does_not_hang() {
        let mut slow = BTreeMap::new();
        let mut names = |line: &str| {
            note(&mut slow, line);
            slow.keys().cloned().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&format!("test a{SLOW}")), "a");
        assert_eq!(names(&format!("test m::b{SLOW}")), "a m::b");
        assert_eq!(names("test a ... FAILED"), "m::b");
        assert_eq!(names("test c ... ok"), "m::b");
        assert_eq!(names("running 7 tests"), "");
    }
}
