// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What gfx11's hardware takes and LLVM 19's tables do not know: halves of registers in operations
//! of 16 bits, and fields that an operation has no use for. Newer compilers write both.
//!
//! Mechanism: words are decoded by the tables first. What the tables refuse is tried again without
//! the bits that may not matter, and the bits are read here. The disassembler is `llvm-mc`'s equal
//! and knows nothing of this.
//!
//! Limits: halves in DPP forms and of the second sources of `v_fmamk_f16` are not read.

use crate::decode::{decode, DecodeError, MAX_WORDS};
use crate::inst::{Format, Inst};
use crate::{Op, Target};

/// Decodes the instruction at the start of `words` as the hardware does, which takes more than
/// [`decode`].
///
/// # Errors
///
/// If the words are no instruction of the target.
#[inline]
pub fn decode_as_hardware(target: Target, words: &[u32]) -> Result<Inst, DecodeError> {
    let decoded = decode(target, words);
    // NEW TARGET: whether hardware takes words that the tables refuse
    if target != Target::Gfx1100 {
        return decoded;
    }
    match decoded {
        Ok(inst) => match words.first() {
            Some(&first) if inst.format == Format::Vop3 => Ok(with_halves(inst, halves(first))),
            _ => Ok(inst),
        },
        Err(error) => again(target, words, error),
    }
}

/// The prefix that says what an encoding is.
fn prefix(word: u32) -> u32 {
    word >> 26
}

const VOP3: u32 = 0b11_0101;
const VOP3P: u32 = 0b11_0011;
const VOPD: u32 = 0b11_0010;
const DS: u32 = 0b11_0110;
/// The number of a move in both halves of a dual instruction.
const DUAL_MOVE: u32 = 8;

/// The numbers of two moves of 16 bits in VOP3: the tables have the one that inverts alone.
const MOVE_B16: u32 = 0x19c;
const NOT_B16: u32 = 0x1e9;
/// What compilers have in a source's place that an operation has no use for: zero.
const UNUSED: u32 = 0x80;

/// Bits of `op_sel`.
const UPPER_DESTINATION: u8 = 8;
const UPPER_THIRD: u8 = 4;

/// Bits of the first word of a VOP3 that say which halves of its registers it has. Operations with
/// a second destination, a scalar one, have that in the place.
fn halves_of(word: u32) -> u32 {
    let has_destination = matches!(word >> 16 & 0x3ff, 0x120..=0x122 | 0x2fc..=0x302);
    if prefix(word) != VOP3 || has_destination {
        return 0;
    }
    15 << 11
}

/// Which halves of its registers a VOP3 has.
fn halves(word: u32) -> u8 {
    ((word & halves_of(word)) >> 11).to_le_bytes()[0]
}

/// Decodes words that the tables refuse again, without the bits that the tables do not know.
#[cold]
fn again(target: Target, words: &[u32], error: DecodeError) -> Result<Inst, DecodeError> {
    let Some(&first) = words.first() else { return Err(error) };
    let mut plain = [0; MAX_WORDS];
    let count = words.len().min(MAX_WORDS);
    plain[..count].copy_from_slice(&words[..count]);
    let without = |cleared: [u32; 2]| {
        let mut plain = plain;
        plain[0] &= !cleared[0];
        plain[1] &= !cleared[1];
        decode(target, &plain[..count])
    };
    let found = match prefix(first) {
        VOPD => {
            let first_moves = if first >> 22 & 15 == DUAL_MOVE { 0xff << 9 } else { 0 };
            let second_moves = if first >> 17 & 31 == DUAL_MOVE { 0xff << 9 } else { 0 };
            without([first_moves, second_moves])
        }
        DS => {
            // The fewest first: what an operation has a use for is not refused.
            let (data0, data1, vdst) = (0xff << 8, 0xff << 16, 0xff << 24);
            let unused = [vdst, data1, data0, vdst | data1, data0 | data1, vdst | data0, vdst | data0 | data1];
            let mut tried = unused.into_iter().map(|unused| without([0, unused]));
            tried.find(|tried| !matches!(tried, Err(DecodeError::Unknown(..)))).unwrap_or(Err(error))
        }
        VOP3 => {
            let is_move = first >> 16 & 0x3ff == MOVE_B16;
            if is_move {
                plain[0] ^= (MOVE_B16 ^ NOT_B16) << 16;
            }
            let found = without_sources(target, plain, count);
            let moved = |inst| if is_move { Inst { op: Op::VMovB16, ..inst } } else { inst };
            found.map(|inst| with_halves(moved(inst), halves(first)))
        }
        VOP3P => without_sources(target, plain, count),
        // VOP1 and VOP2: the destination's highest bit is that of the upper half.
        0..=0x1f if first >> 24 & 1 == 1 && first >> 25 != 0x3e => {
            without([1 << 24, 0]).map(|inst| with_halves(inst, UPPER_DESTINATION))
        }
        _ => Err(error),
    };
    match found {
        Err(DecodeError::Unknown(..)) => Err(error),
        // There may be more of it in words that are not there.
        found => found,
    }
}

/// A VOP3 without halves, or a VOP3P, without the sources that it has no use for.
fn without_sources(target: Target, mut words: [u32; MAX_WORDS], count: usize) -> Result<Inst, DecodeError> {
    words[0] &= !halves_of(words[0]);
    let mut found = decode(target, &words[..count]);
    // The last first: what an operation has a use for is not refused.
    for place in [18, 9] {
        let source = words[1] >> place & 0x1ff;
        if !matches!(found, Err(DecodeError::Unknown(..))) || (source != UNUSED && source != 0) {
            break;
        }
        words[1] &= !(0x1ff << place);
        found = decode(target, &words[..count]);
    }
    found
}

/// The halves in the modifiers; what is added to is in the same half as the sum.
fn with_halves(mut inst: Inst, halves: u8) -> Inst {
    inst.mods.op_sel |= halves;
    if inst.op == Op::VFmacF16 && halves & UPPER_DESTINATION != 0 {
        inst.mods.op_sel |= UPPER_THIRD;
    }
    inst
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operand;

    fn one(words: &[u32]) -> Inst {
        decode_as_hardware(Target::Gfx1100, words).unwrap_or_else(|error| panic!("{words:08x?}: {error}"))
    }

    #[test]
    fn a_dual_move_has_no_second_source() {
        // v_dual_mov_b32 v2, 0x64 :: v_dual_add_nc_u32 v3, v0, v1; v2 in the empty place
        let words = [0xca20_04ff, 0x0202_0300, 0x64];
        assert!(decode(Target::Gfx1100, &words).is_err());
        let inst = one(&words);
        assert_eq!((inst.op, inst.dst, inst.src[0]), (Op::VMovB32, Operand::Vgpr(2), Operand::Literal(0x64)));
        // The other half's sources matter.
        let pair = inst.pair.expect("a second half");
        assert_eq!((pair.op, pair.src[1]), (Op::VAddU32, Operand::Vgpr(1)));
        assert!(matches!(decode_as_hardware(Target::Gfx1100, &words[..2]), Err(DecodeError::Truncated(_))));
    }

    #[test]
    fn an_atomic_that_returns_nothing_has_no_destination() {
        // ds_add_u32 v10, v1, with v2 as a destination
        let words = [0xd800_0000, 0x0200_010a];
        assert!(decode(Target::Gfx1100, &words).is_err());
        let inst = one(&words);
        assert_eq!((inst.op, inst.dst, inst.memory.data), (Op::DsAddU32, Operand::None, Operand::Vgpr(1)));
        // One that returns has one.
        assert_eq!(one(&[0xd880_0000, 0x0200_010a]).dst, Operand::Vgpr(2));
    }

    #[test]
    fn halves_of_registers_are_read() {
        // v_add_f16 v1, v0, v0 op_sel:[1,0,0]
        assert_eq!(one(&[0xd532_0801, 0x0002_0100]).mods.op_sel, 1);
        // v_fmac_f16 v1, v2, v3 op_sel:[0,0,1]
        assert_eq!(one(&[0xd536_4001, 0x0002_0702]).mods.op_sel, 8 | 4);
        // v_add_f16 v1.h, v2, v3
        let add = one(&[0x6502_0702]);
        assert_eq!((add.op, add.dst, add.mods.op_sel), (Op::VAddF16, Operand::Vgpr(1), 8));
        // v_mov_b16_e64 v64.h, v158.l
        let upper = one(&[0xd59c_4040, 0x0000_019e]);
        assert_eq!((upper.op, upper.dst, upper.mods.op_sel), (Op::VMovB16, Operand::Vgpr(64), 8));
        assert_eq!(upper.src, [Operand::Vgpr(158), Operand::None, Operand::None]);
        // v_add_co_u32 v1, s4, v2, v3: the bits are another register's
        assert_eq!(one(&[0xd700_0401, 0x0002_0702]).mods.op_sel, 0);
        // v_add_f32 v129, v2, v3 has a register of that number.
        assert_eq!(one(&[0x0702_0702]).dst, Operand::Vgpr(129));
    }

    #[test]
    fn sources_that_are_not_there_may_be_zero() {
        // v_cmp_gt_i32_e64 s15, s27, v1, with a third source
        let compare = one(&[0xd444_000f, 0x0202_021b]);
        assert_eq!((compare.op, compare.dst), (Op::VCmpGtI32, Operand::Scalar(15)));
        assert_eq!(compare.src, [Operand::Scalar(27), Operand::Vgpr(1), Operand::None]);
        // v_mov_b16_e64 v64.h, v158.l, with a second and a third; v_mov_b32_e64 v1, v2
        assert_eq!(one(&[0xd59c_4040, 0x0201_019e]), one(&[0xd59c_4040, 0x0000_019e]));
        assert_eq!(one(&[0xd581_0001, 0x0201_0102]), one(&[0xd581_0001, 0x0000_0102]));
        // A source that is there stays: v_max_i32_e64 v1, v2, 0
        let most = one(&[0xd512_0001, 0x0201_0102]);
        assert_eq!((most.op, most.src[1]), (Op::VMaxI32, Operand::Int(0)));
        // What is not the constant is refused.
        let words = [0xd444_000f, 0x0606_021b];
        assert!(matches!(decode_as_hardware(Target::Gfx1100, &words), Err(DecodeError::Unknown(..))));
    }

    #[test]
    fn a_second_destination_is_no_half() {
        // v_add_co_u32 v26, s8, v26, v178 with the constant zero in the empty place
        let add = one(&[0xd700_081a, 0x0203_651a]);
        assert_eq!((add.op, add.sdst, add.mods.op_sel), (Op::VAddCoU32, Operand::Scalar(8), 0));
        // v_pk_lshrrev_b16 v152, 8, v1 op_sel_hi:[0,1], with the same
        let shift = one(&[0xcc05_4098, 0x1202_0288]);
        assert_eq!((shift.op, shift.dst), (Op::VPkLshrrevB16, Operand::Vgpr(152)));
    }

    #[test]
    fn other_targets_are_as_the_tables_say() {
        for words in [[0xd800_0000, 0x0200_010a], [0x6502_0702, 0]] {
            assert_eq!(decode_as_hardware(Target::Gfx1030, &words), decode(Target::Gfx1030, &words));
        }
    }
}
