// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operations of 16 bits, and operations on both halves of a word.
//!
//! Sums, products and roots of halves are computed in single precision and rounded once more: it
//! has more than twice the bits. A fused product and sum is rounded to odd first. A NaN keeps the
//! bits that a half has, on both ways.

use super::{low, How, Needs, Operation};
use crate::emit::{Emit, Src};
use crate::width::{self, Both};
use iced_x86::Register;
use vkfd_isa::Op;

const HALF: u32 = 0xffff;
const ONE: u32 = 0x3f80_0000;

/// The low 16 bits, with their sign.
fn signed(e: &mut Emit, a: Src) -> Src {
    let d = e.temp();
    e.shl(d, a, Src::Const(16));
    e.sar(d, Src::Reg(d), Src::Const(16));
    Src::Reg(d)
}

/// Zeros above a half.
fn half(e: &mut Emit, d: Register) {
    e.op(width::AND, d, Src::Reg(d), Src::Const(HALF));
}

/// An instruction of the host on all halves: its operands are registers.
fn both(e: &mut Emit, op: Both, d: Register, a: Src, b: Src) {
    let (a, b) = (e.reg(a), e.reg(b));
    e.op(op, d, Src::Reg(a), Src::Reg(b));
}

/// `a * b + c`, of which a half is kept.
fn short_sum(e: &mut Emit, d: Register, [a, b, c]: [Src; 3]) {
    let product = e.temp();
    e.either(width::MUL, product, a, b);
    e.op(width::ADD, d, Src::Reg(product), c);
    half(e, d);
}

/// Shifts of words.
type Shift = fn(&mut Emit, Register, Src, Src);

/// Shifts both halves of `b`, each by the low four bits of a half of `a`.
fn shift(e: &mut Emit, d: Register, a: Src, b: Src, (how, has_sign): (Shift, bool)) {
    let (a, b) = (Src::Reg(e.reg(a)), Src::Reg(e.reg(b)));
    let by = low(e, a, 15);
    let from = if has_sign { signed(e, b) } else { low(e, b, HALF) };
    let (below, above) = (e.temp(), e.temp());
    how(e, below, from, by);
    half(e, below);
    e.shr(above, a, Src::Const(16));
    let by = low(e, Src::Reg(above), 15);
    e.op(width::AND, above, b, Src::Const(!HALF));
    how(e, above, Src::Reg(above), by);
    e.op(width::AND, above, Src::Reg(above), Src::Const(!HALF));
    e.op(width::OR, d, Src::Reg(above), Src::Reg(below));
}

/// `a * b + c` of halves in singles. The product is exact. Of the sum, what is lost tells in which
/// direction it lies between two numbers: the odd one rounds to a half as the exact sum does.
fn fused(e: &mut Emit, sum: Register, [product, b, c]: [Register; 3]) {
    let (part, lost, c) = (e.temp(), b, Src::Reg(c));
    // Fused for its order of NaNs: the addend's counts though the product be invalid.
    e.fma(sum, Src::Reg(product), Src::Reg(b), c);
    e.op(width::FMUL, product, Src::Reg(product), Src::Reg(b));
    e.op(width::FSUB, part, Src::Reg(sum), Src::Reg(product));
    e.op(width::FSUB, lost, Src::Reg(sum), Src::Reg(part));
    e.op(width::FSUB, lost, Src::Reg(product), Src::Reg(lost));
    e.op(width::FSUB, part, c, Src::Reg(part));
    e.op(width::FADD, lost, Src::Reg(lost), Src::Reg(part));
    // Away from zero if what is lost has the sum's sign.
    e.op(width::XOR, part, Src::Reg(lost), Src::Reg(sum));
    e.sar(part, Src::Reg(part), Src::Const(31));
    e.op(width::OR, part, Src::Reg(part), Src::Const(1));
    e.op(width::ADD, part, Src::Reg(sum), Src::Reg(part));
    e.op(width::AND, product, Src::Reg(sum), Src::Const(1));
    e.blend_inexact(sum, part, lost, product);
}

fn sum(e: &mut Emit, d: Register, [a, b]: [Register; 2]) {
    e.op(width::FADD, d, Src::Reg(a), Src::Reg(b));
}

fn difference(e: &mut Emit, d: Register, [a, b]: [Register; 2]) {
    e.op(width::FSUB, d, Src::Reg(a), Src::Reg(b));
}

fn product(e: &mut Emit, d: Register, [a, b]: [Register; 2]) {
    e.op(width::FMUL, d, Src::Reg(a), Src::Reg(b));
}

fn root(e: &mut Emit, d: Register, [a]: [Register; 1]) {
    e.op1(width::FSQRT, d, Src::Reg(a));
}

fn reciprocal(e: &mut Emit, d: Register, [a]: [Register; 1]) {
    e.mov(d, Src::Const(ONE));
    e.op(width::FDIV, d, Src::Reg(d), Src::Reg(a));
}

/// Whether an operation's result has 16 bits.
pub(crate) fn has_half_result(op: Op) -> bool {
    op == Op::VCvtF16F32 || has_half_sources(op) && op != Op::VCvtF32F16
}

/// Whether an operation takes halves of its sources.
pub(crate) fn has_half_sources(op: Op) -> bool {
    matches!(
        op,
        Op::VCvtF32F16
            | Op::VAddU16
            | Op::VSubU16
            | Op::VSubrevU16
            | Op::VAddI16
            | Op::VSubI16
            | Op::VAddNcU16
            | Op::VSubNcU16
            | Op::VMulLoU16
            | Op::VLshlrevB16
            | Op::VLshrrevB16
            | Op::VAshrrevI16
            | Op::VMinI16
            | Op::VMaxI16
            | Op::VMinU16
            | Op::VMaxU16
            | Op::VMadU16
            | Op::VMadI16
            | Op::VMadLegacyU16
            | Op::VMadLegacyI16
            | Op::VAddF16
            | Op::VSubF16
            | Op::VSubrevF16
            | Op::VMulF16
            | Op::VSqrtF16
            | Op::VRcpF16
            | Op::VFmaF16
            | Op::VFmaLegacyF16
            | Op::VFmacF16
            | Op::VFmamkF16
            | Op::VFmaakF16
    )
}

/// Whether an operation does the same to both halves.
pub(crate) fn is_packed(op: Op) -> bool {
    matches!(
        op,
        Op::VPkAddU16
            | Op::VPkAddI16
            | Op::VPkSubU16
            | Op::VPkSubI16
            | Op::VPkMulLoU16
            | Op::VPkMadU16
            | Op::VPkMadI16
            | Op::VPkMinI16
            | Op::VPkMaxI16
            | Op::VPkMinU16
            | Op::VPkMaxU16
            | Op::VPkLshlrevB16
            | Op::VPkLshrrevB16
            | Op::VPkAshrrevI16
            | Op::VPkAddF16
            | Op::VPkMulF16
            | Op::VPkFmaF16
    )
}

operations! {
    Binary Any false |e, d, (a, b)| {
        VAddU16 => { e.either(width::ADD, d, a, b); half(e, d) };
        VAddI16 => { e.either(width::ADD, d, a, b); half(e, d) };
        VAddNcU16 => { e.either(width::ADD, d, a, b); half(e, d) };
        VSubU16 => { e.op(width::SUB, d, a, b); half(e, d) };
        VSubI16 => { e.op(width::SUB, d, a, b); half(e, d) };
        VSubNcU16 => { e.op(width::SUB, d, a, b); half(e, d) };
        VSubrevU16 => { e.op(width::SUB, d, b, a); half(e, d) };
        VMulLoU16 => { e.either(width::MUL, d, a, b); half(e, d) };
        VLshlrevB16 => { let by = low(e, a, 15); e.shl(d, b, by); half(e, d) };
        VLshrrevB16 => { let (by, b) = (low(e, a, 15), low(e, b, HALF)); e.shr(d, b, by) };
        VAshrrevI16 => { let (by, b) = (low(e, a, 15), signed(e, b)); e.sar(d, b, by); half(e, d) };
        VMinI16 => { let (a, b) = (signed(e, a), signed(e, b)); e.op(width::MIN_I, d, a, b); half(e, d) };
        VMaxI16 => { let (a, b) = (signed(e, a), signed(e, b)); e.op(width::MAX_I, d, a, b); half(e, d) };
        VMinU16 => { let (a, b) = (low(e, a, HALF), low(e, b, HALF)); e.op(width::MIN_U, d, a, b) };
        VMaxU16 => { let (a, b) = (low(e, a, HALF), low(e, b, HALF)); e.op(width::MAX_U, d, a, b) };
        VPkAddU16 => both(e, width::ADD16, d, a, b);
        VPkAddI16 => both(e, width::ADD16, d, a, b);
        VPkSubU16 => both(e, width::SUB16, d, a, b);
        VPkSubI16 => both(e, width::SUB16, d, a, b);
        VPkMulLoU16 => both(e, width::MUL16, d, a, b);
        VPkMinI16 => both(e, width::MIN_I16, d, a, b);
        VPkMaxI16 => both(e, width::MAX_I16, d, a, b);
        VPkMinU16 => both(e, width::MIN_U16, d, a, b);
        VPkMaxU16 => both(e, width::MAX_U16, d, a, b);
        VPkLshlrevB16 => shift(e, d, a, b, (Emit::shl, false));
        VPkLshrrevB16 => shift(e, d, a, b, (Emit::shr, false));
        VPkAshrrevI16 => shift(e, d, a, b, (Emit::sar, true));
    }
    Ternary Any false |e, d, (a, b, c)| {
        VMadU16 => short_sum(e, d, [a, b, c]);
        VMadI16 => short_sum(e, d, [a, b, c]);
        VMadLegacyU16 => short_sum(e, d, [a, b, c]);
        VMadLegacyI16 => short_sum(e, d, [a, b, c]);
        VPkMadU16 => { let t = e.temp(); both(e, width::MUL16, t, a, b); both(e, width::ADD16, d, Src::Reg(t), c) };
        VPkMadI16 => { let t = e.temp(); both(e, width::MUL16, t, a, b); both(e, width::ADD16, d, Src::Reg(t), c) };
    }
    Unary Halves false |e, d, (a)| {
        VCvtF32F16 => e.of_halves(d, a);
        VCvtF16F32 => e.round_to_halves(d, a);
        VSqrtF16 => e.by_singles(d, [a], root);
        VRcpF16 => e.by_singles(d, [a], reciprocal);
    }
    Binary Halves false |e, d, (a, b)| {
        VAddF16 => e.by_singles(d, [a, b], sum);
        VSubF16 => e.by_singles(d, [a, b], difference);
        VSubrevF16 => e.by_singles(d, [b, a], difference);
        VMulF16 => e.by_singles(d, [a, b], product);
        VPkAddF16 => e.both_by_singles(d, [a, b], sum);
        VPkMulF16 => e.both_by_singles(d, [a, b], product);
    }
    Ternary Halves false |e, d, (a, b, c)| {
        VFmaF16 => e.by_singles(d, [a, b, c], fused);
        VFmaLegacyF16 => e.by_singles(d, [a, b, c], fused);
        VFmamkF16 => e.by_singles(d, [a, b, c], fused);
        VFmaakF16 => e.by_singles(d, [a, b, c], fused);
        VPkFmaF16 => e.both_by_singles(d, [a, b, c], fused);
    }
    Ternary Halves true |e, d, (a, b, c)| {
        VFmacF16 => e.by_singles(d, [a, b, c], fused);
    }
    Binary Singles false |e, d, (a, b)| {
        VCvtPkrtzF16F32 => e.truncate_to_halves(d, a, b);
    }
}
