// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What each step took, and what it had compiled: the table at the log's end.
//!
//! Mechanism: a step's shell writes the processor time of its children to a file as it ends. For
//! the compiler, cargo gets a wrapper (`RUSTC_WRAPPER`) that times each call and appends a line to
//! another file. It wraps every cargo that a step starts, whatever directory that builds into.
//! Cargo does not build anything anew because there is a wrapper. Each lane has files of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Times a call of the compiler that compiles a crate; others are questions.
const WRAPPER: &str = r#"#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Written by cargo xtask ci: runs the compiler and notes what that took.
crate= previous=
for word in "$@"; do
    if [ "$previous" = --crate-name ]; then crate=$word; fi
    previous=$word
done
if [ -z "$crate" ] || [ "$crate" = ___ ]; then exec "$@"; fi
TIMEFORMAT="%R %U %S $crate"
# A descriptor that nobody has: cargo gives the compiler some for its jobs.
exec {errors}>&2
{ time "$@" 2>&"$errors"; } 2>>"$VKFD_COMPILED"
"#;

/// What a step's shell does first.
pub(super) const SHELL: &str = "trap 'times >\"$VKFD_TIMES\"' EXIT\n";

/// The files that say what the steps of a lane took.
pub(super) struct Meter {
    wrapper: PathBuf,
    /// A line for each call of the compiler.
    compiled: PathBuf,
    /// The shell's `times`.
    processor: PathBuf,
}

/// What the compiler was called for.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Compiled {
    crates: usize,
    /// Of the processor.
    seconds: f64,
}

/// A row of the table.
pub(super) struct Row {
    pub(super) name: String,
    wall: Duration,
    /// Seconds of the processor.
    processor: f64,
    compiled: Compiled,
    pub(super) failed: bool,
}

impl Meter {
    /// Makes a lane's files in a directory; all lanes have one wrapper.
    pub(super) fn new(directory: &Path, lane: &str) -> Result<Meter> {
        fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        let wrapper = directory.join("timed-rustc");
        let [compiled, processor] = ["compiled", "processor"].map(|name| directory.join(format!("{name}-{lane}")));
        fs::write(&wrapper, WRAPPER).with_context(|| format!("write {}", wrapper.display()))?;
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).context("make the wrapper executable")?;
        Ok(Meter { wrapper, compiled, processor })
    }

    /// Has a step's command timed; its compiler, too, unless somebody has another wrapper.
    pub(super) fn watch(&self, command: &mut Command) -> Result<()> {
        for log in [&self.compiled, &self.processor] {
            fs::write(log, "").with_context(|| format!("write {}", log.display()))?;
        }
        if std::env::var_os("RUSTC_WRAPPER").is_none() {
            command.env("RUSTC_WRAPPER", &self.wrapper);
        }
        command.env("VKFD_COMPILED", &self.compiled).env("VKFD_TIMES", &self.processor);
        Ok(())
    }

    /// Runs something and says what it took.
    pub(super) fn measured(&self, name: &str, run: impl FnOnce() -> Result<bool>) -> Result<Row> {
        let began = Instant::now();
        let failed = !run()?;
        let wall = began.elapsed();
        // A shell that was killed has written nothing.
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let processor = processor(&text(&self.processor));
        Ok(Row { name: name.into(), wall, processor, compiled: read(&text(&self.compiled)), failed })
    }
}

/// `REAL USER SYSTEM CRATE` a line.
fn read(log: &str) -> Compiled {
    let mut compiled = Compiled::default();
    for line in log.lines() {
        let mut words = line.split(' ').skip(1).map(str::parse::<f64>);
        if let (Some(Ok(user)), Some(Ok(system))) = (words.next(), words.next()) {
            compiled.crates += 1;
            compiled.seconds += user + system;
        }
    }
    compiled
}

/// The seconds in the output of a shell's `times`: `0m1.250s` four times.
fn processor(times: &str) -> f64 {
    let seconds = |word: &str| {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        // Some languages have a comma there.
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.replace(',', ".").parse::<f64>().ok()?)
    };
    times.split_whitespace().filter_map(seconds).sum()
}

/// The table, in the order of the run; a last line has the time of all and the other sums.
pub(super) fn table(rows: &[Row], wall: Duration) -> String {
    let mut text = format!("{:>8} {:>9} {:>9} {:>6}  step\n", "seconds", "processor", "compiler", "crates");
    let mut line = |name: &str, wall: f64, processor: f64, compiled: Compiled| {
        let Compiled { crates, seconds } = compiled;
        text += &format!("{wall:>8.1} {processor:>9.1} {seconds:>9.1} {crates:>6}  {name}\n");
    };
    let (mut processor, mut all) = (0.0, Compiled::default());
    for row in rows {
        let failed = if row.failed { "  FAILED" } else { "" };
        line(&format!("{}{failed}", row.name), row.wall.as_secs_f64(), row.processor, row.compiled);
        processor += row.processor;
        all.crates += row.compiled.crates;
        all.seconds += row.compiled.seconds;
    }
    line("all", wall.as_secs_f64(), processor, all);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compilers_calls_are_summed() {
        let log = "1.500 1.250 0.250 vkfd_cu\n0.100 0.050 0.050 libc\nno time in this\n";
        assert_eq!(read(log), Compiled { crates: 2, seconds: 1.6 });
        assert_eq!(read(""), Compiled::default());
    }

    #[test]
    fn a_shells_times_are_summed() {
        assert_eq!(processor("0m0.250s 0m0,250s\n1m30.500s 0m1.000s\n"), 92.0);
        assert_eq!(processor(""), 0.0);
    }

    #[test]
    fn the_wrapper_times_what_compiles_and_passes_the_rest_on() {
        let directory = tempfile::tempdir().expect("a directory");
        let meter = Meter::new(directory.path(), "a").expect("a wrapper");
        let run = |words: &[&str]| {
            let mut command = Command::new(&meter.wrapper);
            meter.watch(&mut command).expect("watched");
            let ran = command.args(words).output().expect("bash");
            (
                ran.status.code(),
                String::from_utf8_lossy(&ran.stderr).into_owned(),
                read(&fs::read_to_string(&meter.compiled).expect("a log")).crates,
            )
        };
        let script = "echo said >&2; exit 3";
        assert_eq!(run(&["sh", "-c", script, "sh", "--crate-name", "x"]), (Some(3), "said\n".into(), 1));
        assert_eq!(run(&["sh", "-c", script, "sh", "--print", "cfg"]), (Some(3), "said\n".into(), 0));
        assert_eq!(run(&["sh", "-c", "exit 0", "sh", "--crate-name", "___"]), (Some(0), String::new(), 0));
    }

    #[test]
    fn a_step_is_measured_and_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let meter = Meter::new(directory.path(), "a").expect("a wrapper");
        let shell = |script: &str| {
            let mut command = Command::new("bash");
            command.args(["-euo", "pipefail", "-c", &format!("{SHELL}{script}")]);
            meter.watch(&mut command)?;
            Ok(command.status()?.success())
        };
        let busy = "bash -c 'for ((i = 0; i < 100000; i++)); do :; done'";
        let row = meter.measured("busy", || shell(busy)).expect("a row");
        assert!(!row.failed && row.processor > 0.0, "{} s", row.processor);
        let failed = meter.measured("bad", || shell("false; true")).expect("a row");
        let table = table(&[row, failed], Duration::from_secs(7));
        assert_eq!(table.lines().count(), 4, "{table}");
        assert!(table.contains("  bad  FAILED\n") && table.contains("\n     7.0"), "{table}");
    }
}
