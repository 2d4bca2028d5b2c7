// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A lock between runs of xtask: one fills a directory of the cache at a time.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{flock, FlockOperation};

/// Waits for another run to be done with `directory`, which is made if need be, and keeps others
/// out until the result is dropped. `what` another run does is said where there is one.
pub fn hold(directory: &Path, what: &str) -> Result<File> {
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    let path = directory.join("lock");
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!("another `{what}` fills {}; waiting for it", directory.display());
        flock(&file, FlockOperation::LockExclusive).with_context(|| format!("lock {}", path.display()))?;
    }
    Ok(file)
}

/// The same without waiting: nothing where another run has it.
pub fn try_hold(directory: &Path) -> Result<Option<File>> {
    let path = directory.join("lock");
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok().then_some(file))
}
