// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A region: the code of a segment, and how it is run.
//!
//! A region has two functions, and more if it has a tail. The *slice* does the scalar instructions,
//! round after round, and copies the registers that change and that vector instructions read to a
//! trace. The *strips* do the vector instructions: for each strip of lanes that has an active one,
//! all rounds, with rows in host registers. The *tail* has a function for each store, which does it
//! strip by strip, and for the scalar instructions between stores.
//!
//! A round is complete or was not begun. When a scalar load misses in a later round, the slice is
//! done again for the rounds before it; when it misses in the first one, nothing has happened. So
//! the engine can execute the load by itself, and a fault is at its instruction. When a store
//! misses, all that comes before it is done and nothing behind it: the engine goes on with it. It
//! may have stored some lanes, and stores them again.

mod slice;
mod strips;

use crate::arena::{Arena, Piece};
use crate::context::{end, Context, KEPT_ROWS};
use crate::emit::Emit;
use crate::mode::Arithmetic;
use crate::plan::{Access, Item, Rounds, Segment, Space};
use crate::scalar::bits;
use crate::width::Width;
use crate::{Registers, Why};
use slice::slice;
use std::ops::Range;
use strips::{strips, uses};
use vkfd_sabotage::{Switch, Switches};

/// Most rounds that are done at a time, after which the gate is asked.
pub const ROUNDS: u32 = 64;

type Function = unsafe extern "sysv64" fn(*mut u8, *mut u32, *mut Context);

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
    /// So many rounds, and then the instructions before this one of the region, which is a store
    /// that the engine has to do.
    Stored {
        /// Rounds that were completed.
        rounds: u32,
        /// The store's number.
        at: usize,
    },
    /// A load has to be done by the engine; nothing was done.
    Missed,
}

/// A part of a tail.
enum Stage {
    Scalars(Piece),
    /// A store, its constants, and its number in the region.
    Store(Piece, Box<[u32]>, usize),
}

impl Stage {
    fn piece(&self) -> &Piece {
        match self {
            Stage::Scalars(piece) | Stage::Store(piece, ..) => piece,
        }
    }
}

/// Code for a part of a block.
pub struct Region {
    tail: Box<[Stage]>,
    /// All strips do a round before the next one.
    by_rounds: bool,
    /// The lanes that waves have.
    all: u64,
    /// It stores to memory.
    pub stores: bool,
    slice: Option<Piece>,
    strips: Piece,
    pool: Box<[u32]>,
    /// Which instructions of its block it does.
    pub insts: Range<usize>,
    /// The last instruction leads back to the first.
    pub looped: bool,
    /// What it expects of MODE.
    pub arithmetic: Arithmetic,
    /// It may miss: it has loads of scalars or of lanes.
    may_miss: bool,
    /// Scalar registers that it writes before its tail: they are put back when it misses.
    numbers: Box<[u8]>,
    /// There is something to do for strips.
    has_lanes: bool,
    /// Bytes of memory that a lane loads and stores in a round.
    pub lane_bytes: u32,
    /// Rows that it writes: strips with accesses keep them, unless nobody reads them again.
    rows: Box<[u16]>,
    width: Width,
    /// Rows are not put back.
    loses_rows: bool,
    /// A loop is left although its branch is taken.
    is_left_early: bool,
}
fn field(offset: usize) -> i64 {
    i64::try_from(offset).unwrap_or(0)
}
impl Region {
    pub(crate) fn build(
        segment: &Segment,
        registers: &dyn Registers,
        width: Width,
        arena: &mut Arena,
        sabotage: &Switches,
    ) -> Result<Region, Why> {
        let looped = segment.rounds != Rounds::Once;
        let in_strips = segment.rounds == Rounds::Strips;
        let (scalars, bytes, places) =
            slice(segment, registers.mask_words(), in_strips, sabotage.has(Switch::LateScalars))?;
        let uses = uses(segment);
        let with = |most| strips(segment, &places, (width, registers.lanes(), bytes), &uses, most, sabotage);
        // Operations that need many temporaries leave fewer registers to rows.
        let (code, pool) = with(if width.is_wide() { 24 } else { 9 })
            .or_else(|needed| with(Emit::usable(width).saturating_sub(needed)))
            // Rows in memory take temporaries, too.
            .or_else(|needed| with(Emit::usable(width).saturating_sub(needed)))
            .or_else(|_| with(0))
            .map_err(|_| Why::Encoding)?;
        let slice = scalars.map(|code| arena.put(&code)).transpose().map_err(|_| Why::Room)?;
        let strips = arena.put(&code).map_err(|_| Why::Room)?;
        let has_loads = segment.items.iter().any(|item| matches!(item, Item::Load(_)));
        let has_accesses = segment.accesses().next().is_some();
        let rows: Box<[u16]> = uses.iter().filter(|(_, known)| known.restored).map(|(row, _)| *row).collect();
        if has_accesses && rows.len() > KEPT_ROWS {
            return Err(Why::Encoding);
        }
        let is_far = |access: &&Access| access.space != Space::Lds;
        let memory = segment.accesses().chain(segment.stores()).filter(is_far);
        let lane_bytes = memory.map(|access| u32::from(access.parts) * access.bytes()).sum();
        let masks = segment.vectors().filter_map(|vector| vector.out);
        let written = masks.fold(segment.written, |all, n| all | bits(n, registers.mask_words()));
        let numbers = (0..128u8).filter(|n| written >> n & 1 != 0).collect();
        let tail = tail(segment, registers, width, arena, sabotage)?;
        Ok(Region {
            tail,
            all: u64::MAX >> (64 - registers.lanes()),
            by_rounds: segment.rounds == Rounds::Whole,
            stores: segment.stores().any(|access| access.space != Space::Lds),
            rows,
            may_miss: has_loads || has_accesses,
            numbers,
            has_lanes: segment.lanes().next().is_some(),
            loses_rows: sabotage.has(Switch::UnkeptRows),
            lane_bytes,
            width,
            slice,
            strips,
            pool,
            insts: segment.insts.clone(),
            looped,
            arithmetic: segment.arithmetic,
            is_left_early: sabotage.has(Switch::LeftEarly),
        })
    }

    /// Bytes of code, and those of its constants.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let pieces = self.slice.iter().chain([&self.strips]).chain(self.tail.iter().map(Stage::piece));
        let code = pieces.map(Piece::bytes).sum::<usize>();
        let pools = self.tail.iter().map(|stage| match stage {
            Stage::Scalars(_) => 0,
            Stage::Store(_, pool, _) => size_of_val(&**pool),
        });
        let lists = size_of_val(&*self.pool) + size_of_val(&*self.tail) + size_of_val(&*self.numbers);
        size_of::<Region>() + code + lists + pools.sum::<usize>()
    }

    /// Its functions: where they are, and how long.
    pub fn code(&self) -> impl Iterator<Item = (&'static str, usize, usize)> + '_ {
        let slice = self.slice.iter().map(|piece| ("scalars", piece));
        let tail = self.tail.iter().map(|stage| ("tail", stage.piece()));
        slice
            .chain([("strips", &self.strips)])
            .chain(tail)
            .map(|(name, piece)| (name, piece.start().addr().get(), piece.bytes()))
    }

    /// Runs it, a loop for at most `limit` rounds.
    ///
    /// # Safety
    /// `rows` and `scalars` are a wave's rows, each of 64 words, and its 128 scalar registers, as
    /// the [`Registers`] had them for which the region was made. Nothing refers to them. What the
    /// context's functions need is there.
    pub unsafe fn run(&self, context: &mut Context, rows: *mut u8, scalars: *mut u32, limit: u32) -> Left {
        let limit = if self.looped { limit.clamp(1, ROUNDS) } else { 1 };
        let whole = if self.by_rounds { limit } else { 1 };
        let mut done = 0;
        loop {
            // SAFETY: the caller's; the wave has all scalar registers.
            let exec = unsafe { Region::exec(scalars) };
            // SAFETY: the caller's.
            let left = unsafe { self.strips(context, (rows, scalars), if self.by_rounds { 1 } else { limit }) };
            let Left::Done { rounds, mut again } = left else {
                return if done == 0 { left } else { Left::Done { rounds: done, again: true } };
            };
            for stage in &self.tail {
                context.end = end::FELL;
                if let Stage::Store(_, pool, _) = stage {
                    context.pool = pool.as_ptr();
                }
                // SAFETY: code that was written as such a function; the caller's.
                unsafe { (Region::function(stage.piece()))(rows, scalars, context) };
                match stage {
                    Stage::Store(_, _, at) if context.end == end::MISSED => {
                        return Left::Stored { rounds: done, at: *at };
                    }
                    _ => again |= context.end == end::TAKEN && !self.is_left_early,
                }
            }
            context.lanes += u64::from((exec & self.all).count_ones()) * u64::from(rounds);
            done += rounds;
            if !again || done >= whole {
                return Left::Done { rounds: done, again };
            }
        }
    }

    /// # Safety
    /// There are 128 scalar registers.
    unsafe fn exec(scalars: *const u32) -> u64 {
        // SAFETY: the caller's.
        unsafe { scalars.add(vkfd_isa::Operand::EXEC.into()).cast::<u64>().read_unaligned() }
    }

    fn function(piece: &Piece) -> Function {
        // SAFETY: code that was written as such a function, which lives as long as the region.
        unsafe { std::mem::transmute::<*mut u8, Function>(piece.start().as_ptr()) }
    }

    /// Does the slice and the strips.
    ///
    /// # Safety
    /// As for [`Region::run`].
    unsafe fn strips(&self, context: &mut Context, (rows, scalars): (*mut u8, *mut u32), mut limit: u32) -> Left {
        context.pool = self.pool.as_ptr();
        let scc = context.scc;
        if self.may_miss {
            for &n in &self.numbers {
                // SAFETY: the wave has all scalar registers.
                context.kept_scalars[usize::from(n)] = unsafe { scalars.add(n.into()).read() };
            }
        }
        loop {
            (context.done, context.end, context.limit) = (1, end::FELL, limit);
            if let Some(piece) = &self.slice {
                // SAFETY: the caller's; the slice touches the registers that it was made for.
                unsafe { (Region::function(piece))(rows, scalars, context) };
            }
            let (rounds, again) = (context.done, context.end == end::TAKEN && !self.is_left_early);
            if context.end != end::MISSED && !self.has_lanes {
                return Left::Done { rounds, again };
            }
            if context.end != end::MISSED {
                context.kept = context.kept_words.as_mut_ptr();
                // SAFETY: the caller's; strips touch the rows and masks that they were made for.
                unsafe { (Region::function(&self.strips))(rows, scalars, context) };
                if context.end != end::MISSED {
                    return Left::Done { rounds, again };
                }
                limit = rounds - context.left.min(rounds);
                // SAFETY: the caller's.
                unsafe { self.put_back(context, rows, scalars) };
            } else {
                limit = rounds;
            }
            for &n in &self.numbers {
                // SAFETY: as above.
                unsafe { scalars.add(n.into()).write(context.kept_scalars[usize::from(n)]) };
            }
            context.scc = scc;
            if limit == 0 {
                return Left::Missed;
            }
        }
    }

    /// Puts back the rows of the strips that were begun.
    ///
    /// # Safety
    /// As for [`Region::run`].
    unsafe fn put_back(&self, context: &Context, rows: *mut u8, scalars: *mut u32) {
        // SAFETY: the wave has all scalar registers.
        let exec = unsafe { Region::exec(scalars) };
        let lanes = usize::from(self.width.lanes());
        let last = (context.kept.addr() - context.kept_words.as_ptr().addr()) / (4 * lanes);
        if self.loses_rows {
            return;
        }
        let strips = (0..=last.min(64 / lanes - 1)).filter(|strip| exec >> (strip * lanes) & ((1 << lanes) - 1) != 0);
        for strip in strips {
            for (kept, row) in context.kept_words.chunks_exact(64).zip(&self.rows) {
                let kept = &kept[strip * lanes..(strip + 1) * lanes];
                // SAFETY: the wave's rows.
                unsafe {
                    let row = rows.add(256 * usize::from(*row)).cast::<u32>().add(strip * lanes);
                    std::ptr::copy_nonoverlapping(kept.as_ptr(), row, lanes);
                }
            }
        }
    }
}

/// The stages of a tail.
fn tail(
    segment: &Segment,
    registers: &dyn Registers,
    width: Width,
    arena: &mut Arena,
    sabotage: &Switches,
) -> Result<Box<[Stage]>, Why> {
    let mut stages = Vec::new();
    let mut rest = &segment.tail[..];
    let mut put = |code: &[u8]| arena.put(code).map_err(|_| Why::Room);
    while let Some((index, first)) = rest.first() {
        if let Item::Store(access) = first {
            let at = index - segment.insts.start;
            let (code, pool) =
                strips::store(access, (width, registers.lanes()), sabotage).map_err(|_| Why::Encoding)?;
            stages.push(Stage::Store(put(&code)?, pool, at));
            rest = &rest[1..];
            continue;
        }
        let count = rest.iter().take_while(|(_, item)| !matches!(item, Item::Store(_))).count();
        let items: Vec<&Item> = rest[..count].iter().map(|(_, item)| item).collect();
        stages.push(Stage::Scalars(put(&slice::tail(&items, registers.mask_words())?)?));
        rest = &rest[count..];
    }
    if sabotage.has(Switch::SwappedStores) {
        stages.reverse();
    }
    Ok(stages.into())
}
