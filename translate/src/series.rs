// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The series by which exponentials and logarithms are decided in double precision. The interpreter
//! and translated code have the same ones, so both leave the same lanes open.

/// Coefficients of two to the power of x: powers of the logarithm of two over factorials. With
/// twelve of them the sum is right to 2^-46 for x up to a half.
pub const EXP2: [f64; 12] = {
    let mut table = [1.0; 12];
    let mut k = 1;
    while k < 12 {
        table[k] = table[k - 1] * std::f64::consts::LN_2 / k as f64;
        k += 1;
    }
    table
};

/// Of the logarithm's series, each coefficient by its odd number.
pub const TWO_OVER_LN2: f64 = 2.0 * std::f64::consts::LOG2_E;

/// How far results in double precision may be off, in units of their last place: 2^-41 of them.
pub const GUARD: u32 = 1 << 11;
