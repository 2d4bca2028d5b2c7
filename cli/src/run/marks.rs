// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How far a program came in using its machine: a file for each step, in which the library puts a
//! byte. A program that has become another user's can write these files and nothing else.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use vkfd_host::description::{ACQUIRED_FILE, OPENED_FILE, USED_FILE};

use super::other_users;

/// Makes the files where the library could not.
pub fn prepare(directory: &Path) -> io::Result<()> {
    for mark in [USED_FILE, OPENED_FILE, ACQUIRED_FILE].iter().filter(|_| other_users::possible()) {
        let path = directory.join(mark);
        fs::write(&path, "")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    }
    Ok(())
}

/// Whether the program came to this step.
pub fn has(directory: &Path, mark: &str) -> bool {
    fs::metadata(directory.join(mark)).is_ok_and(|data| data.len() != 0)
}
