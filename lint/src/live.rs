// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The check of waits for an interpreter: the registers of one wave that are late.
//!
//! The rules are those of the static check. Here the wave's own way is followed, over calls and
//! indirect branches, and a vector instruction without active lanes uses no register. Nothing is
//! allocated once a [`Live`] is made: GPU accesses, in which instructions run, must not allocate.
//!
//! Limits: of more than [`ROOM`] late registers the rest is not followed.

use vkfd_isa::{Inst, Target};

use crate::class::Class;
use crate::counter::{counts, events, wait, Kind, Late, State};
use crate::register::{Register, Role, Use};
use crate::step::{step, Step};
use crate::waits::{message, rule, How};

pub use crate::counter::Wait as Waited;
pub use crate::step::prepare;

/// Late registers of a wave that are followed.
const ROOM: usize = 256;

/// The counts that an instruction waits for.
#[must_use]
pub fn waited(target: Target, inst: &Inst) -> Waited {
    counts(target, inst.op, inst.imm)
}

/// An instruction as the check sees it.
#[derive(Clone, Debug)]
pub struct Code(Step);

impl Code {
    /// The instruction of these words, at an offset of its kernel. `lanes`: of the wave.
    #[must_use]
    pub fn new(target: Target, lanes: u8, offset: u32, words: &[u32], inst: &Inst) -> Code {
        Code(step(target, if lanes > 32 { 2 } else { 1 }, offset, words, inst))
    }
}

impl Code {
    /// The registers that it reads and writes, which are added to those of other instructions.
    pub fn add_to(&self, reads: &mut Registers, writes: &mut Registers) {
        let Code(step) = self;
        step.reads.iter().for_each(|operand| reads.add(operand));
        step.writes.iter().for_each(|operand| writes.add(operand));
    }

    /// The registers that its result goes to, as far as lanes write them.
    #[must_use]
    pub fn results(&self) -> Registers {
        let mut results = Registers::NONE;
        self.0.writes.iter().for_each(|operand| results.add(operand));
        results
    }

    /// The same, and those of which a part stays.
    #[must_use]
    pub fn changed(&self) -> Registers {
        let mut changed = self.results();
        self.0.reads.iter().filter(|operand| operand.role == Role::Old).for_each(|operand| changed.add(operand));
        changed
    }

    /// Whether it loads, and does nothing else: to be done again is no harm.
    #[must_use]
    pub fn only_loads(&self) -> bool {
        let (class, name) = (self.0.class, self.0.op.name());
        let loads = name.contains("_load") || name.starts_with("ds_read");
        loads && class.intersects(Class::MEMORY | Class::SMEM) && !class.intersects(Class::LDS_DMA | Class::GDS)
    }

    /// Whether it may change memory.
    #[must_use]
    pub fn may_store(&self) -> bool {
        self.0.class.intersects(Class::MEMORY | Class::SMEM) && !self.only_loads()
    }
}

/// Words of 64 bits for all registers' numbers.
const WORDS: usize = 12;

/// A set of registers. Scalar ones are numbered from 0 on, vector registers from [`VECTOR`] and
/// accumulation registers from [`ACCUMULATION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers([u64; WORDS]);

/// The number of the first vector register.
pub const VECTOR: u16 = crate::register::VGPR;
/// The number of the first accumulation register.
pub const ACCUMULATION: u16 = crate::register::AGPR;

impl Registers {
    /// An empty one.
    pub const NONE: Registers = Registers([0; WORDS]);

    fn insert(&mut self, register: Register) {
        if let Some(word) = self.0.get_mut(usize::from(register / 64)) {
            *word |= 1 << (register % 64);
        }
    }

    /// Adds another set's.
    pub fn join(&mut self, other: &Registers) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    fn add(&mut self, operand: Use) {
        operand.registers().for_each(|register| self.insert(register));
    }

    /// Whether both have a register.
    #[must_use]
    pub fn touches(&self, other: &Registers) -> bool {
        self.0.iter().zip(&other.0).any(|(one, other)| one & other != 0)
    }

    /// Whether it has a register.
    #[must_use]
    pub fn has(&self, register: u16) -> bool {
        self.0.get(usize::from(register / 64)).is_some_and(|word| word >> (register % 64) & 1 == 1)
    }

    /// Their numbers.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().zip((0..).step_by(64)).flat_map(|(word, first)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.checked_sub(1)?;
                Some(first + u16::try_from(bit).unwrap_or(0))
            })
        })
    }
}

/// Operations of a wave that are under way, by the caller's numbers. Their order is that of the
/// counters. Nothing is allocated once it is made.
#[derive(Clone, Debug)]
pub struct Flight(State);

impl Flight {
    /// One with room for so many operations.
    #[must_use]
    pub fn new(room: usize) -> Flight {
        Target::ALL.into_iter().for_each(prepare);
        // FLAT counts on two counters.
        Flight(State::fixed(2 * room))
    }

    /// An instruction runs: operations that it waits for have completed. Its own gets a number,
    /// if there is one. `memory`: as FLAT, it reaches memory and not LDS.
    pub fn run(&mut self, target: Target, Code(step): &Code, memory: bool, number: Option<u16>) {
        let Flight(state) = self;
        state.wait(wait(target, step));
        for &event in events(target, step, memory).iter() {
            let own = number.filter(|_| event.result);
            let own = own.map(|number| Use { first: number, count: 1, role: Role::Destination });
            state.start(target, event, own.into_iter(), step.offset);
        }
    }

    /// Whether an operation is under way.
    #[must_use]
    pub fn has(&self, number: u16) -> bool {
        !self.0.of(Use { first: number, count: 1, role: Role::Destination }).is_empty()
    }

    /// An operation counts as completed.
    pub fn forget(&mut self, number: u16) {
        self.0.forget(Use { first: number, count: 1, role: Role::Destination });
    }
}

/// A register that is used too early.
#[derive(Clone, Copy, Debug)]
pub struct Early {
    late: Late,
    how: How,
}

impl Early {
    /// The rule's name.
    #[must_use]
    pub fn rule(&self) -> &'static str {
        rule(&self.late, self.how)
    }

    /// A sentence about it.
    #[must_use]
    pub fn message(&self) -> String {
        message(&self.late, self.how)
    }

    /// The offset of the instruction whose result it is.
    #[must_use]
    pub fn by(&self) -> u32 {
        self.late.by
    }
}

/// The late registers of a wave.
#[derive(Clone, Debug)]
pub struct Live(State);

impl Default for Live {
    fn default() -> Live {
        Target::ALL.into_iter().for_each(prepare);
        Live(State::fixed(ROOM))
    }
}

impl Live {
    /// Whether one of these is late.
    #[must_use]
    pub fn touches(&self, registers: &Registers) -> bool {
        self.0.iter().any(|late| registers.has(late.register))
    }

    /// An instruction runs. `memory`: as FLAT, it reaches memory and not LDS.
    /// `active`: there are active lanes. The first register that it uses too early; no register is
    /// reported twice for one load.
    pub fn run(&mut self, target: Target, Code(step): &Code, memory: bool, active: bool) -> Option<Early> {
        let Live(state) = self;
        state.wait(wait(target, step));
        let events = events(target, step, memory);
        let scalar = !step.class.intersects(Class::MEMORY | Class::VALU);
        let uses = scalar || active;
        let mut early = None;
        if !state.is_empty() && uses {
            let ordered = |late: &Late| events.iter().any(|event| late.ordered_with(event));
            for (operand, how) in step
                .reads
                .iter()
                .map(|operand| (operand, How::Read))
                .chain(step.writes.iter().map(|operand| (operand, How::Overwritten)))
            {
                let right = |late: &&Late| match how {
                    How::Read => late.kind == Kind::Locked || operand.role == Role::Old && ordered(late),
                    _ => ordered(late),
                };
                let late = state.of(operand).iter().find(|late| !right(late)).copied();
                if let Some(late) = late {
                    early = early.or(Some(Early { late, how }));
                    state.forget_by(late.by);
                }
            }
            step.writes.iter().for_each(|written| state.forget(written));
        }
        for &event in events.iter() {
            let results = step.writes.iter().filter(|_| event.result && uses);
            let sources = step.reads.iter().filter(|source| !event.result && uses && !source.is_scalar());
            state.start(target, event, results.chain(sources), step.offset);
        }
        early
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_isa::decode;

    fn run(live: &mut Live, words: &[u32], active: bool) -> Option<&'static str> {
        let inst = decode(Target::Gfx900, words).expect("an instruction");
        let code = Code::new(Target::Gfx900, 64, 0, words, &inst);
        live.run(Target::Gfx900, &code, false, active).map(|early| early.rule())
    }

    // global_load_dword v4, v[0:1], off; v_add_u32_e32 v5, v4, v4; s_waitcnt vmcnt(0)
    const LOAD: [u32; 2] = [0xdc50_8000, 0x047f_0000];
    const ADD: [u32; 1] = [0x680a_0904];
    const WAIT: [u32; 1] = [0xbf8c_0f70];

    #[test]
    fn a_register_is_late_until_a_wait() {
        let mut live = Live::default();
        assert_eq!(run(&mut live, &LOAD, true), None);
        assert_eq!(run(&mut live, &ADD, true), Some("waits/vmcnt"));
        assert_eq!(run(&mut live, &ADD, true), None, "once");
        run(&mut live, &LOAD, true);
        run(&mut live, &WAIT, true);
        assert_eq!(run(&mut live, &ADD, true), None);
    }

    #[test]
    fn without_lanes_nothing_is_used() {
        let mut live = Live::default();
        run(&mut live, &LOAD, false);
        assert_eq!(run(&mut live, &ADD, true), None);
        run(&mut live, &LOAD, true);
        assert_eq!(run(&mut live, &ADD, false), None);
        assert_eq!(run(&mut live, &ADD, true), Some("waits/vmcnt"));
    }
}
