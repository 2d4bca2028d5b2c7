// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rules that a count of wait states does not say: an instruction of some kind has to stand between
//! two others, or a field has to name a count.

use vkfd_isa::Op;

use super::walk::{Found, Verdict};
use crate::class::Class;
use crate::graph::Graph;
use crate::register::{Register, Role, Use, EXEC, M0, VCC, VGPR};
use crate::step::Step;

/// Fields of `s_waitcnt_depctr`.
fn depctr(step: &Step, shift: u32, mask: u32) -> Option<u32> {
    let imm = u32::from_ne_bytes(step.imm.to_ne_bytes());
    (step.op == Op::SWaitcntDepctr).then_some(imm >> shift & mask)
}

/// Waits until vector operations have written their results.
fn waits_for_results(step: &Step) -> bool {
    step.class.intersects(Class::MEMORY_OR_EXPORT) || depctr(step, 12, 15) == Some(0)
}

/// Waits until memory instructions have read their registers.
fn waits_for_sources(step: &Step) -> bool {
    depctr(step, 2, 7) == Some(0) || step.op == Op::SWaitcnt && step.imm == 0
}

fn waits_for_scalar_results(step: &Step) -> bool {
    depctr(step, 0, 1) == Some(0)
}

/// gfx90a: a matrix operation of double precision between a vector operation and an access that
/// reads its result takes the wait states away that hardware would have put there.
pub(crate) fn dgemm_between(graph: &Graph, at: usize) -> Option<Found> {
    let access = &graph.steps[at];
    if !access.class.intersects(Class::MEMORY) {
        return None;
    }
    access.reads.iter().filter(|operand| !operand.is_scalar()).find_map(|operand| {
        graph.search(at, (0, false), |(states, between), step| {
            *between |= step.class.contains(Class::DGEMM);
            if *between && step.class.contains(Class::VALU) && step.writes.touches(operand) {
                return Verdict::Found;
            }
            *states += step.states();
            if *states >= 2 {
                Verdict::Ended
            } else {
                Verdict::Go
            }
        })
    })
}

pub(crate) fn cmpx_permlane(graph: &Graph, at: usize) -> Option<Found> {
    if !graph.steps[at].class.contains(Class::PERMLANE) {
        return None;
    }
    graph.search(at, (), |(), step| {
        if step.class.contains(Class::COMPARE_EXEC) && step.writes.has(EXEC) {
            Verdict::Found
        } else if step.class.contains(Class::VALU) && !step.class.contains(Class::NOP) {
            Verdict::Ended
        } else {
            Verdict::Go
        }
    })
}

fn touches(step: &Step, registers: Use) -> bool {
    step.reads.touches(registers) || step.writes.touches(registers)
}

/// Vector operations that a direct load's field can count.
const COUNTED: u32 = 15;

pub(crate) fn lds_direct_valu(graph: &Graph, at: usize) -> Option<Found> {
    let load = &graph.steps[at];
    if !load.class.contains(Class::LDS_DIRECT) {
        return None;
    }
    let result = load.result()?;
    let field = load.words[0] >> 16 & 15;
    graph.search(at, (0, false), |(count, trans), step| {
        let vector = step.class.contains(Class::VALU);
        *trans |= step.class.contains(Class::TRANS);
        if vector && touches(step, result) {
            // Transcendental operations overtake others, so that a count says nothing.
            let allowed = if *trans { 0 } else { *count };
            return if field > allowed { Verdict::Found } else { Verdict::Ended };
        }
        *count += u32::from(vector);
        if *count >= COUNTED || step.class.intersects(Class::MEMORY_OR_EXPORT) {
            Verdict::Ended
        } else {
            Verdict::Go
        }
    })
}

pub(crate) fn lds_direct_vmem(graph: &Graph, at: usize) -> Option<Found> {
    let load = &graph.steps[at];
    if !load.class.contains(Class::LDS_DIRECT) {
        return None;
    }
    let result = load.result()?;
    graph.search(at, (), |(), step| {
        if step.class.intersects(Class::MEMORY) && touches(step, result) {
            Verdict::Found
        } else if step.class.intersects(Class::VALU | Class::EXPORT) || waits_for_sources(step) {
            Verdict::Ended
        } else {
            Verdict::Go
        }
    })
}

/// The vector registers that an instruction reads, each operand by its first.
fn sources(step: &Step) -> Vec<Use> {
    let mut sources: Vec<Use> = Vec::new();
    for source in step.reads.iter().filter(|source| (VGPR..2 * VGPR).contains(&source.first)) {
        if !sources.iter().any(|other| other.first == source.first) {
            sources.push(source);
        }
    }
    sources
}

/// gfx11, waves of 64 lanes: an operation reads two sources. One was written before a scalar
/// operation wrote EXEC, and the other behind it, all of it shortly before.
pub(crate) fn partial_forwarding(graph: &Graph, at: usize) -> Option<Found> {
    let user = &graph.steps[at];
    let sources = sources(user);
    if !user.class.contains(Class::VALU) || sources.len() < 2 {
        return None;
    }
    /// Vector operations that have been passed: so far, and up to each thing that was found.
    #[derive(Clone)]
    struct Passed {
        count: u32,
        written: Vec<Option<u32>>,
        exec: Option<u32>,
    }
    const BEHIND: u32 = 4;
    const AROUND: u32 = 2;
    let passed = Passed { count: 0, written: vec![None; sources.len()], exec: None };
    graph.search(at, passed, |passed, step| {
        if passed.count > BEHIND + AROUND + 2 || waits_for_results(step) {
            return Verdict::Ended;
        }
        let mut changed = false;
        let vector = step.class.contains(Class::VALU);
        if vector {
            for (source, place) in sources.iter().zip(&mut passed.written) {
                if place.is_none() && step.writes.touches(*source) {
                    *place = Some(passed.count);
                    changed = true;
                }
            }
        } else if step.class.contains(Class::SALU) && passed.exec.is_none() {
            let any = passed.written.iter().any(Option::is_some);
            if any && step.writes.touches(Use { first: EXEC, count: 2, role: Role::Implicit }) {
                passed.exec = Some(passed.count);
                changed = true;
            }
        }
        let none = passed.written.iter().all(Option::is_none);
        if passed.count > BEHIND && none {
            return Verdict::Ended;
        }
        let verdict = match passed.exec {
            Some(exec) if changed => {
                let written = passed.written.iter().flatten();
                let before = written.clone().filter(|place| **place >= exec).min();
                let behind = written.filter(|place| **place < exec).min();
                match (before, behind) {
                    (_, None) => Verdict::Go,
                    (_, Some(behind)) if *behind > BEHIND || exec - behind - 1 > AROUND => Verdict::Ended,
                    (None, _) => Verdict::Go,
                    (Some(before), Some(behind)) if (before - exec) + (exec - behind - 1) > AROUND => Verdict::Ended,
                    _ => Verdict::Found,
                }
            }
            _ => Verdict::Go,
        };
        passed.count += u32::from(vector);
        verdict
    })
}

/// gfx11: a transcendental operation's result is not forwarded to operations soon after it.
pub(crate) fn trans_use(graph: &Graph, at: usize) -> Option<Found> {
    let user = &graph.steps[at];
    if !user.class.contains(Class::VALU) {
        return None;
    }
    let sources = sources(user);
    graph.search(at, (0, 0), |(operations, trans), step| {
        if *operations > 5 || *trans > 1 || waits_for_results(step) {
            return Verdict::Ended;
        }
        let is_trans = step.class.contains(Class::TRANS);
        if is_trans && sources.iter().any(|source| step.writes.touches(*source)) {
            return Verdict::Found;
        }
        *operations += u32::from(step.class.contains(Class::VALU));
        *trans += u32::from(is_trans);
        Verdict::Go
    })
}

pub(crate) fn wmma(graph: &Graph, at: usize) -> Option<Found> {
    let user = &graph.steps[at];
    if !user.class.contains(Class::WMMA) {
        return None;
    }
    let factors: Vec<Use> = user.reads.iter().filter(|source| matches!(source.role, Role::A | Role::B)).collect();
    graph.search(at, (), |(), step| {
        let result = step.result().filter(|_| step.class.contains(Class::WMMA));
        if result.is_some_and(|result| factors.iter().any(|factor| factor.overlaps(result))) {
            Verdict::Found
        } else if step.class.contains(Class::VALU) {
            Verdict::Ended
        } else {
            Verdict::Go
        }
    })
}

/// gfx11, waves of 64 lanes: a scalar operation reads a register that another overwrote while a
/// vector operation may still have read it as a mask.
pub(crate) fn mask_write(graph: &Graph, at: usize) -> Option<Found> {
    /// Scalar operations between write and read; farther apart they do no harm.
    const APART: u32 = 10;
    let reader = &graph.steps[at];
    if !reader.class.contains(Class::SALU) {
        return None;
    }
    reader.reads.iter().filter(|operand| operand.is_scalar() && !is_special(operand.first)).find_map(|operand| {
        let written = |step: &Step| {
            let result = step.result()?;
            (step.class.contains(Class::SALU) && result.overlaps(operand)).then_some(result)
        };
        graph.search(at, (0, None), |(scalars, hazard): &mut (u32, Option<Use>), step| match *hazard {
            None => match written(step) {
                Some(result) => {
                    *hazard = Some(result);
                    Verdict::Go
                }
                None if waits_for_scalar_results(step) || step.writes.touches(operand) || *scalars >= APART => {
                    Verdict::Ended
                }
                None => {
                    *scalars += u32::from(step.class.contains(Class::SALU));
                    Verdict::Go
                }
            },
            Some(result) => {
                if mask(step).is_some_and(|mask| mask.overlaps(result)) {
                    Verdict::Found
                } else if waits_for_scalar_results(step) || reads_scalars(step) {
                    Verdict::Ended
                } else {
                    Verdict::Go
                }
            }
        })
    })
}

fn is_special(register: Register) -> bool {
    matches!(register, EXEC | 127 | M0)
}

/// The lane mask that a vector operation reads.
fn mask(step: &Step) -> Option<Use> {
    if !step.class.contains(Class::MASKED) {
        return None;
    }
    let vcc = step.reads.iter().find(|operand| operand.first == VCC && operand.role == Role::Implicit);
    vcc.or_else(|| step.operand(Role::C)).filter(|mask| mask.is_scalar())
}

fn reads_scalars(step: &Step) -> bool {
    let reads = |operand: Use| operand.is_scalar() && !matches!(operand.first, EXEC | 127);
    step.class.contains(Class::VALU) && (step.literal || step.reads.iter().any(reads))
}
