// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm controls`: whether the harness notices what it must.
//!
//! A test that cannot fail is worth nothing. So each of these guests has one fault: the module
//! `vm/probe` breaks a rule of modules, or a program ends badly. The finding for it must be there.
//! One guest has no fault and must have no finding. Then the driver itself is broken, see
//! [`sabotage`].

use std::time::Duration;

use anyhow::Result;

use super::guest::{self, Parts, Size};
use super::module::Module;
use super::{sabotage, verdict, Flavor, FlavorArgs};
use xtask_base::Verdict;

/// Show that a fault of each kind in a guest is noticed
///
/// Boots one guest per fault: a driver that ignores invalidations or leaves TLB flushes out, a
/// warning, a leak, a panic. Other faults are a module that hangs, stays loaded or does not load,
/// and programs that fail, crash and hang. With --debug there are also a use after free and a lock
/// inversion.
///
/// Exit status: 0 all were noticed, 1 some were not, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    flavor: FlavorArgs,

    /// Only the driver broken by the switches whose names contain this: `linux.`,
    /// `driver.tlb_flush`
    #[arg(long, value_name = "SWITCH")]
    only: Option<String>,
}

/// A guest with nothing to do takes three seconds, on a busy host ten times as long. The guest that
/// hangs takes this time.
const AROUND_PROGRAMS: Duration = Duration::from_secs(60);

/// A guest and what must be found in it.
struct Control {
    name: &'static str,
    /// The module's parameter.
    fault: u8,
    /// A shell command that runs in the guest.
    command: &'static str,
    /// Part of a finding; none for the guest that is well.
    finding: Option<&'static str>,
    /// Only the sanitizer kernel notices.
    debug_only: bool,
}

const fn control(name: &'static str, fault: u8, command: &'static str, finding: Option<&'static str>) -> Control {
    Control { name, fault, command, finding, debug_only: false }
}

const CONTROLS: [Control; 12] = [
    control("nothing", 0, "true", None),
    control("a warning", 1, "true", Some("warning: ")),
    control("a leak", 2, "true", Some("leak: 1 allocations")),
    control("a panic", 3, "true", Some("Kernel panic")),
    control("a module that hangs", 4, "true", Some("switched off after")),
    control("a module that stays loaded", 5, "true", Some("was not unloaded")),
    control("a module that does not load", 8, "true", Some("was not loaded")),
    control("a program that fails", 0, "exit 3", Some("ended with status 3")),
    control("a program that crashes", 0, "kill -SEGV $$", Some("ended by signal 11")),
    control("a program that hangs", 0, "sleep 1000", Some("did not end in its time")),
    Control { debug_only: true, ..control("a use after free", 6, "true", Some("KASAN: ")) },
    Control { debug_only: true, ..control("a lock inversion", 7, "true", Some("possible circular locking")) },
];

pub fn run(args: &Args) -> Result<Verdict> {
    let flavor = args.flavor.flavor();
    if let Some(only) = &args.only {
        let findings = sabotage::run(flavor, only)?;
        return Ok(match findings.is_empty() {
            true => Verdict::Clean(format!("the driver broken by {only}: every fault was noticed")),
            false => Verdict::Findings(findings),
        });
    }
    let parts = Parts::build(flavor, Module::Probe, &[])?;
    let mut findings = Vec::new();
    let mut booted = 0;
    for control in CONTROLS.iter().filter(|control| !control.debug_only || flavor == Flavor::Debug) {
        let found = boot(&parts, control)?;
        let noticed = match control.finding {
            None => found.is_empty(),
            Some(wanted) => found.iter().any(|finding| finding.contains(wanted)),
        };
        println!("  {}: {}", control.name, found.first().map_or("no finding", String::as_str));
        if !noticed {
            let wanted = control.finding.map_or("no finding".into(), |wanted| format!("{wanted:?}"));
            findings.push(format!("{}: {wanted} was expected, and these were found: {found:?}", control.name));
        }
        booted += 1;
    }
    findings.extend(sabotage::run(flavor, "")?);
    Ok(if findings.is_empty() {
        Verdict::Clean(format!("{booted} guests, and those of a sabotaged driver: every fault was noticed"))
    } else {
        Verdict::Findings(findings)
    })
}

fn boot(parts: &Parts, control: &Control) -> Result<Vec<String>> {
    let (initrd, mut job) = parts.guest(&format!("fault={}", control.fault))?;
    let time = parts.scaled(Duration::from_secs(2));
    job.programs.push(guest::program(&job, "a shell", "/bin/sh".into(), &["-c", control.command], time));
    let outcome = parts.boot("control", initrd, &job, Size::small(), AROUND_PROGRAMS, |_| ())?;
    Ok(verdict::findings(&outcome, &job, parts.kernel.flavor))
}
