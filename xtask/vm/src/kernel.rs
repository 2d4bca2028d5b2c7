// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest's kernel.
//!
//! Mechanism: configured and built by make, whose own dependency tracking continues an interrupted
//! build and rebuilds what a new option touches. The stamp's key is the configuration, the tree's
//! patch of the kernel, and the compilers' versions.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{ensure, Context, Result};

use super::cache::{self, Cache};
use super::config::Config;
use super::patch;
use super::progress::Progress;
use super::source::{self, Source};
use super::tools::Tools;
use super::Flavor;

/// What make prints of a whole build.
const STEPS: u64 = 2120;

const LOG: &str = "vkfd-build.log";

/// A built kernel.
pub struct Kernel {
    pub flavor: Flavor,
    pub source: Source,
    pub build: PathBuf,
    pub tools: Tools,
}

impl Kernel {
    /// The one in the cache, if the tree wants that one.
    pub fn find(cache: &Cache, flavor: Flavor) -> Result<Self> {
        let setup = format!("run `cargo xtask vm setup{}`", flavor.option());
        let missing = || format!("Linux {} is not in {}: {setup}", source::VERSION, cache.root().display());
        let source = source::find(cache).with_context(missing)?;
        let tools = Tools::find(cache, flavor)?;
        let build = cache.build(&source.version, flavor);
        [&build, &source.directory].into_iter().for_each(|entry| xtask_base::cache::used(entry));
        let config = Config::wanted(flavor)?;
        let made = cache::made_for(&build);
        ensure!(made.is_some(), "the {} kernel is not built: {setup}", flavor.name());
        ensure!(
            made == Some(key(&config, &tools)?),
            "the {} kernel was built with another configuration or patch, or other compilers: {setup}",
            flavor.name()
        );
        Ok(Self { flavor, source, build, tools })
    }

    /// Builds it unless it is there.
    pub fn build(cache: &Cache, flavor: Flavor, source: Source) -> Result<Self> {
        let tools = Tools::find(cache, flavor)?;
        let build = cache.build(&source.version, flavor);
        [&build, &source.directory].into_iter().for_each(|entry| xtask_base::cache::used(entry));
        let config = Config::wanted(flavor)?;
        let key = key(&config, &tools)?;
        if !cache::is_made(&build, &key) {
            cache.ensure_room(2)?;
            fs::create_dir_all(&build).with_context(|| format!("create {}", build.display()))?;
            cache::unmark(&build)?;
            patch::apply(&source.directory)?;
            configure(&config, &tools, &source.directory, &build)?;
            make(&tools, &source.directory, &build)?;
            cache::mark(&build, &key)?;
        }
        Ok(Self { flavor, source, build, tools })
    }

    /// A module that is built with the kernel, by its path in the kernel's tree.
    pub fn module(&self, path: &str) -> PathBuf {
        self.build.join(path).with_extension("ko")
    }

    /// What QEMU boots: the uncompressed kernel, by its PVH entry.
    pub fn image(&self) -> PathBuf {
        self.build.join("vmlinux")
    }
}

fn key(config: &Config, tools: &Tools) -> Result<String> {
    Ok(format!("{}{}{}", tools.versions(), config.text(), patch::text()?))
}

fn configure(config: &Config, tools: &Tools, source: &Path, build: &Path) -> Result<()> {
    let available =
        tools.make(source, build).arg("rustavailable").stdin(Stdio::null()).output().context("start make")?;
    ensure!(
        available.status.success(),
        "the kernel does not accept these Rust tools:\n{}",
        String::from_utf8_lossy(&available.stderr).trim()
    );
    let fragment = build.join("vkfd.config");
    fs::write(&fragment, config.text()).with_context(|| format!("write {}", fragment.display()))?;
    let mut make = tools.make(source, build);
    make.arg("allnoconfig").env("KCONFIG_ALLCONFIG", &fragment);
    let configured = make.stdin(Stdio::null()).output().context("start make")?;
    ensure!(configured.status.success(), "make allnoconfig: {}", String::from_utf8_lossy(&configured.stderr).trim());
    config.ensure_in(&Config::read(&build.join(".config"))?)
}

fn make(tools: &Tools, source: &Path, build: &Path) -> Result<()> {
    let mut progress = Progress::new("kernel", STEPS);
    let processors = thread::available_parallelism().map_or(2, usize::from);
    let mut make = tools.make(source, build);
    make.arg(format!("-j{processors}")).args(["vmlinux", "modules"]);
    run_logged(&mut make, &build.join(LOG), |line| progress.step(line))?;
    for file in ["vmlinux", "Module.symvers"] {
        ensure!(build.join(file).exists(), "make has ended well but left no {file} in {}", build.display());
    }
    progress.finish();
    Ok(())
}

/// Runs make with its messages in `log`, and the end of them in the error.
pub fn run_logged(make: &mut Command, log: &Path, mut on_line: impl FnMut(&str)) -> Result<()> {
    let mut file = File::create(log).with_context(|| format!("create {}", log.display()))?;
    let errors = file.try_clone().context("share the log")?;
    let mut child = make.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn().context("start make")?;
    let output = child.stdout.take().context("make's output")?;
    for line in BufReader::new(output).lines() {
        let line = line.context("read make's output")?;
        writeln!(file, "{line}").with_context(|| format!("write {}", log.display()))?;
        on_line(line.trim());
    }
    let status = child.wait().context("wait for make")?;
    if !status.success() {
        let text = fs::read_to_string(log).unwrap_or_default();
        anyhow::bail!("{}\nmake failed; all its messages are in {}", complaints(&text), log.display());
    }
    Ok(())
}

/// What the compiler says of errors; with several processors other lines are behind it. The end of
/// the log where there is nothing of the kind.
fn complaints(log: &str) -> String {
    const LINES: usize = 40;
    let lines: Vec<&str> = log.lines().collect();
    let is_error = |line: &str| line.contains(": error:") || line.contains(": fatal error:");
    let wanted = |at: usize| (at.saturating_sub(3)..=at).any(|before| is_error(lines[before]));
    let errors: Vec<&str> = (0..lines.len()).filter(|at| wanted(*at)).map(|at| lines[at]).take(LINES).collect();
    if errors.is_empty() { &lines[lines.len().saturating_sub(LINES)..] } else { &errors }.join("\n")
}

#[cfg(test)]
mod tests {
    use super::complaints;

    #[test]
    fn an_error_is_shown_wherever_it_is() {
        let mut log = "  CC a.o\nx.c:1:2: error: no\n  1 | x\n    | ^\n".to_owned();
        log += &"  CC b.o\n".repeat(100);
        assert_eq!(complaints(&log), "x.c:1:2: error: no\n  1 | x\n    | ^\n  CC b.o");
        assert_eq!(complaints(&"1\n2\n".repeat(50)).lines().count(), 40);
    }
}
