// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A segment's code: its slice, its strips and its tail.
//!
//! A pass misses where its slice or its strips cannot load something. It puts back what they have
//! written, so that nothing of it has happened. When a store of its tail misses, all that comes
//! before the store is done.

use super::slice::{self, slice};
use super::strips::{self, plan, rows, strips};
use crate::arena::{Arena, Piece};
use crate::assembler::Constants;
use crate::context::{end, Context, KEPT_ROWS};
use crate::emit::Emit;
use crate::plan::{Access, Branch, Guard, Item, Rounds, Segment, Space};
use crate::stubs::Stubs;
use crate::translator::Translator;
use crate::width::Width;
use crate::{Registers, Why};
use vkfd_sabotage::{Switch, Switches};

type Function = unsafe extern "sysv64" fn(*mut u8, *mut u32, *mut Context);

/// A function, and where it lives.
struct Code {
    run: Function,
    piece: Piece,
}

impl Code {
    fn new(piece: Piece) -> Code {
        // SAFETY: code that was written as such a function, which lives as long as its piece.
        let run = unsafe { std::mem::transmute::<*mut u8, Function>(piece.start().as_ptr()) };
        Code { run, piece }
    }
}

/// So often strips are written again until their registers suffice.
const ATTEMPTS: usize = 5;

/// A part of a tail.
enum Stage {
    /// Scalar instructions, or an exchange.
    Plain(Code),
    /// A store, its constants, and its number in the block.
    Store(Code, Constants, usize),
}

impl Stage {
    fn code(&self) -> &Code {
        match self {
            Stage::Plain(code) | Stage::Store(code, ..) => code,
        }
    }
}

/// The rounds that a pass has done, and whether a branch back was taken; or what led out of it.
pub(super) type Passed = Result<(u32, bool), Out>;

/// What leads out of a region.
#[derive(Clone, Copy)]
pub(super) enum Out {
    /// A load has to be done by the engine; nothing was done.
    Missed,
    /// All before the store of this number in the block is done.
    Stored(usize),
    /// All is done, and the branch of this number in the block leads out of it.
    SideExit(usize),
}

/// Code for a segment.
pub(super) struct Pass {
    slice: Option<Code>,
    /// None if strips have nothing to do.
    strips: Option<Code>,
    pool: Constants,
    tail: Box<[Stage]>,
    /// The number of its first instruction in the block.
    pub(super) begin: usize,
    /// The branch behind it, and its number in the block.
    guard: Option<(Guard, usize)>,
    /// The lanes that waves have.
    all: u64,
    /// Scalar registers that it writes before its tail: its first function keeps them, and they are
    /// put back when it misses.
    numbers: Box<[u8]>,
    /// Bytes of memory that a lane loads and stores in a round.
    lane_bytes: u32,
    /// Rows that it writes: strips with accesses keep them, unless nobody reads them again.
    rows: Box<[u16]>,
    width: Width,
    /// Rows are not put back.
    loses_rows: bool,
    /// A loop is left although its branch is taken.
    is_left_early: bool,
}

/// # Safety
/// There are 128 scalar registers.
unsafe fn exec(scalars: *const u32) -> u64 {
    // SAFETY: the caller's.
    unsafe { scalars.add(vkfd_isa::Operand::EXEC.into()).cast::<u64>().read_unaligned() }
}

impl Guard {
    /// # Safety
    /// There are 128 scalar registers.
    #[inline(always)]
    unsafe fn leads_out(self, scc: u8, scalars: *const u32, lanes: u64) -> bool {
        let taken = match self.branch {
            Branch::Scc(on) => (scc & 1 != 0) == on,
            Branch::Mask(n, zero) => {
                // SAFETY: the caller's: a mask is in two of them.
                let mask = unsafe { scalars.add(n.into()).cast::<u64>().read_unaligned() };
                (mask & lanes == 0) == zero
            }
        };
        taken != self.taken
    }
}

impl Pass {
    pub(super) fn build(
        segment: &mut Segment,
        registers: &dyn Registers,
        stubs: &Stubs,
        translator: &mut Translator,
        sabotage: &Switches,
    ) -> Result<Pass, Why> {
        let host = stubs.host;
        let has_loads = segment.items.iter().any(|item| matches!(item, Item::Load(_)));
        let has_accesses = segment.accesses().next().is_some();
        let written = segment.written | segment.masks(registers.mask_words());
        let may_miss = has_loads || has_accesses || segment.hoists;
        let numbers: Box<[u8]> = (0..128u8).filter(|n| may_miss && written >> n & 1 != 0).collect();
        let (scalars, bytes, mut places) = slice(segment, registers.mask_words(), &numbers, sabotage)?;
        // The first function of both keeps them.
        let kept = if scalars.is_some() { &[] } else { &*numbers };
        let mut rows = rows(segment);
        let mut plan = plan(segment, &rows);
        if segment.rounds != Rounds::Strips && plan.pressure() > Emit::usable(host.width) {
            segment.bring_together(&mut rows, &mut places, sabotage.has(Switch::PassedSource));
            plan = strips::plan(segment, &rows);
        }
        let segment = &*segment;
        let has_lanes = segment.lanes().next().is_some();
        let with = |needs| {
            strips(segment, &places, (host, registers.lanes(), bytes), (plan.clone(), &rows, kept), needs, sabotage)
        };
        let Translator { arena, learned, .. } = translator;
        let mut code = || {
            let kinds: Vec<usize> = segment.lanes().map(|lanes| lanes.kind()).collect();
            let mut made = with(learned.needs(&kinds));
            for _ in 0..ATTEMPTS {
                made = made.or_else(|needs| with(needs.learned()));
            }
            let (code, needs) = made.map_err(|_| Why::Encoding)?;
            learned.note(&kinds, &needs);
            Ok(code)
        };
        let slice = scalars.map(|code| put(arena, &code)).transpose()?;
        let (strips, pool) = if has_lanes {
            let (code, pool) = code()?;
            (Some(put(arena, &code)?), pool)
        } else {
            (None, Constants::default())
        };
        let rows: Box<[u16]> = plan.restored().collect();
        if has_accesses && rows.len() > KEPT_ROWS {
            return Err(Why::Encoding);
        }
        let is_far = |access: &&Access| access.space != Space::Lds;
        let memory = segment.accesses().chain(segment.stores()).filter(is_far);
        let lane_bytes = memory.map(|access| u32::from(access.parts) * access.bytes()).sum();
        let tail = tail(segment, registers, stubs, arena, sabotage)?;
        Ok(Pass {
            slice,
            strips,
            pool,
            tail,
            begin: segment.insts.start,
            guard: segment
                .guard
                .filter(|_| !sabotage.has(Switch::ClosedSuperblock))
                .zip(segment.insts.end.checked_sub(1)),
            all: u64::MAX >> (64 - registers.lanes()),
            numbers,
            lane_bytes,
            rows,
            width: host.width,
            loses_rows: sabotage.has(Switch::UnkeptRows),
            is_left_early: sabotage.has(Switch::LeftEarly),
        })
    }

    fn pieces(&self) -> impl Iterator<Item = (&'static str, &Piece)> {
        let slice = self.slice.iter().map(|code| ("scalars", &code.piece));
        let strips = self.strips.iter().map(|code| ("strips", &code.piece));
        slice.chain(strips).chain(self.tail.iter().map(|stage| ("tail", &stage.code().piece)))
    }

    /// Its functions: where they are, and how long.
    pub(super) fn code(&self) -> impl Iterator<Item = (&'static str, usize, usize)> + '_ {
        self.pieces().map(|(name, piece)| (name, piece.start().addr().get(), piece.bytes()))
    }

    /// Its functions in their order, each with its constants if it has any.
    pub(super) fn calls(&self) -> impl Iterator<Item = (u64, Option<u64>)> + '_ {
        let function = |code: &Code| code.piece.start().addr().get() as u64;
        let slice = self.slice.iter().map(move |code| (function(code), None));
        let strips = self.strips.iter().map(move |code| (function(code), Some(self.pool.as_ptr().addr() as u64)));
        slice.chain(strips).chain(self.tail.iter().map(move |stage| match stage {
            Stage::Plain(code) => (function(code), None),
            Stage::Store(code, pool, _) => (function(code), Some(pool.as_ptr().addr() as u64)),
        }))
    }

    /// Bytes of code, and those of its constants.
    pub(super) fn bytes(&self) -> usize {
        let code = self.pieces().map(|(_, piece)| piece.bytes()).sum::<usize>();
        let pools = self.tail.iter().map(|stage| match stage {
            Stage::Plain(_) => 0,
            Stage::Store(_, pool, _) => size_of_val(&**pool),
        });
        let rows = size_of_val(&*self.rows) + size_of_val(&*self.numbers);
        let lists = size_of_val(&*self.pool) + size_of_val(&*self.tail) + rows;
        size_of::<Pass>() + code + lists + pools.sum::<usize>()
    }

    /// Runs it, for at most `limit` rounds of a loop whose strips do many.
    ///
    /// # Safety
    /// As for [`Region::run`](super::Region::run).
    #[inline(always)]
    pub(super) unsafe fn run(&self, context: &mut Context, rows: *mut u8, scalars: *mut u32, limit: u32) -> Passed {
        let mut limit = limit;
        loop {
            (context.done, context.end, context.limit) = (1, end::FELL, limit);
            // SAFETY: the caller's.
            let Some(before) = (unsafe { self.attempt(context, (rows, scalars)) }) else { break };
            limit = before;
            if limit == 0 {
                return Err(Out::Missed);
            }
        }
        // SAFETY: the caller's.
        unsafe { self.finish(context, (rows, scalars)) }
    }

    /// The same where there is one round. The context says that it is done, and that no branch was
    /// taken, before this and behind it, unless something misses.
    ///
    /// # Safety
    /// As for [`Region::run`](super::Region::run).
    #[inline(always)]
    pub(super) unsafe fn once(&self, context: &mut Context, rows: *mut u8, scalars: *mut u32) -> Passed {
        // SAFETY: the caller's.
        unsafe {
            match self.attempt(context, (rows, scalars)) {
                None => self.finish(context, (rows, scalars)),
                Some(_) => Err(Out::Missed),
            }
        }
    }

    /// Does the slice and the strips, for as many rounds as the context has. If something misses,
    /// nothing was done: so many rounds come before it.
    ///
    /// # Safety
    /// As for [`Pass::run`].
    #[inline(always)]
    unsafe fn attempt(&self, context: &mut Context, (rows, scalars): (*mut u8, *mut u32)) -> Option<u32> {
        let scc = context.scc;
        if let Some(slice) = &self.slice {
            // SAFETY: the caller's; the slice touches the registers that it was made for.
            unsafe { (slice.run)(rows, scalars, context) };
        }
        let mut before = context.done;
        if context.end != end::MISSED {
            let strips = self.strips.as_ref()?;
            context.pool = self.pool.as_ptr().cast();
            context.kept = context.kept_rows.as_mut_ptr().cast();
            // SAFETY: the caller's; strips touch the rows and masks that they were made for.
            unsafe { (strips.run)(rows, scalars, context) };
            if context.end != end::MISSED {
                return None;
            }
            before -= context.left.min(before);
            // SAFETY: the caller's.
            unsafe { self.put_back(context, rows, scalars) };
        }
        for &n in &self.numbers {
            // SAFETY: as above.
            unsafe { scalars.add(n.into()).write(context.kept_scalars[usize::from(n)]) };
        }
        context.scc = scc;
        Some(before)
    }

    /// Does the tail, behind so many rounds as the context has.
    ///
    /// # Safety
    /// As for [`Pass::run`].
    #[inline(always)]
    unsafe fn finish(&self, context: &mut Context, (rows, scalars): (*mut u8, *mut u32)) -> Passed {
        let (rounds, mut again) = (context.done, context.end == end::TAKEN && !self.is_left_early);
        // SAFETY: the wave has all scalar registers.
        let lanes = if self.lane_bytes == 0 { 0 } else { self.all & unsafe { exec(scalars) } };
        for stage in &self.tail {
            context.end = end::FELL;
            if let Stage::Store(_, pool, _) = stage {
                context.pool = pool.as_ptr().cast();
            }
            // SAFETY: code that was written as such a function; the caller's.
            unsafe { (stage.code().run)(rows, scalars, context) };
            match stage {
                Stage::Store(_, _, at) if context.end == end::MISSED => return Err(Out::Stored(*at)),
                _ => again |= context.end == end::TAKEN && !self.is_left_early,
            }
        }
        if self.lane_bytes != 0 {
            context.moved += u64::from(self.lane_bytes) * u64::from(lanes.count_ones()) * u64::from(rounds);
        }
        match self.guard {
            // SAFETY: the caller's; the wave has all scalar registers.
            Some((guard, at)) if unsafe { guard.leads_out(context.scc, scalars, self.all) } => Err(Out::SideExit(at)),
            _ => Ok((rounds, again)),
        }
    }

    /// Puts back the rows of the strips before the one that has missed, which has written none.
    ///
    /// # Safety
    /// As for [`Pass::run`].
    unsafe fn put_back(&self, context: &Context, rows: *mut u8, scalars: *mut u32) {
        // SAFETY: the wave has all scalar registers.
        let exec = unsafe { exec(scalars) };
        let lanes = usize::from(self.width.lanes());
        let missed = (context.kept.addr() - context.kept_rows.as_ptr().addr()) / (4 * lanes);
        if self.loses_rows {
            return;
        }
        let strips = (0..missed.min(64 / lanes)).filter(|strip| exec >> (strip * lanes) & ((1 << lanes) - 1) != 0);
        for strip in strips {
            for (kept, row) in context.kept_rows.iter().zip(&self.rows) {
                let kept = &kept.0[strip * lanes..(strip + 1) * lanes];
                // SAFETY: the wave's rows.
                unsafe {
                    let row = rows.add(256 * usize::from(*row)).cast::<u32>().add(strip * lanes);
                    std::ptr::copy_nonoverlapping(kept.as_ptr(), row, lanes);
                }
            }
        }
    }
}

fn put(arena: &mut Arena, code: &[u8]) -> Result<Code, Why> {
    arena.put(code).map(Code::new).map_err(|_| Why::Room)
}

/// The stages of a tail.
fn tail(
    segment: &Segment,
    registers: &dyn Registers,
    stubs: &Stubs,
    arena: &mut Arena,
    sabotage: &Switches,
) -> Result<Box<[Stage]>, Why> {
    let mut stages = Vec::new();
    let mut rest = &segment.tail[..];
    while let Some((index, item)) = rest.first() {
        if let Item::Store(access) = item {
            let (code, pool) =
                strips::store(access, (stubs.host, registers.lanes(), segment.rounds != Rounds::Once), sabotage)
                    .ok_or(Why::Encoding)?;
            stages.push(Stage::Store(put(arena, &code)?, pool, *index));
            rest = &rest[1..];
            continue;
        }
        if let Item::Exchange(exchange) = item {
            if sabotage.has(Switch::LostExchange) {
                rest = &rest[1..];
                continue;
            }
            let code = stubs.exchange(exchange, registers.lanes(), arena)?;
            stages.push(Stage::Plain(put(arena, &code)?));
            rest = &rest[1..];
            continue;
        }
        let is_scalar = |item: &Item| !matches!(item, Item::Store(_) | Item::Exchange(_));
        let count = rest.iter().take_while(|(_, item)| is_scalar(item)).count();
        let items: Vec<&Item> = rest[..count].iter().map(|(_, item)| item).collect();
        stages.push(Stage::Plain(put(arena, &slice::tail(&items, registers.mask_words())?)?));
        rest = &rest[count..];
    }
    if sabotage.has(Switch::SwappedStores) {
        stages.reverse();
    }
    Ok(stages.into())
}
