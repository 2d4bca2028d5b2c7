// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Late loads: their results arrive at the wait, and no sooner.
//!
//! Hardware writes a load's result to its register at any time between the load and the
//! `s_waitcnt` that it needs. The engines do so at once, which hides a missing wait. In another
//! than the usual order ([`Schedule`](crate::launch::Schedule)), the registers keep their old
//! contents until a wait says that the result is there. The counters and their order are those of
//! the static check ([`vkfd_lint::live::Flight`]).
//!
//! Which time's memory a load reads, is drawn: that of the load, or that of the wait. So a store
//! that nothing keeps behind the load may be seen by it. Loads of a wave see memory in their order,
//! and none sees a later store of its own wave.
//!
//! A load arrives early when a later load has the same registers, as hardware keeps that order. It
//! also does when [`MOST`] loads of its wave are under way. Atomic operations are done at once;
//! what they return is late.
//!
//! Limits: stores are never late. Loads that the race check orders waves by read at once.

use crate::group::Group;
use crate::launch::Choices;
use crate::reference::{memory, operand};
use crate::wave::{Row, Wave};
use crate::world::World;
use vkfd_isa::{Format, Inst, Operand};
use vkfd_lint::live::{Code, Flight, Registers, ACCUMULATION, VECTOR};
use vkfd_sabotage::{process, Switch};

/// Loads of a wave that are late at a time.
const MOST: usize = 16;
/// Rows of a result, and of addresses and data that are read.
const ROWS: usize = 5;
const INPUTS: usize = 4;
/// Scalar registers of a result.
const WORDS: usize = 16;

/// Registers with contents.
#[derive(Clone, Copy, Debug)]
struct Contents<const N: usize> {
    rows: [Row; N],
    /// Which rows these are.
    places: [u16; N],
    count: usize,
    words: [u32; WORDS],
    scalars: [u8; WORDS],
    scalar_count: usize,
}

impl<const N: usize> Contents<N> {
    const NONE: Contents<N> = Contents {
        rows: [Row::ZERO; N],
        places: [0; N],
        count: 0,
        words: [0; WORDS],
        scalars: [0; WORDS],
        scalar_count: 0,
    };

    /// The contents of some registers; nothing if these are too many, or not the wave's.
    fn of(&mut self, wave: &Wave, registers: &Registers, with_scalars: bool) -> Option<()> {
        (self.count, self.scalar_count) = (0, 0);
        for number in registers.iter() {
            let operand = match number {
                ACCUMULATION.. => Operand::Agpr(number - ACCUMULATION),
                VECTOR.. => Operand::Vgpr(number - VECTOR),
                _ if !with_scalars => continue,
                _ => {
                    let n = u8::try_from(number).ok()?;
                    *self.scalars.get_mut(self.scalar_count)? = n;
                    self.scalar_count += 1;
                    continue;
                }
            };
            *self.places.get_mut(self.count)? = u16::try_from(operand::row(wave, operand, 1).ok()?).ok()?;
            self.count += 1;
        }
        self.take(wave);
        Some(())
    }

    /// The same registers' contents as they are now.
    fn take(&mut self, wave: &Wave) {
        for (row, place) in self.rows.iter_mut().zip(self.places).take(self.count) {
            *row = wave.rows.get(usize::from(place)).copied().unwrap_or(Row::ZERO);
        }
        for (word, n) in self.words.iter_mut().zip(self.scalars).take(self.scalar_count) {
            *word = wave.scalar.get(usize::from(n)).copied().unwrap_or(0);
        }
    }

    /// Puts them into the wave, in these lanes.
    fn put(&self, wave: &mut Wave, lanes: u64) {
        for (row, place) in self.rows.iter().zip(self.places).take(self.count) {
            let Some(to) = wave.rows.get_mut(usize::from(place)) else { continue };
            for (lane, (to, from)) in to.0.iter_mut().zip(&row.0).enumerate() {
                if lanes >> lane & 1 == 1 {
                    *to = *from;
                }
            }
        }
        for (word, n) in self.words.iter().zip(self.scalars).take(self.scalar_count) {
            if let Some(to) = wave.scalar.get_mut(usize::from(n)) {
                *to = *word;
            }
        }
    }
}

/// A load under way.
#[derive(Clone, Copy, Debug)]
struct Load {
    inst: Option<Inst>,
    number: u16,
    /// Its lanes, of a vector instruction.
    exec: u64,
    registers: Registers,
    result: Contents<ROWS>,
    /// What it reads, if it may be done again.
    again: bool,
    inputs: Contents<INPUTS>,
    scalar: [u32; 128],
}

impl Load {
    const NONE: Load = Load {
        inst: None,
        number: 0,
        exec: 0,
        registers: Registers::NONE,
        result: Contents::NONE,
        again: false,
        inputs: Contents::NONE,
        scalar: [0; 128],
    };

    /// Reads memory as it is now. Where that is not there any more, what was read before counts.
    fn repeat<W: World>(&mut self, wave: &mut Wave, group: &mut Group, world: &mut W) {
        let (scalar, done) = (wave.scalar, wave.done);
        let (mut inputs, mut results) = (self.inputs, self.result);
        inputs.take(wave);
        results.take(wave);
        wave.scalar = self.scalar;
        self.inputs.put(wave, u64::MAX);
        let read = self.inst.is_some_and(|inst| memory::execute(&inst, wave, group, world).is_ok());
        if read {
            self.result.take(wave);
        }
        results.put(wave, u64::MAX);
        inputs.put(wave, u64::MAX);
        (wave.scalar, wave.done) = (scalar, done);
    }
}

/// The loads of a wave.
#[derive(Clone, Debug)]
struct Loads {
    /// In their order.
    list: Vec<Load>,
    flight: Flight,
    /// They read memory when they arrive.
    moved: bool,
    /// The number of the next one.
    next: u16,
}

impl Loads {
    fn new() -> Loads {
        Loads { list: Vec::with_capacity(MOST), flight: Flight::new(MOST), moved: false, next: 0 }
    }

    /// All read memory now, for the last time.
    fn read<W: World>(&mut self, wave: &mut Wave, group: &mut Group, world: &mut W) {
        for load in self.list.iter_mut().filter(|load| load.again) {
            load.repeat(wave, group, world);
            load.again = false;
        }
    }

    /// The first `count` arrive.
    fn arrive<W: World>(&mut self, count: usize, wave: &mut Wave, group: &mut Group, world: &mut W) {
        for load in self.list.iter_mut().take(count) {
            if load.again && self.moved {
                load.repeat(wave, group, world);
            }
            load.result.put(wave, load.exec);
            self.flight.forget(load.number);
        }
        self.list.drain(..count);
    }
}

/// The late loads of a group.
#[derive(Clone, Debug)]
pub(super) struct Late {
    waves: Vec<Loads>,
    choices: Choices,
    /// The load that is about to run, and the contents of its result's registers.
    draft: Box<Load>,
    is_draft: bool,
}

impl Late {
    pub(super) fn new(choices: Choices, waves: u32) -> Late {
        let waves = (0..waves).map(|_| Loads::new()).collect();
        Late { waves, choices, draft: Box::new(Load::NONE), is_draft: false }
    }

    /// An instruction is about to run. `moves`: loads may read memory later than they run.
    pub(super) fn before<W: World>(
        &mut self,
        (inst, code): (&Inst, &Code),
        moves: bool,
        wave: &mut Wave,
        group: &mut Group,
        world: &mut W,
    ) {
        self.is_draft = false;
        let Some(loads) = self.waves.get_mut(usize::from(wave.index)) else { return };
        if code.may_store() && loads.moved {
            loads.read(wave, group, world);
        }
        let results = code.results();
        let reaches = code.only_loads() || code.may_store();
        let scalar = inst.format == Format::Smem;
        if !reaches || results == Registers::NONE || wave.exec() == 0 && !scalar || process().has(Switch::PromptLoads) {
            return;
        }
        // Hardware has an order where registers are the same; and there is room for so many.
        let changed = code.changed();
        let same = loads.list.iter().rposition(|load| load.registers.touches(&changed)).map_or(0, |at| at + 1);
        let full = usize::from(loads.list.len() == MOST);
        loads.arrive(same.max(full), wave, group, world);
        let draft = &mut *self.draft;
        if draft.result.of(wave, &results, true).is_none() {
            return;
        }
        if loads.list.is_empty() {
            loads.moved = moves && self.choices.below(2) == 1;
        }
        // What keeps a part of its register is not done again.
        draft.again = code.only_loads() && changed == results;
        let (mut reads, mut writes) = (Registers::NONE, Registers::NONE);
        code.add_to(&mut reads, &mut writes);
        draft.again &= draft.inputs.of(wave, &reads, false).is_some();
        (draft.inst, draft.exec, draft.registers, draft.scalar) = (Some(*inst), wave.exec(), results, wave.scalar);
        draft.number = loads.next;
        self.is_draft = true;
    }

    /// It has run. `memory`: it has reached memory.
    pub(super) fn after<W: World>(
        &mut self,
        code: &Code,
        memory: bool,
        wave: &mut Wave,
        group: &mut Group,
        world: &mut W,
    ) {
        let is_draft = std::mem::take(&mut self.is_draft);
        let Some(loads) = self.waves.get_mut(usize::from(wave.index)) else { return };
        let number = is_draft.then_some(loads.next);
        loads.flight.run(wave.target, code, memory, number);
        if is_draft && loads.flight.has(loads.next) {
            let draft = &mut *self.draft;
            let old = draft.result;
            draft.result.take(wave);
            old.put(wave, u64::MAX);
            loads.list.push(*draft);
            loads.next = (loads.next + 1) % 256;
        }
        // Those that no wait was for may have younger ones among them that it was for.
        while let Some(at) = loads.list.iter().position(|load| !loads.flight.has(load.number)) {
            let load = loads.list.get_mut(at).filter(|load| load.again && loads.moved);
            if let Some(load) = load {
                load.repeat(wave, group, world);
            }
            let load = loads.list.remove(at);
            load.result.put(wave, load.exec);
        }
    }
}
