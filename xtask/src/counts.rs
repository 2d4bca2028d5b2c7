// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask counts`: instructions of the hot paths against a checked-in baseline.
//!
//! Mechanism: each path runs once under callgrind, which counts only inside of `hotpath::measured`.
//! Counts are the same on any machine of one architecture with one compiler, so a regression shows
//! where times are noise. Another compiler moves them a little: the tolerance is for that.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};

use xtask_base::{tree, Verdict};

/// Count the instructions of the hot paths and compare with the baseline (needs valgrind)
///
/// The baseline is bench/counts.txt: a path and its instructions a line. A path that takes more
/// than the tolerance allows is a finding; one that takes that much less is told, so that the
/// baseline can be brought down with --write.
///
/// Exit status: 0 within the tolerance, 1 a path got slower, 2 cannot count (no valgrind, another
/// architecture).
#[derive(clap::Args)]
pub struct Args {
    /// Percent that a count may be above its baseline
    #[arg(long, default_value_t = 10)]
    tolerance: u64,

    /// Make the counts the new baseline
    #[arg(long)]
    write: bool,
}

pub fn run(args: &Args) -> Result<Verdict> {
    ensure!(cfg!(target_arch = "x86_64"), "the baseline is for x86-64");
    let valgrind = Command::new("valgrind").arg("--version").output();
    ensure!(valgrind.is_ok_and(|out| out.status.success()), "valgrind is missing: apt-get install valgrind");
    let built = Command::new("cargo")
        .current_dir(tree::root())
        .args(["build", "--quiet", "--release", "--locked", "--package", "vkfd-bench", "--bin", "hotpaths"])
        .status()
        .context("start cargo")?;
    ensure!(built.success(), "the hot paths do not build");
    let program = tree::target().join("release/hotpaths");
    let names = Command::new(&program).output().with_context(|| format!("run {}", program.display()))?;
    let names = String::from_utf8(names.stdout).context("the names of the paths")?;
    let mut counts = BTreeMap::new();
    for name in names.lines() {
        counts.insert(name.to_owned(), count(&program, name)?);
    }
    let file = tree::root().join("bench/counts.txt");
    if args.write {
        let text: String = counts.iter().map(|(name, count)| format!("{name} {count}\n")).collect();
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        return Ok(Verdict::Clean(format!("{} counts written to {}", counts.len(), file.display())));
    }
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let findings = compare(&parse(&text)?, &counts, args.tolerance);
    Ok(if findings.is_empty() {
        Verdict::Clean(format!("{} hot paths, none above its baseline by more than {} %", counts.len(), args.tolerance))
    } else {
        Verdict::Findings(findings)
    })
}

fn count(program: &std::path::Path, name: &str) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg("--toggle-collect=*hotpath::measured*")
        .arg(program)
        .arg(name)
        .output()
        .context("start valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed under valgrind: {text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected :")).map(|(_, count)| count.trim());
    let Some(count) = collected.and_then(|count| count.parse().ok()).filter(|count| *count > 0) else {
        bail!("valgrind has counted nothing in {name}: {text}");
    };
    Ok(count)
}

fn parse(text: &str) -> Result<BTreeMap<String, u64>> {
    let line = |line: &str| {
        let (name, count) = line.split_once(' ').with_context(|| format!("no count in {line:?}"))?;
        Ok((name.to_owned(), count.parse().with_context(|| format!("no count in {line:?}"))?))
    };
    text.lines().map(line).collect()
}

fn compare(baseline: &BTreeMap<String, u64>, counts: &BTreeMap<String, u64>, tolerance: u64) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, now) in counts {
        match baseline.get(name) {
            None => findings.push(format!("{name}: {now} instructions, and no baseline (--write)")),
            Some(was) if now.saturating_mul(100) > was.saturating_mul(100 + tolerance) => {
                findings.push(format!("{name}: {now} instructions, the baseline is {was}"));
            }
            Some(was) if now.saturating_mul(100 + tolerance) < was.saturating_mul(100) => {
                println!("{name}: only {now} instructions, the baseline is {was}: bring it down with --write");
            }
            Some(_) => {}
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_tolerance_is_found_and_a_path_without_baseline_too() {
        let baseline = parse("a 1000\nb 1000\nc 1000\n").unwrap();
        let counts = parse("a 1100\nb 1101\nc 10\nd 1\n").unwrap();
        let findings = compare(&baseline, &counts, 10);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("b: 1101") && findings[1].starts_with("d: 1 "));
        assert!(parse("a\n").is_err() && parse("a x\n").is_err());
    }
}
