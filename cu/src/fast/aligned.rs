// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of CDNA3 on halves, bfloat16, eight-bit floats and xf32, on processors with
//! AVX2.
//!
//! The sums are the reference engine's `Sum::aligned`, in words: the products of a group are
//! aligned to the largest exponent and cut off at 24 bits below it. A product of significands has
//! 22 bits at most, so that a group's sum fits into a word. The accumulator comes to it in double
//! precision, which has all bits of both, and is rounded once. Infinities, NaNs and products that
//! may be beyond single precision are the reference engine's.
//!
//! A sparse A has two of each four elements of its rows; their places are two bits each in a word
//! of the lane that has them. D is also the addend.

use super::builder::Builder;
use super::matrix::sum_source;
use super::simd::Simd;
use super::step::{Cx, Flow, Place, Run, Source, Step, ROW};
use crate::reference::{matrix_shape, Element, Kind, MatrixShape};
use vkfd_isa::{Inst, Mods, Target};

const F16: u8 = 0;
const BF16: u8 = 1;
const XF32: u8 = 2;
const FP8: u8 = 3;
const BF8: u8 = 4;

/// The exponent of zero: less than that of any product.
const NOTHING: i32 = -1000;
/// A lane's element: its significand, whose sign is the word's, and its exponent.
#[derive(Clone, Copy)]
struct Elements<const MOST: usize> {
    sig: [[i32; 64]; MOST],
    exp: [[i32; 64]; MOST],
}

/// Bits of an element, and of its significand behind the point.
const fn format(kind: u8) -> (u32, u32, i32) {
    // Bits, bits behind the point, bias.
    match kind {
        F16 => (16, 10, 15),
        BF16 => (16, 7, 127),
        XF32 => (32, 10, 127),
        FP8 => (8, 3, 8),
        _ => (8, 2, 16),
    }
}

impl<const MOST: usize> Elements<MOST> {
    /// Takes `count` elements, at most `MOST`, out of the registers of a source; `None`: one is
    /// infinite or NaN.
    #[inline(always)]
    unsafe fn of<const KIND: u8>(rows: *const u32, count: usize) -> Option<Self> {
        let (bits, man, bias) = format(KIND);
        let in_word = 32 / bits as usize;
        let mut all = Elements { sig: [[0; 64]; MOST], exp: [[NOTHING; 64]; MOST] };
        let mut bad = false;
        for n in 0..count {
            // SAFETY: the rows exist.
            let row = unsafe { rows.add(64 * (n / in_word)).cast::<[u32; 64]>().read() };
            for lane in 0..64 {
                let word = row[lane] >> (bits * (n % in_word) as u32);
                // xf32 has no more than ten bits behind the point.
                let word = if KIND == XF32 { word >> 13 } else { word };
                let width = if KIND == XF32 { 19 } else { bits };
                let power = word >> man & ((1 << (width - 1 - man)) - 1);
                let fraction = word & ((1 << man) - 1);
                let negative = word >> (width - 1) & 1 != 0;
                bad |= match KIND {
                    // One code is NaN: negative zero.
                    FP8 | BF8 => negative && power == 0 && fraction == 0,
                    _ => power == (1 << (width - 1 - man)) - 1,
                };
                let sig = if power == 0 { fraction } else { fraction | 1 << man } as i32;
                all.sig[n][lane] = if negative { -sig } else { sig };
                all.exp[n][lane] = if sig == 0 { NOTHING } else { (power.max(1)) as i32 - bias };
            }
        }
        (!bad).then_some(all)
    }
}

/// `value` by a power of two, downwards.
#[inline(always)]
fn moved(value: i32, down: i32) -> i32 {
    value >> down.clamp(0, 31)
}

/// Products of eight lanes, aligned to the largest exponent and cut off.
struct Sum {
    sum: [i32; 8],
    top: [i32; 8],
}

impl Sum {
    /// Of a group's products: significands, exponents. `up`: what takes a product's last bit to
    /// 24 bits behind the point.
    #[inline(always)]
    fn of<const N: usize>(products: &[([i32; 8], [i32; 8]); N], up: u32) -> Sum {
        let mut top = [NOTHING; 8];
        for (_, exp) in products {
            for lane in 0..8 {
                top[lane] = top[lane].max(exp[lane]);
            }
        }
        let mut sum = [0; 8];
        for (sig, exp) in products {
            for lane in 0..8 {
                let magnitude = moved((sig[lane].abs()) << up, top[lane] - exp[lane]);
                sum[lane] += if sig[lane] < 0 { -magnitude } else { magnitude };
            }
        }
        Sum { sum, top }
    }

    /// Both, under the larger exponent.
    #[inline(always)]
    fn with(&self, other: &Sum) -> Sum {
        let mut both = Sum { sum: [0; 8], top: [0; 8] };
        for lane in 0..8 {
            let top = self.top[lane].max(other.top[lane]);
            both.top[lane] = top;
            both.sum[lane] =
                moved(self.sum[lane], top - self.top[lane]) + moved(other.sum[lane], top - other.top[lane]);
        }
        both
    }

    /// With the sum so far, rounded. `tiny`: of eight-bit elements, beside which a small sum so far
    /// does not count.
    #[inline(always)]
    fn add(&self, c: [u32; 8], tiny: bool) -> [u32; 8] {
        let mut out = [0; 8];
        for lane in 0..8 {
            let power = (c[lane] >> 23 & 0xff) as i32;
            let fraction = c[lane] & 0x7f_ffff;
            let sig = i64::from(if power == 0 { fraction } else { fraction | 1 << 23 });
            let exp = if sig == 0 { -999 } else { power.max(1) - 127 };
            let top = self.top[lane].max(exp);
            let sum = i64::from(self.sum[lane]) << 7 >> (top - self.top[lane]).clamp(0, 63);
            let signed = if c[lane] >> 31 != 0 { -sig } else { sig };
            // One bit more than it has, downwards.
            let addend = signed << 1 >> (top - exp).clamp(0, 63) << 7;
            let addend = if tiny && exp < top - 25 { 0 } else { addend };
            let scale = f64::from_bits(((i64::from((top - 31).max(-1000)) + 1023) as u64) << 52);
            out[lane] = (((sum + addend) as f64 * scale) as f32).to_bits();
        }
        out
    }
}

/// What a shape is, in a step's scalars: rows, length of the sums, blocks.
fn shape_of(step: &Step, sparse: bool) -> MatrixShape {
    let [_, m, k, blocks] = step.scalar.map(usize::from);
    MatrixShape { m, k, blocks, a: Element::F16, b: Element::F16, sparse }
}

/// `N` products are added at a time; a lane has at most `MOST` elements of B. `imm` of a sparse
/// step: the first bit of its elements' places in `src[2]`.
#[inline(always)]
unsafe fn body<S: Simd, const A: u8, const B: u8, const N: usize, const MOST: usize, const SPARSE: bool>(
    step: &Step,
    cx: &mut Cx,
) -> Flow {
    let shape = shape_of(step, SPARSE);
    let up = 24 - format(A).1 - format(B).1;
    let terms = if SPARSE { shape.k / 2 } else { shape.k };
    // SAFETY: the step's rows exist. D is written when A, B, C and the places have been read.
    unsafe {
        let (Some(a), Some(b)) = (
            Elements::<MOST>::of::<A>(cx.row(step.src[0]), shape.in_lane_of_a()),
            Elements::<MOST>::of::<B>(cx.row(step.src[1]), shape.in_lane()),
        ) else {
            return step.slow(cx);
        };
        let c = if SPARSE { cx.row_mut(step.dst).cast_const() } else { cx.row(step.src[2]) };
        let places = if SPARSE { cx.row(step.src[2]).cast::<[u32; 64]>().read() } else { [0; 64] };
        let mut out = [[0u32; 64]; 32];
        let mut bad = false;
        for at in 0..shape.results() {
            for vector in 0..8 {
                let mut sum: [u32; 8] = if !SPARSE && step.scalar[0] != 0 {
                    [step.imm as u32; 8]
                } else {
                    c.add(64 * at + 8 * vector).cast::<[u32; 8]>().read()
                };
                for word in sum {
                    bad |= word >> 23 & 0xff == 0xff;
                }
                // The lanes of A and B that have the first elements of these results' rows.
                let (mut left, mut right) = ([0; 8], [0; 8]);
                for lane in 0..8 {
                    let (i, j, block) = shape.place(8 * vector + lane, at);
                    (left[lane], right[lane]) = (shape.source(i, 0, block).0, shape.source(j, 0, block).0);
                }
                // Sparse rows have one block, and the eight results are of one row.
                let row = shape.place(8 * vector, at).0;
                for group in 0..terms / N {
                    let mut products = [([0; 8], [0; 8]); N];
                    for (n, (sig, exp)) in products.iter_mut().enumerate() {
                        let k = group * N + n;
                        let (of_a, of_b) = if SPARSE {
                            let (lane, element) = shape.sparse_source(row, k);
                            let place = places[lane % 64] >> (step.imm as usize + 2 * element) & 3;
                            ((lane - row, element), shape.source(0, shape.dense(k, place as usize), 0))
                        } else {
                            let of_both = shape.source(0, k, 0);
                            (of_both, of_both)
                        };
                        for lane in 0..8 {
                            let (left, right) = ((left[lane] + of_a.0) % 64, (right[lane] + of_b.0) % 64);
                            sig[lane] = a.sig[of_a.1][left] * b.sig[of_b.1][right];
                            exp[lane] = a.exp[of_a.1][left] + b.exp[of_b.1][right];
                            bad |= exp[lane] >= 126;
                        }
                    }
                    let total = if N == 16 {
                        let part = |odd: usize| {
                            let half: [_; 8] = std::array::from_fn(|n| products[(2 * n + odd) % N]);
                            Sum::of(&half, up)
                        };
                        part(0).with(&part(1))
                    } else {
                        Sum::of(&products, up)
                    };
                    sum = total.add(sum, N == 16);
                    for word in sum {
                        bad |= word >> 23 & 0xff == 0xff;
                    }
                }
                S::store(out[at].as_mut_ptr().add(8 * vector), S::from_array(sum));
            }
        }
        if bad {
            return step.slow(cx);
        }
        let to = cx.row_mut(step.dst).cast::<[u32; 64]>();
        for (n, row) in out.into_iter().enumerate().take(shape.results()) {
            to.add(n).write(row);
        }
    }
    step.done(cx)
}

/// Whole numbers of eight bits, sparse: `K` of them in a row of B, `M` rows.
#[inline(always)]
unsafe fn whole<const M: usize, const K: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let shape = MatrixShape { m: M, k: K, blocks: 1, a: Element::I8, b: Element::I8, sparse: true };
    // SAFETY: the step's rows exist. D is written when A, B, C and the places have been read.
    unsafe {
        let bytes = |rows: *const u32, count: usize| -> [[i32; 64]; 16] {
            let mut all = [[0; 64]; 16];
            for (n, row) in all.iter_mut().enumerate().take(count) {
                let words = rows.add(64 * (n / 4)).cast::<[u32; 64]>().read();
                *row = words.map(|word| ((word >> (8 * (n % 4))) as u8 as i8).into());
            }
            all
        };
        let (a, b) = (bytes(cx.row(step.src[0]), shape.in_lane_of_a()), bytes(cx.row(step.src[1]), shape.in_lane()));
        let places = cx.row(step.src[2]).cast::<[u32; 64]>().read();
        for at in 0..shape.results() {
            let to = cx.row_mut(step.dst).add(64 * at);
            let mut sums = to.cast::<[u32; 64]>().read();
            for vector in 0..8 {
                let row = shape.place(8 * vector, at).0;
                for k in 0..K / 2 {
                    let (lane, element) = shape.sparse_source(row, k);
                    let place = places[lane % 64] >> (step.imm as usize + 2 * element) & 3;
                    let (further, of_b) = shape.source(0, shape.dense(k, place as usize), 0);
                    let left = a[element][lane % 64];
                    for lane in 8 * vector..8 * vector + 8 {
                        let right = b[of_b][(shape.place(lane, at).1 + further) % 64];
                        sums[lane] = sums[lane].wrapping_add((left * right) as u32);
                    }
                }
            }
            to.cast::<[u32; 64]>().write(sums);
        }
    }
    step.done(cx)
}

/// A handler, if the processor has AVX2: without it, they would hardly be faster than the reference
/// engine.
macro_rules! wide {
    ($avx2:expr, [$($parameter:ident: $kind:ty),*] $body:expr) => {{
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide<$(const $parameter: $kind),*>(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { $body(step, cx) }
        }
        $avx2.then_some(wide::<$($parameter),*> as Run)
    }};
}

#[cfg(target_arch = "x86_64")]
fn run<const A: u8, const B: u8, const N: usize>(avx2: bool) -> Option<Run> {
    wide!(avx2, [A: u8, B: u8, N: usize] body::<super::avx2::Avx2, A, B, N, 8, false>)
}

#[cfg(target_arch = "x86_64")]
fn run_sparse<const A: u8, const B: u8, const N: usize>(avx2: bool) -> Option<Run> {
    wide!(avx2, [A: u8, B: u8, N: usize] body::<super::avx2::Avx2, A, B, N, 16, true>)
}

#[cfg(target_arch = "x86_64")]
fn run_whole<const M: usize, const K: usize>(avx2: bool) -> Option<Run> {
    wide!(avx2, [M: usize, K: usize] whole::<M, K>)
}

/// Which handler a shape has, and the bits of its elements.
fn handler(shape: MatrixShape, avx2: bool) -> Option<(Run, usize)> {
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _: [Run; 2] = [body::<super::simd::Portable, F16, F16, 4, 8, false>, whole::<16, 64>];
        let _ = (shape, avx2);
        None
    }
    #[cfg(target_arch = "x86_64")]
    Some(match (shape.a, shape.b, shape.sparse) {
        // Less than a group of products are one all the same.
        (Element::F16, _, false) if shape.k < 8 => (run::<F16, F16, 4>(avx2)?, 16),
        (Element::F16, _, false) => (run::<F16, F16, 8>(avx2)?, 16),
        (Element::Bf16 | Element::Bf16K, _, false) if shape.k < 8 => (run::<BF16, BF16, 4>(avx2)?, 16),
        (Element::Bf16 | Element::Bf16K, _, false) => (run::<BF16, BF16, 8>(avx2)?, 16),
        (Element::Xf32, _, false) => (run::<XF32, XF32, 4>(avx2)?, 32),
        (Element::Fp8, Element::Fp8, false) => (run::<FP8, FP8, 16>(avx2)?, 8),
        (Element::Fp8, Element::Bf8, false) => (run::<FP8, BF8, 16>(avx2)?, 8),
        (Element::Bf8, Element::Fp8, false) => (run::<BF8, FP8, 16>(avx2)?, 8),
        (Element::Bf8, Element::Bf8, false) => (run::<BF8, BF8, 16>(avx2)?, 8),
        (Element::F16, _, true) => (run_sparse::<F16, F16, 8>(avx2)?, 16),
        (Element::Bf16K, _, true) => (run_sparse::<BF16, BF16, 8>(avx2)?, 16),
        (Element::Fp8, Element::Fp8, true) => (run_sparse::<FP8, FP8, 16>(avx2)?, 8),
        (Element::Fp8, Element::Bf8, true) => (run_sparse::<FP8, BF8, 16>(avx2)?, 8),
        (Element::Bf8, Element::Fp8, true) => (run_sparse::<BF8, FP8, 16>(avx2)?, 8),
        (Element::Bf8, Element::Bf8, true) => (run_sparse::<BF8, BF8, 16>(avx2)?, 8),
        (Element::I8, _, true) if shape.m == 16 => (run_whole::<16, 64>(avx2)?, 8),
        (Element::I8, _, true) => (run_whole::<32, 32>(avx2)?, 8),
        _ => return None,
    })
}

/// Makes a step of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let layout = builder.layout;
    let shape = matrix_shape(inst.op)?;
    // Which part of a word the places of a sparse row are in.
    let Mods { cbsz, abid, .. } = if shape.sparse { inst.mods } else { Mods::default() };
    // NEW TARGET: which matrix operations the fast engine has
    if layout.target != Target::Gfx942 || inst.mods != (Mods { cbsz, abid, ..Mods::default() }) {
        return None;
    }
    let (run, bits) = handler(shape, builder.avx2)?;
    let mut step = place.step(run);
    for (index, elements) in [shape.in_lane_of_a(), shape.in_lane()].into_iter().enumerate() {
        let words = (elements * bits).div_ceil(32);
        step.src[index] = Source::register(layout.row(inst.src[index], words)? * ROW);
    }
    if shape.sparse {
        step.src[2] = Source::register(layout.row(inst.src[2], 1)? * ROW);
        step.imm = shape.first_place(inst.mods) as i64;
    } else {
        sum_source(builder, inst.src[2], shape.results(), Kind::F32, &mut step)?;
    }
    for (slot, value) in step.scalar.iter_mut().skip(1).zip([shape.m, shape.k, shape.blocks]) {
        *slot = value as u8;
    }
    step.dst = layout.row(inst.dst, shape.results())? * ROW;
    steps.push(step);
    Some(())
}
