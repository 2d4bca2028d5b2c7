// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The record of calls on devices: a line per call, as text or JSON. Each is written with one write
//! to a file opened for appending, so threads and processes of one run share a file. Without a
//! trace a call costs one load of a pointer more.

mod decode;
mod line;

use crate::redirect::Device;
use crate::setting;
use decode::Arguments;
use libc::{c_int, c_void};
use line::{Line, Value};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use vkfd_gpu::raw::memory_file;

struct Sink {
    file: File,
    json: bool,
}

fn sink() -> Option<&'static Sink> {
    static SINK: OnceLock<Option<Sink>> = OnceLock::new();
    SINK.get_or_init(|| {
        let (path, json) = setting::get()?.trace.as_ref()?;
        match OpenOptions::new().append(true).create(true).open(path) {
            Ok(file) => Some(Sink { file, json: *json }),
            Err(error) => {
                vkfd_rt::message::write(format_args!("vkfd: no trace: {}: {error}", path.display()));
                None
            }
        }
    })
    .as_ref()
}

/// A call under way, if calls are recorded.
pub(crate) struct Trace(Option<Running>);

struct Running {
    sink: &'static Sink,
    /// Since the system started, so that processes of a run agree.
    at: Duration,
    begun: Instant,
    before: Option<Arguments>,
}

impl Trace {
    /// A call begins.
    pub(crate) fn begin() -> Self {
        let Some(sink) = sink() else { return Self(None) };
        Self(Some(Running { sink, at: since_boot(), begun: Instant::now(), before: None }))
    }

    /// An ioctl begins, whose arguments it may change.
    pub(crate) fn begin_ioctl(command: u32, argument: *mut c_void) -> Self {
        let mut trace = Self::begin();
        if let Some(running) = &mut trace.0 {
            running.before = Arguments::read(command, argument);
        }
        trace
    }

    pub(crate) fn open(self, device: Device, result: &Result<c_int, c_int>) {
        if let Some(running) = self.0 {
            let fd = result.map(|fd| vec![("fd", Value::Number(u64::try_from(fd).unwrap_or(0)))]);
            running.end(line_of("open", device, vec![]), fd);
        }
    }

    pub(crate) fn close(self, device: Device) {
        if let Some(running) = self.0 {
            running.end(line_of("close", device, vec![]), Ok(vec![]));
        }
    }

    pub(crate) fn ioctl(self, device: Device, command: u32, argument: *mut c_void, result: Result<(), c_int>) {
        if let Some(mut running) = self.0 {
            let before = running.before.take();
            let name = decode::name(device, command);
            let changed = before.as_ref().map_or(vec![], |before| before.changed(command, argument));
            let arguments = before.map_or(vec![], |before| before.values(command));
            running.end(line_of(&name, device, arguments), result.map(|()| changed));
        }
    }

    pub(crate) fn mmap(self, device: Device, [at, bytes, offset]: [u64; 3], result: &Result<*mut c_void, c_int>) {
        if let Some(running) = self.0 {
            let arguments = vec![
                ("address", Value::Address(at)),
                ("size", Value::Number(bytes)),
                ("offset", Value::Address(offset)),
            ];
            let mapped = result.map(|at| vec![("mapped", Value::Address(at.expose_provenance() as u64))]);
            running.end(line_of("mmap", device, arguments), mapped);
        }
    }
}

fn line_of(call: &str, device: Device, arguments: Vec<(&'static str, Value)>) -> Line {
    Line { call: call.to_owned(), device: device.path(), arguments }
}

impl Running {
    fn end(self, line: Line, result: Result<Vec<(&'static str, Value)>, c_int>) {
        let took = self.begun.elapsed();
        // SAFETY: no preconditions.
        let thread = unsafe { libc::gettid() };
        let text = if self.sink.json {
            line.json(self.at, thread, result, took)
        } else {
            line.text(self.at, thread, result, took)
        };
        // A full disk is no reason to fail the program's call.
        let _ = memory_file::without_size_signal(|| (&self.sink.file).write_all(text.as_bytes()));
    }
}

fn since_boot() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in the local structure; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
