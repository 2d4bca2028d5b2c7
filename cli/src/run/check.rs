// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `--check`: the options, and the report when the program has ended.
//!
//! The library writes a file of findings for each process into a directory. This adds them to one
//! list, which also has the filter of kernels and the suppressions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use vkfd_findings::{from_transport, json, sarif, text, Bounds, Extent, Findings, Pattern, Rule, Suppressions, Tool};
use vkfd_gpu::check::{rules, Checks};

use super::lines::Lines;
use crate::format::{count, counted};

/// Options of checks.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Run kernels on a slow engine that finds bugs: `memory`, `init`, `race`, `waits`,
    /// `hazards`, or `all`
    ///
    /// memory: accesses outside of allocations, to freed memory, behind the end of LDS and scratch.
    /// init: bits that nothing wrote decide something. race: waves access LDS or memory
    /// without an order. waits: a register is used before its load has arrived. hazards: too few
    /// wait states in the code of kernels that are launched, as `vkfd lint` finds them.
    /// docs/checking.md has more.
    #[arg(long = "check", value_name = "LIST")]
    checks: Option<Checks>,
    /// Write what checks find to FILE, as JSON
    #[arg(long, value_name = "FILE", requires = "checks")]
    check_json: Option<PathBuf>,
    /// Write what checks find to FILE, as SARIF
    #[arg(long, value_name = "FILE", requires = "checks")]
    sarif: Option<PathBuf>,
    /// Exit with N if checks find something
    #[arg(long, value_name = "N", requires = "checks")]
    error_exitcode: Option<u8>,
    /// Report only kernels of this name, in which `*` stands for anything; may be given again
    #[arg(long, value_name = "PATTERN", requires = "checks")]
    kernel: Vec<String>,
    /// Findings that are accepted, a line each: `rule=PATTERN kernel=PATTERN source=PATTERN`
    #[arg(long, value_name = "FILE", requires = "checks")]
    suppress: Option<PathBuf>,
}

/// The directory of the processes' files, below the private one.
pub(super) fn directory(private: &Path) -> PathBuf {
    private.join("findings")
}

impl Args {
    /// What kernels are checked for.
    pub(super) fn checks(&self) -> Checks {
        self.checks.unwrap_or_default()
    }

    /// An empty list, as the options have it.
    pub(super) fn list(&self) -> Result<Findings> {
        let suppressions = match &self.suppress {
            Some(path) => {
                let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                text.parse::<Suppressions>().with_context(|| path.display().to_string())?
            }
            None => Suppressions::default(),
        };
        let kernels = self.kernel.iter().map(|name| Pattern::new(name)).collect();
        Ok(Findings::new(Bounds::default(), kernels, suppressions))
    }

    /// Reports what processes have found, and gives the exit code for that.
    pub(super) fn report(
        &self,
        mut list: Findings,
        directory: &Path,
        lines: &Lines,
        code: ExitCode,
    ) -> Result<ExitCode> {
        let mut extent = Extent::default();
        for entry in fs::read_dir(directory).context("cannot read what checks have found")? {
            let path = entry?.path();
            // One that was being written when its process was killed is not there under its name.
            if path.extension().is_none() {
                let report = from_transport(&fs::read_to_string(&path)?)?;
                extent = extent.plus(report.extent);
                for mut counted in report.findings {
                    lines.add(&mut counted.finding);
                    list.add_many(counted.finding, counted.count);
                }
            }
        }
        let write = |path: &Path, document: String| {
            fs::write(path, document + "\n").with_context(|| format!("cannot write {}", path.display()))
        };
        if let Some(path) = &self.check_json {
            let mut document = json(&list);
            document["checked"] = serde_json::json!(extent);
            write(path, document.to_string())?;
        }
        if let Some(path) = &self.sarif {
            let rule = |(id, summary): (&str, &str)| Rule { id: id.into(), summary: summary.into(), help: None };
            let version = env!("CARGO_PKG_VERSION").into();
            let tool = Tool { name: "vkfd".into(), version, rules: rules().map(rule).collect() };
            write(path, sarif(&list, &tool).to_string())?;
        }
        let report = text(&list);
        match report.is_empty() {
            true if extent.launches == 0 => eprintln!("vkfd: --check {}: no kernel was launched", self.checks()),
            true => {
                let (of, waves) = (self.checks(), counted(extent.instructions, "wave instruction"));
                let es = if extent.launches == 1 { "" } else { "es" };
                eprintln!("vkfd: --check {of}: nothing found in {} launch{es} ({waves})", count(extent.launches));
            }
            false => eprint!("{report}"),
        }
        Ok(match self.error_exitcode {
            Some(other) if !list.is_clean() => ExitCode::from(other),
            _ => code,
        })
    }
}
