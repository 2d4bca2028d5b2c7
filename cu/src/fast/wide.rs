// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operations of 64 bits: double precision, shifts, products with sums, comparisons.
//!
//! Plain loops over the lanes, compiled with and without AVX2.

use super::block::{Builder, Place};
use super::step::{Cx, Flow, Run, Source, Step, ROW};
use vkfd_isa::{Inst, Mods, Op, Operand};

type Lanes = [u64; 64];
type Words = [u32; 64];

/// A source in a scalar register has its number in `scalar`; others one of these.
const IN_ROWS: u8 = 255;
const CONSTANT: u8 = 254;

/// An operation on words of 64 bits.
trait Wide {
    /// Registers of each source; 0: there is none.
    const SOURCES: [usize; 3];
    /// The result is a number of double precision.
    const FLOAT: bool;
    /// A mask is written with what `f` says.
    const CARRY: bool;
    fn f(a: u64, b: u64, c: u64) -> (u64, bool);
}

#[inline(always)]
unsafe fn source<const WORDS: usize>(step: &Step, cx: &Cx, index: usize) -> Lanes {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        match step.scalar[index] {
            IN_ROWS => {
                let row = cx.row(step.src[index]).cast::<Words>();
                let low = row.read();
                if WORDS == 1 {
                    return low.map(u64::from);
                }
                let high = row.add(1).read();
                std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32)
            }
            CONSTANT => [step.imm as u64; 64],
            n if WORDS == 1 => [cx.scalar(n).into(); 64],
            n => [cx.pair(n); 64],
        }
    }
}

#[inline(always)]
unsafe fn operand<O: Wide>(step: &Step, cx: &Cx, index: usize) -> Lanes {
    // SAFETY: forwarded.
    unsafe {
        match O::SOURCES[index] {
            0 => [0; 64],
            1 => source::<1>(step, cx, index),
            _ => source::<2>(step, cx, index),
        }
    }
}

#[inline(always)]
unsafe fn body<O: Wide>(step: &Step, cx: &mut Cx) -> Flow {
    if O::FLOAT && !cx.plain {
        return Flow::Slow;
    }
    let exec = cx.exec();
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let [a, b, c] = [operand::<O>(step, cx, 0), operand::<O>(step, cx, 1), operand::<O>(step, cx, 2)];
        let (mut value, mut carry, mut bad) = ([0u64; 64], 0u64, false);
        for lane in 0..64 {
            let (result, out) = O::f(a[lane], b[lane], c[lane]);
            value[lane] = result;
            carry |= u64::from(out) << lane;
        }
        if O::FLOAT {
            for lane in 0..64 {
                bad |= f64::from_bits(value[lane]).is_nan() && exec >> lane & 1 != 0;
            }
        }
        if bad {
            return Flow::Slow;
        }
        let to = cx.row_mut(step.dst).cast::<Words>();
        let (mut low, mut high) = (to.read(), to.add(1).read());
        for lane in 0..64 {
            let mask = ((exec >> lane) as u32 & 1).wrapping_neg();
            low[lane] ^= (low[lane] ^ value[lane] as u32) & mask;
            high[lane] ^= (high[lane] ^ (value[lane] >> 32) as u32) & mask;
        }
        to.write(low);
        to.add(1).write(high);
        if O::CARRY {
            cx.set_mask(step.scalar[3], carry & exec);
        }
    }
    Flow::Next
}

/// A comparison of 64 bits.
trait Question {
    const FLOAT: bool;
    fn f(a: u64, b: u64) -> bool;
}

#[inline(always)]
unsafe fn ask<O: Question>(step: &Step, cx: &mut Cx) -> Flow {
    if O::FLOAT && !cx.plain {
        return Flow::Slow;
    }
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let (a, b) = (source::<2>(step, cx, 0), source::<2>(step, cx, 1));
        let mut mask = 0;
        for lane in 0..64 {
            mask |= u64::from(O::f(a[lane], b[lane])) << lane;
        }
        mask &= cx.exec();
        cx.set_mask(step.scalar[3], mask);
    }
    Flow::Next
}

macro_rules! both {
    ($avx2:ident $body:ident $op:ident) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { $body::<$op>(step, cx) }
        }
        unsafe fn narrow(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { $body::<$op>(step, cx) }
        }
        #[cfg(target_arch = "x86_64")]
        let run: Run = if $avx2 { wide } else { narrow };
        #[cfg(not(target_arch = "x86_64"))]
        let run: Run = {
            let _ = $avx2;
            narrow
        };
        run
    }};
}

macro_rules! operations {
    ($($op:ident $sources:tt $float:literal $carry:literal |$a:tt, $b:tt, $c:tt| $body:expr;)*) => {
        $(
            struct $op;
            impl Wide for $op {
                const SOURCES: [usize; 3] = $sources;
                const FLOAT: bool = $float;
                const CARRY: bool = $carry;
                #[inline(always)]
                fn f($a: u64, $b: u64, $c: u64) -> (u64, bool) {
                    $body
                }
            }
        )*

        fn handler(op: Op, avx2: bool) -> Option<(Run, [usize; 3], bool, bool)> {
            Some(match op {
                $(Op::$op => (both!(avx2 body $op), $sources, $float, $carry),)*
                _ => return None,
            })
        }
    };
}

#[inline(always)]
fn float(value: f64) -> (u64, bool) {
    (value.to_bits(), false)
}

operations! {
    VLshlrevB64 [1, 2, 0] false false |a, b, _| (b << (a & 63), false);
    VLshrrevB64 [1, 2, 0] false false |a, b, _| (b >> (a & 63), false);
    VAshrrevI64 [1, 2, 0] false false |a, b, _| ((b as i64 >> (a & 63)) as u64, false);
    VMadU64U32 [1, 1, 2] false true |a, b, c| (a * b).overflowing_add(c);
    VFmaF64 [2, 2, 2] true false |a, b, c| float(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)));
    VFmacF64 [2, 2, 2] true false |a, b, c| float(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)));
    VAddF64 [2, 2, 0] true false |a, b, _| float(f64::from_bits(a) + f64::from_bits(b));
    VMulF64 [2, 2, 0] true false |a, b, _| float(f64::from_bits(a) * f64::from_bits(b));
    VLshlAddU64 [2, 1, 2] false false |a, b, c| ((a << (b & 7)).wrapping_add(c), false);
}

macro_rules! questions {
    ($($op:ident $float:literal |$a:ident, $b:ident| $body:expr;)*) => {
        $(
            struct $op;
            impl Question for $op {
                const FLOAT: bool = $float;
                #[inline(always)]
                fn f($a: u64, $b: u64) -> bool {
                    $body
                }
            }
        )*

        fn question(op: Op, avx2: bool) -> Option<(Run, bool)> {
            Some(match op {
                $(Op::$op => (both!(avx2 ask $op), $float),)*
                _ => return None,
            })
        }
    };
}

questions! {
    VCmpEqU64 false |a, b| a == b;
    VCmpNeU64 false |a, b| a != b;
    VCmpLtU64 false |a, b| a < b;
    VCmpLeU64 false |a, b| a <= b;
    VCmpGtU64 false |a, b| a > b;
    VCmpGeU64 false |a, b| a >= b;
    VCmpEqI64 false |a, b| a == b;
    VCmpNeI64 false |a, b| a != b;
    VCmpLtI64 false |a, b| (a as i64) < b as i64;
    VCmpLeI64 false |a, b| a as i64 <= b as i64;
    VCmpGtI64 false |a, b| a as i64 > b as i64;
    VCmpGeI64 false |a, b| a as i64 >= b as i64;
    VCmpLtF64 true |a, b| f64::from_bits(a) < f64::from_bits(b);
    VCmpLeF64 true |a, b| f64::from_bits(a) <= f64::from_bits(b);
    VCmpGtF64 true |a, b| f64::from_bits(a) > f64::from_bits(b);
    VCmpGeF64 true |a, b| f64::from_bits(a) >= f64::from_bits(b);
    VCmpEqF64 true |a, b| f64::from_bits(a) == f64::from_bits(b);
}

/// Finds a source; one constant at most.
fn place_source(
    builder: &Builder,
    step: &mut Step,
    index: usize,
    operand: Operand,
    words: usize,
    constant: &mut bool,
) -> Option<()> {
    step.scalar[index] = match operand {
        Operand::Vgpr(_) | Operand::Agpr(_) => {
            step.src[index] = Source::register(builder.layout.row(operand, words)? * ROW);
            IN_ROWS
        }
        Operand::Scalar(_) => builder.layout.scalar(operand, words as u8)?,
        Operand::Int(value) if !*constant => {
            *constant = true;
            // Of 32 bits it is a word; of 64 it is extended.
            step.imm = if words == 1 { i64::from(i32::from(value) as u32) } else { value.into() };
            CONSTANT
        }
        Operand::Literal(value) if words == 1 && !*constant => {
            *constant = true;
            step.imm = value.into();
            CONSTANT
        }
        _ => return None,
    };
    Some(())
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    if inst.mods != Mods::default() {
        return None;
    }
    let mut constant = false;
    if let Some((run, _)) = question(inst.op, builder.avx2) {
        let mut step = place.step(run);
        for index in 0..2 {
            place_source(builder, &mut step, index, inst.src[index], 2, &mut constant)?;
        }
        step.scalar[3] = builder.layout.scalar(inst.dst, 2)?;
        steps.push(step);
        return Some(());
    }
    let (run, sources, _, carry) = handler(inst.op, builder.avx2)?;
    let mut step = place.step(run);
    for (index, words) in sources.into_iter().enumerate().filter(|(_, words)| *words != 0) {
        place_source(builder, &mut step, index, inst.src[index], words, &mut constant)?;
    }
    step.dst = builder.layout.row(inst.dst, 2)? * ROW;
    if carry {
        step.scalar[3] = builder.layout.scalar(inst.sdst, 2)?;
    }
    steps.push(step);
    Some(())
}
