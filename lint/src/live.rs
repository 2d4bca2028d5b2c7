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
use crate::register::Role;
use crate::step::{prepare, step, Step};
use crate::waits::{message, rule, How};

pub use crate::counter::Wait as Waited;

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
        prepare();
        Live(State::fixed(ROOM))
    }
}

impl Live {
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
