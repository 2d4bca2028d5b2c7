// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Dot products of short vectors within a lane.

use super::float::{Fpu, BF16, F16, F32};
use super::kind::{low64, sign_extend};
use super::semantics::Env;
use crate::wave::Round;

/// Sum of the products of all elements of `width` bits in two words, without a limit.
pub(crate) fn integers(a: i128, b: i128, width: u32, signed: [bool; 2]) -> i128 {
    let (a, b) = (low64(a.unsigned_abs()), low64(b.unsigned_abs()));
    let element = |word: u64, n: u32, signed: bool| {
        let bits = word >> (n * width) & ((1 << width) - 1);
        i128::from(if signed { sign_extend(bits, width) } else { bits as i64 })
    };
    let [sign_a, sign_b] = signed;
    (0..32 / width).map(|n| element(a, n, sign_a) * element(b, n, sign_b)).sum()
}

/// Two halves of `a` and `b`, and a sum of single precision. The manual adds one product after the
/// other, each rounded.
pub(crate) fn f32_f16(_: &Env, a: u64, b: u64, c: u64) -> u64 {
    // Rounding and denormals do not follow MODE.
    let single = Fpu::exact(F32).flushing();
    let half = Fpu::exact(F16).flushing();
    let product = |by: u32| {
        let wide = |x: u64| single.convert(half, x >> by & 0xffff);
        single.mul(wide(a), wide(b))
    };
    single.add(single.add(c, product(0)), product(16))
}

/// The same of bfloat16.
pub(crate) fn f32_bf16(_: &Env, a: u64, b: u64, c: u64) -> u64 {
    let single = Fpu::exact(F32).flushing();
    let product = |by: u32| single.mul((a >> by & 0xffff) << 16, (b >> by & 0xffff) << 16);
    single.add(single.add(c, product(0)), product(16))
}

/// Halves throughout.
pub(crate) fn f16_f16(_: &Env, a: u64, b: u64, c: u64) -> u64 {
    let half = Fpu::exact(F16).rounding(Round::Nearest);
    let product = |by: u32| half.mul(a >> by & 0xffff, b >> by & 0xffff);
    half.add(half.add(c, product(0)), product(16))
}

/// bfloat16 throughout.
pub(crate) fn bf16_bf16(_: &Env, a: u64, b: u64, c: u64) -> u64 {
    let brain = Fpu::exact(BF16);
    let product = |by: u32| brain.mul(a >> by & 0xffff, b >> by & 0xffff);
    brain.add(brain.add(c, product(0)), product(16))
}
