// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Products that several encodings have: legacy ones, unfused ones, and those of 24 bits.

use super::float::{Fpu, F32};
use super::semantics::Env;

/// A zero makes the product zero, whatever the other is.
pub(crate) fn mul_legacy(fpu: Fpu, a: u64, b: u64) -> u64 {
    let zero = |x| fpu.format.is_zero(fpu.input(x));
    if zero(a) || zero(b) {
        0
    } else {
        fpu.mul(a, b)
    }
}

/// The unfused operations of single precision know no denormals, whatever MODE says.
pub(crate) fn mad32(e: &Env) -> Fpu {
    e.f32().flushing()
}

/// Nor do those of half precision.
pub(crate) fn mad16(e: &Env) -> Fpu {
    e.f16().flushing()
}

/// The lowest 24 bits.
pub(crate) fn signed24(a: i128) -> i128 {
    (a & 0xff_ffff) - ((a & 0x80_0000) << 1)
}

/// The lowest 24 bits.
pub(crate) fn unsigned24(a: i128) -> i128 {
    a & 0xff_ffff
}

/// `fma(a, b, c)`, but zero times anything is zero.
pub(crate) fn fma_legacy(e: &Env, a: u64, b: u64, c: u64) -> u64 {
    let f = e.f32();
    let zero = |x| F32.is_zero(f.input(x));
    if zero(a) || zero(b) {
        f.add(0, c)
    } else {
        f.fma(a, b, c)
    }
}
