// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which instructions of a block are done as one.
//!
//! A segment ends where its order would be seen ([`super::order`]). What follows begins another
//! segment of the same region, which does one after the other. So only an instruction that no
//! region has ends a region. A loop is one region. If it is one segment without a tail, its strips
//! do all rounds. Otherwise all segments do a round before the next one.
//!
//! A segment costs some 20 ns beside its instructions. So one that gains less is left to the
//! handlers, and ends a region too ([`gain`]). A loop counts as a whole.

use super::order::{Seen, Where};
use super::{does_nothing, items, Access, Branch, Guard, Item, Items, Rounds, Segment, Space};
use crate::mode::Arithmetic;
use crate::{Registers, Straight, Why};
use smallvec::smallvec;
use std::ops::Range;
use vkfd_isa::{Inst, Op};

/// A segment of fewer vector instructions is as quick one by one.
const LEAST: usize = 4;
/// What a vector instruction gains by being translated, in halves of a nanosecond.
const GAIN: usize = 10;
/// What a segment costs of a region that is there anyway.
const COST: usize = 20;

/// The same of any instruction.
fn gain(item: &Item) -> usize {
    match item {
        Item::Vector(vector) if vector.row.is_none() => 2 * GAIN,
        Item::Vector(_) => GAIN,
        Item::Load(_) | Item::Exchange(_) => 12,
        Item::Scalar(_) => 3,
        // Handlers of others prefetch.
        Item::Store(access) if access.space == Space::Lds => 2 * GAIN,
        _ => 0,
    }
}
/// A loop that has fewer vector instructions for an access of memory waits for memory, where the
/// handlers' prefetches help.
const DENSE: usize = 2;

/// Which accesses regions may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Accesses {
    None,
    /// Loads of LDS, and in loops of memory.
    Loads,
    /// Loads and stores of both.
    All,
    /// The same, and rows of waves that end are not kept.
    Last,
}

impl Accesses {
    fn has(self, item: &Item) -> bool {
        match item {
            Item::Access(_) => self >= Accesses::Loads,
            Item::Store(_) => self >= Accesses::All,
            _ => true,
        }
    }
}

/// Segments that are done one after the other.
pub(crate) struct Sequence {
    pub(crate) segments: Vec<Segment>,
    /// Which instructions of the block.
    pub(crate) insts: Range<usize>,
    pub(crate) rounds: Rounds,
}

impl Sequence {
    /// What it expects of MODE.
    pub(crate) fn arithmetic(&self) -> Arithmetic {
        self.segments.iter().fold(Arithmetic::default(), |all, segment| all.and(segment.arithmetic))
    }

    fn vectors(&self) -> usize {
        self.segments.iter().map(|segment| segment.vectors().count()).sum()
    }

    /// The parts of it whose segments have enough to do, each of them.
    fn worthy(self) -> impl Iterator<Item = Sequence> {
        let rounds = self.rounds;
        let mut all: Vec<Sequence> = Vec::new();
        let gains = |segment: &Segment| {
            let tail = segment.tail.iter().map(|(_, item)| item);
            segment.items.iter().chain(tail).map(gain).sum::<usize>()
        };
        let is_worth = |segment: &Segment| segment.items.iter().map(gain).sum::<usize>() >= LEAST * GAIN;
        // Around branches of a superblock and exchanges, those between two such ones as well:
        // leaving a region and entering the next one costs more. And those beside them that gain
        // anything.
        let joins = |segment: &Segment| segment.guard.is_some() || segment.exchanges().next().is_some();
        let is_joined = self.segments.iter().any(joins);
        let first = self.segments.iter().position(is_worth).filter(|_| is_joined);
        let last = self.segments.iter().rposition(is_worth);
        let with = first.zip(last).map(|(first, last)| {
            let (before, behind) = (self.segments[..first].iter().rev(), self.segments[last + 1..].iter());
            let before = before.take_while(|segment| gains(segment) > COST).count();
            let behind = behind.take_while(|segment| gains(segment) > COST).count();
            first - before..last + 1 + behind
        });
        let is_with = |index: usize| with.as_ref().is_some_and(|with| with.contains(&index));
        let segments = self.segments.into_iter().enumerate();
        for (_, segment) in segments.filter(|(index, segment)| is_worth(segment) || is_with(*index)) {
            let insts = segment.insts.clone();
            match all.last_mut().filter(|before| before.insts.end == insts.start) {
                Some(before) => {
                    before.insts.end = insts.end;
                    before.segments.push(segment);
                }
                None => all.push(Sequence { segments: vec![segment], insts, rounds }),
            }
        }
        all.into_iter()
    }

    /// Whether it has enough to do between its accesses of memory.
    fn is_dense(&self) -> bool {
        let is_far = |access: &&Access| access.space != Space::Lds;
        let all = self.segments.iter().flat_map(|segment| segment.accesses().chain(segment.stores()));
        self.vectors() >= DENSE * all.filter(is_far).count()
    }

    /// Its stores may go past the caches.
    pub(crate) fn let_past(&mut self) {
        let all = self.segments.iter_mut().flat_map(Segment::all_accesses);
        all.filter(|access| access.is_store && access.space != Space::Lds).for_each(|access| access.past = true);
    }

    /// Gives accesses numbers, by which the code's pages for them are spread.
    pub(crate) fn number(&mut self) {
        let all = self.segments.iter_mut().flat_map(Segment::all_accesses);
        all.enumerate().for_each(|(index, access)| access.slot = index);
    }
}

/// Makes a sequence, instruction by instruction.
pub(crate) struct Builder {
    rounds: Rounds,
    segments: Vec<Segment>,
    open: Segment,
    seen: Seen,
}

impl Builder {
    pub(crate) fn new(registers: &dyn Registers, (rounds, crosses): (Rounds, bool), begin: usize) -> Builder {
        let (open, seen) = (Segment::new(begin, rounds), Seen::new(registers.mask_words(), (rounds, crosses)));
        Builder { rounds, segments: Vec::new(), open, seen }
    }

    fn end_segment(&mut self, end: usize) {
        let open = std::mem::replace(&mut self.open, Segment::new(end, self.rounds));
        let seen = self.seen.begin_anew();
        if !(open.items.is_empty() && open.tail.is_empty()) {
            self.segments.push(open.finish(end, &seen));
        }
    }

    /// Adds what an instruction does.
    pub(crate) fn add(&mut self, index: usize, mut items: Items) -> Result<(), Why> {
        let mut place = self.seen.admit(&mut items);
        if place.is_none() && self.rounds != Rounds::Strips {
            self.end_segment(index);
            place = self.seen.admit(&mut items);
        }
        match place.ok_or(Why::Order)? {
            Where::Body => self.open.items.extend(items),
            Where::Tail => self.open.tail.extend(items.into_iter().map(|item| (index, item))),
        }
        Ok(())
    }

    /// Ends a segment with a branch of a superblock.
    fn add_guard(&mut self, index: usize, guard: Guard) {
        let open = std::mem::replace(&mut self.open, Segment::new(index + 1, self.rounds));
        let seen = self.seen.begin_anew();
        let mut segment = open.finish(index + 1, &seen);
        segment.guard = Some(guard);
        self.segments.push(segment);
    }

    fn has_only_tail(&self) -> bool {
        self.segments.is_empty() && self.open.items.is_empty()
    }

    /// The sequence, of the instructions up to this one.
    pub(crate) fn finish(mut self, begin: usize, end: usize) -> Sequence {
        self.end_segment(end);
        Sequence { segments: self.segments, insts: begin..end, rounds: self.rounds }
    }
}

/// A loop: all instructions of a block whose last one is a branch to its begin.
pub(crate) fn looped(insts: &[Inst], registers: &dyn Registers, accesses: (Accesses, bool)) -> Result<Sequence, Why> {
    let last = insts.last().ok_or(Why::Branch)?;
    let words = insts.iter().map(|inst| i64::from(inst.bytes / 4)).sum::<i64>();
    if i64::from(last.imm) != -words || Branch::of(last.op).is_none() {
        return Err(Why::Branch);
    }
    rounds(insts, registers, accesses, Rounds::Strips).or_else(|_| rounds(insts, registers, accesses, Rounds::Whole))
}

fn rounds(
    insts: &[Inst],
    registers: &dyn Registers,
    (accesses, crosses): (Accesses, bool),
    rounds: Rounds,
) -> Result<Sequence, Why> {
    let mut builder = Builder::new(registers, (rounds, crosses), 0);
    for (index, inst) in insts.iter().enumerate() {
        let branch = Branch::of(inst.op).filter(|_| index + 1 == insts.len());
        let here = match branch {
            Some(branch) => smallvec![Item::Branch(branch)],
            None => items(inst, registers)?,
        };
        if !here.iter().all(|item| accesses.has(item)) {
            return Err(Why::Form);
        }
        builder.add(index, here)?;
    }
    let sequence = builder.finish(0, insts.len());
    let exchanges: usize = sequence.segments.iter().map(|segment| segment.exchanges().count()).sum();
    let is_worth = sequence.is_dense() && sequence.vectors() + 2 * exchanges >= LEAST * sequence.segments.len();
    is_worth.then_some(sequence).ok_or(Why::Short)
}

/// Instructions one after the other, and what lies between them. `refused` gets those that no
/// region may have.
pub(crate) fn straight(
    code: Straight<'_>,
    registers: &dyn Registers,
    (accesses, crosses): (Accesses, bool),
    mut refused: impl FnMut(usize, Why),
) -> Vec<Sequence> {
    let insts = code.insts;
    let all = 0..insts.len();
    if accesses < Accesses::All {
        return parts((code, all), (registers, crosses), |item| accesses.has(item) && is_near(item), refused);
    }
    let mut sequences = Vec::new();
    for mut sequence in parts((code, all), (registers, crosses), |item| accesses.has(item), &mut refused) {
        if sequence.is_dense() {
            if let Some(last) = sequence.segments.last_mut() {
                // A wave that takes a side exit goes on.
                let ends = last.guard.is_none() && ends(insts, sequence.insts.end);
                last.ends = accesses == Accesses::Last && ends;
            }
            sequences.push(sequence);
            continue;
        }
        // Memory is the handlers': there is little to win between two accesses, and they prefetch.
        sequences.extend(parts((code, sequence.insts), (registers, crosses), is_near, |_, _| {}));
    }
    sequences
}

/// Whether nothing but the wave's end is left.
fn ends(insts: &[Inst], at: usize) -> bool {
    let mut rest = insts.iter().skip(at).filter(|inst| !does_nothing(inst.op));
    rest.next().is_some_and(|inst| inst.op == Op::SEndpgm)
}

/// Whether it accesses no memory, and is no store.
fn is_near(item: &Item) -> bool {
    match item {
        Item::Access(access) => access.space == Space::Lds,
        Item::Store(_) => false,
        _ => true,
    }
}

fn parts(
    (code, range): (Straight<'_>, Range<usize>),
    (registers, crosses): (&dyn Registers, bool),
    is_kept: impl Fn(&Item) -> bool,
    mut refused: impl FnMut(usize, Why),
) -> Vec<Sequence> {
    let mut sequences = Vec::new();
    let mut open: Option<(usize, Builder)> = None;
    let mut end = |open: Option<(usize, Builder)>, end: usize| {
        let whole = open.map(|(begin, builder)| builder.finish(begin, end));
        sequences.extend(whole.into_iter().flat_map(Sequence::worthy));
    };
    for (index, inst) in code.insts.iter().enumerate().take(range.end).skip(range.start) {
        if let Some((branch, taken)) = code.way(index) {
            if let (Some(branch), Some((_, builder))) = (branch, &mut open) {
                builder.add_guard(index, Guard { branch, taken });
            } else if let (None, Some((_, builder))) = (branch, &mut open) {
                // It is always taken.
                let _ = builder.add(index, smallvec![Item::Nothing]);
            }
            continue;
        }
        let here = match items(inst, registers) {
            Ok(here) if here.iter().all(&is_kept) => here,
            other => {
                if let Err(why) = other {
                    refused(index, why);
                }
                end(open.take(), index);
                continue;
            }
        };
        let (_, builder) = open.get_or_insert_with(|| (index, Builder::new(registers, (Rounds::Once, crosses), index)));
        if let Err(why) = builder.add(index, here) {
            refused(index, why);
            end(open.take(), index);
        } else if builder.has_only_tail() {
            // A region begins with work of its slice or its strips.
            open = None;
        }
    }
    end(open, range.end);
    sequences
}
