// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Double precision, in which reciprocal square roots, exponentials and logarithms are decided.
//! The polynomials are those of the interpreter (`avx2`), so the same lanes are left open.

use super::*;
use crate::ops::Double;
use crate::series::{EXP2, GUARD, TWO_OVER_LN2};

/// Masks that are used one after the other, and double precision.
impl Emit {
    /// Makes something that needs mask registers, which are free again: its result is to be used
    /// before the next temporary is taken.
    pub(crate) fn once(&mut self, make: impl FnOnce(&mut Emit) -> Mask) -> Mask {
        let before = (self.masks, self.taken);
        self.masks = 0;
        let mask = make(self);
        (self.masks, self.taken) = before;
        mask
    }

    /// Lanes of `one` that are in `two`.
    pub(crate) fn intersect(&mut self, one: Mask, two: Mask) {
        match (one, two) {
            (Mask::K(a), Mask::K(b)) => self.asm.add(Instruction::with3(Code::VEX_Kandw_kr_kr_kr, a, a, b)),
            (Mask::V(a), Mask::V(b)) => self.op(width::AND, a, Src::Reg(a), Src::Reg(b)),
            _ => self.asm.fail(),
        }
    }

    pub(super) fn half(&self, register: Register) -> Register {
        let smaller = if self.width.is_wide() { Register::YMM0 } else { Register::XMM0 };
        smaller + (register as u32 - self.width.vector(0) as u32)
    }

    /// A word of 64 bits for all lanes.
    pub(super) fn splat64(&mut self, d: Register, bits: u64) {
        let place = at(Register::RCX, self.pool.double(bits));
        self.asm.add(Instruction::with2(width::SPLAT64.of(self.width), d, place));
    }

    /// `value` = 1 / sqrt(source), and where its double precision is so near to the middle between
    /// two singles that it does not decide.
    pub(crate) fn rsq(&mut self, value: Register, source: Register) -> Mask {
        let width = self.width;
        let (wide, near, one) = (self.temp(), [self.temp(), self.temp()], self.temp());
        let root = if width.is_wide() { self.temp() } else { wide };
        self.splat64(one, 1f64.to_bits());
        for (n, near) in near.into_iter().enumerate() {
            let mut from = self.half(source);
            if n == 1 {
                from = self.half(wide);
                self.asm.add(Instruction::with3(width::HIGH_HALF.of(width), from, source, 1u32));
            }
            self.asm.add(Instruction::with2(width::DOUBLES.of(width), wide, from));
            if width.is_wide() {
                self.approach_root(root, wide, [one, near]);
            } else {
                self.asm.add(Instruction::with2(width::DSQRT.of(width), root, wide));
                self.asm.add(Instruction::with3(width::DDIV.of(width), root, one, root));
            }
            let to = if n == 0 { self.half(value) } else { self.half(near) };
            self.asm.add(Instruction::with2(width::SINGLES.of(width), to, root));
            if n == 1 {
                self.asm.add(Instruction::with4(width::JOIN_HALVES.of(width), value, value, to, 1u32));
            }
            self.near_tie(near, root, 8);
        }
        if self.mends_all {
            for near in near {
                self.asm.add(Instruction::with3(width::XOR.of(width), near, near, near));
            }
        }
        self.join_near(near)
    }

    /// `root` = 1 / sqrt(a) of doubles that singles have, off by less than two units: a root and a
    /// quotient take some processors three times as long. The host's estimate y has 14 bits. With
    /// r = 1 - a y², which is below 2^-13, the series of 1 / sqrt(1 - r) ends behind r³. Zeros and
    /// infinities have no r, and keep the estimate.
    fn approach_root(&mut self, root: Register, a: Register, [one, sum]: [Register; 2]) {
        let mask = Register::K6;
        self.asm.add(Instruction::with2(Code::EVEX_Vrsqrt14pd_zmm_k1z_zmmm512b64, root, a));
        self.op64(width::DMUL, a, a, root);
        self.asm.add(Instruction::with3(Code::EVEX_Vfnmadd213pd_zmm_k1z_zmm_zmmm512b64_er, a, root, one));
        let ordered = Instruction::with4(Code::EVEX_Vcmppd_kr_k1_zmm_zmmm512b64_imm8_sae, mask, a, a, is::ORDERED);
        self.asm.add(ordered);
        self.splat64(sum, (5.0 / 16.0f64).to_bits());
        self.fma213(sum, a, (3.0 / 8.0f64).to_bits());
        self.fma213(sum, a, 0.5f64.to_bits());
        self.op64(width::DMUL, sum, sum, a);
        let last = Instruction::with3(Code::EVEX_Vfmadd132pd_zmm_k1z_zmm_zmmm512b64_er, root, root, sum);
        self.masked(mask, last);
    }

    /// Zeros in the words of 64 bits of `near` where a double is near the middle between singles.
    pub(super) fn near_tie(&mut self, near: Register, double: Register, guard: u64) {
        let width = self.width;
        let word = |e: &mut Emit, bits: u64| at(Register::RCX, e.pool.double(bits));
        // The bits that a single does not have, from a little less than their middle.
        let steps = [
            (Both(Code::VEX_Vpand_ymm_ymm_ymmm256, Code::EVEX_Vpandq_zmm_k1z_zmm_zmmm512b64), 0x1fff_ffff_u64),
            (
                Both(Code::VEX_Vpaddq_ymm_ymm_ymmm256, Code::EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64),
                guard.wrapping_sub(1 << 28),
            ),
            (Both(Code::VEX_Vpand_ymm_ymm_ymmm256, Code::EVEX_Vpandq_zmm_k1z_zmm_zmmm512b64), !(2 * guard - 1)),
        ];
        let mut from = double;
        for (code, bits) in steps {
            let place = word(self, bits);
            if width.is_wide() {
                self.asm.add(Instruction::with3(code.of(width), near, from, broadcast(place)));
            } else {
                let room = self.temp();
                self.taken -= 1;
                self.asm.add(Instruction::with2(width::SPLAT64.of(width), room, place));
                self.asm.add(Instruction::with3(code.of(width), near, from, room));
            }
            from = near;
        }
    }

    /// The mask of the lanes whose words of 64 bits are zero.
    pub(super) fn join_near(&mut self, near: [Register; 2]) -> Mask {
        let [low, high] = near;
        if self.width.is_wide() {
            for (k, near) in [(Register::K6, low), (Register::K7, high)] {
                self.asm.add(Instruction::with3(Code::EVEX_Vptestnmq_kr_k1_zmm_zmmm512b64, k, near, near));
            }
            self.asm.add(Instruction::with3(Code::VEX_Kunpckbw_kr_kr_kr, Register::K6, Register::K7, Register::K6));
            self.asm.add(Instruction::with3(Code::VEX_Kandw_kr_kr_kr, Register::K6, Register::K6, EXEC));
            self.masks = 1;
            return Mask::K(Register::K6);
        }
        let zero = self.temp();
        self.taken -= 1;
        self.asm.add(Instruction::with3(Code::VEX_Vpxor_ymm_ymm_ymmm256, zero, zero, zero));
        for near in [low, high] {
            self.asm.add(Instruction::with3(Code::VEX_Vpcmpeqq_ymm_ymm_ymmm256, near, near, zero));
        }
        // Even words of both; each half of 128 bits has its own.
        self.asm.add(Instruction::with4(Code::VEX_Vshufps_ymm_ymm_ymmm256_imm8, low, low, high, 0x88u32));
        self.asm.add(Instruction::with3(Code::VEX_Vpermq_ymm_ymmm256_imm8, low, low, 0xd8u32));
        Mask::V(low)
    }

    /// A constant of 64 bits as the last operand.
    fn last64(&mut self, op: Both, d: Register, a: Register, bits: u64) {
        let place = if self.width.is_wide() {
            broadcast(at(Register::RCX, self.pool.double(bits)))
        } else {
            let [low, high] = [bits & 0xffff_ffff, bits >> 32].map(|word| u32::try_from(word).unwrap_or(0));
            at(Register::RCX, self.pool.vector(&[low, high, low, high, low, high, low, high]))
        };
        self.asm.add(Instruction::with3(op.of(self.width), d, a, place));
    }

    fn op64(&mut self, op: Both, d: Register, a: Register, b: Register) {
        self.asm.add(Instruction::with3(op.of(self.width), d, a, b));
    }

    /// Both halves of a vector of words: the low one, and the high one in `room`.
    fn halves(&mut self, source: Register, room: Register) -> [Register; 2] {
        let high = self.half(room);
        self.asm.add(Instruction::with3(width::HIGH_HALF.of(self.width), high, source, 1u32));
        [self.half(source), high]
    }

    fn convert(&mut self, op: Both, d: Register, from: Register) {
        self.asm.add(Instruction::with2(op.of(self.width), d, from));
    }

    /// Singles of two vectors of doubles, and where these are so near to the middle between two
    /// singles that they do not decide. The doubles' registers are used up.
    fn decide(&mut self, value: Register, doubles: [Register; 2]) -> Mask {
        let upper = self.temp();
        let (low, high) = (self.half(value), self.half(upper));
        self.convert(width::SINGLES, low, doubles[0]);
        self.convert(width::SINGLES, high, doubles[1]);
        self.asm.add(Instruction::with4(width::JOIN_HALVES.of(self.width), value, value, high, 1u32));
        for double in doubles {
            self.near_tie(double, double, GUARD.into());
        }
        if self.mends_all {
            for double in doubles {
                self.asm.add(Instruction::with3(width::XOR.of(self.width), double, double, double));
            }
        }
        self.taken -= 1;
        self.join_near(doubles)
    }

    /// `value` = two to the power of a number of at most 200, and where that is open.
    pub(crate) fn exp2(&mut self, value: Register, a: Register) -> Mask {
        let (whole, upper, rest) = (self.temp(), self.temp(), self.temp());
        let sums = [self.temp(), self.temp()];
        self.round(whole, Src::Reg(a), 8);
        // Exact; at most a half.
        self.op(width::FSUB, value, Src::Reg(a), Src::Reg(whole));
        self.op1(width::NEAREST_INT, whole, Src::Reg(whole));
        for (n, sum) in sums.into_iter().enumerate() {
            let parts = self.halves(value, upper);
            self.convert(width::DOUBLES, rest, parts[n]);
            self.splat64(sum, EXP2[11].to_bits());
            for factor in EXP2[..11].iter().rev() {
                self.fma213(sum, rest, factor.to_bits());
            }
            let powers = self.halves(whole, upper);
            self.convert(width::WIDEN_INT, rest, powers[n]);
            self.asm.add(Instruction::with3(width::SHL64_BY.of(self.width), rest, rest, 52u32));
            self.op64(width::ADD64, sum, sum, rest);
        }
        self.decide(value, sums)
    }

    /// `value` = the logarithm to the base of two of an ordinary number, and where that is open.
    pub(crate) fn log2(&mut self, value: Register, a: Register) -> Mask {
        let (power, upper, rest) = (self.temp(), self.temp(), self.temp());
        let sums = [self.temp(), self.temp()];
        let square = self.temp();
        // From the square root of a half to that of two, and the power of two beside it.
        self.op(width::SUB, power, Src::Reg(a), Src::Const(0x3f35_04f3));
        self.sar(power, Src::Reg(power), Src::Const(23));
        self.shl(value, Src::Reg(power), Src::Const(23));
        self.op(width::SUB, value, Src::Reg(a), Src::Reg(value));
        for (n, sum) in sums.into_iter().enumerate() {
            let parts = self.halves(value, upper);
            self.convert(width::DOUBLES, rest, parts[n]);
            self.last64(width::DADD, sum, rest, 1f64.to_bits());
            self.last64(width::DSUB, rest, rest, 1f64.to_bits());
            self.op64(width::DDIV, rest, rest, sum);
            self.op64(width::DMUL, square, rest, rest);
            self.splat64(sum, (TWO_OVER_LN2 / 21.0).to_bits());
            for k in (0..10u32).rev() {
                self.fma213(sum, square, (TWO_OVER_LN2 / f64::from(2 * k + 1)).to_bits());
            }
            let powers = self.halves(power, upper);
            self.convert(width::DOUBLES_OF_INT, square, powers[n]);
            self.asm.add(Instruction::with3(width::DFMA213.of(self.width), sum, rest, square));
        }
        self.decide(value, sums)
    }

    /// `d = d * a + constant`.
    fn fma213(&mut self, d: Register, a: Register, bits: u64) {
        self.last64(width::DFMA213, d, a, bits);
    }

    /// Singles times two to the power of integers.
    pub(crate) fn ldexp(&mut self, d: Register, a: Src, by: Src) {
        let before = self.taken;
        let (power, upper, rest, low) = (self.temp(), self.temp(), self.temp(), self.temp());
        self.either(width::MIN_I, power, by, Src::Const(400));
        self.op(width::MAX_I, power, Src::Reg(power), Src::Const(400u32.wrapping_neg()));
        let a = self.reg(a);
        let value = self.temp();
        for n in 0..2 {
            let powers = self.halves(power, upper);
            self.convert(width::WIDEN_INT, rest, powers[n]);
            self.last64(width::ADD64, rest, rest, 1023);
            self.asm.add(Instruction::with3(width::SHL64_BY.of(self.width), rest, rest, 52u32));
            let parts = self.halves(a, upper);
            self.convert(width::DOUBLES, upper, parts[n]);
            self.op64(width::DMUL, rest, upper, rest);
            let to = if n == 0 { self.half(value) } else { self.half(low) };
            self.convert(width::SINGLES, to, rest);
        }
        let high = self.half(low);
        self.asm.add(Instruction::with4(width::JOIN_HALVES.of(self.width), d, value, high, 1u32));
        self.taken = before;
    }

    /// An operation on pairs of words in double precision; the low and the high words of the
    /// results. Half of the lanes is done at a time, in any order. `to` may be sources' registers.
    pub(crate) fn double(&mut self, to: [Register; 2], [a, b, c]: [[Src; 2]; 3], how: Double) {
        let sums = [self.temp(), self.temp()];
        let (first, second) = (self.temp(), self.temp());
        // A double that all lanes have is the same in both halves.
        let (of_a, of_b) = (self.same_double(a), self.same_double(b));
        let room = self.taken;
        for (sum, unpack) in sums.into_iter().zip([width::UNPACK_LOW, width::UNPACK_HIGH]) {
            for (from, known, words) in [(first, of_a, a), (second, of_b, b)] {
                if known.is_none() {
                    self.op(unpack, from, words[0], words[1]);
                }
            }
            let (first, second) = (of_a.unwrap_or(first), of_b.unwrap_or(second));
            match how {
                Double::Add => self.op64(width::DADD, sum, first, second),
                Double::Multiply => self.op64(width::DMUL, sum, first, second),
                Double::Fused => {
                    self.op(unpack, sum, c[0], c[1]);
                    self.op64(width::DFMA, sum, first, second);
                }
            }
            self.taken = room;
        }
        for (to, pick) in to.into_iter().zip([0x88u32, 0xdd]) {
            let code = width::PICK_WORDS.of(self.width);
            self.asm.add(Instruction::with4(code, to, sums[0], sums[1], pick));
        }
    }

    /// A register with a double whose words follow one another in memory, for all lanes.
    fn same_double(&mut self, words: [Src; 2]) -> Option<Register> {
        let [Src::All(low), Src::All(high)] = words else { return None };
        let next = MemoryOperand { displacement: low.displacement + 4, ..low };
        if high != next {
            return None;
        }
        let value = self.temp();
        self.asm.add(Instruction::with2(width::SPLAT64.of(self.width), value, low));
        Some(value)
    }

    /// Words of a vector in another order.
    fn order(&mut self, to: Register, from: Register, word: impl Fn(u32) -> u32) {
        self.pick(to, word);
        let code = Both(Code::VEX_Vpermps_ymm_ymm_ymmm256, Code::EVEX_Vpermps_zmm_k1z_zmm_zmmm512b32);
        self.asm.add(Instruction::with3(code.of(self.width), to, to, from));
    }

    /// Doubles of singles or of integers: their low and their high words.
    pub(crate) fn lengthen(&mut self, to: [Register; 2], from: Src, how: Both) {
        let (first, second) = (self.temp(), self.temp());
        let from = self.reg(from);
        let half = u32::from(self.width.lanes()) / 2;
        // The order in which words are picked of both halves.
        self.order(first, from, |n| n % half / 2 * 4 + n / half * 2 + n % 2);
        let parts = self.halves(first, second);
        self.convert(how, second, parts[1]);
        self.convert(how, first, parts[0]);
        for (to, pick) in to.into_iter().zip([0x88u32, 0xdd]) {
            let code = width::PICK_WORDS.of(self.width);
            self.asm.add(Instruction::with4(code, to, first, second, pick));
        }
    }

    /// Singles of doubles.
    pub(crate) fn shorten(&mut self, to: Register, [low, high]: [Src; 2]) {
        let (first, second) = (self.temp(), self.temp());
        self.op(width::UNPACK_LOW, first, low, high);
        self.op(width::UNPACK_HIGH, second, low, high);
        let parts = [first, second].map(|register| self.half(register));
        for (part, from) in parts.into_iter().zip([first, second]) {
            self.convert(width::SINGLES, part, from);
        }
        self.asm.add(Instruction::with4(width::JOIN_HALVES.of(self.width), first, first, parts[1], 1u32));
        let half = u32::from(self.width.lanes()) / 2;
        self.order(to, first, |n| n % 4 / 2 * half + n / 4 * 2 + n % 2);
    }
}
