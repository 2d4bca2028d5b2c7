// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A round of a strip: vector instructions and loads in the words of [`Emit`].

use super::slice::Places;
use crate::assembler::{at, Label};
use crate::emit::{Emit, Mask, MaskPlace, Src};
use crate::ops::{self, Double, How};
use crate::plan::{Access, Chosen, Lanes, Needed, Part, Placed, Rows, Segment, Source, Space, Vector};
use crate::width;
use iced_x86::Register;
use smallvec::SmallVec;
use std::collections::HashMap;
use vkfd_sabotage::{Switch, Switches};

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

/// Registers for the low and the high words of a result.
fn pair(e: &mut Emit, vector: &Vector) -> [Register; 2] {
    let mut rows = vector.rows();
    [(); 2].map(|()| match rows.next() {
        Some(row) => e.row_destination(row),
        None => e.temp(),
    })
}

/// The result's rows have these words.
fn settle_pair(e: &mut Emit, vector: &Vector, words: [Register; 2]) {
    for (row, from) in vector.rows().zip(words) {
        e.settle(row, from);
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
    let to = pair(e, vector);
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

/// Writes an instruction that makes a mask, if somebody reads that.
fn with_mask(e: &mut Emit, vector: &Vector, needed: Needed, write: impl FnOnce(&mut Emit, Option<Mask>)) {
    if needed.out {
        e.set_mask(vector.out.unwrap_or(0), |e, mask| write(e, Some(mask)));
    } else {
        write(e, None);
    }
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
        How::Multiply64(_) if needed.is_low(vector) => {
            if let Some(row) = vector.row {
                low(e, row, [a, b, c]);
            }
        }
        How::Multiply64(signed) => {
            let high = word(e, vector.high[2], place.high[2]);
            let to = [e.temp(), e.temp()];
            with_mask(e, vector, needed, |e, out| ops::multiply64(e, to, out, ([a, b], [c, high]), signed));
            settle_pair(e, vector, to);
        }
        How::Lengthen(how) => {
            let to = pair(e, vector);
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
            let Some(row) = vector.row else { return };
            let to = e.row_destination(row);
            with_mask(e, vector, needed, |e, mask| {
                let inward = inward(e);
                carry.write(e, to, mask, [a, b], inward);
            });
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
pub(super) struct Reach {
    /// There are accesses of LDS: of others nothing is kept.
    is_local: bool,
    ends: HashMap<(u16, u32), u32>,
    written: HashMap<u16, u32>,
}

impl Reach {
    fn key(&self, access: &Access) -> (u16, u32) {
        (access.address, self.written.get(&access.address).copied().unwrap_or(0))
    }

    /// What all accesses by the present addresses reach.
    pub(super) fn end(&self, access: &Access) -> u32 {
        self.ends.get(&self.key(access)).copied().unwrap_or(0)
    }

    fn wrote(&mut self, rows: impl IntoIterator<Item = u16>) {
        if self.is_local {
            rows.into_iter().for_each(|row| *self.written.entry(row).or_default() += 1);
        }
    }

    /// Of a segment, from whose begin they are read again.
    pub(super) fn of(segment: &Segment) -> Reach {
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

/// The numbers of a segment's loads of memory by addresses that no other access of it has.
fn alone(segment: &Segment) -> Vec<usize> {
    let (mut found, mut seen): (Vec<usize>, Vec<(&Access, usize)>) = (Vec::new(), Vec::new());
    for (number, item) in segment.lanes().enumerate() {
        let written: SmallVec<[u16; 8]> = match item {
            Lanes::Vector(vector) => vector.rows().collect(),
            Lanes::Access(access) => {
                match seen.iter().find(|(other, _)| other.has_addresses_of(access)) {
                    Some((_, first)) => found.retain(|number| number != first),
                    None => {
                        seen.push((access, number));
                        if access.space != Space::Lds && access.parts == 1 {
                            found.push(number);
                        }
                    }
                }
                access.rows().collect()
            }
        };
        seen.retain(|(access, _)| access.addresses().all(|row| !written.contains(&row)));
    }
    found
}

/// Where the base of an access is.
pub(super) fn base(access: &Access, place: Places) -> iced_x86::MemoryOperand {
    match (place.base, access.base) {
        (Some(offset), _) => at(Register::R8, offset),
        (None, n) => at(Register::R9, 4 * i64::from(n.unwrap_or(0))),
    }
}

fn access(e: &mut Emit, access: &Access, place: Places, (end, is_alone): (u32, bool), out: Label, is_guessed: bool) {
    e.begin();
    let base = base(access, place);
    let look = (!is_alone).then(|| e.look(access, base, end, out, is_guessed));
    // A part may write the row that the next one has its addresses in.
    let hazard = access.rows().any(|row| access.addresses().contains(&row));
    let to: Vec<Register> = access.rows().map(|row| if hazard { e.temp() } else { e.row_destination(row) }).collect();
    match look {
        Some(look) => {
            for (part, to) in to.chunks(access.words.into()).enumerate() {
                e.load_words(access, look, part, to, base, out);
            }
        }
        None => e.load_alone(access, base, (end, is_guessed), &to, out),
    }
    for (row, from) in access.rows().zip(&to) {
        e.settle(row, *from);
        e.forget_row(row);
    }
}

/// A round. In a light one some results are left out.
pub(super) fn body(
    e: &mut Emit,
    (segment, is_light): (&Segment, bool),
    (places, rows, needed): (&[Places], &[Rows], &[Needed]),
    reach: &mut Reach,
    (out, sabotage): (Label, &Switches),
) {
    let alone = if e.keeps_hosts() { alone(segment) } else { Vec::new() };
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
                let (end, is_alone) = (reach.end(item), alone.contains(&number));
                access(e, item, *place, (end, is_alone), out, sabotage.has(Switch::GuessedShape));
                reach.wrote(item.rows());
            }
        }
    }
    e.settle_masks();
}
