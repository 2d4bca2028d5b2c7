// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm native`: a guest with an unmodified kernel, whose virtio-gpu is
//! `vkfd virtio-gpu`.
//!
//! Mechanism: QEMU 11.1 and the distribution's stock kernel come from a newer suite, unpacked into
//! the cache ([`parts`]). A boot ([`machine`]) has the device in a process beside QEMU, and runs
//! `vkfd-native` (`vm/native`), which does in the guest what AMD's library does. What the guest
//! says, what the kernel's log says and what the device says in the end are all looked at
//! ([`suite`]). Where programs' own memory is registered, the kernel is the tree's, with its patch
//! of virtio-gpu. [`controls`] breaks the device, and the guest has to notice. [`clients`] runs the
//! distribution's ROCm programs in the guest, whose calls are forwarded.

mod bench;
mod clients;
mod controls;
mod machine;
pub mod parts;
mod suite;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use xtask_base::Verdict;

/// A guest with a stock kernel whose ROCm calls go through virtio-gpu to vkfd on the host (native
/// context)
///
/// The first run gets QEMU 11.1 and a kernel (160 MB) from the distribution's newer suites and
/// unpacks them into ~/.cache/vkfd; no root is needed for that. Without an action it runs the
/// checks, the controls and the clients: some ten minutes.
///
/// Exit status: 0 all is well, 1 findings, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Register, copy, compare, refuse; programs that are killed leave nothing
    Check,
    /// Register programs' own memory (userptr), on the tree's kernel with its patch of virtio-gpu
    Userptr,
    /// Break the device in one way each, and see that the guest notices
    Controls,
    /// Measure registration in three ways, of memory in few pieces and in many
    Bench(bench::Args),
    /// The distribution's ROCm programs, unmodified, in the guest on the host's machine
    /// (`vkfd run --forward`), with controls
    Clients(clients::Args),
    /// A shell in such a guest, with vkfd-native and busybox; ctrl-a x switches it off
    Shell,
    /// Only get QEMU and the kernel
    Setup,
}

pub fn run(args: &Args) -> Result<Verdict> {
    match &args.action {
        None => all(),
        Some(Action::Check) => suite::run(),
        Some(Action::Userptr) => suite::userptr(),
        Some(Action::Controls) => controls::run(),
        Some(Action::Clients(args)) => clients::run(args),
        Some(Action::Bench(args)) => bench::run(args),
        Some(Action::Shell) => machine::shell(),
        Some(Action::Setup) => parts::get().map(|parts| {
            Verdict::Clean(format!("QEMU {} and Linux {} are there", parts.qemu_version, parts.kernel_version))
        }),
    }
}

/// The checks, the controls, and the distribution's programs.
fn all() -> Result<Verdict> {
    let (mut clean, mut findings) = (Vec::new(), Vec::new());
    for verdict in [suite::run()?, controls::run()?, clients::run(&clients::Args::default())?] {
        match verdict {
            Verdict::Clean(text) => clean.push(text),
            Verdict::Findings(found) => findings.extend(found),
        }
    }
    Ok(if findings.is_empty() { Verdict::Clean(clean.join("; ")) } else { Verdict::Findings(findings) })
}

/// Where the files of a boot are.
fn directory(name: &str) -> Result<PathBuf> {
    use anyhow::Context;
    let target = std::path::absolute(xtask_base::tree::target()).context("make the target directory absolute")?;
    Ok(target.join("vm/native").join(name))
}
