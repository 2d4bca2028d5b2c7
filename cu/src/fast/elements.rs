// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The elements of matrix operations' factors: what they are made of, and all lanes' as numbers
//! that the host multiplies.

use super::simd::Simd;
use std::mem::MaybeUninit;

pub(super) type Row = [u32; 64];

/// Room for a source's elements, `N` rows that begin at lines of the cache. Nothing is cleared.
#[repr(align(64))]
pub(super) struct Elements<const N: usize>(MaybeUninit<[Row; N]>);

impl<const N: usize> Elements<N> {
    pub(super) const fn uninit() -> Elements<N> {
        Elements(MaybeUninit::uninit())
    }

    pub(super) fn rows(&mut self) -> *mut Row {
        self.0.as_mut_ptr().cast()
    }
}

/// What A and B are made of.
pub(super) const F32: u8 = 0;
pub(super) const F16: u8 = 1;
/// In groups of two.
pub(super) const BF16: u8 = 2;
/// In groups of four.
pub(super) const BF16_K: u8 = 3;
pub(super) const I8: u8 = 4;

/// Element `n` of every lane, as single precision (denormals are positive zeros), or the pair `n`
/// of bytes as halves with signs.
#[inline(always)]
pub(super) unsafe fn element<S: Simd, const KIND: u8>(from: *const u32, n: usize, to: *mut u32) {
    // SAFETY: the rows exist, and there is room for another one.
    unsafe {
        for i in 0..8 {
            let load = |words: usize| S::load(from.add(64 * (n / words) + 8 * i));
            let value = match KIND {
                F32 => load(1),
                F16 => {
                    let word = load(2);
                    let half = if n % 2 == 0 { S::and(word, S::splat(0xffff)) } else { S::shr(word, S::splat(16)) };
                    S::widen(nonzero::<S>(half, 0x7c00))
                }
                BF16 | BF16_K => {
                    let word = load(2);
                    let high = if n % 2 == 0 { S::shl(word, S::splat(16)) } else { word };
                    nonzero::<S>(S::and(high, S::splat(0xffff_0000)), 0x7f80_0000)
                }
                _ => {
                    let word = load(2);
                    let (low, high) = if n % 2 == 0 { (24, 16) } else { (8, 0) };
                    let first = S::sar(S::shl(word, S::splat(low)), S::splat(24));
                    let second = S::sar(S::shl(word, S::splat(high)), S::splat(24));
                    S::or(S::and(first, S::splat(0xffff)), S::shl(second, S::splat(16)))
                }
            };
            S::store(to.add(8 * i), value);
        }
    }
}

/// The value, or zero if it has no exponent.
#[inline(always)]
unsafe fn nonzero<S: Simd>(value: S::V, exponent: u32) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let zero = S::eq(S::and(value, S::splat(exponent)), S::splat(0));
        S::and(value, S::xor(zero, S::splat(u32::MAX)))
    }
}
