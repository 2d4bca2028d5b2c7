// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernel's source, from Debian's package of it.
//!
//! Mechanism: the package is in a suite that the machine's apt need not know, see
//! [`xtask_base::apt`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use super::cache::{self, Cache};
use xtask_base::apt::{quiet, Apt};

/// The kernel that the module is written for; the kernel's Rust API is another one in every
/// version.
pub const VERSION: &str = "7.3";

const SUITE: &str = "trixie-backports";

/// An unpacked kernel.
pub struct Source {
    pub directory: PathBuf,
    /// As a part of paths.
    pub version: String,
}

/// The kernel in the cache.
pub fn find(cache: &Cache) -> Option<Source> {
    let entries = fs::read_dir(cache.root()).ok()?;
    let mut versions: Vec<String> = entries
        .flatten()
        .filter(|entry| cache::made_for(&entry.path()).is_some_and(|key| key == source_key(&entry.path())))
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("linux-").map(Into::into))
        .filter(|version: &String| version.starts_with(&format!("{VERSION}.")) || version == VERSION)
        .collect();
    // Several only after an update by hand; any will do, as long as it is always the same.
    versions.sort();
    let version = versions.pop()?;
    Some(Source { directory: cache.source(&version), version })
}

fn source_key(directory: &Path) -> String {
    format!("source of {}\n", directory.file_name().unwrap_or_default().to_string_lossy())
}

/// Gets the kernel unless it is there.
pub fn get(cache: &Cache) -> Result<Source> {
    if let Some(source) = find(cache) {
        return Ok(source);
    }
    cache.ensure_room(5)?;
    let package = format!("linux-source-{VERSION}");
    println!("fetching {package} from {SUITE}");
    let apt = Apt::new(cache.apt(), &[SUITE])?;
    apt.run("apt-get", &["update"])?;
    let policy = apt.run("apt-cache", &["show", "--no-all-versions", &package])?;
    let version = policy.lines().find_map(|line| line.strip_prefix("Version: ")).with_context(|| {
        format!("{SUITE} has no package {package} any more: the module has to move to the kernel that it has")
    })?;
    apt.run("apt-get", &["download", &package])?;
    let archive = apt.downloaded(&package)?;

    let version = cache::path_part(version);
    let directory = cache.source(&version);
    println!("unpacking it to {}", directory.display());
    let unpacked = cache.apt().join("unpacked");
    for old in [&unpacked, &directory] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("remove {}", old.display()))?;
        }
    }
    quiet(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&unpacked))?;
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let tar = unpacked.join("usr/src").join(format!("{package}.tar.xz"));
    quiet(
        Command::new("tar")
            .args(["--extract", "--strip-components=1", "--file"])
            .arg(&tar)
            .arg("--directory")
            .arg(&directory),
    )?;
    check_version(&directory)?;
    cache::mark(&directory, &source_key(&directory))?;
    fs::remove_dir_all(cache.apt()).with_context(|| format!("remove {}", cache.apt().display()))?;
    Ok(Source { directory, version })
}

/// Checks that the source has its package's version.
fn check_version(directory: &Path) -> Result<()> {
    let makefile = fs::read_to_string(directory.join("Makefile")).context("read the kernel's Makefile")?;
    let number =
        |name: &str| makefile.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix('=')).map(str::trim);
    let found = format!("{}.{}", number("VERSION").unwrap_or("?"), number("PATCHLEVEL").unwrap_or("?"));
    ensure!(found == VERSION, "{} has Linux {found}; the module is written for {VERSION}", directory.display());
    Ok(())
}
