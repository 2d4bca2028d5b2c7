// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A region: the code of a sequence of segments, and how it is run.
//!
//! Each segment is a *pass* ([`pass`]), which has two functions, and more if it has a tail. The
//! *slice* does the scalar instructions, round after round, and copies the registers that change
//! and that vector instructions read to a trace. The *strips* do the vector instructions: for each
//! strip of lanes that has an active one, all rounds, with rows in host registers. The *tail* has a
//! function for each store, which does it strip by strip, and for the scalar instructions between
//! stores.
//!
//! A round of a pass is complete or was not begun. When a scalar load misses in a later round, the
//! slice is done again for the rounds before it; when it misses in the first one, nothing has
//! happened. So the engine can execute the load by itself, and a fault is at its instruction. In a
//! later pass than the first, all that comes before the pass is done: the engine goes on with the
//! pass's first instruction. When a store misses, all that comes before it is done and nothing
//! behind it: the engine goes on with it. It may have stored some lanes, and stores them again.

mod abreast;
mod pass;
mod round;
mod slice;
mod strips;

use crate::context::Context;
use crate::mode::Arithmetic;
use crate::plan::{Rounds, Sequence, Space};
use crate::stubs::Stubs;
use crate::translator::Translator;
use crate::width::Width;
use crate::{Registers, Why};
use pass::{Out, Pass};
use std::ops::Range;
use std::sync::Arc;
use vkfd_sabotage::{Switch, Switches};

/// Most rounds that are done at a time, after which the gate is asked.
pub const ROUNDS: u32 = 64;

/// How a region was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// All instructions are done, so many times.
    Done {
        /// Rounds that were completed.
        rounds: u32,
        /// The branch back was taken.
        again: bool,
    },
    /// So many rounds, and then the instructions before this one of the region, with which the
    /// engine has to go on.
    Within {
        /// Rounds that were completed.
        rounds: u32,
        /// The instruction's number: a store, or the first one behind what has a tail.
        at: usize,
    },
    /// The instructions before this one of the region: a branch that leads out of a superblock.
    SideExit {
        /// The branch's number.
        at: usize,
    },
    /// A load has to be done by the engine; nothing was done.
    Missed,
}

/// Code for a part of a block.
pub struct Region {
    passes: Box<[Pass]>,
    _stubs: Arc<Stubs>,
    /// All passes do a round before the next one.
    by_rounds: bool,
    /// It stores to memory.
    pub stores: bool,
    /// Loads of LDS come before stores behind which they are.
    pub crosses: bool,
    /// Which instructions of its block it does.
    pub insts: Range<usize>,
    /// The last instruction leads back to the first.
    pub looped: bool,
    /// What it expects of MODE.
    pub arithmetic: Arithmetic,
}

fn field(offset: usize) -> i64 {
    i64::try_from(offset).unwrap_or(0)
}

impl Region {
    pub(crate) fn build(
        sequence: &mut Sequence,
        registers: &dyn Registers,
        width: Width,
        translator: &mut Translator,
        sabotage: &Switches,
    ) -> Result<Region, Why> {
        let stubs = translator.stubs(width)?;
        let mut pass = |segment| Pass::build(segment, registers, &stubs, translator, sabotage);
        let mut passes = sequence.segments.iter_mut().map(&mut pass).collect::<Result<Box<[_]>, Why>>()?;
        if sabotage.has(Switch::SwappedSegments) {
            passes.reverse();
        }
        let mut stores = sequence.segments.iter().flat_map(|segment| segment.stores());
        Ok(Region {
            passes,
            _stubs: stubs.clone(),
            by_rounds: sequence.rounds == Rounds::Whole,
            stores: stores.any(|access| access.space != Space::Lds),
            crosses: sequence.segments.iter().flat_map(|segment| segment.accesses()).any(|access| access.crosses),
            insts: sequence.insts.clone(),
            looped: sequence.rounds != Rounds::Once,
            arithmetic: sequence.arithmetic(),
        })
    }

    /// Bytes of code, and those of its constants.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Region>() + self.passes.iter().map(Pass::bytes).sum::<usize>()
    }

    /// Its functions: where they are, and how long.
    pub fn code(&self) -> impl Iterator<Item = (&'static str, usize, usize)> + '_ {
        self.passes.iter().flat_map(Pass::code)
    }

    /// Its functions in their order, each with its constants if it has any.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (u64, Option<u64>)> + '_ {
        self.passes.iter().flat_map(Pass::calls)
    }

    /// Runs it, a loop for at most `limit` rounds.
    ///
    /// # Safety
    /// `rows` and `scalars` are a wave's rows, each of 64 words, and its 128 scalar registers, as
    /// the [`Registers`] had them for which the region was made. Nothing refers to them. What the
    /// context's functions need is there.
    pub unsafe fn run(&self, context: &mut Context, rows: *mut u8, scalars: *mut u32, limit: u32) -> Left {
        if !self.looped {
            // SAFETY: the caller's.
            return unsafe { self.once(context, rows, scalars) };
        }
        let limit = limit.clamp(1, ROUNDS);
        let (whole, each) = if self.by_rounds { (limit, 1) } else { (1, limit) };
        let mut done = 0;
        loop {
            let (mut rounds, mut again) = (1, false);
            for pass in &self.passes {
                // SAFETY: the caller's.
                match unsafe { pass.run(context, rows, scalars, each) } {
                    Ok((count, taken)) => (rounds, again) = (count, again | taken),
                    Err(out) => return self.left(pass, out, done),
                }
            }
            done += rounds;
            if !again || done >= whole {
                return Left::Done { rounds: done, again };
            }
        }
    }

    /// The same of one that is no loop.
    ///
    /// # Safety
    /// As for [`Region::run`].
    #[inline(always)]
    unsafe fn once(&self, context: &mut Context, rows: *mut u8, scalars: *mut u32) -> Left {
        context.be_done();
        for pass in &self.passes {
            // SAFETY: the caller's.
            if let Err(out) = unsafe { pass.once(context, rows, scalars) } {
                return self.left(pass, out, 0);
            }
        }
        Left::Done { rounds: 1, again: false }
    }

    /// How a region is left that goes on elsewhere in a pass, behind so many completed rounds.
    fn left(&self, pass: &Pass, out: Out, done: u32) -> Left {
        let begin = self.insts.start;
        match out {
            Out::SideExit(at) => Left::SideExit { at: at - begin },
            Out::Missed if pass.begin == begin && done == 0 => Left::Missed,
            Out::Missed if pass.begin == begin => Left::Done { rounds: done, again: true },
            Out::Missed => Left::Within { rounds: done, at: pass.begin - begin },
            Out::Stored(at) => Left::Within { rounds: done, at: at - begin },
        }
    }
}
