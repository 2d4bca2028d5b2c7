// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What each step took, and what it had compiled: the table at the log's end.
//!
//! Mechanism: the system says how much processor time ended children have used. For the compiler,
//! cargo gets a wrapper (`RUSTC_WRAPPER`) that times each call and appends a line to a file. It
//! wraps every cargo that a step starts, whatever directory that builds into. Cargo does not build
//! anything anew because there is a wrapper.

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

/// The wrapper and the file that it writes to.
pub(super) struct Compiler {
    wrapper: PathBuf,
    log: PathBuf,
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

impl Compiler {
    /// Makes both in a directory.
    pub(super) fn new(directory: &Path) -> Result<Compiler> {
        fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        let [wrapper, log] = ["timed-rustc", "compiled"].map(|name| directory.join(name));
        fs::write(&wrapper, WRAPPER).with_context(|| format!("write {}", wrapper.display()))?;
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).context("make the wrapper executable")?;
        Ok(Compiler { wrapper, log })
    }

    /// Has a command's compiler timed, unless somebody has another wrapper.
    pub(super) fn watch(&self, command: &mut Command) -> Result<()> {
        fs::write(&self.log, "").with_context(|| format!("write {}", self.log.display()))?;
        if std::env::var_os("RUSTC_WRAPPER").is_none() {
            command.env("RUSTC_WRAPPER", &self.wrapper);
        }
        command.env("VKFD_COMPILED", &self.log);
        Ok(())
    }

    fn compiled(&self) -> Compiled {
        fs::read_to_string(&self.log).map_or_else(|_| Compiled::default(), |text| read(&text))
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

/// Processor time of children that have ended.
fn processor_of_children() -> f64 {
    let ticks = 100.0;
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may have anything in it: the state is the third field.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let field = |at: usize| fields.get(at - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (field(16) + field(17)) / ticks
}

/// Runs something and measures it.
pub(super) fn measured(name: &str, compiler: &Compiler, run: impl FnOnce() -> Result<bool>) -> Result<Row> {
    let (began, before) = (Instant::now(), processor_of_children());
    let failed = !run()?;
    let (wall, processor) = (began.elapsed(), processor_of_children() - before);
    Ok(Row { name: name.into(), wall, processor, compiled: compiler.compiled(), failed })
}

/// The table, in the order of the run; a last line has the sums.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = format!("{:>8} {:>9} {:>9} {:>6}  step\n", "seconds", "processor", "compiler", "crates");
    let mut line = |name: &str, wall: f64, processor: f64, compiled: Compiled| {
        let Compiled { crates, seconds } = compiled;
        text += &format!("{wall:>8.1} {processor:>9.1} {seconds:>9.1} {crates:>6}  {name}\n");
    };
    let (mut wall, mut processor, mut all) = (0.0, 0.0, Compiled::default());
    for row in rows {
        let failed = if row.failed { "  FAILED" } else { "" };
        line(&format!("{}{failed}", row.name), row.wall.as_secs_f64(), row.processor, row.compiled);
        wall += row.wall.as_secs_f64();
        processor += row.processor;
        all.crates += row.compiled.crates;
        all.seconds += row.compiled.seconds;
    }
    line("all", wall, processor, all);
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
    fn the_wrapper_times_what_compiles_and_passes_the_rest_on() {
        let directory = tempfile::tempdir().expect("a directory");
        let compiler = Compiler::new(directory.path()).expect("a wrapper");
        let run = |words: &[&str]| {
            let mut command = Command::new(&compiler.wrapper);
            compiler.watch(&mut command).expect("watched");
            let ran = command.args(words).output().expect("bash");
            (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned(), compiler.compiled().crates)
        };
        let script = "echo said >&2; exit 3";
        assert_eq!(run(&["sh", "-c", script, "sh", "--crate-name", "x"]), (Some(3), "said\n".into(), 1));
        assert_eq!(run(&["sh", "-c", script, "sh", "--print", "cfg"]), (Some(3), "said\n".into(), 0));
        assert_eq!(run(&["sh", "-c", "exit 0", "sh", "--crate-name", "___"]), (Some(0), String::new(), 0));
    }

    #[test]
    fn a_step_is_measured_and_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let compiler = Compiler::new(directory.path()).expect("a wrapper");
        let busy = || {
            Ok(Command::new("sh").args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]).status()?.success())
        };
        let row = measured("busy", &compiler, busy).expect("a row");
        assert!(!row.failed && row.processor > 0.0, "{} s", row.processor);
        let failed = measured("bad", &compiler, || Ok(false)).expect("a row");
        let table = table(&[row, failed]);
        assert_eq!(table.lines().count(), 4, "{table}");
        assert!(table.contains("  bad  FAILED\n") && table.ends_with("  all\n"), "{table}");
    }
}
