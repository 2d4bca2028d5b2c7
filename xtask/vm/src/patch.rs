// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The tree's patch of the kernel: virtio-gpu makes blobs of a program's own memory.
//!
//! Mechanism: `git apply`, which does all of a patch or nothing. What was applied is kept in the
//! kernel's source, and taken out again before another one is applied.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use xtask_base::apt::quiet;
use xtask_base::tree;

fn path() -> PathBuf {
    tree::root().join("vm/virtio-gpu-userptr.patch")
}

/// The patch.
pub fn text() -> Result<String> {
    fs::read_to_string(path()).with_context(|| format!("read {}", path().display()))
}

/// Has the kernel's source be the distribution's with the patch.
pub fn apply(source: &Path) -> Result<()> {
    apply_file(source, &path())
}

fn apply_file(source: &Path, patch: &Path) -> Result<()> {
    let applied = source.join("vkfd.patch");
    let text = fs::read_to_string(patch).with_context(|| format!("read {}", patch.display()))?;
    if applied.exists() {
        let old = fs::read_to_string(&applied).with_context(|| format!("read {}", applied.display()))?;
        if old == text {
            return Ok(());
        }
        take_out(source)?;
    }
    git_apply(source, patch, &[])?;
    fs::write(&applied, text).with_context(|| format!("write {}", applied.display()))
}

/// Takes the patch out of a copy of the kernel's source.
pub fn take_out(source: &Path) -> Result<()> {
    let applied = source.join("vkfd.patch");
    if applied.exists() {
        git_apply(source, &applied, &["--reverse"])?;
        fs::remove_file(&applied).with_context(|| format!("remove {}", applied.display()))?;
    }
    Ok(())
}

fn git_apply(source: &Path, patch: &Path, more: &[&str]) -> Result<()> {
    let mut git = Command::new("git");
    // In a repository that the cache may be in, paths would be that repository's.
    git.current_dir(source).env("GIT_CEILING_DIRECTORIES", source.parent().unwrap_or(source));
    git.arg("apply").args(more).arg(patch);
    quiet(&mut git).with_context(|| format!("patch {}", source.display())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_patch_takes_the_place_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let (source, file) = (directory.path().join("source"), directory.path().join("p"));
        fs::create_dir(&source).unwrap();
        fs::write(source.join("a"), "1\n").unwrap();
        let patch = |to: &str| fs::write(&file, format!("text\n\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+{to}\n")).unwrap();
        let now = || fs::read_to_string(source.join("a")).unwrap();
        for to in ["2", "2", "3"] {
            patch(to);
            apply_file(&source, &file).unwrap();
            assert_eq!(now(), format!("{to}\n"));
        }
        // One that does not fit changes nothing, and leaves what the distribution has.
        fs::write(&file, "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-7\n+8\n").unwrap();
        assert!(apply_file(&source, &file).is_err());
        assert_eq!(now(), "1\n");
    }
}
