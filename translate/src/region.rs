// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A region: the code of a segment, and how it is run.
//!
//! A region has two functions. The *slice* does the scalar instructions, round after round, and
//! copies the registers that change and that vector instructions read to a trace. The *strips* do
//! the vector instructions: for each strip of lanes that has an active one, all rounds, with rows
//! in host registers.
//!
//! A round is complete or was not begun. When a scalar load misses in a later round, the slice is
//! done again for the rounds before it; when it misses in the first one, nothing has happened. So
//! the engine can execute the load by itself, and a fault is at its instruction.

use crate::arena::{Arena, Piece};
use crate::assembler::{at, Assembler, Label, When};
use crate::context::{end, Context, KEPT_ROWS, TRACE_WORDS};
use crate::emit::{Emit, MaskPlace, Src};
use crate::ops::{self, How};
use crate::plan::{Access, Item, Lanes, Load, Segment, Source, Space, Vector};
use crate::scalar::{self, CONTEXT, SCALARS};
use crate::width::{self, Width};
use crate::{Registers, Why};
use iced_x86::{Code, Instruction, Register};
use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;
use std::ops::Range;
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
    /// A scalar load has to be done by the engine; nothing was done.
    Missed,
}

/// Code for a part of a block.
pub struct Region {
    slice: Option<Piece>,
    strips: Piece,
    pool: Box<[u32]>,
    /// Which instructions of its block it does.
    pub insts: Range<usize>,
    /// The last instruction leads back to the first.
    pub looped: bool,
    /// MODE has to be the usual one.
    pub needs_mode: bool,
    has_loads: bool,
    has_accesses: bool,
    /// Bytes of memory that a lane loads in a round.
    pub lane_bytes: u32,
    /// Rows that it writes: strips with accesses keep them.
    rows: Box<[u16]>,
    width: Width,
    /// Rows are not put back.
    loses_rows: bool,
    /// A loop is left although its branch is taken.
    is_left_early: bool,
}

/// What the trace has of a round.
#[derive(Default)]
struct Trace {
    /// Offsets in bytes, by register, version and number of words.
    slots: HashMap<(u8, u32, u8), i64>,
    versions: HashMap<u8, u32>,
    bytes: i64,
}

/// Where vector instructions find what they read of scalar registers.
#[derive(Clone, Copy, Default)]
struct Places {
    sources: [Option<i64>; 3],
    high: [Option<i64>; 3],
    mask: Option<i64>,
    base: Option<i64>,
}

fn field(offset: usize) -> i64 {
    i64::try_from(offset).unwrap_or(0)
}

const TRACE: Register = Register::R13;
const DONE: Register = Register::R14;
const LIMIT: Register = Register::R15;

struct Slice<'a> {
    asm: Assembler,
    trace: Trace,
    segment: &'a Segment,
    is_needed: bool,
    /// Vector instructions read registers as they are behind the region.
    is_late: bool,
}

impl Slice<'_> {
    /// A register's present value: its place in the trace.
    fn place(&mut self, n: u8, words: u8) -> Option<i64> {
        if scalar::bits(n, words) & self.segment.written == 0 || self.is_late {
            return None;
        }
        // A pair changes when one of its words does.
        let version: u32 = (n..n + words).map(|n| self.trace.versions.get(&n).copied().unwrap_or(0)).sum();
        let slot = (n, version, words);
        if let Some(offset) = self.trace.slots.get(&slot) {
            return Some(*offset);
        }
        let offset = self.trace.bytes;
        for word in 0..i64::from(words) {
            self.asm.load32(Register::EAX, at(SCALARS, 4 * (i64::from(n) + word)));
            self.asm.store32(at(TRACE, offset + 4 * word), Register::EAX);
        }
        self.trace.bytes += 4 * i64::from(words);
        self.trace.slots.insert(slot, offset);
        self.is_needed = true;
        Some(offset)
    }

    fn wrote(&mut self, registers: u128) {
        self.is_needed = true;
        for n in (0u8..128).filter(|n| registers >> n & 1 != 0) {
            *self.trace.versions.entry(n).or_default() += 1;
        }
    }

    fn load(&mut self, load: &Load, missed: Label) {
        let asm = &mut self.asm;
        asm.load64(Register::RSI, at(SCALARS, 4 * i64::from(load.base)));
        if let Some(n) = load.offset {
            asm.load32(Register::EAX, at(SCALARS, 4 * i64::from(n)));
            asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RSI, Register::RAX));
        }
        asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RSI, load.imm));
        asm.add(Instruction::with2(Code::And_rm64_imm8, Register::RSI, !3i32));
        asm.add(Instruction::with2(Code::Mov_r32_imm32, Register::EDX, u32::from(load.words)));
        asm.add(Instruction::with2(Code::Lea_r64_m, Register::RCX, at(SCALARS, 4 * i64::from(load.dst))));
        asm.load64(Register::RDI, at(CONTEXT, field(offset_of!(Context, user))));
        asm.add(Instruction::with1(Code::Call_rm64, at(CONTEXT, field(offset_of!(Context, load)))));
        asm.add(Instruction::with2(Code::Test_rm32_r32, Register::EAX, Register::EAX));
        asm.jump_if(When::Zero, missed);
        self.wrote(scalar::bits(load.dst, load.words));
    }
}

const SAVED: [Register; 5] = [SCALARS, CONTEXT, TRACE, DONE, LIMIT];

/// The code, if there is any, the trace's bytes for a round, and where the vector instructions find
/// what they read.
type Sliced = (Option<Vec<u8>>, i64, Vec<Places>);

/// The slice of a segment.
fn slice(segment: &Segment, words: u8, looped: bool, is_late: bool) -> Result<Sliced, Why> {
    let mut slice = Slice { asm: Assembler::new(), trace: Trace::default(), segment, is_needed: looped, is_late };
    let asm = &mut slice.asm;
    let (head, missed, fell, leave) = (asm.label(), asm.label(), asm.label(), asm.label());
    SAVED.into_iter().for_each(|register| asm.push(register));
    asm.move64(SCALARS, Register::RSI);
    asm.move64(CONTEXT, Register::RDX);
    asm.load64(TRACE, at(CONTEXT, field(offset_of!(Context, trace))));
    asm.load32(Register::R15D, at(CONTEXT, field(offset_of!(Context, limit))));
    asm.add(Instruction::with2(Code::Xor_r32_rm32, Register::R14D, Register::R14D));
    asm.bind(head);
    let mut places = Vec::new();
    for item in &segment.items {
        match item {
            Item::Scalar(scalar) => {
                scalar.write(&mut slice.asm);
                slice.wrote(scalar.registers().1);
            }
            Item::Load(load) => slice.load(load, missed),
            Item::Branch(on) => {
                slice.asm.add(Instruction::with1(Code::Inc_rm32, Register::R14D));
                scalar::branch(&mut slice.asm, *on, fell);
            }
            Item::Vector(vector) => {
                let mut place = Places::default();
                for (source, place) in vector.sources.iter().zip(&mut place.sources) {
                    if let Some(Source::Scalar(n)) = source {
                        *place = slice.place(*n, 1);
                    }
                }
                for (source, place) in vector.high.iter().zip(&mut place.high) {
                    if let Some(Source::Scalar(n)) = source {
                        *place = slice.place(*n, 1);
                    }
                }
                if let Some(n) = vector.inward {
                    // What a vector instruction has made is in the register itself.
                    let made = places_made(segment, vector, n);
                    place.mask = if made { None } else { slice.place(n, words) };
                }
                places.push(place);
            }
            Item::Access(access) => {
                let base = access.base.and_then(|n| slice.place(n, 2));
                places.push(Places { base, ..Places::default() });
            }
            Item::Nothing => {}
        }
    }
    let bytes = slice.trace.bytes;
    let most = if looped { i64::from(ROUNDS) } else { 1 };
    if bytes * most > field(4 * TRACE_WORDS) {
        return Err(Why::Trace);
    }
    let asm = &mut slice.asm;
    let leave_with = |asm: &mut Assembler, label, how: u32| {
        if let Some(label) = label {
            asm.bind(label);
        }
        asm.add(Instruction::with2(Code::Mov_rm32_imm32, at(CONTEXT, field(offset_of!(Context, end))), how));
        asm.jump(leave);
    };
    if looped {
        asm.add(Instruction::with2(Code::Add_rm64_imm32, TRACE, i32::try_from(bytes).map_err(|_| Why::Trace)?));
        asm.add(Instruction::with2(Code::Cmp_r32_rm32, Register::R14D, Register::R15D));
        asm.jump_if(When::Below, head);
        leave_with(asm, None, end::TAKEN);
    } else {
        asm.add(Instruction::with1(Code::Inc_rm32, Register::R14D));
    }
    leave_with(asm, Some(fell), end::FELL);
    leave_with(asm, Some(missed), end::MISSED);
    asm.bind(leave);
    asm.store32(at(CONTEXT, field(offset_of!(Context, done))), Register::R14D);
    SAVED.into_iter().rev().for_each(|register| asm.pop(register));
    asm.ret();
    let Slice { asm, is_needed, .. } = slice;
    let code = asm.finish().ok_or(Why::Encoding)?;
    Ok((is_needed.then_some(code), bytes, places))
}

/// Whether a vector instruction before this one has made the mask, in a loop any of them.
fn places_made(segment: &Segment, reader: &Vector, n: u8) -> bool {
    let looped = matches!(segment.items.last(), Some(Item::Branch(_)));
    segment.vectors().take_while(|vector| looped || !std::ptr::eq(*vector, reader)).any(|vector| vector.out == Some(n))
}

/// What rows are used for.
#[derive(Clone, Copy, Default)]
struct Use {
    times: u32,
    /// It is read before it is written.
    live: bool,
    written: bool,
}

fn uses(segment: &Segment) -> BTreeMap<u16, Use> {
    let mut uses: BTreeMap<u16, Use> = BTreeMap::new();
    let read = |uses: &mut BTreeMap<u16, Use>, row: u16| {
        let known = uses.entry(row).or_default();
        known.times += 1;
        known.live |= !known.written;
    };
    let write = |uses: &mut BTreeMap<u16, Use>, row: u16| {
        let known = uses.entry(row).or_default();
        known.times += 1;
        known.written = true;
    };
    for item in segment.lanes() {
        match item {
            Lanes::Vector(vector) => {
                for source in vector.all_sources() {
                    if let Source::Row(row) = source {
                        read(&mut uses, row);
                    }
                }
                vector.rows().for_each(|row| write(&mut uses, row));
            }
            Lanes::Access(access) => {
                access.addresses().for_each(|row| read(&mut uses, row));
                access.rows().for_each(|row| write(&mut uses, row));
            }
        }
    }
    uses
}

/// Gives the rows that are used most host registers, from the first one on.
fn homes(uses: &BTreeMap<u16, Use>, most: usize, looped: bool, sabotage: &Switches) -> HashMap<u16, usize> {
    // A row that is used once is as well in memory.
    let mut rows: Vec<(u32, u16)> =
        uses.iter().filter(|(_, known)| looped || known.times > 1).map(|(row, known)| (known.times, *row)).collect();
    rows.sort_by_key(|(times, row)| (std::cmp::Reverse(*times), *row));
    let mut homes: HashMap<u16, usize> =
        rows.iter().take(most).enumerate().map(|(register, (_, row))| (*row, register)).collect();
    if sabotage.has(Switch::SharedHome) {
        if let [(_, one), (_, two), ..] = rows[..] {
            homes.insert(two, homes.get(&one).copied().unwrap_or(0));
        }
    }
    homes
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
    let (abs, neg) = (vector.abs >> index & 1 != 0, vector.neg >> index & 1 != 0);
    if !abs && !neg {
        return source;
    }
    let changed = e.temp();
    if abs {
        e.either(width::AND, changed, source, Src::Const(0x7fff_ffff));
    } else {
        e.mov(changed, source);
    }
    if neg {
        e.either(width::XOR, changed, Src::Reg(changed), Src::Const(1 << 31));
    }
    Src::Reg(changed)
}

fn vector(e: &mut Emit, vector: &Vector, place: Places, is_swapped: bool) {
    e.begin();
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
        How::Multiply64 => {
            let high = word(e, vector.high[2], place.high[2]);
            let to = [e.temp(), e.temp()];
            e.set_mask(vector.out.unwrap_or(0), |e, mask| ops::multiply64(e, to, mask, [a, b], [c, high]));
            for (row, from) in vector.rows().zip(to) {
                let to = e.row_destination(row);
                e.mov(to, Src::Reg(from));
                e.settle(row, to);
            }
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
            let to = e.row_destination(row);
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
            e.settle(row, to);
        }
    }
}

/// What all accesses by the same addresses reach beyond them, by row and how often it was written
/// before.
#[derive(Default)]
struct Reach {
    ends: HashMap<(u16, u32), u32>,
    written: HashMap<u16, u32>,
}

impl Reach {
    fn key(&self, access: &Access) -> (u16, u32) {
        (access.address, self.written.get(&access.address).copied().unwrap_or(0))
    }

    fn wrote(&mut self, rows: impl IntoIterator<Item = u16>) {
        rows.into_iter().for_each(|row| *self.written.entry(row).or_default() += 1);
    }

    /// Of a segment, from whose begin they are read again.
    fn of(segment: &Segment) -> Reach {
        let mut reach = Reach::default();
        for item in segment.lanes() {
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
        match e.row_source(row) {
            Src::Reg(home) => e.mov(home, Src::Reg(*from)),
            _ => e.settle(row, *from),
        }
        e.forget_row(row);
    }
}

/// Registers that strips with accesses save.
const KEPT: [Register; 3] = [Register::RBX, Register::RBP, Register::R12];

/// The code of the strips, and its constants.
fn strips(
    segment: &Segment,
    places: &[Places],
    (width, lanes, bytes): (Width, u8, i64),
    most: usize,
    sabotage: &Switches,
) -> Option<(Vec<u8>, Box<[u32]>)> {
    let looped = matches!(segment.items.last(), Some(Item::Branch(_)));
    let uses = uses(segment);
    let homes = homes(&uses, most, looped, sabotage);
    let first = homes.values().max().map_or(0, |most| most + 1);
    let mut e = Emit::new(width, homes, first);
    e.mends_all = sabotage.has(Switch::MendAll);
    let accesses = segment.accesses().next().is_some();
    let (head, round, next, skip, out) = (e.asm.label(), e.asm.label(), e.asm.label(), e.asm.label(), e.asm.label());
    if accesses {
        KEPT.into_iter().for_each(|register| e.asm.push(register));
    }
    e.asm.move64(Register::R9, Register::RSI);
    e.asm.load64(Register::RCX, at(Register::RDX, field(offset_of!(Context, pool))));
    e.asm.add(Instruction::with2(Code::Xor_r32_rm32, Register::R11D, Register::R11D));
    e.asm.bind(head);
    e.load_exec(skip, sabotage.has(Switch::OpenLanes));
    for (row, _) in uses.iter().filter(|(_, known)| known.live) {
        e.fetch(*row);
    }
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
        for (index, (row, known)) in uses.iter().filter(|(_, known)| known.written).enumerate() {
            e.begin();
            e.save(*row, known.live, at(Register::RAX, 256 * field(index)));
        }
        let stays = |access: &Access| {
            let mut rows = access.addresses();
            looped && rows.all(|row| uses.get(&row).is_none_or(|known| !known.written))
        };
        // What does not change in the loop is looked at before it.
        for (item, place) in segment.lanes().zip(places) {
            if let Lanes::Access(access) = item {
                if stays(access) && place.base.is_none() {
                    e.begin();
                    let end = reach.ends.get(&(access.address, 0)).copied().unwrap_or(0);
                    e.look(access, base(access, *place), end, out, is_guessed);
                }
            }
        }
    }
    e.asm.bind(round);
    e.forget_masks();
    for (item, place) in segment.lanes().zip(places) {
        match item {
            Lanes::Vector(item) => {
                vector(&mut e, item, *place, sabotage.has(Switch::SwappedSources));
                for row in item.rows() {
                    e.forget_row(row);
                    reach.wrote([row]);
                }
            }
            Lanes::Access(item) => {
                let end = reach.ends.get(&reach.key(item)).copied().unwrap_or(0);
                access(&mut e, item, *place, end, out, is_guessed);
                reach.wrote(item.rows());
            }
        }
    }
    if looped {
        e.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::R8, i32::try_from(bytes).ok()?));
        e.asm.add(Instruction::with1(Code::Dec_rm32, Register::R10D));
        e.asm.jump_if(When::NotZero, round);
    }
    e.begin();
    for (row, _) in uses.iter().filter(|(_, known)| known.written) {
        e.keep(*row);
    }
    e.asm.bind(next);
    let mask_bytes = i32::from(width.lanes() / 8);
    e.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RDI, 4 * i32::from(width.lanes())));
    e.asm.add(Instruction::with2(Code::Add_rm64_imm8, Register::RSI, mask_bytes));
    e.asm.add(Instruction::with2(Code::Add_rm32_imm8, Register::R11D, mask_bytes));
    e.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, Register::R11D, i32::from(lanes / 8)));
    if accesses {
        let kept = at(Register::RDX, field(offset_of!(Context, kept)));
        e.asm.add(Instruction::with2(Code::Add_rm64_imm8, kept, 4 * i32::from(width.lanes())));
        e.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, Register::R11D, i32::from(lanes / 8)));
    }
    e.asm.jump_if(When::Below, head);
    let leave = e.asm.label();
    e.asm.bind(leave);
    e.asm.add(Ok(Instruction::with(Code::VEX_Vzeroupper)));
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
    let mut made: Vec<u8> = segment.vectors().filter_map(|vector| vector.out).collect();
    made.sort_unstable();
    made.dedup();
    for n in made.into_iter().filter(|n| *n != vkfd_isa::Operand::NULL) {
        e.clear_mask(n);
    }
    e.asm.jump(next);
    e.finish_cold();
    let Emit { asm, pool, .. } = e;
    Some((asm.finish()?, pool.into_words()))
}

impl Region {
    pub(crate) fn build(
        segment: &Segment,
        registers: &dyn Registers,
        width: Width,
        arena: &mut Arena,
        sabotage: &Switches,
    ) -> Result<Region, Why> {
        let looped = matches!(segment.items.last(), Some(Item::Branch(_)));
        let (scalars, bytes, places) =
            slice(segment, registers.mask_words(), looped, sabotage.has(Switch::LateScalars))?;
        // Operations that need many temporaries leave fewer registers to rows.
        let attempts: &[usize] = if width.is_wide() { &[24, 20] } else { &[9, 7, 4, 1] };
        let (code, pool) = attempts
            .iter()
            .find_map(|most| strips(segment, &places, (width, registers.lanes(), bytes), *most, sabotage))
            .ok_or(Why::Encoding)?;
        let slice = scalars.map(|code| arena.put(&code)).transpose().map_err(|_| Why::Room)?;
        let strips = arena.put(&code).map_err(|_| Why::Room)?;
        let has_loads = segment.items.iter().any(|item| matches!(item, Item::Load(_)));
        let has_accesses = segment.accesses().next().is_some();
        let rows: Box<[u16]> = uses(segment).iter().filter(|(_, known)| known.written).map(|(row, _)| *row).collect();
        if has_accesses && rows.len() > KEPT_ROWS {
            return Err(Why::Encoding);
        }
        let memory = segment.accesses().filter(|access| access.space != Space::Lds);
        let lane_bytes = memory.map(|access| 4 * u32::from(access.parts) * u32::from(access.words)).sum();
        Ok(Region {
            rows,
            has_accesses,
            loses_rows: sabotage.has(Switch::UnkeptRows),
            lane_bytes,
            width,
            slice,
            strips,
            pool,
            insts: segment.insts.clone(),
            looped,
            needs_mode: segment.needs_mode,
            has_loads,
            is_left_early: sabotage.has(Switch::LeftEarly),
        })
    }

    /// Bytes of code, and those of its constants.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let code = self.slice.iter().chain([&self.strips]).map(Piece::bytes).sum::<usize>();
        size_of::<Region>() + code + size_of_val(&*self.pool)
    }

    /// Its functions: where they are, and how long.
    pub fn code(&self) -> impl Iterator<Item = (&'static str, usize, usize)> + '_ {
        let slice = self.slice.iter().map(|piece| ("scalars", piece));
        slice.chain([("strips", &self.strips)]).map(|(name, piece)| (name, piece.start().addr().get(), piece.bytes()))
    }

    /// Runs it, a loop for at most `limit` rounds.
    ///
    /// # Safety
    /// `rows` and `scalars` are a wave's rows, each of 64 words, and its 128 scalar registers, as
    /// the [`Registers`] had them for which the region was made. Nothing refers to them. What the
    /// context's functions need is there.
    pub unsafe fn run(&self, context: &mut Context, rows: *mut u8, scalars: *mut u32, limit: u32) -> Left {
        let function = |piece: &Piece| {
            // SAFETY: code that was written as such a function, which lives as long as the region.
            unsafe { std::mem::transmute::<*mut u8, Function>(piece.start().as_ptr()) }
        };
        context.pool = self.pool.as_ptr();
        let scc = context.scc;
        let mut limit = if self.looped { limit.clamp(1, ROUNDS) } else { 1 };
        // SAFETY: the caller's.
        let before = (self.has_loads || self.has_accesses).then(|| unsafe { scalars.cast::<[u32; 128]>().read() });
        loop {
            (context.done, context.end, context.limit) = (1, end::FELL, limit);
            if let Some(piece) = &self.slice {
                // SAFETY: the caller's; the slice touches the registers that it was made for.
                unsafe { function(piece)(rows, scalars, context) };
            }
            let (rounds, again) = (context.done, context.end == end::TAKEN && !self.is_left_early);
            if context.end != end::MISSED {
                context.kept = context.kept_words.as_mut_ptr();
                // SAFETY: the caller's; strips touch the rows and masks that they were made for.
                unsafe { function(&self.strips)(rows, scalars, context) };
                if context.end != end::MISSED {
                    return Left::Done { rounds, again };
                }
                limit = rounds - context.left.min(rounds);
                // SAFETY: the caller's.
                unsafe { self.put_back(context, rows, scalars) };
            } else {
                limit = rounds;
            }
            if let Some(before) = before {
                // SAFETY: as above.
                unsafe { scalars.cast::<[u32; 128]>().write(before) };
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
        let exec = unsafe { scalars.add(vkfd_isa::Operand::EXEC.into()).cast::<u64>().read_unaligned() };
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
