// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the builds in the target directory were made of, for another checkout with the same target
//! directory.
//!
//! Mechanism: cargo goes by files' times. [`record`] writes each file's time and contents (git's
//! number of them) into the target directory. `.ci/run` gives a file of another checkout the time
//! of the same contents. The record is good until cargo next builds anything.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::UNIX_EPOCH;

use anyhow::{ensure, Context, Result};

use xtask_base::tree;

/// The record, in the target directory.
const NAME: &str = ".sources";

/// Records the tree's files: a line each with the time, the contents' number and the path.
pub fn record() -> Result<()> {
    let (root, files) = (tree::root(), tree::files()?);
    let regular: Vec<&String> = files.iter().filter(|name| root.join(name).is_file()).collect();
    let names = regular.iter().fold(String::new(), |all, name| all + name + "\n");
    let mut git = Command::new("git")
        .arg("-C")
        .arg(&root)
        .args(["hash-object", "--no-filters", "--stdin-paths"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("run git")?;
    let mut input = git.stdin.take().context("git's input")?;
    let writer = std::thread::spawn(move || input.write_all(names.as_bytes()));
    let output = git.wait_with_output()?;
    ensure!(output.status.success() && writer.join().is_ok_and(|written| written.is_ok()), "git hash-object failed");
    let numbers = String::from_utf8(output.stdout)?;
    let mut lines = String::new();
    for (name, number) in regular.into_iter().zip(numbers.lines()) {
        let time = root.join(name).metadata()?.modified()?.duration_since(UNIX_EPOCH)?;
        writeln!(lines, "{}.{:09} {number} {name}", time.as_secs(), time.subsec_nanos())?;
    }
    std::fs::create_dir_all(tree::target())?;
    std::fs::write(tree::target().join(NAME), lines).context("write the record of sources")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_a_time_and_gits_number() {
        record().unwrap();
        let record = std::fs::read_to_string(tree::target().join(NAME)).unwrap();
        let line = record.lines().find(|line| line.ends_with(" xtask/src/sources.rs")).unwrap();
        let [time, number, _] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(time.parse::<f64>().unwrap() > 1e9, "{line}");
        let git =
            Command::new("git").arg("-C").arg(tree::root()).args(["hash-object", "xtask/src/sources.rs"]).output();
        assert_eq!(String::from_utf8(git.unwrap().stdout).unwrap().trim(), number);
    }
}
