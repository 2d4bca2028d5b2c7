// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where a shared machine is found: a socket in a directory that is the user's alone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use vkfd_host::Listening;

/// Most bytes of a name; the socket's path has room for 107 in all.
const LONGEST: usize = 32;

/// The directory, which is made. One that others can reach into is refused and stays as it is.
fn directory() -> Result<PathBuf> {
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|place| place.is_absolute());
    let place = match &runtime {
        Some(place) => place.join("vkfd"),
        None => PathBuf::from(format!("/tmp/vkfd-{user}")),
    };
    let elsewhere = if runtime.is_some() { "another directory" } else { "a directory of yours" };
    own_directory(&place, user).with_context(|| {
        format!("{} stays as it is; set XDG_RUNTIME_DIR to {elsewhere} to share machines there", place.display())
    })?;
    Ok(place)
}

/// Makes the directory if nothing is there. An error says why it is not this user's alone.
fn own_directory(place: &Path, user: u32) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", place.display()));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(place)?;
    ensure!(found.is_dir(), "{} is no directory", place.display());
    ensure!(found.uid() == user, "{} is a directory of user {}, not of user {user}", place.display(), found.uid());
    let mode = found.mode() & 0o777;
    ensure!(mode & 0o077 == 0, "others can reach into {} (mode {mode:04o}, not 0700)", place.display());
    Ok(())
}

/// The path of the socket of `name`.
pub fn socket(name: &str) -> Result<PathBuf> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if name.is_empty() || name.len() > LONGEST || name.starts_with('.') || !name.chars().all(fits) {
        bail!("{name:?} is no name for a machine: up to {LONGEST} letters, digits, -, _ and .");
    }
    Ok(directory()?.join(format!("{name}.sock")))
}

/// A listening socket, with the lock that says that its server lives. The socket's file goes before
/// the lock; the lock's file stays, because another server may be about to lock it.
pub struct Place {
    pub listener: Listening,
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
        // An earlier server that held the lock has ended.
        let listener = Listening::at(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.listener.path()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};

    use super::{own_directory, socket};

    #[test]
    fn a_directory_that_is_not_this_users_alone_is_refused_and_stays() {
        let around = tempfile::tempdir().unwrap();
        let user = around.path().metadata().unwrap().uid();
        let (place, link) = (around.path().join("place"), around.path().join("link"));
        let why = |place: &std::path::Path, user: u32| own_directory(place, user).unwrap_err().to_string();
        own_directory(&place, user).unwrap();
        own_directory(&place, user).unwrap();
        assert_eq!(place.metadata().unwrap().mode() & 0o777, 0o700);
        let theirs = why(&place, user + 1);
        assert!(theirs.contains(&format!("a directory of user {user}, not of user {}", user + 1)), "{theirs}");
        fs::write(place.join("file"), "stays").unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(why(&place, user).contains("mode 0750"));
        symlink(&place, &link).unwrap();
        assert!(why(&link, user).contains("is no directory"));
        assert!(why(&place.join("file"), user).contains("is no directory"));
        assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "stays");
        assert_eq!(place.metadata().unwrap().mode() & 0o777, 0o750);
    }

    #[test]
    fn names_are_files_names() {
        for name in ["", ".", "..", ".a", "a/b", "a b", "a\nb", &"a".repeat(33)] {
            assert!(socket(name).is_err(), "{name:?}");
        }
    }
}
