// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The checks against code that a compiler made: they are silent on it, and notice what is taken
//! away. `cargo xtask lint` compiles the code and starts this.

mod removal;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use vkfd_findings::{text, Findings, Severity};
use vkfd_lint::{lint, Checks, Object};

use removal::{reason, removals, Kind};

/// Check code objects, and what the checks notice
#[derive(Parser)]
struct Args {
    /// Code objects
    files: Vec<PathBuf>,
    /// A file with the names of more of them, one a line
    #[arg(long)]
    list: Option<PathBuf>,
    /// Take away each wait and each s_nop in turn, of each N-th function
    #[arg(long, value_name = "N")]
    remove: Option<usize>,
    /// Print each removal that is not noticed and whose neighbours do not say why
    #[arg(long)]
    show: bool,
    /// Compare the table of rules in this page, and nothing else
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Write it
    #[arg(long, requires = "page")]
    write: bool,
}

fn main() -> Result<ExitCode> {
    let mut args = Args::parse();
    if let Some(page) = &args.page {
        let old = std::fs::read_to_string(page).with_context(|| page.display().to_string())?;
        let new = vkfd_lint::table::page(&old).context("the page has no place for the rules")?;
        if args.write {
            std::fs::write(page, &new)?;
        }
        return Ok(if args.write || old == new { ExitCode::SUCCESS } else { ExitCode::from(1) });
    }
    if let Some(list) = &args.list {
        let text = std::fs::read_to_string(list).with_context(|| list.display().to_string())?;
        args.files.extend(text.lines().map(PathBuf::from));
    }
    let mut functions = 0;
    let (mut alarms, mut warnings) = (0, 0);
    // By kind and reason; an empty reason: noticed.
    let mut counts: BTreeMap<(Kind, &str), u64> = BTreeMap::new();
    for file in &args.files {
        let name = file.display().to_string();
        let bytes = std::fs::read(file).with_context(|| name.clone())?;
        let mut object = Object::read(&bytes).with_context(|| name.clone())?;
        let mut findings = Findings::default();
        lint(&object, &name, Checks::ALL, &mut findings);
        let before = functions;
        functions += object.functions.len();
        let errors = findings.list().iter().filter(|counted| counted.finding.severity == Severity::Error).count();
        warnings += findings.list().len() - errors;
        alarms += errors;
        if errors > 0 {
            print!("{}", text(&findings));
            continue;
        }
        let of_function = |findings: &Findings| {
            let weight = |severity: Severity| if severity == Severity::Error { 1000 } else { 1 };
            findings.list().iter().map(|counted| weight(counted.finding.severity)).sum::<usize>()
        };
        let mut shown = vec![0; object.functions.len()];
        for counted in findings.list() {
            let kernel = counted.finding.place.kernel.as_deref();
            let at = object.functions.iter().position(|function| Some(function.name.as_str()) == kernel);
            shown[at.unwrap_or(0)] += 1;
        }
        let Some(every) = args.remove else { continue };
        // Each N-th of all files: a file's first functions are alike.
        for n in (0..object.functions.len()).filter(|n| (before + n) % every.max(1) == 0) {
            let code = std::mem::take(&mut object.functions[n].code);
            for removal in removals(object.target, &code) {
                let mut function = object.functions[n].clone();
                function.code = removal.code.clone();
                let one = Object { functions: vec![function], ..object.settings() };
                let mut findings = Findings::default();
                lint(&one, &name, Checks::ALL, &mut findings);
                let why = if of_function(&findings) <= shown[n] { reason(&removal).unwrap_or("?") } else { "" };
                *counts.entry((removal.kind, why)).or_default() += 1;
                if args.show && why == "?" {
                    let place = 4 * removal.at;
                    let function = &object.functions[n].name;
                    println!("{name}: {function} + {place:#x}: {:?} before {:?}", removal.kind, removal.next);
                }
            }
            object.functions[n].code = code;
        }
    }
    let files = args.files.len();
    println!("{files} files, {functions} functions, {alarms} errors, {warnings} warnings");
    for ((kind, why), count) in &counts {
        let what = match *why {
            "" => "noticed",
            "?" => "not noticed",
            why => why,
        };
        println!("{:?}: {count} {what}", kind);
    }
    Ok(if alarms == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
