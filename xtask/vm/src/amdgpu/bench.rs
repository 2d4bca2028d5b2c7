// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm amdgpu bench`: `vkfd bench` on AMD's driver, with patches or without.

use anyhow::Result;
use vkfd_guest::Record;

use super::super::programs::{Programs, VKFD};
use super::machine::{Machine, Wanted};
use super::series::Series;
use super::{unmodelled, SETTLE};
use xtask_base::cargo::Build;
use xtask_base::Verdict;

/// The largest shapes have as much memory twice, and the budget is a third of free memory.
const MIB: u32 = 4096;

const SECONDS: u64 = 3600;

/// What is measured.
pub struct Bench<'a> {
    /// Of `vkfd bench`.
    pub arguments: &'a str,
    /// More parameters for the driver.
    pub parameters: &'a str,
}

impl Bench<'_> {
    /// Boots a kernel, with patches or without, and measures.
    pub fn run(&self, series: Option<&Series>) -> Result<Verdict> {
        let machine = Machine::to_measure(series)?;
        let programs = Programs::build(Build::Released, &[VKFD])?;
        let files = [programs.path(VKFD)?.to_owned()];
        println!("Linux {} with its own amdgpu.ko, in QEMU {}", machine.kernel.version, machine.parts.qemu_version);
        let command = format!("{} bench {} --device /dev/kfd", VKFD.name, self.arguments);
        let commands = [(command.as_str(), SECONDS), (SETTLE, 60)];
        let wanted = Wanted {
            name: "bench",
            parameters: self.parameters,
            programs: &files,
            commands: &commands,
            memory_mib: Some(MIB),
            ..Wanted::default()
        };
        let ran = machine.boot(&wanted, |record| {
            if let Record::Output { line, .. } = record {
                println!("{line}");
            }
            true
        })?;
        let mut findings = super::findings(&ran, &commands, false);
        findings.extend(unmodelled(&ran)?);
        if !findings.is_empty() {
            println!("  logs are in {}", ran.directory.display());
            return Ok(Verdict::Findings(findings));
        }
        Ok(Verdict::Clean("measured in an emulated guest, where absolute times mean nothing".into()))
    }
}
