// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask stray`: rules of the tree that no compiler checks.
//!
//! Mechanism: git lists the files (tracked, and new ones that are not ignored), each rule looks at one file's text.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::{tree, Verdict};

/// Check the tree's own rules: host cfg, SPDX lines, file length
///
/// A finding is: a cfg that names the host (vkfd_kernel) in a .rs file of driver/ other than driver/src/os/mod.rs, because
/// the driver's source must be the same on every host; a .rs, .c or .h file without the line "SPDX-License-Identifier: GPL-2.0 OR
/// MIT" at its start; a .rs file of more than 700 lines.
///
/// Looks at all files that git tracks and at new ones that it does not ignore.
///
/// Exit status: 0 clean, 1 findings, 2 cannot check (no git).
#[derive(clap::Args)]
pub struct Args {}

const HOST: &str = "vkfd_kernel";
const HOST_FILE: &str = "driver/src/os/mod.rs";
const LICENSE: &str = "SPDX-License-Identifier: GPL-2.0 OR MIT";
const MAX_LINES: usize = 700;

pub fn run(_: &Args) -> Result<Verdict> {
    let root = tree::root();
    let mut findings = Vec::new();
    let mut looked_at = 0_usize;
    for path in files(&root)? {
        if !matches!(extension(&path), "rs" | "c" | "h") {
            continue;
        }
        let file = root.join(&path);
        // A file that is deleted but still tracked has nothing to look at.
        if !file.exists() {
            continue;
        }
        let text = fs::read_to_string(&file).with_context(|| format!("read {path}"))?;
        looked_at += 1;
        findings.extend(check(&path, &text));
    }
    if findings.is_empty() {
        Ok(Verdict::Clean(format!("{looked_at} files, nothing stray")))
    } else {
        Ok(Verdict::Findings(findings))
    }
}

/// Paths relative to `root`.
fn files(root: &Path) -> Result<Vec<String>> {
    let listing = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("run git (install it to list the tree's files)")?;
    ensure!(listing.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listing.stderr).trim());
    let names = String::from_utf8(listing.stdout).context("a file name that is not UTF-8")?;
    Ok(names.split_terminator('\0').map(Into::into).collect())
}

fn extension(path: &str) -> &str {
    Path::new(path).extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// The findings in one file.
fn check(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let first = text.lines().next().unwrap_or_default();
    if !first.starts_with(['/', '*']) || !first.contains(LICENSE) {
        findings.push(format!("{path}:1: the first line is not a comment with {LICENSE:?}"));
    }
    if extension(path) != "rs" {
        return findings;
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        findings.push(format!("{path}: {lines} lines, more than {MAX_LINES}"));
    }
    if path.starts_with("driver/") && path != HOST_FILE {
        let lines = host_cfgs(text);
        findings.extend(lines.iter().map(|line| format!("{path}:{line}: a cfg names {HOST}; only {HOST_FILE} may")));
    }
    findings
}

/// Lines (from 1) of the `cfg(...)`, `cfg!(...)` and `cfg_attr(...)` that name the host.
fn host_cfgs(text: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for opening in ["cfg(", "cfg!(", "cfg_attr("] {
        for (start, _) in text.match_indices(opening) {
            let inside = &text[start + opening.len()..];
            if balanced(inside).contains(HOST) {
                lines.push(text[..start].matches('\n').count() + 1);
            }
        }
    }
    lines.sort_unstable();
    lines
}

/// `text` up to the parenthesis that closes the one before it.
fn balanced(text: &str) -> &str {
    let mut depth = 1_usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPDX: &str = "// SPDX-License-Identifier: GPL-2.0 OR MIT\n";

    #[test]
    fn a_good_file_has_no_findings() {
        assert!(check("driver/src/bo.rs", &format!("{SPDX}#[cfg(test)]\nmod tests {{}}\n")).is_empty());
        assert!(check("data/sample.h", "/* SPDX-License-Identifier: GPL-2.0 OR MIT */\n").is_empty());
    }

    #[test]
    fn the_host_is_named_in_one_file_only() {
        let text = format!("{SPDX}\n#[cfg(all(\n    test,\n    not(vkfd_kernel),\n))]\nfn f() {{}}\n");
        assert_eq!(
            check("driver/src/bo.rs", &text),
            ["driver/src/bo.rs:3: a cfg names vkfd_kernel; only driver/src/os/mod.rs may"]
        );
        assert!(check(HOST_FILE, &text).is_empty());
        assert!(check("host/src/lib.rs", &text).is_empty());
    }

    #[test]
    fn every_kind_of_cfg_is_seen() {
        assert_eq!(host_cfgs("#[cfg_attr(vkfd_kernel, path = \"a.rs\")]\nif cfg!(vkfd_kernel) {}\n"), [1, 2]);
        assert_eq!(host_cfgs("\ncfg!(vkfd_kernel)"), [2]);
        assert!(host_cfgs("// vkfd_kernel\n#[cfg(test)] // vkfd_kernel\n").is_empty());
    }

    #[test]
    fn a_missing_license_line_is_found() {
        assert_eq!(check("host/src/lib.rs", "//! Text.\n").len(), 1);
        assert_eq!(check("data/sample.c", &format!("\n{SPDX}")).len(), 1);
        assert_eq!(check("data/sample.c", "").len(), 1);
    }

    #[test]
    fn a_long_file_is_found() {
        let text = format!("{SPDX}{}", "\n".repeat(MAX_LINES));
        assert_eq!(check("gpu/src/lib.rs", &text), ["gpu/src/lib.rs: 701 lines, more than 700"]);
        assert!(check("gpu/src/lib.rs", &text[..text.len() - 1]).is_empty());
    }
}
