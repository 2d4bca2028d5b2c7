// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How the tree's programs are built for the tasks that run them.
//!
//! Mechanism: checks run programs of cargo's profile `dev`, which is optimized and has debug
//! assertions, overflow checks and the switches of `vkfd-sabotage`. Each call names the whole
//! workspace and picks programs of it. The named packages decide the features of a shared
//! dependency, and other features would be another build of it. So tests, demos and the programs
//! beside a guest are made of the same crates, which are compiled once.
//!
//! What measures is of the profile `release`, package by package, as people build it. With
//! `VKFD_PROFILE=release` checks run that as well, which is for long runs of others' suites.

use std::env;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;

use crate::tree;

/// What programs are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// To be checked: with debug assertions, and breakable.
    Checked,
    /// To be measured: as people have them.
    Released,
}

impl Build {
    /// What checks run: [`Build::Checked`], unless `VKFD_PROFILE` is `release`.
    pub fn of_checks() -> Result<Build> {
        match env::var("VKFD_PROFILE").as_deref() {
            Err(_) | Ok("" | "dev") => Ok(Build::Checked),
            Ok("release") => Ok(Build::Released),
            Ok(other) => bail!("VKFD_PROFILE is {other:?}; it is dev or release"),
        }
    }
}

/// What cargo says with `--message-format=json`, as far as it matters.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// `cargo` in the tree.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(tree::root()).stdin(Stdio::null());
    cargo
}

/// Cargo's target directory, absolute.
pub fn target() -> Result<PathBuf> {
    std::path::absolute(tree::target()).context("make the target directory absolute")
}

/// An example of the workspace that has cargo choose features as for tests.
const AS_FOR_TESTS: [&str; 2] = ["--example", "batch"];

/// Builds the program `name` of `package`; the path is the program's.
pub fn program(build: Build, package: &str, name: &str) -> Result<PathBuf> {
    let mut words: Vec<OsString> = vec!["--bin".into(), name.into(), "--target-dir".into(), target()?.into()];
    match build {
        Build::Checked => words.extend(["--workspace"].iter().chain(&AS_FOR_TESTS).map(OsString::from)),
        Build::Released => words.extend(["--release".into(), "--package".into(), package.into()]),
    }
    built(cargo().arg("build").args(words), name)
}

/// Builds the example `name` of the workspace for checks; the path is the program's.
pub fn example(name: &str) -> Result<PathBuf> {
    built(cargo().args(["build", "--workspace", "--example", name, "--target-dir"]).arg(target()?), name)
}

/// Builds the program `name` of `package` with its libraries in it, in a directory of its own.
pub fn whole_program(package: &str, name: &str) -> Result<PathBuf> {
    let mut cargo = cargo();
    // With a named target, the flag does not concern code that runs during the build, such as
    // procedural macros.
    cargo.args(["build", "--target", "x86_64-unknown-linux-gnu", "--package", package, "--bin", name]);
    cargo.arg("--target-dir").arg(target()?.join("vm/whole")).env("RUSTFLAGS", "-C target-feature=+crt-static");
    built(&mut cargo, name)
}

/// Runs `cargo build`, which makes the program `name` among others.
fn built(cargo: &mut Command, name: &str) -> Result<PathBuf> {
    cargo.args(["--locked", "--message-format=json-render-diagnostics"]);
    if !std::io::stderr().is_terminal() {
        cargo.arg("--quiet");
    }
    let output = cargo.stderr(Stdio::inherit()).output().context("start cargo")?;
    ensure!(output.status.success(), "cargo could not build {name} (its messages are above)");
    executable(&output.stdout, name)?.with_context(|| format!("cargo has built no {name}"))
}

/// The program `name` among what cargo says it has built.
fn executable(messages: &[u8], name: &str) -> Result<Option<PathBuf>> {
    let is_named = |path: &Path| path.file_name().is_some_and(|file| file == name);
    for line in messages.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Message = serde_json::from_slice(line).context("understand cargo's messages")?;
        if let Some(path) = message.executable.filter(|path| is_named(path)) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_in_what_cargo_says() {
        let messages = b"{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                         {\"reason\":\"compiler-artifact\",\"executable\":\"/t/debug/other\"}\n\
                         {\"reason\":\"compiler-artifact\",\"executable\":\"/t/debug/vkfd\"}\n{\"reason\":\"end\"}\n";
        assert_eq!(executable(messages, "vkfd").unwrap(), Some("/t/debug/vkfd".into()));
        assert_eq!(executable(messages, "debug").unwrap(), None);
        assert!(executable(b"warning: x\n", "vkfd").is_err());
    }
}
