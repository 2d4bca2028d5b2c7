// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The checks: everything that a guest does with the device, and that it is right.

use anyhow::Result;
use vkfd_guest::{Ending, Record};

use super::super::progress::minutes;
use super::super::{verdict, Flavor};
use super::machine::{Machine, Ran, Wanted};
use xtask_base::cargo::Build;
use xtask_base::Verdict;

/// Programs of the guest, each with its seconds. Killed programs are followed by one that has all
/// to itself again.
const COMMANDS: [(&str, u64); 7] = [
    ("vkfd-native check --mib 64", 300),
    ("vkfd-native --layout y2025 check --mib 8", 200),
    ("vkfd-native refused", 60),
    ("vkfd-native --layout y2025 refused", 60),
    // Two that are killed while they hold registrations, and one in the middle of whatever it does.
    ("vkfd-native hold & vkfd-native hold & vkfd-native check --mib 4 & sleep 4; kill -9 $(pidof vkfd-native); sleep 1", 60),
    ("for t in 0.1 0.2 0.4 0.6 0.9 1.3 1.8 2.5; do vkfd-native check --mib 2 & p=$!; sleep $t; kill -9 $p; done; sleep 1", 120),
    ("vkfd-native check --mib 4", 200),
];

/// The pieces of which the largest registration must have at least so many.
const PIECES: u64 = 10_000;

pub fn run() -> Result<Verdict> {
    let machine = Machine::new(Build::of_checks()?)?;
    println!("Linux {} in QEMU {}", machine.parts.kernel_version, machine.parts.qemu_version);
    let wanted = Wanted { name: "check", memory_mib: 1536, device: &["--gpus", "2"], commands: &COMMANDS, more: None };
    let (_, most, mut findings) = checked(&machine, &wanted)?;
    findings.extend(killed(&machine)?);
    findings.extend(device_killed(&machine)?);
    findings.extend(balloon(&machine)?);
    Ok(if findings.is_empty() {
        Verdict::Clean(format!("a stock guest's memory, in up to {most} pieces, is one range of the host's GPUs"))
    } else {
        Verdict::Findings(findings)
    })
}

/// Programs of a guest whose kernel has userptr blobs.
const USERPTR_COMMANDS: [(&str, u64); 5] = [
    ("vkfd-native check --mib 64", 300),
    ("vkfd-native --layout y2025 check --mib 8", 200),
    ("vkfd-native userptr", 200),
    ("for t in 0.1 0.2 0.4 0.6 0.9 1.3 1.8 2.5; do vkfd-native check --mib 2 & p=$!; sleep $t; kill -9 $p; done; sleep 1", 120),
    ("vkfd-native check --mib 4", 200),
];

/// What `vkfd-native check` says where memory is registered as it is.
const USERPTR: &str = "buffers of the guest: userptr";

/// The same with programs' own memory.
pub fn userptr() -> Result<Verdict> {
    let machine = Machine::patched()?;
    println!("the tree's kernel in QEMU {}", machine.parts.qemu_version);
    let commands = &USERPTR_COMMANDS;
    let wanted = Wanted { name: "userptr", memory_mib: 1536, device: &["--gpus", "2"], commands, more: None };
    let (ran, most, mut findings) = checked(&machine, &wanted)?;
    if !output(&ran, USERPTR_COMMANDS[0].0).contains(USERPTR) {
        findings.push("memory was not registered as userptr".into());
    }
    Ok(if findings.is_empty() {
        Verdict::Clean(format!("programs' own memory, in up to {most} pieces, is one range of the host's GPUs"))
    } else {
        Verdict::Findings(findings)
    })
}

/// Boots a guest that checks, is killed and checks again: what came of it, the longest list that
/// the device has registered, and what is wrong.
fn checked(machine: &Machine, wanted: &Wanted<'_>) -> Result<(Ran, u64, Vec<String>)> {
    let ran = machine.boot(wanted, |record, _| {
        show(record);
        true
    })?;
    let mut findings = findings(&ran);
    let most = most_pieces(&ran.log);
    if most < PIECES {
        findings.push(format!("the guest's memory came in {most} pieces at most; {PIECES} are wanted"));
    }
    findings.extend(alone(&ran.log));
    println!("  from power-on to the end {}", minutes(ran.outcome.took));
    Ok((ran, most, findings))
}

/// The last check has two contexts. When the first of them begins, nothing of the killed programs
/// is there any more.
fn alone(log: &str) -> Option<String> {
    let begins = log.lines().filter(|line| line.contains("a context begins"));
    let others: Vec<u64> =
        begins.filter_map(|line| line.split_once("others=")?.1.split(' ').next()?.parse().ok()).collect();
    match others.iter().rev().nth(1) {
        Some(0) => None,
        Some(left) => Some(format!("of programs that were killed {left} processes, places or resources were left")),
        None => Some("the device has not said what contexts began".into()),
    }
}

/// QEMU is killed while the guest holds registrations. Returns the findings in the device's
/// remains.
fn killed(machine: &Machine) -> Result<Vec<String>> {
    let commands = [("vkfd-native hold & vkfd-native hold", 300)];
    let wanted = Wanted { name: "killed", memory_mib: 768, device: &[], commands: &commands, more: None };
    let mut holding = 0;
    let ran = machine.boot(&wanted, |record, _| {
        holding += u32::from(holds(record));
        holding < 2
    })?;
    println!("  QEMU killed while two processes of the guest hold registrations");
    let mut findings = ran.left;
    if holding < 2 {
        findings.push(format!("{holding} of two processes held registrations: {:?}", ran.outcome.records.last()));
    }
    Ok(findings)
}

/// The device is killed while the guest holds a registration: the guest goes on and ends, and no
/// process of the device is left.
fn device_killed(machine: &Machine) -> Result<Vec<String>> {
    const ALIVE: &str = "the guest goes on";
    let command = format!("vkfd-native hold & sleep 5; kill -9 $!; echo {ALIVE}");
    let commands = [(command.as_str(), 300)];
    let wanted = Wanted { name: "device", memory_mib: 768, device: &[], commands: &commands, more: None };
    let mut findings = Vec::new();
    let mut killed = false;
    let ran = machine.boot(&wanted, |record, host| {
        if holds(record) {
            killed = true;
            findings.extend(host.kill_device().err().map(|error| format!("{error:#}")));
        }
        true
    })?;
    println!("  the device killed while a process of the guest holds a registration");
    findings.extend(verdict::findings(&ran.outcome, &ran.job, Flavor::Plain));
    if !killed {
        findings.push("no process held a registration".into());
    }
    if !output(&ran, &command).contains(ALIVE) {
        findings.push("the guest does not go on without its device".into());
    }
    findings.extend(ran.processes.iter().map(|process| format!("of the device that was killed, {process} is left")));
    Ok(findings)
}

/// The balloon takes half of the guest's memory and gives it back, while a process holds a
/// registration and makes others.
fn balloon(machine: &Machine) -> Result<Vec<String>> {
    const MIB: u64 = 768;
    let commands = [("vkfd-native hold --balloons 2", 400)];
    let wanted = Wanted { name: "balloon", memory_mib: MIB, device: &[], commands: &commands, more: None };
    let mut findings = Vec::new();
    let ran = machine.boot(&wanted, |record, host| {
        let Record::Output { line, .. } = record else { return true };
        let leave = match line.as_str() {
            line if line.starts_with("holding") || line.starts_with("whole") => MIB / 2,
            line if line.starts_with("smaller") => MIB,
            _ => return true,
        };
        findings.extend(host.leave(leave).err().map(|error| format!("{error:#}")));
        findings.is_empty()
    })?;
    println!("  a balloon takes half of the guest's memory, and gives it back, under a registration");
    ran.outcome.records.iter().for_each(show);
    findings.extend(self::findings(&ran));
    Ok(findings)
}

fn holds(record: &Record) -> bool {
    matches!(record, Record::Output { line, .. } if line.starts_with("holding"))
}

/// What the guest's programs say, as they say it.
pub fn show(record: &Record) {
    match record {
        Record::Output { line, .. } => println!("    {line}"),
        Record::Ended { program, ending, seconds } => println!("  {program}: {ending} ({seconds:.1} s)"),
        _ => {}
    }
}

/// What is wrong with a boot.
pub fn findings(ran: &Ran) -> Vec<String> {
    let mut findings = verdict::findings(&ran.outcome, &ran.job, Flavor::Plain);
    findings.extend(ran.left.iter().cloned());
    findings
}

/// How the guest's program `name` ended.
pub fn ending<'a>(ran: &'a Ran, name: &str) -> Option<&'a Ending> {
    ran.outcome.records.iter().find_map(|record| match record {
        Record::Ended { program, ending, .. } if program == name => Some(ending),
        _ => None,
    })
}

/// What the guest's program `name` wrote, errors as well.
pub fn output(ran: &Ran, name: &str) -> String {
    let lines = ran.outcome.records.iter().filter_map(|record| match record {
        Record::Output { program, line, .. } if program == name => Some(line.as_str()),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The longest list that the device has registered.
fn most_pieces(log: &str) -> u64 {
    let counts = log.lines().filter_map(|line| line.split_once("ranges=")?.1.split(' ').next()?.parse().ok());
    counts.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_programs_leave_is_noticed() {
        let log = |first: u64| {
            format!(
                "INFO a context begins context=1 capset=8 others=7\nINFO a context begins context=2 capset=8 others={first}\n\
                 INFO a context begins context=3 capset=8 others=20\n"
            )
        };
        assert_eq!(alone(&log(0)), None);
        assert!(alone(&log(3)).is_some() && alone("").is_some());
    }

    #[test]
    fn the_longest_list_is_found_in_the_log() {
        let log = "INFO registered ranges=3 bytes=12288 microseconds=387\nINFO registered ranges=15030 bytes=1 microseconds=9\n";
        assert_eq!(most_pieces(log), 15_030);
        assert_eq!(most_pieces("nothing"), 0);
    }
}
