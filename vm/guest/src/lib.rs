// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the host tells the guest's first process to do, and what that reports.
//!
//! Mechanism: the host writes a [`Job`] as JSON into the initrd at [`JOB_FILE`]. The guest writes
//! [`Record`]s as JSON, one a line, to the virtio-serial port named [`REPORT_PORT`]. The console
//! carries the kernel's log and nothing that is read by a machine.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the job is in the initrd.
pub const JOB_FILE: &str = "/vkfd/job.json";

/// The name of the virtio-serial port that takes the records.
pub const REPORT_PORT: &str = "vkfd.report";

/// What a boot is for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Job {
    /// Loaded in this order after the set-up, unloaded in reverse before the end.
    pub modules: Vec<Module>,
    /// Run one after the other, each whatever the others' ends were.
    pub programs: Vec<Program>,
    /// Size of a compressed swap device in memory, in MiB; 0 for none.
    pub swap_mib: u64,
    /// All programs' equal pages are merged (KSM).
    #[serde(default)]
    pub merge: bool,
    /// A shell on the console after the programs.
    pub shell: bool,
    /// Mount tag of a directory of the host that appears read-only as /host.
    pub share: Option<String>,
}

/// A kernel module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Module {
    /// As the kernel calls it.
    pub name: String,
    /// In the guest.
    pub file: PathBuf,
    /// `name=value`, separated by spaces.
    pub parameters: String,
    /// It is not unloaded at the end.
    #[serde(default)]
    pub stays: bool,
}

/// A program to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    /// What records call it.
    pub name: String,
    /// The program's path in the guest and its arguments.
    pub argv: Vec<String>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    /// Killed after so many seconds.
    pub seconds: u64,
}

/// What happened in the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Record {
    /// The first process runs and file systems are mounted.
    Booted {
        /// The kernel's release.
        release: String,
    },
    /// The guest could not be set up; nothing follows.
    Broken { error: String },
    /// A module was loaded, or not.
    Loaded {
        /// Its name.
        module: String,
        /// Why not.
        error: Option<String>,
    },
    /// A program begins.
    Started {
        /// Its name.
        program: String,
    },
    /// A line of a program's output.
    Output {
        /// The program's name.
        program: String,
        /// Which of its two outputs.
        stream: Stream,
        /// Without the line feed; what is not UTF-8 is replaced.
        line: String,
    },
    /// A program has ended.
    Ended {
        /// Its name.
        program: String,
        ending: Ending,
        /// How long it ran.
        seconds: f64,
    },
    /// A module was unloaded, or not.
    Unloaded {
        /// Its name.
        module: String,
        /// Why not.
        error: Option<String>,
    },
    /// Allocations that were not there before the modules were loaded, and still are after their
    /// unloading.
    Left {
        /// The line of the kernel's source that made them, as in /proc/allocinfo.
        site: String,
        /// Bytes more than before.
        bytes: i64,
        /// Allocations more than before.
        calls: i64,
    },
    /// Lockdep's own state at the end, where the kernel has it.
    Lockdep {
        /// Whether it was still checking.
        on: bool,
    },
    /// All is done; the guest powers off.
    Finished,
}

/// One of a program's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// By itself, with this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// It could not be started.
    NotStarted(String),
    /// It was killed at its time limit.
    TimedOut,
    /// It was killed at its time limit and did not even die of that.
    Stuck,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Status(status) => write!(f, "ended with status {status}"),
            Ending::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Ending::NotStarted(error) => write!(f, "could not be started: {error}"),
            Ending::TimedOut => write!(f, "did not end in its time"),
            Ending::Stuck => write!(f, "did not end in its time and could not be killed: it hangs in the kernel"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_single_lines_that_can_be_read_back() {
        let records = [
            Record::Booted { release: "7.3".into() },
            Record::Output { program: "a".into(), stream: Stream::Err, line: "two\nlines\u{0}".into() },
            Record::Ended { program: "a".into(), ending: Ending::Signal(9), seconds: 0.5 },
            Record::Left { site: "rust/helpers/slab.c:9".into(), bytes: -8, calls: -1 },
            Record::Finished,
        ];
        for record in records {
            let line = serde_json::to_string(&record).expect("JSON");
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Record>(&line).expect("a record"), record);
        }
    }
}
