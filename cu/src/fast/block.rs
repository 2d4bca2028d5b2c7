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
    /// Its loads of LDS stay behind the stores that come before them.
    #[cfg(target_arch = "x86_64")]
    pub(super) in_order: Cell<bool>,
    /// The loop of several blocks whose first one it is, and whether it is one of such a loop.
    #[cfg(target_arch = "x86_64")]
    pub(super) ring: Option<Box<RingEntry>>,
    #[cfg(target_arch = "x86_64")]
    pub(super) in_ring: Cell<bool>,
    /// No other block of the engine has this number.
    pub(super) serial: u64,
    /// The superblock that begins with it, which waves do instead.
    #[cfg(target_arch = "x86_64")]
    pub(super) superblock: Option<Superblock>,
    /// Where its parts meet, if it is a superblock.
    pub(super) joints: Vec<Joint>,
    /// Its parts that are translated.
    #[cfg(target_arch = "x86_64")]
    #[allow(clippy::vec_box, reason = "steps point to them")]
    pub(super) regions: Vec<Box<Entry>>,
}

/// Instructions one behind the other, from an address on. If the last one is a branch, it is taken,
/// or not taken, on the way to the next of them.
#[derive(Clone, Copy)]
pub(super) struct Straight<'a> {
    pub(super) pc: u64,
    pub(super) insts: &'a [Inst],
    pub(super) taken: bool,
}

/// A superblock, in its first block.
#[cfg(target_arch = "x86_64")]
pub(super) struct Superblock {
    /// All of it. Its run is the one in which the code was looked at last.
    pub(super) block: Box<Block>,
    /// Each block of it: its address, and its number.
    pub(super) members: Box<[(u64, u64)]>,
}

#[cfg(target_arch = "x86_64")]
impl Superblock {
    pub(super) fn bytes(&self) -> usize {
        self.block.bytes() + size_of_val(&*self.members)
    }
}

/// The end of a superblock's part.
#[derive(Clone, Copy)]
pub(super) struct Joint {
    /// Its last instruction, and whether that is a branch which is taken on the way.
    pub(super) last: usize,
    pub(super) taken: bool,
    /// Bytes from the superblock's begin to the next part.
    pub(super) next: u32,
}

impl Block {
    /// Makes a block of code that was fetched.
    pub(super) fn build(code: &Code, vectors: Vectors, constants: &mut Constants, (run, epoch): (u64, u64)) -> Block {
        let mut block = Block::empty(code.pc, code.layout);
        (block.words, block.host) = (code.words.to_vec(), code.host);
        (block.run, block.epoch) = (run, epoch);
        if code.layout.grain == Grain::Plain {
            block.piece = Piece::of(code.layout, &code.insts, &code.words).map(Box::new);
        }
        let straight = Straight { pc: code.pc, insts: &code.insts, taken: false };
        block.fill(&[straight], vectors, constants);
        block
    }

    /// Makes a block of pieces of code, each of which is behind the one before.
    pub(super) fn joined(layout: Layout, all: &[Straight], vectors: Vectors, constants: &mut Constants) -> Block {
        let mut block = Block::empty(all.first().map_or(0, |first| first.pc), layout);
        block.fill(all, vectors, constants);
        block
    }

    fn empty(pc: u64, layout: Layout) -> Block {
        Block {
            pc,
            layout,
            steps: Vec::new(),
            operands: Vec::new(),
            insts: Vec::new(),
            inexact: Vec::new(),
            words: Vec::new(),
            host: [0; 2],
            run: 0,
            epoch: 0,
            orders: false,
            piece: None,
            heat: Cell::new(0),
            #[cfg(target_arch = "x86_64")]
            plain_accesses: Cell::new(false),
            #[cfg(target_arch = "x86_64")]
            in_order: Cell::new(false),
            #[cfg(target_arch = "x86_64")]
            ring: None,
            #[cfg(target_arch = "x86_64")]
            in_ring: Cell::new(false),
            serial: 0,
            #[cfg(target_arch = "x86_64")]
            superblock: None,
            joints: Vec::new(),
            #[cfg(target_arch = "x86_64")]
            regions: Vec::new(),
        }
    }

    /// Gives it instructions and their steps.
    fn fill(&mut self, all: &[Straight], vectors: Vectors, constants: &mut Constants) {
        let (pc, layout) = (self.pc, self.layout);
        let mut at = pc;
        let mut taken = false;
        let mut builder = Builder::new(layout, vectors, constants);
        for straight in all {
            at = straight.pc;
            if let Some(last) = self.insts.len().checked_sub(1) {
                self.meet(Joint { last, taken, next: at.wrapping_sub(pc) as u32 });
            }
            taken = straight.taken;
            for inst in straight.insts {
                let place = Place {
                    inst: self.insts.len() as u32,
                    offset: at.wrapping_sub(pc) as u32,
                    bytes: inst.bytes.into(),
                };
                translators::translate(&mut builder, inst, place, &mut self.steps);
                at = at.wrapping_add(inst.bytes.into());
                self.orders |= orders(inst.op);
                if let Fidelity::Approximate(_) = fidelity(inst.op, layout.target) {
                    self.inexact.push(inst.op);
                }
                self.insts.push(*inst);
            }
        }
        // Every block ends with a jump.
        let place = Place { inst: self.insts.len() as u32, offset: at.wrapping_sub(pc) as u32, bytes: 0 };
        self.steps.push(place.step(scalar::fall));
        if self.orders {
            self.steps.iter_mut().for_each(|step| step.past = false);
        }
        self.steps.shrink_to_fit();
        self.insts.shrink_to_fit();
        self.inexact.shrink_to_fit();
        self.words.shrink_to_fit();
        self.joints.shrink_to_fit();
        self.link();
    }

    /// Has the last instruction so far lead to more of them.
    fn meet(&mut self, joint: Joint) {
        self.joints.push(joint);
        let op = self.insts.get(joint.last).map(|last| last.op);
        match (op.and_then(scalar::branch), self.steps.last_mut()) {
            // It is always taken.
            (Some(_), Some(_)) if op == Some(Op::SBranch) => drop(self.steps.pop()),
            (Some([_, middle]), Some(step)) => {
                (step.run, step.alone, step.kind) = (middle, middle, joint.taken.into());
            }
            _ => {}
        }
    }

    /// Bytes from its begin to an instruction.
    pub(super) fn offset(&self, inst: usize) -> u64 {
        let joint = self.joints.iter().rev().find(|joint| joint.last < inst);
        let (first, begin) = joint.map_or((0, 0), |joint| (joint.last + 1, joint.next));
        let part = self.insts.iter().take(inst).skip(first);
        u64::from(begin) + part.map(|inst| u64::from(inst.bytes)).sum::<u64>()
    }

    /// Bytes of it and of its place in a table, as allocated.
    pub(super) fn bytes(&self) -> usize {
        /// Of a table that is half full, and of each allocation's own.
        const PLACE: usize = 2 * (size_of::<(u64, Layout)>() + size_of::<Box<Block>>()) + 6 * 16;
        let pairs = self.insts.iter().filter(|inst| inst.pair.is_some()).count();
        #[cfg(target_arch = "x86_64")]
        let regions = self.regions.iter().map(|entry| entry.bytes()).sum::<usize>()
            + self.ring.as_ref().map_or(0, |ring| ring.bytes())
            + self.superblock.as_ref().map_or(0, |superblock| superblock.bytes());
        #[cfg(not(target_arch = "x86_64"))]
        let regions = 0;
        PLACE
            + size_of::<Block>()
            + self.steps.capacity() * size_of::<Step>()
            + self.operands.capacity() * size_of::<Operands>()
            + (self.insts.capacity() + pairs) * size_of::<Inst>()
            + self.inexact.capacity() * size_of::<Op>()
            + self.words.capacity() * size_of::<u32>()
            + self.joints.capacity() * size_of::<Joint>()
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
