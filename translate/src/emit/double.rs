// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Double precision, in which reciprocal square roots are decided.

use super::*;

/// Masks that are used one after the other, and double precision.
impl Emit {
    /// Makes something that needs mask registers, which but for its result are free again.
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
        self.splat64(one, 1f64.to_bits());
        for (n, near) in near.into_iter().enumerate() {
            let mut from = self.half(source);
            if n == 1 {
                from = self.half(wide);
                self.asm.add(Instruction::with3(width::HIGH_HALF.of(width), from, source, 1u32));
            }
            self.asm.add(Instruction::with2(width::DOUBLES.of(width), wide, from));
            self.asm.add(Instruction::with2(width::DSQRT.of(width), wide, wide));
            self.asm.add(Instruction::with3(width::DDIV.of(width), wide, one, wide));
            let to = if n == 0 { self.half(value) } else { self.half(near) };
            self.asm.add(Instruction::with2(width::SINGLES.of(width), to, wide));
            if n == 1 {
                self.asm.add(Instruction::with4(width::JOIN_HALVES.of(width), value, value, to, 1u32));
            }
            self.near_tie(near, wide);
        }
        if self.mends_all {
            for near in near {
                self.asm.add(Instruction::with3(width::XOR.of(width), near, near, near));
            }
        }
        self.join_near(near)
    }

    /// Zeros in the words of 64 bits of `near` where a double is near the middle between singles.
    pub(super) fn near_tie(&mut self, near: Register, double: Register) {
        let width = self.width;
        let word = |e: &mut Emit, bits: u64| at(Register::RCX, e.pool.double(bits));
        // The bits that a single does not have, from a little less than their middle.
        let steps = [
            (Both(Code::VEX_Vpand_ymm_ymm_ymmm256, Code::EVEX_Vpandq_zmm_k1z_zmm_zmmm512b64), 0x1fff_ffff_u64),
            (
                Both(Code::VEX_Vpaddq_ymm_ymm_ymmm256, Code::EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64),
                8u64.wrapping_sub(1 << 28),
            ),
            (Both(Code::VEX_Vpand_ymm_ymm_ymmm256, Code::EVEX_Vpandq_zmm_k1z_zmm_zmmm512b64), !15u64),
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
}
