// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The slice of a segment: its scalar instructions, round after round, and the trace that they
//! leave for the strips. Those of its tail are by themselves.

use super::{field, ROUNDS};
use crate::assembler::{at, Assembler, Label, When};
use crate::context::{end, Accessing, Context, Slot, TRACE_WORDS};
use crate::plan::{Branch, Item, Load, Rounds, Segment, Share, Source, Vector};
use crate::scalar::{self, Latest, CONTEXT, SCALARS};
use crate::slots::{Slots, PAGE};
use crate::Why;
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use std::mem::offset_of;
use vkfd_sabotage::{Switch, Switches};

/// What the trace has of a round.
struct Trace {
    /// Offsets in bytes, by register, version and number of words.
    slots: Vec<((u8, u32, u8), i64)>,
    versions: [u32; 128],
    bytes: i64,
}

/// Where vector instructions find what they read of scalar registers.
#[derive(Clone, Copy, Default)]
pub(super) struct Places {
    pub(super) sources: [Option<i64>; 3],
    pub(super) high: [Option<i64>; 3],
    pub(super) mask: Option<i64>,
    pub(super) base: Option<i64>,
}

const TRACE: Register = Register::R13;
const DONE: Register = Register::R14;
const LIMIT: Register = Register::R15;

/// A load whose page no slot has: where that is asked for, and where the load goes on.
struct Asked {
    ask: Label,
    found: Label,
    words: u8,
}

struct Slice<'a> {
    asm: Assembler,
    asked: Vec<Asked>,
    elsewhere: Vec<(Load, Label, Label)>,
    missed: Label,
    /// Loads may leave their page, for tests.
    may_cross: bool,
    latest: Latest,
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
        let version: u32 = (n..n + words).filter_map(|n| self.trace.versions.get(usize::from(n))).sum();
        let slot = (n, version, words);
        if let Some((_, offset)) = self.trace.slots.iter().find(|(other, _)| *other == slot) {
            return Some(*offset);
        }
        let offset = self.trace.bytes;
        self.latest.get(&mut self.asm, (n, words));
        if words == 2 {
            // Strips read it as one number.
            self.asm.store64(at(TRACE, offset), Register::RAX);
        } else {
            self.asm.store32(at(TRACE, offset), Register::EAX);
        }
        self.trace.bytes += 4 * i64::from(words);
        self.trace.slots.push((slot, offset));
        self.is_needed = true;
        Some(offset)
    }

    fn wrote(&mut self, registers: u128) {
        self.is_needed = true;
        let mut rest = registers;
        while rest != 0 {
            if let Some(version) = self.trace.versions.get_mut(rest.trailing_zeros() as usize) {
                *version += 1;
            }
            rest &= rest - 1;
        }
    }

    /// Loads words of a page, if all of them are in it.
    fn load(&mut self, load: &Load) {
        match load.share {
            Share::Next(apart) => self.look_there(load, apart),
            _ => self.look(load),
        }
        let asm = &mut self.asm;
        // What is stored before a fault is put back.
        let mut done = 0;
        while done < load.words {
            let (from, to) = (at(Register::RDX, 4 * i64::from(done)), at(SCALARS, 4 * i64::from(load.dst + done)));
            match load.words - done {
                1 => {
                    asm.load32(Register::EAX, from);
                    asm.store32(to, Register::EAX);
                    done += 1;
                }
                2 | 3 => {
                    asm.load64(Register::RAX, from);
                    asm.store64(to, Register::RAX);
                    done += 2;
                }
                _ => {
                    asm.add(Instruction::with2(Code::VEX_Vmovups_xmm_xmmm128, Register::XMM0, from));
                    asm.add(Instruction::with2(Code::VEX_Vmovups_xmmm128_xmm, to, Register::XMM0));
                    done += 4;
                }
            }
        }
        self.latest.forget();
        self.wrote(scalar::bits(load.dst, load.words));
    }

    /// The place of a load's words on the host comes to `rdx`, by the page that a slot has.
    fn look(&mut self, load: &Load) {
        let asm = &mut self.asm;
        asm.load_pair([Register::RSI, Register::RAX], at(SCALARS, 4 * i64::from(load.base)));
        if let Some(n) = load.offset {
            asm.load32(Register::EAX, at(SCALARS, 4 * i64::from(n)));
            asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RSI, Register::RAX));
        }
        asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RSI, load.imm));
        asm.add(Instruction::with2(Code::And_rm64_imm8, Register::RSI, !3i32));
        asm.add(Instruction::with2(Code::Mov_r32_rm32, Register::EDX, Register::ESI));
        asm.add(Instruction::with2(Code::And_rm32_imm32, Register::EDX, PAGE - 1));
        if load.words > 1 && !self.may_cross {
            asm.add(Instruction::with2(Code::Cmp_rm32_imm32, Register::EDX, PAGE - 4 * i32::from(load.words)));
            asm.jump_if(When::Above, self.missed);
        }
        let (ask, found) = (asm.label(), asm.label());
        asm.move64(Register::RDI, Register::RSI);
        asm.add(Instruction::with2(Code::And_rm64_imm32, Register::RDI, -PAGE));
        IN_SLICE.find(asm, Register::RSI);
        asm.add(Instruction::with2(Code::Or_r64_rm64, Register::RDI, context(offset_of!(Context, stamp))));
        asm.add(Instruction::with2(Code::Cmp_r64_rm64, Register::RDI, IN_SLICE.slot(offset_of!(Slot, tag))));
        asm.jump_if(When::NotZero, ask);
        asm.bind(found);
        if load.share == Share::First {
            asm.store64(context(offset_of!(Context, shared_place)), Register::RDX);
        }
        asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RDX, IN_SLICE.slot(offset_of!(Slot, host))));
        if load.share == Share::First {
            asm.store64(context(offset_of!(Context, shared_host)), Register::RDX);
        }
        self.asked.push(Asked { ask, found, words: load.words });
    }

    /// The same by the look of another load, from which it is so many bytes away.
    fn look_there(&mut self, load: &Load, apart: i32) {
        let asm = &mut self.asm;
        let (look, found) = (asm.label(), asm.label());
        asm.load64(Register::RDX, context(offset_of!(Context, shared_place)));
        asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RDX, apart));
        if !self.may_cross {
            asm.add(Instruction::with2(Code::Cmp_rm64_imm32, Register::RDX, PAGE - 4 * i32::from(load.words)));
            asm.jump_if(When::Above, look);
        }
        asm.load64(Register::RDX, context(offset_of!(Context, shared_host)));
        asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RDX, apart));
        asm.bind(found);
        self.elsewhere.push((Load { share: Share::Alone, ..*load }, look, found));
    }

    /// The looks of loads that are in another page than the one whose look they share.
    fn look_elsewhere(&mut self) {
        for (load, look, found) in std::mem::take(&mut self.elsewhere) {
            self.asm.bind(look);
            self.look(&load);
            self.asm.jump(found);
        }
    }

    /// Asks the engine for the pages of loads.
    fn ask(&mut self) {
        let asm = &mut self.asm;
        for Asked { ask, found, words } in self.asked.drain(..) {
            asm.bind(ask);
            IN_SLICE.ask(asm, Register::RSI, [words.into(), 0, SITE, 0, Accessing::PAGE]);
            asm.load64(Register::RDI, context(offset_of!(Context, user)));
            asm.add(Instruction::with2(Code::Lea_r64_m, Register::RSI, request(0)));
            asm.add(Instruction::with1(Code::Call_rm64, context(offset_of!(Context, access))));
            asm.add(Instruction::with2(Code::Test_rm32_r32, Register::EAX, Register::EAX));
            asm.jump_if(When::Zero, self.missed);
            IN_SLICE.fill(asm);
            asm.load64(Register::RDX, request(offset_of!(Accessing, base)));
            asm.add(Instruction::with2(Code::And_rm32_imm32, Register::EDX, PAGE - 1));
            asm.jump(found);
        }
    }
}

/// A slot's place is in `rcx`.
const IN_SLICE: Slots = Slots { context: CONTEXT, place: Register::RCX };
/// Scalar loads ask for pages as one access: their strides are foreseen together.
const SITE: u32 = 15;

fn context(offset: usize) -> MemoryOperand {
    at(CONTEXT, field(offset))
}

fn request(offset: usize) -> MemoryOperand {
    context(offset_of!(Context, accessing) + offset)
}

/// What a slice saves. An odd number: so the stack is aligned where functions are called.
const SAVED: [Register; 3] = [SCALARS, CONTEXT, TRACE];
const SAVED_IN_LOOPS: [Register; 2] = [DONE, LIMIT];
const SAVED_WITH_LOADS: [Register; 2] = [Register::RBX, Register::RAX];

/// The code, if there is any, the trace's bytes for a round, and where the vector instructions find
/// what they read.
pub(super) type Sliced = (Option<Vec<u8>>, i64, Vec<Places>);

/// Jumps unless a branch leads back.
fn branch(asm: &mut Assembler, latest: &mut Latest, back: Branch, words: u8, out: Label) {
    match back {
        Branch::Scc(on) => latest.branch(asm, on, out),
        Branch::Mask(n, zero) => {
            latest.get(asm, (n, words));
            let (code, register) =
                if words == 2 { (Code::Test_rm64_r64, Register::RAX) } else { (Code::Test_rm32_r32, Register::EAX) };
            asm.add(Instruction::with2(code, register, register));
            asm.jump_if(if zero { When::NotZero } else { When::Zero }, out);
        }
    }
}

/// Scalar instructions of a tail.
pub(super) fn tail(items: &[&Item], words: u8) -> Result<Vec<u8>, Why> {
    let mut asm = Assembler::new();
    let mut latest = Latest::before(items.iter().copied());
    let leave = asm.label();
    asm.push(SCALARS);
    asm.push(CONTEXT);
    asm.move64(SCALARS, Register::RSI);
    asm.move64(CONTEXT, Register::RDX);
    for (item, wanted) in items.iter().zip(scalar::wanted(items)) {
        match item {
            Item::Scalar(scalar) => scalar.write(&mut asm, &mut latest, wanted),
            Item::Branch(back) => {
                branch(&mut asm, &mut latest, *back, words, leave);
                let how = at(CONTEXT, field(offset_of!(Context, end)));
                asm.add(Instruction::with2(Code::Mov_rm32_imm32, how, end::TAKEN));
            }
            _ => {}
        }
    }
    asm.bind(leave);
    asm.pop(CONTEXT);
    asm.pop(SCALARS);
    asm.ret();
    asm.finish().ok_or(Why::Encoding)
}

/// Keeps scalar registers as they are, for a load that misses. Word by word: the processor hands no
/// words on, which were stored one by one, to a wider load.
pub(super) fn keep(asm: &mut Assembler, (scalars, context): (Register, Register), numbers: &[u8]) {
    for n in numbers {
        asm.load32(Register::EAX, at(scalars, 4 * i64::from(*n)));
        let kept = offset_of!(Context, kept_scalars) + 4 * usize::from(*n);
        asm.store32(at(context, field(kept)), Register::EAX);
    }
}

/// The slice of a segment. `kept` are the registers that it keeps first.
pub(super) fn slice(segment: &Segment, words: u8, kept: &[u8], sabotage: &Switches) -> Result<Sliced, Why> {
    let looped = segment.rounds == Rounds::Strips;
    let mut asm = Assembler::new();
    let (head, missed, fell, leave) = (asm.label(), asm.label(), asm.label(), asm.label());
    let mut slice = Slice {
        asm,
        asked: Vec::new(),
        elsewhere: Vec::new(),
        missed,
        may_cross: sabotage.has(Switch::CrossedPage),
        latest: Latest::before(segment.items.iter().chain(segment.tail.iter().map(|(_, item)| item))),
        trace: Trace { slots: Vec::new(), versions: [0; 128], bytes: 0 },
        segment,
        is_needed: looped,
        is_late: sabotage.has(Switch::LateScalars),
    };
    let asm = &mut slice.asm;
    let has_loads = segment.items.iter().any(|item| matches!(item, Item::Load(_)));
    let mut saved = SAVED.to_vec();
    saved.extend(SAVED_IN_LOOPS.iter().filter(|_| looped));
    saved.extend(SAVED_WITH_LOADS.iter().filter(|_| has_loads));
    saved.iter().for_each(|register| asm.push(*register));
    if has_loads {
        asm.way_out(missed);
    }
    asm.move64(SCALARS, Register::RSI);
    asm.move64(CONTEXT, Register::RDX);
    keep(asm, (SCALARS, CONTEXT), kept);
    asm.load64(TRACE, at(CONTEXT, field(offset_of!(Context, trace))));
    if looped {
        asm.load32(Register::R15D, at(CONTEXT, field(offset_of!(Context, limit))));
        asm.add(Instruction::with2(Code::Xor_r32_rm32, Register::R14D, Register::R14D));
    }
    asm.bind(head);
    let mut places = Vec::new();
    let items: Vec<&Item> = segment.items.iter().collect();
    for (item, wanted) in items.iter().zip(scalar::wanted(&items)) {
        match item {
            Item::Scalar(scalar) => {
                scalar.write(&mut slice.asm, &mut slice.latest, wanted);
                slice.wrote(scalar.registers().1);
            }
            Item::Load(load) => slice.load(load),
            Item::Branch(back) => {
                slice.asm.add(Instruction::with1(Code::Inc_rm32, Register::R14D));
                branch(&mut slice.asm, &mut slice.latest, *back, words, fell);
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
            // Stores are the tail's.
            Item::Store(_) | Item::Exchange(_) | Item::Nothing => {}
        }
    }
    let bytes = slice.trace.bytes;
    let most = if looped { i64::from(ROUNDS) } else { 1 };
    if bytes * most > field(4 * TRACE_WORDS) {
        return Err(Why::Trace);
    }
    let asm = &mut slice.asm;
    let set = |asm: &mut Assembler, offset, value: u32| {
        asm.add(Instruction::with2(Code::Mov_rm32_imm32, at(CONTEXT, field(offset)), value));
    };
    let (how, done) = (offset_of!(Context, end), offset_of!(Context, done));
    if looped {
        asm.add(Instruction::with2(Code::Add_rm64_imm32, TRACE, i32::try_from(bytes).map_err(|_| Why::Trace)?));
        asm.add(Instruction::with2(Code::Cmp_r32_rm32, Register::R14D, Register::R15D));
        asm.jump_if(When::Below, head);
        set(asm, how, end::TAKEN);
        asm.jump(leave);
        asm.bind(missed);
        set(asm, how, end::MISSED);
        asm.jump(leave);
        asm.bind(fell);
        set(asm, how, end::FELL);
        asm.bind(leave);
        asm.store32(at(CONTEXT, field(done)), Register::R14D);
    } else {
        // The context says already that a round is done, and that no branch was taken.
        asm.jump(leave);
        asm.bind(missed);
        set(asm, how, end::MISSED);
        set(asm, done, 0);
        asm.bind(leave);
    }
    saved.iter().rev().for_each(|register| asm.pop(*register));
    asm.ret();
    slice.look_elsewhere();
    slice.ask();
    let Slice { asm, is_needed, .. } = slice;
    let code = asm.finish().ok_or(Why::Encoding)?;
    Ok((is_needed.then_some(code), bytes, places))
}

/// Whether a vector instruction before this one has made the mask, in a loop any of them.
fn places_made(segment: &Segment, reader: &Vector, n: u8) -> bool {
    let looped = segment.rounds == Rounds::Strips;
    segment.vectors().take_while(|vector| looped || !std::ptr::eq(*vector, reader)).any(|vector| vector.out == Some(n))
}
