// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Floating point of eight bits: which part of a register a conversion reads, and which it writes.

#![allow(missing_docs, clippy::indexing_slicing, reason = "a test")]

use crate::support;

use support::{group, inst, wave, BASE};
use vkfd_cu::{reference, Flat};
use vkfd_isa::{Extension, Format, Inst, Mods, Op, Operand, Sdwa, SdwaSelect, SdwaUnused, Target};

/// Numbers as eight-bit floats with three bits behind the point.
const ONE: u32 = 0x40;
const TWO: u32 = 0x48;
const MINUS_HALF: u32 = 0xb8;

/// Registers 8 and 9, which were ones, after an operation on registers 0 and 1.
fn run(op: Op, extension: Extension, op_sel: u8, sources: [u32; 2]) -> [u32; 2] {
    let mut wave = wave(Target::Gfx942);
    (wave.rows[0].0[0], wave.rows[1].0[0]) = (sources[0], sources[1]);
    (wave.rows[8].0[0], wave.rows[9].0[0]) = (u32::MAX, u32::MAX);
    wave.set_pair(Operand::EXEC, 1);
    let format = if extension == Extension::None { Format::Vop3 } else { Format::Vop1 };
    let mods = Mods { op_sel, ..Mods::default() };
    let inst = Inst { extension, mods, ..inst(op, format, 8, [0, 1, 2]) };
    reference::execute(&inst, &mut wave, &mut group(0), &mut Flat::new(BASE, 1)).expect("executes");
    [wave.rows[8].0[0], wave.rows[9].0[0]]
}

#[test]
fn a_part_of_the_source_is_chosen_and_both_numbers_arrive() {
    let source = ONE | TWO << 8 | MINUS_HALF << 16 | TWO << 24;
    let part = |select| {
        let (dst, unused) = (SdwaSelect::Dword, SdwaUnused::Pad);
        Extension::Sdwa(Sdwa { dst, unused, src: [select, SdwaSelect::Dword], sext: [false; 2] })
    };
    let pair = |select| run(Op::VCvtPkF32Fp8, part(select), 0, [source, 0]).map(f32::from_bits);
    assert_eq!(pair(SdwaSelect::Word0), [1.0, 2.0]);
    assert_eq!(pair(SdwaSelect::Word1), [-0.5, 2.0]);
    let single = run(Op::VCvtF32Fp8, part(SdwaSelect::Byte2), 0, [source, 0]);
    assert_eq!(f32::from_bits(single[0]), -0.5);
    assert_eq!(single[1], u32::MAX, "one register is written");
}

#[test]
fn a_half_or_a_byte_of_the_destination_is_written() {
    let numbers = [1.0_f32, -0.5].map(f32::to_bits);
    let pack = |op_sel| run(Op::VCvtPkFp8F32, Extension::None, op_sel, numbers)[0];
    assert_eq!(pack(0), 0xffff_0000 | MINUS_HALF << 8 | ONE);
    assert_eq!(pack(8), MINUS_HALF << 24 | ONE << 16 | 0xffff);
    for byte in 0..4 {
        // No random bits: what is exact stays.
        let packed = run(Op::VCvtSrFp8F32, Extension::None, byte << 2, [numbers[0], 0])[0];
        assert_eq!(packed, !(0xff << (8 * byte)) | ONE << (8 * byte), "byte {byte}");
    }
}
