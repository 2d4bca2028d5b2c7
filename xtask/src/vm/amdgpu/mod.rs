// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm amdgpu`: a guest with an unmodified kernel whose driver is AMD's own, on vkfd's
//! GPU as a PCI device.
//!
//! Mechanism: the kernel and its modules come from the distribution ([`parts`]). A boot
//! ([`machine`]) has `vkfd-pci-gpu` beside QEMU, loads amdgpu.ko, and runs programs. Three sides
//! are looked at: the kernel's log, the guest's programs, and the device's account of itself.

mod machine;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Subcommand;
use vkfd_guest::{Ending, Record};

use super::progress::minutes;
use crate::clients::{packages, rocminfo};
use crate::{tree, Verdict};
use machine::{Machine, Ran, Wanted};

/// A guest with a stock kernel whose own amdgpu.ko binds to vkfd's GPU as a PCI device
///
/// The first run gets QEMU 11.1 and a kernel (290 MB) from the distribution's newer suites and
/// unpacks them into ~/.cache/vkfd; no root is needed for that. Firmware files and VBIOS are
/// generated. A boot takes some minutes without KVM.
///
/// Exit status: 0 all is well, 1 findings, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    /// More parameters for the driver, as `sched_policy=2` (queues without its scheduler)
    #[arg(long, global = true, value_name = "WORDS", default_value = "", hide_default_value = true)]
    parameters: String,
    /// Name the files of the boot also when all is well: the kernel's log, the device's log
    #[arg(long, global = true)]
    keep_log: bool,
}

#[derive(Subcommand, Clone, Copy)]
enum Action {
    /// The driver probes; its rings work; its topology is compared with vkfd's
    Probe,
    /// The same, and the distribution's rocminfo, unmodified
    Rocminfo,
    /// Only get QEMU and the kernel
    Setup,
}

/// What the driver says when it is done.
const INITIALIZED: &str = "Initialized amdgpu";
/// Differences between both topologies that are known, and why.
const TOPOLOGY: &str = "xtask/src/vm/amdgpu/topology.txt";
/// Registers that the driver reads and the device does not model.
const UNMODELLED: &str = "asic/unmodelled.txt";
/// Prints the GPU's node.
const NODE: &str = "ls -l /dev/kfd && ls /dev/dri && cat /sys/class/kfd/kfd/topology/nodes/1/name \
                    && cat /sys/class/kfd/kfd/topology/nodes/1/properties";
const ROCMINFO: &str = "/usr/bin/rocminfo";

pub fn run(args: &Args) -> Result<Verdict> {
    let mut commands = vec![(NODE, 60)];
    let (name, programs): (_, &[&Path]) = match args.action {
        Action::Setup => {
            let (parts, kernel) = parts::get()?;
            let (qemu, version, count) = (parts.qemu_version, kernel.version, kernel.modules.len());
            return Ok(Verdict::Clean(format!("QEMU {qemu} and Linux {version} with {count} modules are there")));
        }
        Action::Probe => ("probe", &[]),
        Action::Rocminfo => {
            packages::install(&["rocminfo"])?;
            commands.push(("rocminfo", 300));
            ("rocminfo", &[Path::new(ROCMINFO)])
        }
    };
    let machine = Machine::new()?;
    println!("Linux {} with its own amdgpu.ko, in QEMU {}", machine.kernel.version, machine.parts.qemu_version);
    let wanted = Wanted { name, parameters: &args.parameters, programs, commands: &commands };
    let ran = machine.boot(&wanted, |record| {
        show(record);
        true
    })?;
    println!("  from power-on to the end {}; {}", minutes(ran.outcome.took), ran.summary.counts);
    let mut findings = findings(&ran, &commands);
    findings.extend(unmodelled(&ran)?);
    findings.extend(topology(&ran, &machine)?);
    if matches!(args.action, Action::Rocminfo) {
        let agents = output(&ran, "rocminfo").iter().filter(|line| rocminfo::is_agent(line, "gfx90a")).count();
        println!("  rocminfo shows {agents} agent gfx90a");
        if agents != 1 {
            findings.push(format!("rocminfo shows {agents} agents gfx90a"));
        }
    }
    if args.keep_log || !findings.is_empty() {
        println!("  logs are in {}", ran.directory.display());
    }
    Ok(if findings.is_empty() {
        Verdict::Clean(format!("{name}: AMD's driver of Linux {} runs on the device", machine.kernel.version))
    } else {
        Verdict::Findings(findings)
    })
}

fn show(record: &Record) {
    match record {
        Record::Booted { release } => println!("  booted {release}"),
        Record::Loaded { module, error: None } if module == parts::DRIVER => println!("  {module} is loaded"),
        Record::Started { program } if program == NODE => println!("  the GPU's node"),
        Record::Started { program } => println!("  {program}"),
        _ => {}
    }
}

/// What a command has printed.
fn output<'a>(ran: &'a Ran, command: &str) -> Vec<&'a str> {
    let lines = ran.outcome.records.iter().filter_map(|record| match record {
        Record::Output { program, line, .. } if program == command => Some(line.as_str()),
        _ => None,
    });
    lines.collect()
}

/// What is wrong with the guest and with the device.
fn findings(ran: &Ran, commands: &[(&str, u64)]) -> Vec<String> {
    let mut findings = Vec::new();
    let records = &ran.outcome.records;
    for record in records {
        match record {
            Record::Broken { error } => findings.push(format!("the guest could not go on: {error}")),
            Record::Loaded { module, error: Some(error) } => findings.push(format!("{module}: {error}")),
            Record::Ended { program, ending, .. } if *ending != Ending::Status(0) => {
                findings.push(format!("{program} {ending}"));
            }
            _ => {}
        }
    }
    for (command, _) in commands {
        if !records.iter().any(|record| matches!(record, Record::Ended { program, .. } if program == command)) {
            findings.push(format!("the guest did not come to {command}"));
        }
    }
    if records.last() != Some(&Record::Finished) {
        findings.push(format!("the guest did not come to its end: {:?} {}", ran.outcome.end, ran.outcome.complaints));
    }
    if !ran.outcome.console.contains(INITIALIZED) {
        findings.push(format!("the kernel's log has no \"{INITIALIZED}\""));
    }
    let wrong =
        |line: &&str| ["Oops", "BUG:", "WARNING:", "*ERROR*", "Call Trace"].iter().any(|sign| line.contains(sign));
    findings.extend(ran.outcome.console.lines().filter(wrong).map(|line| format!("the kernel: {}", line.trim())));
    findings.extend(ran.troubles.iter().cloned());
    findings.extend(ran.summary.halted.iter().map(|ring| format!("{ring} stands still")));
    findings
}

/// Lines of a file without comments.
fn listed(path: &str) -> Result<Vec<String>> {
    let file = tree::root().join(path);
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(Into::into).collect())
}

/// Registers that were read, are not modelled, and are not in the list of such.
fn unmodelled(ran: &Ran) -> Result<Vec<String>> {
    let known: BTreeSet<String> = listed(UNMODELLED)?.into_iter().collect();
    println!(
        "  {} registers are read and not modelled; {UNMODELLED} has {}",
        ran.summary.unmodelled.len(),
        known.len()
    );
    let new = ran.summary.unmodelled.difference(&known);
    Ok(new.map(|name| format!("register {name} is read, not modelled, and not in {UNMODELLED}")).collect())
}

/// The properties of a node, by name.
fn properties<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, &'a str> {
    lines.filter_map(|line| line.split_once(' ')).filter(|(_, value)| value.parse::<u64>().is_ok()).collect()
}

/// Differences between AMD's topology and vkfd's that are not agreed on.
fn topology(ran: &Ran, machine: &Machine) -> Result<Vec<String>> {
    let own = machine.topology()?;
    let (own, amd) = (properties(own.lines()), properties(output(ran, NODE).into_iter()));
    let agreed = listed(TOPOLOGY)?;
    let is_agreed = |name: &str| agreed.iter().any(|line| line.split_once(':').is_some_and(|(known, _)| known == name));
    let names: BTreeSet<&str> = own.keys().chain(amd.keys()).copied().collect();
    let differ: Vec<&str> = names.iter().copied().filter(|name| own.get(name) != amd.get(name)).collect();
    println!("  topology: {} properties, {} differ, {} of them agreed", names.len(), differ.len(), {
        differ.iter().filter(|name| is_agreed(name)).count()
    });
    let show = |value: Option<&&str>| value.map_or("none".to_owned(), |value| (*value).to_owned());
    let new = differ.into_iter().filter(|name| !is_agreed(name));
    Ok(new.map(|name| format!("{name}: AMD's driver {}, vkfd {}", show(amd.get(name)), show(own.get(name)))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_names_with_numbers() {
        let lines = ["aldebaran", "simd_count 416", "-rw 1 root", "crw-rw-rw- 1 0", "max 18446744073709551615"];
        let found = properties(lines.into_iter());
        assert_eq!(found.get("simd_count"), Some(&"416"));
        assert_eq!(found.get("max"), Some(&"18446744073709551615"));
        assert!(!found.contains_key("-rw"));
    }

    #[test]
    fn every_agreed_difference_has_a_reason() {
        for line in listed(TOPOLOGY).unwrap() {
            assert!(line.split_once(": ").is_some_and(|(_, reason)| reason.len() > 10), "{line}");
        }
        assert!(listed(UNMODELLED).is_ok());
    }
}
