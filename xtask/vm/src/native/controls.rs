// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The device is broken in one way each; the guest's check must fail, and for the right reason.

use anyhow::Result;
use vkfd_guest::{Ending, Record, Stream};
use vkfd_sabotage::Switch;

use super::machine::{Machine, Ran, Wanted};
use super::suite;
use xtask_base::cargo::Build;
use xtask_base::Verdict;

/// What is broken, and what the guest says then.
const CONTROLS: [(Switch, &str); 6] = [
    (Switch::LastRange, "CRC"),
    (Switch::Swapped, "CRC"),
    (Switch::Shifted, "CRC"),
    (Switch::FirstOnly, "CRC"),
    // The GPU finds nothing at the address, and its queue stops.
    (Switch::FreedEarly, "FAILED: a copy: nothing after"),
    (Switch::EarlyFence, "the fence came before the work"),
];

const COMMAND: &str = "vkfd-native --patience 10 check --mib 4";

pub fn run() -> Result<Verdict> {
    let machine = Machine::new(Build::Checked)?;
    let mut findings = Vec::new();
    for (switch, sign) in CONTROLS {
        let what = switch.name();
        let wanted = Wanted {
            name: what,
            memory_mib: 768,
            device: &["--sabotage", what],
            commands: &[(COMMAND, 120)],
            more: None,
        };
        let ran = machine.boot(&wanted, |_, _| true)?;
        let said = said(&ran);
        let failed = suite::ending(&ran, COMMAND) == Some(&Ending::Status(1));
        let noticed = failed && said.contains("FAILED") && said.contains(sign);
        println!("  control: {what}: {}", if noticed { said.lines().last().unwrap_or("") } else { "NOT noticed" });
        if !noticed {
            findings.push(format!("control: the guest does not notice a device with {what}: {said}"));
        }
    }
    Ok(if findings.is_empty() {
        Verdict::Clean(format!("{} broken devices were noticed", CONTROLS.len()))
    } else {
        Verdict::Findings(findings)
    })
}

/// What the guest's programs have written.
pub fn said(ran: &Ran) -> String {
    let lines = ran.outcome.records.iter().filter_map(|record| match record {
        Record::Output { stream: Stream::Out, line, .. } => Some(line.as_str()),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}
