// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd lint`: missing waits and hazards in code objects.
//!
//! The files are those of `vkfd disasm`. `vkfd-lint` makes the checks, and `vkfd-findings` the
//! list and its forms.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use vkfd_findings::{json, sarif, text, Bounds, Findings, Pattern, Rule, Severity, Suppressions, Tool};
use vkfd_lint::{lint, rules, Checks, Object, ReadError};

pub const EXAMPLES: &str = "\
Examples:
  vkfd lint kernel.co
  vkfd lint --check waits --kernel 'gemm_*' ./my-hip-program
  vkfd lint --sarif *.hsaco > lint.sarif
  echo 'rule=hazards/mfma-* kernel=probe' > accepted; vkfd lint --suppress accepted kernel.co";

/// The page that explains the rules.
const PAGE: &str = "docs/checking.md";

/// The options of `vkfd lint`.
#[derive(Args, Clone, Debug)]
pub struct LintArgs {
    /// Code objects, or programs or bundles that contain code objects
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Which checks
    #[arg(long, value_enum, default_value_t = Which::All)]
    check: Which,

    /// Check only kernels and functions whose symbol fits (`*` stands for any text); may be
    /// repeated
    #[arg(long, value_name = "PATTERN")]
    kernel: Vec<String>,

    /// Print one JSON document instead of text
    #[arg(long, conflicts_with = "sarif")]
    json: bool,

    /// Print SARIF 2.1.0, for code scanning on GitHub and for editors
    #[arg(long)]
    sarif: bool,

    /// Accept the findings that lines of this file name, such as `rule=waits/* kernel=PATTERN
    /// source=FILE:LINE`
    #[arg(long, value_name = "FILE")]
    suppress: Option<PathBuf>,

    /// The exit code with errors
    #[arg(long, value_name = "N", default_value_t = 1)]
    error_exitcode: u8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    Waits,
    Hazards,
    All,
}

impl Which {
    fn checks(self) -> Checks {
        Checks { waits: !matches!(self, Which::Hazards), hazards: !matches!(self, Which::Waits) }
    }
}

/// Runs it.
pub fn run(args: &LintArgs) -> Result<ExitCode> {
    let suppressions: Suppressions = match &args.suppress {
        None => Suppressions::default(),
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            text.parse().with_context(|| file.display().to_string())?
        }
    };
    let kernels = args.kernel.iter().map(|pattern| Pattern::new(pattern)).collect();
    let mut findings = Findings::new(Bounds::default(), kernels, suppressions);
    let mut functions = 0;
    for path in &args.files {
        let name = path.display().to_string();
        let file = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
        let places = vkfd_code_object::places(&file).with_context(|| name.clone())?;
        let mut left_out = BTreeSet::new();
        for (offset, bytes) in &places {
            let place = if places.len() > 1 { format!("{name}@{offset:#x}") } else { name.clone() };
            let object = match Object::read(bytes) {
                Ok(object) => object,
                // A file may have code for targets that are not known here beside others.
                Err(ReadError::Unknown(machine)) if places.len() > 1 => {
                    left_out.insert(machine.to_string());
                    continue;
                }
                Err(error) => return Err(error).context(place),
            };
            functions += object.functions.iter().filter(|function| findings.wants(Some(&function.name))).count();
            lint(&object, &place, args.check.checks(), &mut findings);
        }
        if !left_out.is_empty() {
            let others = Vec::from_iter(left_out).join(", ");
            eprintln!("vkfd: {name}: code of other targets is left out: {others}");
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&json(&findings))?);
    } else if args.sarif {
        println!("{}", serde_json::to_string_pretty(&sarif(&findings, &tool()))?);
    } else if findings.is_clean() {
        print!("{}", text(&findings));
        println!("{functions} kernels and functions: no finding");
    } else {
        print!("{}", text(&findings));
    }
    let failed = findings.dropped() > 0 || findings.worst() == Some(Severity::Error);
    Ok(if !failed { ExitCode::SUCCESS } else { ExitCode::from(args.error_exitcode) })
}

fn tool() -> Tool {
    let of_rules = rules().into_iter().map(|rule| {
        let help = Some(format!("{}/blob/main/{PAGE}", env!("CARGO_PKG_REPOSITORY")));
        let help = help.filter(|page| !page.starts_with('/'));
        Rule { id: rule.id.to_string(), summary: rule.summary.to_string(), help }
    });
    Tool { name: "vkfd".to_string(), version: env!("CARGO_PKG_VERSION").to_string(), rules: of_rules.collect() }
}
