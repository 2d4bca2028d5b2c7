// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Event counters of a GPU: relaxed atomics, exact in sum but not a consistent snapshot.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a GPU has done since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        #[derive(Default)]
        pub(crate) struct CounterCells { $(pub(crate) $name: AtomicU64,)* }

        impl CounterCells {
            pub(crate) fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Page-table walks for accesses; each is a TLB miss.
    walks,
    /// Translations served by a TLB.
    tlb_hits,
    /// TLB flushes.
    flushes,
    /// Suspensions of a VMID.
    suspends,
    /// Faults that halted a queue.
    faults,
    /// Retry faults reported.
    retries,
    /// Faults on system memory that had been taken away; part of `faults`.
    stale,
    /// Accesses whose host memory vanished under them.
    lost,
    /// SDMA and AQL packets completed.
    packets,
    /// Kernels completed.
    kernels,
    /// Bytes copied from GPU memory to GPU memory by SDMA.
    bytes_copied,
    /// Bytes read and written by kernels and packet data.
    bytes_accessed,
    /// Events signalled.
    events,
    /// Queues halted by an error, faults included.
    queue_errors,
}

pub(crate) fn count(cell: &AtomicU64, by: u64) {
    cell.fetch_add(by, Relaxed);
}
