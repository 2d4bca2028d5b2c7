// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd`: shows and checks what the driver does, in this process or on a device.
//!
//! Exit codes: 0 all checks held, 1 one did not, 2 wrong usage or a system that lacks something.

mod advise;
mod demo;
mod engine;
mod format;
mod guest;
mod input;
mod inspect;
mod layout;
mod memory;
mod report;
mod run;
mod scatter;
mod session;

use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// A KFD (AMD's GPU compute driver) for machines without an AMD GPU, with batch registration of scattered CPU memory.
///
/// Without a command, runs `vkfd demo`.
#[derive(Parser)]
#[command(name = "vkfd", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Register a scattered buffer as one GPU range, use it, change it meanwhile, and check every result
    ///
    /// With --input DIR it registers files' contents instead, and lets the GPU compute their checksums.
    ///
    /// Exit code: 0 when every check held, 1 when one did not, 2 for wrong usage or a system that lacks something.
    #[command(after_long_help = EXAMPLES)]
    Demo(Box<demo::DemoArgs>),
    /// Show what the driver has: limits, objects, ranges, counters, page-table entries
    ///
    /// The driver in this process is new and has only this process's state, and it cannot be attached to from outside. So this
    /// command makes the same state as the demo, a small one, and shows what the driver's snapshot queries return. It cannot show
    /// other programs' state. With --device it shows the limits, capabilities and nodes of that KFD as a new process sees them.
    Inspect(Box<inspect::InspectArgs>),
    /// Measure on this machine what batch registration costs and buys, or memory on a GPU
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Run a program on a virtual machine of GPUs: ROCm programs, unmodified
    ///
    /// The program finds /dev/kfd, render nodes and the topology in sysfs. It has to be dynamically linked: it is reached by a
    /// library that is loaded into it (LD_PRELOAD), and into what it runs. Each process has a machine of its own.
    ///
    /// What the driver warns of is on stderr, such as a queue that stopped and why; the environment variable VKFD_LOG set to info or debug
    /// shows more, off nothing.
    ///
    /// Exit code: the program's; 128 and the signal's number if a signal ended it; 2 if it could not be run.
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(Box<run::RunArgs>),
    /// Say where a program's many single registrations could have been one batch
    ///
    /// FILE is a trace of `vkfd run --trace FILE`, as text or JSON. The time that a batch would take is measured on this machine, on memory of
    /// the same shape, or taken from a benchmark's result.
    ///
    /// Exit code: 0, also when there is nothing to say.
    Advise(advise::AdviseArgs),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Subcommand)]
enum Bench {
    Userptr(Box<vkfd_bench::Args>),
    Migrate(Box<vkfd_bench::migrate::Args>),
}

const EXAMPLES: &str = "\
Examples:
  vkfd demo --all-lists                 all built-in scatter lists
  vkfd demo --xnack --gpus 2            two GPUs that retry page faults
  vkfd demo --json | jq '.lists[0].steps[] | {name, outcome}'
  vkfd demo --input some/directory      CRC-32 of each file; compare one with
  python3 -c \"import sys, zlib; print('%08x' % zlib.crc32(open(sys.argv[1], 'rb').read()))\" FILE";

const RUN_EXAMPLES: &str = "\
Examples:
  vkfd run -- rocminfo
  vkfd run --gpus 4 --target gfx90a -- ./my-hip-program
  vkfd run --trace calls.txt -- ./my-hip-program && vkfd advise calls.txt";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let command = match cli.command {
        Some(command) => Some(command),
        None => Cli::parse_from(["vkfd", "demo"]).command,
    };
    let result = match command {
        Some(Command::Demo(args)) => demo::run(&args),
        Some(Command::Inspect(args)) => inspect::run(&args),
        Some(Command::Bench { what: Bench::Userptr(args) }) => vkfd_bench::run(&args),
        Some(Command::Bench { what: Bench::Migrate(args) }) => vkfd_bench::migrate::run(&args),
        Some(Command::Advise(args)) => advise::run(&args),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Completions { shell }) => completions(shell),
        None => Ok(ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::from(141),
        Err(error) => {
            eprintln!("vkfd: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether the reader of the output has gone, which is no error worth a message. The code is the one that a shell gives a
/// program that SIGPIPE ended.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "vkfd", &mut script);
    io::Write::write_all(&mut io::stdout().lock(), &script)?;
    Ok(ExitCode::SUCCESS)
}
