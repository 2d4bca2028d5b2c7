// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a process's driver state has been through, for snapshots and tests.

use core::sync::atomic::{AtomicU64, Ordering};

/// A count.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A process's counters.
#[derive(Default)]
pub struct Counters {
    /// Invalidations that touched a range.
    pub invalidations: Counter,
    /// Ranges they touched, in all.
    pub ranges_invalidated: Counter,
    /// Times the queues were stopped.
    pub evictions: Counter,
    /// Times they were let go on.
    pub restores: Counter,
    /// Runs of the restore worker.
    pub restore_runs: Counter,
    /// Ranges faulted in and committed, by whatever call.
    pub ranges_restored: Counter,
    /// Passes of registrations and mappings that had to be repeated.
    pub register_retries: Counter,
    /// GPU page-fault interrupts: each retry, and each fault that halted a queue.
    pub gpu_faults: Counter,
}

/// What a process's SVM memory has been through. Shared with its granules, which other processes'
/// allocations may evict.
#[derive(Default)]
pub struct SvmCounters {
    /// Calls to the host that moved pages to a GPU.
    pub migrations_in: Counter,
    /// Pages they moved.
    pub pages_in: Counter,
    /// Times that pages moved back, for whatever reason: asked for, for want of VRAM, or because
    /// the CPU touched private memory.
    pub migrations_out: Counter,
    /// Pages that did.
    pub pages_out: Counter,
    /// Of these times, because VRAM was needed.
    pub evictions: Counter,
    /// Pages that were to move to a GPU and did not.
    pub pages_refused: Counter,
    /// Times that a granule came back to VRAM soon after it had left.
    pub bounces: Counter,
    /// Migrations not made because their granule bounces.
    pub damped: Counter,
    /// GPU faults served.
    pub faults: Counter,
    /// Ranges made for memory that nobody registered.
    pub unregistered: Counter,
    /// Ranges, or parts, that went with their memory.
    pub dropped: Counter,
}
