// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A recorder below a client: each call with its arguments, its errno and its results, in words
//! that mean the same on every KFD.
//!
//! Mechanism: [`Record`] is a transport that passes everything on. Fields come from the ABI's rows,
//! and from a copy of the argument before and after the call. A GPU is `gpu`, memory of the script
//! is the name it was given with a distance, and a handle is that of an object, or of none. Clocks,
//! free memory, descriptors, versions and offsets of objects have no values, only whether there is
//! one. Calls that belong together ([`Record::together`]) are one line, so that what follows from a
//! difference is no further one.
//!
//! Lock: `state` guards the names and the lines; a leaf.

use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use vkfd_client::uapi::call::{Count, Known};
use vkfd_client::uapi::ioctl::{Command, Direction};
use vkfd_client::uapi::pod::Field;
use vkfd_client::uapi::{batch, command, memory, mmap};
use vkfd_client::{ClientError, Errno, GpuId, MmapFile, Node, Transport};

/// Numbers from here on are vkfd's own calls, which are not recorded.
const OWN: u32 = 0x80;
/// Bytes of an array that are shown.
const MAX_ARRAY: usize = 1024;

/// A call, a mapping or an observation.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Which step of which sequence.
    pub step: String,
    /// The call's name and what it was given.
    pub call: String,
    /// What came of it.
    pub result: String,
}

#[derive(Default)]
struct State {
    sequence: &'static str,
    label: String,
    count: u32,
    names: Vec<(u64, u64, String)>,
    lines: Vec<Line>,
    handles: Vec<u64>,
    quiet: bool,
    silent: bool,
    together: bool,
}

/// A transport that records.
pub struct Record {
    kfd: Arc<dyn Transport>,
    gpu: GpuId,
    state: Mutex<State>,
}

/// Calls are one line as long as it exists.
pub struct Together<'a>(&'a Record);

impl Drop for Together<'_> {
    fn drop(&mut self) {
        self.0.with(|state| (state.together, state.count) = (false, 0));
    }
}

/// Bytes of this process, if they can be read.
fn peek(at: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut copy = vec![0; bytes];
    let local = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: bytes };
    let remote =
        libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(usize::try_from(at).ok()?), iov_len: bytes };
    // SAFETY: the local memory is `copy`; the other is only read, and may be missing.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    (usize::try_from(got) == Ok(bytes)).then_some(copy)
}

fn known(command: Command) -> Option<&'static Known> {
    if command == batch::ALLOC_MEMORY_OF_GPU_BATCH {
        return Some(&batch::KNOWN);
    }
    Known::find(command, command::ALL)
}

fn number(bytes: &[u8]) -> Option<u64> {
    match bytes.len() {
        4 => Some(u32::from_ne_bytes(bytes.try_into().ok()?).into()),
        8 => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

fn field(bytes: &[u8], field: &Field) -> Option<u64> {
    number(bytes.get(field.offset..field.offset + field.size)?)
}

impl State {
    fn value(&self, name: &str, value: u64, gpu: GpuId) -> String {
        let own = |id: u64| if id == u64::from(gpu.0) { "gpu" } else { "no GPU" }.to_owned();
        let is = |words: &[&str]| words.iter().any(|word| name.contains(word));
        if is(&["clock_counter", "available", "r_debug", "minor_version"]) {
            return if value == 0 { "0" } else { "something" }.into();
        }
        if is(&["gpu_id", "gpuid"]) {
            return if value == 0 { "none".into() } else { own(value) };
        }
        if is(&["_fd"]) {
            return if value < 1 << 20 { "a file".into() } else { format!("{value:#x}") };
        }
        if name == "handle" || name == "event_page_offset" && ![0, mmap::MMAP_TYPE_EVENTS].contains(&value) {
            return match value {
                _ if self.handles.contains(&value) => "object".into(),
                0 => "0".into(),
                _ => format!("{}:no object", own(value >> 32)),
            };
        }
        // What ends at an address comes after what has it, and an older name after a newer one.
        let within = self.names.iter().rev().find(|(start, end, _)| (*start..*end).contains(&value));
        let named = within.or_else(|| self.names.iter().rev().find(|(start, end, _)| (*start..=*end).contains(&value)));
        if let Some((start, _, word)) = named {
            let distance = value - start;
            return if distance == 0 { word.clone() } else { format!("{word}+{distance:#x}") };
        }
        // Where a library has put something, which is not the same twice.
        if is(&["addr", "_ptr"]) && (1 << 30..(1 << 47) - 0x1000).contains(&value) && value != 1 << 32 {
            return "an address".into();
        }
        if name == "doorbell_offset" && mmap::mmap_type(value) == mmap::MMAP_TYPE_DOORBELL {
            return format!("a doorbell of {}", own(mmap::gpu_id(value).into()));
        }
        if name == "offset" || name.ends_with("_offset") {
            return offset(value, own);
        }
        if value > 9 {
            format!("{value:#x}")
        } else {
            value.to_string()
        }
    }

    /// Whether the offset that ALLOC returns is told: those of the caller's own memory and of
    /// doorbells are the subject of one sequence alone.
    fn shows(&self, known: &Known, bytes: &[u8]) -> bool {
        const ELSEWHERE: u32 = memory::ALLOC_MEM_FLAGS_USERPTR | memory::ALLOC_MEM_FLAGS_DOORBELL;
        let flags = known.fields.iter().find(|field| field.name == "flags").and_then(|flags| field(bytes, flags));
        self.sequence == "mmap" || flags.is_none_or(|flags| flags & u64::from(ELSEWHERE) == 0)
    }

    fn push(&mut self, call: String, result: String) {
        if self.silent {
            return;
        }
        if let Some(line) = self.lines.last_mut().filter(|_| self.together && self.count > 0) {
            let name = call.split(['_', ' ']).next().unwrap_or_default();
            let _ = write!(line.result, "; {name} {result}");
            return;
        }
        self.count += 1;
        let number = if self.count > 1 { format!(" #{}", self.count) } else { String::new() };
        let step = format!("{}/{}{number}", self.sequence, self.label);
        self.lines.push(Line { step, call, result });
    }
}

/// What an mmap offset stands for.
fn offset(value: u64, own: impl Fn(u64) -> String) -> String {
    if value == 0 {
        return "0".into();
    }
    let id = u64::from(mmap::gpu_id(value));
    let at = mmap::position(value);
    match mmap::mmap_type(value) {
        mmap::MMAP_TYPE_DOORBELL => format!("doorbells of {}+{at:#x}", own(id)),
        mmap::MMAP_TYPE_EVENTS => format!("events+{at:#x}"),
        mmap::MMAP_TYPE_RESERVED_MEM => format!("reserved+{at:#x}"),
        _ if id != 0 => format!("registers of {}+{at:#x}", own(id)),
        _ => "an object".into(),
    }
}

impl Record {
    pub fn new(kfd: Arc<dyn Transport>, gpu: GpuId, sequence: &'static str) -> Self {
        let state = State { sequence, label: "open".into(), ..State::default() };
        Self { kfd, gpu, state: Mutex::new(state) }
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Names what comes next.
    pub fn step(&self, label: impl Into<String>) {
        self.with(|state| {
            if !(state.together && state.count > 0) {
                (state.label, state.count) = (label.into(), 0);
            }
        });
    }

    /// Makes one line of all calls until the result is dropped: the first call in full, the later
    /// ones by their names.
    pub fn together(&self) -> Together<'_> {
        self.with(|state| (state.together, state.count) = (true, 0));
        Together(self)
    }

    /// Whether calls leave no line: how many there are is noted by their caller.
    pub fn be_silent(&self, silent: bool) {
        self.with(|state| state.silent = silent);
    }

    /// Names memory, so that its addresses can be recognized.
    pub fn name(&self, start: u64, bytes: u64, name: &str) {
        self.with(|state| state.names.push((start, start + bytes, name.to_owned())));
    }

    /// From here on calls that succeed are left out: how many there are depends on time.
    pub fn be_quiet(&self) {
        self.with(|state| state.quiet = true);
    }

    /// Notes what was observed.
    pub fn note(&self, what: &str, seen: impl Into<String>) {
        self.with(|state| state.push(what.into(), seen.into()));
    }

    /// Adds to the last line what its call has not shown.
    pub fn append(&self, given: &str, came: &str) {
        let add = |text: &mut String, more: &str| {
            if !more.is_empty() {
                let _ = write!(text, " [{more}]");
            }
        };
        self.with(|state| {
            if let Some(line) = state.lines.last_mut() {
                add(&mut line.call, given);
                add(&mut line.result, came);
            }
        });
    }

    /// Drops what has been recorded since the first call of a step.
    pub fn forget_since(&self, label: &str) {
        self.with(|state| {
            let step = format!("{}/{label}", state.sequence);
            if let Some(at) = state.lines.iter().position(|line| line.step == step) {
                state.lines.truncate(at + 1);
            }
        });
    }

    pub fn lines(&self) -> Vec<Line> {
        self.with(|state| state.lines.clone())
    }

    /// The fields of an argument; those alone that have changed, if there is an earlier copy.
    fn fields(&self, state: &State, known: &Known, bytes: &[u8], before: Option<&[u8]>) -> String {
        let mut text = String::new();
        for each in known.fields.iter().filter(|field| field.name != "pad") {
            let Some(value) = field(bytes, each) else { continue };
            let old = before.map(|before| field(before, each));
            if old == Some(Some(value)) || before.is_some() && each.name == "mmap_offset" && !state.shows(known, bytes)
            {
                continue;
            }
            let _ = write!(text, " {}={}", each.name, state.value(each.name, value, self.gpu));
        }
        text
    }

    /// What a call's arrays have, of those that go one way.
    fn arrays(known: &Known, bytes: &[u8], out: bool) -> Vec<Option<Vec<u8>>> {
        let read = known.pointers.iter().map(|pointer| {
            let count = match pointer.count {
                Count::Word(at) => number(bytes.get(at..at + 4)?)?,
                Count::Long(at) => number(bytes.get(at..at + 8)?)?,
                Count::Bits(at) => number(bytes.get(at..at + 4)?)? / 8,
            };
            let wanted = if out { pointer.way.writes() } else { pointer.way.reads() };
            let bytes = number(bytes.get(pointer.at..pointer.at + 8)?)
                .filter(|at| wanted && *at != 0)
                .zip(usize::try_from(count).ok().and_then(|count| count.checked_mul(pointer.each)));
            bytes.filter(|(_, bytes)| *bytes <= MAX_ARRAY).and_then(|(at, bytes)| peek(at, bytes))
        });
        read.collect()
    }

    fn words(&self, state: &State, known: &Known, arrays: &[Option<Vec<u8>>]) -> String {
        let mut text = String::new();
        for (pointer, bytes) in known.pointers.iter().zip(arrays) {
            let Some(bytes) = bytes else { continue };
            let name = known.fields.iter().find(|field| field.offset == pointer.at).map_or("", |field| field.name);
            let size = if pointer.each == 4 { 4 } else { 8 };
            let ids = name == "device_ids_array_ptr";
            let word = |chunk: &[u8]| {
                let value = number(chunk).unwrap_or(0);
                let name = if ids || value == u64::from(self.gpu.0) && value > 0xff { "gpu_id" } else { "" };
                state.value(name, value, self.gpu)
            };
            let words: Vec<String> = bytes.chunks(size).map(word).collect();
            let _ = write!(text, " {}[{}]", name.trim_end_matches("_ptr"), words.join(" "));
        }
        text
    }
}

/// An errno's name, or that there is none.
pub fn outcome(result: Result<(), Errno>) -> String {
    match result {
        Ok(()) => "ok".into(),
        Err(Errno(524)) => "ENOTSUPP".into(),
        Err(errno) => format!("{errno:?}"),
    }
}

impl Transport for Record {
    unsafe fn ioctl(&self, word: u32, arg: *mut c_void) -> Result<(), Errno> {
        let command = Command(word);
        if command.kind() == command::TYPE && u32::from(command.number()) >= OWN {
            // SAFETY: promised by the caller.
            return unsafe { self.kfd.ioctl(word, arg) };
        }
        let known = known(command);
        let at = arg.expose_provenance() as u64;
        let size = known.map_or(0, |known| known.command.size()).min(command.size());
        let before = known.and_then(|_| peek(at, size));
        let earlier = match (known, &before) {
            (Some(known), Some(bytes)) => Self::arrays(known, bytes, false),
            _ => Vec::new(),
        };
        // SAFETY: promised by the caller.
        let result = unsafe { self.kfd.ioctl(word, arg) };
        let after = known.and_then(|_| peek(at, size));
        self.with(|state| {
            if let (Some(known), Some(bytes), Ok(())) = (known, &after, result) {
                let given = known.fields.iter().find(|field| field.name == "handle");
                state.handles.extend(given.and_then(|given| field(bytes, given)));
            }
            let mut call = known.map_or_else(|| format!("{word:#x}"), |known| known.name.to_owned());
            let declared = known.is_some_and(|known| known.command == command || command.number() == 0x20);
            if known.is_some() && !declared {
                let _ = write!(call, " ({word:#x})");
            }
            let mut text = outcome(result);
            if let (Some(known), Some(before)) = (known, &before) {
                call += &self.fields(state, known, before, None);
                call += &self.words(state, known, &earlier);
                if let Some(after) = &after {
                    if command.direction() != Direction::Write {
                        text += &self.fields(state, known, after, Some(before));
                    }
                    if result.is_ok() {
                        let later = Self::arrays(known, after, true);
                        text += &self.words(state, known, &later);
                    }
                }
            }
            if result.is_err() || !state.quiet {
                state.push(call, text);
            }
        });
        result
    }

    unsafe fn mmap(
        &self,
        what: MmapFile,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, Errno> {
        // SAFETY: promised by the caller.
        let result = unsafe { self.kfd.mmap(what, addr, len, prot, flags, offset) };
        self.with(|state| {
            let file = if what == MmapFile::Kfd { "kfd" } else { "render" };
            let offset = state.value("offset", offset, self.gpu);
            if result.is_ok() && state.quiet {
                return;
            }
            state.push(format!("mmap {file} {len:#x} bytes prot={prot} {offset}"), outcome(result.map(drop)));
        });
        result
    }

    fn topology(&self) -> Result<Vec<Node>, ClientError> {
        self.kfd.topology()
    }

    fn render_fd(&self, gpu: GpuId) -> Result<u32, ClientError> {
        self.kfd.render_fd(gpu)
    }
}
