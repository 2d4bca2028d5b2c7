// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The files of `/sys/class/kfd/kfd/proc`, as Linux's `kfd_process.c` has them: a directory for
//! each process, with its memory, its queues, and what its SVM memory has been through.
//!
//! Mechanism: the entries of a process are numbered: [`FIXED`] ones of the process, [`EACH`] of
//! each GPU, then three of each queue by its number. A caller asks for entries from a number on,
//! and gets as many as it has room for. So nothing is kept between two questions, and a queue that
//! goes meanwhile leaves a gap. Hosts make files of them.
//!
//! As in Linux 7.3, `pasid` is 0: an address space has one for each GPU. A second process of
//! the same PID is a directory `context_N` in the first one's.
//!
//! Limits: there is no `cu_occupancy`, because the GPU does not count the waves of a process. There
//! is no `sdma_GPUID` where the GPU does not count the time of copies.

use super::{Argument, Caller};
use crate::base::addr::CpuVa;
use crate::base::errno::{Errno, Result};
use crate::machine::kfd::Kfd;
use crate::machine::listing::{Listed, OnGpu};
use core::fmt::{self, Write};
use vkfd_uapi::drm::ListHead;
use vkfd_uapi::pod::Pod;

/// Entries of a process: `pasid`, and the directory of queues.
const FIXED: u32 = 2;
/// Entries of each GPU.
const EACH: u32 = 6;
/// Entries of each queue.
const OF_QUEUE: u32 = 3;
/// Bytes that an entry has at most.
const LONGEST: usize = 96;

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

/// Of one process, where its directory is.
struct Place {
    pid: u32,
    /// How many processes of the same PID came before.
    before: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.before.checked_sub(1) {
            None => write!(f, "{}", self.pid),
            Some(context) => write!(f, "{}/context_{context}", self.pid),
        }
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

/// Entry number `entry` of a GPU. Nothing if it has none of that number; false without room for it.
fn of_gpu(room: &mut Room<'_>, place: &Place, id: u32, facts: &OnGpu, entry: u32) -> Result<bool> {
    let milliseconds = facts.stopped.as_millis();
    let svm = |which: usize| facts.svm.and_then(|counts| counts.get(which).copied());
    let counter = |room: &mut Room<'_>, name: &str, which| match svm(which) {
        Some(count) => room.put(place, format_args!("counters_{id}/{name}"), format_args!("{count}\n")),
        None => Ok(true),
    };
    match entry {
        0 => room.put(place, format_args!("vram_{id}"), format_args!("{}\n", facts.vram)),
        1 => match facts.work {
            Some(work) => room.put(place, format_args!("sdma_{id}"), format_args!("{}\n", work.copies / 1000)),
            None => Ok(true),
        },
        2 => room.put(place, format_args!("stats_{id}/evicted_ms"), format_args!("{milliseconds}\n")),
        3 => counter(room, "faults", 0),
        4 => counter(room, "page_in", 1),
        _ => counter(room, "page_out", 2),
    }
}

/// Writes the entries of a process from number `from` on. The number of the first that has no room.
fn of_process(kfd: &Kfd, room: &mut Room<'_>, place: &Place, process: &dyn Listed, from: u32) -> Result<Option<u32>> {
    for entry in from..FIXED {
        let fits = match entry {
            0 => room.put(place, format_args!("pasid"), format_args!("0\n"))?,
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
            let facts = process.on_gpu(device.index());
            for entry in from.max(first)..next {
                if !of_gpu(room, place, device.id(), &facts, entry.saturating_sub(first))? {
                    return Ok(Some(entry));
                }
            }
        }
        first = next;
    }
    let mut entry = from.max(first);
    while let Some(queue) = process.queue_from(entry.saturating_sub(first) / OF_QUEUE) {
        let own = queue.number.saturating_mul(OF_QUEUE).saturating_add(first);
        entry = entry.max(own);
        let number = queue.number;
        // Without a new line, as KFD has them.
        let fits = match entry.saturating_sub(own) {
            0 => room.put(place, format_args!("queues/{number}/gpuid"), format_args!("{}", queue.gpu_id))?,
            1 => room.put(place, format_args!("queues/{number}/size"), format_args!("{}", queue.bytes))?,
            _ => room.put(place, format_args!("queues/{number}/type"), format_args!("{}", queue.kind))?,
        };
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
        let place = Place { pid: process.pid(), before };
        if let Some(next) = of_process(kfd, &mut room, &place, &*process, entry)? {
            (rest.process, rest.entry) = (number, next);
            break;
        }
        (number, entry) = (number.saturating_add(1), 0);
    }
    rest.bytes = room.written;
    argument.caller.write(CpuVa(to), rest.as_bytes())
}
