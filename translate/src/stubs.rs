// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The routines by which regions call the engine: they save registers around a function of Rust.
//!
//! A translator makes them once, with its first region, and each region keeps them. They save all
//! vectors and masks, since any of them may hold a row.

use crate::arena::{Arena, Piece};
use crate::assembler::{at, Assembler};
use crate::context::Context;
use crate::emit::Emit;
use crate::exchange;
use crate::plan::Exchange;
use crate::width::{self, Width};
use crate::Why;
use iced_x86::{Code, Instruction, Register};
use std::mem::offset_of;
use std::sync::OnceLock;

/// Where a routine is, by whether the host may have to lose denormals in the code that calls it.
#[derive(Clone, Copy, Debug)]
struct Address([u64; 2]);

/// The host's vectors, and the addresses of the routines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    pub(crate) width: Width,
    mend: Address,
    access: Address,
}

impl Host {
    /// The routine for [`Context::mend`].
    pub(crate) fn mend(&self, may_flush: bool) -> u64 {
        self.mend.0[usize::from(may_flush)]
    }

    /// The routine for [`Context::access`].
    pub(crate) fn access(&self, may_flush: bool) -> u64 {
        self.access.0[usize::from(may_flush)]
    }
}

/// The code of the routines.
#[derive(Debug)]
pub(crate) struct Stubs {
    pub(crate) host: Host,
    _code: Vec<Piece>,
    /// Those of exchanges, by [`exchange::KINDS`], once there is code that has one.
    exchanges: [OnceLock<Piece>; 3],
}

impl Stubs {
    pub(crate) fn new(width: Width, arena: &mut Arena) -> Result<Stubs, Why> {
        let mut pieces = Vec::new();
        let mut put = |argument, function, may_flush| {
            let code = routine(width, argument, function, may_flush).ok_or(Why::Encoding)?;
            let piece = arena.put(&code).map_err(|_| Why::Room)?;
            let address = piece.start().addr().get() as u64;
            pieces.push(piece);
            Ok(address)
        };
        let mut both = |argument, function| {
            let plain = put(argument, function, false)?;
            Ok(Address([plain, put(argument, function, true)?]))
        };
        let mend = both(offset_of!(Context, mending), offset_of!(Context, mend))?;
        let access = both(offset_of!(Context, accessing), offset_of!(Context, access))?;
        Ok(Stubs { host: Host { width, mend, access }, _code: pieces, exchanges: Default::default() })
    }

    /// The code of a tail's stage that exchanges lanes of waves which have so many.
    pub(crate) fn exchange(&self, exchange: &Exchange, lanes: u8, arena: &mut Arena) -> Result<Vec<u8>, Why> {
        let mut kinds = exchange::KINDS.into_iter().zip(&self.exchanges);
        let (kind, room) = kinds.find(|(kind, _)| *kind == (lanes, exchange.within)).ok_or(Why::Encoding)?;
        let routine = match room.get() {
            Some(routine) => routine,
            None => {
                let code = exchange::routine(self.host.width, kind).ok_or(Why::Encoding)?;
                let piece = arena.put(&code).map_err(|_| Why::Room)?;
                room.get_or_init(|| piece)
            }
        };
        exchange::stage(exchange, routine.start().addr().get() as u64).ok_or(Why::Encoding)
    }
}

fn field(offset: usize) -> i64 {
    i64::try_from(offset).unwrap_or(0)
}

/// What a function of Rust may change.
const GENERAL: [Register; 8] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];
const MASKS: [Register; 7] =
    [Register::K1, Register::K2, Register::K3, Register::K4, Register::K5, Register::K6, Register::K7];

/// Calls a function of the context with something in it. `eax` is its answer.
fn routine(width: Width, argument: usize, function: usize, may_flush: bool) -> Option<Vec<u8>> {
    let mut asm = Assembler::new();
    let spill = field(offset_of!(Context, spill));
    let (load, store) = (width::LOAD.of(width), width::STORE.of(width));
    let vector = |n: usize| at(Register::RDX, spill + 64 * field(n));
    let mask = |n: usize| at(Register::RDX, spill + 64 * 32 + 8 * field(n));
    let masks: &[Register] = if width.is_wide() { &MASKS } else { &[] };
    for n in 0..width.vectors() {
        asm.add(Instruction::with2(store, vector(n), width.vector(n)));
    }
    for (n, register) in masks.iter().enumerate() {
        asm.add(Instruction::with2(Code::VEX_Kmovw_m16_kr, mask(n), *register));
    }
    GENERAL.into_iter().for_each(|register| asm.push(register));
    asm.push(Register::RBP);
    asm.move64(Register::RBP, Register::RSP);
    asm.add(Instruction::with2(Code::And_rm64_imm8, Register::RSP, -16));
    asm.add(Ok(Instruction::with(Code::VEX_Vzeroupper)));
    if may_flush {
        Emit::set_denormals(&mut asm, true);
    }
    asm.load64(Register::RDI, at(Register::RDX, field(offset_of!(Context, user))));
    asm.add(Instruction::with2(Code::Lea_r64_m, Register::RSI, at(Register::RDX, field(argument))));
    asm.add(Instruction::with1(Code::Call_rm64, at(Register::RDX, field(function))));
    asm.move64(Register::RSP, Register::RBP);
    asm.pop(Register::RBP);
    GENERAL.into_iter().rev().for_each(|register| asm.pop(register));
    if may_flush {
        Emit::set_denormals(&mut asm, false);
    }
    for (n, register) in masks.iter().enumerate() {
        asm.add(Instruction::with2(Code::VEX_Kmovw_kr_km16, *register, mask(n)));
    }
    for n in 0..width.vectors() {
        asm.add(Instruction::with2(load, width.vector(n), vector(n)));
    }
    asm.ret();
    asm.finish()
}
