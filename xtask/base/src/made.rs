// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A directory that is made once, by the first that wants it.
//!
//! Mechanism: a directory is complete when its stamp, a file written last, says what made it. One
//! that was made otherwise, or not to its end, is made anew. A lock beside it has two runs make it
//! one after the other: the second finds it made.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::lock;

const STAMP: &str = ".made";

/// Makes `directory` unless it was made as `how` says.
pub fn once(directory: &Path, how: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
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
