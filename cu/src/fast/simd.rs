// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Eight lanes at once, in two ways that give the same bits: AVX2, chosen when the processor has
//! it, and plain Rust.
//!
//! Handlers are written once, generic over [`Simd`], and compiled for each: everything is inlined
//! into a function that has the features. Nothing depends on how wide the host's vectors are.
//!
//! Masked results are merged as `old ^ (old ^ new) & mask` and stored whole: what looks like blend
//! and store becomes a masked store, which some processors do in microcode.

use crate::reference::memory::{from_half, to_half};

/// Lanes of a vector.
pub(super) const WIDTH: usize = 8;

/// What an invalid operation makes.
pub(super) const INVALID: u32 = 0xffc0_0000;
/// What is set in a NaN that is handed on.
pub(super) const QUIET: u32 = 1 << 22;

/// Operations on eight 32-bit words.
///
/// # Safety
/// Every operation needs a processor with the implementation's features; loads and stores need 32
/// bytes there.
pub(super) trait Simd: Copy + 'static {
    /// Eight words.
    type V: Copy;

    /// [`vkfd_raw::copy_lines`] as is best for this processor.
    unsafe fn copy_lines(to: *mut u8, from: *const u8, lines: usize) -> Result<(), vkfd_raw::Faulted> {
        // SAFETY: the caller's.
        unsafe { vkfd_raw::copy_lines(to, from, lines) }
    }
    /// [`vkfd_raw::copy_lines_past`], where the processor can; `to` is a multiple of 32.
    unsafe fn copy_lines_past(to: *mut u8, from: *const u8, lines: usize) -> Result<(), vkfd_raw::Faulted> {
        // SAFETY: the caller's.
        unsafe { vkfd_raw::copy_lines(to, from, lines) }
    }
    unsafe fn load(from: *const u32) -> Self::V;
    unsafe fn store(to: *mut u32, value: Self::V);
    unsafe fn splat(value: u32) -> Self::V;
    unsafe fn to_array(value: Self::V) -> [u32; WIDTH];
    unsafe fn from_array(value: [u32; WIDTH]) -> Self::V;
    /// All ones in the lanes of a mask.
    unsafe fn lanes(mask: u8) -> Self::V;
    /// The highest bit of each lane.
    unsafe fn mask(value: Self::V) -> u8;

    unsafe fn and(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn or(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn xor(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// Shifts by the low five bits.
    unsafe fn shl(a: Self::V, by: Self::V) -> Self::V;
    unsafe fn shr(a: Self::V, by: Self::V) -> Self::V;
    unsafe fn sar(a: Self::V, by: Self::V) -> Self::V;
    /// Shifts by the whole word: by 32 or more it gives zero.
    unsafe fn shl_out(a: Self::V, by: Self::V) -> Self::V;
    unsafe fn shr_out(a: Self::V, by: Self::V) -> Self::V;
    /// The high words of the products of words without signs.
    unsafe fn mul_high(a: Self::V, b: Self::V) -> Self::V;
    /// Singles times two to the power of integers.
    unsafe fn ldexp(a: Self::V, b: Self::V) -> Self::V;
    /// Bytes of two words, of which `b` is the low one, by selectors from 0 to 7.
    unsafe fn bytes(a: Self::V, b: Self::V, select: Self::V) -> Self::V;
    /// The sum of the products of the halves, which have signs.
    unsafe fn dot_halves(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min_i(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max_i(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min_u(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max_u(a: Self::V, b: Self::V) -> Self::V;
    /// All ones where equal.
    unsafe fn eq(a: Self::V, b: Self::V) -> Self::V;
    /// All ones where `a > b`, signed.
    unsafe fn gt(a: Self::V, b: Self::V) -> Self::V;

    /// Of operands that are NaN the first one is the result, quieted, here and below; what is
    /// invalid gives [`INVALID`].
    unsafe fn fadd(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn fsub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn fmul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// As the three above; any NaN of operands may be the result.
    #[inline(always)]
    unsafe fn add_any(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: forwarded.
        unsafe { Self::fadd(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_any(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: forwarded.
        unsafe { Self::fmul(a, b) }
    }
    #[inline(always)]
    unsafe fn fma_any(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: forwarded.
        unsafe { Self::fma(a, b, c) }
    }
    /// The smaller; `b` if they are equal. No operand is NaN.
    unsafe fn fmin(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn fmax(a: Self::V, b: Self::V) -> Self::V;
    /// All ones where one is NaN.
    unsafe fn unordered(a: Self::V, b: Self::V) -> Self::V;
    /// All ones where so; not if one is NaN.
    unsafe fn flt(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn fle(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn feq(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn fsqrt(a: Self::V) -> Self::V;
    unsafe fn fdiv(a: Self::V, b: Self::V) -> Self::V;
    /// One over the square root; and all ones where it is so near a tie that it may be the other
    /// number, here and below.
    unsafe fn rsq(a: Self::V) -> (Self::V, Self::V);
    /// Two to the power of numbers between -200 and 200.
    unsafe fn exp2(a: Self::V) -> (Self::V, Self::V);
    /// The logarithm to base two of positive finite numbers that are not denormal; of others,
    /// anything.
    unsafe fn log2(a: Self::V) -> (Self::V, Self::V);
    /// Singles of the halves in the low 16 bits; what is above is zero. NaNs are quieted.
    unsafe fn widen(a: Self::V) -> Self::V;
    /// Singles rounded to halves, in the low 16 bits. NaNs are quieted.
    unsafe fn narrow(a: Self::V) -> Self::V;
    unsafe fn floor(a: Self::V) -> Self::V;
    unsafe fn ceil(a: Self::V) -> Self::V;
    unsafe fn trunc(a: Self::V) -> Self::V;
    unsafe fn round_even(a: Self::V) -> Self::V;
    unsafe fn from_signed(a: Self::V) -> Self::V;
    unsafe fn from_unsigned(a: Self::V) -> Self::V;
    /// Towards zero; what is beyond all integers is the nearest, NaN is zero.
    unsafe fn to_signed(a: Self::V) -> Self::V;
    unsafe fn to_unsigned(a: Self::V) -> Self::V;

    /// Words at places, in bytes from a base. A place is below 2^31, and has a word.
    #[inline(always)]
    unsafe fn gather(base: *const u8, places: Self::V) -> Self::V {
        // SAFETY: forwarded.
        unsafe { Self::map(places, |place| base.add(place as usize).cast::<u32>().read_unaligned()) }
    }
    /// Word `n` of each pair of words at such places: a vector for each `n`.
    #[inline(always)]
    unsafe fn gather2(base: *const u8, places: Self::V) -> [Self::V; 2] {
        // SAFETY: forwarded.
        unsafe { [Self::gather(base, places), Self::gather(base.add(4), places)] }
    }
    /// Word `n` of each of eight pairs of words that lie one after another: a vector for each `n`.
    #[inline(always)]
    unsafe fn split2(from: *const u32) -> [Self::V; 2] {
        // SAFETY: forwarded; there are 16 words.
        unsafe {
            let words = from.cast::<[u32; 16]>().read_unaligned();
            [0, 1].map(|n| Self::from_array(std::array::from_fn(|lane| words[2 * lane + n])))
        }
    }
    /// The reverse of [`Simd::split2`].
    #[inline(always)]
    unsafe fn join2(to: *mut u32, value: [Self::V; 2]) {
        // SAFETY: forwarded; there is room for 16 words.
        unsafe {
            let value = value.map(|value| Self::to_array(value));
            let words: [u32; 16] = std::array::from_fn(|n| value[n % 2][n / 2]);
            to.cast::<[u32; 16]>().write_unaligned(words);
        }
    }
    /// Word `n` of each of eight places with four words: a vector for each `n`.
    #[inline(always)]
    unsafe fn split4(from: [*const u32; WIDTH]) -> [Self::V; 4] {
        // SAFETY: forwarded; each place has four words.
        unsafe {
            let words = from.map(|from| from.cast::<[u32; 4]>().read_unaligned());
            [0, 1, 2, 3].map(|n| Self::from_array(std::array::from_fn(|lane| words[lane][n])))
        }
    }
    /// The reverse of [`Simd::split4`].
    #[inline(always)]
    unsafe fn join4(to: [*mut u32; WIDTH], value: [Self::V; 4]) {
        // SAFETY: forwarded; each place has room for four words.
        unsafe {
            let value = value.map(|value| Self::to_array(value));
            for lane in 0..WIDTH {
                let words: [u32; 4] = std::array::from_fn(|n| value[n][lane]);
                to[lane].cast::<[u32; 4]>().write_unaligned(words);
            }
        }
    }
    /// Whether no bit is set.
    #[inline(always)]
    unsafe fn is_zero(value: Self::V) -> bool {
        // SAFETY: forwarded.
        unsafe { Self::mask(Self::eq(value, Self::splat(0))) == u8::MAX }
    }
    /// 0, `by`, 2 `by` and so on.
    #[inline(always)]
    unsafe fn steps(by: u32) -> Self::V {
        // SAFETY: forwarded.
        unsafe { Self::from_array(std::array::from_fn(|lane| by.wrapping_mul(lane as u32))) }
    }
    /// The largest word, unsigned.
    #[inline(always)]
    unsafe fn largest(value: Self::V) -> u32 {
        // SAFETY: forwarded.
        unsafe { Self::to_array(value).into_iter().fold(0, u32::max) }
    }

    /// `b` where the mask is ones, `a` elsewhere.
    #[inline(always)]
    unsafe fn select(mask: Self::V, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: forwarded.
        unsafe { Self::xor(a, Self::and(Self::xor(a, b), mask)) }
    }

    #[inline(always)]
    unsafe fn map(a: Self::V, f: impl Fn(u32) -> u32) -> Self::V {
        // SAFETY: forwarded.
        unsafe { Self::from_array(Self::to_array(a).map(f)) }
    }

    #[inline(always)]
    unsafe fn map2(a: Self::V, b: Self::V, f: impl Fn(u32, u32) -> u32) -> Self::V {
        // SAFETY: forwarded.
        unsafe {
            let (a, b) = (Self::to_array(a), Self::to_array(b));
            let mut r = [0; WIDTH];
            for i in 0..WIDTH {
                r[i] = f(a[i], b[i]);
            }
            Self::from_array(r)
        }
    }

    #[inline(always)]
    unsafe fn map3(a: Self::V, b: Self::V, c: Self::V, f: impl Fn(u32, u32, u32) -> u32) -> Self::V {
        // SAFETY: forwarded.
        unsafe {
            let (a, b, c) = (Self::to_array(a), Self::to_array(b), Self::to_array(c));
            let mut r = [0; WIDTH];
            for i in 0..WIDTH {
                r[i] = f(a[i], b[i], c[i]);
            }
            Self::from_array(r)
        }
    }
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn map2(a: [u32; 8], b: [u32; 8], f: impl Fn(u32, u32) -> u32) -> [u32; 8] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// A result, which if it is NaN is the first of its sources that is, quieted: what the host makes
/// of NaNs is not known.
#[inline(always)]
fn handed_on<const N: usize>(result: f32, sources: [u32; N]) -> u32 {
    if !result.is_nan() {
        return result.to_bits();
    }
    sources.into_iter().find(|&source| f32::from_bits(source).is_nan()).map_or(INVALID, |nan| nan | QUIET)
}

#[inline(always)]
fn float2(a: [u32; 8], b: [u32; 8], f: impl Fn(f32, f32) -> f32) -> [u32; 8] {
    map2(a, b, |a, b| handed_on(f(f32::from_bits(a), f32::from_bits(b)), [a, b]))
}

#[inline(always)]
fn float(a: [u32; 8], f: impl Fn(f32) -> f32) -> [u32; 8] {
    a.map(|a| handed_on(f(f32::from_bits(a)), [a]))
}

#[inline(always)]
fn test2(a: [u32; 8], b: [u32; 8], f: impl Fn(f32, f32) -> bool) -> [u32; 8] {
    map2(a, b, |a, b| if f(f32::from_bits(a), f32::from_bits(b)) { u32::MAX } else { 0 })
}

impl Simd for Portable {
    type V = [u32; 8];

    #[inline(always)]
    unsafe fn load(from: *const u32) -> [u32; 8] {
        // SAFETY: the caller's.
        unsafe { from.cast::<[u32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, value: [u32; 8]) {
        // SAFETY: the caller's.
        unsafe { to.cast::<[u32; 8]>().write_unaligned(value) };
    }
    #[inline(always)]
    unsafe fn splat(value: u32) -> [u32; 8] {
        [value; 8]
    }
    #[inline(always)]
    unsafe fn to_array(value: [u32; 8]) -> [u32; 8] {
        value
    }
    #[inline(always)]
    unsafe fn from_array(value: [u32; 8]) -> [u32; 8] {
        value
    }
    #[inline(always)]
    unsafe fn lanes(mask: u8) -> [u32; 8] {
        std::array::from_fn(|i| if mask >> i & 1 != 0 { u32::MAX } else { 0 })
    }
    #[inline(always)]
    unsafe fn mask(value: [u32; 8]) -> u8 {
        value.iter().enumerate().fold(0, |mask, (i, value)| mask | ((value >> 31) as u8) << i)
    }
    #[inline(always)]
    unsafe fn and(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn xor(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    unsafe fn add(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, u32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn sub(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, u32::wrapping_sub)
    }
    #[inline(always)]
    unsafe fn mul(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, u32::wrapping_mul)
    }
    #[inline(always)]
    unsafe fn shl(a: [u32; 8], by: [u32; 8]) -> [u32; 8] {
        map2(a, by, |a, by| a << (by & 31))
    }
    #[inline(always)]
    unsafe fn shr(a: [u32; 8], by: [u32; 8]) -> [u32; 8] {
        map2(a, by, |a, by| a >> (by & 31))
    }
    #[inline(always)]
    unsafe fn sar(a: [u32; 8], by: [u32; 8]) -> [u32; 8] {
        map2(a, by, |a, by| (a as i32 >> (by & 31)) as u32)
    }
    #[inline(always)]
    unsafe fn min_i(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| (a as i32).min(b as i32) as u32)
    }
    #[inline(always)]
    unsafe fn max_i(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| (a as i32).max(b as i32) as u32)
    }
    #[inline(always)]
    unsafe fn min_u(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, u32::min)
    }
    #[inline(always)]
    unsafe fn max_u(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, u32::max)
    }
    #[inline(always)]
    unsafe fn eq(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| if a == b { u32::MAX } else { 0 })
    }
    #[inline(always)]
    unsafe fn gt(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| if a as i32 > b as i32 { u32::MAX } else { 0 })
    }
    #[inline(always)]
    unsafe fn fadd(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        float2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn fsub(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        float2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn fmul(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        float2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn fma(a: [u32; 8], b: [u32; 8], c: [u32; 8]) -> [u32; 8] {
        let one = |i: usize| {
            let sum = f32::from_bits(a[i]).mul_add(f32::from_bits(b[i]), f32::from_bits(c[i]));
            handed_on(sum, [a[i], b[i], c[i]])
        };
        std::array::from_fn(one)
    }
    #[inline(always)]
    unsafe fn fmin(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| if f32::from_bits(a) < f32::from_bits(b) { a } else { b })
    }
    #[inline(always)]
    unsafe fn fmax(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| if f32::from_bits(a) > f32::from_bits(b) { a } else { b })
    }
    #[inline(always)]
    unsafe fn unordered(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        test2(a, b, |a, b| a.is_nan() || b.is_nan())
    }
    #[inline(always)]
    unsafe fn flt(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        test2(a, b, |a, b| a < b)
    }
    #[inline(always)]
    unsafe fn fle(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        test2(a, b, |a, b| a <= b)
    }
    #[inline(always)]
    unsafe fn feq(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        test2(a, b, |a, b| a == b)
    }
    #[inline(always)]
    unsafe fn fdiv(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        float2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn widen(a: [u32; 8]) -> [u32; 8] {
        float(a.map(|a| from_half(a as u16).to_bits()), |a| a)
    }
    #[inline(always)]
    unsafe fn narrow(a: [u32; 8]) -> [u32; 8] {
        a.map(|a| to_half(f32::from_bits(a)).into())
    }
    #[inline(always)]
    unsafe fn fsqrt(a: [u32; 8]) -> [u32; 8] {
        float(a, f32::sqrt)
    }
    #[inline(always)]
    unsafe fn floor(a: [u32; 8]) -> [u32; 8] {
        float(a, f32::floor)
    }
    #[inline(always)]
    unsafe fn ceil(a: [u32; 8]) -> [u32; 8] {
        float(a, f32::ceil)
    }
    #[inline(always)]
    unsafe fn trunc(a: [u32; 8]) -> [u32; 8] {
        float(a, f32::trunc)
    }
    #[inline(always)]
    unsafe fn round_even(a: [u32; 8]) -> [u32; 8] {
        float(a, f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn from_signed(a: [u32; 8]) -> [u32; 8] {
        a.map(|a| (a as i32 as f32).to_bits())
    }
    #[inline(always)]
    unsafe fn from_unsigned(a: [u32; 8]) -> [u32; 8] {
        a.map(|a| (a as f32).to_bits())
    }
    #[inline(always)]
    unsafe fn to_signed(a: [u32; 8]) -> [u32; 8] {
        a.map(|a| f32::from_bits(a) as i32 as u32)
    }
    #[inline(always)]
    unsafe fn to_unsigned(a: [u32; 8]) -> [u32; 8] {
        a.map(|a| f32::from_bits(a) as u32)
    }
    #[inline(always)]
    unsafe fn rsq(a: [u32; 8]) -> ([u32; 8], [u32; 8]) {
        let root = |a: u32| 1.0 / f64::from(f32::from_bits(a)).sqrt();
        let open = a.map(|a| if (root(a).to_bits() & 0x1fff_ffff).abs_diff(1 << 28) < 8 { u32::MAX } else { 0 });
        (a.map(|a| handed_on(root(a) as f32, [a])), open)
    }
    #[inline(always)]
    unsafe fn exp2(a: [u32; 8]) -> ([u32; 8], [u32; 8]) {
        (a.map(|a| (libm::exp2(f32::from_bits(a).into()) as f32).to_bits()), [0; 8])
    }
    #[inline(always)]
    unsafe fn log2(a: [u32; 8]) -> ([u32; 8], [u32; 8]) {
        (a.map(|a| (libm::log2(f32::from_bits(a).into()) as f32).to_bits()), [0; 8])
    }
    #[inline(always)]
    unsafe fn shl_out(a: [u32; 8], by: [u32; 8]) -> [u32; 8] {
        map2(a, by, |a, by| a.checked_shl(by).unwrap_or(0))
    }
    #[inline(always)]
    unsafe fn shr_out(a: [u32; 8], by: [u32; 8]) -> [u32; 8] {
        map2(a, by, |a, by| a.checked_shr(by).unwrap_or(0))
    }
    #[inline(always)]
    unsafe fn dot_halves(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        let half = |a: u32, up: u32| (a << up) as i32 >> 16;
        map2(a, b, |a, b| {
            (half(a, 16).wrapping_mul(half(b, 16))).wrapping_add(half(a, 0).wrapping_mul(half(b, 0))) as u32
        })
    }
    #[inline(always)]
    unsafe fn mul_high(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32)
    }
    #[inline(always)]
    unsafe fn ldexp(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        map2(a, b, |a, b| {
            let power = f64::from_bits(((i64::from((b as i32).clamp(-400, 400)) + 1023) as u64) << 52);
            handed_on((f64::from(f32::from_bits(a)) * power) as f32, [a])
        })
    }
    #[inline(always)]
    unsafe fn bytes(a: [u32; 8], b: [u32; 8], select: [u32; 8]) -> [u32; 8] {
        std::array::from_fn(|i| {
            let all = u64::from(a[i]) << 32 | u64::from(b[i]);
            (0..4).fold(0, |word, n| {
                let at = select[i] >> (8 * n) & 7;
                word | ((all >> (8 * at)) as u32 & 0xff) << (8 * n)
            })
        })
    }
}
