// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The PCI function: configuration space with its capabilities, and what is behind each BAR.
//!
//! Accesses of any size are answered. Bits that hardware does not let software write keep their
//! values.

use crate::registers::file;
use crate::shape::Shape;
use crate::vbios;

const VENDOR: u16 = 0x1002;
/// A display controller that is no VGA card.
const CLASS: [u8; 3] = [0, 0x80, 0x03];

/// Bytes of the configuration space.
pub const CONFIG_BYTES: u64 = 4096;
/// Bytes of the doorbells' BAR.
pub const DOORBELL_BYTES: u64 = 2 << 20;

/// The BARs.
pub mod bar {
    pub const VRAM: u32 = 0;
    pub const DOORBELLS: u32 = 2;
    pub const REGISTERS: u32 = 5;
}

const COMMAND: usize = 0x04;
const ROM: usize = 0x30;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
/// Power management.
const POWER: usize = 0x48;
/// PCI Express.
const EXPRESS: usize = 0x50;
/// Interrupts as messages: one, with an address of 64 bits.
const MSI: usize = 0xa0;

/// Memory, bus mastering, no interrupt line.
const COMMAND_BITS: u16 = 0x0406;

/// The configuration space.
pub struct Config {
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

impl Config {
    /// As after a reset.
    pub fn new(shape: &Shape, vram_bytes: u64) -> Self {
        let size = usize::try_from(CONFIG_BYTES).unwrap_or(0);
        let rom = u32::try_from(vbios::BYTES).unwrap_or(0);
        let mut config = Self { bytes: vec![0; size], writable: vec![0; size] };
        config.put(0, &VENDOR.to_le_bytes());
        config.put(2, &shape.device_id.to_le_bytes());
        // There is a list of capabilities.
        config.put(6, &0x10u16.to_le_bytes());
        config.put(8, &[shape.revision]);
        config.put(9, &CLASS);
        config.allow(COMMAND, &COMMAND_BITS.to_le_bytes());
        config.put(0x2c, &VENDOR.to_le_bytes());
        config.put(0x2e, &0x0c34u16.to_le_bytes());
        // The ROM's address, by which its size is found out, and whether it answers.
        config.allow(ROM, &(!(rom - 1) | 1).to_le_bytes());
        config.put(CAPABILITIES, &[byte(POWER)]);
        config.put(INTERRUPT_LINE + 1, &[1]);
        config.allow(INTERRUPT_LINE, &[0xff]);
        // 64 bits, prefetchable.
        config.bar(bar::VRAM, vram_bytes, 0xc, true);
        config.bar(bar::DOORBELLS, DOORBELL_BYTES, 0xc, true);
        config.bar(bar::REGISTERS, file::BYTES, 0, false);
        config.put(POWER, &[1, byte(EXPRESS), 3, 0]);
        config.allow(POWER + 4, &[3, 0]);
        // A legacy endpoint of version 2, 16 lanes at 8 GT/s, in both link registers.
        config.put(EXPRESS, &[0x10, byte(MSI), 0x12, 0, 0x00, 0x80]);
        config.put(EXPRESS + 12, &0x103u32.to_le_bytes());
        config.put(EXPRESS + 18, &0x103u16.to_le_bytes());
        config.allow(EXPRESS + 8, &[0xff, 0xff]);
        config.allow(EXPRESS + 16, &[0xff, 0xff]);
        config.put(MSI, &[5, 0, 0x80, 0]);
        config.allow(MSI + 2, &[0x01]);
        config.allow(MSI + 4, &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        config
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn allow(&mut self, at: usize, bits: &[u8]) {
        if let Some(place) = self.writable.get_mut(at..at + bits.len()) {
            place.copy_from_slice(bits);
        }
    }

    /// A BAR's bits: those above its size can be written.
    fn bar(&mut self, index: u32, bytes: u64, flags: u32, wide: bool) {
        let at = 0x10 + 4 * usize::try_from(index).unwrap_or(0);
        let mask = !(bytes.next_power_of_two().max(16) - 1);
        let [low, high] = file::halves(mask);
        self.put(at, &flags.to_le_bytes());
        self.allow(at, &low.to_le_bytes());
        if wide {
            self.allow(at + 4, &high.to_le_bytes());
        }
    }

    /// Reads; what is outside of the space is zero.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = place(offset, index).and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
    }

    /// Writes the bits that can be written.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (index, new) in data.iter().enumerate() {
            let Some(at) = place(offset, index) else { return };
            if let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *byte = (*byte & !mask) | (new & mask);
            }
        }
    }
}

/// The place `index` bytes after an offset, which may be any number.
pub fn place(offset: u64, index: usize) -> Option<usize> {
    usize::try_from(offset).ok()?.checked_add(index)
}

fn byte(offset: usize) -> u8 {
    u8::try_from(offset).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::tests::mi210;

    fn word(config: &Config, at: u64) -> u32 {
        let mut bytes = [0; 4];
        config.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn bars_tell_their_size_and_keep_an_address() {
        let mut config = Config::new(&mi210(), 1 << 30);
        assert_eq!((word(&config, 0), word(&config, 8)), (0x740f_1002, 0x0380_0002));
        for (at, low, high) in [(0x10, 0xc000_000c, 0xffff_ffff), (0x18, 0xffe0_000c, 0xffff_ffff)] {
            config.write(at, &[0xff; 8]);
            assert_eq!((word(&config, at), word(&config, at + 4)), (low, high));
        }
        config.write(0x24, &[0xff; 4]);
        assert_eq!(word(&config, 0x24), 0xfff8_0000);
        config.write(0x30, &[0xff; 4]);
        assert_eq!(word(&config, 0x30), 0xffff_f001);
        config.write(0, &[0xff; 4]);
        assert_eq!(word(&config, 0), 0x740f_1002, "numbers are fixed");
    }

    #[test]
    fn the_list_of_capabilities_has_an_end() {
        let config = Config::new(&mi210(), 1 << 30);
        let (mut at, mut kinds) = (word(&config, 0x34) & 0xff, Vec::new());
        while at != 0 {
            let word = word(&config, at.into());
            kinds.push(word & 0xff);
            at = word >> 8 & 0xff;
        }
        assert_eq!(kinds, [1, 0x10, 5]);
    }

    #[test]
    fn accesses_outside_do_nothing() {
        let mut config = Config::new(&mi210(), 1 << 30);
        for at in [4095, 4096, 1 << 40, u64::MAX - 1] {
            config.write(at, &[0xff; 8]);
            assert_eq!(word(&config, at), 0, "{at:#x}");
        }
    }
}
