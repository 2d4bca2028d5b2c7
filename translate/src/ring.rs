// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loops of several blocks: a ring of blocks, each of which leads to the next one and the last one
//! to the first.
//!
//! The instructions between two branches are a region, as in a block. Behind each region's tail the
//! branch is looked at, and one that leads elsewhere leaves the ring there. Blocks that follow one
//! another without a choice share their region. So lanes that leave a loop one by one, or do only
//! a part of a round, stay in translated code: their branches ask for EXEC. A function of its own
//! calls the regions' functions and looks at the branches.
//!
//! Limits: no loads, no stores, and not more than [`ROUNDS`](crate::ROUNDS) rounds at a time. So a
//! ring cannot miss: what it has begun of a round it does, up to a branch that leaves it.

use crate::arena::Piece;
use crate::assembler::{at, Assembler, When};
use crate::context::{end, Context};
use crate::mode::Arithmetic;
use crate::plan::{self, Branch, Builder, Item, Rounds};
use crate::region::Region;
use crate::translator::Translator;
use crate::width::Width;
use crate::{Registers, Why};
use iced_x86::{Code, Instruction, Register};
use std::mem::offset_of;
use vkfd_isa::{Inst, Op};
use vkfd_sabotage::{Switch, Switches};

/// A block of a ring, as decoded.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    pub insts: &'a [Inst],
    /// The last instruction, a branch, leads to the next block; otherwise that lies behind it.
    pub jumps: bool,
}

/// Instructions up to a branch.
struct Leg {
    region: Region,
    /// The ring is left if the branch is taken, or if it is not.
    exit: Option<(Branch, bool)>,
    /// The block of the branch, and instructions of the ring up to it.
    block: usize,
    done: u32,
}

/// Does at most so many rounds: the number of the leg whose branch has led out, or of legs.
type Function = unsafe extern "sysv64" fn(*mut u8, *mut u32, *mut Context, u32) -> u32;

/// Code for a ring.
pub struct Ring {
    legs: Box<[Leg]>,
    function: Option<Piece>,
    /// Instructions of a round.
    pub insts: u32,
    /// What it expects of MODE.
    pub arithmetic: Arithmetic,
}

/// How far a ring was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turned {
    /// Instructions that were done.
    pub done: u32,
    /// The block whose branch has led out, by its number; or all rounds are done, and the first
    /// block is next.
    pub out: Option<usize>,
}

impl Ring {
    /// Makes code for a ring of blocks.
    ///
    /// # Errors
    /// [`Why`] there is none.
    pub fn build(
        links: &[Link<'_>],
        registers: &dyn Registers,
        width: Width,
        translator: &mut Translator,
        sabotage: &Switches,
    ) -> Result<Ring, Why> {
        let mut ring = Ring { legs: Box::default(), function: None, insts: 0, arithmetic: Arithmetic::default() };
        let mut legs = Vec::new();
        let new = || Builder::new(registers, (Rounds::Once, false), 0);
        let mut builder = new();
        let mut end = |ring: &mut Ring, builder: Builder, exit, block| {
            let mut sequence = builder.finish(0, 0);
            ring.arithmetic = ring.arithmetic.and(sequence.arithmetic());
            let region = Region::build(&mut sequence, registers, width, translator, sabotage)?;
            legs.push(Leg { region, exit, block, done: ring.insts });
            Ok(())
        };
        for (block, link) in links.iter().enumerate() {
            for (index, inst) in link.insts.iter().enumerate() {
                ring.insts += 1;
                let is_last = index + 1 == link.insts.len();
                match Branch::of(inst.op).filter(|_| is_last) {
                    Some(branch) => {
                        let done = std::mem::replace(&mut builder, new());
                        end(&mut ring, done, Some((branch, !link.jumps)), block)?;
                    }
                    None if is_last && inst.op == Op::SBranch && link.jumps => {}
                    None => {
                        let items = plan::items(inst, registers)?;
                        let fits = |item: &Item| matches!(item, Item::Vector(_) | Item::Scalar(_) | Item::Nothing);
                        if !items.iter().all(fits) {
                            return Err(Why::Form);
                        }
                        builder.add(0, items)?;
                    }
                }
            }
        }
        end(&mut ring, builder, None, links.len())?;
        ring.legs = legs.into();
        let code = ring.turn(registers.mask_words(), sabotage).ok_or(Why::Encoding)?;
        ring.function = Some(translator.arena.put(&code).map_err(|_| Why::Room)?);
        Ok(ring)
    }

    /// Bytes of code, and those of its constants.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let own = self.function.as_ref().map_or(0, Piece::bytes);
        size_of::<Ring>() + own + self.regions().map(Region::bytes).sum::<usize>()
    }

    /// The function that calls the regions' functions: where it is, and how long.
    pub fn code(&self) -> impl Iterator<Item = (&'static str, usize, usize)> + '_ {
        self.function.iter().map(|piece| ("ring", piece.start().addr().get(), piece.bytes()))
    }

    /// Its regions, in their order.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.legs.iter().map(|leg| &leg.region)
    }

    /// The function that does rounds.
    fn turn(&self, mask_words: u8, sabotage: &Switches) -> Option<Vec<u8>> {
        let field = |offset: usize| at(CONTEXT, i64::try_from(offset).unwrap_or(0));
        let mut asm = Assembler::new();
        SAVED.into_iter().for_each(|register| asm.push(register));
        for (to, from) in [(ROWS, Register::RDI), (SCALARS, Register::RSI), (CONTEXT, Register::RDX)] {
            asm.move64(to, from);
        }
        asm.move64(LIMIT, Register::RCX);
        asm.add(Instruction::with2(Code::Xor_r32_rm32, DONE, DONE));
        for (offset, value) in [(offset_of!(Context, done), 1), (offset_of!(Context, end), end::FELL)] {
            asm.add(Instruction::with2(Code::Mov_rm32_imm32, field(offset), value));
        }
        let (head, leave) = (asm.label(), asm.label());
        let mut exits = Vec::new();
        asm.bind(head);
        for (number, leg) in (0u32..).zip(&self.legs) {
            for (function, pool) in leg.region.calls() {
                for (to, from) in [(Register::RDI, ROWS), (Register::RSI, SCALARS), (Register::RDX, CONTEXT)] {
                    asm.move64(to, from);
                }
                if let Some(pool) = pool {
                    asm.add(Instruction::with2(Code::Mov_r64_imm64, Register::RAX, pool));
                    asm.store64(field(offset_of!(Context, pool)), Register::RAX);
                }
                asm.call(function);
            }
            let Some((branch, leaves)) = leg.exit else { continue };
            // Without a loop's own end, a broken ring would not be left at all.
            let is_last = leg.done == self.insts;
            if sabotage.has(Switch::ClosedRing) && !is_last && matches!(branch, Branch::Mask(..)) {
                continue;
            }
            let is_zero = match branch {
                Branch::Scc(on) => {
                    asm.add(Instruction::with2(Code::Test_rm8_imm8, field(offset_of!(Context, scc)), 1u32));
                    !on
                }
                Branch::Mask(n, zero) => {
                    let code = if mask_words == 2 { Code::Cmp_rm64_imm8 } else { Code::Cmp_rm32_imm8 };
                    asm.add(Instruction::with2(code, at(SCALARS, 4 * i64::from(n)), 0i32));
                    zero
                }
            };
            let exit = asm.label();
            asm.jump_if(if is_zero == leaves { When::Zero } else { When::NotZero }, exit);
            exits.push((exit, number));
        }
        asm.add(Instruction::with1(Code::Inc_rm32, DONE));
        asm.add(Instruction::with2(Code::Cmp_r32_rm32, DONE, Register::R13D));
        asm.jump_if(When::Below, head);
        let all = u32::try_from(self.legs.len()).ok()?;
        asm.add(Instruction::with2(Code::Mov_r32_imm32, Register::EAX, all));
        asm.bind(leave);
        asm.store32(field(offset_of!(Context, done)), DONE);
        SAVED.into_iter().rev().for_each(|register| asm.pop(register));
        asm.ret();
        for (exit, number) in exits {
            asm.bind(exit);
            asm.add(Instruction::with2(Code::Mov_r32_imm32, Register::EAX, number));
            asm.jump(leave);
        }
        asm.finish()
    }

    /// Does at most `limit` rounds, and at least one.
    ///
    /// # Safety
    /// As for [`Region::run`].
    pub unsafe fn run(&self, context: &mut Context, rows: *mut u8, scalars: *mut u32, limit: u32) -> Turned {
        let Some(function) = &self.function else { return Turned { done: 0, out: None } };
        // SAFETY: code that was written as such a function, which lives as long as the ring, and so
        // do the functions that it calls.
        let function = unsafe { std::mem::transmute::<*mut u8, Function>(function.start().as_ptr()) };
        // SAFETY: the caller's. Without accesses nothing misses.
        let leg = unsafe { function(rows, scalars, context, limit) };
        let rounds = context.done * self.insts;
        match self.legs.get(leg as usize) {
            Some(leg) => Turned { done: rounds + leg.done, out: Some(leg.block) },
            None => Turned { done: rounds, out: None },
        }
    }
}

const ROWS: Register = Register::RBX;
const SCALARS: Register = Register::RBP;
const CONTEXT: Register = Register::R12;
const LIMIT: Register = Register::R13;
const DONE: Register = Register::R14D;
/// An odd number: so the stack is aligned where functions are called.
const SAVED: [Register; 5] = [ROWS, SCALARS, CONTEXT, LIMIT, Register::R14];
