// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operations of 64 bits: double precision and conversions, shifts, products with sums, comparisons
//! of numbers.
//!
//! Plain loops over the lanes, compiled with and without AVX2.

#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "comparisons that NaNs pass")]

use super::builder::Builder;
use super::compare64;
use super::operation::LOW;
use super::shift64;
use super::step::{Cx, Flow, Place, Run, Source, Step, CONSTANT, IN_ROWS, ROW, TO_EXEC};
use crate::reference::{div_scale64, inline_float, kinds, Function, Kind};
use vkfd_isa::{Inst, Mods, Op, Operand};

type Lanes<const L: usize> = [u64; L];
type Words<const L: usize> = [u32; L];

/// An operation on words of 64 bits.
trait Wide {
    const OP: Op;
    /// Registers of each source; 0: there is none.
    const SOURCES: [usize; 3];
    /// Registers of the result.
    const RESULT: usize;
    /// The sources are numbers, so that MODE counts.
    const FLOAT: bool;
    /// The result is a number, too.
    const NUMBER: bool;
    /// A result that is NaN is the first source that is, or what an invalid operation makes; else
    /// it is left to the reference engine's function of a lane.
    const HANDS_ON: bool;
    /// A mask is written with the second value of `f`.
    const CARRY: bool;
    fn f(a: u64, b: u64, c: u64) -> (u64, bool);
}

#[inline(always)]
unsafe fn source<const WORDS: usize, const L: usize>(step: &Step, cx: &Cx, index: usize) -> Lanes<L> {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        match step.scalar[index] {
            IN_ROWS => {
                let row = cx.row(step.src[index]);
                let low = row.cast::<Words<L>>().read();
                if WORDS == 1 {
                    return low.map(u64::from);
                }
                let high = row.add(64).cast::<Words<L>>().read();
                std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32)
            }
            CONSTANT => [cx.row(step.src[index]).cast::<u64>().read_unaligned(); L],
            n if WORDS == 1 => [cx.scalar(n).into(); L],
            n => [cx.pair(n); L],
        }
    }
}

#[inline(always)]
unsafe fn operand<O: Wide, const L: usize>(step: &Step, cx: &Cx, index: usize) -> Lanes<L> {
    // SAFETY: forwarded.
    unsafe {
        match O::SOURCES[index] {
            0 => [0; L],
            1 => source::<1, L>(step, cx, index),
            _ => source::<2, L>(step, cx, index),
        }
    }
}

#[inline(always)]
unsafe fn body<O: Wide>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: forwarded.
    unsafe {
        if cx.all == LOW {
            lanes::<O, 32>(step, cx)
        } else {
            lanes::<O, 64>(step, cx)
        }
    }
}

#[inline(always)]
unsafe fn lanes<O: Wide, const L: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let mut sources = [operand::<O, L>(step, cx, 0), operand::<O, L>(step, cx, 1), operand::<O, L>(step, cx, 2)];
        if O::FLOAT && !O::CARRY && step.scalar[3] != 0 {
            for (index, source) in sources.iter_mut().enumerate() {
                modify(source, O::SOURCES[index] == 1, step.scalar[3] >> index & 1, step.scalar[3] >> (index + 4) & 1);
            }
        }
        let [a, b, c] = &sources;
        let (mut value, mut carry) = ([0u64; L], 0u64);
        for lane in 0..L {
            let (result, out) = O::f(a[lane], b[lane], c[lane]);
            value[lane] = result;
            carry |= u64::from(out) << lane;
        }
        if O::FLOAT {
            let mut left = 0;
            if O::NUMBER {
                for lane in 0..L {
                    let nan = if O::RESULT == 1 { is_nan32(value[lane]) } else { d(value[lane]).is_nan() };
                    left |= u64::from(nan) << lane;
                }
            }
            if O::OP == Op::VDivFmasF64 {
                left |= cx.wave.vcc();
            }
            // Where singles take part, their denormals count.
            let suits = if O::SOURCES[0] == 2 && O::RESULT == 2 { cx.wide } else { cx.plain };
            if suits && O::HANDS_ON {
                if left & exec != 0 {
                    for lane in 0..L {
                        value[lane] = handed_on(value[lane], [a[lane], b[lane], c[lane]]);
                    }
                }
                left = 0;
            } else if !suits {
                left = u64::MAX;
            }
            if left & exec != 0 && !by_function::<L>(O::OP, cx, &sources, left & exec, &mut value, &mut carry) {
                return step.slow(cx);
            }
        }
        let to = cx.row_mut(step.dst);
        for word in 0..O::RESULT {
            let to = to.add(64 * word).cast::<Words<L>>();
            let mut row = to.read();
            for lane in 0..L {
                let mask = ((exec >> lane) as u32 & 1).wrapping_neg();
                row[lane] ^= (row[lane] ^ (value[lane] >> (32 * word)) as u32) & mask;
            }
            to.write(row);
        }
        if O::CARRY {
            cx.set_mask(step.scalar[3], carry & exec);
        }
    }
    step.done(cx)
}

/// A result, which if it is NaN is the first of the sources that is, quieted.
#[inline(always)]
fn handed_on(value: u64, sources: [u64; 3]) -> u64 {
    const QUIET: u64 = 1 << 51;
    let mut nan = 0xfff8 << 48;
    for source in sources.into_iter().rev() {
        nan = if d(source).is_nan() { source | QUIET } else { nan };
    }
    if d(value).is_nan() {
        nan
    } else {
        value
    }
}

/// Computes the lanes of a mask one by one; nothing if there is no function for it.
#[inline(never)]
fn by_function<const L: usize>(
    op: Op,
    cx: &Cx,
    sources: &[Lanes<L>; 3],
    mask: u64,
    value: &mut Lanes<L>,
    carry: &mut u64,
) -> bool {
    let function = Function::wide(op);
    if function.is_none() && op != Op::VDivScaleF64 {
        return false;
    }
    let vcc = cx.wave.vcc();
    for lane in (0..L).filter(|lane| mask >> lane & 1 != 0) {
        let words = sources.each_ref().map(|source| source[lane]);
        match &function {
            Some(function) => value[lane] = function.lane64(cx.wave, lane, vcc, words),
            None => {
                let (scaled, bit) = div_scale64(cx.wave.mode, words);
                value[lane] = scaled;
                *carry = *carry & !(1 << lane) | u64::from(bit) << lane;
            }
        }
    }
    true
}

/// What tells that an operation is not for this engine: a NaN of a result of either size.
const GIVEN_UP: u64 = u64::MAX;

#[inline(always)]
fn is_nan32(bits: u64) -> bool {
    f32::from_bits(bits as u32).is_nan()
}

/// Absolute value and negation, of numbers of single precision if `short`.
#[inline(always)]
fn modify<const L: usize>(lanes: &mut Lanes<L>, short: bool, neg: u8, abs: u8) {
    let sign: u64 = if short { 1 << 31 } else { 1 << 63 };
    let (keep, turn) = (if abs != 0 { !sign } else { u64::MAX }, if neg != 0 { sign } else { 0 });
    for lane in lanes {
        *lane = *lane & keep ^ turn;
    }
}

/// A comparison of 64 bits.
trait Question {
    const FLOAT: bool;
    /// Registers of the second source.
    const SECOND: usize;
    fn f(a: u64, b: u64) -> bool;
}

#[inline(always)]
unsafe fn ask<O: Question>(step: &Step, cx: &mut Cx) -> Flow {
    if O::FLOAT && !cx.wide {
        return step.slow(cx);
    }
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let mut a = source::<2, 64>(step, cx, 0);
        let mut b = if O::SECOND == 1 { source::<1, 64>(step, cx, 1) } else { source::<2, 64>(step, cx, 1) };
        if O::FLOAT && step.scalar[2] & !TO_EXEC != 0 {
            modify(&mut a, false, step.scalar[2] & 1, step.scalar[2] >> 4 & 1);
            modify(&mut b, false, step.scalar[2] >> 1 & 1, step.scalar[2] >> 5 & 1);
        }
        let mut mask = 0;
        for lane in 0..64 {
            mask |= u64::from(O::f(a[lane], b[lane])) << lane;
        }
        mask &= cx.exec();
        cx.set_mask(step.scalar[3], mask);
        if step.scalar[2] & TO_EXEC != 0 {
            cx.set_mask(Operand::EXEC, mask);
        }
    }
    step.done(cx)
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
    (@ sources integers) => { false };
    (@ sources $numbers:tt) => { true };
    (@ result numbers) => { true };
    (@ result exact) => { true };
    (@ result $other:tt) => { false };
    (@ hands_on exact) => { true };
    (@ hands_on $other:tt) => { false };
    ($($op:ident $sources:tt $result:literal $float:tt $carry:literal |$a:tt, $b:tt, $c:tt| $body:expr;)*) => {
        $(
            struct $op;
            impl Wide for $op {
                const OP: Op = Op::$op;
                const HANDS_ON: bool = operations!(@ hands_on $float);
                const SOURCES: [usize; 3] = $sources;
                const RESULT: usize = $result;
                const FLOAT: bool = operations!(@ sources $float);
                const NUMBER: bool = operations!(@ result $float);
                const CARRY: bool = $carry;
                #[inline(always)]
                fn f($a: u64, $b: u64, $c: u64) -> (u64, bool) {
                    $body
                }
            }
        )*

        fn handler(op: Op, avx2: bool) -> Option<Shape> {
            Some(match op {
                $(Op::$op => Shape {
                    run: both!(avx2 body $op),
                    sources: $sources,
                    result: $result,
                    float: operations!(@ sources $float),
                    carry: $carry,
                },)*
                _ => return None,
            })
        }
    };
}

/// A handler and its operands.
struct Shape {
    run: Run,
    sources: [usize; 3],
    result: usize,
    float: bool,
    carry: bool,
}

#[inline(always)]
fn float(value: f64) -> (u64, bool) {
    (value.to_bits(), false)
}

#[inline(always)]
fn single(value: f32) -> (u64, bool) {
    (value.to_bits().into(), false)
}

#[inline(always)]
fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// The exponent's field.
#[inline(always)]
fn exponent(bits: u64) -> u64 {
    bits >> 52 & 0x7ff
}

/// Whether numbers are such that nothing need be scaled in their division.
#[inline(always)]
fn ordinary(b: u64, c: u64) -> bool {
    let near = |bits| exponent(bits).wrapping_sub(700) < 647;
    near(b) && near(c)
}

/// Of zeros, the negative one is the smaller. No operand is NaN.
#[inline(always)]
fn extreme(a: u64, b: u64, most: bool) -> (u64, bool) {
    if d(a).is_nan() || d(b).is_nan() {
        return (GIVEN_UP, false);
    }
    // The order of the bits, negative ones turned round.
    let key = |bits: u64| (bits ^ ((bits as i64 >> 63) as u64 >> 1)) as i64;
    (if (key(a) < key(b)) != most { a } else { b }, false)
}

/// The exponent to which [`fraction`] belongs.
#[inline(always)]
fn power(bits: u64) -> i32 {
    let below = bits & (u64::MAX >> 12);
    match exponent(bits) {
        0 if below == 0 => 0,
        0 => -1010 - below.leading_zeros() as i32,
        0x7ff => 0,
        field => field as i32 - 1022,
    }
}

/// The number by a power of two, from a half to one.
#[inline(always)]
fn fraction(bits: u64) -> u64 {
    let below = bits & (u64::MAX >> 12);
    match exponent(bits) {
        0 if below != 0 => bits & 1 << 63 | below << (below.leading_zeros() - 11) & (u64::MAX >> 12) | 1022 << 52,
        0 | 0x7ff => bits,
        _ => bits & !(0x7ff << 52) | 1022 << 52,
    }
}

/// One over the square root of an ordinary number, to the nearest, unless what is left of it leaves
/// open which that is.
#[inline(always)]
fn rsq(bits: u64) -> u64 {
    let a = d(bits);
    if bits >> 63 != 0 || exponent(bits).wrapping_sub(2) >= 2040 {
        return GIVEN_UP;
    }
    let near = 1.0 / a.sqrt();
    let product = a * near;
    // How far a times the square is from one, of which half is the error.
    let rest = (-product).mul_add(near, 1.0) - a.mul_add(near, -product) * near;
    let correction = 0.5 * near * rest;
    let root = near + correction;
    let left = (near - root) + correction;
    let unit = f64::from_bits(exponent(root.to_bits()).saturating_sub(52) << 52);
    let open = (left.abs() - 0.5 * unit).abs() < unit * 1e-9 || root.to_bits() << 12 == 0;
    if open {
        GIVEN_UP
    } else {
        root.to_bits()
    }
}

operations! {
    VMadU64U32 [1, 1, 2] 2 integers true |a, b, c| (a * b).overflowing_add(c);
    VMadI64I32 [1, 1, 2] 2 integers true |a, b, c| {
        let product = i64::from(a as i32) * i64::from(b as i32);
        let (sum, carry) = (product as u64).overflowing_add(c);
        // Bit 64 of the sum of both as signed numbers.
        (sum, carry ^ (product < 0) ^ ((c as i64) < 0))
    };
    VLshlAddU64 [2, 1, 2] 2 integers false |a, b, c| ((a << (b & 7)).wrapping_add(c), false);
    VFmaF64 [2, 2, 2] 2 exact false |a, b, c| float(d(a).mul_add(d(b), d(c)));
    VFmacF64 [2, 2, 2] 2 exact false |a, b, c| float(d(a).mul_add(d(b), d(c)));
    VAddF64 [2, 2, 0] 2 exact false |a, b, _| float(d(a) + d(b));
    VMulF64 [2, 2, 0] 2 exact false |a, b, _| float(d(a) * d(b));
    VMinF64 [2, 2, 0] 2 numbers false |a, b, _| extreme(a, b, false);
    VMaxF64 [2, 2, 0] 2 numbers false |a, b, _| extreme(a, b, true);
    VLdexpF64 [2, 1, 0] 2 numbers false |a, b, _| {
        // Of ordinary numbers whose result is one.
        let to = exponent(a) as i64 + i64::from(b as i32);
        let good = exponent(a).wrapping_sub(1) < 2046 && (1..2047).contains(&to);
        (if good { a & !(0x7ff << 52) | (to as u64) << 52 } else { GIVEN_UP }, false)
    };
    VMovB64 [2, 0, 0] 2 integers false |a, _, _| (a, false);
    // Towards zero, and to the nearest there is.
    VCvtI32F64 [2, 0, 0] 1 measured false |a, _, _| (u64::from(d(a) as i32 as u32), false);
    VCvtU32F64 [2, 0, 0] 1 measured false |a, _, _| (u64::from(d(a) as u32), false);
    VFrexpExpI32F64 [2, 0, 0] 1 measured false |a, _, _| (u64::from(power(a) as u32), false);
    VFrexpMantF64 [2, 0, 0] 2 exact false |a, _, _| (fraction(a), false);
    VFractF64 [2, 0, 0] 2 exact false |a, _, _| {
        // What the difference rounds up to one is the largest number below it.
        let rest = d(a) - d(a).floor();
        float(if rest >= 1.0 { f64::from_bits(0x3fef_ffff_ffff_ffff) } else { rest })
    };
    VRsqF64 [2, 0, 0] 2 numbers false |a, _, _| (rsq(a), false);
    VRcpF64 [2, 0, 0] 2 numbers false |a, _, _| float(if exponent(a).wrapping_sub(2) < 2040 { 1.0 / d(a) } else { f64::NAN });
    VSqrtF64 [2, 0, 0] 2 exact false |a, _, _| float(d(a).sqrt());
    VTruncF64 [2, 0, 0] 2 exact false |a, _, _| float(d(a).trunc());
    VCeilF64 [2, 0, 0] 2 exact false |a, _, _| float(d(a).ceil());
    VFloorF64 [2, 0, 0] 2 exact false |a, _, _| float(d(a).floor());
    VRndneF64 [2, 0, 0] 2 exact false |a, _, _| float(d(a).round_ties_even());
    VCvtF64F32 [1, 0, 0] 2 numbers false |a, _, _| float(f64::from(f32::from_bits(a as u32)));
    VCvtF64I32 [1, 0, 0] 2 numbers false |a, _, _| float(f64::from(a as i32));
    VCvtF64U32 [1, 0, 0] 2 numbers false |a, _, _| float(f64::from(a as u32));
    VCvtF32F64 [2, 0, 0] 1 numbers false |a, _, _| single(d(a) as f32);
    VDivScaleF64 [2, 2, 2] 2 numbers true |a, b, c| (if ordinary(b, c) { a } else { GIVEN_UP }, false);
    VDivFmasF64 [2, 2, 2] 2 numbers false |a, b, c| float(d(a).mul_add(d(b), d(c)));
    VDivFixupF64 [2, 2, 2] 2 numbers false |a, b, c| {
        let good = ordinary(b, c) && exponent(a).wrapping_sub(1) < 2046;
        (if good { a & !(1 << 63) | (b ^ c) & 1 << 63 } else { GIVEN_UP }, false)
    };
}

macro_rules! questions {
    ($($op:ident $x:ident $float:literal $second:literal |$a:ident, $b:ident| $body:expr;)*) => {
        $(
            struct $op;
            impl Question for $op {
                const FLOAT: bool = $float;
                const SECOND: usize = $second;
                #[inline(always)]
                fn f($a: u64, $b: u64) -> bool {
                    $body
                }
            }
        )*

        /// The handler of a comparison, whether it is of numbers, the second source's registers,
        /// and whether it writes EXEC.
        fn question(op: Op, avx2: bool) -> Option<(Run, bool, usize, bool)> {
            Some(match op {
                $(
                    Op::$op => (both!(avx2 ask $op), $float, $second, false),
                    Op::$x => (both!(avx2 ask $op), $float, $second, true),
                )*
                _ => return None,
            })
        }
    };
}

/// The bit of a mask of classes that a number of double precision is.
#[inline(always)]
fn class(bits: u64) -> u32 {
    let signed = |below: u32, above: u32| if bits >> 63 != 0 { below } else { above };
    match (exponent(bits), bits << 12) {
        (0, 0) => signed(5, 6),
        (0, _) => signed(4, 7),
        (0x7ff, 0) => signed(2, 9),
        (0x7ff, below) => (below >> 63) as u32,
        _ => signed(3, 8),
    }
}

questions! {
    VCmpFF64 VCmpxFF64 true 2 |_a, _b| false;
    VCmpTruF64 VCmpxTruF64 true 2 |_a, _b| true;
    VCmpNlgF64 VCmpxNlgF64 true 2 |a, b| !(d(a) < d(b) || d(a) > d(b));
    VCmpClassF64 VCmpxClassF64 true 1 |a, b| b >> class(a) & 1 != 0;
    VCmpLtF64 VCmpxLtF64 true 2 |a, b| f64::from_bits(a) < f64::from_bits(b);
    VCmpLeF64 VCmpxLeF64 true 2 |a, b| f64::from_bits(a) <= f64::from_bits(b);
    VCmpGtF64 VCmpxGtF64 true 2 |a, b| f64::from_bits(a) > f64::from_bits(b);
    VCmpGeF64 VCmpxGeF64 true 2 |a, b| f64::from_bits(a) >= f64::from_bits(b);
    VCmpEqF64 VCmpxEqF64 true 2 |a, b| f64::from_bits(a) == f64::from_bits(b);
    VCmpNltF64 VCmpxNltF64 true 2 |a, b| !(d(a) < d(b));
    VCmpNleF64 VCmpxNleF64 true 2 |a, b| !(d(a) <= d(b));
    VCmpNgtF64 VCmpxNgtF64 true 2 |a, b| !(d(a) > d(b));
    VCmpNgeF64 VCmpxNgeF64 true 2 |a, b| !(d(a) >= d(b));
    VCmpNeqF64 VCmpxNeqF64 true 2 |a, b| d(a) != d(b);
    VCmpLgF64 VCmpxLgF64 true 2 |a, b| d(a) < d(b) || d(a) > d(b);
    VCmpOF64 VCmpxOF64 true 2 |a, b| !d(a).is_nan() && !d(b).is_nan();
    VCmpUF64 VCmpxUF64 true 2 |a, b| d(a).is_nan() || d(b).is_nan();
}

/// Finds a source of a kind, which has so many registers.
fn place_source(
    builder: &mut Builder,
    step: &mut Step,
    index: usize,
    operand: Operand,
    (words, kind): (usize, Kind),
) -> Option<()> {
    let value = match operand {
        Operand::Vgpr(_) | Operand::Agpr(_) => {
            step.src[index] = Source::register(builder.layout.row(operand, words)? * ROW);
            step.scalar[index] = IN_ROWS;
            return Some(());
        }
        Operand::Scalar(_) => {
            step.scalar[index] = builder.layout.scalar(operand, words as u8)?;
            return Some(());
        }
        // Of 32 bits it is a word; of 64 it is extended.
        Operand::Int(value) if words == 1 => u64::from(i32::from(value) as u32),
        Operand::Int(value) => i64::from(value) as u64,
        Operand::Literal(value) => match kind {
            Kind::F64 => u64::from(value) << 32,
            Kind::I64 => i64::from(value as i32) as u64,
            _ => value.into(),
        },
        Operand::Float(code) => inline_float(code, kind),
        _ => return None,
    };
    step.src[index] = builder.constants.word64(value);
    step.scalar[index] = CONSTANT;
    Some(())
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let modifiers = inst.mods.neg & 7 | (inst.mods.abs & 7) << 4;
    if inst.mods != (Mods { neg: inst.mods.neg, abs: inst.mods.abs, ..Mods::default() }) {
        return None;
    }
    let integers = compare64::handler(inst.op, builder.avx2).map(|(run, exec)| (run, false, 2, exec));
    if let Some((run, float, second, exec)) = integers.or_else(|| question(inst.op, builder.avx2)) {
        if modifiers != 0 && !float {
            return None;
        }
        let mut step = place.step(run);
        let kinds = kinds(inst.op)?.src;
        for (index, words) in [2, second].into_iter().enumerate() {
            place_source(builder, &mut step, index, inst.src[index], (words, kinds[index]))?;
        }
        // Classes are no number.
        let modifiers = if second == 1 { modifiers & 0x11 } else { modifiers };
        step.scalar[2] = modifiers | if exec { TO_EXEC } else { 0 };
        step.scalar[3] = builder.layout.answer(inst.dst, exec)?;
        steps.push(step);
        return Some(());
    }
    if let Some(run) = shift64::handler(inst.op, builder.avx2).filter(|_| modifiers == 0) {
        let mut step = place.step(run);
        let kinds = kinds(inst.op)?.src;
        for (index, words) in [1, 2].into_iter().enumerate() {
            place_source(builder, &mut step, index, inst.src[index], (words, kinds[index]))?;
        }
        step.dst = builder.layout.row(inst.dst, 2)? * ROW;
        steps.push(step);
        return Some(());
    }
    let Shape { run, sources, result, float, carry } = handler(inst.op, builder.avx2)?;
    // A mask's register has the modifiers' place; an integer has no modifiers.
    if modifiers != 0 && (!float || carry || matches!(inst.op, Op::VCvtF64I32 | Op::VCvtF64U32)) {
        return None;
    }
    if inst.op == Op::VLdexpF64 && modifiers & 0x22 != 0 {
        return None;
    }
    let mut step = place.step(run);
    let kinds = kinds(inst.op)?;
    for (index, words) in sources.into_iter().enumerate().filter(|(_, words)| *words != 0) {
        // The operand that a VOP2 has for both is not written.
        let operand = if kinds.tied && index == 2 { inst.dst } else { inst.src[index] };
        place_source(builder, &mut step, index, operand, (words, kinds.src[index]))?;
    }
    step.scalar[3] = modifiers;
    step.dst = builder.layout.row(inst.dst, result)? * ROW;
    if carry {
        step.scalar[3] = builder.layout.mask(inst.sdst)?;
    }
    steps.push(step);
    Some(())
}
