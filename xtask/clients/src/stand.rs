// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What clients are tried on: a built `vkfd`, a library that can be broken, a compiler, a time
//! limit.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::source::Source;
use xtask_base::cargo::{self, Build};
use xtask_base::{debian, group};

/// A client that takes longer hangs. Machines may be slow and busy.
const PATIENCE: Duration = Duration::from_secs(600);

/// See the module.
pub struct Stand {
    vkfd: PathBuf,
    work: PathBuf,
}

/// How a program ended, and what it wrote.
pub struct Ran {
    pub command: String,
    /// Exit code; 124 if it had to be ended.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Exit code 0.
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, code, stdout, stderr } = self;
        write!(f, "  {command}\n  exit code {code:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

impl Stand {
    /// Installs packages, builds.
    pub fn new(packages: &[&str]) -> Result<Self> {
        debian::install(packages)?;
        let work = cargo::target()?.join("clients");
        fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
        // The controls break it.
        Ok(Self { vkfd: cargo::program(Build::Checked, "vkfd", "vkfd")?, work })
    }

    /// Compiles a client of the tree.
    pub fn compile(&self, source: &Source) -> Result<PathBuf> {
        source.compile(&self.work)
    }

    /// Runs a program under `vkfd run OPTIONS --`.
    pub fn run(
        &self,
        options: &[&str],
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Ran> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &PATIENCE.as_secs().to_string()]).arg(&self.vkfd).arg("run").args(options);
        command.arg("--").arg(program).args(arguments).envs(environment.iter().copied());
        let output = group::output(&mut command).context("run timeout (coreutils)")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ran {
            command: format!("{environment:?} {command:?}"),
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    }

    /// As `run`, with a part of the driver or its GPU broken: what `VKFD_SABOTAGE` names.
    pub fn broken(&self, sabotage: &str, options: &[&str], program: &Path, arguments: &[&str]) -> Result<Ran> {
        self.run(options, program, arguments, &[("VKFD_SABOTAGE", sabotage)])
    }
}

/// A `vkfd serve`, told to end when dropped.
pub struct Server {
    child: Child,
    line: Option<ChildStdout>,
}

impl Stand {
    /// Begins a machine that several programs share.
    pub fn serve(&self, name: &str, options: &[&str]) -> Result<Server> {
        let mut command = Command::new(&self.vkfd);
        command.args(["serve", name]).args(options).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("run vkfd serve")?;
        let line = child.stdout.take();
        Ok(Server { child, line })
    }
}

impl Server {
    /// Waits until programs can join: it says so with a line.
    pub fn is_there(&mut self) -> bool {
        let mut line = String::new();
        let read = self.line.take().map(|line_of| BufReader::new(line_of).read_line(&mut line));
        read.is_some_and(|read| read.is_ok()) && line.contains("join with")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = Command::new("kill").arg(self.child.id().to_string()).status();
        if !ended.is_ok_and(|ended| ended.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
