// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A run's private directory, in memory. Others can read it where programs may change their user
//! ([`other_users`]). It goes with its owner; one whose owner was killed goes at
//! the next run.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{ensure, Context, Result};
use vkfd_host::description::LONGEST_DIRECTORY;

use super::other_users;

const NAME: &str = "vkfd-run-";

/// The directory.
pub struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    /// A new one, empty.
    pub fn new() -> Result<Self> {
        let mut refused = None;
        for parent in parents() {
            remove_orphans(&parent);
            match Self::below(&parent) {
                Ok(directory) => return Ok(directory),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| anyhow::anyhow!("there is no place for a private directory")))
    }

    fn below(parent: &Path) -> Result<Self> {
        let room = LONGEST_DIRECTORY - 64;
        let long = parent.as_os_str().len();
        ensure!(long <= room, "{}: a path of {long} bytes is too long: at most {room}", parent.display());
        for number in 0..1000 {
            let path = parent.join(format!("{NAME}{}-{number}", process::id()));
            let mode = if other_users::possible() { 0o755 } else { 0o700 };
            match fs::DirBuilder::new().mode(mode).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot make {}", path.display())),
            }
        }
        anyhow::bail!("{} is full of {NAME}* directories: remove them", parent.display())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // What cannot be removed now is an orphan for the next run.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Where it may be, the best first: in memory, and one's own. Other users do not come to the
/// runtime directory.
fn parents() -> impl Iterator<Item = PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|place| place.is_absolute());
    let runtime = runtime.filter(|_| !other_users::possible());
    runtime.into_iter().chain([PathBuf::from("/dev/shm"), std::env::temp_dir()])
}

/// Removes directories of processes that are no more.
fn remove_orphans(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(NAME)?.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists() && Path::new("/proc/self").exists())
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
