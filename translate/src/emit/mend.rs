// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What vectors leave to the engine.

use super::*;
use crate::context::{Context, Mending};
use std::mem::offset_of;
use vkfd_isa::Op;

impl Emit {
    /// Has the engine compute an operation of singles where the mask is.
    pub(crate) fn mend(&mut self, op: Op, mask: Mask, sources: &[Src], value: Register, inward: Option<Mask>) {
        let field = |offset: usize| i64::try_from(offset_of!(Context, mending) + offset).unwrap_or(0);
        let store = width::STORE.of(self.width);
        let lanes = match mask {
            Mask::K(k) => Instruction::with2(Code::VEX_Kmovw_r32_kr, Register::EAX, k),
            Mask::V(v) => Instruction::with2(Code::VEX_Vmovmskps_r32_ymm, Register::EAX, v),
        };
        self.asm.add(lanes);
        self.asm.store32(at(Register::RDX, field(offset_of!(Mending, lanes))), Register::EAX);
        let number = at(Register::RDX, field(offset_of!(Mending, op)));
        self.asm.add(Instruction::with2(Code::Mov_rm32_imm32, number, u32::from(op as u16)));
        if let Some(inward) = inward {
            let lanes = match inward {
                Mask::K(k) => Instruction::with2(Code::VEX_Kmovw_r32_kr, Register::EAX, k),
                Mask::V(v) => Instruction::with2(Code::VEX_Vmovmskps_r32_ymm, Register::EAX, v),
            };
            self.asm.add(lanes);
            self.asm.store32(at(Register::RDX, field(offset_of!(Mending, inward))), Register::EAX);
        }
        let results = field(offset_of!(Mending, result));
        let before = self.taken;
        for (index, source) in sources.iter().enumerate() {
            let source = self.reg(*source);
            let place = field(offset_of!(Mending, sources) + 64 * index);
            self.asm.add(Instruction::with2(store, at(Register::RDX, place), source));
            self.taken = before;
        }
        self.asm.add(Instruction::with2(store, at(Register::RDX, results), value));
        self.asm.call(self.host.mend(self.may_flush));
        self.asm.add(Instruction::with2(width::LOAD.of(self.width), value, at(Register::RDX, results)));
    }

    /// The mask that the engine's operation has made, of the lanes that were asked for.
    pub(crate) fn mended_mask(&mut self, mask: Mask) {
        let place =
            at(Register::RDX, i64::try_from(offset_of!(Context, mending) + offset_of!(Mending, out)).unwrap_or(0));
        match mask {
            Mask::K(k) => self.asm.add(Instruction::with2(Code::VEX_Kmovw_kr_km16, k, place)),
            Mask::V(v) => {
                self.asm.load32(Register::EAX, place);
                self.spread(v);
            }
        }
    }

    /// The cold code.
    pub(crate) fn finish_cold(&mut self) {
        while let Some((state, rare)) = self.cold.pop() {
            (self.taken, self.masks, self.held) = state;
            rare(self);
        }
        self.finish_wave();
    }

    /// Strips begin: the host loses denormals if the context says it.
    pub(crate) fn begin_arithmetic(&mut self, may_flush: bool) {
        self.may_flush = may_flush;
        if !may_flush {
            return;
        }
        Emit::if_flushing(&mut self.asm, |asm, field| {
            asm.add(Instruction::with1(Code::VEX_Vstmxcsr_m32, field(offset_of!(Context, usual))));
            asm.add(Instruction::with1(Code::VEX_Vldmxcsr_m32, field(offset_of!(Context, flushing))));
        });
    }

    /// Has the host keep denormals as it does outside of strips, or lose them again.
    pub(crate) fn keep_denormals(&mut self, keep: bool) {
        if self.may_flush {
            Emit::set_denormals(&mut self.asm, keep);
        }
    }

    /// The same in code that may lose denormals.
    pub(crate) fn set_denormals(asm: &mut Assembler, keep: bool) {
        let word = if keep { offset_of!(Context, usual) } else { offset_of!(Context, flushing) };
        Emit::if_flushing(asm, |asm, field| asm.add(Instruction::with1(Code::VEX_Vldmxcsr_m32, field(word))));
    }

    /// Does something only if the host loses denormals in these strips.
    fn if_flushing(asm: &mut Assembler, write: impl FnOnce(&mut Assembler, fn(usize) -> MemoryOperand)) {
        let field = |offset: usize| at(Register::RDX, i64::try_from(offset).unwrap_or(0));
        let go_on = asm.label();
        asm.add(Instruction::with2(Code::Cmp_rm32_imm8, field(offset_of!(Context, flushes)), 0));
        asm.jump_if(When::Zero, go_on);
        write(asm, field);
        asm.bind(go_on);
    }
}
