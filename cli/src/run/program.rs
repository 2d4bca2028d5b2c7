// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether a library can be loaded into a program: said before it runs, because otherwise it runs
//! as if there were no GPU, without a word.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{elf, Endianness, FileKind};

/// What the path of musl's loader has in it.
const MUSL: &[u8] = b"ld-musl";
/// Interpreters of interpreters that the kernel follows.
const MAX_SCRIPTS: usize = 5;

/// The file of a program, looked for in PATH as a shell does.
pub fn find(name: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        ensure!(path.exists(), "there is no program {}", path.display());
        return Ok(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let mut candidates = std::env::split_paths(&path).map(|place| place.join(name));
    candidates
        .find(|file| fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
        .with_context(|| format!("there is no program {} in PATH", Path::new(name).display()))
}

/// Says why the library cannot reach a program, if so.
pub fn check(program: &Path) -> Result<()> {
    let mut file = program.to_owned();
    for _ in 0..MAX_SCRIPTS {
        let metadata = fs::metadata(&file).with_context(|| format!("cannot look at {}", file.display()))?;
        ensure!(metadata.is_file(), "{} is not a program", file.display());
        ensure!(metadata.permissions().mode() & 0o111 != 0, "{} is not executable: chmod +x it", file.display());
        let Some(next) = interpreter(&file)? else { return check_binary(&file, &metadata) };
        file = next;
    }
    bail!("{}: more than {MAX_SCRIPTS} scripts that run scripts", program.display())
}

/// What a script is run by.
fn interpreter(file: &Path) -> Result<Option<PathBuf>> {
    let mut start = Vec::new();
    let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    opened.take(256).read_to_end(&mut start)?;
    let Some(line) = start.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let Some(first) = words.next() else { bail!("{}: nothing after #!", file.display()) };
    let first = PathBuf::from(OsString::from_vec(first.to_vec()));
    // `#!/usr/bin/env python3`: it is python that counts.
    if first.file_name() == Some(OsStr::new("env")) {
        let program = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
        if let Some(program) = program {
            return find(OsStr::from_bytes(program)).map(Some);
        }
    }
    Ok(Some(first))
}

fn check_binary(file: &Path, metadata: &fs::Metadata) -> Result<()> {
    let name = file.display();
    // SAFETY: no preconditions.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let other = metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != user
        || metadata.mode() & libc::S_ISGID != 0 && metadata.gid() != group;
    ensure!(
        !other,
        "{name} is set-user-ID or set-group-ID: the system loads no library into it. Run a copy of it without these bits"
    );
    let data = fs::read(file).with_context(|| format!("cannot read {name}"))?;
    match FileKind::parse(&*data) {
        Ok(FileKind::Elf64) => {}
        Ok(FileKind::Elf32) => bail!("{name} is a 32-bit program: KFD's clients are 64-bit"),
        // The kernel says what it thinks of it; some have a handler for more formats.
        _ => {
            bail!("{name} is neither an ELF program nor a script: vkfd cannot tell whether its library would be loaded")
        }
    }
    let header = elf::FileHeader64::<Endianness>::parse(&*data).with_context(|| format!("cannot read {name}"))?;
    let endian = header.endian()?;
    let machine = header.e_machine(endian);
    ensure!(
        machine == MACHINE,
        "{name} is for another processor (ELF machine {machine}, this is {MACHINE}): a library of this one cannot be loaded into it"
    );
    let mut loader = None;
    for header in header.program_headers(endian, &*data)? {
        loader = loader.or(header.interpreter(endian, &*data)?);
    }
    let Some(loader) = loader else {
        bail!(
            "{name} is statically linked: no library is loaded into it, so it would not see the machine. \
             Link it dynamically, or run it in `cargo xtask vm shell`, where the machine is a kernel's"
        );
    };
    ensure!(
        !loader.windows(MUSL.len()).any(|part| part == MUSL),
        "{name} is linked with musl: the library is made for glibc, which ROCm's libraries are linked with as well"
    );
    Ok(())
}

/// The runtime of AddressSanitizer that a program is linked with: it has to be loaded before all
/// other libraries.
pub fn sanitizer(program: &Path) -> Option<String> {
    let data = fs::read(program).ok()?;
    let file = elf::FileHeader64::<Endianness>::parse(&*data).ok()?;
    let (endian, sections) = (file.endian().ok()?, file.sections(file.endian().ok()?, &*data).ok()?);
    let (entries, link) = sections.dynamic(endian, &*data).ok()??;
    let strings = sections.strings(endian, &*data, link).ok()?;
    let needed = entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED);
    let names = needed.filter_map(|entry| entry.string(endian, strings).ok());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).find(|name| name.starts_with("libasan.so"))
}

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = elf::EM_AARCH64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the ELF number of this architecture is missing here");
