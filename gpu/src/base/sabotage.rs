// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Switches that break the GPU, in builds with the `sabotage` feature.

use std::sync::atomic::AtomicBool;
use std::sync::Mutex;

/// Ways to break the GPU, for tests that must notice.
#[derive(Debug, Default)]
pub struct Sabotage {
    /// [`Gpu::flush_tlb`](crate::Gpu::flush_tlb) does nothing.
    pub skip_tlb_flush: AtomicBool,
    /// Copies leave their last byte out.
    pub short_copy: AtomicBool,
    /// The last work-item of a launch does not run.
    pub short_grid: AtomicBool,
    /// The fast engine's handler of this operation spoils its result.
    pub operation: Mutex<Option<vkfd_isa::Op>>,
}
