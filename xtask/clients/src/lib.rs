// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask clients`: the distribution's ROCm programs and libraries, unmodified, under
//! `vkfd run`.
//!
//! Each client is a module with a [`Client`]: what it needs from the distribution, and what it
//! looks at. A client's `check` returns what is wrong, a line each; it runs its negative controls
//! itself, with a library that was built to be broken ([`Stand::broken`]).

pub mod hip;
pub mod hip_batch;
mod hip_checks;
mod hip_ipc;
pub mod hip_kernels;
pub mod hip_pages;
mod hip_programs;
pub mod profile;
pub mod rocminfo;
pub mod rocr;
mod source;
pub mod stand;
pub mod tinygrad;

use anyhow::{ensure, Result};

pub use source::Source;
pub use stand::{Ran, Stand};
use xtask_base::Verdict;

/// Run the distribution's ROCm programs, unmodified, under `vkfd run`
///
/// Installs Debian packages that are missing (as root), and builds `vkfd`. For the negative
/// controls it builds a library that can be broken. Then it compiles and runs each client and reads
/// its output.
///
/// Exit status: 0 all clients work and all controls fail, 1 findings, 2 a client cannot be had
/// here.
#[derive(clap::Args)]
pub struct Args {
    /// Which: all by default
    clients: Vec<String>,
}

/// A client.
pub struct Client {
    pub name: &'static str,
    /// Debian packages.
    pub packages: &'static [&'static str],
    /// What is wrong, and what was seen to be right.
    pub check: fn(&Stand, &mut Report) -> Result<()>,
}

const CLIENTS: &[Client] = &[
    rocminfo::CLIENT,
    rocr::CLIENT,
    hip::CLIENT,
    hip_ipc::CLIENT,
    hip_kernels::CLIENT,
    hip_checks::CLIENT,
    hip_programs::MEMORY,
    hip_programs::ORDER,
    hip_programs::WAVES,
    hip_programs::ANSWERS,
    hip_batch::CLIENT,
    hip_pages::CLIENT,
    tinygrad::CLIENT,
];

/// What a client showed.
#[derive(Default)]
pub struct Report {
    good: usize,
    bad: Vec<String>,
}

impl Report {
    /// `what` must hold; otherwise that, and what was seen, is a finding.
    pub fn expect(&mut self, holds: bool, what: &str, seen: &Ran) {
        if holds {
            println!("  ok: {what}");
            self.good += 1;
        } else {
            println!("  WRONG: {what}");
            self.bad.push(format!("{what}\n{seen}"));
        }
    }
}

pub fn run(args: &Args) -> Result<Verdict> {
    for name in &args.clients {
        let names: Vec<_> = CLIENTS.iter().map(|client| client.name).collect();
        ensure!(names.contains(&name.as_str()), "{name:?} is none of {}", names.join(", "));
    }
    let wanted = |client: &&Client| args.clients.is_empty() || args.clients.iter().any(|name| name == client.name);
    let clients: Vec<_> = CLIENTS.iter().filter(wanted).collect();
    let packages: Vec<_> = clients.iter().flat_map(|client| client.packages).copied().collect();
    let stand = Stand::new(&packages)?;
    let mut all = Report::default();
    for client in clients {
        println!("{}", client.name);
        (client.check)(&stand, &mut all)?;
    }
    Ok(match all.bad.is_empty() {
        true => Verdict::Clean(format!("{} checks of real clients hold", all.good)),
        false => Verdict::Findings(all.bad),
    })
}
