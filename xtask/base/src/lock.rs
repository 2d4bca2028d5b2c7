// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Locks between runs of xtask: one fills a directory of the cache at a time, and what somebody
//! uses stays.
//!
//! Mechanism: `flock` of a file. A directory may go away with its lock's file while another run
//! waits for it; that run has then locked a file that nobody else sees, and asks again.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{flock, FlockOperation};

/// Waits for another run to be done with `directory`, which is made if need be, and keeps others
/// out until the result is dropped. `what` another run does is said where there is one.
pub fn hold(directory: &Path, what: &str) -> Result<File> {
    loop {
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        let path = directory.join("lock");
        let file = match File::create(&path) {
            // It went away just now.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            other => other.with_context(|| format!("create {}", path.display()))?,
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            eprintln!("another `{what}` fills {}; waiting for it", directory.display());
            flock(&file, FlockOperation::LockExclusive).with_context(|| format!("lock {}", path.display()))?;
        }
        if is_at(&file, &path) {
            return Ok(file);
        }
    }
}

/// The same without waiting: nothing where another run has it.
pub fn try_hold(directory: &Path) -> Result<Option<File>> {
    let path = directory.join("lock");
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let is_held = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && is_at(&file, &path);
    Ok(is_held.then_some(file))
}

/// Locks a file that stays, together with others that do so.
pub fn share(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    flock(&file, FlockOperation::LockShared).with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

/// Locks a file that stays, alone: nothing where others share it.
pub fn try_alone(path: &Path) -> Result<Option<File>> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok().then_some(file))
}

/// Whether a file is still the one of this name.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(mine), Ok(there)) = (file.metadata(), fs::metadata(path)) else { return false };
    (mine.dev(), mine.ino()) == (there.dev(), there.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_directory_that_goes_locks_the_next_one() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("entry");
        let first = hold(&directory, "test").expect("a lock");
        let inode = first.metadata().expect("a file").ino();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| hold(&directory, "test").expect("a lock"));
            // The kernel lists waiting locks: `1: -> FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE`.
            let waits = |line: &str| line.contains("-> FLOCK") && line.contains(&format!(":{inode} "));
            while !fs::read_to_string("/proc/locks").expect("the list of locks").lines().any(waits) {
                std::thread::yield_now();
            }
            fs::remove_dir_all(&directory).expect("removed");
            drop(first);
            let second = waiting.join().expect("no panic");
            assert!(is_at(&second, &directory.join("lock")));
            assert!(try_hold(&directory).expect("looked").is_none(), "another run has it as well");
        });
    }

    #[test]
    fn what_is_shared_is_nobodys_alone() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("used");
        let two = [share(&path).expect("a lock"), share(&path).expect("a lock")];
        assert!(try_alone(&path).expect("looked").is_none());
        drop(two);
        assert!(try_alone(&path).expect("looked").is_some());
    }
}
