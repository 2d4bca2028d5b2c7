// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is kept between runs: `~/.cache/vkfd/programs`.
//!
//! Mechanism: a directory is complete when its stamp, a file written last, says what made it. One
//! that was made otherwise, or not to its end, is made anew.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

const STAMP: &str = ".made";

/// See the module.
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub(crate) fn new() -> Result<Cache> {
        let home = std::env::var_os("HOME").context("there is no $HOME to keep programs in")?;
        Ok(Cache { root: Path::new(&home).join(".cache/vkfd/programs") })
    }

    /// Where sources are looked for if nobody says where.
    pub(crate) fn sources(&self) -> PathBuf {
        self.root.join("sources")
    }

    /// Where sources are unpacked.
    pub(crate) fn unpacked(&self, name: &str) -> PathBuf {
        self.root.join("unpacked").join(name)
    }

    /// What Debian's packages of source are fetched with, and to.
    pub(crate) fn debian(&self) -> PathBuf {
        self.root.join("debian")
    }

    /// The root with packages of a Debian suite, and what it is made with.
    pub(crate) fn root_of(&self, suite: &str) -> PathBuf {
        self.root.join("roots").join(suite)
    }

    /// A Python virtual environment.
    pub(crate) fn environment(&self, name: &str) -> PathBuf {
        self.root.join("python").join(name)
    }

    /// Where a program is compiled to.
    pub(crate) fn built(&self, suite: &str, target: &str, unit: &str) -> PathBuf {
        self.root.join("built").join(suite).join(target).join(unit)
    }
}

/// Makes `directory` unless it was made as `how` says.
pub(crate) fn once(directory: &Path, how: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
    let stamp = directory.join(STAMP);
    if fs::read_to_string(&stamp).is_ok_and(|made| made == how) {
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
