// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask ci` and `cargo xtask check`: whether a change is good.
//!
//! Mechanism: xtask/ci.toml ([`table`]) has rings of checks, and which part of the tree each
//! guards. Every ring runs at each change, in its short form or, where its part has changed
//! ([`changes`]), in its long one; with `--all`, in its longest. A step is shell commands with a
//! time limit. After the first ring, rings of guests run beside the others ([`lanes`]). At the end
//! a table says what each step took and had compiled ([`times`]).

mod changes;
mod lanes;
mod progress;
mod table;
mod times;

use anyhow::{ensure, Result};

use self::lanes::Lanes;
use self::progress::Progress;
use self::table::{Form, Planned, Scope, Table};
use crate::sources;
use xtask_base::Verdict;

/// The ring that needs neither root nor a network.
const CHECK: &str = "check";

/// Decide whether a change is good: rings of checks, by the changed files
///
/// xtask/ci.toml names the rings, what each guards and what it runs. What has changed is decided
/// against the last commit that `--all` has passed on here; its name is in ~/.cache/vkfd/ci. Every
/// ring runs in its short form, and in its long one where a file has changed that it guards. Where
/// no such commit is known, all run in their short form. A file that no ring guards concerns all.
///
/// The first ring runs alone; then rings of guests run beside the others, and a step's output comes
/// when it ends. It stops at the first step that fails. Some steps install packages (as root) and
/// fetch others.
///
/// At the end is a table: seconds, processor time, the compiler's part of that, crates compiled.
///
/// Exit status: 0 all passed, 1 a step failed, 2 cannot run.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask ci --plan --changed cu/src/lib.rs   which rings would a change there run?\n  \
                        cargo xtask ci --ring guest --form long         one ring, as after a change of linux/\n  \
                        cargo xtask ci --all --resume                   goes on with a run that was interrupted"
)]
pub struct Args {
    /// Everything in its longest form; if it passes, the commit is recorded
    #[arg(long)]
    all: bool,
    /// Leave out what has passed in the last run with --all, if that was of this commit
    #[arg(long, requires = "all")]
    resume: bool,
    /// Take these files or directories for the changed ones
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with = "all")]
    changed: Vec<String>,
    /// Only this ring; can be repeated
    #[arg(long = "ring", value_name = "NAME")]
    rings: Vec<String>,
    /// This form of each ring, whatever has changed
    #[arg(long, value_enum, conflicts_with_all = ["all", "changed"])]
    form: Option<Form>,
    /// Go on after a step that failed
    #[arg(long)]
    keep_going: bool,
    /// One step at a time, each with its output as it comes
    #[arg(long)]
    one_lane: bool,
    /// Say what would run, and run nothing
    #[arg(long)]
    plan: bool,
}

/// Check the tree: formatting, lints, the tree's rules, pages, all tests, transcripts
///
/// What needs neither root nor a network nor packages; on two processors some minutes when the last
/// build is there. It is the ring `check` of xtask/ci.toml. `bash .ci/run` runs it first.
///
/// Exit status: 0 all passed, 1 a step failed, 2 cannot run.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// Go on after a step that failed
    #[arg(long)]
    keep_going: bool,
}

impl clap::ValueEnum for Form {
    fn value_variants<'a>() -> &'a [Self] {
        &[Form::Short, Form::Long, Form::All]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.name()))
    }
}

pub fn check(args: &CheckArgs) -> Result<Verdict> {
    let table = Table::read()?;
    let mut plan = table.plan(&Scope::Form(Form::Short));
    plan.retain(|planned| planned.ring.name == CHECK);
    ensure!(!plan.is_empty(), "xtask/ci.toml has no ring {CHECK:?}");
    let ran = Lanes { keep_going: args.keep_going, one: true, progress: None }.run(&plan)?;
    sources::record()?;
    Ok(ran.verdict())
}

pub fn run(args: &Args) -> Result<Verdict> {
    let table = Table::read()?;
    for name in &args.rings {
        ensure!(table.rings.iter().any(|ring| ring.name == *name), "{name:?} is no ring of xtask/ci.toml");
    }
    let (scope, why) = scope(args)?;
    println!("{why}");
    let mut plan = table.plan(&scope);
    plan.retain(|planned| args.rings.is_empty() || args.rings.contains(&planned.ring.name));
    for ring in &table.rings {
        let mine = plan.iter().filter(|planned| planned.ring.name == ring.name && planned.step.when.is_none());
        if let Some(form) = mine.map(|planned| planned.form).max() {
            println!("  {:<9} {:<5} {}", ring.name, form.name(), ring.about);
        }
    }
    if args.plan {
        for Planned { ring, step, form, command } in &plan {
            println!("{}: {} ({})\n    {}", ring.name, step.name, form.name(), command.trim().replace('\n', "\n    "));
        }
        return Ok(Verdict::Clean(format!("{} steps", plan.len())));
    }
    let is_whole = args.all && args.rings.is_empty();
    let mut lanes = Lanes { keep_going: args.keep_going, one: args.one_lane, progress: None };
    if is_whole {
        let (progress, before) = Progress::begin(args.resume)?;
        println!("each step that passes is noted in {}, for --resume", progress.path().display());
        plan.retain(|planned| !before.contains(&planned.name()));
        if !before.is_empty() {
            println!("{} steps have passed on this commit before", before.len());
        }
        lanes.progress = Some(progress);
    }
    let ran = lanes.run(&plan)?;
    sources::record()?;
    if is_whole && ran.failed().is_empty() {
        lanes.progress.into_iter().for_each(Progress::end);
        println!("{}", changes::passed()?);
    }
    Ok(ran.verdict())
}

/// What decides on the forms, and why that.
fn scope(args: &Args) -> Result<(Scope, String)> {
    if args.all {
        return Ok((Scope::Form(Form::All), "everything is checked".into()));
    }
    if let Some(form) = args.form {
        return Ok((Scope::Form(form), format!("each ring has its form {:?}", form.name())));
    }
    if !args.changed.is_empty() {
        let why = format!("as if {} had changed", args.changed.join(", "));
        return Ok((Scope::Changed(args.changed.clone()), why));
    }
    let Some(commit) = changes::last_passed()? else {
        let why = "no commit is known that everything passed on: all rings, in their short form";
        return Ok((Scope::Form(Form::Short), why.into()));
    };
    let files = changes::since(&commit)?;
    let why = format!("{} files have changed since {commit}, on which everything passed", files.len());
    Ok((Scope::Changed(files), why))
}
