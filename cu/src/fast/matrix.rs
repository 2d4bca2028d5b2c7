// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of CDNA2, all shapes, and those of CDNA3 that are the same there, on
//! processors with AVX2.
//!
//! Eight lanes of D are eight columns of a row (of 4 by 4 blocks, a row of two blocks). A's
//! elements are broadcast, B's rows are vectors, which stay for all rows of D. Where elements lie
//! is the reference engine's `Shape`.
//!
//! The order of sums is the reference's. Halves: products are exact in single precision, so that
//! the sum of two of them is two fused operations; then the other two, both sums, and the
//! accumulator. No sum of them is denormal, for all are multiples of 2^-48; so only the accumulator
//! that comes in is flushed, as the halves are. bfloat16 has denormal products: they are the
//! reference engine's, as is whatever has a NaN in the result. Single and double precision are
//! chains of fused operations. No order of NaNs counts. Bytes are taken by twos: the host adds two
//! products of halves at once.

use super::builder::Builder;
use super::elements::{element, Elements, Row, BF16, BF16_K, F16, F32, I8};
use super::simd::Simd;
use super::step::{Cx, Flow, Place, Run, Source, Step, ROW};
use crate::reference::{inline_float, matrix_shape, Element, Kind};
use vkfd_isa::{Inst, Mods, Op, Operand, Target};

/// All ones where a number is denormal.
#[inline(always)]
unsafe fn denormal<S: Simd>(value: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let none = S::eq(S::and(value, S::splat(0x7f80_0000)), S::splat(0));
        S::xor(none, S::eq(S::and(value, S::splat(0x7fff_ffff)), S::splat(0)))
    }
}

/// A sum so far, and where the reference engine has to do it.
struct Total<V> {
    sum: V,
    bad: V,
}

impl<V: Copy> Total<V> {
    /// A value that the host has exactly, unless it is denormal.
    #[inline(always)]
    unsafe fn exact<S: Simd<V = V>>(&mut self, value: V) -> V {
        // SAFETY: the caller's.
        self.bad = unsafe { S::or(self.bad, denormal::<S>(value)) };
        value
    }

    /// The sum of two products.
    #[inline(always)]
    unsafe fn pair<S: Simd<V = V>>(&mut self, a: &[V], b: &[V]) -> V {
        // SAFETY: the caller's.
        unsafe {
            let zero = S::splat(0);
            let (left, right) =
                (self.exact::<S>(S::fma_any(a[0], b[0], zero)), self.exact::<S>(S::fma_any(a[1], b[1], zero)));
            self.exact::<S>(S::add_any(left, right))
        }
    }

    /// Adds the products of the elements of A and B from `k` on: a group of them.
    #[inline(always)]
    unsafe fn add<S: Simd<V = V>, const KIND: u8>(&mut self, a: &[V], b: &[V]) {
        // SAFETY: the caller's.
        unsafe {
            match KIND {
                F32 => self.sum = S::fma_any(a[0], b[0], self.sum),
                I8 => self.sum = S::add(S::dot_halves(a[0], b[0]), self.sum),
                // The sum is no negative zero, so it does not matter whether these are.
                F16 => {
                    let first = S::fma_any(a[1], b[1], S::mul_any(a[0], b[0]));
                    let second = S::fma_any(a[3], b[3], S::mul_any(a[2], b[2]));
                    self.sum = S::add_any(self.sum, S::add_any(first, second));
                }
                _ => {
                    let mut group = self.pair::<S>(&a[..2], &b[..2]);
                    if KIND != BF16 {
                        let right = self.pair::<S>(&a[2..], &b[2..]);
                        group = self.exact::<S>(S::add_any(group, right));
                    }
                    self.sum = self.exact::<S>(S::add_any(self.sum, group));
                }
            }
        }
    }
}

/// Products that are added at a time.
const fn group(kind: u8) -> usize {
    match kind {
        F16 | BF16_K => 4,
        BF16 => 2,
        _ => 1,
    }
}

/// `BLOCKS` products of `M` rows and columns, sums of `K`.
#[inline(always)]
unsafe fn body<S: Simd, const M: usize, const K: usize, const BLOCKS: usize, const KIND: u8>(
    step: &Step,
    cx: &mut Cx,
) -> Flow {
    // Of bytes, two elements are one.
    let (depth, in_lane) = if KIND == I8 { (K / 2, K * M * BLOCKS / 128) } else { (K, K * M * BLOCKS / 64) };
    // Results of a block in a lane; of 4 by 4 blocks, two blocks are in eight lanes.
    let (results, blocks) = if M == 4 { (4, 1) } else { (M * M / 64, BLOCKS) };
    let wide = (M / 8).max(1);
    // SAFETY: the step's rows exist. A and B have `in_lane` rows of elements, at most eight. All of
    // them, and all of `out`, are written before they are read.
    unsafe {
        let sources = [cx.row(step.src[0]), cx.row(step.src[1]), cx.row(step.src[2])];
        let (mut room_a, mut room_b, mut out) =
            (Elements::<8>::uninit(), Elements::<8>::uninit(), Elements::<32>::uninit());
        let (a, b, to) = (room_a.rows(), room_b.rows(), out.rows().cast::<u32>());
        for n in 0..in_lane {
            element::<S, KIND>(sources[0], n, a.add(n).cast());
            element::<S, KIND>(sources[1], n, b.add(n).cast());
        }
        let mut bad = S::splat(0);
        for vector in 0..8 {
            for block in 0..blocks {
                let first = |k: usize| if M == 4 { 0 } else { M * BLOCKS * (k / in_lane) + M * block };
                let mut right = [S::splat(0); K];
                for k in 0..depth {
                    let lane = if M == 4 { 8 * vector } else { first(k) + 8 * (vector % wide) };
                    right[k] = S::load(b.add(k % in_lane).cast::<u32>().add(lane));
                }
                for result in 0..results {
                    let row = match M {
                        32 => 8 * (result / 4) + 4 * (vector / 4) + result % 4,
                        16 => 4 * (vector / 2) + result,
                        _ => result,
                    };
                    let at = 64 * (results * block + result) + 8 * vector;
                    let sum = if step.scalar[0] != 0 { S::splat(step.imm as u32) } else { S::load(sources[2].add(at)) };
                    let mut total = Total { sum, bad };
                    // Of halves, a sum that is zero becomes a positive one.
                    let lost = match KIND {
                        F32 | I8 => S::splat(0),
                        F16 => S::eq(S::and(sum, S::splat(0x7f80_0000)), S::splat(0)),
                        _ => denormal::<S>(sum),
                    };
                    total.sum = S::and(sum, S::xor(lost, S::splat(u32::MAX)));
                    let elements = a.cast::<u32>().add(row);
                    for first_k in (0..depth).step_by(group(KIND)) {
                        let mut left = [S::splat(0); 4];
                        for n in 0..group(KIND) {
                            let k = first_k + n;
                            // By a pointer: a check of bounds keeps the load out of the broadcast.
                            let lanes = elements.add(64 * (k % in_lane));
                            left[n] = if M == 4 {
                                S::from_array(std::array::from_fn(|lane| *lanes.add(8 * vector + lane / 4 * 4)))
                            } else {
                                S::splat(*lanes.add(first(k)))
                            };
                        }
                        total.add::<S, KIND>(&left, &right[first_k..first_k + group(KIND)]);
                    }
                    bad = total.bad;
                    if KIND != I8 {
                        bad = S::or(bad, S::unordered(total.sum, total.sum));
                    }
                    S::store(to.add(at), total.sum);
                }
            }
        }
        if S::mask(bad) != 0 {
            return step.slow(cx);
        }
        std::ptr::copy_nonoverlapping(to, cx.row_mut(step.dst), 64 * results * blocks);
    }
    step.done(cx)
}

/// Double precision: 16 rows and columns ([`super::doubles`]), or four blocks of 4.
#[inline(always)]
unsafe fn double<S: Simd, const M: usize, const K: usize, const BLOCKS: usize, const KIND: u8>(
    step: &Step,
    cx: &mut Cx,
) -> Flow {
    type Lanes = [f64; 64];
    #[cfg(target_arch = "x86_64")]
    if M == 16 {
        // SAFETY: the caller's: its processor has AVX2 and FMA.
        return unsafe { super::doubles::square(step, cx) };
    }
    let results = M * M * BLOCKS / 64;
    // SAFETY: the step's rows exist.
    unsafe {
        let read = |row: *const u32| -> Lanes {
            let (low, high) = (row.cast::<Row>().read(), row.add(64).cast::<Row>().read());
            std::array::from_fn(|lane| f64::from_bits(u64::from(low[lane]) | u64::from(high[lane]) << 32))
        };
        let (a, b) = (read(cx.row(step.src[0])), read(cx.row(step.src[1])));
        let mut out = [[0.0; 64]; 4];
        let mut bad = false;
        for (result, out) in out.iter_mut().enumerate().take(results) {
            let mut sum = if step.scalar[0] != 0 {
                [f64::from_bits(step.imm as u64); 64]
            } else {
                read(cx.row(step.src[2]).add(128 * result))
            };
            for k in 0..4 {
                for lane in 0..64 {
                    let (left, right) = if M == 4 {
                        (lane / 16 + lane / 4 % 4 * 4 + 16 * k, lane % 16 + 16 * k)
                    } else {
                        (4 * result + lane / 16 + 16 * k, lane % 16 + 16 * k)
                    };
                    sum[lane] = a[left].mul_add(b[right], sum[lane]);
                }
            }
            for lane in 0..64 {
                bad |= sum[lane].is_nan();
            }
            *out = sum;
        }
        if bad {
            return step.slow(cx);
        }
        for (result, sum) in out.iter().enumerate().take(results) {
            let to = cx.row_mut(step.dst).add(128 * result);
            for lane in 0..64 {
                to.add(lane).write(sum[lane].to_bits() as u32);
                to.add(64 + lane).write((sum[lane].to_bits() >> 32) as u32);
            }
        }
    }
    step.done(cx)
}

/// A handler, if the processor has AVX2: without it, they would hardly be faster than the reference
/// engine.
macro_rules! wide {
    (512 $builder:expr, double $m:literal $k:literal $blocks:literal $kind:ident) => {
        None
    };
    (512 $builder:expr, $body:ident $m:literal $k:literal $blocks:literal $kind:ident) => {{
        #[cfg(target_arch = "x86_64")]
        let wider = super::matrix512::handler::<$m, $k, $blocks, $kind>().filter(|_| $builder.avx512);
        #[cfg(not(target_arch = "x86_64"))]
        let wider: Option<Run> = None;
        wider
    }};
    ($builder:expr, $body:ident $m:literal $k:literal $blocks:literal $kind:ident) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn wide(step: &Step, cx: &mut Cx) -> Flow {
                // SAFETY: the caller's.
                unsafe { $body::<super::avx2::Avx2, $m, $k, $blocks, $kind>(step, cx) }
            }
            $builder.avx2.then_some(wide as Run)?
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _: Run = $body::<super::simd::Portable, $m, $k, $blocks, $kind>;
            return None;
        }
    }};
}

/// What an operation has.
struct Handlers {
    run: Run,
    /// For AVX-512, if D has no register in common with A and B, and all or none with C.
    apart: Option<Run>,
    /// Registers of A and of B, and of D.
    words: usize,
    results: usize,
}

macro_rules! shapes {
    ($($op:ident $body:ident $m:literal $k:literal $blocks:literal $kind:ident $bits:literal;)*) => {
        fn handlers(op: Op, builder: &Builder) -> Option<Handlers> {
            Some(match op {
                $(Op::$op => {
                    let words: usize = $k * $m * $blocks / 64 * $bits;
                    let results = $m * $m * $blocks / 64 * if $bits == 64 { 2 } else { 1 };
                    Handlers {
                        run: wide!(builder, $body $m $k $blocks $kind),
                        apart: wide!(512 builder, $body $m $k $blocks $kind),
                        words: words.div_ceil(32),
                        results,
                    }
                })*
                _ => return None,
            })
        }
    };
}

shapes! {
    VMfmaF32_32x32x1f32 body 32 1 2 F32 32;
    VMfmaF32_16x16x1f32 body 16 1 4 F32 32;
    VMfmaF32_4x4x1f32 body 4 1 16 F32 32;
    VMfmaF32_32x32x2f32 body 32 2 1 F32 32;
    VMfmaF32_16x16x4f32 body 16 4 1 F32 32;
    VMfmaF32_32x32x4f16 body 32 4 2 F16 16;
    VMfmaF32_16x16x4f16 body 16 4 4 F16 16;
    VMfmaF32_4x4x4f16 body 4 4 16 F16 16;
    VMfmaF32_32x32x8f16 body 32 8 1 F16 16;
    VMfmaF32_16x16x16f16 body 16 16 1 F16 16;
    VMfmaF32_32x32x2bf16 body 32 2 2 BF16 16;
    VMfmaF32_16x16x2bf16 body 16 2 4 BF16 16;
    VMfmaF32_4x4x2bf16 body 4 2 16 BF16 16;
    VMfmaF32_32x32x4bf16 body 32 4 1 BF16 16;
    VMfmaF32_16x16x8bf16 body 16 8 1 BF16 16;
    VMfmaF32_32x32x4bf16_1k body 32 4 2 BF16_K 16;
    VMfmaF32_16x16x4bf16_1k body 16 4 4 BF16_K 16;
    VMfmaF32_4x4x4bf16_1k body 4 4 16 BF16_K 16;
    VMfmaF32_32x32x8bf16_1k body 32 8 1 BF16_K 16;
    VMfmaF32_16x16x16bf16_1k body 16 16 1 BF16_K 16;
    VMfmaI32_32x32x4i8 body 32 4 2 I8 8;
    VMfmaI32_16x16x4i8 body 16 4 4 I8 8;
    VMfmaI32_4x4x4i8 body 4 4 16 I8 8;
    VMfmaI32_32x32x8i8 body 32 8 1 I8 8;
    VMfmaI32_16x16x16i8 body 16 16 1 I8 8;
    VMfmaI32_32x32x16I8 body 32 16 1 I8 8;
    VMfmaI32_16x16x32I8 body 16 32 1 I8 8;
    VMfmaF64_16x16x4f64 double 16 4 1 F32 64;
    VMfmaF64_4x4x4f64 double 4 4 4 F32 64;
}

/// Finds the sum that products are added to: rows, or a constant in `imm` if `scalar[0]`.
pub(super) fn sum_source(builder: &Builder, operand: Operand, rows: usize, kind: Kind, step: &mut Step) -> Option<()> {
    step.imm = match operand {
        Operand::Vgpr(_) | Operand::Agpr(_) => {
            step.src[2] = Source::register(builder.layout.row(operand, rows)? * ROW);
            return Some(());
        }
        Operand::Int(value) if kind == Kind::F64 => value.into(),
        Operand::Int(value) => i64::from(i32::from(value) as u32),
        Operand::Float(code) => inline_float(code, kind) as i64,
        _ => return None,
    };
    step.scalar[0] = 1;
    Some(())
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    // CDNA3 adds shorter numbers in another way, see `aligned`.
    let known = match builder.layout.target {
        Target::Gfx90a => true,
        Target::Gfx942 => {
            matrix_shape(inst.op).is_some_and(|shape| matches!(shape.a, Element::F64 | Element::F32 | Element::I8))
        }
        Target::Gfx900 | Target::Gfx1030 | Target::Gfx1100 => false,
    };
    if inst.mods != Mods::default() || !known {
        return None;
    }
    let Handlers { run, apart, words, results } = handlers(inst.op, builder)?;
    let mut step = place.step(run);
    for index in 0..2 {
        step.src[index] = Source::register(builder.layout.row(inst.src[index], words)? * ROW);
    }
    let wide = matches!(inst.op, Op::VMfmaF64_16x16x4f64 | Op::VMfmaF64_4x4x4f64);
    sum_source(builder, inst.src[2], results, if wide { Kind::F64 } else { Kind::F32 }, &mut step)?;
    step.dst = builder.layout.row(inst.dst, results)? * ROW;
    let [a, b, c] = step.src.map(|source| source.in_registers().unwrap_or(step.dst));
    let differs = |first: usize, rows: usize| first + rows * ROW <= step.dst || step.dst + results * ROW <= first;
    if differs(a, words) && differs(b, words) && (step.scalar[0] != 0 || c == step.dst || differs(c, results)) {
        step.run = apart.unwrap_or(run);
    }
    steps.push(step);
    Some(())
}
