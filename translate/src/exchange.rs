// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The routine of exchanges between lanes: a thread has it once, and a tail's stage jumps to it
//! with the numbers of its rows ([`stage`]).
//!
//! Vectors of sixteen lanes have the whole row, and each result is taken out of two or four of
//! them. Narrow ones gather from a copy of the row. What inactive lanes have counts as zero. All of
//! the row is read before anything is written, and a strip's names before its results.

use crate::assembler::{at, Assembler};
use crate::context::Context;
use crate::plan::Exchange;
use crate::width::Width;
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use std::mem::offset_of;
use vkfd_isa::Operand;

const ROWS: Register = Register::RDI;
const SCALARS: Register = Register::RSI;
const CONTEXT: Register = Register::RDX;
/// Where the rows are behind the first one, in bytes, and the offset.
const FROM: Register = Register::R8;
const NAME: Register = Register::R9;
const TO: Register = Register::R10;
const OFFSET: Register = Register::ECX;

/// Lanes that waves have, and among how many they exchange.
pub(crate) const KINDS: [(u8, u8); 3] = [(64, 64), (64, 32), (32, 32)];

/// A strip of a row.
fn strip(row: Register, bytes: i64) -> MemoryOperand {
    MemoryOperand::with_base_index_scale_displ_size(ROWS, row, 1, bytes, 1)
}

fn context(offset: usize) -> MemoryOperand {
    at(CONTEXT, i64::try_from(offset).unwrap_or(0))
}

fn exec(byte: i64) -> MemoryOperand {
    at(SCALARS, 4 * i64::from(Operand::EXEC) + byte)
}

/// The code of a stage, which jumps to the routine at an address.
pub(crate) fn stage(exchange: &Exchange, routine: u64) -> Option<Vec<u8>> {
    let mut asm = Assembler::new();
    let rows = [(Register::R8D, exchange.from), (Register::R9D, exchange.name), (Register::R10D, exchange.to)];
    for (register, row) in rows {
        asm.add(Instruction::with2(Code::Mov_r32_imm32, register, 256 * u32::from(row)));
    }
    asm.add(Instruction::with2(Code::Mov_r32_imm32, OFFSET, exchange.offset));
    asm.jump_far(routine);
    asm.finish()
}

/// The routine for one of [`KINDS`].
pub(crate) fn routine(width: Width, (lanes, within): (u8, u8)) -> Option<Vec<u8>> {
    let mut asm = Assembler::new();
    if width.is_wide() {
        wide(&mut asm, lanes, within == 64);
    } else {
        narrow(&mut asm, lanes, within);
    }
    asm.add(Ok(Instruction::with(Code::VEX_Vzeroupper)));
    asm.ret();
    asm.finish()
}

const SOURCE: [Register; 4] = [Register::ZMM16, Register::ZMM17, Register::ZMM18, Register::ZMM19];
const MASKS: [Register; 4] = [Register::K1, Register::K2, Register::K3, Register::K4];

fn wide(asm: &mut Assembler, lanes: u8, whole: bool) {
    let strips = || (0..usize::from(lanes / 16)).zip(0i64..);
    for (n, at) in strips() {
        asm.add(Instruction::with2(Code::VEX_Kmovw_kr_km16, MASKS[n], exec(2 * at)));
        let load = Instruction::with2(Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512, SOURCE[n], strip(FROM, 64 * at));
        asm.masked(MASKS[n], true, load);
    }
    let [offset, bit, place, other] = [Register::ZMM20, Register::ZMM21, Register::ZMM22, Register::ZMM23];
    asm.add(Instruction::with2(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, offset, OFFSET));
    asm.add(Instruction::with2(Code::Mov_r32_imm32, Register::ECX, 32u32));
    asm.add(Instruction::with2(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, bit, Register::ECX));
    let permute = |asm: &mut Assembler, to: Register, pair: usize| {
        let [one, two] = [SOURCE[2 * pair], SOURCE[2 * pair + 1]];
        asm.add(Instruction::with3(Code::EVEX_Vpermi2d_zmm_k1z_zmm_zmmm512b32, to, one, two));
    };
    for (n, at) in strips() {
        let names = strip(NAME, 64 * at);
        asm.add(Instruction::with3(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, place, offset, names));
        asm.add(Instruction::with3(Code::EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8, place, place, 2u32));
        if whole {
            // This bit of a place says which two vectors are meant.
            asm.add(Instruction::with3(Code::EVEX_Vptestmd_kr_k1_zmm_zmmm512b32, Register::K5, place, bit));
            asm.add(Instruction::with2(Code::EVEX_Vmovdqa32_zmm_k1z_zmmm512, other, place));
            permute(asm, place, 0);
            permute(asm, other, 1);
            let upper = Instruction::with2(Code::EVEX_Vmovdqa32_zmm_k1z_zmmm512, place, other);
            asm.masked(Register::K5, false, upper);
        } else {
            permute(asm, place, n / 2);
        }
        let store = Instruction::with2(Code::EVEX_Vmovdqu32_zmmm512_k1z_zmm, strip(TO, 64 * at), place);
        asm.masked(MASKS[n], false, store);
    }
}

fn narrow(asm: &mut Assembler, lanes: u8, within: u8) {
    let strips = 0..i64::from(lanes / 8);
    let room = offset_of!(Context, exchanged);
    let [active, value, offset, inside, bits] =
        [Register::YMM0, Register::YMM1, Register::YMM6, Register::YMM5, Register::YMM7];
    let load = |asm: &mut Assembler, to, from| asm.add(Instruction::with2(Code::VEX_Vmovdqu_ymm_ymmm256, to, from));
    let spread = |asm: &mut Assembler, to: Register, low: Register, from: Register| {
        asm.add(Instruction::with2(Code::VEX_Vmovd_xmm_rm32, low, from));
        asm.add(Instruction::with2(Code::VEX_Vpbroadcastd_ymm_xmmm32, to, low));
    };
    // The active lanes of a strip.
    let activate = |asm: &mut Assembler, n: i64| {
        asm.add(Instruction::with2(Code::Movzx_r32_rm8, Register::EAX, exec(n)));
        spread(asm, active, Register::XMM0, Register::EAX);
        asm.add(Instruction::with3(Code::VEX_Vpand_ymm_ymm_ymmm256, active, active, bits));
        asm.add(Instruction::with3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, active, active, bits));
    };
    load(asm, bits, context(offset_of!(Context, bits)));
    for n in strips.clone() {
        activate(asm, n);
        asm.add(Instruction::with3(Code::VEX_Vpand_ymm_ymm_ymmm256, value, active, strip(FROM, 32 * n)));
        let copy = context(room + 32 * usize::try_from(n).unwrap_or(0));
        asm.add(Instruction::with2(Code::VEX_Vmovdqu_ymmm256_ymm, copy, value));
    }
    spread(asm, offset, Register::XMM6, OFFSET);
    asm.add(Instruction::with2(Code::Mov_r32_imm32, Register::EAX, u32::from(within) - 1));
    spread(asm, inside, Register::XMM5, Register::EAX);
    let [old, all, taken] = [Register::YMM2, Register::YMM3, Register::YMM4];
    for n in strips {
        activate(asm, n);
        asm.add(Instruction::with3(Code::VEX_Vpaddd_ymm_ymm_ymmm256, value, offset, strip(NAME, 32 * n)));
        asm.add(Instruction::with3(Code::VEX_Vpsrld_ymm_ymm_imm8, value, value, 2u32));
        asm.add(Instruction::with3(Code::VEX_Vpand_ymm_ymm_ymmm256, value, value, inside));
        asm.add(Instruction::with3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, all, all, all));
        let first = if within == 32 && n >= 4 { room + 128 } else { room };
        let from = i64::try_from(first).unwrap_or(0);
        let place = MemoryOperand::with_base_index_scale_displ_size(CONTEXT, value, 4, from, 1);
        asm.add(Instruction::with3(Code::VEX_Vpgatherdd_ymm_vm32y_ymm, taken, place, all));
        load(asm, old, strip(TO, 32 * n));
        asm.add(Instruction::with4(Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm, taken, old, taken, active));
        asm.add(Instruction::with2(Code::VEX_Vmovdqu_ymmm256_ymm, strip(TO, 32 * n), taken));
    }
}
