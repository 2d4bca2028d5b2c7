// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The scratch of a work-group: a part of the queue's scratch for each wave, in which the lanes'
//! words are interleaved.
//!
//! A lane's own bytes are as many as its launch asked for. Beyond them is nothing that belongs to
//! it, also where the runtime has rounded the wave's part up.

/// The scratch of a work-group's waves.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    base: u64,
    /// Bytes of all waves.
    bytes: u64,
    wave_bytes: u64,
    /// The part of each wave.
    slots: Vec<u32>,
    /// Bytes of a lane; 0: it is not known.
    pub(super) private: u32,
}

impl Scratch {
    pub(super) fn new(scratch: crate::launch::Scratch, slots: &[u32], private: u32) -> Scratch {
        let wave_bytes = u64::from(scratch.wave_bytes);
        let bytes = wave_bytes * u64::from(scratch.waves);
        Scratch { base: scratch.base, bytes, wave_bytes, slots: slots.to_vec(), private }
    }

    /// Whether an address is in scratch, of any wave.
    pub(super) fn contains(&self, va: u64) -> bool {
        va.wrapping_sub(self.base) < self.bytes
    }

    /// The offset of an address in the part of a wave.
    pub(super) fn offset(&self, wave: u16, va: u64) -> Option<u64> {
        let slot = self.slots.get(usize::from(wave)).copied().unwrap_or(0);
        let start = self.base.wrapping_add(self.wave_bytes * u64::from(slot));
        Some(va.wrapping_sub(start)).filter(|offset| *offset < self.wave_bytes)
    }

    /// Bytes of a wave's part that its lanes asked for.
    pub(super) fn asked(&self, lanes: u8) -> u64 {
        match self.private {
            0 => self.wave_bytes,
            private => (u64::from(private).next_multiple_of(4) * u64::from(lanes)).min(self.wave_bytes),
        }
    }

    /// Whether a lane of a wave may reach bytes.
    pub(super) fn allows(&self, wave: u16, lanes: u8, va: u64, bytes: u64) -> bool {
        self.offset(wave, va).is_some_and(|offset| offset + bytes <= self.asked(lanes))
    }
}
