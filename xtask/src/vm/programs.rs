// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The project's programs that run in the guest or beside it.

use std::collections::BTreeMap;
use std::env;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;

use crate::tree;

/// A program of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binary {
    pub name: &'static str,
    package: &'static str,
}

/// The guest's first process.
pub const INIT: Binary = Binary { name: "vkfd-init", package: "vkfd-guest" };
/// The scenario suite.
pub const SCENARIOS: Binary = Binary { name: "vkfd-scenarios", package: "vkfd-scenarios" };
/// The command line.
pub const VKFD: Binary = Binary { name: "vkfd", package: "vkfd" };
/// The GPU outside of the guest.
pub const GPU: Binary = Binary { name: "vkfd-gpu", package: "vkfd-device" };

/// Built programs.
pub struct Programs(BTreeMap<&'static str, PathBuf>);

/// What cargo says with `--message-format=json`, as far as it matters.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

impl Programs {
    /// Builds `binaries`, optimized. One by one, so that none is built with the features that only another one's test switches need.
    pub fn build(binaries: &[Binary]) -> Result<Self> {
        let built = binaries.iter().map(|binary| Ok((binary.name, binary.build()?))).collect::<Result<_>>()?;
        Ok(Self(built))
    }

    /// One that was asked for.
    pub fn path(&self, binary: Binary) -> Result<&Path> {
        self.0.get(binary.name).map(PathBuf::as_path).with_context(|| format!("{} was not built", binary.name))
    }
}

impl Binary {
    fn build(self) -> Result<PathBuf> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(tree::root());
        cargo.args(["build", "--release", "--locked", "--message-format=json-render-diagnostics"]);
        if !std::io::stderr().is_terminal() {
            cargo.arg("--quiet");
        }
        cargo.args(["--package", self.package, "--bin", self.name]);
        let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("start cargo")?;
        ensure!(output.status.success(), "cargo could not build {} (its messages are above)", self.name);
        for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let message: Message = serde_json::from_slice(line).context("understand cargo's messages")?;
            if let Some(path) = message.executable.filter(|path| path.file_name().is_some_and(|name| name == self.name))
            {
                return Ok(path);
            }
        }
        bail!("cargo has built no {}", self.name)
    }
}
