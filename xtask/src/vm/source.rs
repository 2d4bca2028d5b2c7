// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernel's source, from Debian's package of it.
//!
//! Mechanism: the package is in a suite that the machine's apt need not know. An apt configuration of its own, in the cache, gets it from the
//! archive that the machine uses anyway, and apt checks the signatures as always. The machine's configuration is not touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use super::cache::{self, Cache};
use super::packages;

/// The kernel that the module is written for; the kernel's Rust API is another one in every version.
pub const VERSION: &str = "7.3";

const SUITE: &str = "trixie-backports";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An unpacked kernel.
pub struct Source {
    pub directory: PathBuf,
    /// As a part of paths.
    pub version: String,
}

/// The kernel in the cache.
pub fn find(cache: &Cache) -> Option<Source> {
    let entries = fs::read_dir(cache.root()).ok()?;
    let mut versions: Vec<String> = entries
        .flatten()
        .filter(|entry| cache::made_for(&entry.path()).is_some_and(|key| key == source_key(&entry.path())))
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("linux-").map(Into::into))
        .filter(|version: &String| version.starts_with(&format!("{VERSION}.")) || version == VERSION)
        .collect();
    // Several only after an update by hand; any will do, as long as it is always the same.
    versions.sort();
    let version = versions.pop()?;
    Some(Source { directory: cache.source(&version), version })
}

fn source_key(directory: &Path) -> String {
    format!("source of {}\n", directory.file_name().unwrap_or_default().to_string_lossy())
}

/// Gets the kernel unless it is there.
pub fn get(cache: &Cache) -> Result<Source> {
    if let Some(source) = find(cache) {
        return Ok(source);
    }
    cache.ensure_room(5)?;
    let package = format!("linux-source-{VERSION}");
    println!("fetching {package} from {SUITE}");
    let apt = Apt::new(cache.apt())?;
    apt.run("apt-get", &["update"])?;
    let policy = apt.run("apt-cache", &["show", "--no-all-versions", &package])?;
    let version = policy.lines().find_map(|line| line.strip_prefix("Version: ")).with_context(|| {
        format!("{SUITE} has no package {package} any more: the module has to move to the kernel that it has")
    })?;
    apt.run("apt-get", &["download", &package])?;
    let archive = apt.downloaded(&package)?;

    let version = cache::path_part(version);
    let directory = cache.source(&version);
    println!("unpacking it to {}", directory.display());
    let unpacked = cache.apt().join("unpacked");
    for old in [&unpacked, &directory] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("remove {}", old.display()))?;
        }
    }
    quiet(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&unpacked))?;
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let tar = unpacked.join("usr/src").join(format!("{package}.tar.xz"));
    quiet(
        Command::new("tar")
            .args(["--extract", "--strip-components=1", "--file"])
            .arg(&tar)
            .arg("--directory")
            .arg(&directory),
    )?;
    check_version(&directory)?;
    cache::mark(&directory, &source_key(&directory))?;
    fs::remove_dir_all(cache.apt()).with_context(|| format!("remove {}", cache.apt().display()))?;
    Ok(Source { directory, version })
}

/// That the source is what its package is called.
fn check_version(directory: &Path) -> Result<()> {
    let makefile = fs::read_to_string(directory.join("Makefile")).context("read the kernel's Makefile")?;
    let number =
        |name: &str| makefile.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix('=')).map(str::trim);
    let found = format!("{}.{}", number("VERSION").unwrap_or("?"), number("PATCHLEVEL").unwrap_or("?"));
    ensure!(found == VERSION, "{} has Linux {found}; the module is written for {VERSION}", directory.display());
    Ok(())
}

/// apt with a configuration and state of its own.
struct Apt {
    directory: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn new(directory: PathBuf) -> Result<Self> {
        for part in ["lists/partial", "archives/partial"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        }
        let list = directory.join("sources.list");
        let signed = if Path::new(KEYRING).exists() { format!("[signed-by={KEYRING}] ") } else { String::new() };
        let address = match archive()? {
            Some(address) => address,
            // Without lists apt knows addresses and not whose they are.
            None => {
                packages::update()?;
                archive()?.context(
                    "apt knows no archive that calls itself \"Debian\": add one to its sources and run `apt-get update`",
                )?
            }
        };
        let line = format!("deb {signed}{address} {SUITE} main\n");
        fs::write(&list, line).with_context(|| format!("write {}", list.display()))?;
        let options = [
            format!("Dir::Etc::SourceList={}", list.display()),
            "Dir::Etc::SourceParts=-".into(),
            format!("Dir::State::Lists={}", directory.join("lists").display()),
            format!("Dir::Cache::Archives={}", directory.join("archives").display()),
            packages::RETRIES.into(),
            "Dir::Cache::PkgCache=".into(),
            "Dir::Cache::SrcPkgCache=".into(),
            // The user that apt downloads as cannot write into this user's cache.
            "APT::Sandbox::User=root".into(),
        ];
        Ok(Self { directory, options: options.into() })
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.current_dir(&self.directory).args(["--quiet=2"]);
        command.args(self.options.iter().flat_map(|option| ["--option", option]));
        quiet(command.args(arguments))
    }

    fn downloaded(&self, package: &str) -> Result<PathBuf> {
        let entries = fs::read_dir(&self.directory).with_context(|| format!("list {}", self.directory.display()))?;
        let mut files = entries.flatten().map(|entry| entry.path());
        let prefix = format!("{package}_");
        let is_it = |path: &PathBuf| {
            path.extension().is_some_and(|extension| extension == "deb")
                && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        };
        files.find(is_it).with_context(|| format!("apt-get has left no {prefix}*.deb in {}", self.directory.display()))
    }
}

/// The address of the Debian archive that this machine uses, if apt has its lists.
fn archive() -> Result<Option<String>> {
    let targets = quiet(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(LABEL)|$(REPO_URI)",
        "Created-By: Packages",
    ]))?;
    Ok(targets.lines().find_map(|line| line.strip_prefix("Debian|")).map(Into::into))
}

/// Runs `command` and gives its output; its error output is part of the error.
fn quiet(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {name}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", errors.trim());
    String::from_utf8(output.stdout).with_context(|| format!("output of {name} that is not UTF-8"))
}
