// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm native clients`: the distribution's ROCm programs in the guest, on the host's
//! machine.
//!
//! The guest has no KFD. `vkfd run --forward` in it finds the virtio-gpu and carries the programs'
//! calls through it; their libraries come from the host's distribution and are not changed. The
//! device is `vkfd virtio-gpu` on the host.

use std::path::Path;

use anyhow::{Context, Result};
use vkfd_guest::Ending;
use vkfd_sabotage::Switch;

use super::super::initrd::Initrd;
use super::machine::{Machine, Ran, Wanted};
use super::{controls, suite};
use xtask_base::cargo::Build;
use xtask_base::debian;
use xtask_base::{tree, Verdict};
use xtask_clients::{hip, hip_kernels, rocminfo, rocr};

/// What to run of it.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Without the controls, which need a device that can be broken
    #[arg(long)]
    sound: bool,
}

/// HIP loads it by name when it is asked for a device.
const COMPILER: &str = "/usr/lib/x86_64-linux-gnu/libamd_comgr.so.2";
/// rocminfo 5 asks for a module of this name before it does anything.
const LSMOD: &str = "#!/bin/sh\n/bin/busybox lsmod\necho 'amdgpu 0 0 - Live 0x0'\n";

const MEMORY_MIB: u64 = 2560;
const ROCMINFO: &str = "rocminfo";
const COPIES: &str = "copies 100";
const FEW_COPIES: &str = "copies 20";
const HIP: &str = "hip_copies 1 20";
const KERNELS: &str = "hip_kernels vectors functions";

/// Programs, each with its seconds on a busy computer, and whether what it said is right.
type Client = (&'static str, u64, fn(&str) -> bool);

const CLIENTS: [Client; 4] = [
    (ROCMINFO, 900, |said| said.lines().filter(|line| rocminfo::is_agent(line, "gfx900")).count() == 1),
    (COPIES, 900, |said| said.contains("all bytes right") && said.contains("\nok")),
    (HIP, 1800, |said| said.contains("all bytes right") && said.contains("\nok")),
    (KERNELS, 1800, |said| said.matches(": right").count() == 2),
];

/// What is broken, and what a program's output says then.
const CONTROLS: [(Switch, &str); 2] = [(Switch::LastRange, "FAILED"), (Switch::EarlyFence, "there is no answer")];

fn command(client: &str, library: &Path) -> String {
    format!("vkfd run --forward --preload {} -- {client}", library.display())
}

pub fn run(args: &Args) -> Result<Verdict> {
    let wanted = [rocminfo::CLIENT, rocr::CLIENT, hip::CLIENT, hip_kernels::CLIENT];
    let names: Vec<&str> = wanted.iter().flat_map(|client| client.packages).copied().collect();
    debian::install(&names)?;
    let directory = std::path::absolute(tree::target()).context("make the target directory absolute")?.join("clients");
    std::fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let programs = [&rocr::PROGRAM, &hip::PROGRAM, &hip_kernels::KERNELS];
    let programs = programs.into_iter().map(|source| source.compile(&directory)).collect::<Result<Vec<_>>>()?;
    let mut findings = sound(&programs)?;
    if !args.sound {
        findings.extend(control(&programs)?);
    }
    Ok(if findings.is_empty() {
        Verdict::Clean(format!("{} of the distribution's programs run in a guest without a KFD", CLIENTS.len()))
    } else {
        Verdict::Findings(findings)
    })
}

/// Boots and runs `clients`.
fn boot(
    name: &str,
    device: &[&str],
    programs: &[std::path::PathBuf],
    clients: &[(&str, u64)],
) -> Result<(Ran, Vec<String>)> {
    let machine = Machine::new(Build::Checked)?;
    let [vkfd, library] = machine.run()?;
    let more = |initrd: &mut Initrd| -> Result<()> {
        initrd.add_program(&vkfd)?;
        initrd.add_library(&library)?;
        initrd.add_library(Path::new(COMPILER))?;
        initrd.set_shell(Path::new("/bin/dash"))?;
        initrd.add_script("lsmod", LSMOD);
        initrd.add_program(Path::new("/usr/bin/rocminfo"))?;
        programs.iter().try_for_each(|program| initrd.add_program(program).map(drop))
    };
    let commands: Vec<(String, u64)> =
        clients.iter().map(|(client, seconds)| (command(client, &library), *seconds)).collect();
    let words: Vec<(&str, u64)> = commands.iter().map(|(command, seconds)| (command.as_str(), *seconds)).collect();
    let wanted = Wanted { name, memory_mib: MEMORY_MIB, device, commands: &words, more: Some(&more) };
    let ran = machine.boot(&wanted, |record, _| {
        suite::show(record);
        true
    })?;
    Ok((ran, commands.into_iter().map(|(command, _)| command).collect()))
}

fn sound(programs: &[std::path::PathBuf]) -> Result<Vec<String>> {
    let clients = CLIENTS.map(|(client, seconds, _)| (client, seconds));
    let (ran, commands) = boot("clients", &[], programs, &clients)?;
    let mut findings = suite::findings(&ran);
    for ((client, _, right), command) in CLIENTS.iter().zip(&commands) {
        let said = suite::output(&ran, command);
        if suite::ending(&ran, command) != Some(&Ending::Status(0)) || !right(&said) {
            findings.push(format!("{client}:\n{said}"));
        }
    }
    Ok(findings)
}

fn control(programs: &[std::path::PathBuf]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for (switch, sign) in CONTROLS {
        let what = switch.name();
        let name = format!("clients-{what}");
        let (ran, commands) = boot(&name, &["--sabotage", what], programs, &[(FEW_COPIES, 900)])?;
        let failed = commands.iter().all(|command| suite::ending(&ran, command) != Some(&Ending::Status(0)));
        let said = format!(
            "{}\n{}",
            controls::said(&ran),
            commands.iter().map(|c| suite::output(&ran, c)).collect::<String>()
        );
        let noticed = failed && said.contains(sign);
        println!("  control: {what}: {}", if noticed { "noticed" } else { "NOT noticed" });
        if !noticed {
            findings.push(format!("control: {FEW_COPIES} does not notice a device with {what}: {said}"));
        }
    }
    Ok(findings)
}
