// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask abi`: does `vkfd-uapi` agree with AMD's header?
//!
//! Mechanism: [`table`] lists facts (sizes, offsets, command words, constants) with Rust's values.
//! [`probe`] has a C program print the header's values, and [`compare`] puts both side by side. A
//! fact has the minor version of the interface that it holds from, so an older header is not a
//! failure.

mod probe;
mod table;

use std::fmt;
use std::path::PathBuf;

use probe::{Measured, Probe};
use xtask_base::{tree, Verdict};

/// Compare vkfd-uapi with the system's linux/kfd_ioctl.h
///
/// Writes a C program to target/abi that includes the header, compiles it with cc (or $CC) and runs
/// it. Its output is compared with the same list from Rust: sizes of structures, offsets and sizes
/// of fields, command words, constants.
///
/// What is newer than the header's KFD_IOCTL_MINOR_VERSION is reported as "not in this header" and
/// is not a difference. Needs a C compiler and the kernel's headers for user space (Debian: gcc,
/// linux-libc-dev).
///
/// Exit status: 0 equal, 1 differences (each with both values), 2 cannot check.
#[derive(clap::Args)]
pub struct Args {
    /// Compare with this header instead of <linux/kfd_ioctl.h>
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// List every fact that is not in this header
    #[arg(long)]
    absent: bool,
}

/// One thing that Rust and C must agree on.
#[derive(Clone, Debug)]
struct Fact {
    /// What it is, for messages.
    name: String,
    /// The C expression for it.
    expression: String,
    /// How C can tell whether the header has it.
    presence: Presence,
    /// A minor version of the interface that certainly has it.
    since: u32,
    /// The minor version from which it is different.
    until: Option<u32>,
    /// The value in Rust.
    ours: u64,
}

/// How to tell whether a header has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// The expression is a macro: ask with `defined`.
    Macro,
    /// A structure or an enumerator: only the header's version tells.
    Version,
}

/// The outcome of a comparison.
#[derive(Debug, Default)]
struct Report {
    equal: usize,
    differences: Vec<String>,
    absent: Vec<String>,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let header = args.header.as_deref().map(std::path::absolute).transpose()?;
    let probe = Probe { directory: tree::target().join("abi"), header };
    let facts = table::facts();
    let (minor, measured) = probe.measure(&facts)?;
    let report = compare(&facts, &measured);
    if args.absent {
        for line in &report.absent {
            println!("{line}");
        }
    }
    if report.differences.is_empty() {
        Ok(Verdict::Clean(format!("interface 1.{minor}: {report}")))
    } else {
        Ok(Verdict::Findings(report.differences))
    }
}

fn compare(facts: &[Fact], measured: &[Measured]) -> Report {
    let mut report = Report::default();
    for (fact, measured) in facts.iter().zip(measured) {
        let Fact { name, ours, .. } = fact;
        match *measured {
            Measured::Value(theirs) if theirs == *ours => report.equal += 1,
            Measured::Value(theirs) => {
                report
                    .differences
                    .push(format!("{name}: vkfd-uapi has {ours:#x} ({ours}), the header {theirs:#x} ({theirs})"));
            }
            Measured::Missing => report.differences.push(format!(
                "{name}: vkfd-uapi has {ours:#x} ({ours}), the header nothing (interface 1.{} should)",
                fact.since
            )),
            Measured::Newer => report.absent.push(format!("{name}: not in this header (since 1.{})", fact.since)),
            Measured::Replaced => {
                let until = fact.until.unwrap_or_default();
                report.absent.push(format!("{name}: not in this header (until 1.{until})"));
            }
        }
    }
    report
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { equal, differences, absent } = self;
        write!(f, "{equal} equal, {} different, {} not in this header", differences.len(), absent.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, fs, process};

    /// A header of interface 1.11 with one structure, one macro and one enumerator.
    const HEADER: &str = "#include <linux/types.h>\n\
        #define KFD_IOCTL_MINOR_VERSION 11\n\
        struct sample { __u64 wide; __u32 narrow; __u32 pad; };\n\
        #define SAMPLE_FLAG (1 << 31)\n\
        enum { SAMPLE_OP = 3 };\n";

    fn fact(name: &str, presence: Presence, since: u32, ours: u64) -> Fact {
        Fact { name: name.into(), expression: name.into(), presence, since, until: None, ours }
    }

    /// Compiles `HEADER` for real and compares `facts` with it.
    fn compare_with_header(test: &str, facts: &[Fact]) -> Report {
        let directory = env::temp_dir().join(format!("vkfd-abi-{}-{test}", process::id()));
        fs::create_dir_all(&directory).unwrap();
        let header = directory.join("sample.h");
        fs::write(&header, HEADER).unwrap();
        let probe = Probe { directory: directory.clone(), header: Some(header) };
        let (minor, measured) = probe.measure(facts).unwrap();
        fs::remove_dir_all(directory).unwrap();
        assert_eq!(minor, 11);
        compare(facts, &measured)
    }

    #[test]
    fn right_values_are_equal() {
        let report = compare_with_header(
            "right",
            &[
                fact("sizeof(struct sample)", Presence::Version, 1, 16),
                fact("offsetof(struct sample, narrow)", Presence::Version, 1, 8),
                fact("SAMPLE_FLAG", Presence::Macro, 1, 1 << 31),
                fact("SAMPLE_OP", Presence::Version, 1, 3),
            ],
        );
        assert_eq!(report.equal, 4);
        assert!(report.differences.is_empty() && report.absent.is_empty());
    }

    #[test]
    fn each_wrong_value_is_reported_with_both_values() {
        let report = compare_with_header(
            "wrong",
            &[
                fact("sizeof(struct sample)", Presence::Version, 1, 24),
                fact("offsetof(struct sample, narrow)", Presence::Version, 1, 12),
                fact("SAMPLE_FLAG", Presence::Macro, 1, 1 << 30),
                fact("SAMPLE_OP", Presence::Version, 1, 4),
            ],
        );
        assert_eq!(report.equal, 0);
        assert_eq!(report.differences.len(), 4);
        assert_eq!(report.differences[0], "sizeof(struct sample): vkfd-uapi has 0x18 (24), the header 0x10 (16)");
    }

    #[test]
    fn a_missing_macro_is_a_difference_only_when_the_version_should_have_it() {
        let report = compare_with_header(
            "missing",
            &[fact("SAMPLE_OLD", Presence::Macro, 9, 1), fact("SAMPLE_NEW", Presence::Macro, 12, 1)],
        );
        assert_eq!(report.differences.len(), 1);
        assert!(report.differences[0].starts_with("SAMPLE_OLD: "));
        assert_eq!(report.absent, ["SAMPLE_NEW: not in this header (since 1.12)"]);
    }

    #[test]
    fn what_the_header_has_ahead_of_its_version_is_compared() {
        let report = compare_with_header("ahead", &[fact("SAMPLE_FLAG", Presence::Macro, 99, 0)]);
        assert_eq!(report.differences.len(), 1);
    }

    #[test]
    fn replaced_forms_are_not_compared() {
        let mut old = fact("sizeof(struct sample)", Presence::Version, 1, 8);
        old.until = Some(11);
        let report = compare_with_header("replaced", &[old]);
        assert!(report.differences.is_empty());
        assert_eq!(report.absent, ["sizeof(struct sample): not in this header (until 1.11)"]);
    }

    #[test]
    fn a_header_that_is_not_there_cannot_be_checked() {
        let directory = env::temp_dir().join(format!("vkfd-abi-{}-absent", process::id()));
        let header = Some(directory.join("no-such-header.h"));
        let error = Probe { directory: directory.clone(), header }.measure(&[]).unwrap_err();
        fs::remove_dir_all(directory).unwrap();
        assert!(error.to_string().contains("linux-libc-dev"), "{error:#}");
    }

    #[test]
    fn each_form_of_create_queue_belongs_to_its_versions() {
        let facts = table::facts();
        let forms: Vec<_> = facts.iter().filter(|fact| fact.name == "AMDKFD_IOC_CREATE_QUEUE").collect();
        assert_eq!(forms.len(), 2);
        assert_eq!((forms[0].presence, forms[0].until, forms[0].ours), (Presence::Macro, Some(17), 0xc058_4b02));
        assert_eq!((forms[1].presence, forms[1].since, forms[1].ours), (Presence::Version, 17, 0xc060_4b02));
    }

    #[test]
    fn names_are_unique_within_a_version() {
        let facts = table::facts();
        for (index, fact) in facts.iter().enumerate() {
            let clash = facts[..index]
                .iter()
                .find(|other| other.name == fact.name && other.until.is_none_or(|until| until > fact.since));
            assert!(clash.is_none(), "{} is listed twice", fact.name);
        }
    }
}
