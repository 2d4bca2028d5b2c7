// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd bench userptr` by itself, without the rest of the command line.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: vkfd_bench::Args,
}

fn main() -> anyhow::Result<ExitCode> {
    vkfd_bench::run(&Cli::parse().args)
}
