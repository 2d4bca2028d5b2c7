// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The vector operations that are translated, one line each: what an operation does to a strip, in
//! the words of [`Emit`]. Both widths come from the same line.
//!
//! A line has the destination `d` and the sources. The destination may be one of the sources: it is
//! written last. Lines under `Singles` need a MODE that rounds to nearest, keeps denormals and
//! quiets NaNs; lines under `Any` do not care.
//!
//! What is not here, the engine's own handlers execute; so an operation is added when it is hot.

use crate::emit::{is, Emit, Mask, Order, Src, QUIET};
use crate::width::{self, Both};
use iced_x86::Register;
use vkfd_isa::Op;

/// What MODE has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Any,
    /// Rounding to nearest and quiet NaNs, as all below. Sources may be negated and have absolute
    /// values. Denormals are lost if MODE says it.
    Singles,
    /// The same with denormals: a source may be handed on.
    Kept,
    /// The same without denormals, whatever MODE says.
    Flushed,
    /// Sources are integers.
    Rounded,
    Doubles,
    /// Conversions between singles and doubles, with the denormals of both.
    Converted,
    /// Sources are halves or become such.
    Halves,
}

/// An operation's shape, and what writes its code.
#[derive(Clone, Copy)]
pub(crate) enum How {
    Unary(fn(&mut Emit, Register, Src)),
    Binary(fn(&mut Emit, Register, Src, Src)),
    Ternary(fn(&mut Emit, Register, Src, Src, Src)),
    /// Makes a mask.
    Compare(fn(&mut Emit, Mask, Src, Src)),
    /// `d = mask ? b : a`.
    Choose,
    /// A sum or difference: the first temporary has the result, the mask the carry out.
    Carry(Carry),
    /// A comparison of 64 bits.
    Compare64(Order, bool),
    /// A product of words, with signs or without, and a sum of 64 bits, with a carry.
    Multiply64(bool),
    /// The scaling of a division, which makes a mask, too.
    Scale,
    /// The last steps of a division: with VCC, and the sources' signs.
    Unscale,
    Fixup,
    /// An operation in double precision.
    Double(Double),
    /// A double of a single, or of an integer.
    Lengthen(Both),
    /// A single of a double.
    Shorten,
}

/// The operations in double precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Double {
    Add,
    Multiply,
    /// `a * b + c`, rounded once.
    Fused,
}

impl How {
    /// How many sources there are.
    pub(crate) const fn sources(self) -> usize {
        match self {
            How::Unary(_) | How::Lengthen(_) | How::Shorten => 1,
            How::Ternary(_) | How::Multiply64(_) | How::Scale | How::Unscale | How::Fixup => 3,
            How::Double(Double::Fused) => 3,
            _ => 2,
        }
    }

    /// Sources that have 64 bits, by bits.
    pub(crate) const fn pairs(self) -> u8 {
        match self {
            How::Compare64(..) => 3,
            How::Multiply64(_) => 4,
            How::Double(Double::Fused) => 7,
            How::Double(_) => 3,
            How::Shorten => 1,
            _ => 0,
        }
    }

    /// Whether the result has 64 bits.
    pub(crate) const fn is_pair(self) -> bool {
        matches!(self, How::Multiply64(_) | How::Double(_) | How::Lengthen(_))
    }

    /// Whether the sources are doubles.
    pub(crate) const fn is_of_doubles(self) -> bool {
        matches!(self, How::Double(_) | How::Shorten)
    }
}

/// A sum or difference with a carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carry {
    pub(crate) subtract: bool,
    /// The second source comes first.
    pub(crate) reversed: bool,
    pub(crate) inward: bool,
}

/// A line of the table.
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) needs: Needs,
    pub(crate) how: How,
    /// The destination is the third source, too.
    pub(crate) tied: bool,
}

macro_rules! operations {
    ($($shape:ident $needs:ident $tied:literal |$e:ident, $d:ident, $args:tt| { $($op:ident => $body:expr;)* })*) => {
        pub(super) fn plain(op: Op) -> Option<Operation> {
            Some(match op {
                $($(Op::$op => {
                    operations!(@ function $shape $e $d $args $body);
                    Operation { needs: Needs::$needs, how: How::$shape(write), tied: $tied }
                })*)*
                _ => return None,
            })
        }
    };
    (@ function $shape:ident $e:ident $d:ident ($($arg:ident),+) $body:expr) => {
        fn write($e: &mut Emit, $d: operations!(@ $shape), $($arg: Src),+) {
            $body;
        }
    };
    (@ Compare) => { Mask };
    (@ $shape:ident) => { Register };
}

mod long;
mod short;

pub(crate) use long::{compare64, multiply64};
pub(crate) use short::{has_half_result, has_half_sources, is_packed};

/// The low 24 bits, with their sign.
fn signed24(e: &mut Emit, a: Src) -> Src {
    let d = e.temp();
    e.shl(d, a, Src::Const(8));
    e.sar(d, Src::Reg(d), Src::Const(8));
    Src::Reg(d)
}

fn low(e: &mut Emit, a: Src, bits: u32) -> Src {
    let d = e.temp();
    e.either(width::AND, d, a, Src::Const(bits));
    Src::Reg(d)
}

/// The high words of the products of words with signs.
fn signed_high(e: &mut Emit, d: Register, a: Src, b: Src) {
    let (a, b) = (Src::Reg(e.reg(a)), Src::Reg(e.reg(b)));
    let (less, other) = (e.temp(), e.temp());
    e.sar(less, a, Src::Const(31));
    e.op(width::AND, less, Src::Reg(less), b);
    e.sar(other, b, Src::Const(31));
    e.op(width::AND, other, Src::Reg(other), a);
    e.op(width::ADD, less, Src::Reg(less), Src::Reg(other));
    e.mul_high(other, a, b);
    e.op(width::SUB, d, Src::Reg(other), Src::Reg(less));
}

/// The middle one of three, by the host's minimum and maximum.
fn middle(e: &mut Emit, d: Register, [a, b, c]: [Src; 3], [min, max]: [Both; 2]) {
    let (least, most) = (e.temp(), e.temp());
    let (a, b) = (Src::Reg(e.reg(a)), Src::Reg(e.reg(b)));
    e.op(min, least, a, b);
    e.op(max, most, a, b);
    e.op(min, most, Src::Reg(most), c);
    e.op(max, d, Src::Reg(most), Src::Reg(least));
}

/// A product and a sum, each of them rounded.
fn unfused(e: &mut Emit, d: Register, a: Src, b: Src, c: Src) {
    let product = e.temp();
    e.op(width::FMUL, product, a, b);
    e.op(width::FADD, d, Src::Reg(product), c);
}

/// The smaller number, or the larger one. Of zeros the negative one is the smaller; what comes of
/// NaNs is picked behind the code.
fn extreme(e: &mut Emit, a: Src, b: Src, largest: bool) -> Register {
    let (a, b) = (Src::Reg(e.reg(a)), Src::Reg(e.reg(b)));
    let (value, other) = (e.temp(), e.temp());
    let (pick, both) = if largest { (width::FMAX, width::AND) } else { (width::FMIN, width::OR) };
    e.op(pick, value, a, b);
    e.op(pick, other, b, a);
    e.op(both, value, Src::Reg(value), Src::Reg(other));
    let nan = e.tested(a, b, is::UNORDERED);
    e.cold(nan, move |e| {
        let quiet = Src::Const(QUIET);
        for (source, instead) in [(b, a), (a, b)] {
            let nan = e.once(|e| e.tested(source, source, is::UNORDERED));
            e.blend(value, nan, instead);
        }
        for source in [b, a] {
            e.op(width::OR, other, source, quiet);
            let signals = e.once(|e| {
                let nan = e.tested(source, source, is::UNORDERED);
                let silent = e.compared(Src::Reg(other), source, Order::NotEqual, true);
                e.intersect(nan, silent);
                nan
            });
            e.blend(value, signals, Src::Reg(other));
        }
    });
    value
}

/// The rounded reciprocal square root, by double precision. What is near the middle between two
/// singles is the engine's.
fn reciprocal_root(e: &mut Emit, d: Register, a: Src) {
    let source = e.temp();
    e.flush(source, a);
    let value = e.temp();
    let open = e.rsq(value, source);
    e.cold(open, move |e| e.mend(Op::VRsqF32, open, &[Src::Reg(source)], value, None));
    e.flush(d, Src::Reg(value));
}

/// The source where it is NaN, quieted.
fn or_nan(e: &mut Emit, value: Register, a: Register) {
    let quiet = e.temp();
    e.op(width::OR, quiet, Src::Reg(a), Src::Const(QUIET));
    let nan = e.once(|e| e.tested(Src::Reg(a), Src::Reg(a), is::UNORDERED));
    e.blend(value, nan, Src::Reg(quiet));
}

/// Two to the power of a number, by double precision.
fn exponential(e: &mut Emit, d: Register, a: Src, op: Op) {
    let (source, near, value) = (e.temp(), e.temp(), e.temp());
    e.flush(source, a);
    // What is beyond has no other result than these.
    e.op(width::FMIN, near, Src::Reg(source), Src::Const(200f32.to_bits()));
    e.op(width::FMAX, near, Src::Reg(near), Src::Const((-200f32).to_bits()));
    let open = e.exp2(value, near);
    e.cold(open, move |e| e.mend(op, open, &[Src::Reg(source)], value, None));
    or_nan(e, value, source);
    e.flush(d, Src::Reg(value));
}

/// The logarithm to the base of two, by double precision.
fn logarithm(e: &mut Emit, d: Register, a: Src, op: Op) {
    let (source, value) = (e.temp(), e.temp());
    e.flush(source, a);
    let a = Src::Reg(source);
    let open = e.log2(value, source);
    e.cold(open, move |e| e.mend(op, open, &[a], value, None));
    let special = [(is::EQ, EXPONENT, EXPONENT), (is::LT, 0, INVALID), (is::EQ, 0, SIGN | EXPONENT)];
    for (predicate, than, result) in special {
        let mask = e.once(|e| e.tested(a, Src::Const(than), predicate));
        e.blend(value, mask, Src::Const(result));
    }
    or_nan(e, value, source);
    e.flush(d, Src::Reg(value));
}

const EXPONENT: u32 = 0x7f80_0000;
const SIGN: u32 = 1 << 31;
/// What comes of an invalid operation.
const INVALID: u32 = 0xffc0_0000;
/// A single of 2^31.
const HALF: u32 = 0x4f00_0000;

/// Integers with signs: the nearest one if a number is out of range.
fn to_signed(e: &mut Emit, d: Register, a: Src) {
    let (a, value) = (Src::Reg(e.reg(a)), e.temp());
    e.truncate(value, a);
    let high = e.once(|e| e.tested(a, Src::Const(HALF), is::GE));
    e.blend(value, high, Src::Const(0x7fff_ffff));
    let nan = e.once(|e| e.tested(a, a, is::UNORDERED));
    e.blend(value, nan, Src::Const(0));
    e.mov(d, Src::Reg(value));
}

/// Integers without signs.
fn to_unsigned(e: &mut Emit, d: Register, a: Src) {
    let (a, value, upper) = (Src::Reg(e.reg(a)), e.temp(), e.temp());
    e.truncate(value, a);
    e.op(width::FSUB, upper, a, Src::Const(HALF));
    e.truncate(upper, Src::Reg(upper));
    e.op(width::XOR, upper, Src::Reg(upper), Src::Const(SIGN));
    let high = e.once(|e| e.tested(a, Src::Const(HALF), is::GE));
    e.blend(value, high, Src::Reg(upper));
    let beyond = e.once(|e| e.tested(a, Src::Const(HALF + 0x80_0000), is::GE));
    e.blend(value, beyond, Src::Const(u32::MAX));
    let low = e.once(|e| e.tested(a, Src::Const(0), is::NGE));
    e.blend(value, low, Src::Const(0));
    e.mov(d, Src::Reg(value));
}

/// Exponents whose quotient is ordinary.
const LOW: u32 = 80;
const HIGH: u32 = 174;

/// Nothing is scaled where both exponents are ordinary. The mask is the one of scaled lanes.
pub(crate) fn scale(e: &mut Emit, value: Register, out: Mask, [a, b, c]: [Src; 3]) {
    let (a, b, c) = (Src::Reg(e.reg(a)), Src::Reg(e.reg(b)), Src::Reg(e.reg(c)));
    e.mov(value, a);
    e.no_lanes(out);
    for checked in [b, c] {
        let bad = e.once(|e| e.beyond(checked, LOW, HIGH));
        e.cold(bad, move |e| {
            // All lanes, so that those of the other source are among them.
            let bad = e.active();
            e.mend(Op::VDivScaleF32, bad, &[a, b, c], value, None);
            e.mended_mask(out);
        });
    }
}

/// The fused operation; lanes of the mask are scaled back.
pub(crate) fn unscale(e: &mut Emit, value: Register, inward: Mask, [a, b, c]: [Src; 3]) {
    let (a, b, c) = (Src::Reg(e.reg(a)), Src::Reg(e.reg(b)), Src::Reg(e.reg(c)));
    e.fma(value, a, b, c);
    e.cold(inward, move |e| e.mend(Op::VDivFmasF32, inward, &[a, b, c], value, Some(inward)));
}

/// The quotient is right, but for its sign, where all exponents are ordinary.
pub(crate) fn fixup(e: &mut Emit, value: Register, [a, b, c]: [Src; 3]) {
    let (a, b, c) = (Src::Reg(e.reg(a)), Src::Reg(e.reg(b)), Src::Reg(e.reg(c)));
    let sign = e.temp();
    e.op(width::XOR, sign, b, c);
    e.op(width::AND, sign, Src::Reg(sign), Src::Const(SIGN));
    e.op(width::AND, value, a, Src::Const(0x7fff_ffff));
    e.op(width::OR, value, Src::Reg(value), Src::Reg(sign));
    for (checked, low, high) in [(b, LOW, HIGH), (c, LOW, HIGH), (a, 1, 254)] {
        let bad = e.once(|e| e.beyond(checked, low, high));
        e.cold(bad, move |e| {
            let bad = e.active();
            e.mend(Op::VDivFixupF32, bad, &[a, b, c], value, None);
        });
    }
}

operations! {
    Unary Any false |e, d, (a)| {
        VMovB32 => e.mov(d, a);
        VNotB32 => e.either(width::XOR, d, a, Src::Const(u32::MAX));
        VAccvgprReadB32 => e.mov(d, a);
        VAccvgprWriteB32 => e.mov(d, a);
        VAccvgprMovB32 => e.mov(d, a);
    }
    Unary Kept false |e, d, (a)| {
        VFloorF32 => e.round(d, a, 9);
        VCeilF32 => e.round(d, a, 10);
        VTruncF32 => e.round(d, a, 11);
        VRndneF32 => e.round(d, a, 8);
    }
    Unary Singles false |e, d, (a)| {
        VSqrtF32 => e.op1(width::FSQRT, d, a);
        VRcpF32 => {
            let (flushed, one) = (e.temp(), e.temp());
            e.flush(flushed, a);
            e.mov(one, Src::Const(0x3f80_0000));
            e.op(width::FDIV, flushed, Src::Reg(one), Src::Reg(flushed));
            e.flush(d, Src::Reg(flushed));
        };
        VRcpIflagF32 => {
            let (flushed, one) = (e.temp(), e.temp());
            e.flush(flushed, a);
            e.mov(one, Src::Const(0x3f80_0000));
            e.op(width::FDIV, flushed, Src::Reg(one), Src::Reg(flushed));
            e.flush(d, Src::Reg(flushed));
        };
        VRsqF32 => reciprocal_root(e, d, a);
        VExpF32 => exponential(e, d, a, Op::VExpF32);
        VLogF32 => logarithm(e, d, a, Op::VLogF32);
        VCvtI32F32 => to_signed(e, d, a);
        VCvtU32F32 => to_unsigned(e, d, a);
    }
    Unary Rounded false |e, d, (a)| {
        VCvtF32I32 => e.op1(width::FROM_INT, d, a);
        VCvtF32U32 => {
            let a = e.reg(a);
            let (low, high) = (low(e, Src::Reg(a), 0xffff), e.temp());
            e.shr(high, Src::Reg(a), Src::Const(16));
            let Src::Reg(low) = low else { return };
            e.op1(width::FROM_INT, low, Src::Reg(low));
            e.op1(width::FROM_INT, high, Src::Reg(high));
            // The high half is exact; the sum rounds once.
            e.fma(d, Src::Reg(high), Src::Const(0x4780_0000), Src::Reg(low));
        };
        VCvtF32Ubyte0 => { let a = low(e, a, 0xff); e.op1(width::FROM_INT, d, a) };
        VCvtF32Ubyte1 => { let t = e.temp(); e.shr(t, a, Src::Const(8)); let a = low(e, Src::Reg(t), 0xff); e.op1(width::FROM_INT, d, a) };
        VCvtF32Ubyte2 => { let t = e.temp(); e.shr(t, a, Src::Const(16)); let a = low(e, Src::Reg(t), 0xff); e.op1(width::FROM_INT, d, a) };
        VCvtF32Ubyte3 => { let t = e.temp(); e.shr(t, a, Src::Const(24)); e.op1(width::FROM_INT, d, Src::Reg(t)) };
    }
    Binary Any false |e, d, (a, b)| {
        VAndB32 => e.either(width::AND, d, a, b);
        VOrB32 => e.either(width::OR, d, a, b);
        VXorB32 => e.either(width::XOR, d, a, b);
        VXnorB32 => { let t = e.temp(); e.either(width::XOR, t, a, b); e.op(width::XOR, d, Src::Reg(t), Src::Const(u32::MAX)) };
        VAddU32 => e.either(width::ADD, d, a, b);
        VAddI32 => e.either(width::ADD, d, a, b);
        VSubU32 => e.op(width::SUB, d, a, b);
        VSubI32 => e.op(width::SUB, d, a, b);
        VSubrevU32 => e.op(width::SUB, d, b, a);
        VLshlrevB32 => e.shl(d, b, a);
        VLshrrevB32 => e.shr(d, b, a);
        VAshrrevI32 => e.sar(d, b, a);
        VMinI32 => e.either(width::MIN_I, d, a, b);
        VMaxI32 => e.either(width::MAX_I, d, a, b);
        VMinU32 => e.either(width::MIN_U, d, a, b);
        VMaxU32 => e.either(width::MAX_U, d, a, b);
        VMulLoU32 => e.either(width::MUL, d, a, b);
        VMbcntLoU32B32 => e.count_below(d, a, b, false);
        VMbcntHiU32B32 => e.count_below(d, a, b, true);
        VMulHiU32 => e.mul_high(d, a, b);
        VMulHiI32 => signed_high(e, d, a, b);
        VMulU32U24 => { let (a, b) = (low(e, a, 0xff_ffff), low(e, b, 0xff_ffff)); e.op(width::MUL, d, a, b) };
        VMulI32I24 => { let (a, b) = (signed24(e, a), signed24(e, b)); e.op(width::MUL, d, a, b) };
    }
    Binary Singles false |e, d, (a, b)| {
        VAddF32 => e.op(width::FADD, d, a, b);
        VSubF32 => e.op(width::FSUB, d, a, b);
        VSubrevF32 => e.op(width::FSUB, d, b, a);
        VMulF32 => e.op(width::FMUL, d, a, b);
    }
    Binary Kept false |e, d, (a, b)| {
        VMinF32 => { let value = extreme(e, a, b, false); e.mov(d, Src::Reg(value)) };
        VMaxF32 => { let value = extreme(e, a, b, true); e.mov(d, Src::Reg(value)) };
        VLdexpF32 => e.ldexp(d, a, b);
    }
    Ternary Any false |e, d, (a, b, c)| {
        VAdd3U32 => { let t = e.temp(); e.either(width::ADD, t, a, b); e.op(width::ADD, d, Src::Reg(t), c) };
        VLshlAddU32 => { let t = e.temp(); e.shl(t, a, b); e.op(width::ADD, d, Src::Reg(t), c) };
        VAddLshlU32 => { let t = e.temp(); e.either(width::ADD, t, a, b); e.shl(d, Src::Reg(t), c) };
        VLshlOrB32 => { let t = e.temp(); e.shl(t, a, b); e.op(width::OR, d, Src::Reg(t), c) };
        VAndOrB32 => { let t = e.temp(); e.either(width::AND, t, a, b); e.op(width::OR, d, Src::Reg(t), c) };
        VOr3B32 => { let t = e.temp(); e.either(width::OR, t, a, b); e.op(width::OR, d, Src::Reg(t), c) };
        VXor3B32 => { let t = e.temp(); e.either(width::XOR, t, a, b); e.op(width::XOR, d, Src::Reg(t), c) };
        VXadU32 => { let t = e.temp(); e.either(width::XOR, t, a, b); e.op(width::ADD, d, Src::Reg(t), c) };
        VBfiB32 => {
            let (t, c) = (e.temp(), Src::Reg(e.reg(c)));
            e.either(width::XOR, t, b, c);
            e.op(width::AND, t, Src::Reg(t), a);
            e.op(width::XOR, d, Src::Reg(t), c);
        };
        VAlignbitB32 => e.align(d, a, b, c);
        VAlignbyteB32 => { let by = low(e, c, 3); let t = e.temp(); e.shl(t, by, Src::Const(3)); e.align(d, a, b, Src::Reg(t)) };
        VBfeU32 => {
            let (field, above) = (e.temp(), e.temp());
            e.shr(field, a, b);
            e.mov(above, Src::Const(u32::MAX));
            e.shl(above, Src::Reg(above), c);
            e.op(width::XOR, above, Src::Reg(above), Src::Const(u32::MAX));
            e.op(width::AND, d, Src::Reg(field), Src::Reg(above));
        };
        VMadU32U24 => { let (a, b) = (low(e, a, 0xff_ffff), low(e, b, 0xff_ffff)); let t = e.temp(); e.op(width::MUL, t, a, b); e.op(width::ADD, d, Src::Reg(t), c) };
        VMadI32I24 => { let (a, b) = (signed24(e, a), signed24(e, b)); let t = e.temp(); e.op(width::MUL, t, a, b); e.op(width::ADD, d, Src::Reg(t), c) };
        VBfeI32 => {
            // The sign of the field goes up; a field of no bits is zero.
            let (up, field) = (e.temp(), e.temp());
            e.either(width::AND, up, c, Src::Const(31));
            e.mov(field, Src::Const(32));
            e.op(width::SUB, up, Src::Reg(field), Src::Reg(up));
            e.sar(field, a, b);
            e.op(width::SHL, field, Src::Reg(field), Src::Reg(up));
            e.op(width::SAR, d, Src::Reg(field), Src::Reg(up));
        };
        VPermB32 => e.pick_bytes(d, a, b, c);
        VDot4I32I8 => e.dot_bytes(d, [a, b], c, [true, true]);
        VDot4U32U8 => e.dot_bytes(d, [a, b], c, [false, false]);
        VMed3I32 => middle(e, d, [a, b, c], [width::MIN_I, width::MAX_I]);
        VMed3U32 => middle(e, d, [a, b, c], [width::MIN_U, width::MAX_U]);
        VMin3I32 => { let t = e.temp(); e.either(width::MIN_I, t, a, b); e.op(width::MIN_I, d, Src::Reg(t), c) };
        VMax3I32 => { let t = e.temp(); e.either(width::MAX_I, t, a, b); e.op(width::MAX_I, d, Src::Reg(t), c) };
        VMin3U32 => { let t = e.temp(); e.either(width::MIN_U, t, a, b); e.op(width::MIN_U, d, Src::Reg(t), c) };
        VMax3U32 => { let t = e.temp(); e.either(width::MAX_U, t, a, b); e.op(width::MAX_U, d, Src::Reg(t), c) };
    }
    Ternary Any true |e, d, (a, b, c)| {
        VDot4cI32I8 => e.dot_bytes(d, [a, b], c, [true, true]);
        VDot2cI32I16 => {
            let product = e.temp();
            let (a, b) = (e.reg(a), e.reg(b));
            e.dot_halves(product, a, b);
            e.op(width::ADD, d, Src::Reg(product), c);
        };
    }
    Ternary Singles false |e, d, (a, b, c)| {
        VFmaMixF32 => e.fma(d, a, b, c);
        VFmaF32 => e.fma(d, a, b, c);
        VFmamkF32 => e.fma(d, a, b, c);
        VFmaakF32 => e.fma(d, a, b, c);
    }
    Ternary Flushed false |e, d, (a, b, c)| {
        VMadF32 => unfused(e, d, a, b, c);
        VMadmkF32 => unfused(e, d, a, b, c);
        VMadakF32 => unfused(e, d, a, b, c);
    }
    Ternary Flushed true |e, d, (a, b, c)| {
        VMacF32 => unfused(e, d, a, b, c);
    }
    Ternary Singles true |e, d, (a, b, c)| {
        VFmacF32 => e.fma(d, a, b, c);
    }
    Compare Any false |e, d, (a, b)| {
        VCmpEqU32 => e.compare(d, a, b, Order::Equal, false);
        VCmpNeU32 => e.compare(d, a, b, Order::NotEqual, false);
        VCmpLtU32 => e.compare(d, a, b, Order::Less, false);
        VCmpGtU32 => e.compare(d, a, b, Order::Greater, false);
        VCmpLeU32 => e.compare(d, a, b, Order::LessOrEqual, false);
        VCmpGeU32 => e.compare(d, a, b, Order::NotLess, false);
        VCmpEqI32 => e.compare(d, a, b, Order::Equal, true);
        VCmpNeI32 => e.compare(d, a, b, Order::NotEqual, true);
        VCmpLtI32 => e.compare(d, a, b, Order::Less, true);
        VCmpGtI32 => e.compare(d, a, b, Order::Greater, true);
        VCmpLeI32 => e.compare(d, a, b, Order::LessOrEqual, true);
        VCmpGeI32 => e.compare(d, a, b, Order::NotLess, true);
    }
    Compare Singles false |e, d, (a, b)| {
        VCmpFF32 => e.test(d, a, b, is::FALSE);
        VCmpTruF32 => e.test(d, a, b, is::TRUE);
        VCmpLtF32 => e.test(d, a, b, is::LT);
        VCmpLeF32 => e.test(d, a, b, is::LE);
        VCmpGtF32 => e.test(d, a, b, is::GT);
        VCmpGeF32 => e.test(d, a, b, is::GE);
        VCmpEqF32 => e.test(d, a, b, is::EQ);
        VCmpLgF32 => e.test(d, a, b, is::LG);
        VCmpOF32 => e.test(d, a, b, is::ORDERED);
        VCmpUF32 => e.test(d, a, b, is::UNORDERED);
        VCmpNltF32 => e.test(d, a, b, is::NLT);
        VCmpNleF32 => e.test(d, a, b, is::NLE);
        VCmpNgtF32 => e.test(d, a, b, is::NGT);
        VCmpNgeF32 => e.test(d, a, b, is::NGE);
        VCmpNeqF32 => e.test(d, a, b, is::NEQ);
        VCmpNlgF32 => e.test(d, a, b, is::NLG);
    }
}

fn compare64_line(order: Order, signed: bool) -> Option<Operation> {
    Some(Operation { needs: Needs::Any, how: How::Compare64(order, signed), tied: false })
}

/// The line of an operation.
pub(crate) fn operation(op: Op) -> Option<Operation> {
    let carry = |subtract, reversed, inward| {
        Some(Operation { needs: Needs::Any, how: How::Carry(Carry { subtract, reversed, inward }), tied: false })
    };
    let double = |double, tied| Some(Operation { needs: Needs::Doubles, how: How::Double(double), tied });
    match op {
        Op::VCndmaskB32 => Some(Operation { needs: Needs::Any, how: How::Choose, tied: false }),
        Op::VAddCoU32 => carry(false, false, false),
        Op::VSubCoU32 => carry(true, false, false),
        Op::VSubrevCoU32 => carry(true, true, false),
        Op::VAddcCoU32 => carry(false, false, true),
        Op::VSubbCoU32 => carry(true, false, true),
        Op::VSubbrevCoU32 => carry(true, true, true),
        Op::VAddF64 => double(Double::Add, false),
        Op::VMulF64 => double(Double::Multiply, false),
        Op::VFmaF64 => double(Double::Fused, false),
        Op::VFmacF64 => double(Double::Fused, true),
        Op::VCvtF64F32 => Some(Operation { needs: Needs::Converted, how: How::Lengthen(width::DOUBLES), tied: false }),
        Op::VCvtF64I32 => {
            Some(Operation { needs: Needs::Rounded, how: How::Lengthen(width::DOUBLES_OF_INT), tied: false })
        }
        Op::VCvtF32F64 => Some(Operation { needs: Needs::Converted, how: How::Shorten, tied: false }),
        Op::VMadU64U32 => Some(Operation { needs: Needs::Any, how: How::Multiply64(false), tied: false }),
        Op::VMadI64I32 => Some(Operation { needs: Needs::Any, how: How::Multiply64(true), tied: false }),
        Op::VDivScaleF32 => Some(Operation { needs: Needs::Kept, how: How::Scale, tied: false }),
        Op::VDivFmasF32 => Some(Operation { needs: Needs::Kept, how: How::Unscale, tied: false }),
        Op::VDivFixupF32 => Some(Operation { needs: Needs::Kept, how: How::Fixup, tied: false }),
        Op::VCmpEqU64 | Op::VCmpEqI64 => compare64_line(Order::Equal, false),
        Op::VCmpNeU64 | Op::VCmpNeI64 => compare64_line(Order::NotEqual, false),
        Op::VCmpLtU64 => compare64_line(Order::Less, false),
        Op::VCmpGtU64 => compare64_line(Order::Greater, false),
        Op::VCmpLeU64 => compare64_line(Order::LessOrEqual, false),
        Op::VCmpGeU64 => compare64_line(Order::NotLess, false),
        Op::VCmpLtI64 => compare64_line(Order::Less, true),
        Op::VCmpGtI64 => compare64_line(Order::Greater, true),
        Op::VCmpLeI64 => compare64_line(Order::LessOrEqual, true),
        Op::VCmpGeI64 => compare64_line(Order::NotLess, true),
        _ => plain(op).or_else(|| short::plain(op)),
    }
}

impl Carry {
    /// Writes the sum or difference to `value`, and its carry to the mask if somebody reads it.
    pub(crate) fn write(
        self,
        e: &mut Emit,
        value: Register,
        out: Option<Mask>,
        [a, b]: [Src; 2],
        inward: Option<Mask>,
    ) {
        let (a, b) = if self.reversed { (b, a) } else { (a, b) };
        let (a, b) = (e.reg(a), e.reg(b));
        let op = if self.subtract { width::SUB } else { width::ADD };
        // Both parts are gone if they were there.
        let first = if a == value && b == value && out.is_some() { e.temp() } else { value };
        // A part that is less than the other, a sum that is less than one of its parts.
        if let Some(out) = out.filter(|_| self.subtract) {
            e.compare(out, Src::Reg(a), Src::Reg(b), Order::Less, false);
        }
        e.op(op, first, Src::Reg(a), Src::Reg(b));
        if let Some(out) = out.filter(|_| !self.subtract) {
            let part = if a == first { b } else { a };
            e.compare(out, Src::Reg(first), Src::Reg(part), Order::Less, false);
        }
        e.mov(value, Src::Reg(first));
        let Some(inward) = inward else { return };
        // One more goes on from a sum that is zero then, and from a difference that was.
        let before =
            out.filter(|_| self.subtract).map(|_| e.compared(Src::Reg(value), Src::Const(0), Order::Equal, true));
        e.op_in(op, value, inward, Src::Const(1));
        let Some(out) = out else { return };
        let zero = before.unwrap_or_else(|| e.compared(Src::Reg(value), Src::Const(0), Order::Equal, true));
        e.intersect(zero, inward);
        e.unite(out, zero);
    }
}
