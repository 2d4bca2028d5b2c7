// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What has changed since everything was checked.
//!
//! Mechanism: a run with `--all` that passes leaves the commit's name in the cache. Later runs ask
//! git which files differ from it, those that are not committed among them. Where there is no such
//! file, or git does not have the commit, nothing is known.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Context, Result};

use xtask_base::{cache, tree};

/// Where the commit's name is kept.
fn record() -> Result<PathBuf> {
    Ok(cache::root()?.join("ci/passed"))
}

fn git(arguments: &[&str]) -> Result<String> {
    let ran = Command::new("git").arg("-C").arg(tree::root()).args(arguments).output().context("run git")?;
    ensure!(ran.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr).trim());
    String::from_utf8(ran.stdout).context("git's answer is no text")
}

/// The commit that everything passed on, if that is known here.
pub(super) fn last_passed() -> Result<Option<String>> {
    let Ok(text) = fs::read_to_string(record()?) else { return Ok(None) };
    let commit = text.trim().to_owned();
    let is_name = commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok((is_name && git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).is_ok()).then_some(commit))
}

/// The files that are not as in `commit`.
pub(super) fn since(commit: &str) -> Result<Vec<String>> {
    let tracked = git(&["diff", "--name-only", "-z", "--no-renames", commit])?;
    let new = git(&["ls-files", "-z", "--others", "--exclude-standard"])?;
    Ok(tracked.split_terminator('\0').chain(new.split_terminator('\0')).map(Into::into).collect())
}

/// The tree's commit; none if it has changes that are in no commit.
pub(super) fn commit() -> Result<Option<String>> {
    let commit = git(&["rev-parse", "HEAD"])?.trim().to_owned();
    Ok(since(&commit)?.is_empty().then_some(commit))
}

/// Notes that everything has passed.
pub(super) fn passed() -> Result<String> {
    let Some(commit) = commit()? else {
        return Ok("not recorded: the tree has changes that are in no commit".into());
    };
    let path = record()?;
    let directory = path.parent().context("the record has no directory")?;
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let written = path.with_extension("new");
    fs::write(&written, format!("{commit}\n")).with_context(|| format!("write {}", written.display()))?;
    fs::rename(&written, &path).with_context(|| format!("write {}", path.display()))?;
    Ok(format!("recorded: everything has passed on {commit}"))
}
