// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Comparisons, which make masks.

use super::*;

impl Emit {
    fn last4(&mut self, code: Code, d: Register, a: Register, b: Src, by: u32) -> Result<Instruction, IcedError> {
        match b {
            Src::Reg(b) => Instruction::with4(code, d, a, b, by),
            Src::Row(place) => Instruction::with4(code, d, a, place, by),
            Src::All(place) if self.width.is_wide() => Instruction::with4(code, d, a, broadcast(place), by),
            Src::Const(word) => {
                let place = self.operand(word);
                Instruction::with4(code, d, a, place, by)
            }
            b => {
                let b = self.reg(b);
                Instruction::with4(code, d, a, b, by)
            }
        }
    }

    /// The mask of a comparison of singles, of active lanes.
    pub(crate) fn test(&mut self, mask: Mask, a: Src, b: Src, predicate: u32) {
        let before = self.taken;
        let a = self.reg(a);
        match mask {
            Mask::K(k) => {
                let instruction = self.last4(Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae, k, a, b, predicate);
                self.masked(EXEC, instruction);
            }
            Mask::V(v) => {
                let instruction = self.last4(Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8, v, a, b, predicate);
                self.asm.add(instruction);
            }
        }
        self.taken = before;
    }

    /// The mask of a comparison of integers, of active lanes.
    pub(crate) fn compare(&mut self, mask: Mask, a: Src, b: Src, order: Order, signed: bool) {
        let before = self.taken;
        self.compare_with(mask, a, b, order, signed);
        self.taken = before;
    }

    fn compare_with(&mut self, mask: Mask, a: Src, b: Src, order: Order, signed: bool) {
        let v = match mask {
            Mask::K(k) => {
                let predicate = match order {
                    Order::Equal => 0,
                    Order::Less => 1,
                    Order::LessOrEqual => 2,
                    Order::NotEqual => 4,
                    Order::NotLess => 5,
                    Order::Greater => 6,
                };
                let code = if signed {
                    Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8
                } else {
                    Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8
                };
                let a = self.reg(a);
                let instruction = self.last4(code, k, a, b, predicate);
                self.masked(EXEC, instruction);
                return;
            }
            Mask::V(v) => v,
        };
        let no_code = |code| Both(code, Code::INVALID);
        let same = no_code(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256);
        if !signed && !matches!(order, Order::Equal | Order::NotEqual) {
            // The greater, or the less, of both is `a`.
            let end = match order {
                Order::Less | Order::NotLess => width::MAX_U,
                _ => width::MIN_U,
            };
            let (a, found) = (self.reg(a), self.temp());
            self.op(end, found, Src::Reg(a), b);
            self.op(same, v, Src::Reg(found), Src::Reg(a));
            if matches!(order, Order::Less | Order::Greater) {
                self.invert(v);
            }
            return;
        }
        let greater = no_code(Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256);
        let (a, b) = (Src::Reg(self.reg(a)), Src::Reg(self.reg(b)));
        match order {
            Order::Equal | Order::NotEqual => self.op(same, v, a, b),
            Order::Less | Order::NotLess => self.op(greater, v, b, a),
            Order::Greater | Order::LessOrEqual => self.op(greater, v, a, b),
        }
        if matches!(order, Order::NotEqual | Order::NotLess | Order::LessOrEqual) {
            self.invert(v);
        }
    }

    /// The mask of a comparison into a temporary mask.
    pub(crate) fn tested(&mut self, a: Src, b: Src, predicate: u32) -> Mask {
        let mask = self.temp_mask();
        self.test(mask, a, b, predicate);
        mask
    }

    pub(crate) fn compared(&mut self, a: Src, b: Src, order: Order, signed: bool) -> Mask {
        let mask = self.temp_mask();
        self.compare(mask, a, b, order, signed);
        mask
    }

    fn invert(&mut self, v: Register) {
        self.op(width::XOR, v, Src::Reg(v), Src::Const(u32::MAX));
    }

    /// `one` and `two` together, in `one`.
    pub(crate) fn unite(&mut self, one: Mask, two: Mask) {
        match (one, two) {
            (Mask::K(a), Mask::K(b)) => self.asm.add(Instruction::with3(Code::VEX_Korw_kr_kr_kr, a, a, b)),
            (Mask::V(a), Mask::V(b)) => self.op(width::OR, a, Src::Reg(a), Src::Reg(b)),
            _ => self.asm.fail(),
        }
    }

    /// Lanes of one of both, in `one`.
    pub(crate) fn exchange(&mut self, one: Mask, two: Mask) {
        match (one, two) {
            (Mask::K(a), Mask::K(b)) => self.asm.add(Instruction::with3(Code::VEX_Kxorw_kr_kr_kr, a, a, b)),
            (Mask::V(a), Mask::V(b)) => self.op(width::XOR, a, Src::Reg(a), Src::Reg(b)),
            _ => self.asm.fail(),
        }
    }

    /// A mask without lanes.
    pub(crate) fn no_lanes(&mut self, mask: Mask) {
        match mask {
            Mask::K(k) => self.asm.add(Instruction::with3(Code::VEX_Kxorw_kr_kr_kr, k, k, k)),
            Mask::V(v) => self.op(width::XOR, v, Src::Reg(v), Src::Reg(v)),
        }
    }

    /// Where an exponent is not from `low` to `high`.
    pub(crate) fn beyond(&mut self, a: Src, low: u32, high: u32) -> Mask {
        let power = self.temp();
        self.either(width::AND, power, a, Src::Const(EXPONENT));
        self.op(width::SUB, power, Src::Reg(power), Src::Const(low << 23));
        self.compared(Src::Reg(power), Src::Const((high - low) << 23), Order::Greater, false)
    }
}
