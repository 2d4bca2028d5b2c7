// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The driver's events in a timeline: a stream of each GPU's SMI events that no program reads.

use std::sync::Arc;

use vkfd_driver::seams::event_stream::EventStream;
use vkfd_gpu::Timeline;

/// All events of a GPU.
pub(crate) struct GpuEvents {
    pub(crate) gpu: usize,
    pub(crate) timeline: Arc<Timeline>,
}

impl EventStream for GpuEvents {
    fn mask(&self) -> u64 {
        u64::MAX
    }

    fn write(&self, line: &[u8]) {
        self.timeline.event(self.gpu, line);
    }

    fn is_closed(&self) -> bool {
        false
    }
}
