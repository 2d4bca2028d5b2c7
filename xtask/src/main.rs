// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Developer tasks, run as `cargo xtask TASK`.
//!
//! Mechanism: each task is a module with a clap argument structure and a `run` that returns a
//! [`Verdict`]. A new task is one module and one variant of `Task`. Exit status of every task: 0
//! nothing found, 1 findings (each is printed), 2 the task could not be done.

mod abi;
mod asic;
mod browser;
mod calls;
mod ci;
mod circles;
mod counts;
mod dist;
mod file_circles;
mod frames;
mod fuzz;
mod interleavings;
mod isa;
mod kernels;
mod links;
mod lint;
mod marks;
mod operations;
mod packages;
mod prose;
mod pseudocode;
mod rooms;
mod second_locks;
mod sources;
mod stray;
mod stress;
mod switches;
mod test;
mod transcripts;
mod wheel;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask_base::{cache, Verdict};
use xtask_programs as programs;
use {xtask_clients as clients, xtask_vm as vm};

/// Developer tasks of vkfd.
#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    after_help = "Exit status: 0 nothing found, 1 findings (each is printed), 2 the task could not be done.\n\
                  `cargo xtask help TASK` explains a task.",
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Check(ci::CheckArgs),
    Ci(ci::Args),
    Test(test::Args),
    Cache(cache::Args),
    Abi(abi::Args),
    Asic(asic::Args),
    Calls(calls::Args),
    Interleavings(interleavings::Args),
    Isa(isa::Args),
    Kernels(kernels::Args),
    Links(links::Args),
    Lint(lint::Args),
    Operations(operations::Args),
    Pseudocode(pseudocode::Args),
    Stray(stray::Args),
    Stress(stress::Args),
    Switches(switches::Args),
    Transcripts(transcripts::Args),
    Browser(browser::Args),
    Frames(frames::Args),
    Fuzz(fuzz::Args),
    Counts(counts::Args),
    Dist(dist::Args),
    Packages(packages::Args),
    Vm(vm::Args),
    Wheel(wheel::Args),
    Clients(clients::Args),
    Programs(programs::Args),
}

fn main() -> ExitCode {
    let verdict = match Cli::parse().task {
        Task::Check(args) => ci::check(&args),
        Task::Ci(args) => ci::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Cache(args) => cache::run(&args),
        Task::Abi(args) => abi::run(&args),
        Task::Asic(args) => asic::run(&args),
        Task::Calls(args) => calls::run(&args),
        Task::Interleavings(args) => interleavings::run(&args),
        Task::Isa(args) => isa::run(&args),
        Task::Kernels(args) => kernels::run(&args),
        Task::Links(args) => links::run(&args),
        Task::Lint(args) => lint::run(&args),
        Task::Operations(args) => operations::run(&args),
        Task::Pseudocode(args) => pseudocode::run(&args),
        Task::Stray(args) => stray::run(&args),
        Task::Stress(args) => stress::run(&args),
        Task::Switches(args) => switches::run(&args),
        Task::Transcripts(args) => transcripts::run(&args),
        Task::Browser(args) => browser::run(&args),
        Task::Frames(args) => frames::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Counts(args) => counts::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::Packages(args) => packages::run(&args),
        Task::Vm(args) => vm::run(&args),
        Task::Wheel(args) => wheel::run(&args),
        Task::Clients(args) => clients::run(&args),
        Task::Programs(args) => programs::run(&args),
    };
    match verdict {
        Ok(Verdict::Clean(summary)) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Ok(Verdict::Findings(findings)) => {
            for finding in &findings {
                println!("{finding}");
            }
            eprintln!("{} findings", findings.len());
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("cannot do it: {error:#}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_task_explains_itself() {
        for task in Cli::command().get_subcommands() {
            assert!(task.get_long_about().is_some(), "{} has no explanation", task.get_name());
        }
    }
}
