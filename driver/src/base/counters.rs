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

/// At most so many GPUs: a mapping's GPUs are a bitmap of this width.
pub const MAX_GPUS: usize = 32;

/// What a process's SVM memory has been through on one GPU.
#[derive(Default)]
pub struct GpuCounters {
    /// Faults that were served.
    pub faults: Counter,
    /// Pages that moved to it.
    pub pages_in: Counter,
    /// Pages that moved away from it, to system memory.
    pub pages_out: Counter,
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
    by_gpu: [GpuCounters; MAX_GPUS],
    /// All GPUs' are the first one's.
    merged: bool,
}

impl SvmCounters {
    /// Zeros; `merged` makes all GPUs' counts the first one's.
    pub fn new(merged: bool) -> Self {
        Self { merged, ..Self::default() }
    }

    /// Those of GPU number `gpu`, if there is one.
    pub fn on(&self, gpu: usize) -> Option<&GpuCounters> {
        self.by_gpu.get(if self.merged { 0 } else { gpu })
    }

    /// A fault of GPU number `gpu` was served.
    pub fn add_fault(&self, gpu: usize) {
        self.faults.add(1);
        if let Some(on) = self.on(gpu) {
            on.faults.add(1);
        }
    }

    /// A call to the host has moved pages to GPU number `gpu`.
    pub fn add_in(&self, gpu: usize, pages: u64) {
        self.migrations_in.add(1);
        self.pages_in.add(pages);
        if let Some(on) = self.on(gpu) {
            on.pages_in.add(pages);
        }
    }

    /// Pages have moved back at once, from GPU number `gpu` as far as is known.
    pub fn add_out(&self, gpu: Option<usize>, pages: u64) {
        self.migrations_out.add(1);
        self.pages_out.add(pages);
        if let Some(on) = gpu.and_then(|gpu| self.on(gpu)) {
            on.pages_out.add(pages);
        }
    }
}
