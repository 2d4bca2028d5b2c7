// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is to be reached, and what was. Every goal is a ratio of two things measured in the same
//! rounds of the same run, except the memory, which the driver counts.

use serde::Serialize;

use crate::spread::Spread;

/// Register, map and free: multi relative to batch.
pub const MULTI_TO_BATCH: &str =
    "4,096 ranges of 64 KiB, register + map + free: time of one call per range, relative to batch";
/// Register, map and free: batch relative to contiguous.
pub const LIFETIME_TO_CONTIGUOUS: &str =
    "4,096 ranges of 64 KiB, register + map + free: time of batch, relative to one contiguous range";
/// Register: multi relative to batch.
pub const MULTI_TO_BATCH_REGISTER: &str =
    "4,096 ranges of 64 KiB, register: time of one call per range, relative to batch";
/// Register: batch relative to the kernel's own call.
pub const REGISTER_TO_BARE_FAULT: &str =
    "4,096 ranges of 64 KiB, register: time of batch, relative to a bare hmm_range_fault per range";
/// Register: batch relative to the driver's faulting.
pub const REGISTER_TO_FAULT: &str =
    "4,096 ranges of 64 KiB, register: time of batch, relative to faulting the pages in and nothing else";
/// Register: batch relative to io_uring.
pub const REGISTER_TO_IO_URING: &str =
    "4,096 ranges of 64 KiB, register: time of batch, relative to io_uring's registration, which pins";
/// The score.
pub const SCORE: &str = "4,096 ranges of 64 KiB, whole job: speed of batch, where one contiguous range is 100";
/// Growth of the time per range.
pub const GROWTH: &str = "65,536 ranges of 4 KiB: time per range, relative to 1,024 ranges";
pub const INVALIDATE: &str =
    "discarding one page: time with 65,536 ranges registered, relative to 16 ranges registered";
/// Restore and n.
pub const RESTORE_N: &str = "restoring 256 ranges: time of 256 out of 65,536, relative to 256 out of 1,024";
/// Restore and k.
pub const RESTORE_K: &str = "restoring 1% of 16,384 ranges: time, relative to restoring all of them";
pub const COPY: &str = "copying out of 10,000 ranges of 16 KiB by SDMA: speed, relative to memcpy of the same ranges";
/// Driver memory.
pub const MEMORY: &str = "driver memory, relative to 64 bytes per range and 16 bytes per page (the worst case)";

/// Moving to a GPU by granules: coherent, private.
pub const MOVE_TO_GPU: [&str; 2] = [
    "moving to the GPU in requests of 2 MiB, coherent: speed, relative to memcpy of as many bytes",
    "moving to the GPU in requests of 2 MiB, private: speed, relative to memcpy of as many bytes",
];
/// Moving back by granules: coherent, private.
pub const MOVE_BACK: [&str; 2] = [
    "moving back in requests of 2 MiB, coherent: speed, relative to memcpy of as many bytes",
    "moving back in requests of 2 MiB, private: speed, relative to memcpy of as many bytes",
];
/// One request against page by page: coherent, private.
pub const BATCHING: [&str; 2] = [
    "64 MiB to the GPU in one request, coherent: speed, relative to one request per page",
    "64 MiB to the GPU in one request, private: speed, relative to one request per page",
];
/// The CPU reads in place: pages spread over the buffer.
pub const IN_PLACE: &str = "CPU reads 1% of the pages of 256 MiB on the GPU: speed of coherent, relative to private";
/// A guest's whole job.
pub const GUEST_JOB: &str =
    "a guest's buffer in 16,384 pieces, whole job with a kernel: speed of batch, where the same in one piece is 100";
/// A guest's registration against a local one.
pub const GUEST_REGISTER: &str =
    "a guest's buffer in 16,384 pieces, register: time by batch, relative to the same list by a local client";

/// A goal.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// What is measured.
    pub what: &'static str,
    /// At least or at most this.
    pub bound: Bound,
    /// What was measured; the median counts. `None`: it could not be, see what was left out.
    pub measured: Option<Spread>,
    /// Whether it was reached.
    pub met: bool,
}

/// A bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// At least.
    AtLeast(f64),
    /// At most.
    AtMost(f64),
}

impl Bound {
    /// In words.
    pub fn text(self) -> String {
        match self {
            Self::AtLeast(limit) => format!("at least {limit}"),
            Self::AtMost(limit) => format!("at most {limit}"),
        }
    }
}

impl Goal {
    /// A goal of at least `limit`.
    pub fn at_least(what: &'static str, limit: f64, measured: Option<Spread>) -> Self {
        let met = measured.is_some_and(|spread| spread.median >= limit);
        Self { what, bound: Bound::AtLeast(limit), measured, met }
    }

    /// A goal of at most `limit`.
    pub fn at_most(what: &'static str, limit: f64, measured: Option<Spread>) -> Self {
        let met = measured.is_some_and(|spread| spread.median <= limit);
        Self { what, bound: Bound::AtMost(limit), measured, met }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides_and_nothing_measured_is_not_met() {
        let spread = |samples: [f64; 3]| Spread::of(samples);
        assert!(Goal::at_least("x", 5.0, spread([1.0, 5.0, 9.0])).met);
        assert!(!Goal::at_least("x", 5.0, spread([4.0, 4.9, 90.0])).met);
        assert!(Goal::at_most("x", 1.3, spread([1.0, 1.3, 9.0])).met);
        assert!(!Goal::at_most("x", 1.3, spread([0.1, 1.31, 1.4])).met);
        assert!(!Goal::at_most("x", 1.3, None).met);
    }
}
