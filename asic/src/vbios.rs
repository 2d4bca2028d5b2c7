// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The VBIOS: 4 KiB of tables that describe the card, written here and by nobody else.
//!
//! AMD's driver looks for a PCI ROM header, an ATOM header, and three tables of data. The
//! firmware's has clocks and the place of the scratch registers, and the power controller's has the
//! reference clock. The graphics engine's has the [`Shape`]. There are no command tables: the card
//! says that it was set up already, so none is run. Without a table of memory controllers the
//! driver takes the memory to be without ECC.
//!
//! Layouts are those of the kernel's `atomfirmware.h`.

use crate::registers::system::nbio;
use crate::shape::Shape;

/// Bytes of it.
pub const BYTES: usize = 4096;

/// Where things are.
const PCI_HEADER: usize = 0x400;
const ATOM_HEADER: usize = 0x100;
const CONFIG_NAME: usize = 0xf0;
const COMMANDS: usize = 0x180;
const DATA: usize = 0x230;
const FIRMWARE_INFO: usize = 0x280;
const GFX_INFO: usize = 0x300;
const SMU_INFO: usize = 0x380;
const MESSAGE: usize = 0x90;

/// Entries of the lists of tables (`atom_master_list_of_*_v2_1`).
const COMMAND_TABLES: u16 = 80;
const DATA_TABLES: u16 = 35;
/// The machine's firmware calls the ROM here at power-on: it returns at once (RETF).
const ENTRY: usize = 3;
const RETURN: u8 = 0xcb;
/// Places in the list of data.
const FIRMWARE_INDEX: usize = 4;
const SMU_INDEX: usize = 8;
const GFX_INDEX: usize = 14;

/// The driver's clocks count in 10 kHz.
const REFERENCE_10KHZ: u32 = 10_000;

struct Rom(Vec<u8>);

impl Rom {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn half(&mut self, at: usize, value: usize) {
        self.put(at, &u16::try_from(value).unwrap_or(0).to_le_bytes());
    }

    fn word(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    /// A table's header: its size and version.
    fn header(&mut self, at: usize, bytes: u16, major: u8, minor: u8) {
        self.put(at, &bytes.to_le_bytes());
        self.put(at + 2, &[major, minor]);
    }
}

fn byte(value: u32) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

/// The ROM of a device.
pub fn vbios(shape: &Shape) -> Vec<u8> {
    let mut rom = Rom(vec![0; BYTES]);
    let blocks = byte(u32::try_from(BYTES / 512).unwrap_or(0));
    rom.put(0, &[0x55, 0xaa, blocks]);
    rom.put(ENTRY, &[RETURN]);
    rom.half(0x18, PCI_HEADER);
    rom.put(0x30, b" 761295520");
    rom.put(0x50, b"01/01/26 00:00");
    rom.half(0x6e, MESSAGE);
    rom.put(MESSAGE - 0x10, b"113-VKFD-000\0");
    rom.put(MESSAGE, b"\0vkfd software GPU\0");

    rom.put(PCI_HEADER, b"PCIR");
    rom.half(PCI_HEADER + 4, 0x1002);
    rom.half(PCI_HEADER + 6, shape.device_id.into());
    rom.half(PCI_HEADER + 10, 0x18);
    rom.put(PCI_HEADER + 13, &[0, 0, 0x12]);
    rom.half(PCI_HEADER + 16, blocks.into());
    // The last image.
    rom.put(PCI_HEADER + 21, &[0x80]);

    rom.half(0x48, ATOM_HEADER);
    rom.header(ATOM_HEADER, 0x28, 2, 2);
    rom.put(ATOM_HEADER + 4, b"ATOM");
    rom.half(ATOM_HEADER + 0xc, CONFIG_NAME);
    rom.put(CONFIG_NAME, b"vkfd\0");
    rom.half(ATOM_HEADER + 0x1e, COMMANDS);
    rom.half(ATOM_HEADER + 0x20, DATA);
    rom.header(COMMANDS, 4 + 2 * COMMAND_TABLES, 2, 1);
    rom.header(DATA, 4 + 2 * DATA_TABLES, 2, 1);
    for (index, at) in [(FIRMWARE_INDEX, FIRMWARE_INFO), (SMU_INDEX, SMU_INFO), (GFX_INDEX, GFX_INFO)] {
        rom.half(DATA + 4 + 2 * index, at);
    }

    // atom_firmware_info_v3_1
    rom.header(FIRMWARE_INFO, 0x4c, 3, 1);
    rom.word(FIRMWARE_INFO + 4, 0x1_0000);
    rom.word(FIRMWARE_INFO + 8, shape.shader_mhz * 100);
    rom.word(FIRMWARE_INFO + 12, shape.memory_mhz * 100);
    rom.word(FIRMWARE_INFO + 24, nbio::BIOS_SCRATCH_0);
    // atom_smu_info_v3_1
    rom.header(SMU_INFO, 0x1c, 3, 1);
    rom.word(SMU_INFO + 16, REFERENCE_10KHZ);
    gfx_info(&mut rom, shape);

    // The bytes of a ROM add up to 0.
    let sum = rom.0.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    rom.put(0x21, &[0u8.wrapping_sub(sum)]);
    rom.0
}

/// atom_gfx_info_v2_4
fn gfx_info(rom: &mut Rom, shape: &Shape) {
    rom.header(GFX_INFO, 0x50, 2, 4);
    let per_array = byte(shape.units_per_array());
    let (engines, arrays) = (byte(shape.units.engines), byte(shape.units.arrays));
    // Backends of an engine, and texture channels.
    rom.put(GFX_INFO + 4, &[0, 0, engines, 0, per_array, arrays, 1, 16]);
    // The frequency of the counter of time.
    rom.word(GFX_INFO + 40, REFERENCE_10KHZ);
    rom.put(GFX_INFO + 44, &[per_array, 0]);
    let half = |value: u32| u16::try_from(value).unwrap_or(0);
    // From gcgoldenoffset on: registers, sizes of buffers, wave size, waves of a SIMD, LDS.
    let (waves, lanes) = (half(shape.waves_per_simd), half(shape.wave_size));
    for (index, value) in [0, 512, 0, 0, lanes, waves, 64].into_iter().enumerate() {
        rom.half(GFX_INFO + 46 + 2 * index, usize::from(value));
    }
    rom.put(GFX_INFO + 60, &[32, 32, 0, byte(shape.scratch_slots)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::tests::mi210;

    /// SeaBIOS runs each ROM whose bytes add up to 0, with a far call to its fourth byte. Zeros
    /// there are instructions, and the machine runs on into nowhere.
    #[test]
    fn the_machines_firmware_comes_back_from_the_rom() {
        assert_eq!(vbios(&mi210())[3], 0xcb);
    }

    /// As the driver reads it: through the pointers.
    #[test]
    fn the_drivers_way_through_the_tables_ends_at_the_shape() {
        let rom = vbios(&mi210());
        let half = |at: usize| usize::from(u16::from_le_bytes([rom[at], rom[at + 1]]));
        assert_eq!((&rom[..2], usize::from(rom[2]) * 512), (&[0x55, 0xaa][..], rom.len()));
        assert_eq!(&rom[half(0x18)..][..8], b"PCIR\x02\x10\x0f\x74");
        assert_eq!(&rom[0x30..0x3a], b" 761295520");
        let header = half(0x48);
        assert_eq!(&rom[header + 4..header + 8], b"ATOM");
        let (commands, data) = (half(header + 0x1e), half(header + 0x20));
        assert!((0..80).all(|index| half(commands + 4 + 2 * index) == 0), "no command is there to run");
        // The lists do not lie over each other.
        assert!(commands + half(commands) <= data && data + half(data) <= half(data + 4 + 2 * 4));
        let gfx = half(data + 4 + 2 * 14);
        assert_eq!((rom[gfx + 2], rom[gfx + 3]), (2, 4));
        assert_eq!((rom[gfx + 6], rom[gfx + 8], rom[gfx + 9]), (8, 13, 1));
        assert_eq!((half(gfx + 54), half(gfx + 56), half(gfx + 58)), (64, 8, 64));
        assert_eq!(rom.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
    }
}
