// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What happened when (`--timeline`), as a file for <https://ui.perfetto.dev> and other readers of
//! Chrome's trace event format. `cargo xtask browser --timeline` looks at a file in Perfetto.
//!
//! The library writes a file of [`Record`]s for each process into a directory, and one of all calls
//! beside them. When the program has ended, this reads the files and writes the timeline.
//!
//! | process in the timeline | its rows |
//! | --- | --- |
//! | calls on the devices | threads of the program |
//! | a GPU of a process | queues, with kernels or copies; page faults, migrations, evictions, unmaps |
//!
//! Faults and migrations may overlap, but no two spans of a row do. A span that begins while
//! another is on its row has a row of its own below. The format also has pairs of begin and end for
//! such spans, which Perfetto shows outside their GPU.
//!
//! Complexity: O(records), times the spans that overlap on a row; the files are in memory, at most
//! 256 MiB for each process.

mod event;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{json, Value};
use vkfd_gpu::{Record, Span, Track};

use self::event::Event;

/// The file of calls in the directory.
pub(super) const CALLS: &str = "calls";

/// The row of a GPU's queue 0. Perfetto takes a row 0 for the one with its process's number, and
/// shows both as one.
const QUEUES: u32 = 1000;
/// Rows of a GPU that are no queues, and that queues never reach. Perfetto shows a row's number
/// behind its name, so these are short.
const FAULTS: u32 = 1_000_001;
const MIGRATIONS: u32 = 1_000_002;
const EVICTIONS: u32 = 1_000_003;
const UNMAPS: u32 = 1_000_004;
/// From a row to the one for spans that overlap it.
const BELOW: u32 = 10;

/// The process of the calls in the timeline; GPUs come after it.
const CALLS_PROCESS: u32 = 1;

/// What was recorded.
pub(super) struct Recorded {
    /// Lines by process.
    processes: BTreeMap<u32, String>,
    /// Objects of [`CALLS`].
    calls: Vec<Call>,
}

struct Call {
    thread: u64,
    span: Span,
    name: String,
    args: Value,
}

impl Call {
    fn parse(line: &str) -> Option<Call> {
        let value: Value = serde_json::from_str(line).ok()?;
        let time = |name, seconds: f64| {
            let time = Duration::try_from_secs_f64(value.get(name)?.as_f64()? * seconds).ok()?;
            u64::try_from(time.as_nanos()).ok()
        };
        let (begun, took) = (time("time", 1.0)?, time("microseconds", 1e-6)?);
        Some(Call {
            thread: value.get("thread")?.as_u64()?,
            span: Span { begun, ended: begun + took },
            name: value.get("call")?.as_str()?.to_owned(),
            args: json!({
                "device": value.get("device"), "arguments": value.get("arguments"),
                "result": value.get("result"), "changed": value.get("changed"),
            }),
        })
    }
}

/// Sums for people.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub kernels: u64,
    pub copies: u64,
    pub bytes_copied: u64,
    pub calls: u64,
    pub failed_calls: u64,
    pub faults_served: u64,
    pub faults: u64,
    pub migrations: u64,
    pub pages_migrated: u64,
    pub evictions: u64,
    pub restores: u64,
    pub invalidations: u64,
    /// Records that found no room.
    pub left_out: u64,
}

impl Recorded {
    /// Reads what the processes of a run have written.
    pub(super) fn read(directory: &Path) -> io::Result<Recorded> {
        let mut recorded = Recorded { processes: BTreeMap::new(), calls: Vec::new() };
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let text = || fs::read(entry.path()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            if name == CALLS {
                // The last line is cut if the program was killed while it wrote.
                recorded.calls = text()?.lines().filter_map(Call::parse).collect();
            } else if let Some(process) = name.to_str().and_then(|name| name.parse().ok()) {
                recorded.processes.insert(process, text()?);
            }
        }
        Ok(recorded)
    }

    /// All records; a line that was cut is none.
    fn records(&self) -> impl Iterator<Item = (u32, Record<'_>)> {
        let lines = self.processes.iter().flat_map(|(process, text)| text.lines().map(|line| (*process, line)));
        lines.filter_map(|(process, line)| Some((process, Record::parse(line).ok()?)))
    }

    /// The sums of everything.
    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums { calls: self.calls.len() as u64, ..Sums::default() };
        sums.failed_calls = self.calls.iter().filter(|call| call.args["result"] != "ok").count() as u64;
        for (_, record) in self.records() {
            match record {
                Record::Kernel { .. } => sums.kernels += 1,
                Record::Copy { bytes, .. } => {
                    sums.copies += 1;
                    sums.bytes_copied += bytes;
                }
                Record::LeftOut(records) => sums.left_out += records,
                Record::Event { line, .. } => match Event::parse(line) {
                    Some(Event::VmFault) => sums.faults += 1,
                    Some(Event::FaultEnd { .. }) => sums.faults_served += 1,
                    Some(Event::MigrateStart { pages, .. }) => {
                        sums.migrations += 1;
                        sums.pages_migrated += pages;
                    }
                    Some(Event::Evicted { .. }) => sums.evictions += 1,
                    Some(Event::Restored { rescheduled: false }) => sums.restores += 1,
                    Some(Event::Unmapped { .. }) => sums.invalidations += 1,
                    Some(Event::FaultStart { .. } | Event::MigrateEnd { .. } | Event::Restored { .. }) | None => {}
                },
            }
        }
        sums
    }

    /// Writes the timeline to `path`.
    pub(super) fn write(&self, path: &Path, target: &str) -> Result<()> {
        let file = fs::File::create(path).with_context(|| format!("cannot write the timeline {}", path.display()))?;
        let mut writer = Writer { to: BufWriter::new(file), first: true, base: self.base() };
        self.write_to(&mut writer, target).with_context(|| format!("cannot write the timeline {}", path.display()))
    }

    /// When the first thing began.
    fn base(&self) -> u64 {
        let records = self.records().filter_map(|(_, record)| match record {
            Record::Kernel { span, .. } | Record::Copy { span, .. } => Some(span.begun),
            Record::Event { at, .. } => Some(at),
            Record::LeftOut(_) => None,
        });
        records.chain(self.calls.iter().map(|call| call.span.begun)).min().unwrap_or(0)
    }

    fn write_to(&self, writer: &mut Writer<impl Write>, target: &str) -> io::Result<()> {
        writer.to.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
        if !self.calls.is_empty() {
            writer.name(CALLS_PROCESS, None, "calls on the devices")?;
            for thread in self.calls.iter().map(|call| call.thread).collect::<BTreeSet<_>>() {
                writer.name(CALLS_PROCESS, Some(thread), &format!("thread {thread}"))?;
            }
        }
        for call in &self.calls {
            writer.complete(CALLS_PROCESS, call.thread, "call", &call.name, call.span, &call.args)?;
        }
        let mut gpus = Gpus::default();
        for (process, record) in self.records() {
            gpus.write(writer, process, &record, target)?;
        }
        writer.to.write_all(b"\n]}\n")?;
        writer.to.flush()
    }
}

/// The GPUs and rows that were written so far.
#[derive(Default)]
struct Gpus {
    /// Processes of the timeline, by process and GPU.
    numbers: BTreeMap<(u32, usize), u32>,
    /// Rows that have a name.
    named: BTreeSet<(u32, u32)>,
    /// Faults, migrations and evictions that have begun, by row and page.
    begun: BTreeMap<(u32, u32, u64), Begun>,
}

/// What has no end yet.
struct Begun {
    at: u64,
    args: Value,
    /// Rows below the first.
    depth: u32,
}

impl Gpus {
    fn write(
        &mut self,
        writer: &mut Writer<impl Write>,
        process: u32,
        record: &Record<'_>,
        target: &str,
    ) -> io::Result<()> {
        match *record {
            Record::Kernel { track: Track { gpu, queue }, span, groups, waves, instructions, name } => {
                let on = self.row(writer, (process, gpu), queue, "compute queue", target)?;
                let args = json!({ "work_groups": groups, "waves": waves, "instructions": instructions });
                writer.complete(on, row_of(queue).into(), "kernel", name, span, &args)
            }
            Record::Copy { track: Track { gpu, queue }, span, bytes, what } => {
                let on = self.row(writer, (process, gpu), queue, "SDMA queue", target)?;
                writer.complete(on, row_of(queue).into(), "copy", what, span, &json!({ "bytes": bytes }))
            }
            Record::Event { gpu, at, line } => match Event::parse(line) {
                Some(event) => self.event(writer, (process, gpu), at, event, target),
                None => Ok(()),
            },
            Record::LeftOut(_) => Ok(()),
        }
    }

    fn event(
        &mut self,
        writer: &mut Writer<impl Write>,
        of: (u32, usize),
        at: u64,
        event: Event,
        target: &str,
    ) -> io::Result<()> {
        let (row, name) = match event {
            Event::VmFault | Event::FaultStart { .. } | Event::FaultEnd { .. } => (FAULTS, "page faults"),
            Event::MigrateStart { .. } | Event::MigrateEnd { .. } => (MIGRATIONS, "migrations"),
            Event::Evicted { .. } | Event::Restored { .. } => (EVICTIONS, "evictions"),
            Event::Unmapped { .. } => (UNMAPS, "unmaps"),
        };
        let on = self.named_row(writer, of, row, name, target)?;
        let address = |page: u64| format!("{:#x}", page << 12);
        match event {
            Event::VmFault => writer.instant(on, row, "a fault ended a queue", at, &json!({})),
            Event::FaultStart { page, write } => {
                let args = json!({ "address": address(page), "access": if write { "write" } else { "read" } });
                self.begin((on, row, page), at, args);
                Ok(())
            }
            Event::FaultEnd { page, migrated } => {
                self.end(writer, (on, row, page), at, [name, "page fault"], ("migrated", json!(migrated)))
            }
            Event::MigrateStart { start, pages, from, to, trigger } => {
                let place = |id: u64| if id == 0 { "system memory".to_owned() } else { format!("GPU {id:#x}") };
                let args = json!({
                    "address": address(start), "bytes": pages << 12, "from": place(from), "to": place(to),
                    "reason": event::migration(trigger),
                });
                self.begin((on, row, start), at, args);
                Ok(())
            }
            Event::MigrateEnd { start, error } => {
                self.end(writer, (on, row, start), at, [name, "migration"], ("error", json!(error)))
            }
            Event::Evicted { trigger } => {
                self.begin((on, row, 0), at, json!({ "reason": event::eviction(trigger) }));
                Ok(())
            }
            Event::Restored { rescheduled: true } => writer.instant(on, row, "restore is tried again", at, &json!({})),
            Event::Restored { rescheduled: false } => {
                self.end(writer, (on, row, 0), at, [name, "queues stopped"], ("restored", json!(true)))
            }
            Event::Unmapped { start, pages, trigger } => {
                let args = json!({ "address": address(start), "bytes": pages << 12 });
                writer.instant(on, row, event::unmap(trigger), at, &args)
            }
        }
    }

    fn begin(&mut self, key: (u32, u32, u64), at: u64, args: Value) {
        let (on, row, _) = key;
        let others = self.begun.range((on, row, 0)..=(on, row, u64::MAX));
        let taken: BTreeSet<u32> = others.map(|(_, begun)| begun.depth).collect();
        let depth = (0..).find(|depth| !taken.contains(depth)).unwrap_or(0);
        self.begun.entry(key).or_insert(Begun { at, args, depth });
    }

    /// Ends what has begun. What began before the recording is left out.
    fn end(
        &mut self,
        writer: &mut Writer<impl Write>,
        key: (u32, u32, u64),
        at: u64,
        [title, name]: [&str; 2],
        (extra, value): (&str, Value),
    ) -> io::Result<()> {
        let Some(Begun { at: begun, mut args, depth }) = self.begun.remove(&key) else { return Ok(()) };
        let (on, row) = (key.0, key.1.saturating_add(depth.saturating_mul(BELOW)));
        if self.named.insert((on, row)) {
            writer.name(on, Some(row.into()), &format!("{title} ({})", depth + 1))?;
        }
        args[extra] = value;
        writer.complete(on, row.into(), "driver", name, Span { begun, ended: at }, &args)
    }

    fn row(
        &mut self,
        writer: &mut Writer<impl Write>,
        of: (u32, usize),
        queue: u32,
        kind: &str,
        target: &str,
    ) -> io::Result<u32> {
        self.named_row(writer, of, row_of(queue), &format!("{kind} {queue}"), target)
    }

    /// The process of a GPU in the timeline, whose row has a name from now on.
    fn named_row(
        &mut self,
        writer: &mut Writer<impl Write>,
        of: (u32, usize),
        row: u32,
        name: &str,
        target: &str,
    ) -> io::Result<u32> {
        let next = CALLS_PROCESS + 1 + u32::try_from(self.numbers.len()).unwrap_or(0);
        let known = self.numbers.get(&of).copied();
        let number = known.unwrap_or(next);
        if known.is_none() {
            self.numbers.insert(of, number);
            writer.name(number, None, &format!("GPU {} ({target}) of process {}", of.1, of.0))?;
        }
        if self.named.insert((number, row)) {
            writer.name(number, Some(row.into()), name)?;
        }
        Ok(number)
    }
}

fn row_of(queue: u32) -> u32 {
    queue.saturating_add(QUEUES)
}

/// Events of Chrome's format.
struct Writer<W> {
    to: W,
    first: bool,
    base: u64,
}

impl<W: Write> Writer<W> {
    fn put(&mut self, event: &Value) -> io::Result<()> {
        if !std::mem::take(&mut self.first) {
            self.to.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut self.to, event).map_err(io::Error::other)
    }

    /// Microseconds since the first thing.
    fn time(&self, at: u64) -> f64 {
        at.saturating_sub(self.base) as f64 / 1e3
    }

    /// Names a process, or a row of it.
    fn name(&mut self, process: u32, row: Option<u64>, name: &str) -> io::Result<()> {
        let what = if row.is_some() { "thread_name" } else { "process_name" };
        let args = json!({ "name": name });
        self.put(&json!({ "ph": "M", "pid": process, "tid": row.unwrap_or(0), "name": what, "args": args }))
    }

    /// Something with a begin and an end, alone on its row.
    fn complete(&mut self, process: u32, row: u64, kind: &str, name: &str, span: Span, args: &Value) -> io::Result<()> {
        let took = span.ended.saturating_sub(span.begun) as f64 / 1e3;
        self.put(&json!({
            "ph": "X", "pid": process, "tid": row, "cat": kind, "name": name,
            "ts": self.time(span.begun), "dur": took, "args": args,
        }))
    }

    fn instant(&mut self, process: u32, row: u32, name: &str, at: u64, args: &Value) -> io::Result<()> {
        self.put(&json!({
            "ph": "i", "s": "t", "pid": process, "tid": row, "cat": "driver", "name": name,
            "ts": self.time(at), "args": args,
        }))
    }
}

#[cfg(test)]
mod tests;
