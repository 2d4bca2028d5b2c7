// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Processes' pages in a GPU's memory: the driver's side of [`crate::device_memory`].
//!
//! A place is VRAM like any other object's. It is offered to the host, and comes back when the host has released it: it is wiped then.

use crate::addr::{VramOffset, PAGE};
use crate::counters::Counter;
use crate::device_memory::DeviceMemory;
use crate::gpu::Gpu;
use crate::os::Arc;
use crate::vram::{Vram, VramBlock};

/// A GPU's memory as places for pages.
pub struct Residents {
    gpu: Arc<dyn Gpu>,
    vram: Arc<Vram>,
    coherent: bool,
    moved: Counter,
    released: Counter,
}

impl Residents {
    /// None yet.
    pub fn new(gpu: Arc<dyn Gpu>, vram: Arc<Vram>, coherent: bool) -> Self {
        Self { gpu, vram, coherent, moved: Counter::default(), released: Counter::default() }
    }

    /// Pages that the host has taken so far.
    pub(crate) const fn moved(&self) -> &Counter {
        &self.moved
    }

    /// Of these, how many it has given back.
    pub(crate) const fn released(&self) -> &Counter {
        &self.released
    }

    /// Gives back what the host does not have.
    pub(crate) fn free(&self, places: &[Option<VramOffset>]) {
        for place in places.iter().flatten() {
            self.vram.free(&*self.gpu, &[VramBlock { at: *place, pages: 1 }]);
        }
    }
}

impl DeviceMemory for Residents {
    fn gpu_id(&self) -> u32 {
        self.gpu.properties().gpu_id
    }

    fn coherent(&self) -> bool {
        self.coherent
    }

    fn released(&self, at: VramOffset, pages: u64) {
        self.released.add(pages);
        let (mut at, mut left) = (at, pages);
        while left > 0 {
            // The allocator's blocks are aligned to their size.
            let aligned = 1_u64.checked_shl((at.0 / PAGE).trailing_zeros()).unwrap_or(u64::MAX);
            let block = aligned.min(1 << left.ilog2());
            self.vram.free(&*self.gpu, &[VramBlock { at, pages: block }]);
            at = VramOffset(at.0 + block * PAGE);
            left -= block;
        }
    }
}
