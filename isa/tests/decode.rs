// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Instructions that are known, and words that are none.

use vkfd_isa::{decode, DecodeError, DppKind, Extension, Format, Inst, Op, Operand, Special, Target};

fn one(target: Target, words: &[u32]) -> Inst {
    decode(target, words).unwrap_or_else(|error| panic!("{target} {words:08x?}: {error}"))
}

#[test]
fn vector_operations_have_their_operands() {
    let add = one(Target::Gfx900, &[0x0200_0401]);
    assert_eq!((add.op, add.format, add.bytes), (Op::VAddF32, Format::Vop2, 4));
    assert_eq!((add.dst, add.src[0], add.src[1]), (Operand::Vgpr(0), Operand::Scalar(1), Operand::Vgpr(2)));
    // v_mul_f32_e32 v5, 0x12345678, v6
    let literal = one(Target::Gfx900, &[0x0a0a_0cff, 0x1234_5678]);
    assert_eq!((literal.op, literal.bytes), (Op::VMulF32, 8));
    assert_eq!(literal.src[0], Operand::Literal(0x1234_5678));
    // v_mac_f32_e32 v1, v2, v3 accumulates
    let mac = one(Target::Gfx900, &[0x2c02_0702]);
    assert_eq!((mac.op, mac.dst, mac.src[2]), (Op::VMacF32, Operand::Vgpr(1), Operand::Vgpr(1)));
    // v_addc_co_u32_e32 v1, vcc, v2, v3, vcc
    let carry = one(Target::Gfx900, &[0x3802_0702]);
    let vcc = Operand::Scalar(Operand::VCC);
    assert_eq!((carry.op, carry.sdst, carry.src[2]), (Op::VAddcCoU32, vcc, vcc));
    // v_cmp_lt_f32_e32 vcc, v1, v2
    let compare = one(Target::Gfx900, &[0x7c82_0501]);
    assert_eq!((compare.op, compare.dst), (Op::VCmpLtF32, vcc));
}

#[test]
fn modifiers_are_read() {
    // v_add_f32_e64 v1, -|v2|, v3 clamp mul:2
    let add = one(Target::Gfx900, &[0xd101_8101, 0x2802_0702]);
    assert_eq!((add.op, add.format), (Op::VAddF32, Format::Vop3));
    assert_eq!((add.mods.neg, add.mods.abs, add.mods.clamp, add.mods.omod), (1, 1, true, 1));
    // v_mov_b32_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
    let dpp = one(Target::Gfx900, &[0x7e02_02fa, 0xff00_b102]);
    let Extension::Dpp(control) = dpp.extension else { panic!("{dpp:?}") };
    assert_eq!((dpp.op, dpp.src[0], control.kind), (Op::VMovB32, Operand::Vgpr(2), DppKind::Ctrl(0xb1)));
}

#[test]
fn memory_operations_have_their_fields() {
    // global_load_dword v1, v2, s[4:5] offset:-16
    let load = one(Target::Gfx900, &[0xdc50_9ff0, 0x0104_0002]);
    assert_eq!((load.op, load.format, load.dst), (Op::GlobalLoadDword, Format::Global, Operand::Vgpr(1)));
    assert_eq!((load.memory.vaddr, load.memory.base), (Operand::Vgpr(2), Operand::Scalar(4)));
    assert_eq!(load.memory.offset, -16);
    // s_load_dwordx2 s[0:1], s[4:5], 0x10
    let scalar = one(Target::Gfx900, &[0xc006_0002, 0x0000_0010]);
    assert_eq!((scalar.op, scalar.dst), (Op::SLoadDwordx2, Operand::Scalar(0)));
    assert_eq!((scalar.memory.base, scalar.memory.offset), (Operand::Scalar(4), 16));
}

#[test]
fn one_operation_has_one_name_on_all_targets() {
    // global_load_b32 v1, v[2:3], off
    let load = one(Target::Gfx1100, &[0xdc52_0000, 0x017c_0002]);
    assert_eq!(load.op, Op::GlobalLoadDword);
    // v_dual_mov_b32 v0, 1 :: v_dual_mov_b32 v1, 2
    let dual = one(Target::Gfx1100, &[0xca10_0081, 0x0000_0082]);
    assert_eq!((dual.op, dual.format, dual.dst), (Op::VMovB32, Format::Vopd, Operand::Vgpr(0)));
    let pair = dual.pair.expect("the second half");
    assert_eq!((pair.op, pair.dst, pair.src[0]), (Op::VMovB32, Operand::Vgpr(1), Operand::Int(2)));
}

#[test]
fn specials_are_sources() {
    // s_mov_b64 s[0:1], src_shared_base
    let base = one(Target::Gfx900, &[0xbe80_01eb]);
    assert_eq!(base.src[0], Operand::Special(Special::SharedBase));
    // M0 and NULL have changed places on gfx11.
    assert_eq!(one(Target::Gfx900, &[0xbefc_0081]).dst, Operand::Scalar(Operand::M0));
    assert_eq!(one(Target::Gfx1100, &[0xbefd_0081]).dst, Operand::Scalar(Operand::M0));
}

#[test]
fn what_is_no_instruction_is_an_error() {
    assert_eq!(decode(Target::Gfx900, &[]), Err(DecodeError::Truncated(0)));
    assert_eq!(decode(Target::Gfx900, &[0xdc50_9ff0]), Err(DecodeError::Truncated(0xdc50_9ff0)));
    assert_eq!(decode(Target::Gfx900, &[0xffff_ffff]), Err(DecodeError::Unknown(0xffff_ffff, Target::Gfx900)));
}
