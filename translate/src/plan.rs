// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which instructions make a region, and what each of them reads and writes.
//!
//! A region runs its scalars first, and then strip after strip. So a region ends before an
//! instruction that would see another order. Such are vector instructions that read a mask as a
//! number which a vector instruction has written.
//!
//! Stores, and scalar instructions that read such a mask or write EXEC, are the region's *tail*. It
//! is done behind all strips, in its order. Nothing of the rest may come after a store.
//!
//! A loop whose rounds have no tail is done strip by strip, all rounds of a chunk at a time. Others
//! are done round by round.

mod access;
mod live;
mod order;
mod pairs;
mod part;

use crate::mode::Arithmetic;
use crate::ops::{self, How, Needs};
use crate::scalar::{bits, Scalar};
use crate::{Registers, Why};
pub(crate) use access::{Access, Narrow, Space};
pub(crate) use live::{needed, Needed};
use order::{Seen, Where};
pub(crate) use pairs::is_two;
use pairs::{behind, double_constant, half_constant, halves, high_source};
pub(crate) use part::{Chosen, Part, Parts, Placed};
use std::ops::Range;
use vkfd_isa::{Extension, Format, Inst, Op, Operand};

/// A source of a vector instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Row(u16),
    Scalar(u8),
    Constant(u32),
}

/// A vector instruction.
pub(crate) struct Vector {
    pub(crate) operation: ops::Operation,
    /// The row that it writes, unless it compares.
    pub(crate) row: Option<u16>,
    pub(crate) sources: [Option<Source>; 3],
    /// The high words of sources of 64 bits.
    pub(crate) high: [Option<Source>; 3],
    /// Sources that are negated, and that have their absolute values before that.
    pub(crate) neg: u8,
    pub(crate) abs: u8,
    /// The bit that is a source's sign.
    pub(crate) sign: u32,
    pub(crate) parts: Parts,
    /// The scalar register of the mask that it writes, and of the one that it reads.
    pub(crate) out: Option<u8>,
    pub(crate) inward: Option<u8>,
}

/// A scalar load.
pub(crate) struct Load {
    pub(crate) base: u8,
    pub(crate) offset: Option<u8>,
    pub(crate) imm: i32,
    pub(crate) words: u8,
    pub(crate) dst: u8,
}

/// An instruction of a region.
pub(crate) enum Item {
    Vector(Vector),
    Access(Access),
    Store(Access),
    Scalar(Scalar),
    Load(Load),
    Branch(Branch),
    Nothing,
}

/// Back to the begin if something is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Branch {
    /// SCC is this.
    Scc(bool),
    /// A mask of lanes is zero, or is not.
    Mask(u8, bool),
}

impl Branch {
    pub(crate) fn of(op: Op) -> Option<Branch> {
        Some(match op {
            Op::SCbranchScc0 => Branch::Scc(false),
            Op::SCbranchScc1 => Branch::Scc(true),
            Op::SCbranchVccz => Branch::Mask(Operand::VCC, true),
            Op::SCbranchVccnz => Branch::Mask(Operand::VCC, false),
            Op::SCbranchExecz => Branch::Mask(Operand::EXEC, true),
            Op::SCbranchExecnz => Branch::Mask(Operand::EXEC, false),
            _ => return None,
        })
    }
}

/// How often the instructions of a region are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounds {
    Once,
    /// A strip does all rounds of a chunk.
    Strips,
    /// All strips, and the tail, do a round.
    Whole,
}

/// A part of a block that is translated as one.
pub(crate) struct Segment {
    /// Which instructions of the block.
    pub(crate) insts: Range<usize>,
    pub(crate) items: Vec<Item>,
    /// What is done behind all strips, with each instruction's number in the block.
    pub(crate) tail: Vec<(usize, Item)>,
    pub(crate) rounds: Rounds,
    /// Scalar registers that scalar instructions write, but for the tail's.
    pub(crate) written: u128,
    /// What it expects of MODE.
    pub(crate) arithmetic: Arithmetic,
    /// The wave ends behind it: nobody reads its rows.
    pub(crate) ends: bool,
}

/// A vector instruction or an access.
pub(crate) enum Lanes<'a> {
    Vector(&'a Vector),
    Access(&'a Access),
}

impl Segment {
    /// What strips do, in its order.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = Lanes<'_>> {
        self.items.iter().filter_map(|item| match item {
            Item::Vector(vector) => Some(Lanes::Vector(vector)),
            Item::Access(access) => Some(Lanes::Access(access)),
            _ => None,
        })
    }

    pub(crate) fn accesses(&self) -> impl Iterator<Item = &Access> {
        self.items.iter().filter_map(|item| match item {
            Item::Access(access) => Some(access),
            _ => None,
        })
    }

    pub(crate) fn stores(&self) -> impl Iterator<Item = &Access> {
        self.tail.iter().filter_map(|(_, item)| match item {
            Item::Store(access) => Some(access),
            _ => None,
        })
    }

    /// Whether it has enough to do between its accesses of memory.
    fn is_dense(&self) -> bool {
        let memory = self.accesses().chain(self.stores()).filter(|access| access.space != Space::Lds);
        self.vectors().count() >= DENSE * memory.count()
    }

    pub(crate) fn vectors(&self) -> impl Iterator<Item = &Vector> {
        self.items.iter().filter_map(|item| match item {
            Item::Vector(vector) => Some(vector),
            _ => None,
        })
    }
}

/// Fewer vector instructions are as quick one by one.
const LEAST: usize = 4;
/// A loop that has fewer vector instructions for an access of memory waits for memory, where the
/// handlers' prefetches help.
const DENSE: usize = 2;

/// The bits of a constant.
pub(crate) fn constant(operand: Operand) -> Option<u32> {
    Some(match operand {
        Operand::Int(value) => i32::from(value) as u32,
        Operand::Literal(value) => value,
        Operand::Float(code) => match code {
            240 => 0x3f00_0000,
            241 => 0xbf00_0000,
            242 => 0x3f80_0000,
            243 => 0xbf80_0000,
            244 => 0x4000_0000,
            245 => 0xc000_0000,
            246 => 0x4080_0000,
            247 => 0xc080_0000,
            248 => 0x3e22_f983,
            _ => return None,
        },
        _ => return None,
    })
}

/// Whether nothing comes of an operation.
fn does_nothing(op: Op) -> bool {
    matches!(
        op,
        Op::SNop
            | Op::SWaitcnt
            | Op::SWaitcntVscnt
            | Op::SWaitcntDepctr
            | Op::SWaitcntVmcnt
            | Op::SWaitcntLgkmcnt
            | Op::SWaitcntExpcnt
            | Op::SClause
            | Op::SDelayAlu
            | Op::SInstPrefetch
            | Op::SSetprio
    )
}

impl Load {
    fn of(inst: &Inst, registers: &dyn Registers) -> Result<Load, Why> {
        let words = match inst.op {
            Op::SLoadDword => 1,
            Op::SLoadDwordx2 => 2,
            Op::SLoadDwordx4 => 4,
            Op::SLoadDwordx8 => 8,
            Op::SLoadDwordx16 => 16,
            _ => return Err(Why::Operation),
        };
        let offset = match inst.memory.soffset {
            Operand::None | Operand::Scalar(Operand::NULL) => None,
            operand => Some(registers.scalar(operand, 1).ok_or(Why::Form)?),
        };
        Ok(Load {
            base: registers.scalar(inst.memory.base, 2).ok_or(Why::Form)?,
            offset,
            imm: inst.memory.offset,
            words,
            dst: registers.scalar(inst.dst, words).ok_or(Why::Form)?,
        })
    }

    /// Registers that it reads, and registers that it writes.
    fn registers(&self) -> (u128, u128) {
        (bits(self.base, 2) | self.offset.map_or(0, |n| bits(n, 1)), bits(self.dst, self.words))
    }
}

/// Two instructions that both read before either of them writes.
fn together(one: &Inst, two: &Inst, registers: &dyn Registers) -> Result<Vec<Item>, Why> {
    let (one, two) = (Vector::of(one, registers)?, Vector::of(two, registers)?);
    match (two.reads(one.row), one.reads(two.row)) {
        (false, _) => Ok(vec![Item::Vector(one), Item::Vector(two)]),
        (true, false) => Ok(vec![Item::Vector(two), Item::Vector(one)]),
        (true, true) => Err(Why::Order),
    }
}

impl Vector {
    fn of(inst: &Inst, registers: &dyn Registers) -> Result<Vector, Why> {
        let operation = ops::operation(inst.op).ok_or(Why::Operation)?;
        let mods = &inst.mods;
        let is_packed = ops::is_packed(inst.op);
        let has_halves = ops::has_half_sources(inst.op) || is_packed;
        let is_half = has_halves && operation.needs == Needs::Halves;
        let has_signs = !matches!(operation.needs, Needs::Any | Needs::Rounded);
        // What a source's half and a result's half are chosen by.
        let op_sel = match inst.op {
            Op::VFmaMixF32 => 7,
            _ if is_packed => 7,
            _ if ops::has_half_sources(inst.op) => 15,
            _ if ops::has_half_result(inst.op) => 8,
            _ => 0,
        };
        let plain = !mods.clamp
            && mods.omod == 0
            && mods.op_sel & !op_sel == 0
            && (has_signs || (mods.neg, mods.abs, mods.neg_hi) == (0, 0, 0))
            && matches!(
                inst.format,
                Format::Vop1 | Format::Vop2 | Format::Vopc | Format::Vop3 | Format::Vop3p | Format::Vopd
            );
        if !plain {
            return Err(Why::Form);
        }
        let source = |operand| {
            Some(match operand {
                Operand::Vgpr(_) | Operand::Agpr(_) => Source::Row(registers.row(operand)?),
                Operand::Scalar(_) => Source::Scalar(registers.scalar(operand, 1)?),
                _ => Source::Constant(constant(operand)?),
            })
        };
        let parts = Parts::of(inst, operation.how, registers.clears_half(inst.op))?;
        let (neg, abs) = match inst.op {
            Op::VFmaMixF32 => (mods.neg, mods.abs | mods.neg_hi),
            // Each half has signs of its own.
            _ if is_packed => (0, 0),
            _ => (mods.neg, mods.abs),
        };
        let count = operation.how.sources();
        let (mut sources, mut high) = ([None; 3], [None; 3]);
        for (index, slot) in sources.iter_mut().enumerate().take(count) {
            let operand = if operation.tied && index == 2 { inst.dst } else { inst.src[index] };
            if operation.how.is_of_doubles() {
                if let Some(words) = double_constant(operand) {
                    [*slot, high[index]] = words.map(Some);
                    continue;
                }
                if matches!(operand, Operand::Literal(_)) || inst.extension != Extension::None {
                    return Err(Why::Form);
                }
            }
            if let Operand::Float(code) = operand {
                if has_halves && !is_half {
                    return Err(Why::Form);
                }
                if is_half || parts.halves >> index & 1 != 0 {
                    *slot = Some(Source::Constant(half_constant(code).ok_or(Why::Form)?));
                    continue;
                }
            }
            *slot = Some(source(operand).ok_or(Why::Form)?);
            if operation.how.pairs() >> index & 1 != 0 {
                high[index] = Some(high_source(operand, registers).ok_or(Why::Form)?);
            }
        }
        let mask = |operand| registers.mask(operand).ok_or(Why::Form);
        let (mut out, mut inward) = (None, None);
        match operation.how {
            How::Compare(_) | How::Compare64(..) => out = Some(mask(inst.dst)?),
            How::Scale | How::Multiply64(_) => out = Some(mask(inst.sdst)?),
            How::Unscale => inward = Some(mask(Operand::Scalar(Operand::VCC))?),
            // A half of a dual instruction has VCC.
            How::Choose if inst.format == Format::Vopd => inward = Some(mask(Operand::Scalar(Operand::VCC))?),
            How::Choose => inward = Some(mask(inst.src[2])?),
            How::Carry(carry) => {
                out = Some(mask(inst.sdst)?);
                if carry.inward {
                    inward = Some(mask(inst.src[2])?);
                }
            }
            _ => {}
        }
        let row = match operation.how {
            How::Compare(_) | How::Compare64(..) => None,
            _ => Some(registers.row(inst.dst).ok_or(Why::Form)?),
        };
        if operation.how.is_pair() {
            behind(inst.dst, 1).and_then(|operand| registers.row(operand)).ok_or(Why::Form)?;
        }
        let sign = if is_half && !is_packed { 1 << 15 } else { 1 << 31 };
        Ok(Vector { operation, row, sources, high, neg, abs, sign, parts, out, inward })
    }

    /// Whether it reads a row.
    fn reads(&self, row: Option<u16>) -> bool {
        row.is_some_and(|row| self.all_sources().any(|source| source == Source::Row(row)))
    }

    /// Its sources, with the high words of those of 64 bits.
    pub(crate) fn all_sources(&self) -> impl Iterator<Item = Source> + '_ {
        let kept = self.parts.placed.filter(|placed| placed.keeps).and(self.row).map(Source::Row);
        self.sources.iter().chain(&self.high).flatten().copied().chain(kept)
    }

    /// The rows that it writes.
    pub(crate) fn rows(&self) -> impl Iterator<Item = u16> {
        let second = self.row.filter(|_| self.operation.how.is_pair()).map(|row| row + 1);
        self.row.into_iter().chain(second)
    }

    /// Scalar registers that it reads as numbers.
    fn numbers(&self) -> u128 {
        self.all_sources().fold(0, |all, source| match source {
            Source::Scalar(n) => all | bits(n, 1),
            _ => all,
        })
    }
}

/// What an instruction does: one thing, or two if it is a dual one.
pub(crate) fn items(inst: &Inst, registers: &dyn Registers) -> Result<Vec<Item>, Why> {
    if does_nothing(inst.op) {
        return Ok(vec![Item::Nothing]);
    }
    if let Some(second) = inst.second() {
        return together(inst, &second, registers);
    }
    if let Some([low, high]) = halves(inst) {
        return together(&low, &high, registers);
    }
    let item = match inst.format {
        Format::Sop1 | Format::Sop2 | Format::Sopk | Format::Sopc => {
            Scalar::of(inst, registers).map(Item::Scalar).ok_or(Why::Operation)
        }
        Format::Smem => Load::of(inst, registers).map(Item::Load),
        Format::Ds | Format::Global | Format::Flat => {
            let access = Access::of(inst, registers);
            access.map(|access| if access.is_store { Item::Store(access) } else { Item::Access(access) })
        }
        _ => Vector::of(inst, registers).map(Item::Vector),
    };
    Ok(vec![item?])
}

/// Which accesses regions may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Accesses {
    None,
    /// Loads of LDS, and in loops of memory. Nothing is done behind all strips.
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

/// Gives accesses numbers, by which the code's pages for them are spread.
fn number(segment: &mut Segment) {
    let all = segment.items.iter_mut().chain(segment.tail.iter_mut().map(|(_, item)| item));
    let accesses = all.filter_map(|item| match item {
        Item::Access(access) | Item::Store(access) => Some(access),
        _ => None,
    });
    accesses.enumerate().for_each(|(index, access)| access.slot = index);
}

/// A loop: all instructions of a block whose last one is a branch to its begin.
pub(crate) fn looped(insts: &[Inst], registers: &dyn Registers, accesses: Accesses) -> Result<Segment, (usize, Why)> {
    let last = insts.last().ok_or((0, Why::Branch))?;
    let words = insts.iter().map(|inst| i64::from(inst.bytes / 4)).sum::<i64>();
    if i64::from(last.imm) != -words || Branch::of(last.op).is_none() {
        return Err((insts.len() - 1, Why::Branch));
    }
    rounds(insts, registers, accesses, Rounds::Strips).or_else(|_| rounds(insts, registers, accesses, Rounds::Whole))
}

fn rounds(
    insts: &[Inst],
    registers: &dyn Registers,
    accesses: Accesses,
    rounds: Rounds,
) -> Result<Segment, (usize, Why)> {
    let mut seen = Seen::new(registers.mask_words(), rounds);
    let mut segment = Segment::new(0, rounds);
    for (index, inst) in insts.iter().enumerate() {
        let branch = Branch::of(inst.op).filter(|_| index + 1 == insts.len());
        let here = match branch {
            Some(branch) => vec![Item::Branch(branch)],
            None => self::items(inst, registers).map_err(|why| (index, why))?,
        };
        if !here.iter().all(|item| accesses.has(item)) {
            return Err((index, Why::Form));
        }
        let place = seen.admit(&here).ok_or((index, Why::Order))?;
        segment.add(index, here, place);
    }
    if !segment.is_dense() {
        return Err((0, Why::Short));
    }
    segment.complete(insts.len(), &seen).ok_or((0, Why::Short))
}

impl Segment {
    fn new(begin: usize, rounds: Rounds) -> Segment {
        let (items, tail) = (Vec::new(), Vec::new());
        Segment { insts: begin..begin, items, tail, rounds, written: 0, arithmetic: Arithmetic::default(), ends: false }
    }

    fn add(&mut self, index: usize, items: Vec<Item>, place: Where) {
        match place {
            Where::Body => self.items.extend(items),
            Where::Tail => self.tail.extend(items.into_iter().map(|item| (index, item))),
        }
    }

    fn complete(self, end: usize, seen: &Seen) -> Option<Segment> {
        let segment = self.finish(end, seen);
        (segment.vectors().count() >= LEAST).then_some(segment)
    }

    fn finish(mut self, end: usize, seen: &Seen) -> Segment {
        self.insts.end = end;
        self.written = seen.written;
        let mut arithmetic = Arithmetic::default();
        self.vectors().for_each(|vector| arithmetic.add(vector.operation.needs));
        self.arithmetic = arithmetic;
        number(&mut self);
        self
    }
}

/// Instructions one after the other, as few segments as their order allows: all are in one.
pub(crate) struct Joined {
    words: u8,
    segments: Vec<Segment>,
    open: (Segment, Seen),
}

impl Joined {
    pub(crate) fn new(registers: &dyn Registers) -> Joined {
        let words = registers.mask_words();
        Joined { words, segments: Vec::new(), open: Joined::begin(words) }
    }

    fn begin(words: u8) -> (Segment, Seen) {
        (Segment::new(0, Rounds::Once), Seen::new(words, Rounds::Once))
    }

    fn end(&mut self) {
        let (segment, seen) = std::mem::replace(&mut self.open, Joined::begin(self.words));
        let whole = segment.finish(0, &seen);
        if !(whole.items.is_empty() && whole.tail.is_empty()) {
            self.segments.push(whole);
        }
    }

    /// Adds what an instruction does.
    pub(crate) fn add(&mut self, items: Vec<Item>) -> Result<(), Why> {
        let mut place = self.open.1.admit(&items);
        if place.is_none() {
            self.end();
            place = self.open.1.admit(&items);
        }
        let place = place.ok_or(Why::Order)?;
        self.open.0.add(0, items, place);
        Ok(())
    }

    /// The segments so far; what comes next is behind a branch.
    pub(crate) fn take(&mut self) -> Vec<Segment> {
        self.end();
        std::mem::take(&mut self.segments)
    }
}

/// The straight parts of a block, and what lies between them.
pub(crate) fn straight(
    insts: &[Inst],
    registers: &dyn Registers,
    accesses: Accesses,
    mut refused: impl FnMut(usize, Why),
) -> Vec<Segment> {
    let mut segments = Vec::new();
    let all = 0..insts.len();
    if accesses < Accesses::All {
        let is_kept = |item: &Item| accesses.has(item) && is_near(item);
        return parts(insts, all, registers, (is_kept, false), refused);
    }
    for segment in parts(insts, all, registers, (|item: &Item| accesses.has(item), true), &mut refused) {
        if segment.is_dense() {
            segments.push(Segment { ends: accesses == Accesses::Last && ends(insts, segment.insts.end), ..segment });
            continue;
        }
        // Memory is the handlers': there is little to win between two accesses, and they prefetch.
        segments.extend(parts(insts, segment.insts, registers, (is_near, true), |_, _| {}));
    }
    segments
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
    insts: &[Inst],
    range: Range<usize>,
    registers: &dyn Registers,
    (is_kept, has_tail): (impl Fn(&Item) -> bool, bool),
    mut refused: impl FnMut(usize, Why),
) -> Vec<Segment> {
    let mut segments = Vec::new();
    let new = |begin| (Segment::new(begin, Rounds::Once), Seen::new(registers.mask_words(), Rounds::Once));
    let (mut segment, mut seen) = new(range.start);
    let end = range.end;
    for (index, inst) in insts.iter().enumerate().take(end).skip(range.start) {
        let here = match self::items(inst, registers) {
            Ok(here) if here.iter().all(&is_kept) => here,
            other => {
                if let Err(why) = other {
                    refused(index, why);
                }
                segments.extend(segment.complete(index, &seen));
                (segment, seen) = new(index + 1);
                continue;
            }
        };
        let mut place = seen.admit(&here).filter(|place| has_tail || *place == Where::Body);
        if place.is_none() {
            segments.extend(segment.complete(index, &seen));
            (segment, seen) = new(index);
            // Alone it may still be one that no region has.
            place = seen.admit(&here).filter(|place| has_tail || *place == Where::Body);
        }
        match place {
            // A region begins with work of its strips.
            Some(Where::Tail) if segment.items.is_empty() => (segment, seen) = new(index + 1),
            Some(place) => segment.add(index, here, place),
            None => {
                refused(index, Why::Order);
                (segment, seen) = new(index + 1);
            }
        }
    }
    segments.extend(segment.complete(end, &seen));
    segments
}
