// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loops of several blocks: a ring of blocks, each of which leads to the next one and the last one
//! to the first.
//!
//! The instructions between two branches are a region, as in a block. Behind each region's tail the
//! branch is looked at, and one that leads elsewhere leaves the ring there. Blocks that follow one
//! another without a choice share their region. So lanes that leave a loop one by one, or do only
//! a part of a round, stay in translated code: their branches ask for EXEC.
//!
//! Limits: no loads, no stores, and not more than [`ROUNDS`](crate::ROUNDS) rounds at a time. So a
//! ring cannot miss: what it has begun of a round it does, up to a branch that leaves it.

use crate::arena::Arena;
use crate::context::Context;
use crate::mode::Arithmetic;
use crate::plan::{self, Branch, Builder, Item, Rounds};
use crate::region::{Left, Region};
use crate::width::Width;
use crate::{Registers, Why};
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

/// Code for a ring.
pub struct Ring {
    legs: Box<[Leg]>,
    /// Instructions of a round.
    pub insts: u32,
    /// What it expects of MODE.
    pub arithmetic: Arithmetic,
    mask_words: u8,
    is_closed: bool,
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
        arena: &mut Arena,
        sabotage: &Switches,
    ) -> Result<Ring, Why> {
        let mut ring = Ring {
            legs: Box::default(),
            insts: 0,
            arithmetic: Arithmetic::default(),
            mask_words: registers.mask_words(),
            is_closed: sabotage.has(Switch::ClosedRing),
        };
        let mut legs = Vec::new();
        let new = || Builder::new(registers, Rounds::Once, 0);
        let mut builder = new();
        let mut end = |ring: &mut Ring, builder: Builder, exit, block| {
            let sequence = builder.finish(0, 0);
            ring.arithmetic = ring.arithmetic.and(sequence.arithmetic());
            let region = Region::build(&sequence, registers, width, arena, sabotage)?;
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
        Ok(ring)
    }

    /// Bytes of code, and those of its constants.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Ring>() + self.regions().map(Region::bytes).sum::<usize>()
    }

    /// Its regions, in their order.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.legs.iter().map(|leg| &leg.region)
    }

    /// Does at most `limit` rounds.
    ///
    /// # Safety
    /// As for [`Region::run`].
    pub unsafe fn run(&self, context: &mut Context, rows: *mut u8, scalars: *mut u32, limit: u32) -> Turned {
        for round in 0..limit {
            for leg in &self.legs {
                // SAFETY: the caller's. Without accesses nothing misses.
                let left = unsafe { leg.region.run(context, rows, scalars, 1) };
                debug_assert_eq!(left, Left::Done { rounds: 1, again: false });
                let Some((branch, leaves)) = leg.exit else { continue };
                // SAFETY: the wave has all scalar registers.
                let is_taken = unsafe { self.is_taken(branch, context, scalars) };
                let is_last = leg.done == self.insts;
                // Without a loop's own end, a broken ring would not be left at all.
                let stays = self.is_closed && !is_last && matches!(branch, Branch::Mask(..));
                if is_taken == leaves && !stays {
                    return Turned { done: round * self.insts + leg.done, out: Some(leg.block) };
                }
            }
        }
        Turned { done: limit * self.insts, out: None }
    }

    /// # Safety
    /// There are 128 scalar registers.
    unsafe fn is_taken(&self, branch: Branch, context: &Context, scalars: *const u32) -> bool {
        match branch {
            Branch::Scc(on) => (context.scc & 1 != 0) == on,
            Branch::Mask(n, zero) => {
                // SAFETY: the caller's; masks of two words begin below the last one.
                let mask = unsafe {
                    let word = scalars.add(n.into());
                    if self.mask_words == 2 {
                        word.cast::<u64>().read_unaligned()
                    } else {
                        word.read().into()
                    }
                };
                (mask == 0) == zero
            }
        }
    }
}
