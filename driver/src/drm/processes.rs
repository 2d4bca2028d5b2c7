// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The files of `/sys/class/kfd/kfd/proc`, as Linux's `kfd_process.c` has them: a directory for
//! each process, with its memory, its queues, and what its SVM memory has been through.
//!
//! Mechanism: [`OF_GPU`] and [`OF_QUEUE`] have a row for each file. A host with files of its own
//! makes them from these, and asks for the number whenever somebody reads one. Programs of other
//! hosts have a question. The entries of a process are numbered: [`FIXED`] ones of the process,
//! those of each GPU, then those of each queue by its number. A caller asks for entries from a
//! number on, and gets as many as it has room for. So nothing is kept between two questions, and a
//! queue that goes meanwhile leaves a gap.
//!
//! As in Linux 7.3, `pasid` is 0: an address space has one for each GPU. A second process of
//! the same PID is a directory `context_N` in the first one's.
//!
//! Limits: there is no `sdma_GPUID` where the GPU does not count the time of copies, and no
//! `cu_occupancy` where it does not count waves.

use super::{Argument, Caller};
use crate::base::addr::CpuVa;
use crate::base::errno::{Errno, Result};
use crate::device::Device;
use crate::machine::kfd::Kfd;
use crate::machine::listing::{Listed, OnGpu, QueueFacts};
use core::ffi::CStr;
use core::fmt::{self, Write};
use vkfd_uapi::drm::ListHead;
use vkfd_uapi::pod::Pod;

/// Entries of a process: `pasid`, and the directory of queues.
const FIXED: u32 = 2;
/// Entries of each GPU.
const EACH: u32 = 7;
/// Entries of each queue.
const EACH_QUEUE: u32 = 3;
/// Bytes that an entry has at most.
const LONGEST: usize = 96;

/// The text of a process's file `pasid`.
pub const PASID: &str = "0\n";

/// What a file says of a process on one GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnGpuFact {
    /// Bytes of VRAM.
    Vram,
    /// Microseconds in which its SDMA queues executed packets.
    Copies,
    /// Milliseconds in which its queues were stopped.
    Stopped,
    /// Compute units that its waves would fill.
    Units,
    /// Faults on SVM memory.
    Faults,
    /// Pages of SVM memory that came to the GPU.
    PagesIn,
    /// And that left it.
    PagesOut,
}

/// A file about a process on one GPU.
#[derive(Clone, Copy, Debug)]
pub struct GpuFile {
    /// The directory that it is in, to whose name the GPU's identifier is added. Without one it is
    /// among the process's own, and has the identifier itself.
    pub directory: Option<&'static CStr>,
    pub name: &'static CStr,
    /// Its number, with a new line.
    pub fact: OnGpuFact,
}

impl GpuFile {
    const fn new(directory: Option<&'static CStr>, name: &'static CStr, fact: OnGpuFact) -> Self {
        Self { directory, name, fact }
    }
}

/// Those of each GPU. Files of one directory are beside each other.
pub const OF_GPU: [GpuFile; EACH as usize] = [
    GpuFile::new(None, c"vram", OnGpuFact::Vram),
    GpuFile::new(None, c"sdma", OnGpuFact::Copies),
    GpuFile::new(Some(c"stats"), c"evicted_ms", OnGpuFact::Stopped),
    GpuFile::new(Some(c"stats"), c"cu_occupancy", OnGpuFact::Units),
    GpuFile::new(Some(c"counters"), c"faults", OnGpuFact::Faults),
    GpuFile::new(Some(c"counters"), c"page_in", OnGpuFact::PagesIn),
    GpuFile::new(Some(c"counters"), c"page_out", OnGpuFact::PagesOut),
];

/// The number of a process's file about GPU number `gpu`; nothing where there is no such file,
/// which does not change.
pub fn on_gpu(process: &dyn Listed, gpu: usize, fact: OnGpuFact) -> Option<u64> {
    match fact {
        OnGpuFact::Units => process.occupied(gpu),
        _ => known(&process.on_gpu(gpu), fact),
    }
}

/// Whether a process has that file of a GPU. Asks no device.
pub fn has_on_gpu(process: &dyn Listed, device: &Device, fact: OnGpuFact) -> bool {
    match fact {
        OnGpuFact::Units => device.counts_waves(),
        _ => known(&process.on_gpu(device.index()), fact).is_some(),
    }
}

/// The number that is among these facts.
fn known(facts: &OnGpu, fact: OnGpuFact) -> Option<u64> {
    let svm = |which: usize| facts.svm.and_then(|counts| counts.get(which).copied());
    match fact {
        OnGpuFact::Vram => Some(facts.vram),
        OnGpuFact::Copies => facts.work.map(|work| work.copies / 1000),
        OnGpuFact::Stopped => Some(u64::try_from(facts.stopped.as_millis()).unwrap_or(u64::MAX)),
        OnGpuFact::Units => None,
        OnGpuFact::Faults => svm(0),
        OnGpuFact::PagesIn => svm(1),
        OnGpuFact::PagesOut => svm(2),
    }
}

/// What a file says of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueFact {
    /// Its GPU's identifier.
    Gpu,
    /// Bytes of its ring.
    Bytes,
    /// Its type, a number of the kernel's own.
    Kind,
}

/// The files of each queue: a number each, without a new line, as KFD has them.
pub const OF_QUEUE: [(&CStr, QueueFact); EACH_QUEUE as usize] =
    [(c"gpuid", QueueFact::Gpu), (c"size", QueueFact::Bytes), (c"type", QueueFact::Kind)];

/// The number of a queue's file.
pub fn of_queue(facts: &QueueFacts, fact: QueueFact) -> u64 {
    match fact {
        QueueFact::Gpu => facts.gpu_id.into(),
        QueueFact::Bytes => facts.bytes,
        QueueFact::Kind => facts.kind.into(),
    }
}

/// The name of a process's directory. Unless it is the first of its PID, that is in the first's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryName {
    pub pid: u32,
    /// How many processes of the same PID came before.
    pub before: usize,
}

impl fmt::Display for DirectoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.before.checked_sub(1) {
            None => write!(f, "{}", self.pid),
            Some(context) => write!(f, "context_{context}"),
        }
    }
}

/// A name of one of the tables.
fn word(name: &CStr) -> &str {
    name.to_str().unwrap_or_default()
}

/// An entry being written: a path, a zero, a text, a zero.
struct Entry {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Write for Entry {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length.saturating_add(text.len());
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Where a process's directory is.
struct Place(DirectoryName);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        if name.before != 0 {
            write!(f, "{}/", name.pid)?;
        }
        name.fmt(f)
    }
}

/// The caller's room for entries.
struct Room<'a> {
    caller: &'a dyn Caller,
    at: u64,
    left: usize,
    written: u32,
}

impl Room<'_> {
    /// Writes an entry; false if it has no room.
    fn put(&mut self, place: &Place, path: fmt::Arguments<'_>, text: fmt::Arguments<'_>) -> Result<bool> {
        let mut entry = Entry { bytes: [0; LONGEST], length: 0 };
        write!(entry, "{place}/{path}\0{text}\0").map_err(|_| Errno::EINVAL)?;
        if entry.length > self.left {
            return Ok(false);
        }
        let bytes = entry.bytes.get(..entry.length).unwrap_or_default();
        self.caller.write(CpuVa(self.at.wrapping_add(self.written.into())), bytes)?;
        self.left = self.left.saturating_sub(entry.length);
        self.written = self.written.saturating_add(u32::try_from(entry.length).unwrap_or(0));
        Ok(true)
    }
}

/// A process, and a GPU by its number and identifier.
struct ProcessOnGpu<'a> {
    process: &'a dyn Listed,
    gpu: usize,
    id: u32,
    facts: OnGpu,
}

/// Entry number `entry` of a GPU. Nothing if it has none of that number; false without room for it.
fn of_gpu(room: &mut Room<'_>, place: &Place, on: &ProcessOnGpu<'_>, entry: u32) -> Result<bool> {
    let Some(file) = OF_GPU.get(entry as usize) else { return Ok(true) };
    let number = match file.fact {
        OnGpuFact::Units => on.process.occupied(on.gpu),
        fact => known(&on.facts, fact),
    };
    let (Some(number), id) = (number, on.id) else { return Ok(true) };
    let name = word(file.name);
    match file.directory.map(word) {
        None => room.put(place, format_args!("{name}_{id}"), format_args!("{number}\n")),
        Some(around) => room.put(place, format_args!("{around}_{id}/{name}"), format_args!("{number}\n")),
    }
}

/// Writes the entries of a process from number `from` on. The number of the first that has no room.
fn of_process(kfd: &Kfd, room: &mut Room<'_>, place: &Place, process: &dyn Listed, from: u32) -> Result<Option<u32>> {
    for entry in from..FIXED {
        let fits = match entry {
            0 => room.put(place, format_args!("pasid"), format_args!("{PASID}"))?,
            _ => room.put(place, format_args!("queues/"), format_args!(""))?,
        };
        if !fits {
            return Ok(Some(entry));
        }
    }
    let mut first = FIXED;
    for device in kfd.devices() {
        let next = first.saturating_add(EACH);
        if from < next {
            let (gpu, id) = (device.index(), device.id());
            let on = ProcessOnGpu { process, gpu, id, facts: process.on_gpu(gpu) };
            for entry in from.max(first)..next {
                if !of_gpu(room, place, &on, entry.saturating_sub(first))? {
                    return Ok(Some(entry));
                }
            }
        }
        first = next;
    }
    let mut entry = from.max(first);
    while let Some(queue) = process.queue_from(entry.saturating_sub(first) / EACH_QUEUE) {
        let own = queue.number.saturating_mul(EACH_QUEUE).saturating_add(first);
        entry = entry.max(own);
        let Some((name, fact)) = OF_QUEUE.get(entry.saturating_sub(own) as usize) else { break };
        let (number, name, value) = (queue.number, word(name), of_queue(&queue, *fact));
        let fits = room.put(place, format_args!("queues/{number}/{name}"), format_args!("{value}"))?;
        if !fits {
            return Ok(Some(entry));
        }
        entry = entry.saturating_add(1);
    }
    Ok(None)
}

/// The answer to [`INFO_PROCESSES`](vkfd_uapi::drm::INFO_PROCESSES). EINVAL without room for a head
/// and one entry.
pub(super) fn answer(kfd: &Kfd, argument: &Argument<'_>, to: u64, size: u32) -> Result {
    let (mut number, mut entry) = (argument.u64(16)?, argument.u32(24)?);
    let head = size_of::<ListHead>();
    let left = (size as usize).checked_sub(head).filter(|left| *left >= LONGEST).ok_or(Errno::EINVAL)?;
    let mut room = Room { caller: argument.caller, at: to.wrapping_add(head as u64), left, written: 0 };
    let mut rest = ListHead::zeroed();
    while let Some((process, before)) = kfd.listing().from(number) {
        if process.number() != number {
            entry = 0;
        }
        number = process.number();
        let place = Place(DirectoryName { pid: process.pid(), before });
        if let Some(next) = of_process(kfd, &mut room, &place, &*process, entry)? {
            (rest.process, rest.entry) = (number, next);
            break;
        }
        (number, entry) = (number.saturating_add(1), 0);
    }
    rest.bytes = room.written;
    argument.caller.write(CpuVa(to), rest.as_bytes())
}
