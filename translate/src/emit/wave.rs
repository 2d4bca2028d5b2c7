// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Waves whose lanes lie in one line of memory, if their strips come one after the other, each for
//! one round.
//!
//! The first strip says where all lanes would lie if they go on as its own ([`Emit::origin`]). A
//! later strip compares its addresses with that. A line in one page is kept by its place on the
//! host as well, if one access alone has these addresses ([`Emit::load_alone`]). A strip that lies
//! there looks for no page.
//!
//! A wave knows nothing at its begin. Pages stay as long as its strips run.

use super::access::{context, first_of, known, LINE, PAGE};
use super::*;
use crate::context::{Context, Known, KNOWN};
use crate::plan::{Access, Space};
use std::mem::offset_of;

/// Nothing is known of a wave's line; or where the GPU has it; or where the host has it, too.
const UNKNOWN: i32 = 0;
const PLACED: i32 = 1;
const HOSTED: i32 = 2;

impl Emit {
    fn set_whole(&mut self, index: usize, is_whole: i32) {
        self.asm.add(Instruction::with2(Code::Mov_rm32_imm32, known(index, offset_of!(Known, is_whole)), is_whole));
    }

    /// Finds the base of a strip's line where an earlier strip has said where it would lie
    /// ([`Emit::origin`]). If it does not, or none has, the code at `there` looks at the strip.
    pub(super) fn look_on(
        &mut self,
        access: &Access,
        base: MemoryOperand,
        end: u32,
        [out, there]: [Label; 2],
        (index, is_guessed): (usize, bool),
    ) {
        let (access, bytes, lds) = (*access, access.bytes(), access.space == Space::Lds);
        let is_whole = known(index, offset_of!(Known, is_whole));
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, is_whole, 0));
        self.asm.jump_if(When::Zero, there);
        if lds && bytes != 4 {
            self.need_all(there);
        }
        self.need_line_of_wave(&access, (index, is_guessed), there);
        self.asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RAX, known(index, offset_of!(Known, origin))));
        self.lies_behind(there, move |e| {
            e.set_whole(index, UNKNOWN);
            e.look_at_strip(&access, base, end, out, (index, is_guessed));
            e.origin(&access, end, index);
        });
    }

    /// `eax` = the bytes from the wave's first lane to this strip's. Jumps unless the lanes lie
    /// where the wave's line has them.
    fn need_line_of_wave(&mut self, access: &Access, (index, is_guessed): (usize, bool), otherwise: Label) {
        let (bytes, lds) = (access.bytes(), access.space == Space::Lds);
        let before = (self.taken, self.masks);
        // 32 bytes of a row for each byte of a mask.
        self.asm.add(Instruction::with2(Code::Mov_r32_rm32, Register::EAX, Register::R11D));
        self.asm.add(Instruction::with2(Code::Shl_rm32_imm8, Register::EAX, 5u32));
        let lanes: Vec<u32> = (0..u32::from(self.wave_lanes)).map(|lane| lane * bytes).collect();
        let steps = self.pool.vector(&lanes);
        let steps = MemoryOperand::with_base_index_scale_displ_size(Register::RCX, Register::RAX, 1, steps, 1);
        let from = self.temp();
        self.op(width::SUB, from, self.row_source(access.address), Src::Row(steps));
        let high = (!lds && access.base.is_none()).then(|| self.row_source(access.address + 1));
        let low = (Src::Reg(from), known(index, offset_of!(Known, low)));
        let high = high.map(|high| (high, known(index, offset_of!(Known, high))));
        if !is_guessed {
            self.jump_unless_equal(otherwise, low, high);
        }
        if bytes != 4 {
            self.strip_bytes(Register::EAX, bytes);
        }
        (self.taken, self.masks) = before;
    }

    /// Bytes from the first strip's first lane to this one's.
    fn strip_bytes(&mut self, to: Register, bytes: u32) {
        self.asm.add(Instruction::with3(Code::Imul_r32_rm32_imm32, to, Register::R11D, 8 * bytes));
    }

    /// Keeps where all lanes of the wave would lie if they go on as those of this strip, whose
    /// base is in `rax`. Their addresses must not wrap, nor end behind LDS.
    fn origin(&mut self, access: &Access, end: u32, index: usize) {
        let (bytes, lds) = (access.bytes(), access.space == Space::Lds);
        let no = self.asm.label();
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, known(index, offset_of!(Known, shape)), LINE));
        self.asm.jump_if(When::NotZero, no);
        let from = first_of(context(offset_of!(Context, scratch)));
        self.asm.load32(Register::EBP, from);
        self.strip_bytes(Register::R13D, bytes);
        self.asm.add(Instruction::with2(Code::Sub_r64_rm64, Register::RBP, Register::R13));
        self.asm.jump_if(When::Below, no);
        self.asm.store32(known(index, offset_of!(Known, low)), Register::EBP);
        let last = i64::from(u32::from(self.wave_lanes) * bytes) - 1;
        self.asm.add(Instruction::with2(Code::Lea_r64_m, Register::RBP, at(Register::RBP, last)));
        if lds {
            // The last lane's first byte, and what all accesses reach.
            let reach = i64::from(end) + 1 - i64::from(bytes);
            self.asm.add(Instruction::with2(Code::Lea_r64_m, Register::RBP, at(Register::RBP, reach)));
            self.asm.add(Instruction::with2(
                Code::Cmp_r32_rm32,
                Register::EBP,
                context(offset_of!(Context, lds_bytes)),
            ));
            self.asm.jump_if(When::Above, no);
        }
        self.asm.add(Instruction::with2(Code::Shr_rm64_imm8, Register::RBP, 32u32));
        self.asm.jump_if(When::NotZero, no);
        if !lds && access.base.is_none() {
            let high = first_of(self.spread_out(access.address + 1, 1));
            self.asm.load32(Register::EBP, high);
            self.asm.store32(known(index, offset_of!(Known, high)), Register::EBP);
        }
        self.asm.move64(Register::RBP, Register::RAX);
        self.asm.add(Instruction::with2(Code::Sub_r64_rm64, Register::RBP, Register::R13));
        self.asm.store64(known(index, offset_of!(Known, origin)), Register::RBP);
        self.set_whole(index, PLACED);
        self.asm.bind(no);
    }

    /// Whether enough strips go by the first one's line, each for one round, that its place on the
    /// host is worth keeping. Wide strips are four in a wave, and became slower by it.
    pub(crate) const fn keeps_hosts(&self) -> bool {
        self.wave_lanes != 0 && !self.width.is_wide()
    }

    /// Has nothing known of a wave yet, before its first strip.
    pub(crate) fn begin_wave(&mut self, lanes: u8) {
        self.wave_lanes = lanes;
        let (forget, begin) = (self.asm.label(), self.asm.label());
        self.asm.jump(forget);
        self.asm.bind(begin);
        self.forget = Some((forget, begin));
    }

    /// What a wave begins with, now that all looks are known.
    pub(super) fn finish_wave(&mut self) {
        let Some((forget, begin)) = self.forget.take() else { return };
        self.asm.bind(forget);
        for index in 0..self.looks.min(KNOWN) {
            self.set_whole(index, UNKNOWN);
        }
        self.asm.jump(begin);
    }

    /// Loads the words of an access whose addresses no other access has; the registers as in
    /// [`Emit::load_words`].
    pub(crate) fn load_alone(
        &mut self,
        access: &Access,
        base: MemoryOperand,
        (end, is_guessed): (u32, bool),
        to: &[Register],
        out: Label,
    ) {
        let (access, offset, index) = (*access, access.offsets[0], self.looks);
        self.looks += 1;
        if index >= KNOWN {
            self.asm.fail();
            return;
        }
        let (otherwise, apart, hosted) = (self.asm.label(), self.asm.label(), self.asm.label());
        let ways = self.ways();
        let is_whole = known(index, offset_of!(Known, is_whole));
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, is_whole, HOSTED));
        self.asm.jump_if(When::NotZero, otherwise);
        self.need_line_of_wave(&access, (index, is_guessed), apart);
        self.asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RAX, known(index, offset_of!(Known, host))));
        self.asm.bind(hosted);
        self.finish_line(&access, offset, to);
        self.asm.bind(ways.done);
        let (state, to) = (self.state(), to.to_vec());
        let rare = move |e: &mut Emit| {
            e.asm.bind(otherwise);
            let before = (e.taken, e.masks);
            e.look_on(&access, base, end, [out, apart], (index, is_guessed));
            (e.taken, e.masks) = before;
            e.asm.store64(known(index, offset_of!(Known, base)), Register::RAX);
            e.begin_line(&access, (index, offset), ways);
            e.keep_host(&access, (index, offset), hosted);
            e.asm.jump(hosted);
            e.load_otherwise(&access, (index, offset), &to, base, (ways, out));
        };
        self.cold.push((state, Box::new(rare)));
    }

    /// Keeps where the host has the line of the wave, which is the place of the first strip in
    /// `rax`. Jumps if there is none, if it is in two pages, or if this is another strip, which has
    /// a line of its own then.
    fn keep_host(&mut self, access: &Access, (index, offset): (usize, i32), otherwise: Label) {
        let whole = i32::from(self.wave_lanes) * access.bytes() as i32;
        self.asm.add(Instruction::with2(Code::Test_rm32_r32, Register::R11D, Register::R11D));
        self.asm.jump_if(When::NotZero, otherwise);
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, known(index, offset_of!(Known, is_whole)), PLACED));
        self.asm.jump_if(When::NotZero, otherwise);
        self.asm.load32(Register::EBP, known(index, offset_of!(Known, origin)));
        self.asm.add(Instruction::with2(Code::Add_rm32_imm32, Register::EBP, offset));
        self.asm.add(Instruction::with2(Code::And_rm32_imm32, Register::EBP, PAGE - 1));
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm32, Register::EBP, PAGE - whole));
        self.asm.jump_if(When::Above, otherwise);
        self.asm.store64(known(index, offset_of!(Known, host)), Register::RAX);
        self.set_whole(index, HOSTED);
    }
}
