// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Blocks: straight pieces of machine code, pre-decoded.
//!
//! A block ends after a branch, whatever leaves the engine, 64 instructions, or its page. It is
//! built for waves of one [`Layout`]: handlers rely on the registers that were checked then. What
//! has no handler is a step that the reference engine executes. The words are kept, to be compared
//! when the code may have changed.

#[cfg(debug_assertions)]
use super::chain::Chained;
use super::chain::{self, Operands};
use super::constants::Constants;
#[cfg(target_arch = "x86_64")]
use super::native::Entry;
use super::step::{Run, Source, Step};
use super::{aligned, dual, lane, matrix, memory, mix, packed, pair, scalar, special, sum, wide, wmma};
use crate::exit::{Exit, Refusal};
use crate::few::Few;
use crate::reference::fidelity::{fidelity, Fidelity};
use crate::reference::memory::{kind, Kind};
use crate::wave::Wave;
use crate::world::{Access, World};
use std::cell::Cell;
use vkfd_isa::{decode_as_hardware, DecodeError, Extension, Format, Inst, Op, Operand, Target, MAX_WORDS};
#[cfg(debug_assertions)]
use vkfd_sabotage::{Switch, Switches};

/// Most instructions of a block.
const LENGTH: usize = 64;

/// What waves have in common that run the same steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    pub(super) target: Target,
    pub(super) lanes: u8,
    pub(super) rows: usize,
    pub(super) acc: u16,
    pub(super) sgprs: u8,
    pub(super) grain: Grain,
}

/// How long blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Grain {
    Whole,
    /// They end with a wait for memory, too.
    Waits,
}

impl Layout {
    pub(super) fn of(wave: &Wave, grain: Grain) -> Layout {
        let Wave { target, lanes, ref rows, acc, sgprs, .. } = *wave;
        Layout { target, lanes, rows: rows.len(), acc, sgprs, grain }
    }

    /// The first of `count` rows, if the wave has them.
    pub(super) fn row(&self, operand: Operand, count: usize) -> Option<usize> {
        let split = usize::from(self.acc).min(self.rows);
        let (first, end) = match operand {
            Operand::Vgpr(n) if self.target.is_cdna() => (usize::from(n), split),
            Operand::Vgpr(n) => (usize::from(n), self.rows),
            Operand::Agpr(n) => (split + usize::from(n), self.rows),
            _ => return None,
        };
        (first + count <= end).then_some(first)
    }

    /// The first of `count` scalar registers, if the wave has them and they are ordinary.
    pub(super) fn scalar(&self, operand: Operand, count: u8) -> Option<u8> {
        let Operand::Scalar(n) = operand else { return None };
        let end = u16::from(n) + u16::from(count);
        let (general, special) =
            if self.target.is_gfx9() { (102.min(self.sgprs), Operand::FLAT_SCRATCH) } else { (106, 106) };
        let is_null = n <= Operand::NULL && end > u16::from(Operand::NULL);
        (!is_null && (n >= special && end <= 128 || end <= u16::from(general))).then_some(n)
    }

    /// The first scalar register of a mask of lanes: of two, or in waves of 32 of one, which may be
    /// NULL. The word behind it can be read in any case.
    pub(super) fn mask(&self, operand: Operand) -> Option<u8> {
        if self.lanes == 64 {
            return self.scalar(operand, 2);
        }
        if operand == Operand::Scalar(Operand::NULL) {
            return Some(Operand::NULL);
        }
        self.scalar(operand, 1).filter(|n| *n < 127)
    }
}

impl Layout {
    /// Where a comparison's answer goes, besides EXEC if it goes there, too: only on gfx9 both.
    pub(super) fn answer(&self, operand: Operand, exec: bool) -> Option<u8> {
        if exec && !self.target.is_gfx9() {
            return Some(Operand::NULL);
        }
        self.mask(operand)
    }
}

/// The bits of a constant in an operation of 32 bits.
pub(super) fn constant32(operand: Operand) -> Option<u32> {
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

/// A straight piece of code.
pub(super) struct Block {
    pub(super) pc: u64,
    pub(super) layout: Layout,
    pub(super) steps: Vec<Step>,
    /// Of each step, what its chain needs.
    operands: Vec<Operands>,
    pub(super) insts: Vec<Inst>,
    /// Those of them whose results only approximate hardware's.
    pub(super) inexact: Vec<Op>,
    /// The words that were decoded.
    words: Vec<u32>,
    /// Where they were on the host: the first and the last one.
    host: [usize; 2],
    /// When the words were last known to be these: the engine's count of runs, and of
    /// invalidations.
    pub(super) run: u64,
    epoch: u64,
    /// It has an instruction that orders stores: what goes past the caches is to be seen before it.
    pub(super) orders: bool,
    /// How often it has run, until it is translated.
    pub(super) heat: Cell<u32>,
    /// Its accesses are the handlers', where translated code has no gain by them.
    #[cfg(target_arch = "x86_64")]
    pub(super) plain_accesses: Cell<bool>,
    /// The loop of several blocks whose first one it is, and whether it is one of such a loop.
    #[cfg(target_arch = "x86_64")]
    pub(super) ring: Option<Box<super::rings::Entry>>,
    #[cfg(target_arch = "x86_64")]
    pub(super) in_ring: Cell<bool>,
    /// No other block of the engine has this number.
    pub(super) serial: u64,
    /// Its parts that are translated.
    #[cfg(target_arch = "x86_64")]
    #[allow(clippy::vec_box, reason = "steps point to them")]
    pub(super) regions: Vec<Box<Entry>>,
}

/// One word of code.
fn fetch(world: &mut dyn World, pc: u64) -> Result<(u32, usize), Exit> {
    let span = world.translate(pc, Access::Execute).map_err(Exit::Miss)?;
    if span.len < 4 || pc % 4 != 0 || span.ptr.addr() % 4 != 0 {
        return Err(Exit::Refused(Refusal::Illegal { word: 0 }));
    }
    // SAFETY: an aligned word of a span, while the gate is open; nothing refers to it (World).
    let word = unsafe { vkfd_raw::load_u32(span.ptr.cast()) };
    let lost = crate::exit::Miss { va: pc, access: Access::Execute, lost: true, reason: 0 };
    Ok((word.map_err(|_| Exit::Miss(lost))?, span.ptr.addr()))
}

/// Words of code that are read at once.
const TOGETHER: usize = 64;

/// Reads words of code, at most `most`, as far as they lie together; how many, at least one.
fn fetch_words(world: &mut dyn World, pc: u64, words: &mut [u32; TOGETHER], most: usize) -> Result<usize, Exit> {
    let span = world.translate(pc, Access::Execute).map_err(Exit::Miss)?;
    if span.len < 4 || pc % 4 != 0 || span.ptr.addr() % 4 != 0 {
        return Err(Exit::Refused(Refusal::Illegal { word: 0 }));
    }
    let count = most.min(span.len / 4).min(TOGETHER);
    // SAFETY: within a span, while the gate is open; nothing refers to it (World). There is room.
    let copied = unsafe { vkfd_raw::copy(words.as_mut_ptr().cast(), span.ptr, 4 * count) };
    copied.map(|()| count).map_err(|fault| {
        let va = pc.wrapping_add(fault.done as u64);
        Exit::Miss(crate::exit::Miss { va, access: Access::Execute, lost: true, reason: 0 })
    })
}

/// Code as it was fetched, with the gate open, for a block that is built later.
pub(super) struct Code {
    pub(super) pc: u64,
    pub(super) layout: Layout,
    insts: Few<Inst, LENGTH>,
    /// The words that were decoded.
    words: Few<u32, { LENGTH * MAX_WORDS }>,
    /// Where they were on the host: the first and the last one.
    host: [usize; 2],
}

impl Code {
    /// Fetches a block's code from `pc` on. Allocates nothing.
    pub(super) fn fetch(world: &mut dyn World, layout: Layout, pc: u64) -> Result<Code, Exit> {
        let mut code = Code { pc, layout, insts: Few::new(), words: Few::new(), host: [0; 2] };
        let mut at = pc;
        loop {
            let inst = match code.next(world, at) {
                Ok(inst) => inst,
                // The first one is to be reported; others when they are reached.
                Err(exit) if code.insts.is_empty() => return Err(exit),
                Err(_) => break,
            };
            at = at.wrapping_add(inst.bytes.into());
            let last = ends(inst.op) && !gives_registers_back(layout.target, &inst)
                || layout.grain == Grain::Waits && waits(inst.op);
            code.insts.push(inst);
            if last || code.insts.len() == LENGTH || at / 4096 != pc / 4096 {
                break;
            }
        }
        Ok(code)
    }

    /// The instruction at an address, whose words are kept.
    fn next(&mut self, world: &mut dyn World, at: u64) -> Result<Inst, Exit> {
        let mut words = [0; MAX_WORDS];
        let mut hosts = [0; MAX_WORDS];
        let mut count = 0;
        // Not more is fetched than the instruction has: what follows it may not be there.
        while let (Some(word), Some(host)) = (words.get_mut(count), hosts.get_mut(count)) {
            (*word, *host) = fetch(world, at.wrapping_add(4 * count as u64))?;
            count += 1;
            let code = words.get(..count).unwrap_or_default();
            match decode_as_hardware(self.layout.target, code) {
                Ok(inst) => {
                    if self.words.is_empty() {
                        self.host[0] = hosts[0];
                    }
                    self.host[1] = hosts[count - 1];
                    code.iter().for_each(|word| self.words.push(*word));
                    return Ok(inst);
                }
                Err(DecodeError::Truncated(_)) => {}
                // The second word may tell what the first one is.
                Err(DecodeError::Unknown(..)) if count == 1 => {}
                Err(_) => break,
            }
        }
        Err(Exit::Refused(Refusal::Illegal { word: words[0] }))
    }
}

impl Block {
    /// Makes a block of what was fetched.
    pub(super) fn build(code: &Code, avx2: bool, constants: &mut Constants, (run, epoch): (u64, u64)) -> Block {
        let Code { pc, layout, .. } = *code;
        let mut block = Block {
            pc,
            layout,
            steps: Vec::new(),
            operands: Vec::new(),
            insts: code.insts.to_vec(),
            inexact: Vec::new(),
            words: code.words.to_vec(),
            host: code.host,
            run,
            epoch,
            orders: false,
            heat: Cell::new(0),
            #[cfg(target_arch = "x86_64")]
            plain_accesses: Cell::new(false),
            #[cfg(target_arch = "x86_64")]
            ring: None,
            #[cfg(target_arch = "x86_64")]
            in_ring: Cell::new(false),
            serial: 0,
            #[cfg(target_arch = "x86_64")]
            regions: Vec::new(),
        };
        let mut at = pc;
        let mut builder = Builder { layout, avx2, constants };
        for (inst, index) in code.insts.iter().zip(0u32..) {
            let offset = (at.wrapping_sub(pc)) as u32;
            let place = Place { inst: index, offset, bytes: inst.bytes.into() };
            builder.steps(inst, place, &mut block.steps);
            at = at.wrapping_add(inst.bytes.into());
            block.orders |= orders(inst.op);
            if let Fidelity::Approximate(_) = fidelity(inst.op, layout.target) {
                block.inexact.push(inst.op);
            }
        }
        // Every block ends with a jump.
        let place = Place { inst: block.insts.len() as u32, offset: at.wrapping_sub(pc) as u32, bytes: 0 };
        block.steps.push(place.step(scalar::fall));
        if block.orders {
            block.steps.iter_mut().for_each(|step| step.past = false);
        }
        block.steps.shrink_to_fit();
        block.insts.shrink_to_fit();
        block.inexact.shrink_to_fit();
        block.words.shrink_to_fit();
        block.link();
        block
    }

    /// Bytes of it and of its place in a table, as allocated.
    pub(super) fn bytes(&self) -> usize {
        /// Of a table that is half full, and of each allocation's own.
        const PLACE: usize = 2 * (size_of::<(u64, Layout)>() + size_of::<Box<Block>>()) + 6 * 16;
        let pairs = self.insts.iter().filter(|inst| inst.pair.is_some()).count();
        #[cfg(target_arch = "x86_64")]
        let regions = self.regions.iter().map(|entry| entry.bytes()).sum::<usize>()
            + self.ring.as_ref().map_or(0, |ring| ring.bytes());
        #[cfg(not(target_arch = "x86_64"))]
        let regions = 0;
        PLACE
            + size_of::<Block>()
            + self.steps.capacity() * size_of::<Step>()
            + self.operands.capacity() * size_of::<Operands>()
            + (self.insts.capacity() + pairs) * size_of::<Inst>()
            + self.inexact.capacity() * size_of::<Op>()
            + self.words.capacity() * size_of::<u32>()
            + regions
    }

    /// Tells the steps which comes next, and makes chains and sums. They do not move from now on.
    fn link(&mut self) {
        self.operands = self.steps.iter().map(|step| chain::operands(step).unwrap_or_default()).collect();
        // From behind, so that each step knows how many follow it.
        let (mut links, mut before) = (0, None);
        for (index, step) in self.steps.iter_mut().enumerate().rev() {
            let kind = step.chained.filter(|_| chain::operands(step).is_some()).map(|chained| chained.run);
            links = match (kind, before) {
                (Some(here), Some(next)) if std::ptr::fn_addr_eq(here, next) => links + 1,
                _ => 1,
            };
            before = kind;
            if let (Some(run), true) = (kind, links > 1) {
                step.run = run;
            }
            (step.links, step.chain) = (links, self.operands.as_ptr().wrapping_add(index));
        }
        for index in 0..self.steps.len() {
            let before = index.checked_sub(1).and_then(|index| self.steps.get(index)).map(|step| step.inst);
            if let Some(run) = sum::handler(before, self.steps.get(index..).unwrap_or_default()) {
                self.steps[index].run = run;
            }
        }
        let first = self.steps.as_mut_ptr();
        for index in 1..self.steps.len() {
            // SAFETY: both are steps of the block, and so is what is behind a chain: the last step
            // is in none.
            unsafe {
                let step = &mut *first.add(index - 1);
                (step.next, step.behind) = (first.add(index), first.add(index - 1).wrapping_add(step.links as usize));
            }
        }
    }

    /// The address after the last instruction.
    pub(super) fn end(&self) -> u64 {
        self.pc.wrapping_add(4 * self.words.len() as u64)
    }

    /// Whether the code is still what was decoded, for a wave that comes here first in a run. If it
    /// is where it was and nobody has invalidated the instruction cache, it is not looked at.
    pub(super) fn still(&mut self, world: &mut dyn World, (run, epoch): (u64, u64)) -> Result<bool, Exit> {
        let place = |world: &mut dyn World, pc| world.translate(pc, Access::Execute).map_err(Exit::Miss);
        let first = place(world, self.pc)?;
        let begin = first.ptr.addr();
        // The words lie together as far as the span goes, nearly always to the last.
        let behind = 4 * self.words.len().saturating_sub(1);
        let last = if behind < first.len {
            begin.wrapping_add(behind)
        } else {
            place(world, self.end().wrapping_sub(4))?.ptr.addr()
        };
        let host = [begin, last];
        if host != self.host || epoch != self.epoch {
            let mut index = 0;
            while index < self.words.len() {
                let at = self.pc.wrapping_add(4 * index as u64);
                let mut now = [0u32; TOGETHER];
                let count = fetch_words(world, at, &mut now, self.words.len() - index)?;
                if self.words[index..index + count] != now[..count] {
                    return Ok(false);
                }
                index += count;
            }
            self.host = host;
        }
        (self.run, self.epoch) = (run, epoch);
        Ok(true)
    }
}

#[cfg(debug_assertions)]
impl Block {
    /// Puts a step that spoils the result behind the handlers of an operation; around those of one
    /// without a destination, such that spoil what it stores.
    pub(super) fn spoil(&mut self, sabotage: &Switches) {
        if sabotage.has(Switch::Chain) {
            for (step, operands) in self.steps.iter().zip(&mut self.operands) {
                if step.links > 1 && step.chained.is_some_and(Chained::in_rows) {
                    operands[3] = operands[1];
                }
            }
            // A sum's first source is twice its second.
            for step in self.steps.iter_mut().filter(|step| step.half.is_some()) {
                if !std::ptr::fn_addr_eq(step.run, step.alone) {
                    (step.src[0], step.scalar[0]) = (step.src[1], step.scalar[1]);
                }
            }
            return;
        }
        let number = sabotage.value(Switch::Handler).and_then(|number| usize::try_from(number).ok());
        let Some(&op) = number.and_then(|number| Op::ALL.get(number)) else { return };
        for step in self.steps.iter_mut().filter(|step| step.chained.is_some() || step.half.is_some()) {
            step.run = step.alone;
        }
        let mut index = self.steps.len();
        while index > 0 {
            index -= 1;
            let step = &self.steps[index];
            let Some(inst) = self.insts.get(step.inst as usize) else { continue };
            let begin = self.steps.iter().position(|other| other.inst == step.inst).unwrap_or(index);
            if inst.op != op || std::ptr::fn_addr_eq(step.run, scalar::slow as Run) {
                continue;
            }
            let place = Place { inst: step.inst, offset: step.offset, bytes: step.bytes };
            let spoil = |operand| {
                let row = self.layout.row(operand, 1).map(|row| (row * super::step::ROW, 0));
                let word = || match operand {
                    // SCC, of an operation without a destination.
                    Operand::None if matches!(inst.format, Format::Sopc | Format::Sopk) => Some((0, 2)),
                    // EXEC alone.
                    Operand::None if inst.op.name().starts_with("v_cmpx") => Some((usize::from(Operand::EXEC), 1)),
                    _ => self.layout.scalar(operand, 1).map(|n| (usize::from(n), 1)),
                };
                let (dst, imm) = row.or_else(word)?;
                Some(Step { dst, imm, ..place.step(lane::spoil) })
            };
            if let Some(step) = spoil(inst.dst) {
                self.steps.insert(index + 1, step);
            } else if let (Some(before), Some(behind)) = (spoil(inst.memory.data), spoil(inst.memory.data)) {
                self.steps.insert(index + 1, behind);
                self.steps.insert(begin, before);
            }
            index = begin;
        }
        self.link();
    }
}

/// Whether a block ends with this operation.
pub(super) fn ends(op: Op) -> bool {
    scalar::branch(op).is_some()
        || scalar::leave(op).is_some()
        || matches!(
            op,
            Op::SSetpcB64
                | Op::SSwappcB64
                | Op::SCallB64
                | Op::SRfeB64
                | Op::SCbranchIFork
                | Op::SCbranchGFork
                | Op::SCbranchJoin
                | Op::SSetregB32
                | Op::SSetregImm32B32
                | Op::SDenormMode
                | Op::SRoundMode
                | Op::SSetvskip
                | Op::SSetGprIdxOn
                | Op::SSetGprIdxOff
                | Op::SSetGprIdxMode
                | Op::SSetGprIdxIdx
                | Op::SSleep
                | Op::STrap
                | Op::SSendmsg
                | Op::SSendmsghalt
                | Op::SIcacheInv
                | Op::SEndpgmSaved
                | Op::SSubvectorLoopBegin
                | Op::SSubvectorLoopEnd
        )
}

/// Whether an operation waits for memory on hardware.
fn waits(op: Op) -> bool {
    matches!(op, Op::SWaitcnt | Op::SWaitcntVmcnt | Op::SWaitcntVscnt | Op::SWaitcntExpcnt | Op::SWaitcntLgkmcnt)
}

/// Whether it is the message with which waves of gfx11 give their registers back before they end.
/// Nothing comes of it.
fn gives_registers_back(target: Target, inst: &Inst) -> bool {
    // NEW TARGET: messages without an effect
    target == Target::Gfx1100 && inst.op == Op::SSendmsg && inst.imm == 3
}

/// Whether an operation orders the stores before it and those after it, as a release does.
fn orders(op: Op) -> bool {
    waits(op)
        || matches!(
            op,
            Op::SWaitcntDepctr | Op::SWaitIdle | Op::SWaitEvent | Op::SBarrier | Op::SDcacheWb | Op::SDcacheWbVol
        )
        || kind(op) == Some(Kind::Nothing)
}

/// Which instruction a step is.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) inst: u32,
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

impl Place {
    /// A step without operands.
    pub(super) fn step(self, run: Run) -> Step {
        Step {
            run,
            dst: 0,
            src: [Source::register(0); 3],
            scalar: [0; 4],
            imm: 0,
            undo: None,
            inst: self.inst,
            offset: self.offset,
            bytes: self.bytes,
            next: std::ptr::null(),
            alone: run,
            rest: run,
            op: 0,
            kind: 0,
            chained: None,
            half: None,
            past: false,
            chain: std::ptr::null(),
            links: 0,
            behind: std::ptr::null(),
            last: Cell::new((0, 0)),
            #[cfg(target_arch = "x86_64")]
            region: std::ptr::null(),
        }
    }
}

/// Makes steps of instructions.
pub(super) struct Builder<'a> {
    pub(super) layout: Layout,
    pub(super) avx2: bool,
    pub(super) constants: &'a mut Constants,
}

impl Builder<'_> {
    /// Adds an instruction's steps.
    pub(super) fn steps(&mut self, inst: &Inst, place: Place, steps: &mut Vec<Step>) {
        let before = steps.len();
        if self.translate(inst, place, steps).is_none() {
            steps.truncate(before);
            steps.push(place.step(scalar::slow));
        }
    }

    fn translate(&mut self, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
        if let Some(run) = scalar::branch(inst.op) {
            let imm = i64::from(place.offset) + 4 + i64::from(inst.imm) * 4;
            steps.push(Step { imm, ..place.step(run) });
            return Some(());
        }
        if let Some(run) = scalar::leave(inst.op) {
            steps.push(place.step(run));
            return Some(());
        }
        if matches!(
            inst.op,
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
        ) {
            return Some(());
        }
        if gives_registers_back(self.layout.target, inst) {
            return Some(());
        }
        match inst.format {
            Format::Sop1 | Format::Sop2 | Format::Sopk | Format::Sopc => self.scalar(inst, place, steps),
            Format::Vop1 | Format::Vop2 | Format::Vopc | Format::Vop3 | Format::Vop3p => {
                let before = steps.len();
                let made = self.vector(inst, place, steps);
                if made.is_some() {
                    return made;
                }
                steps.truncate(before);
                if inst.extension != Extension::None {
                    return None;
                }
                packed::translate(self, inst, place, steps)
                    .or_else(|| lane::translate(self, inst, place, steps))
                    .or_else(|| pair::translate(self, inst, place, steps))
                    .or_else(|| special::translate(self, inst, place, steps))
                    .or_else(|| mix::translate(self, inst, place, steps))
                    .or_else(|| wide::translate(self, inst, place, steps))
                    .or_else(|| matrix::translate(self, inst, place, steps))
                    .or_else(|| aligned::translate(self, inst, place, steps))
                    .or_else(|| wmma::translate(self, inst, place, steps))
            }
            Format::Vopd => dual::translate(self, inst, place, steps),
            _ => memory::translate(self, inst, place, steps),
        }
    }

    fn scalar(&mut self, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
        let (shape, run) = scalar::handler(inst.op)?;
        let mut step = place.step(run);
        if shape.dst != 0 {
            step.dst = self.layout.scalar(inst.dst, shape.dst)?.into();
        }
        if shape.immediate {
            let tied = if shape.dst == 0 { inst.src[0] } else { inst.dst };
            // Comparisons with an immediate have their register where the destination would be.
            let register = [tied, inst.dst, inst.src[0]].into_iter().find(|operand| *operand != Operand::None)?;
            step.src[0] = self.scalar_source(register, (1, false))?;
            step.src[1] = self.constants.word64(i64::from(inst.imm) as u64);
        } else {
            for (index, words) in shape.src.into_iter().enumerate().filter(|(_, words)| *words != 0) {
                let operand = if shape.tied && index == 1 { inst.dst } else { inst.src[index] };
                let signed = index == 0 && matches!(inst.op, Op::SAshrI64 | Op::SBfeI64);
                step.src[index] = self.scalar_source(operand, (words, signed))?;
            }
            if inst.op == Op::SCallB64 {
                step.imm = i64::from(place.offset) + 4 + i64::from(inst.imm) * 4;
            }
        }
        steps.push(step);
        Some(())
    }

    /// A source of a scalar operation.
    /// A literal of 64 bits has zeros above, or its sign.
    pub(super) fn scalar_source(&mut self, operand: Operand, (words, signed): (u8, bool)) -> Option<Source> {
        match operand {
            Operand::Scalar(_) => Some(Source::register(usize::from(self.layout.scalar(operand, words)?) * 4)),
            Operand::Int(value) => Some(self.constants.word64(i64::from(value) as u64)),
            Operand::Literal(value) if signed => Some(self.constants.word64(i64::from(value as i32) as u64)),
            Operand::Literal(value) => Some(self.constants.word64(value.into())),
            Operand::Float(_) if words == 1 => Some(self.constants.word64(constant32(operand)?.into())),
            _ => None,
        }
    }
}
