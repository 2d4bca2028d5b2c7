// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The collector: the thread that reads the mover's descriptor.
//!
//! A thread that changes a registered mapping, the worker included, sleeps until its event was
//! read. It continues as soon as the event *was* read, before any thread has processed it. For a
//! discard that is too early: its caller may read memory that must be zero and is not yet. So
//! before every read the collector *seals* all coherent memory. A thread that touches a page
//! without an entry then waits, and a discard removes just those entries. The worker unseals memory
//! without a pending discard.
//!
//! The thread touches only memory that never moves: its stack, the mover's own, its own static
//! data. It neither allocates nor takes a lock under which another thread does.

use super::descriptor::Mode;
use super::ring::Change;
use super::Mover;
use crate::uffd::block_signals;
use linux_raw_sys::general as raw;
use std::sync::atomic::Ordering;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, PAGE};

/// Messages taken by one read.
const MESSAGES: usize = 32;

/// The thread's work, without end.
pub(super) fn collect(mover: &Mover) {
    block_signals();
    loop {
        mover.descriptor.wait_readable();
        seal(mover);
        // SAFETY: the message is plain numbers; zero is a value of each.
        let mut messages: [raw::uffd_msg; MESSAGES] = unsafe { std::mem::zeroed() };
        let read = mover.descriptor.read(&mut messages);
        for message in messages.iter().take(read) {
            if let Some(change) = decode(mover, message) {
                mover.ring.push(change);
            }
        }
        mover.places.lock().end_reading(&mover.reading);
        mover.ring.ring();
    }
}

/// Seals all coherent memory, and says that reading has begun.
fn seal(mover: &Mover) {
    let mut runs = mover.places.lock();
    mover.reading.store(true, Ordering::SeqCst);
    for i in 0..runs.len() {
        let Some(run) = runs.get(i).filter(|run| run.coherent && !run.sealed) else { continue };
        if mover.descriptor.register(run.span, Mode::Sealed).is_err() {
            // Part of it has gone, and something else is there.
            mover.mappings.within(run.span, |vma| {
                if vma.shared {
                    let _ = mover.descriptor.register(vma.cut(run.span), Mode::Sealed);
                }
                true
            });
        }
        let sealed = super::places::Run { sealed: true, ..run };
        runs.set(i, &sealed);
    }
}

fn decode(mover: &Mover, message: &raw::uffd_msg) -> Option<Change> {
    match u32::from(message.event) {
        raw::UFFD_EVENT_UNMAP | raw::UFFD_EVENT_REMOVE => {
            // SAFETY: the kernel filled this member for these events.
            let gone = unsafe { message.arg.remove };
            let span = CpuSpan::between(CpuVa(gone.start), CpuVa(gone.end));
            if u32::from(message.event) == raw::UFFD_EVENT_UNMAP {
                return Some(Change::Unmap(span));
            }
            mover.late.expect(span);
            Some(Change::Remove(span))
        }
        raw::UFFD_EVENT_REMAP => {
            // SAFETY: the kernel filled this member for this event.
            let moved = unsafe { message.arg.remap };
            Some(Change::Remap { from: CpuSpan::new(CpuVa(moved.from), moved.len)?, to: CpuVa(moved.to) })
        }
        raw::UFFD_EVENT_PAGEFAULT => {
            // SAFETY: the kernel filled this member for this event.
            let fault = unsafe { message.arg.pagefault };
            // SAFETY: as above; the feature for the thread's number was asked for.
            if unsafe { fault.feat.ptid } == mover.worker.load(Ordering::Relaxed) {
                stuck(fault.address);
            }
            Some(Change::Wait(CpuVa(fault.address / PAGE * PAGE)))
        }
        _ => None,
    }
}

/// The worker waits for a page that only the worker brings back: driver data on a page that was
/// moved.
fn stuck(at: u64) -> ! {
    // Not through anything that allocates.
    let mut text = *b"vkfd: the driver's own data at 0x................ was moved to a GPU; keep malloc's memory out of private ranges\n";
    for (i, digit) in text[33..49].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[usize::try_from(at >> (60 - 4 * i) & 15).unwrap_or(0)];
    }
    // SAFETY: the buffer is as long as said.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    std::process::abort();
}
