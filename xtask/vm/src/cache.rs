// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the long-lived results are, and when one is complete.
//!
//! Mechanism: each result has a directory and, inside of it, a stamp whose text is the key it was
//! made for (versions, configuration). A result whose stamp says something else is made again, in
//! place where its maker can go on from there. A stamp is removed before the work begins and
//! written when it is done, so an interrupted setup is resumed. One lock keeps two setups apart.
//!
//! ```text
//! ~/.cache/vkfd/vm/
//!   apt/                       lists and the package with the source, while it is fetched
//!   tools/bindgen-VERSION/     bindgen
//!   linux-VERSION/             the kernel's source
//!   linux-VERSION-FLAVOR/      a kernel's build tree; modules are built against it
//!   amdgpu/kernel/             a kernel of the distribution, with amdgpu and what it needs
//!   accelerator                what the probe for KVM found out, see probe.rs
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use rustix::fs::statvfs;

use xtask_base::lock;

const STAMP: &str = ".vkfd-stamp";

/// The cache's root.
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache of this user, which may not exist yet.
    pub fn open() -> Result<Self> {
        let base = xtask_base::cache::root()?;
        // kbuild takes paths through make and shells.
        let text = base.to_string_lossy();
        let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c));
        ensure!(plain, "{text:?}: the kernel's build does not work in such a path; set VKFD_CACHE to one of letters, digits and ._-+/");
        Ok(Self { root: base.join("vm") })
    }

    pub fn apt(&self) -> PathBuf {
        self.root.join("apt")
    }

    pub fn bindgen(&self, version: &str) -> PathBuf {
        self.root.join("tools").join(format!("bindgen-{version}"))
    }

    /// `version` as [`path_part`] gives it.
    pub fn source(&self, version: &str) -> PathBuf {
        self.root.join(format!("linux-{version}"))
    }

    pub fn build(&self, version: &str, flavor: super::Flavor) -> PathBuf {
        self.root.join(format!("linux-{version}-{}", flavor.name()))
    }

    pub fn accelerator(&self) -> PathBuf {
        self.root.join("accelerator")
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Waits for another setup to end, and keeps others out until the result is dropped.
    pub fn lock(&self) -> Result<File> {
        lock::hold(&self.root, "cargo xtask vm")
    }

    /// Fails if the file system of the cache has less than `gigabytes` left.
    pub fn ensure_room(&self, gigabytes: u64) -> Result<()> {
        let state = statvfs(&self.root).with_context(|| format!("ask for the room at {}", self.root.display()))?;
        let free = state.f_bavail * state.f_frsize / 1_000_000_000;
        ensure!(
            free >= gigabytes,
            "{}: {free} GB are free and {gigabytes} GB are needed: make room, or set VKFD_CACHE to another place",
            self.root.display()
        );
        Ok(())
    }
}

/// `version` as a part of a path that make and shells leave alone.
pub fn path_part(version: &str) -> String {
    version.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

/// Whether `directory` is complete and was made for `key`.
pub fn is_made(directory: &Path, key: &str) -> bool {
    made_for(directory).is_some_and(|made| made == key)
}

/// The key that `directory` was made for, if it is complete.
pub fn made_for(directory: &Path) -> Option<String> {
    fs::read_to_string(directory.join(STAMP)).ok()
}

/// Before `directory` is changed.
pub fn unmark(directory: &Path) -> Result<()> {
    let stamp = directory.join(STAMP);
    match fs::remove_file(&stamp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", stamp.display()))
        }
        _ => Ok(()),
    }
}

/// When `directory` is complete.
pub fn mark(directory: &Path, key: &str) -> Result<()> {
    let stamp = directory.join(STAMP);
    fs::write(&stamp, key).with_context(|| format!("write {}", stamp.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn a_result_is_made_for_its_key_only_and_only_when_marked() {
        let directory = env::temp_dir().join(format!("vkfd-cache-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        assert!(!is_made(&directory, "7.3"));
        mark(&directory, "7.3").expect("mark");
        assert!(is_made(&directory, "7.3") && !is_made(&directory, "7.4"));
        unmark(&directory).expect("unmark");
        unmark(&directory).expect("unmark what is not marked");
        assert!(!is_made(&directory, "7.3"));
        fs::remove_dir_all(&directory).expect("remove");
    }

    #[test]
    fn versions_become_paths_without_special_characters() {
        assert_eq!(path_part("7.3.4-1~bpo13+1"), "7.3.4-1-bpo13-1");
    }
}
