// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd-native`: the guest's side of native context. It does what AMD's library does in a guest,
//! in its order, and checks what comes of it.
//!
//! Exit codes: 0 all is right, 1 something is not.

mod age;
mod aql;
mod bench;
mod check;
mod drm;
mod library;
mod memory;
mod refused;
mod userptr;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use vkfd_remote::protocol::hsakmt::memory::Layout;

/// Uses a virtio-gpu as AMD's ROCm library does (native context, capability set 8), and checks it.
#[derive(Parser)]
#[command(name = "vkfd-native", version)]
struct Cli {
    /// Which of the library's two layouts
    #[arg(long, value_enum, default_value = "y2026", global = true)]
    layout: LayoutName,
    /// Seconds that the GPU may take for a copy
    #[arg(long, default_value_t = 120)]
    patience: u64,
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Copy, ValueEnum)]
enum LayoutName {
    /// July 2025
    Y2025,
    /// The year 2026
    Y2026,
}

#[derive(Subcommand)]
enum Action {
    /// Register scattered memory, have the GPU read and write it, and compare
    Check(check::Args),
    /// Say what no guest may say, and see it refused
    Refused(refused::Args),
    /// Register this program's own memory, on a kernel that lets it, and see what is refused
    Userptr,
    /// Measure registration, mapping, one pass and freeing
    Bench(bench::Args),
    /// The other of two contexts, for `check`
    #[command(hide = true)]
    Peer(check::PeerArgs),
    /// Register memory, say so, and wait to be killed
    Hold(check::HoldArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    library::PATIENCE.store(cli.patience, std::sync::atomic::Ordering::Relaxed);
    let layout = match cli.layout {
        LayoutName::Y2025 => Layout::Y2025,
        LayoutName::Y2026 => Layout::Y2026,
    };
    let result = match &cli.action {
        Action::Check(args) => check::run(args, layout),
        Action::Peer(args) => check::peer(args, layout),
        Action::Refused(args) => refused::run(args, layout),
        Action::Userptr => userptr::run(layout),
        Action::Bench(args) => bench::run(args, layout),
        Action::Hold(args) => check::hold(args, layout),
    };
    match result {
        Ok(()) => {
            println!("ok");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}
