// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a process's SVM memory has been through. Shared with its granules, which other processes' allocations may evict.

use crate::counters::Counter;

/// The counters.
#[derive(Default)]
pub struct Counters {
    /// Calls to the host that moved pages to a GPU.
    pub migrations_in: Counter,
    /// Pages they moved.
    pub pages_in: Counter,
    /// Times that pages moved back, for whatever reason: asked for, for want of VRAM, or because the CPU touched private memory.
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
