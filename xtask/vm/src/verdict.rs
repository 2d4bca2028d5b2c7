// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is wrong with a boot.
//!
//! A boot is good if it was complete, if everything that was to happen has happened, and if the
//! kernel complained of nothing. Whatever is not known to be good is a finding: a report that
//! breaks off, a log that is empty, a check that was off.

use vkfd_guest::{Ending, Job, Record};

use super::boot::{End, Outcome};
use super::kernel_log;
use super::progress::minutes;
use super::Flavor;

/// More signs in one log add nothing.
const SIGNS_SHOWN: usize = 8;

/// Lines of the log that are printed with the first of them.
const SHOWN_AROUND: usize = 60;

/// What is wrong, in the order of its weight; empty for a good boot.
pub fn findings(outcome: &Outcome, job: &Job, flavor: Flavor) -> Vec<String> {
    let mut findings = Vec::new();
    let log = &outcome.console;
    let signs = kernel_log::signs(log);
    for sign in signs.iter().take(SIGNS_SHOWN) {
        findings.push(format!("{}:{}: {}: {}", outcome.console_path.display(), sign.line, sign.meaning, sign.text));
    }
    if signs.len() > SIGNS_SHOWN {
        findings.push(format!(
            "{}: {} more lines like these",
            outcome.console_path.display(),
            signs.len() - SIGNS_SHOWN
        ));
    }
    if !kernel_log::is_log(log) {
        let complaints = outcome.complaints.trim();
        findings.push(format!(
            "the kernel has not begun to boot{}{complaints}",
            if complaints.is_empty() { "" } else { "; QEMU says: " }
        ));
    }
    findings.extend(outcome.gpu_troubles.iter().cloned());
    findings.extend(ending(outcome));
    findings.extend(
        outcome.garbled.iter().map(|line| format!("the guest's report has a line that is no record: {line:?}")),
    );
    findings.extend(outcome.records.iter().filter_map(in_record));
    findings.extend(missing(outcome, job));
    if flavor == Flavor::Debug && kernel_log::is_log(log) {
        for (sign, check) in [("KernelAddressSanitizer initialized", "KASAN"), ("Lock dependency validator", "lockdep")]
        {
            if !log.contains(sign) {
                findings.push(format!("the sanitizer kernel's {check} was off"));
            }
        }
    }
    findings
}

/// Prints the place in the kernel's log where it first complains, if it does.
pub fn show_first_sign(outcome: &Outcome) {
    if let Some(sign) = kernel_log::signs(&outcome.console).first() {
        println!("\n{}\n", kernel_log::excerpt(&outcome.console, sign, SHOWN_AROUND));
    }
}

/// What the kernel first complains of.
pub fn complaint(outcome: &Outcome) -> Option<String> {
    kernel_log::signs(&outcome.console).into_iter().next().map(|sign| sign.text)
}

fn ending(outcome: &Outcome) -> Option<String> {
    match outcome.end {
        End::TimedOut(limit) => Some(format!(
            "the guest was switched off after {}; the last it reported was {}",
            minutes(limit),
            last_words(outcome)
        )),
        End::Exited(status) if !status.success() => {
            Some(format!("QEMU ended with {status}: {}", outcome.complaints.trim()))
        }
        End::Exited(_) if outcome.records.last() != Some(&Record::Finished) => {
            Some(format!("the guest ended before it was done; the last it reported was {}", last_words(outcome)))
        }
        End::Exited(_) => None,
    }
}

fn last_words(outcome: &Outcome) -> String {
    match outcome.records.last() {
        None => "nothing".into(),
        Some(Record::Booted { .. }) => "that it has booted".into(),
        Some(Record::Loaded { module, .. }) => format!("the loading of {module}"),
        Some(Record::Started { program }) => format!("the start of {program}"),
        Some(Record::Output { program, line, .. }) => format!("by {program}: {line}"),
        Some(Record::Ended { program, .. }) => format!("the end of {program}"),
        Some(Record::Unloaded { module, .. }) => format!("the unloading of {module}"),
        Some(Record::Left { .. } | Record::Lockdep { .. }) => "the checks after the unloading".into(),
        Some(Record::Broken { .. } | Record::Finished) => "its end".into(),
    }
}

fn in_record(record: &Record) -> Option<String> {
    match record {
        Record::Broken { error } => Some(format!("the guest could not go on: {error}")),
        Record::Loaded { module, error: Some(error) } => Some(format!("{module} was not loaded: {error}")),
        Record::Unloaded { module, error: Some(error) } => Some(format!("{module} was not unloaded: {error}")),
        Record::Ended { program, ending, .. } if *ending != Ending::Status(0) => Some(format!("{program} {ending}")),
        Record::Left { site, bytes, calls } => {
            Some(format!("leak: {calls} allocations ({bytes} bytes) of {site} are left after the unloading"))
        }
        Record::Lockdep { on: false } => {
            Some("lockdep has switched itself off during the run: what came later was not checked".into())
        }
        _ => None,
    }
}

/// What the job wanted and no record speaks of.
fn missing(outcome: &Outcome, job: &Job) -> Vec<String> {
    let records = &outcome.records;
    let mut missing = Vec::new();
    for module in &job.modules {
        if !records.iter().any(|record| matches!(record, Record::Loaded { module: name, .. } if *name == module.name)) {
            missing.push(format!("{} was not loaded", module.name));
        }
        if !module.stays
            && !records
                .iter()
                .any(|record| matches!(record, Record::Unloaded { module: name, .. } if *name == module.name))
        {
            missing.push(format!("{} was not unloaded", module.name));
        }
    }
    for program in &job.programs {
        if !records.iter().any(|record| matches!(record, Record::Ended { program: name, .. } if *name == program.name))
        {
            missing.push(format!("{} did not come to an end", program.name));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    use vkfd_guest::{Module, Program};

    use super::*;

    fn job() -> Job {
        let module =
            Module { name: "vkfd".into(), file: "/vkfd/vkfd.ko".into(), parameters: String::new(), stays: false };
        let program = Program { name: "suite".into(), argv: vec!["/bin/suite".into()], env: Vec::new(), seconds: 1 };
        Job { modules: vec![module], programs: vec![program], ..Job::default() }
    }

    fn good() -> Outcome {
        Outcome {
            end: End::Exited(ExitStatus::from_raw(0)),
            records: vec![
                Record::Booted { release: "7.3".into() },
                Record::Loaded { module: "vkfd".into(), error: None },
                Record::Started { program: "suite".into() },
                Record::Ended { program: "suite".into(), ending: Ending::Status(0), seconds: 0.1 },
                Record::Unloaded { module: "vkfd".into(), error: None },
                Record::Finished,
            ],
            garbled: Vec::new(),
            console: "[    0.0] Linux version 7.3\n[    1.0] reboot: Power down\n".into(),
            console_path: "console.log".into(),
            complaints: String::new(),
            gpu_troubles: Vec::new(),
            took: Duration::from_secs(1),
        }
    }

    /// The findings of a good boot after `change`.
    fn after(change: impl FnOnce(&mut Outcome)) -> String {
        let mut outcome = good();
        change(&mut outcome);
        findings(&outcome, &job(), Flavor::Plain).join("\n")
    }

    #[test]
    fn a_good_boot_has_no_findings() {
        assert_eq!(after(|_| ()), "");
    }

    #[test]
    fn whatever_is_wrong_is_found() {
        assert!(after(|o| o.console += "[    1.1] WARNING: a.rs:1\n").contains("console.log:3: warning: "));
        assert!(after(|o| o.console.clear()).contains("not begun to boot"));
        assert!(after(|o| o.end = End::TimedOut(Duration::from_secs(61))).contains("switched off after 1 min 01 s"));
        assert!(after(|o| o.end = End::Exited(ExitStatus::from_raw(256))).contains("QEMU ended"));
        assert!(after(|o| o.gpu_troubles.push("the GPU process has ended".into())).contains("GPU process"));
        assert!(after(|o| o.garbled.push("{".into())).contains("no record"));
        assert!(after(|o| o.records.insert(5, Record::Lockdep { on: false })).contains("lockdep"));
        assert!(after(|o| o
            .records
            .insert(5, Record::Left { site: "rust/helpers/slab.c".into(), bytes: 8, calls: 1 }))
        .contains("leak: 1 "));
        assert!(after(|o| o.records[4] = Record::Unloaded { module: "vkfd".into(), error: Some("busy".into()) })
            .contains("busy"));
    }

    #[test]
    fn every_bad_end_of_a_program_is_found() {
        let bad = [
            Ending::Status(1),
            Ending::Signal(11),
            Ending::NotStarted("absent".into()),
            Ending::TimedOut,
            Ending::Stuck,
        ];
        for ending in bad {
            let text = ending.to_string();
            assert!(after(|o| o.records[3] = Record::Ended { program: "suite".into(), ending, seconds: 1.0 })
                .contains(&text));
        }
    }

    #[test]
    fn a_report_that_breaks_off_anywhere_is_found() {
        for length in 0..good().records.len() {
            let text = after(|outcome| outcome.records.truncate(length));
            assert!(text.contains("before it was done"), "{length} records: {text:?}");
        }
        for (gone, what) in
            [(1, "vkfd was not loaded"), (3, "suite did not come to an end"), (4, "vkfd was not unloaded")]
        {
            assert!(after(|outcome| drop(outcome.records.remove(gone))).contains(what));
        }
    }

    #[test]
    fn the_sanitizer_kernel_must_have_its_sanitizers() {
        let text = findings(&good(), &job(), Flavor::Debug).join("\n");
        assert!(text.contains("KASAN was off") && text.contains("lockdep was off"), "{text}");
    }
}
