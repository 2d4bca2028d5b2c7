// SPDX-License-Identifier: GPL-2.0 OR MIT
//! System memory of the driver.

use std::sync::atomic::{AtomicU64, Ordering};
use vkfd_driver::base::addr::{PhysAddr, PAGE};
use vkfd_driver::seams::gpu::DmaMemory;

/// Words, and the address of the first.
pub(super) struct SimDma {
    words: Vec<AtomicU64>,
    first: u64,
}

impl DmaMemory for SimDma {
    fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }
    fn page(&self, index: u64) -> PhysAddr {
        PhysAddr(self.first + index * PAGE)
    }
    fn write_u64(&self, at: u64, value: u64) {
        self.words[usize::try_from(at / 8).unwrap()].store(value, Ordering::SeqCst);
    }
    fn read_u64(&self, at: u64) -> u64 {
        self.words[usize::try_from(at / 8).unwrap()].load(Ordering::SeqCst)
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl SimDma {
    /// Zeroes at an address.
    pub(super) fn new(bytes: u64, first: u64) -> Self {
        Self { words: (0..bytes / 8).map(|_| AtomicU64::new(0)).collect(), first }
    }
}
