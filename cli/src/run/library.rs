// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The library that is loaded into programs. It is a part of this program ([`EMBEDDED`]) and is
//! written out when it is needed, because the loader takes files only.
//!
//! Mechanism: a file in the user's cache directory, named by its contents, so that runs share its
//! pages, and debuggers and profilers still find it afterwards. A file that is there is compared
//! byte for byte before it is used. Where there is no such directory, or it is not safe, the run's
//! private directory has the file.
//!
//! Safe means that no other user can replace the file between the comparison and the loader's open.
//! The file and its directory are this user's; the directories above are this user's or root's.
//! Others may not write there, or not move other users' files.
//!
//! A user of a file holds a shared lock on it. A file of another version without a lock is removed
//! when a new one is written.

use std::ffi::{CString, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{symlink, DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use vkfd_host::description::TOOLS_VARIABLE;
use vkfd_host::preload_list;

use super::other_users;

const NAME: &str = "libvkfd_preload.so";
/// How names of files in the cache begin.
const PREFIX: &str = "libvkfd_preload-";
/// Names it, before all other places.
const VARIABLE: &str = "VKFD_PRELOAD";

/// What is loaded into programs. Nothing only where this program was checked and not linked.
const EMBEDDED: Option<&[u8]> = vkfd_preload_embed::library!(vkfd_preload);

/// A library to load, as long as this is there.
pub struct Library {
    path: PathBuf,
    lasting: bool,
    /// With the lock that keeps it from being removed.
    _held: Option<File>,
}

/// The library: the file that is named, or a copy of the one inside this program, in the cache or
/// in `private`.
pub fn find(named: Option<&Path>, private: &Path) -> Result<Library> {
    if let Some(named) = named.map(Path::to_owned).or_else(|| std::env::var_os(VARIABLE).map(Into::into)) {
        let path = std::path::absolute(&named)?;
        return if path.is_file() {
            Ok(Library { path, lasting: true, _held: None })
        } else {
            bail!("there is no {}", path.display())
        };
    }
    let library = EMBEDDED.context("this program has no library inside: it was not built by cargo")?;
    // A program that changes its user must still find it. Where that is not to be had, the user's
    // own programs at least run.
    let found = cache().and_then(|place| cached(&place, library).ok());
    let reached = |found: &Library| !other_users::possible() || other_users::can_read(&found.path);
    match found {
        Some(found) if reached(&found) => Ok(found),
        found => private_copy(private, library).or_else(|error| found.ok_or(error)),
    }
}

/// A file in the run's private directory.
fn private_copy(private: &Path, library: &[u8]) -> Result<Library> {
    if no_execution(private) {
        bail!(
            "a library in {} cannot be loaded, because it is mounted noexec, and the cache directory cannot be used: set XDG_CACHE_HOME to a \
             directory of yours that nobody else can write to, or TMPDIR",
            private.display()
        );
    }
    let path = private.join(NAME);
    fs::write(&path, library).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Library { path, lasting: false, _held: None })
}

/// The user's cache directory.
fn cache() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|place| place.is_absolute());
    Some(absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?.join("vkfd"))
}

/// The file in `place` that has `library` in it. Fails where that place is not safe.
fn cached(place: &Path, library: &[u8]) -> io::Result<Library> {
    let mode = if other_users::possible() { 0o755 } else { 0o700 };
    fs::DirBuilder::new().recursive(true).mode(mode).create(place)?;
    let place = place.canonicalize()?;
    if !is_safe(&place)? || no_execution(&place) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let path = place.join(format!("{PREFIX}{}-{:08x}.so", env!("CARGO_PKG_VERSION"), crc32fast::hash(library)));
    // Once more, because one that is locked may have been removed just before.
    for _ in 0..3 {
        if let Some(held) = same(&path, library) {
            return Ok(Library { path, lasting: true, _held: Some(held) });
        }
        write(&path, library)?;
        remove_others(&place, &path);
    }
    Err(io::ErrorKind::Other.into())
}

/// The open and locked file, if it is a file of this user with `library` in it.
fn same(path: &Path, library: &[u8]) -> Option<File> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path).ok()?;
    let data = file.metadata().ok()?;
    if !data.is_file() || !is_own(&data) || data.len() != library.len() as u64 || !lock(&file, libc::LOCK_SH) {
        return None;
    }
    let mut contents = Vec::with_capacity(library.len());
    file.read_to_end(&mut contents).ok()?;
    let still = fs::symlink_metadata(path).ok()?;
    (contents == library && (still.dev(), still.ino()) == (data.dev(), data.ino())).then_some(file)
}

/// Writes it under another name first: what is there is whole.
fn write(path: &Path, library: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    // What a process of that number has left.
    let _ = fs::remove_file(&name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&name)?;
    // Whatever the umask is.
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    lock(&file, libc::LOCK_EX);
    let written = file.write_all(library).and_then(|()| fs::rename(&name, path));
    if written.is_err() {
        let _ = fs::remove_file(&name);
    }
    written
}

/// Removes files of other versions that no run holds.
fn remove_others(place: &Path, kept: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) || path == kept {
            continue;
        }
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path);
        if opened.is_ok_and(|file| lock(&file, libc::LOCK_EX | libc::LOCK_NB)) {
            let _ = fs::remove_file(&path);
        }
    }
}

fn lock(file: &File, how: i32) -> bool {
    // SAFETY: a call on a descriptor that is open.
    unsafe { libc::flock(file.as_raw_fd(), how) == 0 }
}

/// Whether it is this user's, and nobody else may write to it.
fn is_own(data: &Metadata) -> bool {
    // SAFETY: no preconditions.
    data.uid() == unsafe { libc::geteuid() } && data.mode() & 0o022 == 0
}

/// Whether nobody else can change what is in a directory or put another in its place. The path has
/// no links in it.
fn is_safe(place: &Path) -> io::Result<bool> {
    let mut safe = is_own(&fs::metadata(place)?);
    for around in place.ancestors().skip(1) {
        let data = fs::metadata(around)?;
        // SAFETY: no preconditions.
        let owner = data.uid() == 0 || data.uid() == unsafe { libc::geteuid() };
        safe &= owner && (data.mode() & 0o022 == 0 || data.mode() & libc::S_ISVTX != 0);
    }
    Ok(safe)
}

/// Whether what is in a directory cannot be mapped to be executed.
fn no_execution(place: &Path) -> bool {
    let Ok(path) = CString::new(place.as_os_str().as_bytes()) else { return true };
    let mut data = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: a C string and a structure to fill, which is valid as zeros.
    let data = unsafe {
        libc::statvfs(path.as_ptr(), data.as_mut_ptr());
        data.assume_init()
    };
    data.f_flag & libc::ST_NOEXEC != 0
}

impl Library {
    /// Its file, and whether that stays after the run.
    pub fn place(&self) -> (PathBuf, bool) {
        (self.path.clone(), self.lasting)
    }

    /// Its path, or another one without spaces and colons: one in `directory`.
    fn name(&self, directory: &Path) -> PathBuf {
        let has_separator = self.path.as_os_str().as_bytes().iter().any(|byte| preload_list::is_separator(*byte));
        if has_separator {
            directory.join("preload")
        } else {
            self.path.clone()
        }
    }

    /// The value of the runtime's list of tools: this library, and those that are there. They are
    /// separated by spaces.
    pub fn tools(&self, directory: &Path) -> OsString {
        let mut tools = self.name(directory).into_os_string();
        if let Some(others) = std::env::var_os(TOOLS_VARIABLE).filter(|others| !others.is_empty()) {
            tools.push(" ");
            tools.push(others);
        }
        tools
    }

    /// The value of LD_PRELOAD: the library, and what is there ([`preload_list`]). Its parts are
    /// separated by spaces and colons, so a path that has some gets another name in `directory`.
    pub fn preload(&self, directory: &Path, before: Option<OsString>) -> io::Result<OsString> {
        let name = self.name(directory);
        if name != self.path {
            symlink(&self.path, &name)?;
        }
        let before = before.unwrap_or_default();
        Ok(OsString::from_vec(preload_list::with(before.as_bytes(), name.as_os_str().as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let above = tempfile::tempdir().unwrap();
        let place = above.path().join("cache/vkfd");
        (above, place)
    }

    fn names(place: &Path) -> usize {
        fs::read_dir(place).unwrap().count()
    }

    #[test]
    fn it_comes_before_other_libraries() {
        let library = |path: &str| Library { path: path.into(), lasting: true, _held: None };
        let directory = tempfile::tempdir().unwrap();
        for (before, value) in [
            (None, "/a/b.so"),
            (Some(""), "/a/b.so"),
            (Some("/tcmalloc.so"), "/a/b.so:/tcmalloc.so"),
            (Some("/libasan.so:/c.so"), "/libasan.so:/a/b.so:/c.so"),
        ] {
            let found = library("/a/b.so").preload(directory.path(), before.map(Into::into)).unwrap();
            assert_eq!(found, value);
        }
        let renamed = library("/a b/c:d.so").preload(directory.path(), None).unwrap();
        assert_eq!(fs::read_link(renamed).unwrap(), Path::new("/a b/c:d.so"));
    }

    #[test]
    fn what_is_there_is_used_again() {
        let (_above, place) = place();
        let first = cached(&place, b"library").unwrap();
        let inode = fs::metadata(&first.path).unwrap().ino();
        let second = cached(&place, b"library").unwrap();
        assert_eq!((&second.path, fs::metadata(&second.path).unwrap().ino()), (&first.path, inode));
        assert_eq!((fs::read(&second.path).unwrap().as_slice(), names(&place)), (&b"library"[..], 1));
    }

    #[test]
    fn what_is_not_the_same_is_replaced() {
        let (above, place) = place();
        let path = cached(&place, b"library").unwrap().path;
        for damage in [&b"lib"[..], b"LIBRARY"] {
            fs::write(&path, damage).unwrap();
            assert_eq!(fs::read(cached(&place, b"library").unwrap().path).unwrap(), b"library");
        }
        // Another's file behind a link is neither used nor written to.
        let elsewhere = above.path().join("elsewhere");
        fs::write(&elsewhere, b"library").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&elsewhere, &path).unwrap();
        let found = cached(&place, b"library").unwrap().path;
        assert!(fs::symlink_metadata(&found).unwrap().is_file());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(fs::metadata(cached(&place, b"library").unwrap().path).unwrap().mode() & 0o777, 0o644);
    }

    #[test]
    fn where_others_may_write_nothing_is_used() {
        let (above, place) = place();
        cached(&place, b"library").unwrap();
        for open in [&place, &above.path().join("cache")] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
            assert!(cached(&place, b"library").is_err(), "{}", open.display());
            fs::set_permissions(open, fs::Permissions::from_mode(0o700)).unwrap();
        }
        // Others may write there, and not move what is not theirs.
        fs::set_permissions(above.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        cached(&place, b"library").unwrap();
    }

    #[test]
    fn older_files_go_when_nobody_holds_them() {
        let (_above, place) = place();
        let held = cached(&place, b"held").unwrap();
        drop(cached(&place, b"old").unwrap());
        let new = cached(&place, b"new").unwrap();
        assert!(held.path.exists() && new.path.exists());
        assert_eq!(names(&place), 2, "the one that nobody holds is gone");
        drop(held);
        fs::remove_file(&new.path).unwrap();
        cached(&place, b"new").unwrap();
        assert_eq!(names(&place), 1);
    }
}
