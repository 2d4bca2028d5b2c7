// SPDX-License-Identifier: GPL-2.0 OR MIT
//! From an instruction to its steps: which file translates it.
//!
//! A translator adds an instruction's steps, or says that it has none for it. The first translator
//! that has steps decides. The reference engine executes an instruction that none has steps for.

use super::builder::Builder;
use super::code::gives_registers_back;
use super::step::{Place, Step};
use super::{aligned, dual, lane, matrix, memory, mix, packed, pair, scalar, special, vop, wide, wmma};
use vkfd_isa::{Extension, Format, Inst, Op};

/// A translator of instructions.
type Translate = fn(&mut Builder, &Inst, Place, &mut Vec<Step>) -> Option<()>;

/// Those of vector instructions, in their order. What has no vectors is done lane by lane.
const VECTOR: [Translate; 11] = [
    vop::translate,
    packed::translate,
    lane::translate,
    pair::translate,
    special::translate,
    mix::translate,
    wide::translate,
    matrix::translate,
    aligned::translate,
    wmma::translate,
    vop::by_lane,
];
/// Those of vector instructions with SDWA or DPP.
const EXTENDED: [Translate; 2] = [vop::translate, vop::by_lane];

/// Adds an instruction's steps.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) {
    let before = steps.len();
    if handlers(builder, inst, place, steps).is_none() {
        steps.truncate(before);
        steps.push(Step { is_left: true, ..place.step(scalar::slow) });
    }
}

fn handlers(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    if let Some([run, _]) = scalar::branch(inst.op) {
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
    if gives_registers_back(builder.layout.target, inst) {
        return Some(());
    }
    match inst.format {
        Format::Sop1 | Format::Sop2 | Format::Sopk | Format::Sopc => scalar::translate(builder, inst, place, steps),
        Format::Vop1 | Format::Vop2 | Format::Vopc | Format::Vop3 | Format::Vop3p => {
            let before = steps.len();
            let translators = if inst.extension == Extension::None { &VECTOR[..] } else { &EXTENDED };
            translators.iter().find_map(|translate| {
                steps.truncate(before);
                translate(builder, inst, place, steps)
            })
        }
        Format::Vopd => dual::translate(builder, inst, place, steps),
        _ => memory::translate(builder, inst, place, steps),
    }
}
