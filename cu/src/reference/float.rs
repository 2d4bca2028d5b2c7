// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Binary floating point in every format, rounding mode and denormal mode, by exact integer
//! arithmetic.
//!
//! Mechanism: a number is taken apart into a sign, an integer significand and an exponent. The
//! operation is exact, or one sticky bit far below the result stands for the lost bits.
//! [`Fpu::round`] puts the result together. The host's floating-point unit, and with it its modes,
//! is not involved.
//!
//! NaNs: the first source that is one is the result, quieted if MODE.IEEE is set. Without it a
//! signalling NaN passes before gfx12, but for conversions to narrower formats
//! (docs/design/gpu.md). An invalid operation makes the negative quiet NaN, as AMD's text of
//! `v_div_fixup` has it.

use crate::wave::{Mode, Round};
use vkfd_sabotage::{process, Switch};

/// A format: widths of the exponent and of the stored significand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) exp: u32,
    pub(crate) man: u32,
}

/// Half precision.
pub(crate) const F16: Format = Format { exp: 5, man: 10 };
pub(crate) const BF16: Format = Format { exp: 8, man: 7 };
/// Single precision.
pub(crate) const F32: Format = Format { exp: 8, man: 23 };
/// Double precision.
pub(crate) const F64: Format = Format { exp: 11, man: 52 };

impl Format {
    pub(crate) const fn sign_bit(self) -> u64 {
        1 << (self.exp + self.man)
    }

    const fn max_field(self) -> u64 {
        (1 << self.exp) - 1
    }

    pub(crate) const fn bias(self) -> i32 {
        (1 << (self.exp - 1)) - 1
    }

    pub(crate) const fn infinity(self) -> u64 {
        self.max_field() << self.man
    }

    const fn quiet_bit(self) -> u64 {
        1 << (self.man - 1)
    }

    /// What an invalid operation makes.
    pub(crate) const fn invalid(self) -> u64 {
        self.sign_bit() | self.infinity() | self.quiet_bit()
    }

    /// The largest finite number.
    pub(crate) const fn largest(self) -> u64 {
        self.infinity() - 1
    }

    pub(crate) const fn magnitude(self, bits: u64) -> u64 {
        bits & (self.sign_bit() - 1)
    }

    pub(crate) const fn negative(self, bits: u64) -> bool {
        bits & self.sign_bit() != 0
    }

    pub(crate) const fn is_nan(self, bits: u64) -> bool {
        self.magnitude(bits) > self.infinity()
    }

    pub(crate) const fn is_signalling(self, bits: u64) -> bool {
        self.is_nan(bits) && bits & self.quiet_bit() == 0
    }

    pub(crate) const fn is_infinite(self, bits: u64) -> bool {
        self.magnitude(bits) == self.infinity()
    }

    pub(crate) const fn is_zero(self, bits: u64) -> bool {
        self.magnitude(bits) == 0
    }

    pub(crate) const fn is_denormal(self, bits: u64) -> bool {
        self.field(bits) == 0 && !self.is_zero(bits)
    }

    /// The exponent's field.
    pub(crate) const fn field(self, bits: u64) -> u64 {
        self.magnitude(bits) >> self.man
    }

    pub(crate) const fn quiet(self, bits: u64) -> u64 {
        bits | self.quiet_bit()
    }

    pub(crate) const fn signed(self, magnitude: u64, negative: bool) -> u64 {
        if negative {
            magnitude | self.sign_bit()
        } else {
            magnitude
        }
    }

    /// 2 to the power of `n`, which must be a normal number.
    pub(crate) const fn power(self, n: i32) -> u64 {
        ((n + self.bias()).unsigned_abs() as u64) << self.man
    }

    /// 1.0.
    pub(crate) const fn one(self) -> u64 {
        self.power(0)
    }

    /// A finite number exactly.
    pub(crate) fn number(self, bits: u64) -> Number {
        let field = self.field(bits);
        let stored = u128::from(bits & ((1 << self.man) - 1));
        let (sig, field) = if field == 0 { (stored, 1) } else { (stored | 1 << self.man, field) };
        let exp = i32::try_from(field).unwrap_or(0) - self.bias() - i32::try_from(self.man).unwrap_or(0);
        Number { negative: self.negative(bits), sig, exp }
    }
}

/// A finite number: `sig` times two to the power of `exp`. The lowest bit of a significand of at
/// least 100 bits may be sticky: set if anything was lost below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    pub(crate) negative: bool,
    pub(crate) sig: u128,
    pub(crate) exp: i32,
}

/// Where normalised significands begin: room for a carry above and for much to be lost below.
const TOP: i32 = 125;

fn shift_sticky(sig: u128, by: i32) -> u128 {
    match u32::try_from(by) {
        Ok(by @ 0..=127) => sig >> by | u128::from(sig & ((1 << by) - 1) != 0),
        Ok(_) => u128::from(sig != 0),
        Err(_) => sig << by.unsigned_abs().min(127),
    }
}

impl Number {
    pub(crate) fn of(value: i128) -> Number {
        Number { negative: value < 0, sig: value.unsigned_abs(), exp: 0 }
    }

    /// Exponent of the highest bit set; of zero, nothing that matters.
    pub(crate) fn top(self) -> i32 {
        127 - self.sig.leading_zeros() as i32 + self.exp
    }

    /// The same with its highest bit at [`TOP`].
    fn normal(self) -> Number {
        if self.sig == 0 {
            return self;
        }
        let by = 127 - self.sig.leading_zeros() as i32 - TOP;
        Number { sig: shift_sticky(self.sig, by), exp: self.exp + by, ..self }
    }

    fn mul(self, other: Number) -> Number {
        Number {
            negative: self.negative != other.negative,
            sig: self.sig.wrapping_mul(other.sig),
            exp: self.exp + other.exp,
        }
    }

    /// The sum; of opposite equals, a zero whose sign the rounding mode decides.
    pub(crate) fn add(self, other: Number, round: Round) -> Number {
        if self.sig == 0 && other.sig == 0 {
            let negative = if self.negative == other.negative { self.negative } else { round == Round::Down };
            return Number { negative, sig: 0, exp: 0 };
        }
        if self.sig == 0 {
            return other;
        }
        if other.sig == 0 {
            return self;
        }
        let (a, b) = (self.normal(), other.normal());
        let (a, b) = if a.exp >= b.exp { (a, b) } else { (b, a) };
        let small = shift_sticky(b.sig, a.exp - b.exp);
        if a.negative == b.negative {
            return Number { sig: a.sig + small, ..a };
        }
        match a.sig.cmp(&small) {
            std::cmp::Ordering::Equal => Number { negative: round == Round::Down, sig: 0, exp: 0 },
            std::cmp::Ordering::Greater => Number { sig: a.sig - small, ..a },
            std::cmp::Ordering::Less => Number { negative: b.negative, sig: small - a.sig, exp: a.exp },
        }
    }

    /// Times two to the power of `n`.
    pub(crate) fn scaled(self, n: i32) -> Number {
        Number { exp: self.exp.saturating_add(n.clamp(-100_000, 100_000)), ..self }
    }

    /// The nearest integer in the direction given, as long as it has less than 127 bits; and
    /// whether it is exact.
    pub(crate) fn integer(self, round: Round) -> (i128, bool) {
        if self.sig == 0 {
            return (0, true);
        }
        if self.top() >= 126 {
            return (if self.negative { -(1 << 126) } else { 1 << 126 }, false);
        }
        let (sig, exact) = drop_bits(self.sig, -self.exp, self.negative, round);
        let value = i128::try_from(sig).unwrap_or(1 << 126);
        (if self.negative { -value } else { value }, exact)
    }
}

/// `sig` without its lowest `by` bits (or with more zeros, if negative), rounded; and whether
/// nothing was lost.
fn drop_bits(sig: u128, by: i32, negative: bool, round: Round) -> (u128, bool) {
    if by <= 0 {
        return (sig << by.unsigned_abs().min(127), true);
    }
    let by = by.unsigned_abs();
    let (kept, rest, half) =
        if by > 127 { (0, sig, u128::MAX) } else { (sig >> by, sig & ((1 << by) - 1), 1 << (by - 1)) };
    let up = match round {
        Round::Nearest => rest > half || rest == half && kept & 1 == 1,
        Round::Up => rest != 0 && !negative,
        Round::Down => rest != 0 && negative,
        Round::Zero => false,
    };
    (kept + u128::from(up), rest == 0)
}

/// Arithmetic in one format under one mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fpu {
    pub(crate) format: Format,
    pub(crate) round: Round,
    /// Denormal sources are kept.
    pub(crate) denorm_in: bool,
    /// Denormal results are kept.
    pub(crate) denorm_out: bool,
    /// What overflows becomes the largest finite number (halves only).
    pub(crate) finite: bool,
    /// Signalling NaNs become quiet.
    pub(crate) quiets: bool,
}

/// Whether signalling NaNs become quiet.
fn quiets(mode: Mode) -> bool {
    mode.ieee() || process().has(Switch::QuietedNans)
}

impl Fpu {
    /// As MODE has it for the format.
    pub(crate) fn new(format: Format, mode: Mode) -> Fpu {
        let (round, denorm_in, denorm_out) = if format == F32 || format == BF16 {
            (mode.round32(), mode.denorm32_in(), mode.denorm32_out())
        } else {
            (mode.round16_64(), mode.denorm16_64_in(), mode.denorm16_64_out())
        };
        let finite = format == F16 && mode.fp16_overflow();
        Fpu { format, round, denorm_in, denorm_out, finite, quiets: quiets(mode) }
    }

    /// To nearest with every denormal.
    pub(crate) const fn exact(format: Format) -> Fpu {
        Fpu { format, round: Round::Nearest, denorm_in: true, denorm_out: true, finite: false, quiets: true }
    }

    /// The same without denormals.
    pub(crate) const fn flushing(self) -> Fpu {
        Fpu { denorm_in: false, denorm_out: false, ..self }
    }

    /// The same with signalling NaNs as MODE has them.
    pub(crate) fn nans_of(self, mode: Mode) -> Fpu {
        Fpu { quiets: quiets(mode), ..self }
    }

    /// A NaN as a result.
    pub(crate) const fn quiet(self, bits: u64) -> u64 {
        if self.quiets {
            self.format.quiet(bits)
        } else {
            bits
        }
    }

    /// The same with another rounding.
    pub(crate) const fn rounding(self, round: Round) -> Fpu {
        Fpu { round, ..self }
    }

    /// A source: denormals are zero if they are not kept.
    pub(crate) fn input(self, bits: u64) -> u64 {
        if !self.denorm_in && self.format.is_denormal(bits) {
            bits & self.format.sign_bit()
        } else {
            bits
        }
    }

    /// A result that is at hand: denormals are zero if they are not kept.
    pub(crate) fn output(self, bits: u64) -> u64 {
        if !self.denorm_out && self.format.is_denormal(bits) {
            bits & self.format.sign_bit()
        } else {
            bits
        }
    }

    fn overflow(self, negative: bool) -> u64 {
        let away = match self.round {
            Round::Nearest => true,
            Round::Up => !negative,
            Round::Down => negative,
            Round::Zero => false,
        };
        let magnitude = if away && !self.finite { self.format.infinity() } else { self.format.largest() };
        self.format.signed(magnitude, negative)
    }

    /// The number in this format. What is tiny after rounding counts as denormal.
    pub(crate) fn round(self, n: Number) -> u64 {
        let f = self.format;
        let man = f.man as i32;
        if n.sig == 0 {
            return f.signed(0, n.negative);
        }
        let least = 1 - f.bias();
        let top = n.top();
        let unbounded = drop_bits(n.sig, top - man - n.exp, n.negative, self.round).0;
        if top < least {
            let tiny = top < least - 1 || unbounded < 2 << f.man;
            if tiny && !self.denorm_out {
                return f.signed(0, n.negative);
            }
            let (kept, _) = drop_bits(n.sig, least - man - n.exp, n.negative, self.round);
            return f.signed(u64::try_from(kept).unwrap_or(0), n.negative);
        }
        if top > f.bias() {
            return self.overflow(n.negative);
        }
        let field = u64::from((top + f.bias()).unsigned_abs());
        let magnitude = (field << f.man) + (u64::try_from(unbounded).unwrap_or(0) - (1 << f.man));
        if magnitude >= f.infinity() {
            return self.overflow(n.negative);
        }
        f.signed(magnitude, n.negative)
    }

    fn nan<const N: usize>(self, sources: [u64; N]) -> Option<u64> {
        sources.into_iter().find(|&s| self.format.is_nan(s)).map(|s| self.quiet(s))
    }

    pub(crate) fn neg(self, a: u64) -> u64 {
        a ^ self.format.sign_bit()
    }

    pub(crate) fn add(self, a: u64, b: u64) -> u64 {
        let f = self.format;
        let (a, b) = (self.input(a), self.input(b));
        if let Some(nan) = self.nan([a, b]) {
            return nan;
        }
        match (f.is_infinite(a), f.is_infinite(b)) {
            (true, true) if f.negative(a) != f.negative(b) => f.invalid(),
            (true, _) => a,
            (_, true) => b,
            _ => self.round(f.number(a).add(f.number(b), self.round)),
        }
    }

    /// `a - b`; a NaN keeps its sign.
    pub(crate) fn sub(self, a: u64, b: u64) -> u64 {
        let minus = if self.format.is_nan(b) { b } else { self.neg(b) };
        self.add(a, minus)
    }

    pub(crate) fn mul(self, a: u64, b: u64) -> u64 {
        let f = self.format;
        let (a, b) = (self.input(a), self.input(b));
        if let Some(nan) = self.nan([a, b]) {
            return nan;
        }
        let negative = f.negative(a) != f.negative(b);
        if f.is_infinite(a) || f.is_infinite(b) {
            return if f.is_zero(a) || f.is_zero(b) { f.invalid() } else { f.signed(f.infinity(), negative) };
        }
        self.round(f.number(a).mul(f.number(b)))
    }

    /// `a * b + c`, rounded once.
    pub(crate) fn fma(self, a: u64, b: u64, c: u64) -> u64 {
        self.fma_scaled(a, b, c, 0)
    }

    /// `(a * b + c)` times two to the power of `n`, rounded once.
    pub(crate) fn fma_scaled(self, a: u64, b: u64, c: u64, n: i32) -> u64 {
        let f = self.format;
        let (a, b, c) = (self.input(a), self.input(b), self.input(c));
        if let Some(nan) = self.nan([a, b, c]) {
            return nan;
        }
        let negative = f.negative(a) != f.negative(b);
        if f.is_infinite(a) || f.is_infinite(b) {
            let invalid = f.is_zero(a) || f.is_zero(b) || f.is_infinite(c) && f.negative(c) != negative;
            return if invalid { f.invalid() } else { f.signed(f.infinity(), negative) };
        }
        if f.is_infinite(c) {
            return c;
        }
        self.round(f.number(a).mul(f.number(b)).add(f.number(c), self.round).scaled(n))
    }

    /// `a * b + c`, the product rounded by itself.
    pub(crate) fn mad(self, a: u64, b: u64, c: u64) -> u64 {
        self.add(self.mul(a, b), c)
    }

    pub(crate) fn div(self, a: u64, b: u64) -> u64 {
        let f = self.format;
        let (a, b) = (self.input(a), self.input(b));
        if let Some(nan) = self.nan([a, b]) {
            return nan;
        }
        let negative = f.negative(a) != f.negative(b);
        match (f.is_infinite(a), f.is_infinite(b), f.is_zero(a), f.is_zero(b)) {
            (true, true, ..) | (.., true, true) => f.invalid(),
            (true, ..) | (.., true) => f.signed(f.infinity(), negative),
            (_, true, ..) | (_, _, true, _) => f.signed(0, negative),
            _ => {
                let (a, b) = (f.number(a).normal(), f.number(b));
                // b has at most 53 bits and a has 126: the quotient has at least 73, and a sticky
                // bit below.
                let (quotient, rest) = (a.sig / b.sig, a.sig % b.sig);
                self.round(Number { negative, sig: quotient << 1 | u128::from(rest != 0), exp: a.exp - b.exp - 1 })
            }
        }
    }

    pub(crate) fn rcp(self, a: u64) -> u64 {
        self.div(self.format.one(), a)
    }

    pub(crate) fn sqrt(self, a: u64) -> u64 {
        let f = self.format;
        let a = self.input(a);
        if let Some(nan) = self.nan([a]) {
            return nan;
        }
        if f.is_zero(a) || a == f.infinity() {
            return a;
        }
        if f.negative(a) {
            return f.invalid();
        }
        let n = f.number(a).normal();
        let (sig, exp) = if n.exp % 2 == 0 { (n.sig, n.exp) } else { (n.sig << 1, n.exp - 1) };
        let root = sig.isqrt();
        let sticky = u128::from(root * root != sig);
        self.round(Number { negative: false, sig: root << 1 | sticky, exp: exp / 2 - 1 })
    }

    /// One over the square root, rounded once.
    pub(crate) fn rsq(self, a: u64) -> u64 {
        let f = self.format;
        let a = self.input(a);
        if let Some(nan) = self.nan([a]) {
            return nan;
        }
        if f.is_zero(a) {
            return f.signed(f.infinity(), f.negative(a));
        }
        if f.negative(a) {
            return f.invalid();
        }
        if f.is_infinite(a) {
            return 0;
        }
        // a = sig * 2^exp with an even exponent and 2^53 <= sig < 2^55, thus 1/sqrt(a) = 2^(-exp/2)
        // / sqrt(sig). The root is the largest r with r^2 * sig <= 2^(2*90): 62 to 64 bits.
        let n = f.number(a);
        let by = 53 - (127 - n.sig.leading_zeros() as i32);
        let by = by + ((n.exp - by) & 1);
        let (sig, exp) = (n.sig << by, n.exp - by);
        let (mut low, mut high) = (0u128, 1u128 << 65);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if at_most_one(middle, sig) {
                low = middle;
            } else {
                high = middle;
            }
        }
        // Exact only if sig is a power of four; otherwise something is left.
        let exact = sig.is_power_of_two() && sig.trailing_zeros() % 2 == 0;
        self.round(Number { negative: false, sig: low << 1 | u128::from(!exact), exp: -exp / 2 - 91 })
    }

    /// Towards an integer.
    pub(crate) fn integral(self, a: u64, round: Round) -> u64 {
        let f = self.format;
        let a = self.input(a);
        if f.is_nan(a) {
            return self.quiet(a);
        }
        if f.is_infinite(a) {
            return a;
        }
        let n = f.number(a);
        if n.exp >= 0 {
            return a;
        }
        let (value, _) = n.integer(round);
        self.round(Number { negative: n.negative, ..Number::of(value) })
    }

    /// `a - floor(a)`, less than one.
    pub(crate) fn fract(self, a: u64) -> u64 {
        let f = self.format;
        let a = self.input(a);
        if f.is_nan(a) {
            return self.quiet(a);
        }
        if f.is_infinite(a) {
            return f.invalid();
        }
        let floor = self.integral(a, Round::Down);
        let difference = f.number(a).add(f.number(self.neg(floor)), self.round);
        let below_one = f.one() - 1;
        let result = self.round(difference);
        if !f.negative(result) && result > below_one {
            below_one
        } else {
            result
        }
    }

    /// `a` times two to the power of `n`.
    pub(crate) fn ldexp(self, a: u64, n: i32) -> u64 {
        let f = self.format;
        let a = self.input(a);
        if f.is_nan(a) {
            return self.quiet(a);
        }
        if f.is_infinite(a) {
            return a;
        }
        self.round(f.number(a).scaled(n))
    }

    /// Significand in [0.5, 1).
    pub(crate) fn mantissa(self, a: u64) -> u64 {
        let f = self.format;
        let a = self.input(a);
        if f.is_nan(a) {
            return self.quiet(a);
        }
        if f.is_infinite(a) || f.is_zero(a) {
            return a;
        }
        let n = f.number(a);
        self.round(n.scaled(-1 - n.top()))
    }

    /// Exponent to which [`Fpu::mantissa`] belongs.
    pub(crate) fn exponent(self, a: u64) -> i32 {
        let f = self.format;
        let a = self.input(a);
        if f.is_nan(a) || f.is_infinite(a) || f.is_zero(a) {
            0
        } else {
            f.number(a).top() + 1
        }
    }

    /// The order of two numbers; none with a NaN.
    pub(crate) fn compare(self, a: u64, b: u64) -> Option<std::cmp::Ordering> {
        let f = self.format;
        let (a, b) = (self.input(a), self.input(b));
        if f.is_nan(a) || f.is_nan(b) {
            return None;
        }
        let key = |bits: u64| {
            let magnitude = i128::from(f.magnitude(bits));
            if f.negative(bits) {
                -magnitude
            } else {
                magnitude
            }
        };
        Some(key(a).cmp(&key(b)))
    }

    /// The smaller (or larger) of two, with MODE's rule for NaNs. -0 is less than +0.
    fn extreme(self, a: u64, b: u64, larger: bool, ieee: bool) -> u64 {
        let f = self.format;
        let (a, b) = (self.input(a), self.input(b));
        let result = if ieee && f.is_signalling(a) {
            f.quiet(a)
        } else if ieee && f.is_signalling(b) {
            f.quiet(b)
        } else if f.is_nan(a) {
            b
        } else if f.is_nan(b) {
            a
        } else {
            let less = match self.compare(a, b) {
                Some(std::cmp::Ordering::Less) => true,
                Some(std::cmp::Ordering::Equal) => f.negative(a),
                _ => false,
            };
            if less == larger {
                b
            } else {
                a
            }
        };
        self.output(result)
    }

    pub(crate) fn min(self, a: u64, b: u64, ieee: bool) -> u64 {
        self.extreme(a, b, false, ieee)
    }

    pub(crate) fn max(self, a: u64, b: u64, ieee: bool) -> u64 {
        self.extreme(a, b, true, ieee)
    }

    /// The middle one; with a NaN, the smallest.
    pub(crate) fn med3(self, a: u64, b: u64, c: u64, ieee: bool) -> u64 {
        let f = self.format;
        if f.is_nan(a) || f.is_nan(b) || f.is_nan(c) {
            return self.min(self.min(a, b, ieee), c, ieee);
        }
        let max = self.max(self.max(a, b, ieee), c, ieee);
        let equals = |x| self.compare(max, x) == Some(std::cmp::Ordering::Equal);
        if equals(a) {
            self.max(b, c, ieee)
        } else if equals(b) {
            self.max(a, c, ieee)
        } else {
            self.max(a, b, ieee)
        }
    }

    /// From another format.
    pub(crate) fn convert(self, from: Fpu, bits: u64) -> u64 {
        let (f, g) = (self.format, from.format);
        let bits = from.input(bits);
        if g.is_nan(bits) {
            let payload = bits & ((1 << g.man) - 1);
            let payload = if f.man >= g.man { payload << (f.man - g.man) } else { payload >> (g.man - f.man) };
            // Nothing may be left of a payload.
            let nan = f.signed(f.infinity() | payload, g.negative(bits));
            return if f.man < g.man { f.quiet(nan) } else { self.quiet(nan) };
        }
        if g.is_infinite(bits) {
            return f.signed(f.infinity(), g.negative(bits));
        }
        self.round(g.number(bits))
    }

    /// From an integer.
    pub(crate) fn of_int(self, value: i128) -> u64 {
        self.round(Number::of(value))
    }

    /// To an integer between the bounds; NaN is zero.
    pub(crate) fn to_int(self, bits: u64, round: Round, low: i128, high: i128) -> i128 {
        let f = self.format;
        let bits = self.input(bits);
        if f.is_nan(bits) {
            return 0;
        }
        if f.is_infinite(bits) {
            return if f.negative(bits) { low } else { high };
        }
        f.number(bits).integer(round).0.clamp(low, high)
    }
}

/// Whether `r * r * sig <= 2^180`.
fn at_most_one(r: u128, sig: u128) -> bool {
    // Both factors of the outer product have at most 65 bits: 128 bits are too few, so the product
    // is made in two parts.
    let product = (r * sig) >> 60;
    let rest = (r * sig) & ((1 << 60) - 1);
    // r * (product * 2^60 + rest) <= 2^180  <=>  r * product + (r * rest >> 60) (+ sticky) <= 2^120
    let low = r * rest;
    let sum = (r * product).saturating_add(low >> 60);
    sum < 1 << 120 || sum == 1 << 120 && low & ((1 << 60) - 1) == 0
}
