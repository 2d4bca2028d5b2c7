// SPDX-License-Identifier: GPL-2.0 OR MIT
//! System memory of the driver: zeroes, of which only words that were written take room.

use crate::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use vkfd_driver::base::addr::{PhysAddr, PAGE};
use vkfd_driver::seams::gpu::DmaMemory;

pub(crate) struct SimDma {
    bytes: u64,
    first: PhysAddr,
    words: Mutex<HashMap<u64, u64>>,
}

impl SimDma {
    pub(crate) fn new(bytes: u64, first: PhysAddr) -> Self {
        Self { bytes, first, words: Mutex::default() }
    }
}

impl DmaMemory for SimDma {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn page(&self, index: u64) -> PhysAddr {
        PhysAddr(self.first.0 + index * PAGE)
    }
    fn write_u64(&self, at: u64, value: u64) {
        assert!(at % 8 == 0 && at < self.bytes, "no word at {at:#x}");
        lock(&self.words).insert(at, value);
    }
    fn read_u64(&self, at: u64) -> u64 {
        assert!(at % 8 == 0 && at < self.bytes, "no word at {at:#x}");
        lock(&self.words).get(&at).copied().unwrap_or(0)
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
