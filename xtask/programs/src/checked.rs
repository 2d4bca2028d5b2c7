// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `--check`: what `vkfd run --check` finds in the kernels of a suite's programs.
//!
//! Mechanism: each run writes its findings to a file in the directory that the program works in,
//! and that file is read when the program has ended. `xtask/programs/SUITE.accepted`, if there is
//! one, is a suppression file of `vkfd run`: bugs of those programs, each with its reason. A line
//! that fits none of the findings of a whole run is a finding itself: the check has missed a bug.
//!
//! Limits: programs of shared machines and of guests are not checked. A program that had to be
//! ended has no findings, and is one by itself.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::unit::Unit;
use xtask_base::tree;

/// A checked run takes so many times the time of another.
pub const SLOWER: u32 = 20;

/// How many programs were checked: several may work in one directory at a time.
static CHECKED: AtomicUsize = AtomicUsize::new(0);

/// What a program is checked for, as `vkfd run --check` has it.
pub struct Checks(pub String);

/// The files of a checked run, and the options that name them.
pub struct Files {
    found: String,
    accepted: Option<String>,
}

/// The part of a finding in JSON that is told.
#[derive(Deserialize)]
struct Finding {
    rule: String,
    message: String,
    count: u64,
    place: Place,
}

#[derive(Deserialize)]
struct Place {
    kernel: Option<String>,
    offset: Option<u64>,
    instruction: Option<String>,
}

#[derive(Deserialize)]
struct Report {
    findings: Vec<Finding>,
    #[serde(default)]
    unused_suppressions: Vec<Line>,
    checked: Extent,
}

#[derive(Deserialize)]
struct Line {
    text: String,
}

#[derive(Deserialize)]
struct Extent {
    launches: u64,
}

/// What checks said of a program: how many launches they looked at, and a line for each finding.
pub struct Said {
    pub launches: u64,
    pub findings: Vec<String>,
    /// Accepted findings that it did not have.
    pub unused: BTreeSet<String>,
}

impl Files {
    /// For a program of this suite that is about to run.
    pub fn of(unit: &Unit<'_>) -> Result<Files> {
        let number = CHECKED.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| format!("{what}-{}-{number}", std::process::id());
        let file = tree::root().join(format!("xtask/programs/{}.accepted", unit.suite));
        let accepted = file.exists().then(|| name("accepted"));
        if let Some(accepted) = &accepted {
            fs::copy(&file, unit.at.join(accepted)).with_context(|| format!("copy {}", file.display()))?;
        }
        Ok(Files { found: name("found"), accepted })
    }

    /// Options of `vkfd run`, for which the program's directory is `at`.
    pub fn options(&self, Checks(kinds): &Checks, at: &Path) -> Vec<OsString> {
        let mut options = vec!["--check".into(), kinds.into(), "--check-json".into(), at.join(&self.found).into()];
        if let Some(accepted) = &self.accepted {
            options.extend(["--suppress".into(), at.join(accepted).into()]);
        }
        options
    }

    /// What was found; the files go.
    pub fn read(self, at: &Path) -> Result<Said> {
        let found = at.join(&self.found);
        if let Some(accepted) = &self.accepted {
            fs::remove_file(at.join(accepted)).context("remove the accepted findings")?;
        }
        // There is none if the program had to be ended.
        let Ok(text) = fs::read_to_string(&found) else {
            let findings = vec!["its kernels' checks did not end".into()];
            return Ok(Said { launches: 0, findings, unused: BTreeSet::new() });
        };
        fs::remove_file(&found).with_context(|| format!("remove {}", found.display()))?;
        said(&text).with_context(|| format!("read {}", found.display()))
    }
}

fn said(text: &str) -> Result<Said> {
    let Report { findings, unused_suppressions, checked } = serde_json::from_str(text)?;
    let line = |Finding { rule, message, count, place }: Finding| {
        let kernel = place.kernel.as_deref().unwrap_or("code without a name");
        let offset = place.offset.unwrap_or(0);
        let instruction = place.instruction.as_deref().unwrap_or("");
        format!("{message} [{rule}], {count} times, at {kernel} + {offset:#x}: {instruction}")
    };
    let unused = unused_suppressions.into_iter().map(|line| line.text).collect();
    Ok(Said { launches: checked.launches, findings: findings.into_iter().map(line).collect(), unused })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line() {
        let text = r#"{"findings": [{"check": "race", "rule": "race/lds", "severity": "error", "message": "a write",
            "count": 3, "place": {"kernel": "sum", "pc": 64, "offset": 16, "instruction": "ds_write_b32 v0, v1"}}],
            "suppressed": 1, "dropped": 0, "unused_suppressions": [{"line": 2, "text": "kernel=z"}], "checked": {"launches": 5, "instructions": 9}}"#;
        let told = said(text).unwrap();
        assert_eq!(told.findings, ["a write [race/lds], 3 times, at sum + 0x10: ds_write_b32 v0, v1"]);
        assert_eq!((told.launches, told.unused), (5, BTreeSet::from(["kernel=z".to_owned()])));
        assert!(said("").is_err());
    }

    #[test]
    fn a_program_without_a_report_is_a_finding() {
        let at = tempfile::tempdir().unwrap();
        let files = || Files { found: "found".into(), accepted: None };
        assert_eq!(files().read(at.path()).unwrap().findings.len(), 1);
        let text = r#"{"findings": [], "checked": {"launches": 0, "instructions": 0}}"#;
        fs::write(at.path().join("found"), text).unwrap();
        assert_eq!(files().read(at.path()).unwrap().findings, [""; 0]);
        assert!(!at.path().join("found").exists());
    }
}
