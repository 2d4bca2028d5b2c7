// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Stores of a whole wave: all of its lanes are active, and lie side by side in one page or in LDS.
//! One look at the addresses and one page serve all strips then. Other waves store strip by strip
//! ([`store`](super::store)).

use super::access::context;
use super::*;
use crate::context::Context;
use crate::plan::{Access, Space};
use std::mem::offset_of;
use vkfd_isa::Operand;

impl Emit {
    /// Stores all strips and jumps to `done`, or goes on with nothing stored. The strip is the
    /// first one.
    pub(crate) fn store_whole(
        &mut self,
        access: &Access,
        base: MemoryOperand,
        (lanes, is_open, is_guessed): (u8, bool, bool),
        [out, done]: [Label; 2],
    ) {
        let (bytes, lds) = (access.bytes(), access.space == Space::Lds);
        let whole = i64::from(bytes) * i64::from(lanes);
        if access.words == 3 && !self.width.is_wide() {
            return;
        }
        let apart = self.asm.label();
        self.need_all_lanes(lanes, is_open, apart);
        if !is_guessed {
            self.need_line(access, lanes, apart);
        }
        self.asm.way_out(out);
        let again = self.asm.label();
        self.asm.bind(again);
        self.asm.load32(Register::EAX, self.row(access.address));
        if lds {
            let last = whole - i64::from(bytes) + i64::from(access.end());
            self.asm.add(Instruction::with2(Code::Lea_r64_m, Register::RBP, at(Register::RAX, last)));
            self.asm.load32(Register::R13D, context(offset_of!(Context, lds_bytes)));
            self.asm.add(Instruction::with2(Code::Cmp_r64_rm64, Register::RBP, Register::R13));
            self.asm.jump_if(When::Above, apart);
            self.asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RAX, context(offset_of!(Context, lds))));
        } else {
            self.whole_page(access, base, whole, ([apart, again], out));
        }
        let stride = !lds && self.stride_since(access);
        let head = self.asm.label();
        self.asm.bind(head);
        for part in 0..usize::from(access.parts) {
            self.begin();
            let first = access.data[part];
            let values = self.values(first..first + u16::from(access.words));
            self.store_line(&values, if lds { access.offsets[part] } else { 0 }, false);
        }
        let strip = self.line_bytes(access);
        if stride {
            self.prefetch_ahead(access, strip);
        }
        self.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RAX, strip));
        self.advance(1, lanes, head);
        self.asm.jump(done);
        self.asm.bind(apart);
        self.begin();
    }

    /// Jumps unless all lanes of the wave are active, and says so of the strip. `is_open`: a fault,
    /// they always are.
    fn need_all_lanes(&mut self, lanes: u8, is_open: bool, otherwise: Label) {
        if !is_open {
            let exec = at(Register::R9, 4 * i64::from(Operand::EXEC));
            let compare = if lanes == 64 { Code::Cmp_rm64_imm8 } else { Code::Cmp_rm32_imm8 };
            self.asm.add(Instruction::with2(compare, exec, -1));
            self.asm.jump_if(When::NotZero, otherwise);
        }
        if self.width.is_wide() {
            self.asm.add(Instruction::with3(Code::VEX_Kxnorw_kr_kr_kr, EXEC, EXEC, EXEC));
        } else {
            let exec = self.exec_vector();
            self.asm.add(Instruction::with3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, exec, exec, exec));
        }
    }

    /// Jumps unless all lanes lie side by side.
    fn need_line(&mut self, access: &Access, lanes: u8, otherwise: Label) {
        let width = self.width.lanes();
        let row = |e: &Emit, row: u16, strip: u8| {
            let mut place = e.row(row);
            place.displacement += 4 * i64::from(strip) * i64::from(width);
            place
        };
        let (first, differing, here) = (self.temp(), self.temp(), self.temp());
        self.mov(first, Src::All(self.row(access.address)));
        for strip in 0..lanes / width {
            let steps: Vec<u32> = (0..width).map(|lane| access.bytes() * u32::from(strip * width + lane)).collect();
            let steps = at(Register::RCX, self.pool.vector(&steps));
            self.op(width::SUB, here, Src::Row(row(self, access.address, strip)), Src::Row(steps));
            self.add_difference(differing, Src::Reg(first), Src::Reg(here), strip == 0);
        }
        if access.space != Space::Lds && access.base.is_none() {
            let high = access.address + 1;
            self.mov(first, Src::All(self.row(high)));
            for strip in 0..lanes / width {
                let words = Src::Row(row(self, high, strip));
                self.add_difference(differing, Src::Reg(first), words, false);
            }
        }
        let any = self.once(|e| e.compared(Src::Reg(differing), Src::Const(0), Order::NotEqual, true));
        self.jump_if_any(any, otherwise);
    }

    fn add_difference(&mut self, to: Register, one: Src, two: Src, is_first: bool) {
        let before = self.taken;
        let difference = if is_first { to } else { self.temp() };
        self.either(width::XOR, difference, one, two);
        if !is_first {
            self.op(width::OR, to, Src::Reg(to), Src::Reg(difference));
        }
        self.taken = before;
    }

    /// `rax` = the host's address of the wave's bytes, whose low word it has. Jumps to `apart`
    /// unless they are in one page.
    fn whole_page(
        &mut self,
        access: &Access,
        base: MemoryOperand,
        whole: i64,
        ([apart, again], out): ([Label; 2], Label),
    ) {
        // Low words are not to wrap on their way.
        self.asm.add(Instruction::with2(Code::Lea_r64_m, Register::RBP, at(Register::RAX, whole - 1)));
        self.asm.add(Instruction::with2(Code::Shr_rm64_imm8, Register::RBP, 32u32));
        self.asm.jump_if(When::NotZero, apart);
        if access.base.is_some() {
            self.asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RAX, base));
        } else {
            self.asm.load32(Register::EBP, self.row(access.address + 1));
            self.asm.add(Instruction::with2(Code::Shl_rm64_imm8, Register::RBP, 32u32));
            self.asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RAX, Register::RBP));
        }
        let (access, missing) = (*access, self.asm.label());
        self.host_on(&access, (access.offsets[0], whole as i32), [apart, missing]);
        let ask = move |e: &mut Emit| {
            e.asm.bind(missing);
            if access.past {
                // The page may be one that strips store to past the caches.
                e.jump_past(When::Zero, apart);
            }
            e.ask_page(&access, out);
            e.asm.jump(again);
        };
        let state = self.state();
        self.cold.push((state, Box::new(ask)));
    }
}
