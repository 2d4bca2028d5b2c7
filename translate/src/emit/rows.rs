// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which rows are in host registers, from one instruction of a segment to the next.
//!
//! Before each instruction the rows that it reads and writes come to registers
//! ([`Emit::prepare`]). If there are too few, the rows go whose next reads are farthest away.
//! Changed rows count as nearer, because they have to be stored: in the context, with all lanes.
//! When the strip ends, the active lanes go to the wave's rows. They go there at once if no load of
//! the strip may miss any more. Registers without a row are the instruction's temporaries.
//!
//! A loop whose strips do all rounds begins each round with the same rows in the same registers:
//! *fixed* ones ([`Emit::begin_strip`], [`Emit::end_round`]). Others that one round hands to the
//! next are in the context then.
//!
//! An instruction's temporaries are counted while its code is written ([`Needs`]).

use super::*;
use crate::context::{Context, KEPT_ROWS};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::mem::offset_of;
use vkfd_isa::Operand;

/// Host registers that the widest code has.
const MOST: usize = 32;

/// Which an instruction's rows are.
type Few = SmallVec<[u16; 16]>;

/// An instruction reads a row, and may write it as well, or only writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Read,
    Write,
}

/// A row of a segment.
#[derive(Clone, Debug, Default)]
struct Planned {
    row: u16,
    /// By the instruction's number.
    events: SmallVec<[(usize, Event); 4]>,
    /// The first event reads it, so that a loop reads what the round before has left.
    is_live: bool,
    is_written: bool,
    /// Somebody reads it behind the segment.
    lasts: bool,
    /// Its register at the begin of each round.
    fixed: Option<usize>,
    /// Its place in the context.
    slot: usize,
}

/// When a row is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// After so many instructions.
    Read(usize),
    /// Behind the segment.
    Behind,
    /// Its value is not read any more.
    Never,
}

impl Next {
    /// The same as a distance to compare. A row that has changed is stored and loaded again, and
    /// the loads wait for the stores. One that has not is at most loaded, often by the instruction
    /// that reads it.
    fn of(self, state: State) -> Next {
        match self {
            Next::Read(distance) if state == State::Clean => Next::Read(4 * distance),
            next => next,
        }
    }
}

/// The rows of a segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    rows: Vec<Planned>,
    /// Their places in the list, by row, counted from one.
    places: Vec<u16>,
    is_loop: bool,
    length: usize,
    /// How many rows are fixed.
    fixed_count: usize,
}

impl Plan {
    pub(crate) fn new(is_loop: bool) -> Plan {
        Plan { rows: Vec::new(), places: Vec::new(), is_loop, length: 0, fixed_count: 0 }
    }

    fn get(&self, row: u16) -> Option<&Planned> {
        let place = *self.places.get(usize::from(row))?;
        self.rows.get(usize::from(place).checked_sub(1)?)
    }

    /// The row, as a new one if it is not there yet.
    fn entry(&mut self, row: u16) -> &mut Planned {
        let index = usize::from(row);
        if self.places.len() <= index {
            self.places.resize(index + 1, 0);
        }
        if self.places[index] == 0 {
            self.rows.push(Planned { row, slot: self.rows.len(), ..Planned::default() });
            self.places[index] = self.rows.len() as u16;
        }
        &mut self.rows[usize::from(self.places[index]) - 1]
    }

    /// Adds the next instruction: the rows that it reads and those that it writes.
    pub(crate) fn add(&mut self, reads: &[u16], writes: &[u16]) {
        let now = self.length;
        self.length += 1;
        for row in reads {
            let known = self.entry(*row);
            known.is_live |= known.events.is_empty();
            if known.events.last() != Some(&(now, Event::Read)) {
                known.events.push((now, Event::Read));
            }
        }
        for row in writes {
            let known = self.entry(*row);
            known.is_written = true;
            if known.events.last().is_none_or(|(at, _)| *at != now) {
                known.events.push((now, Event::Write));
            }
        }
    }

    /// All instructions are known: which rows are read behind the segment.
    pub(crate) fn finish(&mut self, lasts: impl Fn(u16) -> bool) {
        for known in &mut self.rows {
            known.lasts = known.is_written && lasts(known.row);
        }
    }

    /// Whether a round reads what the one before it has left in a row.
    pub(super) fn is_live(&self, row: u16) -> bool {
        self.get(row).is_some_and(|known| known.is_live)
    }

    /// The most rows that have a value at once, or get one. As long as there are events.
    pub(crate) fn pressure(&self) -> usize {
        // How many rows more or fewer have one, by instruction.
        let mut changes = vec![0isize; self.length + 1];
        let mut hold = |range: std::ops::Range<usize>| {
            changes[range.start] += 1;
            changes[range.end] -= 1;
        };
        for known in &self.rows {
            let mut behind = 0;
            for &(at, event) in &known.events {
                hold(if event == Event::Read { behind..at + 1 } else { at..at + 1 });
                behind = at + 1;
            }
            if known.lasts || self.is_loop && known.is_live {
                hold(behind..self.length);
            }
        }
        let counts = changes.into_iter().scan(0isize, |rows, change| {
            *rows += change;
            Some(*rows)
        });
        counts.max().unwrap_or(0).unsigned_abs()
    }

    /// How many registers of a loop may be the same ones in each round.
    pub(crate) fn fix(&mut self, most: usize) {
        if !self.is_loop {
            return;
        }
        // What a round hands to the next one is on the longest way through the loop.
        let mut order: Vec<(usize, &mut Planned)> = self
            .rows
            .iter_mut()
            .filter(|known| known.is_live)
            .map(|known| (known.events.len() + if known.is_written { 4 } else { 0 }, known))
            .collect();
        order.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        for (register, (_, known)) in order.into_iter().take(most).enumerate() {
            known.fixed = Some(register);
            self.fixed_count = register + 1;
        }
    }

    /// Rows that are put back when the segment is not done after all.
    pub(crate) fn restored(&self) -> impl Iterator<Item = u16> + '_ {
        let is = |known: &&Planned| known.is_written && (known.lasts || known.is_live);
        self.rows.iter().filter(is).map(|known| known.row)
    }

    /// Whether the context has room for all rows.
    pub(crate) fn fits(&self) -> bool {
        self.rows.len() <= KEPT_ROWS
    }

    fn next(&self, row: u16, from: usize) -> Next {
        let Some(known) = self.get(row) else { return Next::Never };
        let index = known.events.partition_point(|(at, _)| *at < from);
        match known.events.get(index) {
            Some((at, Event::Read)) => Next::Read(at - from),
            Some((_, Event::Write)) => Next::Never,
            None if self.is_loop && known.is_live => {
                Next::Read(self.length - from + known.events.first().map_or(0, |(at, _)| *at))
            }
            None if known.lasts => Next::Behind,
            None => Next::Never,
        }
    }

    fn is_written(&self, row: u16) -> bool {
        self.get(row).is_some_and(|known| known.is_written)
    }

    /// Fixed rows, and their registers.
    fn fixed(&self) -> Vec<(u16, usize)> {
        self.rows.iter().filter_map(|known| known.fixed.map(|register| (known.row, register))).collect()
    }

    /// Rows that a round reads from the one before it, and that are not fixed.
    fn handed_on(&self) -> Vec<u16> {
        let is = |known: &&Planned| self.is_loop && known.is_live && known.is_written && known.fixed.is_none();
        self.rows.iter().filter(is).map(|known| known.row).collect()
    }
}

/// What a register has of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing yet: the present instruction writes it.
    Fresh,
    /// The same as memory.
    Clean,
    Dirty,
}

/// Where rows are at a place of the code.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// Of registers that have a row, a bit each.
    taken: u32,
    registers: [(u16, State); MOST],
    /// Rows whose place is the context and not the wave's row.
    spilled: Vec<u16>,
    /// Registers that are temporaries now.
    free: u32,
    /// Registers that there are.
    usable: u32,
    /// The instruction's number, and the number of its entry in [`Needs`].
    item: usize,
    pub(super) need: usize,
}

/// The numbers of bits that are set.
fn bits_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (bit < u32::BITS).then_some(bit as usize)
    })
}

impl Held {
    pub(super) fn new(width: Width) -> Held {
        let usable = u32::MAX >> (MOST - Emit::usable(width));
        let registers = [(0, State::Fresh); MOST];
        Held { taken: 0, registers, spilled: Vec::new(), free: usable, usable, item: 0, need: 0 }
    }

    /// Registers that have a row, with it.
    fn all(&self) -> impl Iterator<Item = (usize, u16, State)> + '_ {
        bits_of(self.taken).map(|register| (register, self.registers[register].0, self.registers[register].1))
    }

    fn find(&self, row: u16) -> Option<(usize, State)> {
        self.all().find(|(_, other, _)| *other == row).map(|(register, _, state)| (register, state))
    }

    fn is_taken(&self, register: usize) -> bool {
        self.taken >> register & 1 != 0
    }

    fn put(&mut self, register: usize, row: u16, state: State) {
        self.registers[register] = (row, state);
        self.taken |= 1 << register;
    }

    fn take(&mut self, register: usize) -> Option<(u16, State)> {
        let held = self.is_taken(register).then_some(self.registers[register]);
        self.taken &= !(1 << register);
        held
    }

    /// How many registers have no row.
    fn room(&self) -> usize {
        (self.usable & !self.taken).count_ones() as usize
    }

    /// Registers without a row become temporaries.
    fn list(&mut self) {
        self.free = self.usable & !self.taken;
    }

    /// The temporary of this number.
    pub(super) fn temp(&self, number: usize) -> Option<usize> {
        bits_of(self.free).nth(number)
    }
}

impl Emit {
    /// Whether the segment writes a row.
    pub(crate) fn writes(&self, row: u16) -> bool {
        self.plan.is_written(row)
    }

    /// Rows that somebody reads behind the segment.
    pub(crate) fn lasting(&self) -> BTreeSet<u16> {
        self.plan.rows.iter().filter(|known| known.lasts).map(|known| known.row).collect()
    }

    fn slot(&self, row: u16) -> MemoryOperand {
        let slot = self.plan.get(row).map_or(0, |known| known.slot);
        at(Register::RDX, i64::try_from(offset_of!(Context, spilled_rows) + 64 * slot).unwrap_or(0))
    }

    /// Where a row is that is in no register.
    fn place(&self, row: u16) -> MemoryOperand {
        if self.held.spilled.contains(&row) {
            self.slot(row)
        } else {
            self.row(row)
        }
    }

    /// A row, where it is.
    pub(crate) fn row_source(&self, row: u16) -> Src {
        let row = row + self.strip;
        match self.held.find(row) {
            Some((register, State::Clean | State::Dirty)) => Src::Reg(self.width.vector(register)),
            _ => Src::Row(self.place(row)),
        }
    }

    /// The register that a row's new value is made in.
    pub(crate) fn row_destination(&mut self, row: u16) -> Register {
        let row = row + self.strip;
        match self.held.find(row) {
            Some((register, _)) => self.width.vector(register),
            None => self.temp(),
        }
    }

    /// A row has a new value.
    pub(crate) fn settle(&mut self, row: u16, value: Register) {
        let row = row + self.strip;
        if let Some((register, _)) = self.held.find(row) {
            self.mov(self.width.vector(register), Src::Reg(value));
            self.held.put(register, row, State::Dirty);
            return;
        }
        self.spill(row, value);
    }

    fn spill(&mut self, row: u16, value: Register) {
        if self.held.item >= self.home_from {
            self.held.spilled.retain(|other| *other != row);
            self.store_home(row, value);
            return;
        }
        let to = self.slot(row);
        self.asm.add(Instruction::with2(width::STORE.of(self.width), to, value));
        if !self.held.spilled.contains(&row) {
            self.held.spilled.push(row);
        }
    }

    /// Stores the active lanes in the wave's row, without a temporary.
    fn store_home(&mut self, row: u16, value: Register) {
        let (place, code) = (self.row(row), width::STORE.of(self.width));
        if self.width.is_wide() {
            self.masked(EXEC, Instruction::with2(code, place, value));
            return;
        }
        // Stores of some lanes are slow on some processors.
        let partly = self.asm.label();
        self.unless_all(partly);
        self.asm.add(Instruction::with2(code, place, value));
        self.lies_behind(partly, move |e| {
            let exec = e.exec_vector();
            e.asm.add(Instruction::with3(Code::VEX_Vmaskmovps_m256_ymm_ymm, place, exec, value));
        });
    }

    /// Jumps unless all lanes of a narrow strip are active.
    fn unless_all(&mut self, partly: Label) {
        let exec = Emit::mask_place(MaskPlace::Scalar(Operand::EXEC));
        self.asm.add(Instruction::with2(Code::Cmp_rm8_imm8, exec, 0xffu32));
        self.asm.jump_if(When::NotZero, partly);
    }

    fn load_row(&mut self, row: u16, register: usize) {
        let (code, from) = (width::LOAD.of(self.width), self.place(row));
        self.asm.add(Instruction::with2(code, self.width.vector(register), from));
        self.hold(row, register, State::Clean);
    }

    fn hold(&mut self, row: u16, register: usize, state: State) {
        self.held.put(register, row, state);
    }

    /// Takes a register's row out of it.
    fn evict(&mut self, register: usize) {
        let Some((row, state)) = self.held.take(register) else { return };
        if state == State::Dirty && self.plan.next(row, self.held.item) != Next::Never && !self.loses_rows {
            self.spill(row, self.width.vector(register));
        }
    }

    /// A free register for a row: its own one if possible, and no other row's own one.
    fn register_for(&self, row: u16) -> Option<usize> {
        let is_free = |n: &usize| !self.held.is_taken(*n);
        let own = self.plan.get(row).and_then(|known| known.fixed);
        if let Some(own) = own.filter(is_free) {
            return Some(own);
        }
        let of_others = self.plan.fixed_count;
        let usable = Emit::usable(self.width);
        (of_others..usable).chain(0..of_others.min(usable)).find(is_free)
    }

    /// The row without a pin whose register costs least, and that register.
    fn cheapest(&self, pinned: &[u16]) -> Option<(Next, usize)> {
        self.held
            .all()
            .filter(|(_, row, _)| !pinned.contains(row))
            .map(|(register, row, state)| (self.plan.next(row, self.held.item).of(state), register))
            .max()
    }

    /// Makes room until so many registers are free, without these rows' ones.
    fn make_room(&mut self, count: usize, pinned: &[u16]) {
        while self.held.room() < count {
            let Some((_, register)) = self.cheapest(pinned) else { return };
            self.evict(register);
        }
    }

    /// From an instruction of this number on, the strip may write the wave's rows: none of its
    /// loads misses any more.
    pub(crate) fn spills_home_from(&mut self, item: usize) {
        self.home_from = item;
    }

    /// What comes next belongs to no instruction.
    pub(crate) fn outside(&mut self) {
        (self.held.item, self.held.need) = (self.plan.length, self.needs.last());
    }

    /// The instruction of this number is next, which reads and writes these rows. A `light` body
    /// leaves out results that nobody reads.
    pub(crate) fn prepare(&mut self, item: usize, is_light: bool, reads: &[u16], writes: &[u16]) {
        let of_strip = |row: &u16| row + self.strip;
        let (reads, writes): (Few, Few) = (reads.iter().map(of_strip).collect(), writes.iter().map(of_strip).collect());
        // Behind the first strip's instructions are the second one's.
        let item = item + if self.strip == 0 { 0 } else { self.plan.length / 2 };
        (self.held.item, self.held.need) = (item, item + if is_light { self.plan.length } else { 0 });
        // The result of their instruction is not needed.
        let fresh = self.held.all().filter(|(.., state)| *state == State::Fresh);
        self.held.taken &= !fresh.fold(0, |fresh, (register, ..)| fresh | 1 << register);
        let mut pinned: Few = reads.iter().chain(&writes).copied().collect();
        pinned.sort_unstable();
        pinned.dedup();
        if self.loses_rows {
            self.make_room(MOST, &pinned);
        }
        let (targets, sources): (Few, Few) =
            pinned.iter().copied().filter(|row| self.held.find(*row).is_none()).partition(|row| writes.contains(row));
        let needs = self.needs.of(self.held.need);
        // Sources may be in memory as well, and results in temporaries.
        if self.held.room() < targets.len() + needs {
            for kept in [&pinned[..], &writes, &[]] {
                self.make_room(targets.len() + needs, kept);
            }
        }
        for row in targets {
            let Some(register) = self.register_for(row).filter(|_| self.held.room() > needs) else { break };
            if reads.contains(&row) {
                self.load_row(row, register);
            } else {
                self.hold(row, register, State::Fresh);
            }
        }
        for row in sources {
            let again = self.plan.next(row, item + 1);
            let is_fixed = self.plan.get(row).is_some_and(|known| known.fixed.is_some());
            if !matches!(again, Next::Read(distance) if is_fixed || item + 1 + distance < self.plan.length) {
                continue;
            }
            if self.held.room() <= needs {
                match self.cheapest(&pinned) {
                    Some((next, register)) if next > again.of(State::Clean) => self.evict(register),
                    _ => continue,
                }
            }
            if let Some(register) = self.register_for(row) {
                self.load_row(row, register);
            }
        }
        self.held.list();
    }

    /// A strip begins: fixed rows come to their registers, and rows that rounds hand on to the
    /// context.
    pub(crate) fn begin_strip(&mut self) {
        self.held = Held::new(self.width);
        self.outside();
        for (row, register) in self.plan.fixed() {
            self.load_row(row, register);
        }
        self.held.list();
        for row in self.plan.handed_on() {
            self.begin();
            let room = self.temp();
            self.asm.add(Instruction::with2(width::LOAD.of(self.width), room, self.row(row)));
            self.spill(row, room);
        }
        self.begin_round();
    }

    /// Where rows are at the begin of each round.
    pub(crate) fn begin_round(&mut self) {
        self.held = Held::new(self.width);
        self.outside();
        for (row, register) in self.plan.fixed() {
            let state = if self.plan.is_written(row) { State::Dirty } else { State::Clean };
            self.held.put(register, row, state);
        }
        self.held.spilled = self.plan.handed_on();
        self.held.list();
    }

    /// A loop's round ends: rows go where the next one expects them.
    pub(crate) fn end_round(&mut self) {
        self.outside();
        let (fixed, handed_on) = (self.plan.fixed(), self.plan.handed_on());
        for register in 0..Emit::usable(self.width) {
            let (true, (row, state)) = (self.held.is_taken(register), self.held.registers[register]) else { continue };
            if fixed.contains(&(row, register)) {
                continue;
            }
            if fixed.iter().any(|(other, at)| *other == row || *at == register) {
                self.evict(register);
            } else if state == State::Dirty && handed_on.contains(&row) {
                self.spill(row, self.width.vector(register));
                self.held.put(register, row, State::Clean);
            }
        }
        for (row, register) in fixed {
            if !self.held.is_taken(register) {
                self.load_row(row, register);
            }
        }
        self.held.list();
    }

    /// The strip ends: the active lanes of rows that somebody reads go to the wave.
    pub(crate) fn end_strip(&mut self) {
        self.outside();
        let lasts = |plan: &Plan, row: u16| plan.get(row).is_some_and(|known| known.lasts);
        let stays = |(_, row, state): &(usize, u16, State)| *state == State::Dirty && lasts(&self.plan, *row);
        let dirty: SmallVec<[(usize, u16, State); MOST]> = self.held.all().filter(stays).collect();
        self.held.taken = dirty.iter().fold(0, |taken, (register, ..)| taken | 1 << register);
        self.held.list();
        if let Some(&(register, row, _)) = dirty.first().filter(|_| self.held.free == 0) {
            // Storing takes a register.
            self.spill(row, self.width.vector(register));
            self.held.take(register);
            self.held.list();
        }
        let in_registers = self.held.all().map(|(register, row, _)| (row, Src::Reg(self.width.vector(register))));
        let spilled = self.held.spilled.iter().copied();
        let in_context = spilled.filter(|row| lasts(&self.plan, *row) && self.held.find(*row).is_none());
        let rows: Vec<(u16, Src)> = in_registers.chain(in_context.map(|row| (row, Src::Row(self.slot(row))))).collect();
        if !self.width.is_wide() && rows.len() > 1 {
            self.store_narrow(rows);
        } else {
            self.store_all(rows);
        }
        (self.held.taken, self.held.spilled) = (0, Vec::new());
        self.held.list();
    }

    fn store_all(&mut self, rows: Vec<(u16, Src)>) {
        for (row, value) in rows {
            self.begin();
            self.store(row, value);
        }
    }

    /// Stores the active lanes of narrow rows: without a look at the old ones if all are active.
    fn store_narrow(&mut self, rows: Vec<(u16, Src)>) {
        let partly = self.asm.label();
        self.unless_all(partly);
        for (row, value) in &rows {
            self.begin();
            let value = self.reg(*value);
            self.asm.add(Instruction::with2(width::STORE.of(self.width), self.row(*row), value));
        }
        self.begin();
        self.lies_behind(partly, move |e| e.store_all(rows));
    }

    /// Stores the active lanes of a row.
    fn store(&mut self, row: u16, value: Src) {
        let (place, code) = (self.row(row), width::STORE.of(self.width));
        if self.width.is_wide() {
            let value = self.reg(value);
            self.masked(EXEC, Instruction::with2(code, place, value));
            return;
        }
        let (old, exec) = (self.temp(), self.exec_vector());
        self.asm.add(Instruction::with2(width::LOAD.of(self.width), old, place));
        let blend = Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm;
        match value {
            Src::Row(from) => self.asm.add(Instruction::with4(blend, old, old, from, exec)),
            value => {
                let value = self.reg(value);
                self.asm.add(Instruction::with4(blend, old, old, value, exec));
            }
        }
        self.asm.add(Instruction::with2(code, place, old));
    }

    /// Keeps a row as it is before the strip writes it.
    pub(crate) fn save(&mut self, row: u16, to: MemoryOperand) {
        let value = match self.row_source(row) {
            Src::Reg(register) => register,
            _ => {
                let value = self.temp();
                self.asm.add(Instruction::with2(width::LOAD.of(self.width), value, self.row(row)));
                value
            }
        };
        self.asm.add(Instruction::with2(width::STORE.of(self.width), to, value));
    }
}
