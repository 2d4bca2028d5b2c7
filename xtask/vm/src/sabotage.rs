// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The negative controls of the scenarios in the guest: with a mechanism of the driver broken,
//! those that are about it must fail.
//!
//! A stale entry touches memory that the guest uses for something else by then, so a guest with a
//! sabotaged driver may also crash: that is noticed, too.

use std::time::Duration;

use anyhow::{ensure, Result};
use vkfd_guest::{Ending, Record, Stream};
use vkfd_sabotage::Switch;

use super::guest::{self, Parts, Size};
use super::module::Module;
use super::programs::{SCENARIOS, STRESS};
use super::{verdict, Flavor};

/// What is broken, and which scenarios must notice.
const CONTROLS: [(Option<Switch>, &[&str]); 12] = [
    (
        None,
        &[
            "coherence_discard",
            "coherence_replace_in_place",
            "coherence_warm_tlb",
            "coherence_deadline",
            "coherence_invalidated_while_registered",
            "coherence_gaps_and_neighbours",
            "coherence_only_what_is_hit",
            "svm_discarded_and_replaced_memory_is_seen_as_it_is",
            "svm_memory_that_comes_in_the_place_of_other_is_seen_at_once",
            "kernel_device_in_place",
            "kernel_device_private",
            "kernel_device_unmapped_in_part",
            "kernel_device_left_to_a_child",
            "kernel_listed_while_it_is_open",
        ],
    ),
    (Some(Switch::Invalidation), &["coherence_discard", "coherence_replace_in_place", "coherence_unmap_one_of_many"]),
    (
        Some(Switch::TlbFlush),
        &["coherence_warm_tlb", "coherence_discard", "svm_discarded_and_replaced_memory_is_seen_as_it_is"],
    ),
    // No call ever finds that anything has changed.
    (Some(Switch::GenerationCheck), &["coherence_deadline", "coherence_invalidated_while_registered"]),
    (Some(Switch::RangeEnd), &["coherence_gaps_and_neighbours", "coherence_only_what_is_hit"]),
    (
        Some(Switch::NearRanges),
        &[
            "one_to_4096_ranges_lie_in_array_order_and_both_sides_write",
            "ranges_near_each_other_are_looked_up_one_by_one_where_pages_are_missing",
        ],
    ),
    (Some(Switch::EmptyToDevice), &["kernel_device_in_place", "kernel_device_direct_io"]),
    (Some(Switch::EmptyToSystem), &["kernel_device_private", "kernel_device_unloaded"]),
    (Some(Switch::ForgetFree), &["kernel_device_unmapped_in_part"]),
    // A prefetch takes for moved what was there before.
    (Some(Switch::TellFreeLate), &["svm_memory_that_comes_in_the_place_of_other_is_seen_at_once"]),
    (Some(Switch::KeptDirectories), &["kernel_listed_while_it_is_open", "kernel_listed_until_it_is_killed"]),
    (Some(Switch::KeepOthers), &["kernel_device_left_to_a_child", "kernel_device_orphaned"]),
];

/// Which scenarios must notice that invalidations are ignored when it is the kernel that moves the
/// pages. Each has a guest of its own: what the GPU still writes to may be anything by then, also
/// what keeps the guest alive.
const BEHIND_THE_BACK: [&str; 20] = [
    "kernel_swap_under_pressure",
    "kernel_half_fits_at_once",
    "kernel_half_fits_in_turns",
    "kernel_numa_migration",
    "kernel_ksm_merge_and_unmerge",
    "kernel_ksm_written_by_the_gpu",
    "kernel_thp_collapse",
    "kernel_thp_split",
    "kernel_compaction",
    "kernel_computing_under_pressure",
    "kernel_computing_numa_migration",
    "kernel_computing_thp_collapse",
    "kernel_computing_compaction",
    "kernel_computing_ksm",
    "kernel_fork_of_a_client",
    "kernel_fork_while_the_gpu_writes",
    "kernel_protect_half",
    "kernel_replace_half",
    "kernel_remap_half",
    "kernel_device_in_place",
];

/// What the stress test must notice as well.
const STRESS_NOTICES: [Switch; 2] = [Switch::Invalidation, Switch::TlbFlush];
/// Whether threads meet what is broken is a matter of time: a broken driver may also have the test
/// wait for ever. So it may begin anew.
const ATTEMPTS: u32 = 3;

/// A scenario that waits for ever is ended.
const LIMIT: Duration = Duration::from_secs(60);
/// Those that have to fill memory take longer to find out.
const KERNEL_LIMIT: Duration = Duration::from_secs(300);

/// Boots a guest for the driver that is not broken and one for each switch whose name contains
/// `only`; what was not noticed.
pub fn run(flavor: Flavor, only: &str) -> Result<Vec<String>> {
    let wanted = |switch: Switch| switch.name().contains(only);
    let controls = CONTROLS.iter().filter(|(switch, _)| switch.is_none_or(wanted));
    ensure!(CONTROLS.iter().any(|(switch, _)| switch.is_some_and(wanted)), "{only}: no control is called that");
    let parts = Parts::build(flavor, Module::Sabotaged, &[SCENARIOS, STRESS])?;
    let mut findings = Vec::new();
    for &(switch, scenarios) in controls {
        let what = switch.map_or("no sabotage", Switch::name);
        let option = switch.map_or_else(String::new, option);
        let (mut initrd, mut job) = parts.guest_for_tests(&option)?;
        let path = initrd.add_program(parts.programs.path(SCENARIOS)?)?;
        for name in scenarios {
            let time = parts.scaled(LIMIT);
            job.programs.push(guest::program(&job, name, path.clone(), &["run", "--json", name], time));
        }
        let mut passed: Vec<&str> = Vec::new();
        let record = |record: &Record| {
            if let Record::Output { line, stream: Stream::Out, .. } = record {
                let is_passed = line.contains(r#""result":"passed""#);
                // The program runs all whose names contain it.
                let is = |name: &&&str| is_passed && line.contains(&format!(r#""name":"{name}""#));
                passed.extend(scenarios.iter().filter(is));
            }
        };
        let outcome = parts.boot("sabotage", initrd, &job, Size::default(), guest::AROUND_PROGRAMS, record)?;
        let noticed = verdict::findings(&outcome, &job, flavor);
        println!("  {what}: passed {passed:?}; {}", noticed.first().map_or("no finding", String::as_str));
        if switch.is_none() && (passed.len() != scenarios.len() || !noticed.is_empty()) {
            findings.push(format!("{what}: only {passed:?} have passed, findings: {noticed:?}"));
        }
        if switch.is_some() && !passed.is_empty() {
            findings.push(format!("{what}: {passed:?} have passed all the same"));
        }
        // That is the module's answer to a name that it does not know.
        if noticed.iter().any(|finding| finding.contains("was not loaded")) {
            findings.push(format!("{what}: the module was not loaded, so nothing was broken"));
        }
        if switch.is_some() && noticed.is_empty() {
            findings.push(format!("{what}: nothing was found"));
        }
    }
    for name in BEHIND_THE_BACK.iter().filter(|_| wanted(Switch::Invalidation)) {
        findings.extend(behind_the_back(&parts, flavor, name)?);
    }
    for switch in STRESS_NOTICES.into_iter().filter(|switch| wanted(*switch)) {
        findings.extend(under_stress(&parts, flavor, switch)?);
    }
    Ok(findings)
}

/// The module's parameter that turns a switch on.
fn option(switch: Switch) -> String {
    format!("sabotage={}", switch.name())
}

/// Runs one of [`BEHIND_THE_BACK`] with invalidations ignored. It has noticed if it fails or
/// crashes, or if the kernel complains; not if it does not come to an end.
fn behind_the_back(parts: &Parts, flavor: Flavor, name: &str) -> Result<Option<String>> {
    let (mut initrd, mut job) = parts.guest_for_tests(&option(Switch::Invalidation))?;
    job.swap_mib = Size::default().memory_mib() / 2;
    let path = initrd.add_program(parts.programs.path(SCENARIOS)?)?;
    let time = parts.scaled(KERNEL_LIMIT);
    job.programs.push(guest::program(&job, name, path, &["run", "--json", name], time));
    let result = format!(r#""name":"{name}","result":"failed""#);
    let mut failed = None;
    let record = |record: &Record| match record {
        Record::Output { line, stream: Stream::Out, .. } if line.contains(&result) => failed = Some(line.clone()),
        _ => {}
    };
    let outcome = parts.boot("sabotage", initrd, &job, Size::default(), guest::AROUND_PROGRAMS, record)?;
    let crashed = outcome.records.iter().find_map(|record| match record {
        Record::Ended { ending: Ending::Signal(signal), .. } => Some(format!("{name}: signal {signal}")),
        _ => None,
    });
    let noticed = failed.or_else(|| verdict::complaint(&outcome)).or(crashed);
    println!("  driver.invalidation: {}", noticed.as_deref().unwrap_or(name));
    Ok(noticed.is_none().then(|| {
        let found = verdict::findings(&outcome, &job, flavor);
        format!("driver.invalidation: {name} has not noticed; findings: {found:?}")
    }))
}

/// Runs the stress test on a broken driver, until it has noticed.
fn under_stress(parts: &Parts, flavor: Flavor, switch: Switch) -> Result<Option<String>> {
    let mut finding = None;
    for _ in 0..ATTEMPTS {
        finding = one_stress(parts, flavor, switch)?;
        if finding.is_none() {
            break;
        }
    }
    Ok(finding)
}

/// Runs the stress test once. It has noticed if it says so, or if the kernel complains.
fn one_stress(parts: &Parts, flavor: Flavor, switch: Switch) -> Result<Option<String>> {
    let (mut initrd, mut job) = parts.guest_for_tests(&option(switch))?;
    let path = initrd.add_program(parts.programs.path(STRESS)?)?;
    let arguments = ["--no-failures", "--seconds", "120", "--trips", "0"];
    job.programs.push(guest::program(&job, STRESS.name, path, &arguments, parts.scaled(KERNEL_LIMIT)));
    let mut said = None;
    let record = |record: &Record| match record {
        Record::Output { line, .. } if line.contains("something else in page") => {
            said.get_or_insert_with(|| line.clone());
        }
        _ => {}
    };
    let outcome = parts.boot("sabotage", initrd, &job, Size::default().with_gpus(2), guest::AROUND_PROGRAMS, record)?;
    let noticed = said.or_else(|| verdict::complaint(&outcome));
    println!("  {}: the stress test: {}", switch.name(), noticed.as_deref().unwrap_or("nothing"));
    Ok(noticed.is_none().then(|| {
        let found = verdict::findings(&outcome, &job, flavor);
        format!("{}: the stress test has not noticed; findings: {found:?}", switch.name())
    }))
}
