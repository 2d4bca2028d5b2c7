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
    /// Built with the switches that break it, in a directory of its own: what is built with a
    /// feature would replace what is built without.
    sabotaged: bool,
    /// Linked with its libraries, in a directory of its own, too.
    whole: bool,
}

/// The guest's first process.
pub const INIT: Binary = Binary { name: "vkfd-init", package: "vkfd-guest", sabotaged: false, whole: false };
/// The scenario suite.
pub const SCENARIOS: Binary =
    Binary { name: "vkfd-scenarios", package: "vkfd-scenarios", sabotaged: false, whole: false };
/// The stress test.
pub const STRESS: Binary = Binary { name: "vkfd-stress", package: "vkfd-hunt", sabotaged: false, whole: false };
/// The command line.
pub const VKFD: Binary = Binary { name: "vkfd", package: "vkfd", sabotaged: false, whole: false };
/// The GPU outside of the guest.
pub const GPU: Binary = Binary { name: "vkfd-gpu", package: "vkfd-device", sabotaged: false, whole: false };
/// The command line, whose `virtio-gpu` has `--sabotage`.
pub const VKFD_SABOTAGED: Binary = Binary { sabotaged: true, ..VKFD };
/// The guest's side of native context, which runs in any guest.
pub const NATIVE: Binary = Binary { name: "vkfd-native", package: "vkfd-native", sabotaged: false, whole: true };
/// The same, with `--sabotage`.
pub const SABOTAGED_GPU: Binary = Binary { sabotaged: true, ..GPU };

/// Built programs.
pub struct Programs(BTreeMap<(&'static str, bool), PathBuf>);

/// What cargo says with `--message-format=json`, as far as it matters.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

impl Programs {
    /// Builds `binaries`, optimized. One by one, so that none is built with the features that only
    /// another one's test switches need.
    pub fn build(binaries: &[Binary]) -> Result<Self> {
        let built = binaries.iter().map(|binary| Ok((binary.key(), binary.build()?))).collect::<Result<_>>()?;
        Ok(Self(built))
    }

    /// One that was asked for.
    pub fn path(&self, binary: Binary) -> Result<&Path> {
        self.0.get(&binary.key()).map(PathBuf::as_path).with_context(|| format!("{} was not built", binary.name))
    }
}

impl Binary {
    fn key(self) -> (&'static str, bool) {
        (self.name, self.sabotaged)
    }

    fn build(self) -> Result<PathBuf> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(tree::root());
        cargo.args(["build", "--release", "--locked", "--message-format=json-render-diagnostics"]);
        if !std::io::stderr().is_terminal() {
            cargo.arg("--quiet");
        }
        cargo.args(["--package", self.package, "--bin", self.name]);
        if self.sabotaged {
            let target = std::path::absolute(tree::target()).context("make the target directory absolute")?;
            cargo.args(["--features", "sabotage", "--target-dir"]).arg(target.join("vm/sabotage"));
        }
        if self.whole {
            let target = std::path::absolute(tree::target()).context("make the target directory absolute")?;
            // With a target that is named, the flag is not for what runs here, such as procedural
            // macros.
            cargo.args(["--target", "x86_64-unknown-linux-gnu", "--target-dir"]).arg(target.join("vm/whole"));
            cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
        }
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
