// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Missing waits: a register that is used or overwritten before its load has arrived.
//!
//! Mechanism: forward data flow over a function. The state is the set of registers that are late,
//! each with the number of operations of its kind that were started behind it. A join keeps the
//! registers that are late on any way, each with the smallest number. Ways are followed until
//! nothing changes; then each instruction is checked against the state before it.
//!
//! The order of results is that of AMD's manuals. LLVM's compiler counts on less: with LDS and
//! scalar memory under way it waits for all, although a count would do for LDS.
//!
//! Limits: memory itself is not followed, so a missing wait before a barrier or between a store and
//! a load of another wave is not found. Loads straight to LDS are not followed, either.

use vkfd_isa::{Op, Target};

use crate::counter::{events, wait, Event, Kind, Late, State};
use crate::graph::Graph;
use crate::register::{Name, Register, Role, Use};
use crate::step::Step;

/// Rules of this check: name and summary.
pub(crate) const RULES: [(&str, &str, &str); 5] = [
    (
        "waits/vmcnt",
        "a register is used or overwritten before `s_waitcnt vmcnt` has made its load right",
        "a buffer, image, FLAT, GLOBAL or SCRATCH instruction that returns a value",
    ),
    (
        "waits/lgkmcnt",
        "a register is used or overwritten before `s_waitcnt lgkmcnt` has made its load right",
        "scalar memory, LDS, GDS, FLAT or a message that returns a value",
    ),
    (
        "waits/expcnt",
        "a register is used or overwritten before `s_waitcnt expcnt` allows it",
        "GDS and exports, which read their registers late; `lds_direct_load`",
    ),
    (
        "waits/entry",
        "a function uses a register before it has waited for its caller's loads",
        "a call: callers do not wait, so functions begin with a wait for everything",
    ),
    (
        "waits/return",
        "a function returns while a result is still under way",
        "any load: callers do not wait behind a call",
    ),
];

/// A missing wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// The instruction that uses a register too early, by its index.
    pub at: usize,
    /// The register that is late.
    pub late: Late,
    pub how: How,
}

/// What the instruction does with the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Read,
    Overwritten,
    Returned,
}

impl Missing {
    pub fn rule(&self) -> &'static str {
        rule(&self.late, self.how)
    }

    pub fn message(&self) -> String {
        message(&self.late, self.how)
    }
}

pub(crate) fn rule(late: &Late, how: How) -> &'static str {
    match (how, late.kind) {
        (_, Kind::Caller) => "waits/entry",
        (How::Returned, _) => "waits/return",
        _ => match late.counter.name() {
            "vmcnt" => "waits/vmcnt",
            "lgkmcnt" => "waits/lgkmcnt",
            _ => "waits/expcnt",
        },
    }
}

pub(crate) fn message(late: &Late, how: How) -> String {
    let register = Name(late.register);
    let counter = late.counter.name();
    let how = match how {
        How::Read => "is read",
        How::Overwritten => "is overwritten",
        How::Returned => "is still late at the return",
    };
    match late.kind {
        Kind::Caller => format!("{register} {how} before the function has waited for its caller's loads"),
        _ => format!("{register} {how} before `s_waitcnt {counter}({})` or less", late.count()),
    }
}

/// What the check has to know about a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub target: Target,
    /// Whether its waves may be on several compute units, so that FLAT does not reach LDS.
    pub split: bool,
    /// Whether callers may leave loads under way.
    pub called: bool,
}

/// The return address of the calling convention: `s[30:31]`.
pub(crate) const RETURN: Register = 30;

/// The missing waits of a function.
pub(crate) fn check(graph: &Graph, setting: Setting) -> Vec<Missing> {
    let count = graph.blocks.len();
    let mut before: Vec<Option<State>> = vec![None; count];
    let mut found = Vec::new();
    if count == 0 {
        return found;
    }
    // Blocks that nothing leads to may be reached by an indirect branch; nothing is known there.
    for (n, block) in graph.blocks.iter().enumerate() {
        if block.before.is_empty() {
            before[n] = Some(State::default());
        }
    }
    before[0] = Some(if setting.called { State::entry() } else { State::default() });
    let mut dirty: std::collections::BTreeSet<usize> = (0..count).filter(|&n| before[n].is_some()).collect();
    while let Some(n) = dirty.pop_first() {
        let Some(mut state) = before[n].clone() else { continue };
        let block = &graph.blocks[n];
        for at in block.first..block.end {
            transfer(graph, at, setting, &mut state, &mut |_| {});
        }
        for &next in &block.next {
            let more = match &mut before[next] {
                Some(old) => old.join(&state),
                place => {
                    *place = Some(state.clone());
                    true
                }
            };
            if more {
                dirty.insert(next);
            }
        }
    }
    for (n, block) in graph.blocks.iter().enumerate() {
        let Some(mut state) = before[n].take() else { continue };
        for at in block.first..block.end {
            transfer(graph, at, setting, &mut state, &mut |missing| found.push(missing));
        }
    }
    found
}

fn transfer(graph: &Graph, at: usize, setting: Setting, state: &mut State, found: &mut dyn FnMut(Missing)) {
    let step = &graph.steps[at];
    let target = setting.target;
    state.wait(wait(target, step));
    let events = events(target, step, setting.split);
    if !state.is_empty() {
        uses(step, at, &events, state, found);
    }
    match step.op {
        Op::SSwappcB64 | Op::SCallB64 => {
            // The callee waits for everything at its entry, and before it returns.
            state.clear();
            return;
        }
        Op::SSetpcB64 if setting.called && step.reads.has(RETURN) => {
            if let Some(late) = state.iter().find(|late| late.kind != Kind::Locked) {
                found(Missing { at, late: *late, how: How::Returned });
            }
        }
        _ => {}
    }
    for written in step.writes.iter() {
        state.forget(written);
    }
    let by = u32::try_from(at).unwrap_or(u32::MAX);
    for &event in events.iter() {
        let results = step.writes.iter().filter(|_| event.result);
        let sources = step.reads.iter().filter(|source| !event.result && !source.is_scalar());
        state.start(target, event, results.chain(sources), by);
    }
}

/// Reports what an instruction uses too early, and forgets it, so that it is reported once.
fn uses(step: &Step, at: usize, events: &[Event], state: &mut State, found: &mut dyn FnMut(Missing)) {
    let mut early: Vec<(Use, Late, How)> = Vec::new();
    for operand in step.reads.iter() {
        // The part of a load's destination that stays is written in order with the earlier load.
        let ordered = |late: &Late| operand.role == Role::Old && events.iter().any(|event| late.ordered_with(event));
        let late = state.of(operand).iter().find(|late| late.kind != Kind::Locked && !ordered(late));
        early.extend(late.map(|late| (operand, *late, How::Read)));
    }
    for operand in step.writes.iter() {
        let ordered = |late: &Late| events.iter().any(|event| late.ordered_with(event));
        let late = state.of(operand).iter().find(|late| !ordered(late));
        early.extend(late.map(|late| (operand, *late, How::Overwritten)));
    }
    let mut seen: Vec<Late> = Vec::new();
    for (operand, late, how) in early {
        if !seen.iter().any(|other| other.by == late.by && other.counter == late.counter) {
            found(Missing { at, late, how });
            seen.push(late);
        }
        if late.kind == Kind::Caller {
            state.forget_kind(Kind::Caller);
        }
        state.forget(operand);
    }
}
