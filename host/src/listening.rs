// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sockets that servers listen at, by path: the one way to make them and to remove them.
//!
//! People name the path, and make mistakes. So the server removes only a socket at which nobody
//! listens. At its end it removes the file that it has made, if that file is still at the path. A
//! connection attempt shows whether a server listens.
//!
//! Limits: a user who may write to the directory can exchange files between look and removal. A
//! directory with strangers in it is no place for a socket.

use std::fs;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use vkfd_sabotage::{process, Switch};

/// A listening socket and its file, which goes with it.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    path: PathBuf,
    /// Device, inode.
    identity: (u64, u64),
}

impl Listening {
    /// Listens at `path`, and replaces a socket that an earlier server has left.
    ///
    /// # Errors
    /// AddrInUse if a server listens there; AlreadyExists for a file that is no socket, which stays
    /// as it is; the system's errors. The message names the path.
    pub fn at(path: &Path) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let listener = match UnixListener::bind(path) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                remove_left(path).map_err(named)?;
                UnixListener::bind(path)
            }
            bound => bound,
        };
        let listener = listener.map_err(named)?;
        let made = fs::symlink_metadata(path).map_err(named)?;
        Ok(Self { listener, path: path.to_owned(), identity: (made.dev(), made.ino()) })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Deref for Listening {
    type Target = UnixListener;

    fn deref(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let there = fs::symlink_metadata(&self.path);
        if there.is_ok_and(|there| (there.dev(), there.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket that nobody listens at.
fn remove_left(path: &Path) -> io::Result<()> {
    if process().has(Switch::RemoveAnything) {
        return fs::remove_file(path);
    }
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something is there that is no socket; it stays"));
    }
    match UnixStream::connect(path) {
        // No server has it any more.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(e) => Err(e),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_without_a_server_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let kind = |path: &Path| Listening::at(path).unwrap_err().kind();
        // A file, a link to one and to nothing, and a directory stay.
        fs::write(&path, "precious").unwrap();
        assert_eq!(kind(&path), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let link = directory.path().join("link");
        for to in [path.as_path(), Path::new("nowhere")] {
            std::os::unix::fs::symlink(to, &link).unwrap();
            assert_eq!(kind(&link), io::ErrorKind::AlreadyExists);
            fs::remove_file(&link).unwrap();
        }
        assert_eq!(kind(directory.path()), io::ErrorKind::AlreadyExists);
        fs::remove_file(&path).unwrap();
        // A server's socket stays; one that was left is taken over.
        let first = Listening::at(&path).unwrap();
        assert_eq!(kind(&path), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let second = Listening::at(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        // A file that somebody has put there meanwhile stays.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(second);
        assert_eq!(fs::read_to_string(&path).unwrap(), "another's");
    }

    /// In a child, because the switch is the process's.
    #[test]
    fn control_a_server_that_removes_anything_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "precious").unwrap();
        // SAFETY: the child makes a socket and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            process().turn(Switch::RemoveAnything, true);
            let made = Listening::at(&path).is_ok();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!made)) };
        }
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 0);
        assert!(fs::read_to_string(&path).is_err(), "the file went with the child's socket");
    }
}
