// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd bench userptr` (`compute` if that is the first argument) by itself, without the rest of
//! the command line.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Userptr {
    #[command(flatten)]
    args: vkfd_bench::Args,
}

#[derive(Parser)]
struct Compute {
    #[command(flatten)]
    args: vkfd_bench::compute::Args,
}

fn main() -> anyhow::Result<ExitCode> {
    let mut words: Vec<_> = std::env::args().collect();
    if words.get(1).is_some_and(|word| word == "compute") {
        words.remove(1);
        return vkfd_bench::compute::run(&Compute::parse_from(words).args);
    }
    vkfd_bench::run(&Userptr::parse_from(words).args)
}
