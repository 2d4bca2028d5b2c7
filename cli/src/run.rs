// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd run -- PROGRAM ARGUMENTS`: a program on a machine of its own.
//!
//! Mechanism: a private directory with what KFD and DRM show in `/sys`, `/dev` and `/proc`; then the program, with the library
//! that leads these paths there and has the machine (the crate `vkfd-preload`). This process waits for it, passes signals on to it, and removes
//! the directory.

mod directory;
mod library;
mod program;
mod tree;
mod wait;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{bail, ensure, Context, Result};
use vkfd_host::description::{
    Description, DIRECTORY_VARIABLE, MACHINE_VARIABLE, TRACE_JSON_VARIABLE, TRACE_VARIABLE, USED_FILE,
};
use vkfd_host::Target;

use self::directory::PrivateDirectory;

/// Most GPUs of a machine.
const MAX_GPUS: u32 = 32;

#[derive(clap::Args)]
pub struct RunArgs {
    /// A machine by name; the options below change it
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// GPUs, 1 to 32 [default: 1]
    #[arg(long, value_name = "N")]
    gpus: Option<u32>,
    /// What the GPUs are: gfx900, gfx90a, gfx1030, gfx1100 [default: gfx900]
    #[arg(long, value_parser = clap::value_parser!(Target))]
    target: Option<Target>,
    /// Memory of each GPU, such as 512M or 4G [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    vram: Option<u64>,
    /// GPUs that can retry page faults; the program turns that on
    #[arg(long)]
    xnack: bool,
    /// Record every call on the devices in FILE
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Record as JSON, an object a line
    #[arg(long, requires = "trace")]
    json: bool,
    /// The library to load, for tests
    #[arg(long, hide = true)]
    preload: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Preset {
    /// Four gfx90a in one coherent space with the processors, scaled down
    FrontierNode,
}

/// Bytes, with a suffix K, M, G or T.
fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.trim_end_matches(['B', 'b', 'i']).to_ascii_uppercase() {
        number if number.ends_with('K') => (number[..number.len() - 1].to_owned(), 10),
        number if number.ends_with('M') => (number[..number.len() - 1].to_owned(), 20),
        number if number.ends_with('G') => (number[..number.len() - 1].to_owned(), 30),
        number if number.ends_with('T') => (number[..number.len() - 1].to_owned(), 40),
        number => (number, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    let whole = bytes.filter(|bytes| *bytes != 0 && bytes % (2 << 20) == 0);
    whole.ok_or_else(|| format!("{text:?} is not a size such as 512M or 4G, in whole 2 MiB"))
}

impl RunArgs {
    fn machine(&self) -> Result<Description> {
        let mut machine = match self.preset {
            Some(Preset::FrontierNode) => Description::FRONTIER_NODE,
            None => Description::default(),
        };
        machine.gpus = self.gpus.unwrap_or(machine.gpus);
        machine.target = self.target.unwrap_or(machine.target);
        machine.vram = self.vram.unwrap_or(machine.vram);
        machine.xnack |= self.xnack;
        ensure!((1..=MAX_GPUS).contains(&machine.gpus), "--gpus {}: 1 to {MAX_GPUS} are possible", machine.gpus);
        Ok(machine)
    }
}

pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let machine = args.machine()?;
    let [name, arguments @ ..] = &args.program[..] else { bail!("no program was given") };
    let library = library::find(args.preload.as_deref())?;
    // Before anything is made: a program that cannot be reached runs without a word of ours otherwise.
    let program = program::find(name)?;
    program::check(&program)?;
    let directory = PrivateDirectory::new()?;
    tree::write(directory.path(), &machine).context("cannot write the machine's files")?;
    let mut command = Command::new(&program);
    command.arg0(name).args(arguments);
    let preload = library::preload(&library, directory.path(), std::env::var_os("LD_PRELOAD"));
    command.env("LD_PRELOAD", preload.context("cannot give the library another name")?);
    command.env(DIRECTORY_VARIABLE, directory.path()).env(MACHINE_VARIABLE, machine.to_string());
    command.env_remove(TRACE_VARIABLE).env_remove(TRACE_JSON_VARIABLE);
    if let Some(trace) = &args.trace {
        let trace = std::path::absolute(trace)?;
        std::fs::write(&trace, "").with_context(|| format!("cannot write the trace {}", trace.display()))?;
        command.env(TRACE_VARIABLE, &trace);
        if args.json {
            command.env(TRACE_JSON_VARIABLE, "1");
        }
    }
    let code = wait::run(command).with_context(|| format!("cannot run {}", program.display()))?;
    if !directory.path().join(USED_FILE).exists() {
        eprintln!("vkfd: {} opened no device and read nothing of the machine's", name.to_string_lossy());
    }
    drop(directory);
    Ok(code)
}
