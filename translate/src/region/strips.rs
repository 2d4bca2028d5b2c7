// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The strips of a segment: which rows have host registers, and its vector instructions and loads
//! in the words of [`Emit`]. A strip does all rounds before the next one begins.

use super::field;
use super::slice::Places;
use crate::assembler::{at, Label, When};
use crate::context::{end, Context};
use crate::emit::{Emit, MaskPlace, Needs, Plan, Src};
use crate::ops::{self, Double, How};
use crate::plan::{needed, Access, Chosen, Lanes, Needed, Part, Placed, Rounds, Segment, Source, Space, Vector};
use crate::stubs::Host;
use crate::width;
use iced_x86::{Code, Instruction, Register};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap};
use std::mem::offset_of;
use vkfd_sabotage::{Switch, Switches};

/// Code and its constants.
pub(super) type Made = (Vec<u8>, Box<[u32]>);

/// The rows that an instruction reads, and those that it writes.
pub(super) type Rows = (SmallVec<[u16; 8]>, SmallVec<[u16; 8]>);

/// The rows of a segment's strips.
pub(super) fn plan(segment: &Segment, rows: &[Rows]) -> Plan {
    let mut plan = Plan::new(segment.rounds == Rounds::Strips);
    for (reads, writes) in rows {
        plan.add(reads, writes);
    }
    let stored = stored(segment);
    plan.finish(|row| !segment.ends || stored.contains(&row));
    plan
}

/// Rows that the stores of a segment's tail read.
fn stored(segment: &Segment) -> BTreeSet<u16> {
    let words = |access: &Access| {
        let (data, words) = (access.data, u16::from(access.words));
        (0..usize::from(access.parts)).flat_map(move |part| data[part]..data[part] + words)
    };
    segment.stores().flat_map(|access| access.addresses().chain(words(access))).collect()
}

/// Those of each instruction of the strips.
pub(super) fn rows(segment: &Segment) -> Vec<Rows> {
    let rows_of = |item: Lanes| match item {
        Lanes::Vector(vector) => {
            let reads = vector.all_sources().filter_map(|source| match source {
                Source::Row(row) => Some(row),
                _ => None,
            });
            (reads.collect(), vector.rows().collect())
        }
        Lanes::Access(access) => (access.addresses().collect(), access.rows().collect()),
    };
    segment.lanes().map(rows_of).collect()
}

/// A word of a source, by its place in the trace if it has one.
fn word(e: &Emit, source: Option<Source>, place: Option<i64>) -> Src {
    match source {
        Some(Source::Row(row)) => e.row_source(row),
        Some(Source::Scalar(n)) => Src::All(match place {
            Some(offset) => at(Register::R8, offset),
            None => at(Register::R9, 4 * i64::from(n)),
        }),
        Some(Source::Constant(word)) => Src::Const(word),
        None => Src::Const(0),
    }
}

fn source(e: &mut Emit, vector: &Vector, place: Places, index: usize) -> Src {
    let source = word(e, vector.sources[index], place.sources[index]);
    let source = if vector.sources[index].is_some() { part(e, vector, index, source) } else { source };
    changed(e, vector, index, source)
}

/// The part of a source that is taken, which is a single then if it is a half.
fn part(e: &mut Emit, vector: &Vector, index: usize, source: Src) -> Src {
    let part = vector.parts.sources[index];
    let is_half = vector.parts.halves >> index & 1 != 0;
    if let Some(chosen) = vector.parts.chosen {
        let Chosen { from, signs } = chosen[index];
        return e.choose_halves(source, from, signs);
    }
    if part == Part::ALL && !is_half {
        return source;
    }
    let value = e.temp();
    let (above, up) = (32 - u32::from(part.from + part.width), 32 - u32::from(part.width));
    match (part.signed, above) {
        (false, 0) => e.shr(value, source, Src::Const(up)),
        (false, _) if part.from == 0 => e.either(width::AND, value, source, Src::Const(u32::MAX >> up)),
        (signed, _) => {
            e.shl(value, source, Src::Const(above));
            if signed {
                e.sar(value, Src::Reg(value), Src::Const(up));
            } else {
                e.shr(value, Src::Reg(value), Src::Const(up));
            }
        }
    }
    if is_half {
        e.of_halves(value, Src::Reg(value));
    }
    Src::Reg(value)
}

/// Puts a result into its part of a register.
fn put(e: &mut Emit, placed: Placed, to: Register, value: Register, old: Src) {
    let part = placed.part;
    let (above, up) = (32 - u32::from(part.from + part.width), 32 - u32::from(part.width));
    e.shl(value, Src::Reg(value), Src::Const(up));
    if !placed.keeps && part.signed {
        e.sar(value, Src::Reg(value), Src::Const(above));
        // Zeros below.
        e.op(width::AND, to, Src::Reg(value), Src::Const(u32::MAX << part.from));
        return;
    }
    e.shr(value, Src::Reg(value), Src::Const(above));
    if placed.keeps {
        let rest = e.temp();
        e.either(width::AND, rest, old, Src::Const(!(u32::MAX >> up << part.from)));
        e.op(width::OR, to, Src::Reg(value), Src::Reg(rest));
    } else {
        e.mov(to, Src::Reg(value));
    }
}

/// A source without its sign, or with the other one.
fn changed(e: &mut Emit, vector: &Vector, index: usize, source: Src) -> Src {
    let (abs, neg) = (vector.abs >> index & 1 != 0, vector.neg >> index & 1 != 0);
    if !abs && !neg {
        return source;
    }
    let changed = e.temp();
    if abs {
        e.either(width::AND, changed, source, Src::Const(!vector.sign));
    } else {
        e.mov(changed, source);
    }
    if neg {
        e.either(width::XOR, changed, Src::Reg(changed), Src::Const(vector.sign));
    }
    Src::Reg(changed)
}

/// The high word of a source in double precision, which has the sign.
fn high(e: &mut Emit, vector: &Vector, place: Places, index: usize) -> Src {
    let source = word(e, vector.high[index], place.high[index]);
    changed(e, vector, index, source)
}

/// Puts the low and the high words of a result into its rows.
fn settle_pair(e: &mut Emit, vector: &Vector, words: [Register; 2]) {
    for (row, from) in vector.rows().zip(words) {
        let to = e.row_destination(row);
        e.mov(to, Src::Reg(from));
        e.settle(row, to);
    }
}

/// An operation in double precision.
fn double(e: &mut Emit, vector: &Vector, place: Places, (double, is_swapped): (Double, bool)) {
    let mut sources = [0, 1, 2].map(|index| {
        let low = word(e, vector.sources[index], place.sources[index]);
        [low, high(e, vector, place, index)]
    });
    if is_swapped {
        sources.swap(0, 1);
    }
    let to = [e.temp(), e.temp()];
    e.double(to, sources, double);
    settle_pair(e, vector, to);
}

/// A single of a double.
fn shortened(e: &mut Emit, vector: &Vector, place: Places) {
    let Some(row) = vector.row else { return };
    let low = word(e, vector.sources[0], place.sources[0]);
    let source = [low, high(e, vector, place, 0)];
    let to = e.row_destination(row);
    e.shorten(to, source);
    e.settle(row, to);
}

/// The low word of a product and a sum.
fn low(e: &mut Emit, row: u16, [a, b, c]: [Src; 3]) {
    let product = e.temp();
    e.either(width::MUL, product, a, b);
    let to = e.row_destination(row);
    e.op(width::ADD, to, Src::Reg(product), c);
    e.settle(row, to);
}

fn vector(e: &mut Emit, vector: &Vector, place: Places, is_swapped: bool, needed: Needed) {
    e.begin();
    if needed.nothing() {
        return;
    }
    if let How::Double(how) = vector.operation.how {
        return double(e, vector, place, (how, is_swapped));
    }
    if matches!(vector.operation.how, How::Shorten) {
        return shortened(e, vector, place);
    }
    let [mut a, mut b, c] = [0, 1, 2].map(|index| source(e, vector, place, index));
    if is_swapped && vector.sources[1].is_some() {
        std::mem::swap(&mut a, &mut b);
    }
    let inward = |e: &mut Emit| {
        vector.inward.map(|n| {
            let place = place.mask.map_or(MaskPlace::Scalar(n), MaskPlace::Trace);
            e.mask(place)
        })
    };
    match vector.operation.how {
        How::Compare64(order, signed) => {
            let [high_a, high_b] = [0, 1].map(|index| word(e, vector.high[index], place.high[index]));
            e.set_mask(vector.out.unwrap_or(0), |e, mask| {
                ops::compare64(e, mask, [[a, high_a], [b, high_b]], order, signed);
            });
        }
        How::Multiply64(_) if !needed.high && !needed.out => {
            if let Some(row) = vector.row {
                low(e, row, [a, b, c]);
            }
        }
        How::Multiply64(signed) => {
            let high = word(e, vector.high[2], place.high[2]);
            let to = [e.temp(), e.temp()];
            e.set_mask(vector.out.unwrap_or(0), |e, mask| ops::multiply64(e, to, mask, ([a, b], [c, high]), signed));
            settle_pair(e, vector, to);
        }
        How::Lengthen(how) => {
            let to = [e.temp(), e.temp()];
            e.lengthen(to, a, how);
            settle_pair(e, vector, to);
        }
        How::Scale => {
            let value = e.temp();
            e.set_mask(vector.out.unwrap_or(0), |e, mask| ops::scale(e, value, mask, [a, b, c]));
            let Some(row) = vector.row else { return };
            let to = e.row_destination(row);
            e.mov(to, Src::Reg(value));
            e.settle(row, to);
        }
        How::Unscale | How::Fixup => {
            let value = e.temp();
            match inward(e) {
                Some(mask) => ops::unscale(e, value, mask, [a, b, c]),
                None => ops::fixup(e, value, [a, b, c]),
            }
            let Some(row) = vector.row else { return };
            let to = e.row_destination(row);
            e.mov(to, Src::Reg(value));
            e.settle(row, to);
        }
        How::Compare(write) => e.set_mask(vector.out.unwrap_or(0), |e, mask| write(e, mask, a, b)),
        How::Carry(carry) => {
            let value = e.temp();
            e.set_mask(vector.out.unwrap_or(0), |e, mask| {
                let inward = inward(e);
                carry.write(e, value, mask, [a, b], inward);
            });
            let Some(row) = vector.row else { return };
            let to = e.row_destination(row);
            e.mov(to, Src::Reg(value));
            e.settle(row, to);
        }
        how => {
            let Some(row) = vector.row else { return };
            let goes_to = e.row_destination(row);
            let to = if vector.parts.placed.is_some() { e.temp() } else { goes_to };
            match how {
                How::Unary(write) => write(e, to, a),
                How::Binary(write) => write(e, to, a, b),
                How::Ternary(write) => write(e, to, a, b, c),
                _ => {
                    if let Some(mask) = inward(e) {
                        let into = if b == Src::Reg(to) { e.temp() } else { to };
                        e.mov(into, a);
                        e.blend(into, mask, b);
                        e.mov(to, Src::Reg(into));
                    }
                }
            }
            if let Some(placed) = vector.parts.placed {
                let old = e.row_source(row);
                put(e, placed, goes_to, to, old);
            }
            e.settle(row, goes_to);
        }
    }
}

/// What all accesses by the same addresses reach beyond them, by row and how often it was written
/// before.
#[derive(Default)]
struct Reach {
    /// There are accesses of LDS: of others nothing is kept.
    is_local: bool,
    ends: HashMap<(u16, u32), u32>,
    written: HashMap<u16, u32>,
}

impl Reach {
    fn key(&self, access: &Access) -> (u16, u32) {
        (access.address, self.written.get(&access.address).copied().unwrap_or(0))
    }

    fn wrote(&mut self, rows: impl IntoIterator<Item = u16>) {
        if self.is_local {
            rows.into_iter().for_each(|row| *self.written.entry(row).or_default() += 1);
        }
    }

    /// Of a segment, from whose begin they are read again.
    fn of(segment: &Segment) -> Reach {
        let is_local = segment.accesses().any(|access| access.space == Space::Lds);
        let mut reach = Reach { is_local, ..Reach::default() };
        for item in segment.lanes().filter(|_| is_local) {
            match item {
                Lanes::Vector(vector) => reach.wrote(vector.rows()),
                Lanes::Access(access) if access.space == Space::Lds => {
                    let key = reach.key(access);
                    let end = reach.ends.entry(key).or_default();
                    *end = access.end().max(*end);
                    reach.wrote(access.rows());
                }
                Lanes::Access(access) => reach.wrote(access.rows()),
            }
        }
        reach.written.clear();
        reach
    }
}

/// Where the base of an access is.
fn base(access: &Access, place: Places) -> iced_x86::MemoryOperand {
    match (place.base, access.base) {
        (Some(offset), _) => at(Register::R8, offset),
        (None, n) => at(Register::R9, 4 * i64::from(n.unwrap_or(0))),
    }
}

fn access(e: &mut Emit, access: &Access, place: Places, end: u32, out: Label, is_guessed: bool) {
    e.begin();
    let base = base(access, place);
    let look = e.look(access, base, end, out, is_guessed);
    // A part may write the row that the next one has its addresses in.
    let hazard = access.rows().any(|row| access.addresses().contains(&row));
    let to: Vec<Register> = access.rows().map(|row| if hazard { e.temp() } else { e.row_destination(row) }).collect();
    for (part, to) in to.chunks(access.words.into()).enumerate() {
        e.load_words(access, look, part, to, base, out);
    }
    for (row, from) in access.rows().zip(&to) {
        e.settle(row, *from);
        e.forget_row(row);
    }
}

/// Registers that strips with accesses save.
const KEPT: [Register; 4] = [Register::RBX, Register::RBP, Register::R12, Register::R13];

/// Goes on with the next strip.
fn advance(e: &mut Emit, lanes: u8, head: Label) {
    let width = e.width;
    let mask_bytes = i32::from(width.lanes() / 8);
    e.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RDI, 4 * i32::from(width.lanes())));
    e.asm.add(Instruction::with2(Code::Add_rm64_imm8, Register::RSI, mask_bytes));
    e.asm.add(Instruction::with2(Code::Add_rm32_imm8, Register::R11D, mask_bytes));
    e.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, Register::R11D, i32::from(lanes / 8)));
    e.asm.jump_if(When::Below, head);
}

/// Leaves unless all active lanes' words in LDS are aligned, before a strip is done.
fn aligned(e: &mut Emit, access: &Access, lanes: u8, out: Label) {
    let (head, next) = (e.asm.label(), e.asm.label());
    e.asm.bind(head);
    e.load_exec(next, false);
    e.begin();
    e.need_aligned(access.address, access.offsets[0], out);
    e.asm.bind(next);
    advance(e, lanes, head);
    // Back to the first strip.
    e.asm.add(Instruction::with2(Code::Sub_rm64_imm32, Register::RDI, 4 * i32::from(lanes)));
    e.asm.add(Instruction::with2(Code::Sub_rm64_imm8, Register::RSI, i32::from(lanes / 8)));
    e.asm.add(Instruction::with2(Code::Xor_r32_rm32, Register::R11D, Register::R11D));
}

/// The code of a store, strip by strip, and its constants.
pub(super) fn store(access: &Access, (host, lanes): (Host, u8), sabotage: &Switches) -> Option<Made> {
    let mut e = Emit::new(host, Plan::new(false), Needs::default());
    let (head, next, leave, out) = (e.asm.label(), e.asm.label(), e.asm.label(), e.asm.label());
    KEPT.into_iter().for_each(|register| e.asm.push(register));
    e.asm.move64(Register::R9, Register::RSI);
    e.asm.load64(Register::RCX, at(Register::RDX, field(offset_of!(Context, pool))));
    e.asm.add(Instruction::with2(Code::Xor_r32_rm32, Register::R11D, Register::R11D));
    if access.adds {
        if !sabotage.has(Switch::GuessedShape) {
            aligned(&mut e, access, lanes, out);
        }
    } else {
        e.begin_wave(lanes);
    }
    e.asm.bind(head);
    e.load_exec(next, sabotage.has(Switch::OpenLanes));
    e.begin_accesses(out);
    e.begin();
    let base = base(access, Places::default());
    if access.adds {
        // A strip that is done is not done again: nothing may lead out.
        e.add_in_lds(access);
    } else {
        let look = e.look(access, base, access.end(), out, sabotage.has(Switch::GuessedShape));
        e.begin();
        e.store_words(access, look, base, out);
    }
    e.asm.bind(next);
    advance(&mut e, lanes, head);
    e.asm.bind(leave);
    e.asm.add(Ok(Instruction::with(Code::VEX_Vzeroupper)));
    KEPT.into_iter().rev().for_each(|register| e.asm.pop(register));
    e.asm.ret();
    e.asm.bind(out);
    let how = at(Register::RDX, field(offset_of!(Context, end)));
    e.asm.add(Instruction::with2(Code::Mov_rm32_imm32, how, end::MISSED));
    e.asm.jump(leave);
    e.finish_cold();
    let Emit { asm, pool, .. } = e;
    Some((asm.finish()?, pool.into_words()))
}

/// Whether a round becomes cheaper: without an instruction, or without the most of a product.
fn worth(segment: &Segment, light: &[Needed]) -> bool {
    segment.lanes().zip(light).any(|(lanes, needed)| match lanes {
        Lanes::Vector(vector) => {
            let is_product = matches!(vector.operation.how, How::Multiply64(_));
            needed.nothing() || is_product && !needed.high && !needed.out
        }
        Lanes::Access(_) => false,
    })
}

/// A round. In a light one some results are left out.
fn body(
    e: &mut Emit,
    (segment, is_light): (&Segment, bool),
    (places, rows, needed): (&[Places], &[Rows], &[Needed]),
    reach: &mut Reach,
    (out, sabotage): (Label, &Switches),
) {
    for (number, (((item, place), (reads, writes)), needed)) in
        segment.lanes().zip(places).zip(rows).zip(needed).enumerate()
    {
        if !needed.nothing() {
            e.prepare(number, is_light, reads, writes);
        }
        match item {
            Lanes::Vector(item) => {
                vector(e, item, *place, sabotage.has(Switch::SwappedSources), *needed);
                for row in item.rows() {
                    e.forget_row(row);
                    reach.wrote([row]);
                }
            }
            Lanes::Access(item) => {
                let end = reach.ends.get(&reach.key(item)).copied().unwrap_or(0);
                access(e, item, *place, end, out, sabotage.has(Switch::GuessedShape));
                reach.wrote(item.rows());
            }
        }
    }
}

/// Masks that strips write: those that only carry are the last ones. They are for other vector
/// instructions, which read their strip's part.
struct Masks {
    all: Vec<u8>,
    compared: usize,
}

fn masks(segment: &Segment) -> Masks {
    let outs = |carries: bool| {
        let is_carry = |vector: &&Vector| matches!(vector.operation.how, How::Carry(_) | How::Multiply64(_));
        let outs = segment.vectors().filter(move |vector| is_carry(vector) == carries).filter_map(|vector| vector.out);
        outs.filter(|n| *n != vkfd_isa::Operand::NULL).collect::<BTreeSet<u8>>()
    };
    let (compared, carried) = (outs(false), outs(true));
    let all = compared.iter().chain(carried.difference(&compared)).copied().collect();
    Masks { all, compared: compared.len() }
}

/// The code of the strips, its constants, and the registers that it takes; or those that it lacks.
pub(super) fn strips(
    segment: &Segment,
    places: &[Places],
    (host, lanes, bytes): (Host, u8, i64),
    (mut plan, rows): (Plan, &[Rows]),
    needs: Needs,
    sabotage: &Switches,
) -> Result<(Made, Needs), Needs> {
    let looped = segment.rounds == Rounds::Strips;
    plan.fix(Emit::usable(host.width).saturating_sub(needs.outside()));
    if !plan.fits() {
        return Err(needs);
    }
    let restored: Vec<u16> = plan.restored().collect();
    let mut e = Emit::new(host, plan, needs);
    e.loses_rows = sabotage.has(Switch::LostRows);
    e.mends_all = sabotage.has(Switch::MendAll);
    e.prefetches = segment.rounds != Rounds::Once;
    let accesses = segment.accesses().next().is_some();
    let (head, round, next, skip, out) = (e.asm.label(), e.asm.label(), e.asm.label(), e.asm.label(), e.asm.label());
    if accesses {
        KEPT.into_iter().for_each(|register| e.asm.push(register));
    }
    e.asm.move64(Register::R9, Register::RSI);
    let made = masks(segment);
    e.begin_masks(&made.all, lanes);
    e.begin_arithmetic(segment.arithmetic.may_flush() && !sabotage.has(Switch::KeptDenormals));
    e.asm.load64(Register::RCX, at(Register::RDX, field(offset_of!(Context, pool))));
    e.asm.add(Instruction::with2(Code::Xor_r32_rm32, Register::R11D, Register::R11D));
    if accesses && !looped {
        e.begin_wave(lanes);
    }
    e.asm.bind(head);
    e.load_exec(skip, sabotage.has(Switch::OpenLanes));
    e.begin_strip();
    e.asm.load64(Register::R8, at(Register::RDX, field(offset_of!(Context, trace))));
    e.asm.load32(Register::R10D, at(Register::RDX, field(offset_of!(Context, done))));
    if sabotage.has(Switch::LostRound) && looped {
        // Strips do not go as far as the slice.
        e.asm.add(Instruction::with2(Code::Mov_r32_imm32, Register::R10D, 1u32));
    }
    let mut reach = Reach::of(segment);
    let is_guessed = sabotage.has(Switch::GuessedShape);
    if accesses {
        e.begin_accesses(out);
        e.asm.load64(Register::RAX, at(Register::RDX, field(offset_of!(Context, kept))));
        for (index, row) in restored.into_iter().enumerate() {
            e.begin();
            e.save(row, at(Register::RAX, 256 * field(index)));
        }
        // What does not change in the loop is looked at before it.
        for (item, place) in segment.lanes().zip(places) {
            if let Lanes::Access(access) = item {
                let stays = looped && access.addresses().all(|row| !e.writes(row));
                if stays && place.base.is_none() {
                    e.begin();
                    let end = reach.ends.get(&(access.address, 0)).copied().unwrap_or(0);
                    e.look(access, base(access, *place), end, out, is_guessed);
                }
            }
        }
    }
    let again = |e: &mut Emit| {
        e.end_round();
        let bytes = i32::try_from(bytes).unwrap_or(0);
        e.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::R8, bytes));
        e.asm.add(Instruction::with1(Code::Dec_rm32, Register::R10D));
    };
    let mut all = vec![Needed::ALL; places.len()];
    if looped && !accesses {
        // All rounds but the last one leave out what the next one makes anew.
        let light = needed(segment, &BTreeSet::new(), false, true);
        if light.iter().any(|needed| *needed != Needed::ALL) && worth(segment, &light) {
            let lighter = e.asm.label();
            e.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, Register::R10D, 1i32));
            e.asm.jump_if(When::Zero, round);
            e.asm.bind(lighter);
            e.forget_masks();
            body(&mut e, (segment, true), (places, rows, &light), &mut reach, (out, sabotage));
            again(&mut e);
            e.begin_round();
            e.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, Register::R10D, 1i32));
            e.asm.jump_if(When::Above, lighter);
        }
    } else if segment.ends {
        all = needed(segment, &e.lasting(), true, false);
    }
    e.asm.bind(round);
    e.forget_masks();
    body(&mut e, (segment, false), (places, rows, &all), &mut reach, (out, sabotage));
    if looped {
        again(&mut e);
        e.asm.jump_if(When::NotZero, round);
    }
    e.end_strip();
    e.asm.bind(next);
    e.turn_masks(lanes);
    if accesses {
        let kept = at(Register::RDX, field(offset_of!(Context, kept)));
        e.asm.add(Instruction::with2(Code::Add_rm64_imm8, kept, 4 * i32::from(host.width.lanes())));
    }
    advance(&mut e, lanes, head);
    let leave = e.asm.label();
    e.asm.bind(leave);
    e.end_masks(&made.all[..made.compared], lanes);
    e.keep_denormals(true);
    e.asm.add(Ok(Instruction::with(Code::VEX_Vzeroupper)));
    e.leave_masks();
    if accesses {
        KEPT.into_iter().rev().for_each(|register| e.asm.pop(register));
    }
    e.asm.ret();
    if accesses {
        e.asm.bind(out);
        e.asm.store32(at(Register::RDX, field(offset_of!(Context, left))), Register::R10D);
        let how = at(Register::RDX, field(offset_of!(Context, end)));
        e.asm.add(Instruction::with2(Code::Mov_rm32_imm32, how, end::MISSED));
        e.asm.jump(leave);
    }
    e.asm.bind(skip);
    made.all.into_iter().for_each(|n| e.clear_mask(n));
    e.asm.jump(next);
    e.finish_cold();
    let Emit { asm, pool, needs, .. } = e;
    match asm.finish() {
        Some(code) => Ok(((code, pool.into_words()), needs)),
        None => Err(needs),
    }
}
