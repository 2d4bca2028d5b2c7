// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask dist`: what people install, as an archive and as Debian packages.
//!
//! Mechanism: cargo builds the program and then the C library, because the program's hooks must not
//! get into the library. The program writes its own manual pages and completions. [`files`] has
//! each file's place; [`archive`] and [`deb`] write them. Everything has the date of the last
//! commit (or of SOURCE_DATE_EPOCH), so that the same tree makes the same bytes. [`check`] installs
//! and uses them.

mod archive;
mod check;
mod deb;
mod elf;
mod files;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};

use xtask_base::{tree, Verdict};

/// Make an archive and Debian packages of the program and the C library
///
/// Writes to DIR, by default `dist-packages` in cargo's target directory.
/// vkfd-VERSION-TARGET.tar.gz is to be unpacked into a prefix such as /usr/local. The packages are
/// vkfd (program, manual pages, completions), libvkfd0 (the shared library) and libvkfd-dev
/// (header, static library, pkg-config).
///
/// DEBFULLNAME and DEBEMAIL name the packages' maintainer. SOURCE_DATE_EPOCH is the date of
/// everything; otherwise it is the last commit's.
///
/// With --check they are also installed below a scratch directory and used. The program runs
/// another, and a C program is compiled with pkg-config's options and run. The library has the
/// functions of its header and no others, and pages and completions are well-formed.
///
/// Exit status: 0 made (and all checks held), 1 a check did not hold, 2 cannot make them.
#[derive(clap::Args)]
pub struct Args {
    /// Where to
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Cargo's profile
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Install below a scratch directory and use what was made
    #[arg(long)]
    check: bool,
}

/// What all parts need to know.
struct Dist {
    /// The workspace's version.
    version: String,
    /// Seconds since 1970 that everything is of.
    date: u64,
    /// Cargo's name for the target, such as `x86_64-unknown-linux-gnu`.
    target: String,
    out: PathBuf,
    /// The tree, for files that are installed as they are.
    root: PathBuf,
    vkfd: PathBuf,
    shared: PathBuf,
    archive: PathBuf,
    /// Manual pages and completions.
    pages: PathBuf,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let target = std::path::absolute(tree::target())?;
    let out = std::path::absolute(args.out.clone().unwrap_or_else(|| target.join("dist-packages")))?;
    std::fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let dist = Dist::build(&args.profile, &target, out)?;
    let groups = files::groups(&dist)?;
    let mut made = vec![archive::write(&dist, &groups)?];
    for group in &groups {
        made.push(deb::write(&dist, group)?);
    }
    let names: Vec<_> = made.iter().map(|path| path.display().to_string()).collect();
    if args.check {
        let (findings, skipped) = check::run(&dist, &made)?;
        skipped.iter().for_each(|what| println!("SKIPPED: {what}"));
        if !findings.is_empty() {
            return Ok(Verdict::Findings(findings));
        }
        return Ok(Verdict::Clean(format!("installed and used:\n{}", names.join("\n"))));
    }
    Ok(Verdict::Clean(names.join("\n")))
}

impl Dist {
    fn build(profile: &str, target: &Path, out: PathBuf) -> Result<Self> {
        let root = tree::root();
        // By themselves: what one needs of a common dependency would be in the other as well.
        for package in ["vkfd", "vkfd-capi"] {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut command = Command::new(cargo);
            command.args(["build", "--locked", "--quiet", "--profile", profile, "--package", package]);
            command.arg("--target-dir").arg(target).current_dir(&root);
            ensure!(command.status().context("run cargo")?.success(), "{command:?} failed");
        }
        let built = target.join(if profile == "dev" { "debug" } else { profile });
        let vkfd = built.join("vkfd");
        let version = said(Command::new(&vkfd).arg("--version"))?;
        let version = version.trim().strip_prefix("vkfd ").context("vkfd --version says something else")?.to_owned();
        let pages = out.join("pages");
        if pages.exists() {
            std::fs::remove_dir_all(&pages)?;
        }
        std::fs::create_dir_all(&pages)?;
        said(Command::new(&vkfd).arg("man").arg(&pages))?;
        for (shell, name) in files::SHELLS {
            std::fs::write(pages.join(name), said(Command::new(&vkfd).args(["completions", shell]))?)?;
        }
        let verbose = said(Command::new("rustc").arg("-vV"))?;
        let host = verbose.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
        Ok(Self {
            version,
            date: date(&root)?,
            target: host.to_owned(),
            out,
            shared: built.join("libvkfd.so"),
            archive: built.join("libvkfd.a"),
            root,
            vkfd,
            pages,
        })
    }

    /// Debian's name of the architecture, and of its directory for libraries.
    fn architecture(&self) -> Result<(&'static str, &'static str)> {
        match self.target.split('-').next() {
            Some("x86_64") => Ok(("amd64", "x86_64-linux-gnu")),
            Some("aarch64") => Ok(("arm64", "aarch64-linux-gnu")),
            _ => bail!("Debian's name of {} is not known here", self.target),
        }
    }

    fn maintainer() -> String {
        let variable = |name, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
        format!("{} <{}>", variable("DEBFULLNAME", "vkfd developers"), variable("DEBEMAIL", "vkfd@localhost"))
    }
}

/// What everything is dated.
fn date(root: &Path) -> Result<u64> {
    let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => seconds,
        Err(_) => said(Command::new("git").arg("-C").arg(root).args(["log", "-1", "--format=%ct"]))?,
    };
    seconds
        .trim()
        .parse()
        .with_context(|| format!("{seconds:?} is no date: set SOURCE_DATE_EPOCH to seconds since 1970"))
}

/// What a program prints.
fn said(command: &mut Command) -> Result<String> {
    let ran = command.output().with_context(|| format!("run {command:?}"))?;
    ensure!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr).trim());
    String::from_utf8(ran.stdout).with_context(|| format!("{command:?} prints something that is no text"))
}
