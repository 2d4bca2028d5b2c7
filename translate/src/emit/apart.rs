// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A look at addresses in LDS before the first strip: whether all of them are in bounds, and
//! whether some loads are of other bytes than some stores are to.

use super::*;

/// Addresses in LDS: their row, and the bytes from the first one that is reached behind them to the
/// last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) row: u16,
    pub(crate) begin: u32,
    pub(crate) end: u32,
}

/// The least and the greatest byte of some accesses, by lane.
struct Span {
    least: Register,
    most: Register,
}

impl Emit {
    /// Leaves unless all active lanes of these rows are in bounds, and the bytes of both lists lie
    /// apart.
    pub(crate) fn look_ahead(&mut self, bounds: &[Addresses], spans: Option<[&[Addresses]; 2]>, lanes: u8, out: Label) {
        self.outside();
        self.begin();
        let spans = spans.map(|lists| lists.map(|list| (self.span(), list)));
        let before = self.taken;
        self.for_strips(lanes, |e| {
            for addresses in bounds {
                e.bounds(addresses.row, addresses.end, out);
                e.taken = before;
            }
            for (span, list) in spans.iter().flatten() {
                for addresses in *list {
                    e.widen(span, addresses);
                    e.taken = before;
                }
            }
        });
        if let Some([(one, _), (other, _)]) = &spans {
            self.need_apart(one, other, out);
        }
    }

    /// Does something for each strip with an active lane, and goes back to the first one.
    pub(crate) fn for_strips(&mut self, lanes: u8, each: impl FnOnce(&mut Emit)) {
        let (head, next) = (self.asm.label(), self.asm.label());
        self.asm.bind(head);
        self.load_exec(next, false);
        each(self);
        self.asm.bind(next);
        self.advance(1, lanes, head);
        self.go_back(lanes);
    }

    /// A span of nothing.
    fn span(&mut self) -> Span {
        let (least, most) = (self.temp(), self.temp());
        self.mov(least, Src::Const(u32::MAX));
        self.mov(most, Src::Const(0));
        Span { least, most }
    }

    /// Adds the bytes of the active lanes.
    fn widen(&mut self, span: &Span, addresses: &Addresses) {
        let exec = if self.width.is_wide() { Mask::K(EXEC) } else { Mask::V(self.exec_vector()) };
        let place = self.temp();
        for (op, to, offset) in [(width::MIN_U, span.least, addresses.begin), (width::MAX_U, span.most, addresses.end)]
        {
            self.either(width::ADD, place, self.row_source(addresses.row), Src::Const(offset));
            self.op_in(op, to, exec, Src::Reg(place));
        }
    }

    /// Leaves if two spans meet.
    fn need_apart(&mut self, one: &Span, other: &Span, out: Label) {
        let (apart, room) = (self.asm.label(), self.temp());
        for (op, register) in [
            (width::MIN_U, one.least),
            (width::MAX_U, one.most),
            (width::MIN_U, other.least),
            (width::MAX_U, other.most),
        ] {
            self.fold(op, register, room);
        }
        self.compare_words(other.least, one.most);
        self.asm.jump_if(When::NotBelow, apart);
        self.compare_words(one.least, other.most);
        self.asm.jump_if(When::Below, out);
        self.asm.bind(apart);
    }

    /// Makes the first word of a register what an operation makes of all of them.
    fn fold(&mut self, op: Both, register: Register, room: Register) {
        let shuffles: &[(Code, u32)] = if self.width.is_wide() {
            &[
                (Code::EVEX_Vshufi64x2_zmm_k1z_zmm_zmmm512b64_imm8, 0x4e),
                (Code::EVEX_Vshufi64x2_zmm_k1z_zmm_zmmm512b64_imm8, 0xb1),
                (Code::EVEX_Vpshufd_zmm_k1z_zmmm512b32_imm8, 0x4e),
                (Code::EVEX_Vpshufd_zmm_k1z_zmmm512b32_imm8, 0xb1),
            ]
        } else {
            &[
                (Code::VEX_Vpermq_ymm_ymmm256_imm8, 0x4e),
                (Code::VEX_Vpshufd_ymm_ymmm256_imm8, 0x4e),
                (Code::VEX_Vpshufd_ymm_ymmm256_imm8, 0xb1),
            ]
        };
        for (code, pick) in shuffles {
            let instruction = if *code == Code::EVEX_Vshufi64x2_zmm_k1z_zmm_zmmm512b64_imm8 {
                Instruction::with4(*code, room, register, register, *pick)
            } else {
                Instruction::with3(*code, room, register, *pick)
            };
            self.asm.add(instruction);
            self.op(op, register, Src::Reg(register), Src::Reg(room));
        }
    }

    /// Compares the first words of two registers.
    fn compare_words(&mut self, one: Register, other: Register) {
        self.first_word(Register::EAX, one);
        self.first_word(Register::EBP, other);
        self.asm.add(Instruction::with2(Code::Cmp_r32_rm32, Register::EAX, Register::EBP));
    }

    fn first_word(&mut self, to: Register, from: Register) {
        let (code, first) = if self.width.is_wide() {
            (Code::EVEX_Vmovd_rm32_xmm, Register::ZMM0)
        } else {
            (Code::VEX_Vmovd_rm32_xmm, Register::YMM0)
        };
        let small = Register::XMM0 + (from as u32 - first as u32);
        self.asm.add(Instruction::with2(code, to, small));
    }
}
