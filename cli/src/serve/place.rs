// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where a shared machine is found: a socket in a directory that is the user's alone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};

/// Most bytes of a name; the socket's path has room for 107 in all.
const LONGEST: usize = 32;

/// The directory, which is made. Refused when others can reach into it.
fn directory() -> Result<PathBuf> {
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    let place = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|place| place.is_absolute()) {
        Some(place) => place.join("vkfd"),
        None => PathBuf::from(format!("/tmp/vkfd-{user}")),
    };
    match DirBuilder::new().mode(0o700).create(&place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", place.display()));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&place).with_context(|| place.display().to_string())?;
    let own = found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0;
    ensure!(own, "{} is not a directory of this user's alone (mode 0700)", place.display());
    Ok(place)
}

/// The path of the socket of `name`.
pub fn socket(name: &str) -> Result<PathBuf> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if name.is_empty() || name.len() > LONGEST || name.starts_with('.') || !name.chars().all(fits) {
        bail!("{name:?} is no name for a machine: up to {LONGEST} letters, digits, -, _ and .");
    }
    Ok(directory()?.join(format!("{name}.sock")))
}

/// A listening socket, with the lock that says that its server lives.
pub struct Place {
    pub listener: UnixListener,
    path: PathBuf,
    _lock: File,
}

impl Place {
    /// Takes the name. An earlier server's socket is removed if that server has gone.
    pub fn take(name: &str) -> Result<Self> {
        let path = socket(name)?;
        let lock_path = path.with_extension("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
        let lock = lock.with_context(|| lock_path.display().to_string())?;
        // SAFETY: a call on an owned descriptor.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            bail!("a machine is shared as {name} already");
        }
        // A thread that had it has gone: the lock is ours.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| path.display().to_string());
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The lock's file stays: another server may be about to lock it.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::socket;

    #[test]
    fn names_are_files_names() {
        for name in ["", ".", "..", ".a", "a/b", "a b", "a\nb", &"a".repeat(33)] {
            assert!(socket(name).is_err(), "{name:?}");
        }
    }
}
