// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Archives: tar, compressed by gzip, in the given order, with directories before their files. root
//! owns all entries.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tar::{Builder, EntryType, Header};

use super::files::{gzip, Entry, Group, What};
use super::Dist;

/// The archive of all groups, with everything in one directory.
pub(super) fn write(dist: &Dist, groups: &[Group]) -> Result<PathBuf> {
    let name = format!("vkfd-{}-{}", dist.version, dist.target);
    let mut archive = Archive::new(dist.date);
    for entry in groups.iter().flat_map(|group| &group.entries) {
        // Debian's zsh looks elsewhere than the others'.
        let path = entry.path.replace("zsh/vendor-completions", "zsh/site-functions");
        match &entry.what {
            // It says where it is itself.
            What::Data(text) if path.ends_with(".pc") => {
                let text =
                    String::from_utf8_lossy(text).replace("@PREFIX@", "${pcfiledir}/../..").replace("@LIBDIR@", "lib");
                archive.entry(&format!("{name}/{path}"), &What::Data(text.into_bytes()))?;
            }
            what => archive.entry(&format!("{name}/{path}"), what)?,
        }
    }
    for licence in ["GPL-2.0.txt", "MIT.txt"] {
        let text = std::fs::read(dist.root.join("LICENSES").join(licence))?;
        archive.entry(&format!("{name}/share/doc/vkfd/{licence}"), &What::Data(text))?;
    }
    let path = dist.out.join(format!("{name}.tar.gz"));
    std::fs::write(&path, archive.finish()?).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// An archive that is being written.
pub(super) struct Archive {
    tar: Builder<Vec<u8>>,
    date: u64,
    directories: BTreeSet<PathBuf>,
}

impl Archive {
    pub(super) fn new(date: u64) -> Self {
        Self { tar: Builder::new(Vec::new()), date, directories: BTreeSet::new() }
    }

    /// A file or link, after the directories that it is in.
    pub(super) fn entry(&mut self, path: &str, what: &What) -> Result<()> {
        let above: Vec<_> = Path::new(path).ancestors().skip(1).filter(|a| !a.as_os_str().is_empty()).collect();
        for directory in above.into_iter().rev() {
            if self.directories.insert(directory.to_owned()) {
                self.append(&format!("{}/", directory.display()), EntryType::Directory, 0o755, &[])?;
            }
        }
        match what {
            What::Data(data) => self.append(path, EntryType::Regular, 0o644, data),
            What::Program(data) => self.append(path, EntryType::Regular, 0o755, data),
            What::Link(to) => {
                let mut header = self.header(EntryType::Symlink, 0o777, 0);
                Ok(self.tar.append_link(&mut header, path, to)?)
            }
        }
    }

    fn header(&self, kind: EntryType, mode: u32, bytes: usize) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(self.date);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(bytes as u64);
        header
    }

    fn append(&mut self, path: &str, kind: EntryType, mode: u32, data: &[u8]) -> Result<()> {
        let mut header = self.header(kind, mode, data.len());
        self.tar.append_data(&mut header, path, data).with_context(|| format!("put {path} into an archive"))
    }

    pub(super) fn finish(self) -> Result<Vec<u8>> {
        gzip(&self.tar.into_inner()?)
    }
}

/// An entry's path in a Debian package.
pub(super) fn debian_path(entry: &Entry, libraries: &str) -> String {
    match entry.path.strip_prefix("lib/") {
        Some(rest) => format!("./usr/lib/{libraries}/{rest}"),
        None => format!("./usr/{}", entry.path),
    }
}
