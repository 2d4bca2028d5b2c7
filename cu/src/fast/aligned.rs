// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of CDNA3 on halves, bfloat16, eight-bit floats and xf32, on processors with
//! AVX2.
//!
//! The sums are the reference engine's `Sum::aligned`, in words: the products of a group are
//! aligned to the largest exponent and cut off at 24 bits below it. A product of significands has
//! 22 bits at most, so that a group's sum fits into a word. The accumulator comes to it in double
//! precision, which has all bits of both, and is rounded once. Infinities, NaNs and products that
//! may be beyond single precision are the reference engine's.

use super::block::{Builder, Place};
use super::matrix::sum_source;
use super::simd::Simd;
use super::step::{Cx, Flow, Run, Source, Step, ROW};
use crate::reference::{matrix_shape, Element, Kind, MatrixShape};
use vkfd_isa::{Inst, Mods, Target};

const F16: u8 = 0;
const BF16: u8 = 1;
const XF32: u8 = 2;
const FP8: u8 = 3;
const BF8: u8 = 4;

/// The exponent of zero: less than that of any product.
const NOTHING: i32 = -1000;
/// Elements of all lanes, at most.
const MOST: usize = 8;

/// A lane's element: its significand, whose sign is the word's, and its exponent.
#[derive(Clone, Copy)]
struct Elements {
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

impl Elements {
    /// Takes `count` elements out of the registers of a source; `None`: one is infinite or NaN.
    #[inline(always)]
    unsafe fn of<const KIND: u8>(rows: *const u32, count: usize) -> Option<Elements> {
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
fn shape_of(step: &Step) -> MatrixShape {
    let [_, m, k, blocks] = step.scalar.map(usize::from);
    MatrixShape { m, k, blocks, a: Element::F16, b: Element::F16, sparse: false }
}

#[inline(always)]
unsafe fn body<S: Simd, const A: u8, const B: u8, const N: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let shape = shape_of(step);
    let up = 24 - format(A).1 - format(B).1;
    // SAFETY: the step's rows exist. D is written when A, B and C have been read.
    unsafe {
        let (Some(a), Some(b)) = (
            Elements::of::<A>(cx.row(step.src[0]), shape.in_lane()),
            Elements::of::<B>(cx.row(step.src[1]), shape.in_lane()),
        ) else {
            return step.slow(cx);
        };
        let c = cx.row(step.src[2]);
        let mut out = [[0u32; 64]; 32];
        let mut bad = false;
        for at in 0..shape.results() {
            for vector in 0..8 {
                let mut sum: [u32; 8] = if step.scalar[0] != 0 {
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
                for group in 0..shape.k / N {
                    let mut products = [([0; 8], [0; 8]); N];
                    for (n, (sig, exp)) in products.iter_mut().enumerate() {
                        let (further, element) = shape.source(0, group * N + n, 0);
                        for lane in 0..8 {
                            let (left, right) = ((left[lane] + further) % 64, (right[lane] + further) % 64);
                            sig[lane] = a.sig[element][left] * b.sig[element][right];
                            exp[lane] = a.exp[element][left] + b.exp[element][right];
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

fn run<const A: u8, const B: u8, const N: usize>(avx2: bool) -> Option<Run> {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide<const A: u8, const B: u8, const N: usize>(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { body::<super::avx2::Avx2, A, B, N>(step, cx) }
        }
        avx2.then_some(wide::<A, B, N> as Run)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _: Run = body::<super::simd::Portable, A, B, N>;
        let _ = avx2;
        None
    }
}

/// Makes a step of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let (layout, avx2) = (builder.layout, builder.avx2);
    let shape = matrix_shape(inst.op).filter(|shape| !shape.sparse)?;
    if layout.target != Target::Gfx942 || inst.mods != Mods::default() {
        return None;
    }
    let (handler, bits) = match (shape.a, shape.b) {
        // Less than a group of products are one all the same.
        (Element::F16, _) if shape.k < 8 => (run::<F16, F16, 4>(avx2)?, 16),
        (Element::F16, _) => (run::<F16, F16, 8>(avx2)?, 16),
        (Element::Bf16 | Element::Bf16K, _) if shape.k < 8 => (run::<BF16, BF16, 4>(avx2)?, 16),
        (Element::Bf16 | Element::Bf16K, _) => (run::<BF16, BF16, 8>(avx2)?, 16),
        (Element::Xf32, _) => (run::<XF32, XF32, 4>(avx2)?, 32),
        (Element::Fp8, Element::Fp8) => (run::<FP8, FP8, 16>(avx2)?, 8),
        (Element::Fp8, Element::Bf8) => (run::<FP8, BF8, 16>(avx2)?, 8),
        (Element::Bf8, Element::Fp8) => (run::<BF8, FP8, 16>(avx2)?, 8),
        (Element::Bf8, Element::Bf8) => (run::<BF8, BF8, 16>(avx2)?, 8),
        _ => return None,
    };
    let mut step = place.step(handler);
    let words = (shape.in_lane() * bits).div_ceil(32);
    for index in 0..2 {
        step.src[index] = Source::register(layout.row(inst.src[index], words)? * ROW);
    }
    sum_source(builder, inst.src[2], shape.results(), Kind::F32, &mut step)?;
    for (slot, value) in step.scalar.iter_mut().skip(1).zip([shape.m, shape.k, shape.blocks]) {
        *slot = value as u8;
    }
    step.dst = layout.row(inst.dst, shape.results())? * ROW;
    steps.push(step);
    Some(())
}
