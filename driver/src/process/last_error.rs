// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The last failed call of each thread: which range of a list was at fault, and why.
//!
//! A table of fixed size; a thread that fails when it is full takes the place of the one that
//! failed longest ago. Guarded by a lock of rank `Error`.

use crate::base::errno::{Error, Result};
use crate::base::lock_rank::Rank;
use crate::os::{self, Mutex, Vec};

const THREADS: usize = 64;

#[derive(Clone, Copy)]
struct Entry {
    thread: u64,
    age: u64,
    error: Error,
}

struct Table {
    /// As many as there are, from the start.
    entries: Vec<Option<Entry>>,
    clock: u64,
}

/// A process's table.
pub struct LastErrors(Mutex<Table>);

impl LastErrors {
    pub fn new() -> Result<Self> {
        // Not an array: too large for a kernel's stack.
        let entries = Vec::filled(None, THREADS)?;
        Ok(Self(Mutex::new(Rank::Error, Table { entries, clock: 0 })?))
    }

    /// Remembers the calling thread's error.
    pub fn record(&self, error: Error) {
        let thread = os::thread_id();
        let mut table = self.0.lock();
        table.clock = table.clock.wrapping_add(1);
        let age = table.clock;
        let own = table.entries.iter().position(|e| e.is_some_and(|e| e.thread == thread));
        let slot = own.or_else(|| table.entries.iter().position(Option::is_none));
        let entry = match slot {
            Some(slot) => table.entries.get_mut(slot),
            None => table.entries.iter_mut().min_by_key(|entry| entry.map_or(0, |e| e.age)),
        };
        if let Some(entry) = entry {
            *entry = Some(Entry { thread, age, error });
        }
    }

    /// The calling thread's last error, if it is still known.
    pub fn last(&self) -> Option<Error> {
        let thread = os::thread_id();
        let table = self.0.lock();
        table.entries.iter().flatten().find(|e| e.thread == thread).map(|e| e.error)
    }
}
