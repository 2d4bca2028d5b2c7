// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is kept between runs: `~/.cache/vkfd/programs`.
//!
//! Programs, roots and environments are made once ([`xtask_base::made`]).

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use xtask_base::cache;

/// See the module.
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    pub fn new() -> Result<Cache> {
        Ok(Cache { root: cache::root()?.join("programs") })
    }

    /// One of a test's own.
    #[cfg(test)]
    pub fn at(root: PathBuf) -> Cache {
        Cache { root }
    }

    /// Where sources are looked for if nobody says where.
    pub fn sources(&self) -> PathBuf {
        self.root.join("sources")
    }

    /// Where sources are unpacked.
    pub fn unpacked(&self, name: &str) -> PathBuf {
        let unpacked = self.root.join("unpacked").join(name);
        cache::used(&unpacked);
        unpacked
    }

    /// What Debian's packages of source are fetched with, and to.
    pub fn debian(&self) -> PathBuf {
        self.root.join("debian")
    }

    /// The root with packages of a Debian suite, and what it is made with.
    pub fn root_of(&self, suite: &str) -> PathBuf {
        self.root.join("roots").join(suite)
    }

    /// A build that goes on from run to run.
    pub fn build(&self, name: &str) -> PathBuf {
        let build = self.root.join("builds").join(name);
        cache::used(&build);
        build
    }

    /// A Python virtual environment.
    pub fn environment(&self, name: &str) -> PathBuf {
        let environment = self.root.join("python").join(name);
        cache::used(&environment);
        environment
    }

    /// Where a program is compiled to.
    pub fn built(&self, suite: &str, target: &str, unit: &str) -> PathBuf {
        let suite = self.root.join("built").join(suite);
        cache::used(&suite);
        suite.join(target).join(unit)
    }
}

/// Commands as text, for a stamp.
pub fn words(commands: &[Command]) -> String {
    let one = |command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ") + "\n"
    };
    commands.iter().map(one).collect()
}
