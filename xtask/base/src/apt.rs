// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Packages of suites that the machine's apt need not know.
//!
//! Mechanism: an apt configuration of its own, in the cache, gets them from the archive that the
//! machine uses anyway, and apt checks the signatures as always. The machine's configuration is not
//! touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

use crate::debian::{update, RETRIES};

/// apt with a configuration and state of its own.
pub struct Apt {
    directory: PathBuf,
    options: Vec<String>,
}

impl Apt {
    /// For packages of `suites`, the last of which is taken first. Everything is below `directory`.
    pub fn new(directory: PathBuf, suites: &[&str]) -> Result<Self> {
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
                update()?;
                archive()?.context(
                    "apt knows no archive that calls itself \"Debian\": add one to its sources and run `apt-get update`",
                )?
            }
        };
        let lines: String = suites.iter().map(|suite| format!("deb {signed}{address} {suite} main\n")).collect();
        fs::write(&list, lines).with_context(|| format!("write {}", list.display()))?;
        let options = [
            format!("Dir::Etc::SourceList={}", list.display()),
            "Dir::Etc::SourceParts=-".into(),
            format!("Dir::State::Lists={}", directory.join("lists").display()),
            format!("Dir::Cache::Archives={}", directory.join("archives").display()),
            RETRIES.into(),
            "Dir::Cache::PkgCache=".into(),
            "Dir::Cache::SrcPkgCache=".into(),
            // The user that apt downloads as cannot write into this user's cache.
            "APT::Sandbox::User=root".into(),
        ];
        Ok(Self { directory, options: options.into() })
    }

    /// Takes lists whose date is past: those of suites that are never released say how long they
    /// are good for, and an archive may be a copy of a day. The signatures are checked all the
    /// same.
    pub fn of_any_date(mut self) -> Self {
        self.options.push("Acquire::Check-Valid-Until=false".into());
        self
    }

    /// Has packages of source, too.
    pub fn with_sources(self) -> Result<Self> {
        let list = self.directory.join("sources.list");
        let text = fs::read_to_string(&list).with_context(|| format!("read {}", list.display()))?;
        let sources: String = text.lines().map(|line| line.replacen("deb ", "deb-src ", 1) + "\n").collect();
        fs::write(&list, text + &sources).with_context(|| format!("write {}", list.display()))?;
        Ok(self)
    }

    /// Downloads one archive of a package's source into apt's directory, with its checksum looked
    /// at. The package's other archives are not needed, and cannot always be had.
    pub fn archive_of_source(&self, package: &str, archive: &str) -> Result<PathBuf> {
        let said = self.run("apt-get", &["source", "--print-uris", package])?;
        let (address, checksum) = named_archive(&said, archive).with_context(|| {
            format!("the source of {package} has no {archive} any more: its recipe here has to be brought up to date")
        })?;
        let path = self.directory.join(archive);
        let mut helper = Command::new("/usr/lib/apt/apt-helper");
        helper.args(self.options.iter().flat_map(|option| ["--option", option]));
        quiet(helper.arg("download-file").arg(address).arg(&path).arg(checksum))?;
        Ok(path)
    }

    /// Runs one of apt's programs and gives its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.current_dir(&self.directory).args(["--quiet=2"]);
        command.args(self.options.iter().flat_map(|option| ["--option", option]));
        quiet(command.args(arguments))
    }

    /// Downloads `packages` of `suite` with all their dependencies, for a machine whose dpkg has
    /// `status` as its status file. An empty one is a machine without packages. Returns the files.
    pub fn download_all(&self, suite: &str, packages: &[&str], status: &str) -> Result<Vec<PathBuf>> {
        let file = self.directory.join("status");
        fs::write(&file, status).with_context(|| format!("write {}", file.display()))?;
        let has = format!("Dir::State::status={}", file.display());
        let mut arguments =
            vec!["--option", &has, "--option", "APT::Install-Recommends=false", "--option", "Debug::NoLocking=1"];
        arguments.extend(["--yes", "--download-only", "--target-release", suite, "install"]);
        arguments.extend(packages);
        self.run("apt-get", &arguments)?;
        let archives = self.directory.join("archives");
        let entries = fs::read_dir(&archives).with_context(|| format!("list {}", archives.display()))?;
        let files = entries.flatten().map(|entry| entry.path());
        Ok(files.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect())
    }

    /// The package that `apt-get download` has left.
    pub fn downloaded(&self, package: &str) -> Result<PathBuf> {
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

/// Address and checksum of an archive, from the output of `apt-get source --print-uris`.
fn named_archive<'a>(said: &'a str, archive: &str) -> Option<(&'a str, &'a str)> {
    said.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (address, name) = (words.next()?, words.next()?);
        (name == archive).then_some((address.trim_matches('\''), words.next_back()?))
    })
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
pub fn quiet(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {name}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", errors.trim());
    String::from_utf8(output.stdout).with_context(|| format!("output of {name} that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::named_archive;

    #[test]
    fn the_archive_is_found_with_its_checksum() {
        let said = "NOTICE: in git\n'http://d/r_6%2b1.dsc' r_6+1.dsc 2505 SHA256:68\n\
                    'http://d/r_6%2b1.orig.tar.xz' r_6+1.orig.tar.xz 1082 SHA256:1a\n";
        assert_eq!(named_archive(said, "r_6+1.orig.tar.xz"), Some(("http://d/r_6%2b1.orig.tar.xz", "SHA256:1a")));
        assert_eq!(named_archive(said, "r_6+2.orig.tar.xz"), None);
    }
}
