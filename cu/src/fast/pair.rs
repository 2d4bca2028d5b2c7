// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operations on two words of a lane: packed single precision, and `v_pk_mov_b32`.
//!
//! Each of both results has a word of each source, which `op_sel` and `op_sel_hi` choose, with a
//! sign that `neg` and `neg_hi` turn. Compilers write such forms for every number that all lanes
//! share. The plain form, low with low and high with high, has a handler of its own.

use super::builder::Builder;
use super::layout::constant32;
use super::operation::vectors;
use super::prepare;
use super::rest::Lost;
use super::simd::Simd;
use super::step::{Cx, Flow, Place, Run, Source, Step, ROW};
use vkfd_isa::{Extension, Inst, Mods, Op, Operand};

/// An operation on singles.
trait Single: 'static {
    unsafe fn f<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V;
}

macro_rules! singles {
    ($($op:ident |$s:ident, $a:ident, $b:ident, $c:tt| $body:expr;)*) => {
        $(
            struct $op;
            impl Single for $op {
                #[inline(always)]
                unsafe fn f<$s: Simd>($a: $s::V, $b: $s::V, $c: $s::V) -> $s::V {
                    // SAFETY: the caller's.
                    unsafe { $body }
                }
            }
        )*

        fn handler(op: Op, avx2: bool, plain: bool) -> Option<Run> {
            Some(match op {
                $(Op::$op => run::<$op>(avx2, plain),)*
                _ => return None,
            })
        }
    };
}

singles! {
    VPkFmaF32 |S, a, b, c| S::fma(a, b, c);
    VPkMulF32 |S, a, b, _| S::fmul(a, b);
    VPkAddF32 |S, a, b, _| S::fadd(a, b);
}

/// A source has four bits of `imm`, from four times its number on. Two say which result takes the
/// high word, the low result or the high one. Two say for which result the sign is turned.
const LOW_WORD: u32 = 0;
const HIGH_WORD: u32 = 1;
const LOW_SIGN: u32 = 2;
const HIGH_SIGN: u32 = 3;

/// Where the word of a source is for each result: rows, or eight equal words.
struct Words {
    from: [*const u32; 2],
    /// Words from a group of lanes to the next.
    stride: usize,
}

#[inline(always)]
unsafe fn body<S: Simd, O: Single, const PLAIN: bool>(step: &Step, cx: &mut Cx) -> Flow {
    // The host's rounding is the only one.
    if !cx.wide {
        return step.slow(cx);
    }
    let exec = cx.exec();
    // SAFETY: the step's rows and registers exist, and the rows behind those.
    unsafe {
        let mut same = [[0u32; 8]; 6];
        let bit = |n: usize, what: u32| step.imm >> (4 * n as u32 + what) & 1 != 0;
        let mut words: [Words; 3] = [const { Words { from: [std::ptr::null(); 2], stride: 8 } }; 3];
        let mut signs = [[S::splat(0); 2]; 3];
        for n in 0..3 {
            if PLAIN {
                let row = cx.row(step.src[n]);
                words[n].from = [row, row.add(64)];
                continue;
            }
            let chosen = [bit(n, LOW_WORD), bit(n, HIGH_WORD)];
            for high in 0..2 {
                signs[n][high] = S::splat(u32::from(bit(n, if high == 0 { LOW_SIGN } else { HIGH_SIGN })) << 31);
                let word = usize::from(chosen[high]);
                match step.scalar[n] {
                    IN_ROWS => words[n].from[high] = cx.row(step.src[n]).add(64 * word),
                    // A constant is the low word; the high one is zero.
                    CONSTANT => {
                        same[2 * n + high] = [if word == 0 { cx.row(step.src[n]).read() } else { 0 }; 8];
                        (words[n].from[high], words[n].stride) = (same[2 * n + high].as_ptr(), 0);
                    }
                    register => {
                        same[2 * n + high] = [cx.scalar(register + word as u8); 8];
                        (words[n].from[high], words[n].stride) = (same[2 * n + high].as_ptr(), 0);
                    }
                }
            }
        }
        let lost = Lost::of::<S>(cx.wave.mode);
        let mut values = [[S::splat(0); 8]; 2];
        let mut open = S::splat(0);
        for high in 0..2 {
            for group in 0..vectors(exec) {
                let mut sources = [S::splat(0); 3];
                for n in 0..3 {
                    sources[n] = S::load(words[n].from[high].add(words[n].stride * group));
                    if !PLAIN {
                        sources[n] = S::xor(sources[n], signs[n][high]);
                    }
                    if !cx.plain {
                        sources[n] = lost.source::<S>(sources[n]);
                    }
                }
                let mut value = O::f::<S>(sources[0], sources[1], sources[2]);
                if !cx.plain {
                    let (kept, least) = lost.result::<S>(value);
                    value = kept;
                    open = S::or(open, S::and(least, S::lanes((exec >> (8 * group)) as u8)));
                }
                values[high][group] = value;
            }
        }
        // What may have been denormal before it was rounded.
        if !cx.plain && S::mask(open) != 0 {
            return step.slow(cx);
        }
        let to = cx.row_mut(step.dst);
        for high in 0..2 {
            for group in 0..vectors(exec) {
                let to = to.add(64 * high + 8 * group);
                if exec == cx.all {
                    S::store(to, values[high][group]);
                } else {
                    let mask = S::lanes((exec >> (8 * group)) as u8);
                    S::store(to, S::select(mask, S::load(to), values[high][group]));
                }
            }
        }
    }
    step.done(cx)
}

fn run<O: Single>(avx2: bool, plain: bool) -> Run {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide<O: Single, const PLAIN: bool>(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { body::<super::avx2::Avx2, O, PLAIN>(step, cx) }
        }
        if avx2 {
            return if plain { wide::<O, true> } else { wide::<O, false> };
        }
    }
    let _ = avx2;
    unsafe fn narrow<O: Single, const PLAIN: bool>(step: &Step, cx: &mut Cx) -> Flow {
        // SAFETY: the caller's.
        unsafe { body::<super::simd::Portable, O, PLAIN>(step, cx) }
    }
    if plain {
        narrow::<O, true>
    } else {
        narrow::<O, false>
    }
}

/// A source in scalar registers has the number of the first; others one of these.
const IN_ROWS: u8 = 255;
const CONSTANT: u8 = 254;

/// Two words at once: `src[0]` to the row `dst`, `src[1]` to the one behind it.
unsafe fn move_words(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows exist; the sources are read before they are written.
    unsafe {
        let words = [0, 1].map(|n| cx.row(step.src[n]).cast::<[u32; 64]>().read());
        for (n, words) in words.iter().enumerate() {
            let to = cx.row_mut(step.dst).add(64 * n);
            for (lane, word) in words.iter().enumerate() {
                let old = to.add(lane).read();
                to.add(lane).write(old ^ (old ^ word) & ((exec >> lane) as u32 & 1).wrapping_neg());
            }
        }
    }
    step.done(cx)
}

/// The bits of a constant in both words of a source of `v_pk_mov_b32`.
fn constant64(operand: Operand) -> Option<u64> {
    Some(match operand {
        Operand::Int(value) => u64::from(i32::from(value) as u32),
        _ => constant32(operand)?.into(),
    })
}

/// Makes steps of `v_pk_mov_b32`.
fn translate_move(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let Mods { op_sel, op_sel_hi, neg, neg_hi, .. } = inst.mods;
    // Signs are no part of a move.
    if inst.mods != (Mods { op_sel, op_sel_hi, neg, neg_hi, ..Mods::default() }) {
        return None;
    }
    let mut step = place.step(move_words);
    for index in 0..2 {
        let word = op_sel >> index & 1;
        step.src[index] = match inst.src[index] {
            operand @ (Operand::Vgpr(_) | Operand::Agpr(_)) => {
                Source::register((builder.layout.row(operand, 2)? + usize::from(word)) * ROW)
            }
            operand @ Operand::Scalar(_) => {
                let first = builder.layout.scalar(operand, 2)?;
                builder.row_source(Operand::Scalar(first + word), (false, false), index, place, steps)?
            }
            operand => builder.constants.row((constant64(operand)? >> (32 * word)) as u32),
        };
    }
    step.dst = builder.layout.row(inst.dst, 2)? * ROW;
    steps.push(step);
    Some(())
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    if inst.extension != Extension::None {
        return None;
    }
    if inst.op == Op::VPkMovB32 {
        return translate_move(builder, inst, place, steps);
    }
    handler(inst.op, builder.avx2, true)?;
    let count = if inst.op == Op::VPkFmaF32 { 3 } else { 2 };
    let Mods { op_sel, op_sel_hi, neg, neg_hi, clamp, .. } = inst.mods;
    if inst.mods != (Mods { op_sel, op_sel_hi, neg, neg_hi, clamp, ..Mods::default() }) {
        return None;
    }
    let mut step = place.step(super::scalar::slow);
    let mut plain = true;
    for index in 0..count {
        let bit = |mask: u8, at: u32| i64::from(mask >> index & 1) << (4 * index as u32 + at);
        let chosen = bit(op_sel, LOW_WORD) | bit(op_sel_hi, HIGH_WORD) | bit(neg, LOW_SIGN) | bit(neg_hi, HIGH_SIGN);
        step.imm |= chosen;
        plain &= chosen == 1 << (4 * index as u32 + HIGH_WORD);
        (step.src[index], step.scalar[index]) = match inst.src[index] {
            operand @ (Operand::Vgpr(_) | Operand::Agpr(_)) => {
                (Source::register(builder.layout.row(operand, 2)? * ROW), IN_ROWS)
            }
            operand @ Operand::Scalar(_) => {
                plain = false;
                (Source::register(0), builder.layout.scalar(operand, 2)?)
            }
            operand => {
                plain = false;
                (builder.constants.row(constant32(operand)?), CONSTANT)
            }
        };
    }
    if count == 2 {
        (step.src[2], step.scalar[2]) = (step.src[1], step.scalar[1]);
        step.imm |= (step.imm >> 4 & 15) << 8;
    }
    let row = builder.layout.row(inst.dst, 2)?;
    step.dst = row * ROW;
    step.run = handler(inst.op, builder.avx2, plain)?;
    step.alone = step.run;
    steps.push(step);
    if clamp {
        for word in 0..2 {
            steps.push(prepare::clamped(place, builder.avx2, (row + word) * ROW));
        }
    }
    Some(())
}
