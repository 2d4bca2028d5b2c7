// SPDX-License-Identifier: GPL-2.0 OR MIT
//! When kernels and copies ran, and what the driver reported meanwhile.
//!
//! One [`Timeline`] may serve several GPUs. Each [`Record`] is one line of a file, which `vkfd run`
//! reads when the program has ended. A line is formatted on the stack and written by one system
//! call: the driver reports events from invalidations, where nothing may be allocated or waited
//! for. There are no locks. A forked child writes nothing.
//!
//! Limit: the file has at most [`MOST_BYTES`]; later records are counted.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::base::clock;
use crate::raw::memory_file;

/// Bytes of a file.
pub const MOST_BYTES: u64 = 256 << 20;
/// Bytes of a line.
const LINE: usize = 512;
/// Bytes of a kernel's name in it: names of templates have thousands.
const NAME: usize = 320;

/// A queue: its GPU by index, and the queue's number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Track {
    pub gpu: usize,
    pub queue: u32,
}

/// When something began and ended, in nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub begun: u64,
    pub ended: u64,
}

impl Span {
    /// From `begun` until now.
    pub(crate) fn since(begun: u64) -> Span {
        Span { begun, ended: clock::nanoseconds() }
    }
}

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A kernel ran.
    Kernel { track: Track, span: Span, groups: u64, waves: u64, instructions: u64, name: &'a str },
    /// An SDMA packet copied, filled or wrote memory.
    Copy { track: Track, span: Span, bytes: u64, what: &'a str },
    /// The driver reported an SMI event of a GPU in KFD's format.
    Event { gpu: usize, at: u64, line: &'a str },
    /// So many records found no room.
    LeftOut(u64),
}

/// Fields are divided by tabulators; the text is the last one.
impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |f: &mut fmt::Formatter<'_>, text: &str| {
            text.chars().try_for_each(|c| f.write_char(if c.is_control() { ' ' } else { c }))
        };
        match *self {
            Record::Kernel { track: Track { gpu, queue }, span, groups, waves, instructions, name } => {
                let Span { begun, ended } = span;
                write!(f, "kernel\t{gpu}\t{queue}\t{begun}\t{ended}\t{groups}\t{waves}\t{instructions}\t")?;
                words(f, name)
            }
            Record::Copy { track: Track { gpu, queue }, span: Span { begun, ended }, bytes, what } => {
                write!(f, "copy\t{gpu}\t{queue}\t{begun}\t{ended}\t{bytes}\t{what}")
            }
            Record::Event { gpu, at, line } => {
                write!(f, "event\t{gpu}\t{at}\t")?;
                words(f, line.trim_end())
            }
            Record::LeftOut(records) => write!(f, "left out\t{records}"),
        }
    }
}

/// A line that is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no line of a timeline")]
pub struct BadRecord(String);

impl<'a> Record<'a> {
    /// The record of a line.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &'a str) -> Result<Record<'a>, BadRecord> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| BadRecord(text.to_owned()));
        let gpu = |text: &str| text.parse::<usize>().map_err(|_| BadRecord(text.to_owned()));
        let queue = |text: &str| text.parse::<u32>().map_err(|_| BadRecord(text.to_owned()));
        let fields: Vec<&str> = text.splitn(9, '\t').collect();
        Ok(match fields[..] {
            ["kernel", on, of, begun, ended, groups, waves, instructions, name] => Record::Kernel {
                track: Track { gpu: gpu(on)?, queue: queue(of)? },
                span: Span { begun: number(begun)?, ended: number(ended)? },
                groups: number(groups)?,
                waves: number(waves)?,
                instructions: number(instructions)?,
                name,
            },
            ["copy", on, of, begun, ended, bytes, what] => Record::Copy {
                track: Track { gpu: gpu(on)?, queue: queue(of)? },
                span: Span { begun: number(begun)?, ended: number(ended)? },
                bytes: number(bytes)?,
                what,
            },
            ["event", on, at, line] => Record::Event { gpu: gpu(on)?, at: number(at)?, line },
            ["left out", records] => Record::LeftOut(number(records)?),
            _ => return Err(BadRecord(text.to_owned())),
        })
    }
}

/// A line on the stack, cut at its end.
struct Line {
    text: [u8; LINE],
    used: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte is the line's end.
        let room = &mut self.text[self.used..LINE - 1];
        let mut taken = room.len().min(text.len());
        while !text.is_char_boundary(taken) {
            taken -= 1;
        }
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.used += taken;
        Ok(())
    }
}

/// The file of a process.
#[derive(Debug)]
pub struct Timeline {
    file: File,
    process: u32,
    left: AtomicU64,
    left_out: AtomicU64,
}

impl Timeline {
    /// Makes the file.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: &Path) -> io::Result<Timeline> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let (left, left_out) = (AtomicU64::new(MOST_BYTES), AtomicU64::new(0));
        Ok(Timeline { file, process: std::process::id(), left, left_out })
    }

    /// Writes a record. Errors are for nobody: the program has no part in this.
    pub fn add(&self, record: Record<'_>) {
        let mut record = record;
        if let Record::Kernel { name, .. } = &mut record {
            let end = (0..=NAME.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
            *name = &name[..end.unwrap_or(0)];
        }
        let mut line = Line { text: [b'\n'; LINE], used: 0 };
        // A line takes all that is written to it.
        let _ = write!(line, "{record}");
        let bytes = line.used as u64 + 1;
        let room = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok();
        if room {
            self.write(&line.text[..=line.used]);
        } else {
            self.left_out.fetch_add(1, Relaxed);
        }
    }

    /// The driver reports an event of GPU number `gpu`.
    pub fn event(&self, gpu: usize, line: &[u8]) {
        if let Ok(line) = std::str::from_utf8(line) {
            self.add(Record::Event { gpu, at: clock::nanoseconds(), line });
        }
    }

    /// The program ends: says how many records found no room.
    pub fn end(&self) {
        let left_out = self.left_out.swap(0, Relaxed);
        if left_out != 0 {
            self.write(format!("{}\n", Record::LeftOut(left_out)).as_bytes());
        }
    }

    fn write(&self, text: &[u8]) {
        if std::process::id() == self.process {
            // A full disk is no reason to fail what is recorded.
            let _ = memory_file::without_size_signal(|| (&self.file).write_all(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACK: Track = Track { gpu: 1, queue: 7 };
    const SPAN: Span = Span { begun: 10, ended: 25 };

    #[test]
    fn what_is_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("4711");
        let timeline = Timeline::create(&path).unwrap();
        let kernel = |name| Record::Kernel { track: TRACK, span: SPAN, groups: 2, waves: 3, instructions: 4, name };
        let records = [
            kernel("void f<int>(int *)"),
            kernel(""),
            Record::Copy { track: TRACK, span: SPAN, bytes: 4096, what: "copy" },
            Record::Event { gpu: 0, at: 12, line: "9 123 -77 5 0" },
        ];
        records.iter().for_each(|record| timeline.add(*record));
        timeline.event(1, b"1 4d:task\n");
        // A name's line breaks would be lines of the file; it is cut between characters.
        let (broken, long) = ("a\tb\n".repeat(3), "\u{e4}".repeat(1000));
        timeline.add(kernel(&broken));
        timeline.add(kernel(&long));
        let text = std::fs::read_to_string(&path).unwrap();
        let read: Vec<_> = text.lines().map(|line| Record::parse(line).unwrap()).collect();
        assert_eq!(read[..4], records);
        assert!(matches!(read[4], Record::Event { gpu: 1, at: 1.., line: "1 4d:task" }), "{:?}", read[4]);
        assert_eq!(read[5], kernel("a b a b a b "));
        assert_eq!(read[6], kernel(&long[..NAME]));
        for bad in ["", "kernel\t1", "copy\t0\t0\t1\t2\tmany\tcopy", "event\t0\tnow\tx", "left out\tx"] {
            assert!(Record::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("4711");
        let timeline = Timeline::create(&path).unwrap();
        timeline.left.store(100, Relaxed);
        for _ in 0..10 {
            timeline.add(Record::Copy { track: TRACK, span: SPAN, bytes: 1, what: "fill" });
        }
        timeline.end();
        let text = std::fs::read_to_string(&path).unwrap();
        let copies = text.lines().filter(|line| line.starts_with("copy")).count();
        assert!((1..10).contains(&copies) && text.len() < 130, "{text}");
        assert_eq!(Record::parse(text.lines().last().unwrap()).unwrap(), Record::LeftOut(10 - copies as u64));
    }
}
