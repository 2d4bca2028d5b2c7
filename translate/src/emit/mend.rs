// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What vectors leave to the engine, and the routines that call it.

use super::*;
use crate::context::{Context, Mending};
use std::mem::offset_of;
use vkfd_isa::Op;

impl Emit {
    /// Has the engine compute an operation of singles where the mask is.
    pub(crate) fn mend(&mut self, op: Op, mask: Mask, sources: &[Src], value: Register, inward: Option<Mask>) {
        let mender = *self.mender.get_or_insert_with(|| self.asm.label());
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
        self.asm.call(mender);
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

    /// The cold code and the routine of [`Emit::mend`].
    pub(crate) fn finish_cold(&mut self) {
        while let Some((state, rare)) = self.cold.pop() {
            (self.taken, self.masks, self.held) = state;
            rare(self);
        }
        self.finish_wave();
        if let Some(mender) = self.mender {
            self.routine(mender, offset_of!(Context, mending), offset_of!(Context, mend));
        }
        if let Some(accessor) = self.accessor {
            self.routine(accessor, offset_of!(Context, accessing), offset_of!(Context, access));
        }
    }

    /// Strips begin: the host loses denormals if the context says it.
    pub(crate) fn begin_arithmetic(&mut self, may_flush: bool) {
        self.may_flush = may_flush;
        self.if_flushing(|asm, field| {
            asm.add(Instruction::with1(Code::VEX_Vstmxcsr_m32, field(offset_of!(Context, usual))));
            asm.add(Instruction::with1(Code::VEX_Vldmxcsr_m32, field(offset_of!(Context, flushing))));
        });
    }

    /// Has the host keep denormals as it does outside of strips, or lose them again.
    pub(crate) fn keep_denormals(&mut self, keep: bool) {
        let word = if keep { offset_of!(Context, usual) } else { offset_of!(Context, flushing) };
        self.if_flushing(|asm, field| asm.add(Instruction::with1(Code::VEX_Vldmxcsr_m32, field(word))));
    }

    /// Does something only if the host loses denormals in these strips.
    fn if_flushing(&mut self, write: impl FnOnce(&mut Assembler, fn(usize) -> MemoryOperand)) {
        if !self.may_flush {
            return;
        }
        let field = |offset: usize| at(Register::RDX, i64::try_from(offset).unwrap_or(0));
        let go_on = self.asm.label();
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, field(offset_of!(Context, flushes)), 0));
        self.asm.jump_if(When::Zero, go_on);
        write(&mut self.asm, field);
        self.asm.bind(go_on);
    }

    /// A routine that saves registers and calls one of the engine's functions. `eax` is its answer.
    fn routine(&mut self, label: Label, argument: usize, function: usize) {
        self.asm.bind(label);
        let field = |offset: usize| i64::try_from(offset).unwrap_or(0);
        let spill = field(offset_of!(Context, spill));
        let (load, store) = (width::LOAD.of(self.width), width::STORE.of(self.width));
        let vectors = self.width.vectors();
        let masks: &[Register] = if self.width.is_wide() {
            &[Register::K1, Register::K2, Register::K3, Register::K4, Register::K5, Register::K6, Register::K7]
        } else {
            &[]
        };
        let general = [
            Register::RDI,
            Register::RSI,
            Register::RDX,
            Register::RCX,
            Register::R8,
            Register::R9,
            Register::R10,
            Register::R11,
        ];
        // Narrow strips have two masks behind the others.
        let usable = Emit::usable(self.width);
        let used: Vec<usize> = (0..vectors).filter(|n| self.touched >> n & 1 != 0 || *n >= usable).collect();
        for &n in &used {
            let place = at(Register::RDX, spill + 64 * field(n));
            self.asm.add(Instruction::with2(store, place, self.width.vector(n)));
        }
        for (n, &mask) in masks.iter().enumerate() {
            self.asm.add(Instruction::with2(
                Code::VEX_Kmovw_m16_kr,
                at(Register::RDX, spill + 2048 + 8 * field(n)),
                mask,
            ));
        }
        general.into_iter().for_each(|register| self.asm.push(register));
        self.asm.push(Register::RBP);
        self.asm.move64(Register::RBP, Register::RSP);
        self.asm.add(Instruction::with2(Code::And_rm64_imm8, Register::RSP, -16));
        self.asm.add(Ok(Instruction::with(Code::VEX_Vzeroupper)));
        self.keep_denormals(true);
        self.asm.load64(Register::RDI, at(Register::RDX, field(offset_of!(Context, user))));
        self.asm.add(Instruction::with2(Code::Lea_r64_m, Register::RSI, at(Register::RDX, field(argument))));
        self.asm.add(Instruction::with1(Code::Call_rm64, at(Register::RDX, field(function))));
        self.asm.move64(Register::RSP, Register::RBP);
        self.asm.pop(Register::RBP);
        general.into_iter().rev().for_each(|register| self.asm.pop(register));
        self.keep_denormals(false);
        for (n, &mask) in masks.iter().enumerate() {
            self.asm.add(Instruction::with2(
                Code::VEX_Kmovw_kr_km16,
                mask,
                at(Register::RDX, spill + 2048 + 8 * field(n)),
            ));
        }
        for n in used {
            let place = at(Register::RDX, spill + 64 * field(n));
            self.asm.add(Instruction::with2(load, self.width.vector(n), place));
        }
        self.asm.ret();
    }
}
