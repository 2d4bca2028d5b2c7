// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which instructions make a region, and what each of them reads and writes.
//!
//! A region runs its scalars first, and then strip after strip. So a region ends before an
//! instruction that would see another order. Such are scalar instructions that read a mask which a
//! vector instruction has written, and vector instructions that read such a register as a number.
//! Instructions that write EXEC are in no region. A loop is a region only if none of its rounds has
//! such an instruction.

mod access;
mod pairs;

use crate::ops::{self, How, Needs};
use crate::scalar::{bits, Scalar};
use crate::{Registers, Why};
pub(crate) use access::{Access, Space};
pub(crate) use pairs::is_two;
use pairs::{behind, halves, high_source};
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
    Scalar(Scalar),
    Load(Load),
    /// Back to the begin if SCC is this.
    Branch(bool),
    Nothing,
}

/// A part of a block that is translated as one.
pub(crate) struct Segment {
    /// Which instructions of the block.
    pub(crate) insts: Range<usize>,
    pub(crate) items: Vec<Item>,
    /// Scalar registers that scalar instructions write.
    pub(crate) written: u128,
    pub(crate) needs_mode: bool,
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
const DENSE: usize = 4;

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
        let (mods, vector) = (&inst.mods, operation.needs == Needs::Singles);
        let plain = inst.extension == Extension::None
            && !mods.clamp
            && (mods.omod, mods.op_sel) == (0, 0)
            && (vector || (mods.neg, mods.abs) == (0, 0))
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
        let count = operation.how.sources();
        let (mut sources, mut high) = ([None; 3], [None; 3]);
        for (index, slot) in sources.iter_mut().enumerate().take(count) {
            let operand = if operation.tied && index == 2 { inst.dst } else { inst.src[index] };
            *slot = Some(source(operand).ok_or(Why::Form)?);
            if operation.how.pairs() >> index & 1 != 0 {
                high[index] = Some(high_source(operand, registers).ok_or(Why::Form)?);
            }
        }
        let mask = |operand| registers.mask(operand).ok_or(Why::Form);
        let (mut out, mut inward) = (None, None);
        match operation.how {
            How::Compare(_) | How::Compare64(..) => out = Some(mask(inst.dst)?),
            How::Scale | How::Multiply64 => out = Some(mask(inst.sdst)?),
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
        if matches!(operation.how, How::Multiply64) {
            behind(inst.dst, 1).and_then(|operand| registers.row(operand)).ok_or(Why::Form)?;
        }
        Ok(Vector { operation, row, sources, high, neg: mods.neg, abs: mods.abs, out, inward })
    }

    /// Whether it reads a row.
    fn reads(&self, row: Option<u16>) -> bool {
        row.is_some_and(|row| self.all_sources().any(|source| source == Source::Row(row)))
    }

    /// Its sources, with the high words of those of 64 bits.
    pub(crate) fn all_sources(&self) -> impl Iterator<Item = Source> + '_ {
        self.sources.iter().chain(&self.high).flatten().copied()
    }

    /// The rows that it writes.
    pub(crate) fn rows(&self) -> impl Iterator<Item = u16> {
        let second = self.row.filter(|_| matches!(self.operation.how, How::Multiply64)).map(|row| row + 1);
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
fn items(inst: &Inst, registers: &dyn Registers) -> Result<Vec<Item>, Why> {
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
        Format::Ds | Format::Global | Format::Flat => Access::of(inst, registers).map(Item::Access),
        _ => Vector::of(inst, registers).map(Item::Vector),
    };
    Ok(vec![item?])
}

/// The order that instructions have seen so far.
#[derive(Default)]
struct Seen {
    /// Scalar registers that scalar instructions have read and written.
    read: u128,
    written: u128,
    /// Those that vector instructions have read as numbers.
    numbers: u128,
    /// Masks that they have read, and that they have written, and the registers of the latter.
    masks: Vec<u8>,
    made: Vec<u8>,
    made_bits: u128,
    /// There was a scalar load, or an access.
    loaded: bool,
    accessed: bool,
}

impl Seen {
    /// Whether all that an instruction does may be in the region.
    fn admit(&mut self, items: &[Item], words: u8, looped: bool) -> bool {
        items.iter().all(|item| self.admits(item, words, looped))
    }

    /// Whether an instruction may be one more of the region. In a loop every instruction comes
    /// before every other.
    fn admits(&mut self, item: &Item, words: u8, looped: bool) -> bool {
        let (scalars, vector) = match item {
            Item::Scalar(scalar) => (scalar.registers(), None),
            Item::Load(load) => {
                // All scalar loads come before all accesses.
                if self.accessed {
                    return false;
                }
                self.loaded = true;
                (load.registers(), None)
            }
            Item::Access(access) => {
                if looped && self.loaded || access.numbers() & self.made_bits != 0 {
                    return false;
                }
                self.accessed = true;
                self.numbers |= access.numbers();
                return true;
            }
            Item::Vector(vector) => ((0, 0), Some(vector)),
            Item::Branch(_) | Item::Nothing => return true,
        };
        let exec = bits(Operand::EXEC, 2);
        let (read, written) = scalars;
        if written & exec != 0 || (read | written) & self.made_bits != 0 {
            return false;
        }
        self.read |= read;
        self.written |= written;
        let Some(vector) = vector else { return true };
        let numbers = vector.numbers();
        if numbers & self.made_bits != 0 {
            return false;
        }
        let apart = |all: &[u8], n: u8| all.iter().all(|&m| m == n || bits(m, words) & bits(n, words) == 0);
        if let Some(n) = vector.inward {
            if !apart(&self.made, n) {
                return false;
            }
            self.masks.push(n);
        }
        if let Some(n) = vector.out.filter(|n| *n != Operand::NULL) {
            let made = bits(n, words);
            let clash = made & (exec | self.numbers | numbers) != 0 || looped && made & (self.read | self.written) != 0;
            if clash || !apart(&self.made, n) || !apart(&self.masks, n) {
                return false;
            }
            self.made.push(n);
            self.made_bits |= made;
        }
        self.numbers |= numbers;
        true
    }
}

/// Gives accesses their slots, from one that differs by the code before them.
fn place_slots(items: &mut [Item]) {
    let accesses = items.iter_mut().filter_map(|item| match item {
        Item::Access(access) => Some(access),
        _ => None,
    });
    accesses.enumerate().for_each(|(index, access)| access.slot = index);
}

/// A loop: all instructions of a block whose last one is a branch to its begin.
pub(crate) fn looped(insts: &[Inst], registers: &dyn Registers, accesses: bool) -> Result<Segment, (usize, Why)> {
    let last = insts.len().saturating_sub(1);
    let words = insts.iter().map(|inst| i64::from(inst.bytes / 4)).sum::<i64>();
    let mut items = Vec::new();
    let mut seen = Seen::default();
    for (index, inst) in insts.iter().enumerate() {
        let is_back = index == last && i64::from(inst.imm) == -words;
        let here = match inst.op {
            Op::SCbranchScc0 if is_back => vec![Item::Branch(false)],
            Op::SCbranchScc1 if is_back => vec![Item::Branch(true)],
            _ if index == last => return Err((index, Why::Branch)),
            _ => self::items(inst, registers).map_err(|why| (index, why))?,
        };
        if !accesses && here.iter().any(|item| matches!(item, Item::Access(_))) {
            return Err((index, Why::Form));
        }
        if !seen.admit(&here, registers.mask_words(), true) {
            return Err((index, Why::Order));
        }
        items.extend(here);
    }
    place_slots(&mut items);
    let segment = Segment { insts: 0..insts.len(), items, written: seen.written, needs_mode: false };
    let memory = segment.accesses().filter(|access| access.space != Space::Lds).count();
    if segment.vectors().count() < DENSE * memory {
        return Err((0, Why::Short));
    }
    complete(segment).ok_or((0, Why::Short))
}

fn complete(mut segment: Segment) -> Option<Segment> {
    let needs_mode = segment.vectors().any(|vector| vector.operation.needs != Needs::Any);
    segment.needs_mode = needs_mode;
    (segment.vectors().count() >= LEAST).then_some(segment)
}

/// The straight parts of a block, and what lies between them.
pub(crate) fn straight(
    insts: &[Inst],
    registers: &dyn Registers,
    accesses: bool,
    mut refused: impl FnMut(usize, Why),
) -> Vec<Segment> {
    let mut segments = Vec::new();
    let (mut items, mut seen, mut begin) = (Vec::new(), Seen::default(), 0);
    let mut close = |items: &mut Vec<Item>, seen: &mut Seen, begin: usize, end: usize| {
        let seen = std::mem::take(seen);
        let segment =
            Segment { insts: begin..end, items: std::mem::take(items), written: seen.written, needs_mode: false };
        segments.extend(complete(segment));
    };
    for (index, inst) in insts.iter().enumerate() {
        let is_kept = |item: &Item| match item {
            // Memory is the handlers': there is little to win between two of them.
            Item::Access(access) => accesses && access.space == Space::Lds,
            _ => true,
        };
        let here = match self::items(inst, registers) {
            Ok(here) if here.iter().all(is_kept) => here,
            Ok(_) => {
                close(&mut items, &mut seen, begin, index);
                begin = index + 1;
                continue;
            }
            Err(why) => {
                refused(index, why);
                close(&mut items, &mut seen, begin, index);
                begin = index + 1;
                continue;
            }
        };
        if !seen.admit(&here, registers.mask_words(), false) {
            close(&mut items, &mut seen, begin, index);
            begin = index;
            // Alone it may still be one that no region has.
            if !seen.admit(&here, registers.mask_words(), false) {
                refused(index, Why::Order);
                seen = Seen::default();
                begin = index + 1;
                continue;
            }
        }
        items.extend(here);
    }
    close(&mut items, &mut seen, begin, insts.len());
    segments
}
