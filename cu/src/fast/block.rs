// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Blocks: straight pieces of machine code, pre-decoded.
//!
//! A block is made of code that was fetched, for waves of one [`Layout`]. It knows whether the code
//! is still what was decoded.

use super::builder::Builder;
use super::chain;
use super::code::{fetch_words, orders, Code, TOGETHER};
use super::constants::Constants;
use super::layout::{Grain, Layout};
#[cfg(target_arch = "x86_64")]
use super::native::RingEntry;
use super::piece::Piece;
use super::scalar;
#[cfg(target_arch = "x86_64")]
use super::step::Entry;
use super::step::{Chained, Operands, Place, Step};
use super::sum;
use super::translators;
use super::Vectors;
use crate::exit::Exit;
use crate::reference::fidelity::{fidelity, Fidelity};
use crate::world::{Access, World};
use std::cell::Cell;
use vkfd_isa::{Inst, Op};

/// A straight piece of code.
pub(super) struct Block {
    pub(super) pc: u64,
    pub(super) layout: Layout,
    pub(super) steps: Vec<Step>,
    /// Of each step, what its chain needs.
    pub(super) operands: Vec<Operands>,
    pub(super) insts: Vec<Inst>,
    /// Those of them whose results only approximate hardware's.
    pub(super) inexact: Vec<Op>,
    /// The words that were decoded.
    words: Vec<u32>,
    /// Where they were on the host: the first and the last one.
    host: [usize; 2],
    /// When the words were last known to be these: the engine's count of runs, and of
    /// invalidations.
    pub(super) run: u64,
    epoch: u64,
    /// It has an instruction that orders stores: what goes past the caches is to be seen before it.
    pub(super) orders: bool,
    /// Its registers, if it is a piece.
    pub(super) piece: Option<Box<Piece>>,
    /// How often it has run, until it is translated.
    pub(super) heat: Cell<u32>,
    /// Its accesses are the handlers', where translated code has no gain by them.
    #[cfg(target_arch = "x86_64")]
    pub(super) plain_accesses: Cell<bool>,
    /// The loop of several blocks whose first one it is, and whether it is one of such a loop.
    #[cfg(target_arch = "x86_64")]
    pub(super) ring: Option<Box<RingEntry>>,
    #[cfg(target_arch = "x86_64")]
    pub(super) in_ring: Cell<bool>,
    /// No other block of the engine has this number.
    pub(super) serial: u64,
    /// Its parts that are translated.
    #[cfg(target_arch = "x86_64")]
    #[allow(clippy::vec_box, reason = "steps point to them")]
    pub(super) regions: Vec<Box<Entry>>,
}

impl Block {
    /// Makes a block of code that was fetched.
    pub(super) fn build(code: &Code, vectors: Vectors, constants: &mut Constants, (run, epoch): (u64, u64)) -> Block {
        let Code { pc, layout, .. } = *code;
        let mut block = Block {
            pc,
            layout,
            steps: Vec::new(),
            operands: Vec::new(),
            insts: code.insts.to_vec(),
            inexact: Vec::new(),
            words: code.words.to_vec(),
            host: code.host,
            run,
            epoch,
            orders: false,
            piece: None,
            heat: Cell::new(0),
            #[cfg(target_arch = "x86_64")]
            plain_accesses: Cell::new(false),
            #[cfg(target_arch = "x86_64")]
            ring: None,
            #[cfg(target_arch = "x86_64")]
            in_ring: Cell::new(false),
            serial: 0,
            #[cfg(target_arch = "x86_64")]
            regions: Vec::new(),
        };
        if layout.grain == Grain::Plain {
            block.piece = Piece::of(layout, &code.insts, &code.words).map(Box::new);
        }
        let mut at = pc;
        let mut builder = Builder::new(layout, vectors, constants);
        for (inst, index) in code.insts.iter().zip(0u32..) {
            let offset = (at.wrapping_sub(pc)) as u32;
            let place = Place { inst: index, offset, bytes: inst.bytes.into() };
            translators::translate(&mut builder, inst, place, &mut block.steps);
            at = at.wrapping_add(inst.bytes.into());
            block.orders |= orders(inst.op);
            if let Fidelity::Approximate(_) = fidelity(inst.op, layout.target) {
                block.inexact.push(inst.op);
            }
        }
        // Every block ends with a jump.
        let place = Place { inst: block.insts.len() as u32, offset: at.wrapping_sub(pc) as u32, bytes: 0 };
        block.steps.push(place.step(scalar::fall));
        if block.orders {
            block.steps.iter_mut().for_each(|step| step.past = false);
        }
        block.steps.shrink_to_fit();
        block.insts.shrink_to_fit();
        block.inexact.shrink_to_fit();
        block.words.shrink_to_fit();
        block.link();
        block
    }

    /// Bytes of it and of its place in a table, as allocated.
    pub(super) fn bytes(&self) -> usize {
        /// Of a table that is half full, and of each allocation's own.
        const PLACE: usize = 2 * (size_of::<(u64, Layout)>() + size_of::<Box<Block>>()) + 6 * 16;
        let pairs = self.insts.iter().filter(|inst| inst.pair.is_some()).count();
        #[cfg(target_arch = "x86_64")]
        let regions = self.regions.iter().map(|entry| entry.bytes()).sum::<usize>()
            + self.ring.as_ref().map_or(0, |ring| ring.bytes());
        #[cfg(not(target_arch = "x86_64"))]
        let regions = 0;
        PLACE
            + size_of::<Block>()
            + self.steps.capacity() * size_of::<Step>()
            + self.operands.capacity() * size_of::<Operands>()
            + (self.insts.capacity() + pairs) * size_of::<Inst>()
            + self.inexact.capacity() * size_of::<Op>()
            + self.words.capacity() * size_of::<u32>()
            + self.piece.as_ref().map_or(0, |_| size_of::<Piece>())
            + regions
    }

    /// Tells the steps which comes next, and makes chains and sums. They do not move from now on.
    pub(super) fn link(&mut self) {
        self.operands = self.steps.iter().map(|step| chain::operands(step).unwrap_or_default()).collect();
        // From behind, so that each step knows how many follow it.
        let (mut links, mut before) = (0, None);
        for (index, step) in self.steps.iter_mut().enumerate().rev() {
            let here = step.chained.filter(|_| chain::operands(step).is_some());
            links = match (here, before) {
                (Some(Chained { scalar, .. }), Some(next)) if scalar == next => links + 1,
                _ => 1,
            };
            before = here.map(|chained| chained.scalar);
            if let (Some(chained), true) = (here, links > 1) {
                step.run = chained.run;
            }
            (step.links, step.chain) = (links, self.operands.as_ptr().wrapping_add(index));
        }
        for index in 0..self.steps.len() {
            let before = index.checked_sub(1).and_then(|index| self.steps.get(index)).map(|step| step.inst);
            if let Some(run) = sum::handler(before, self.steps.get(index..).unwrap_or_default()) {
                self.steps[index].run = run;
            }
        }
        let first = self.steps.as_mut_ptr();
        for index in 1..self.steps.len() {
            // SAFETY: both are steps of the block, and so is the step behind a chain: no chain has
            // the last step.
            unsafe {
                let step = &mut *first.add(index - 1);
                (step.next, step.behind) = (first.add(index), first.add(index - 1).wrapping_add(step.links as usize));
            }
        }
    }

    /// The address after the last instruction.
    pub(super) fn end(&self) -> u64 {
        self.pc.wrapping_add(4 * self.words.len() as u64)
    }

    /// Whether the code is still what was decoded, for a wave that comes here first in a run. Code
    /// that has not moved is read only after the instruction cache was invalidated.
    pub(super) fn still(&mut self, world: &mut dyn World, (run, epoch): (u64, u64)) -> Result<bool, Exit> {
        let place = |world: &mut dyn World, pc| world.translate(pc, Access::Execute).map_err(Exit::Miss);
        let first = place(world, self.pc)?;
        let begin = first.ptr.addr();
        // The words lie together as far as the span goes, nearly always to the last.
        let behind = 4 * self.words.len().saturating_sub(1);
        let last = if behind < first.len {
            begin.wrapping_add(behind)
        } else {
            place(world, self.end().wrapping_sub(4))?.ptr.addr()
        };
        let host = [begin, last];
        if host != self.host || epoch != self.epoch {
            let mut index = 0;
            while index < self.words.len() {
                let at = self.pc.wrapping_add(4 * index as u64);
                let mut now = [0u32; TOGETHER];
                let count = fetch_words(world, at, &mut now, self.words.len() - index)?;
                if self.words[index..index + count] != now[..count] {
                    return Ok(false);
                }
                index += count;
            }
            self.host = host;
        }
        (self.run, self.epoch) = (run, epoch);
        Ok(true)
    }
}
