// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the workspace and its build output are, and which files it has.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Context, Result};

/// The workspace's root.
pub fn root() -> PathBuf {
    // What cargo says when it runs this: two checkouts with one target directory share the
    // executable.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let root = manifest.ancestors().find(|directory| directory.join("Cargo.lock").exists());
    root.unwrap_or(&manifest).to_path_buf()
}

/// Cargo's target directory.
pub fn target() -> PathBuf {
    // A relative CARGO_TARGET_DIR is relative to the directory of cargo's call, and xtask runs
    // there too.
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The files that git tracks and those that are new and not ignored, relative to the root. A file
/// that is deleted but still tracked is not among them.
pub fn files() -> Result<Vec<String>> {
    let root = root();
    let listing = Command::new("git")
        .arg("-C")
        .arg(&root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("run git (install it to list the tree's files)")?;
    ensure!(listing.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listing.stderr).trim());
    let names = String::from_utf8(listing.stdout).context("a file name that is not UTF-8")?;
    Ok(names.split_terminator('\0').filter(|name| root.join(name).exists()).map(Into::into).collect())
}
