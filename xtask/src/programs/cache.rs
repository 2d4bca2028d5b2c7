// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is kept between runs: `~/.cache/vkfd/programs`.
//!
//! Mechanism: a directory is complete when its stamp, a file written last, says what made it. One
//! that was made otherwise, or not to its end, is made anew. A lock beside it has two runs make it
//! one after the other: the second finds it made.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{cache, lock};

const STAMP: &str = ".made";

/// See the module.
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub(crate) fn new() -> Result<Cache> {
        Ok(Cache { root: cache::root()?.join("programs") })
    }

    /// Where sources are looked for if nobody says where.
    pub(crate) fn sources(&self) -> PathBuf {
        self.root.join("sources")
    }

    /// Where sources are unpacked.
    pub(crate) fn unpacked(&self, name: &str) -> PathBuf {
        let unpacked = self.root.join("unpacked").join(name);
        cache::used(&unpacked);
        unpacked
    }

    /// What Debian's packages of source are fetched with, and to.
    pub(crate) fn debian(&self) -> PathBuf {
        self.root.join("debian")
    }

    /// The root with packages of a Debian suite, and what it is made with.
    pub(crate) fn root_of(&self, suite: &str) -> PathBuf {
        self.root.join("roots").join(suite)
    }

    /// A build that goes on from run to run.
    pub(crate) fn build(&self, name: &str) -> PathBuf {
        let build = self.root.join("builds").join(name);
        cache::used(&build);
        build
    }

    /// A Python virtual environment.
    pub(crate) fn environment(&self, name: &str) -> PathBuf {
        self.root.join("python").join(name)
    }

    /// Where a program is compiled to.
    pub(crate) fn built(&self, suite: &str, target: &str, unit: &str) -> PathBuf {
        let suite = self.root.join("built").join(suite);
        cache::used(&suite);
        suite.join(target).join(unit)
    }
}

/// Makes `directory` unless it was made as `how` says.
pub(crate) fn once(directory: &Path, how: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
    let stamp = directory.join(STAMP);
    let is_made = || fs::read_to_string(&stamp).is_ok_and(|made| made == how);
    if is_made() {
        return Ok(());
    }
    let name = directory.file_name().context("a directory without a name")?;
    let locks = directory.with_file_name(".locks").join(name);
    let _lock = lock::hold(&locks, "cargo xtask programs")?;
    if is_made() {
        return Ok(());
    }
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    make()?;
    fs::write(&stamp, how).with_context(|| format!("write {}", stamp.display()))
}

/// Commands as text, for a stamp.
pub(crate) fn words(commands: &[Command]) -> String {
    let one = |command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ") + "\n"
    };
    commands.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_at_once_make_it_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let (at, made) = (directory.path().join("made"), std::sync::atomic::AtomicUsize::new(0));
        let make = || {
            made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            // The others come to the lock meanwhile, or find it made: both are right.
            std::thread::yield_now();
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| once(&at, "one", make).expect("made"));
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn what_was_not_finished_is_made_again() {
        let directory = std::env::temp_dir().join(format!("vkfd-xtask-cache-{}", std::process::id()));
        let mut made = 0;
        assert!(once(&directory, "one", || anyhow::bail!("no")).is_err());
        for how in ["one", "one", "two", "two"] {
            let count = || {
                made += 1;
                Ok(())
            };
            once(&directory, how, count).expect("a directory");
        }
        assert_eq!(made, 2);
        fs::remove_dir_all(&directory).expect("removed");
    }
}
