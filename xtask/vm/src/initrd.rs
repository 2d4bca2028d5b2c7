// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest's file system: an uncompressed cpio archive that the kernel unpacks into memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use cpio::newc;
use vkfd_guest::{Job, JOB_FILE};

use super::elf;

const BUSYBOX: &str = "/bin/busybox";

/// Names by which the shell finds busybox's tools.
const TOOLS: &str = "[ ash awk basename cat chmod chroot clear cmp cp cut date dd df diff dirname dmesg du echo env expr false find free grep head \
    hexdump id insmod kill killall less ln ls lsmod md5sum mkdir mknod mkswap more mount mv nproc od pidof printf ps pwd rm rmdir rmmod sed \
    seq setsid sh sleep sort stat strings swapoff swapon sync tail tar tee test time timeout top touch tr true umount uname uniq uptime vi \
    watch wc which xargs yes";

enum Content {
    Directory,
    Text(Vec<u8>),
    Script(&'static str),
    File(PathBuf),
    Link(PathBuf),
}

/// What goes into the archive.
pub struct Initrd(BTreeMap<PathBuf, Content>);

impl Initrd {
    /// With `init` as the first process, busybox, and what the C library looks for.
    pub fn new(init: &Path) -> Result<Self> {
        let mut initrd = Self(BTreeMap::new());
        initrd.add_program(Path::new(BUSYBOX))?;
        initrd.add_program(init)?;
        for tool in TOOLS.split_ascii_whitespace() {
            initrd.put(Path::new("/bin").join(tool), Content::Link(BUSYBOX.into()));
        }
        let name = init.file_name().context("the first process has no name")?;
        initrd.put("/init".into(), Content::File(init.with_file_name(name)));
        initrd.put("/etc/passwd".into(), Content::Text(b"root:x:0:0:root:/tmp:/bin/sh\n".into()));
        initrd.put("/etc/group".into(), Content::Text(b"root:x:0:\n".into()));
        Ok(initrd)
    }

    /// Copies a program into /bin, with the libraries it needs, and gives its path in the guest.
    pub fn add_program(&mut self, program: &Path) -> Result<String> {
        for library in elf::libraries(program)? {
            self.put(library.clone(), Content::File(library));
        }
        let name = program.file_name().and_then(|name| name.to_str()).context("a program without a name")?;
        let path = format!("/bin/{name}");
        self.put(PathBuf::from(&path), Content::File(program.into()));
        Ok(path)
    }

    /// Copies a file to a place of its own.
    pub fn add_file(&mut self, file: &Path, to: &Path) {
        self.put(to.into(), Content::File(file.into()));
    }

    /// Copies a directory's files, and the libraries that `program` among them needs.
    pub fn add_directory(&mut self, directory: &Path, to: &Path) -> Result<()> {
        for library in elf::libraries(&directory.join("program"))? {
            self.put(library.clone(), Content::File(library));
        }
        self.add_files(directory, to, false)
    }

    /// Copies a directory's files, of links what they lead to unless they are `kept`. What only a
    /// compiler reads stays behind.
    pub fn add_files(&mut self, directory: &Path, to: &Path, kept: bool) -> Result<()> {
        self.put(to.into(), Content::Directory);
        for entry in fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))? {
            let file = entry?.path();
            let Some(name) = file.file_name() else { continue };
            let compilers = file.extension().is_some_and(|extension| ["o", "a", "c"].iter().any(|e| extension == *e));
            if kept && file.is_symlink() {
                let target = file.read_link().with_context(|| format!("read {}", file.display()))?;
                self.put(to.join(name), Content::Link(target));
            } else if file.is_file() && !compilers {
                self.put(to.join(name), Content::File(file.clone()));
            }
        }
        Ok(())
    }

    /// Copies a library that a program loads by itself, with those it needs. It is found where it
    /// is on the host. The link of a development package, without a version, is a link there too:
    /// by whichever name it is loaded, it is one library.
    pub fn add_library(&mut self, library: &Path) -> Result<()> {
        if library.extension().is_some_and(|extension| extension == "so") && library.is_symlink() {
            let target = fs::read_link(library).with_context(|| format!("read {}", library.display()))?;
            let file = library.with_file_name(&target);
            self.put(library.into(), Content::Link(target));
            return self.add_library(&file);
        }
        for needed in elf::libraries(library)? {
            self.put(needed.clone(), Content::File(needed));
        }
        self.put(library.into(), Content::File(library.into()));
        Ok(())
    }

    /// Has `program` of the host be the guest's /bin/sh, instead of busybox, whose shell takes its
    /// own tools before those in the path.
    pub fn set_shell(&mut self, program: &Path) -> Result<()> {
        for library in elf::libraries(program)? {
            self.put(library.clone(), Content::File(library));
        }
        self.put("/bin/sh".into(), Content::File(program.into()));
        Ok(())
    }

    /// A shell script in /bin, also instead of one of busybox's tools.
    pub fn add_script(&mut self, name: &str, text: &'static str) {
        self.put(Path::new("/bin").join(name), Content::Script(text));
    }

    /// Copies a module and gives its path in the guest.
    pub fn add_module(&mut self, module: &Path) -> Result<PathBuf> {
        let path = Path::new("/vkfd").join(module.file_name().context("a module without a name")?);
        self.put(path.clone(), Content::File(module.into()));
        Ok(path)
    }

    fn put(&mut self, path: PathBuf, content: Content) {
        for parent in path.ancestors().skip(1).filter(|parent| *parent != Path::new("/")) {
            self.0.entry(parent.into()).or_insert(Content::Directory);
        }
        self.0.insert(path, content);
    }

    /// Writes the archive with `job` to `path`.
    pub fn write(mut self, job: &Job, path: &Path) -> Result<()> {
        let job = serde_json::to_vec(job).context("write the job as JSON")?;
        self.put(JOB_FILE.into(), Content::Text(job));
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        let mut out = BufWriter::new(file);
        for (number, (name, content)) in (1_u32..).zip(&self.0) {
            let (mode, bytes) = match content {
                Content::Directory => (0o040_755, Vec::new()),
                Content::Text(text) => (0o100_644, text.clone()),
                Content::Script(text) => (0o100_755, text.as_bytes().into()),
                Content::File(source) => {
                    let bytes = fs::read(source).with_context(|| format!("read {} for the guest", source.display()))?;
                    (0o100_755, bytes)
                }
                Content::Link(target) => (0o120_777, target.as_os_str().as_bytes().into()),
            };
            let name = name.strip_prefix("/").unwrap_or(name).to_str().context("a file name that is not UTF-8")?;
            let size =
                u32::try_from(bytes.len()).with_context(|| format!("{name} is larger than the archive allows"))?;
            ensure!(!name.is_empty(), "a file without a name");
            let entry = newc::Builder::new(name).ino(number).mode(mode).nlink(1);
            let mut entry = entry.write(out, size);
            entry.write_all(&bytes).with_context(|| format!("write {}", path.display()))?;
            out = entry.finish().with_context(|| format!("write {}", path.display()))?;
        }
        newc::trailer(out).and_then(|mut out| out.flush()).with_context(|| format!("write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_every_parent_before_what_is_in_it() {
        let mut initrd = Initrd(BTreeMap::new());
        initrd.put("/lib/a/b.so".into(), Content::Text(b"library".into()));
        initrd.put("/bin/sh".into(), Content::Link(BUSYBOX.into()));
        let path = std::env::temp_dir().join(format!("vkfd-initrd-{}", std::process::id()));
        initrd.write(&Job::default(), &path).expect("write");

        let mut names = Vec::new();
        let mut file = File::open(&path).expect("the archive");
        loop {
            let reader = newc::Reader::new(file).expect("an entry");
            if reader.entry().is_trailer() {
                break;
            }
            names.push((reader.entry().name().to_string(), reader.entry().mode() >> 12));
            file = reader.finish().expect("the next entry");
        }
        fs::remove_file(&path).expect("remove");
        let expected = [
            ("bin", 4),
            ("bin/sh", 10),
            ("lib", 4),
            ("lib/a", 4),
            ("lib/a/b.so", 8),
            ("vkfd", 4),
            ("vkfd/job.json", 8),
        ];
        assert_eq!(names, expected.map(|(name, kind)| (name.to_string(), kind)));
    }
}
