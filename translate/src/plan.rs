// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which instructions make a region, and what each of them reads and writes.
//!
//! A region has segments, which it does one after the other ([`sequence`]). A segment's scalars
//! come first, and then strip after strip. So a segment ends before an instruction that would see
//! another order. Such are vector instructions that read a mask as a number which a vector
//! instruction has written.
//!
//! Stores, and scalar instructions that read such a mask or write EXEC, are the segment's *tail*.
//! It is done behind all strips, in its order. Nothing of the rest may come after a store.
//!
//! A loop of one segment without a tail is done strip by strip, all rounds of a chunk at a time.
//! Others are done round by round.

mod access;
mod chain;
mod exchange;
mod live;
mod order;
mod pairs;
mod part;
mod sequence;
mod shared;

use crate::mode::Arithmetic;
use crate::ops::{self, How, Needs};
use crate::scalar::{bits, Scalar};
use crate::{Registers, Why};
pub(crate) use access::{Access, Narrow, Space};
pub(crate) use chain::Rows;
pub(crate) use exchange::Exchange;
pub(crate) use live::{masks_needed, needed, Needed};
use order::Seen;
pub(crate) use pairs::is_two;
use pairs::{behind, double_constant, half_constant, halves, high_source};
pub(crate) use part::{Chosen, Part, Parts, Placed};
pub use sequence::Accesses;
pub(crate) use sequence::{looped, straight, Builder, Sequence};
pub(crate) use shared::Share;
use smallvec::{smallvec, SmallVec};
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
    op: Op,
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
    pub(crate) share: Share,
}

/// An instruction of a region.
pub(crate) enum Item {
    Vector(Vector),
    Access(Access),
    Store(Access),
    Exchange(Exchange),
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

/// A branch in the middle of a superblock, and whether it is taken on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) branch: Branch,
    pub(crate) taken: bool,
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

/// Instructions whose scalars may all come before their strips.
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
    /// The branch that is its last instruction.
    pub(crate) guard: Option<Guard>,
    /// Strips do vector instructions that come behind a store of the tail: no store may miss.
    pub(crate) hoists: bool,
}

/// A vector instruction or an access.
pub(crate) enum Lanes<'a> {
    Vector(&'a Vector),
    Access(&'a Access),
}

impl Lanes<'_> {
    /// A number of its kind, by which [`Learned`](crate::emit::Learned) keeps what it takes.
    pub(crate) fn kind(&self) -> usize {
        match self {
            Lanes::Vector(vector) => vector.kind(),
            Lanes::Access(access) => {
                usize::from(access.words) * 3 + usize::from(access.parts) + 16 * access.space as usize
            }
        }
    }
}

impl Segment {
    fn new(begin: usize, rounds: Rounds) -> Segment {
        let (items, tail) = (Vec::new(), Vec::new());
        let arithmetic = Arithmetic::default();
        Segment {
            insts: begin..begin,
            items,
            tail,
            rounds,
            written: 0,
            arithmetic,
            ends: false,
            guard: None,
            hoists: false,
        }
    }

    fn finish(mut self, end: usize, seen: &Seen) -> Segment {
        self.insts.end = end;
        (self.written, self.hoists) = (seen.written, seen.hoists);
        let mut arithmetic = Arithmetic::default();
        self.vectors().for_each(|vector| arithmetic.add(vector.operation.needs));
        self.arithmetic = arithmetic;
        self
    }

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

    fn all_accesses(&mut self) -> impl Iterator<Item = &mut Access> {
        self.items.iter_mut().chain(self.tail.iter_mut().map(|(_, item)| item)).filter_map(|item| match item {
            Item::Access(access) | Item::Store(access) => Some(access),
            _ => None,
        })
    }

    pub(crate) fn stores(&self) -> impl Iterator<Item = &Access> {
        self.tail.iter().filter_map(|(_, item)| match item {
            Item::Store(access) => Some(access),
            _ => None,
        })
    }

    pub(crate) fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.tail.iter().filter_map(|(_, item)| match item {
            Item::Exchange(exchange) => Some(exchange),
            _ => None,
        })
    }

    /// Scalar registers of the masks that its vector instructions write, each of so many words.
    pub(crate) fn masks(&self, words: u8) -> u128 {
        self.vectors().filter_map(|vector| vector.out).fold(0, |all, n| all | bits(n, words))
    }

    pub(crate) fn vectors(&self) -> impl Iterator<Item = &Vector> {
        self.items.iter().filter_map(|item| match item {
            Item::Vector(vector) => Some(vector),
            _ => None,
        })
    }
}

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
            share: Share::Alone,
        })
    }

    /// Registers that it reads, and registers that it writes.
    fn registers(&self) -> (u128, u128) {
        (bits(self.base, 2) | self.offset.map_or(0, |n| bits(n, 1)), bits(self.dst, self.words))
    }
}

/// Two instructions that both read before either of them writes.
fn together(one: &Inst, two: &Inst, registers: &dyn Registers) -> Result<Items, Why> {
    let (one, two) = (Vector::of(one, registers)?, Vector::of(two, registers)?);
    match (two.reads(one.row), one.reads(two.row)) {
        (false, _) => Ok([one, two].map(Item::Vector).into_iter().collect()),
        (true, false) => Ok([two, one].map(Item::Vector).into_iter().collect()),
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
        Ok(Vector { op: inst.op, operation, row, sources, high, neg, abs, sign, parts, out, inward })
    }

    /// Which instructions are written with as many temporaries, mostly.
    fn kind(&self) -> usize {
        let forms = self.sources.map(|source| match source {
            None => 0,
            Some(Source::Row(_)) => 1,
            Some(Source::Scalar(_)) => 2,
            Some(Source::Constant(_)) => 3,
        });
        let form = forms.into_iter().fold(0, |form, source| 4 * form + source);
        let is_changed = usize::from(self.neg != 0) + 2 * usize::from(self.abs != 0);
        self.op as usize * 31 + form + 64 * is_changed
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

/// What an instruction does.
pub(crate) type Items = SmallVec<[Item; 1]>;

/// One thing, or two if it is a dual one.
pub(crate) fn items(inst: &Inst, registers: &dyn Registers) -> Result<Items, Why> {
    if does_nothing(inst.op) {
        return Ok(smallvec![Item::Nothing]);
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
        Format::Ds if Exchange::is_one(inst.op) => Exchange::of(inst, registers).map(Item::Exchange),
        Format::Ds | Format::Global | Format::Flat => {
            let access = Access::of(inst, registers);
            access.map(|access| if access.is_store { Item::Store(access) } else { Item::Access(access) })
        }
        _ => Vector::of(inst, registers).map(Item::Vector),
    };
    Ok(smallvec![item?])
}
