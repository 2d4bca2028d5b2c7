// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where a page goes: whether it can be written is known before the run, and what is there stays
//! until the new one is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The file.
pub struct PageFile {
    path: PathBuf,
    /// A pipe or a device, say: there is nothing to keep, and nothing to put in its place.
    special: Option<File>,
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn check(path: &Path) -> io::Result<Option<File>> {
    match fs::metadata(path) {
        Ok(data) if data.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(data) if !data.is_file() => return OpenOptions::new().write(true).open(path).map(Some),
        Ok(_) => drop(OpenOptions::new().append(true).open(path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    tempfile::tempfile_in(directory(path)).map(|_| None)
}

impl PageFile {
    /// Existing content is not changed.
    pub fn new(path: &Path) -> Result<Self> {
        let special = check(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_owned(), special })
    }

    /// Puts the page there as a whole.
    pub fn write(self, page: &str) -> Result<()> {
        let written = match self.special {
            Some(mut file) => file.write_all(page.as_bytes()),
            None => replace(&self.path, page),
        };
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn replace(path: &Path, page: &str) -> io::Result<()> {
    // Of a link it is the file behind that is written.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut file = tempfile::NamedTempFile::new_in(directory(&path))?;
    file.write_all(page.as_bytes())?;
    // As a file that is made anew would be, or as the one that was there.
    let mode = fs::metadata(&path).map(|data| data.permissions());
    let mode = mode.or_else(|_| Ok::<_, io::Error>(std::os::unix::fs::PermissionsExt::from_mode(0o644)))?;
    file.as_file().set_permissions(mode)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_until_the_new_page_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        fs::write(&path, "old").unwrap();
        let file = PageFile::new(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old", "while it runs, and if it is ended");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        file.write("new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        PageFile::new(&dir.path().join("other.html")).unwrap().write("other").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_cannot_be_written_is_said_before() {
        let dir = tempfile::tempdir().unwrap();
        for bad in [dir.path().to_owned(), dir.path().join("no/such/page.html"), "/proc/page.html".into()] {
            assert!(PageFile::new(&bad).is_err(), "{}", bad.display());
        }
        PageFile::new(Path::new("/dev/null")).unwrap().write("page").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
