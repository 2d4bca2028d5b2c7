// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hardware queue descriptors (HQDs): the registers that exist once for each queue.
//!
//! `GRBM_GFX_CNTL` selects the queue that `CP_MQD_BASE_ADDR` to `CP_HQD_PQ_WPTR_HI` belong to. A
//! memory queue descriptor (MQD) has the same registers in the same order from [`IN_MQD`] on.

use crate::registers::{gc, Dword};
use std::fmt;

/// Registers of a queue.
pub const WORDS: usize = (gc::CP_HQD_PQ_WPTR_HI - gc::CP_MQD_BASE_ADDR + 1) as usize;
/// Where they are in an MQD, in words.
pub const IN_MQD: u64 = 128;

/// Which queue: micro engine, pipe, queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct HqdId {
    pub me: u8,
    pub pipe: u8,
    pub queue: u8,
}

impl HqdId {
    /// The queue that a value of `GRBM_GFX_CNTL` selects.
    pub fn selected(value: u32) -> Self {
        let [low, high, ..] = value.to_le_bytes();
        Self { me: low >> 2 & 3, pipe: low & 3, queue: high & 7 }
    }

    /// Its number as interrupts have it.
    pub const fn ring(self) -> u8 {
        self.me << 2 | self.pipe | self.queue << 4
    }
}

impl fmt::Display for HqdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.me, self.pipe, self.queue)
    }
}

/// A queue's registers.
#[derive(Clone, Copy, Debug)]
pub struct Hqd(pub [u32; WORDS]);

impl Default for Hqd {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

/// The place of a register among a queue's, if it is one.
pub fn place(at: Dword) -> Option<usize> {
    let place = usize::try_from(at.checked_sub(gc::CP_MQD_BASE_ADDR)?).ok()?;
    (place < WORDS).then_some(place)
}

impl Hqd {
    /// The register `at`; 0 if it exists once for all queues.
    pub fn get(&self, at: Dword) -> u32 {
        place(at).and_then(|place| self.0.get(place)).copied().unwrap_or(0)
    }

    /// Sets the register `at`, if each queue has one.
    pub fn set(&mut self, at: Dword, value: u32) {
        if let Some(register) = place(at).and_then(|place| self.0.get_mut(place)) {
            *register = value;
        }
    }

    fn wide(&self, low: Dword, high: Dword) -> u64 {
        u64::from(self.get(low)) | u64::from(self.get(high)) << 32
    }

    pub fn is_active(&self) -> bool {
        self.get(gc::CP_HQD_ACTIVE) & 1 != 0
    }

    pub fn vmid(&self) -> u8 {
        self.get(gc::CP_HQD_VMID).to_le_bytes()[0] & 0xf
    }

    /// The ring's address.
    pub fn ring(&self) -> u64 {
        self.wide(gc::CP_HQD_PQ_BASE, gc::CP_HQD_PQ_BASE_HI) << 8
    }

    /// Words of the ring.
    pub fn ring_words(&self) -> u64 {
        2u64 << (self.get(gc::CP_HQD_PQ_CONTROL) & 0x1f)
    }

    /// Packets are AQL: the write pointer counts slots.
    pub fn is_aql(&self) -> bool {
        self.get(gc::CP_HQD_PQ_CONTROL) >> 25 & 3 == 2
    }

    /// Where the read pointer is reported.
    pub fn report(&self) -> u64 {
        self.wide(gc::CP_HQD_PQ_RPTR_REPORT_ADDR, gc::CP_HQD_PQ_RPTR_REPORT_ADDR_HI) & 0xffff_ffff_fffc
    }

    /// Where the write pointer is in memory.
    pub fn wptr_address(&self) -> u64 {
        self.wide(gc::CP_HQD_PQ_WPTR_POLL_ADDR, gc::CP_HQD_PQ_WPTR_POLL_ADDR_HI) & 0xffff_ffff_fff8
    }

    pub fn wptr(&self) -> u64 {
        self.wide(gc::CP_HQD_PQ_WPTR_LO, gc::CP_HQD_PQ_WPTR_HI)
    }

    /// The doorbell, in words of the BAR.
    pub fn doorbell(&self) -> Dword {
        self.get(gc::CP_HQD_PQ_DOORBELL_CONTROL) >> 2 & 0x03ff_ffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_queue_is_the_drivers() {
        // soc15_grbm_select(me 2, pipe 1, queue 5, vmid 9)
        let id = HqdId::selected(5 << 8 | 9 << 4 | 2 << 2 | 1);
        assert_eq!(id, HqdId { me: 2, pipe: 1, queue: 5 });
        assert_eq!(id.ring(), 0x59);
        assert_eq!(WORDS, 56);
        assert_eq!((place(gc::CP_HQD_VMID), place(gc::CP_MQD_BASE_ADDR - 1)), (Some(3), None));
    }
}
