// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loads of lanes that lie anyhow in one page, and loads of bytes and halves.
//!
//! Distances from the first active lane are the offsets of a gather. They are exact: a pair of
//! rows has one high word in all active lanes, and its low words do not wrap. Offsets from a base
//! are less than 2 GiB. The code looks whether all lanes' words are in the page of the first one.
//! For a byte or a half it reads a whole word, which is in the page, too.

use super::access::{context, first_of, PAGE};
use super::*;
use crate::context::Context;
use crate::plan::{Access, Narrow};
use std::mem::offset_of;

impl Emit {
    /// Gathers the words of lanes that are in one page. Jumps to the first label if they are not,
    /// to the second one, with an address in `rax`, if no slot has the page.
    pub(super) fn scattered(
        &mut self,
        access: &Access,
        offset: i32,
        to: &[Register],
        base: MemoryOperand,
        [alone, page]: [Label; 2],
    ) {
        let before = (self.taken, self.masks);
        let (row, room) = (access.address, context(offset_of!(Context, bound)));
        let lows = self.spread_out(row, 0);
        self.asm.load32(Register::EAX, first_of(lows));
        self.asm.store32(room, Register::EAX);
        let from = self.temp();
        self.op(width::SUB, from, self.row_source(row), Src::All(room));
        let (high, than, order) = if access.base.is_some() {
            (row, Src::Const(0), Order::Less)
        } else {
            // Lanes of one page are on both sides of the end of 4 GiB only if the first is near.
            let near = at(Register::RAX, PAGE.into());
            self.asm.add(Instruction::with2(Code::Lea_r32_m, Register::EBP, near));
            self.asm.add(Instruction::with2(Code::Cmp_rm32_imm32, Register::EBP, 2 * PAGE));
            self.asm.jump_if(When::Below, alone);
            (row + 1, Src::All(self.add_first_high(row + 1)), Order::NotEqual)
        };
        if access.base.is_some() {
            self.asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RAX, base));
        }
        let high = self.row_source(high);
        let apart = self.once(|e| {
            let high = Src::Reg(e.reg(high));
            e.compared(high, than, order, true)
        });
        self.jump_if_any(apart, alone);
        if offset != 0 {
            self.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RAX, offset));
        }
        self.asm.add(Instruction::with2(Code::Mov_r32_rm32, Register::EBP, Register::EAX));
        self.asm.add(Instruction::with2(Code::And_rm32_imm32, Register::EBP, PAGE - 1));
        self.asm.store32(room, Register::EBP);
        let bytes = access.bytes().max(4) as i32;
        let beyond = self.once(|e| {
            let place = e.temp();
            e.op(width::ADD, place, Src::Reg(from), Src::All(room));
            e.compared(Src::Reg(place), Src::Const((PAGE - bytes) as u32), Order::Greater, false)
        });
        self.jump_if_any(beyond, alone);
        self.host(access, (0, bytes), [alone, page]);
        for (word, register) in to.iter().enumerate() {
            let at_word = 4 * i64::try_from(word).unwrap_or(0);
            let place = MemoryOperand::with_base_index_scale_displ_size(Register::RAX, from, 1, at_word, 1);
            if self.width.is_wide() {
                self.asm.add(Instruction::with3(Code::VEX_Kandw_kr_kr_kr, Register::K7, EXEC, EXEC));
                let gather = Instruction::with2(Code::EVEX_Vgatherdps_zmm_k1_vm32z, *register, place);
                self.masked(Register::K7, gather);
            } else {
                let (mask, exec) = (self.temp(), self.exec_vector());
                self.mov(mask, Src::Reg(exec));
                self.asm.add(Instruction::with3(Code::VEX_Vgatherdps_ymm_vm32y_ymm, *register, place, mask));
                self.taken -= 1;
            }
        }
        if let (Some(narrow), [to]) = (access.narrow, to) {
            self.low(*to, narrow);
        }
        (self.taken, self.masks) = before;
    }

    /// The low byte or half of each word, extended.
    fn low(&mut self, d: Register, narrow: Narrow) {
        if narrow.signed {
            self.extend(narrow, d);
        } else {
            self.op(width::AND, d, Src::Reg(d), Src::Const(if narrow.bytes == 1 { 0xff } else { 0xffff }));
        }
    }

    /// Has the sign of a byte or half go up, if it is to.
    pub(super) fn extend(&mut self, narrow: Narrow, d: Register) {
        if narrow.signed {
            let up = Src::Const(32 - 8 * u32::from(narrow.bytes));
            self.shl(d, Src::Reg(d), up);
            self.sar(d, Src::Reg(d), up);
        }
    }

    /// Bytes or halves side by side, from `rax` on.
    pub(super) fn narrow_line(&mut self, narrow: Narrow, to: Register) {
        let codes = match (narrow.bytes, narrow.signed) {
            (1, false) => width::WIDEN_BYTES,
            (1, true) => width::WIDEN_SIGNED_BYTES,
            (_, false) => width::WIDEN_SHORTS,
            (_, true) => width::WIDEN_SIGNED_SHORTS,
        };
        self.asm.add(Instruction::with2(codes.of(self.width), to, at(Register::RAX, 0)));
    }

    /// A byte or half at `rax` for all lanes.
    pub(super) fn narrow_same(&mut self, narrow: Narrow, to: Register) {
        let code = match (narrow.bytes, narrow.signed) {
            (1, false) => Code::Movzx_r32_rm8,
            (1, true) => Code::Movsx_r32_rm8,
            (_, false) => Code::Movzx_r32_rm16,
            (_, true) => Code::Movsx_r32_rm16,
        };
        self.asm.add(Instruction::with2(code, Register::EAX, at(Register::RAX, 0)));
        if self.width.is_wide() {
            self.asm.add(Instruction::with2(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, to, Register::EAX));
        } else {
            let small = Register::XMM0 + (to as u32 - Register::YMM0 as u32);
            self.asm.add(Instruction::with2(Code::VEX_Vmovd_xmm_rm32, small, Register::EAX));
            self.asm.add(Instruction::with2(Code::VEX_Vpbroadcastd_ymm_xmmm32, to, small));
        }
    }
}
