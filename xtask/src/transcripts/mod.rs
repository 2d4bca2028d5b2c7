// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask transcripts`: what pages say that commands write, against what they write.
//!
//! Mechanism: blocks that are marked as transcripts ([`block`]) are run, each in a scratch
//! directory with the tree's directories, with the built `vkfd` first in PATH. Lines are compared
//! with their numbers masked ([`mask`]).

mod block;
mod mask;

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use block::Block;
use xtask_base::cargo::{self, Build};
use xtask_base::debian;
use xtask_base::{tree, Verdict};

/// Run the transcripts in the pages, and compare what they show
///
/// A transcript is a block of code after a comment `<!-- transcript: PACKAGES -->`. A line with `$
/// ` is a command, and the lines after it are its output. `...` stands for any lines. Numbers may
/// differ, with their units; words may not. Debian packages that are named are installed (as root)
/// where they are missing.
///
/// Exit status: 0 all are as shown, 1 findings, 2 a transcript cannot be run here.
#[derive(clap::Args)]
pub struct Args {
    /// Put the numbers of this run into the pages
    #[arg(long)]
    write: bool,
    /// Leave out what needs packages of the distribution
    #[arg(long)]
    without_packages: bool,
    /// Only these pages: all by default
    pages: Vec<String>,
}

/// A command that takes longer hangs.
const PATIENCE: &str = "900";

pub fn run(args: &Args) -> Result<Verdict> {
    let root = tree::root();
    let mut findings = Vec::new();
    let mut commands = 0;
    let stage = Stage::new()?;
    for page in tree::files()?.into_iter().filter(|file| file.ends_with(".md")) {
        if !args.pages.is_empty() && !args.pages.contains(&page) {
            continue;
        }
        let text = fs::read_to_string(root.join(&page)).with_context(|| format!("read {page}"))?;
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        // From the last to the first, as a block's length may change.
        for block in block::read(&text).iter().rev() {
            if args.without_packages && !block.packages.is_empty() {
                continue;
            }
            commands += block.steps.len();
            match stage.play(block)? {
                Ok(new) => drop(lines.splice(block.first..block.end, new)),
                Err(what) => findings.push(format!("{page}:{}: {what}", block.first)),
            }
        }
        if args.write {
            fs::write(root.join(&page), lines.join("\n") + "\n").with_context(|| format!("write {page}"))?;
        }
    }
    Ok(match findings.is_empty() {
        true => Verdict::Clean(format!("{commands} commands write what the pages show")),
        false => Verdict::Findings(findings),
    })
}

/// Where commands run.
struct Stage {
    directory: PathBuf,
    path: std::ffi::OsString,
    /// Where the workspace's examples are, if they are built as checks have it.
    examples: Option<PathBuf>,
}

impl Stage {
    fn new() -> Result<Self> {
        // Below the root, where cargo finds the workspace.
        let directory = tree::root().join("target/transcripts");
        let build = Build::of_checks()?;
        let vkfd = cargo::program(build, "vkfd", "vkfd")?;
        let programs = vkfd.parent().context("a program without a directory")?;
        let examples = (build == Build::Checked).then(|| programs.join("examples"));
        if examples.is_some() {
            let mut build = cargo::cargo();
            build.args(["build", "--workspace", "--examples", "--locked", "--quiet"]);
            ensure!(build.status().context("run cargo")?.success(), "{build:?} failed");
        }
        let old = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([programs.to_path_buf()].into_iter().chain(env::split_paths(&old)))?;
        Ok(Self { directory, path, examples })
    }

    /// The tree's directories by links, and nothing else.
    fn set(&self) -> Result<()> {
        if self.directory.exists() {
            fs::remove_dir_all(&self.directory).with_context(|| format!("empty {}", self.directory.display()))?;
        }
        fs::create_dir_all(&self.directory)?;
        let files = tree::files()?;
        let tops = files.iter().filter_map(|file| file.split_once('/')).map(|(top, _)| top);
        for top in tops.filter(|top| !top.starts_with('.')).collect::<std::collections::BTreeSet<_>>() {
            symlink(tree::root().join(top), self.directory.join(top))?;
        }
        Ok(())
    }

    /// The lines of a block as they are now, or what does not fit.
    fn play(&self, block: &Block) -> Result<Result<Vec<String>, String>> {
        debian::install(&block.packages.iter().map(String::as_str).collect::<Vec<_>>())?;
        self.set()?;
        let mut lines = Vec::new();
        for step in &block.steps {
            println!("$ {}", step.command);
            let ran = self.shell(&built(self.examples.as_deref(), &step.command), &self.directory)?;
            let text = String::from_utf8_lossy(&ran.stdout).into_owned();
            if !ran.status.success() {
                return Ok(Err(format!("`{}` fails ({}):\n{text}", step.command, ran.status)));
            }
            match step.renew(&text) {
                Ok(output) => {
                    lines.push(step.line.clone());
                    lines.extend(output);
                }
                Err(what) => return Ok(Err(what)),
            }
        }
        Ok(Ok(lines))
    }

    fn shell(&self, command: &str, directory: &Path) -> Result<std::process::Output> {
        let mut shell = Command::new("timeout");
        shell.args(["--kill-after=10", PATIENCE, "bash", "-o", "pipefail", "-c", &format!("{{ {command}; }} 2>&1")]);
        shell.current_dir(directory).env("PATH", &self.path).env("NO_COLOR", "1").env("COLUMNS", "100");
        shell.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("run timeout (coreutils)")
    }
}

/// A command as it runs here: vkfd and the workspace's examples are built already. Their release
/// would cost a check more than all its other builds.
fn built(examples: Option<&Path>, command: &str) -> String {
    let words: Vec<_> = command.split_whitespace().collect();
    match (examples, &words[..]) {
        (Some(examples), ["cargo", "run", .., "--example", name]) => examples.join(name).display().to_string(),
        (Some(_), ["cargo", "run", options @ ..]) if options.iter().all(|option| option.starts_with("--")) => {
            "vkfd".to_owned()
        }
        _ => command.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_run_what_is_built() {
        let examples = Some(Path::new("/built/examples"));
        for (command, runs) in [
            ("cargo run --quiet --release", "vkfd"),
            ("cargo run --release -p vkfd-client --example batch", "/built/examples/batch"),
            ("cargo run --release -- doctor", "cargo run --release -- doctor"),
            ("vkfd demo coherent -v", "vkfd demo coherent -v"),
        ] {
            assert_eq!(built(examples, command), runs);
            assert_eq!(built(None, command), command);
        }
    }
}
