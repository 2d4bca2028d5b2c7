// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Two strips abreast: a loop whose strips do all rounds, and whose instructions wait for each
//! other, does each round of two strips before the next round.
//!
//! All rounds but the last one are done so, without the results that the next round makes anew.
//! Then the rows that rounds hand on go to the wave, and each strip does its last round by itself.
//! So nothing here makes a mask, and the segment's results are made at one place.
//!
//! The rows of both strips are rows of one plan ([`SECOND`]). All lanes have to be active.
//!
//! Limits: loops without accesses and masks, whose rows have a register each in both strips. Loops
//! of more than [`MOST`] instructions have enough to do without that.

use super::field;
use super::round::{body, Reach};
use super::slice::Places;
use crate::assembler::{at, When};
use crate::context::Context;
use crate::emit::{Emit, Plan, SECOND};
use crate::plan::{Lanes, Needed, Rows, Segment};
use iced_x86::{Code, Instruction, Register};
use std::mem::offset_of;
use vkfd_isa::Operand;
use vkfd_sabotage::{Switch, Switches};

/// Vector instructions of a loop.
const MOST: usize = 48;
/// Rounds that are worth it.
const LEAST: i32 = 3;

/// Whether an instruction makes no mask, and takes none.
fn is_without_masks(lanes: &Lanes<'_>, needed: Needed) -> bool {
    let Lanes::Vector(vector) = lanes else { return false };
    needed.nothing() || vector.inward.is_none() && (vector.out.is_none() || needed.is_low(vector))
}

/// The rows of both strips, if the loop is one that gains.
fn plan(e: &Emit, segment: &Segment, rows: &[Rows], light: &[Needed]) -> Option<Plan> {
    let suits =
        rows.len() <= MOST && segment.lanes().zip(light).all(|(lanes, needed)| is_without_masks(&lanes, *needed));
    if !suits {
        return None;
    }
    let mut plan = Plan::new(true);
    for strip in [0, SECOND] {
        for ((reads, writes), needed) in rows.iter().zip(light) {
            let of_strip = |rows: &[u16]| rows.iter().map(|row| row + strip).collect::<Vec<u16>>();
            if needed.nothing() {
                plan.add(&[], &[]);
            } else {
                plan.add(&of_strip(reads), &of_strip(writes));
            }
        }
    }
    // The last round may read rows that no other one reads.
    plan.finish(|row| e.hands_on(row));
    let usable = Emit::usable(e.width).saturating_sub(e.needs.most_of_light());
    plan.fix(usable);
    (plan.fits() && plan.pressure() <= usable).then_some(plan)
}

/// Writes the code of two strips abreast, before that of one strip, if the loop is one that gains.
/// Says whether it did: strips have their rounds in the context then.
pub(super) fn write(
    e: &mut Emit,
    segment: &Segment,
    (places, rows, light): (&[Places], &[Rows], &[Needed]),
    (lanes, bytes): (u8, i64),
    sabotage: &Switches,
) -> bool {
    if sabotage.has(Switch::LostRound) {
        return false;
    }
    let Some(plan) = plan(e, segment, rows, light) else { return false };
    let in_context = |offset: usize| at(Register::RDX, field(offset));
    let (from, rounds) = (in_context(offset_of!(Context, from)), in_context(offset_of!(Context, rounds)));
    let (one, head, round) = (e.asm.label(), e.asm.label(), e.asm.label());
    e.asm.load64(Register::RAX, in_context(offset_of!(Context, trace)));
    e.asm.store64(from, Register::RAX);
    e.asm.load32(Register::EAX, in_context(offset_of!(Context, done)));
    e.asm.store32(rounds, Register::EAX);
    e.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, Register::EAX, LEAST));
    e.asm.jump_if(When::Below, one);
    let exec = at(Register::R9, 4 * i64::from(Operand::EXEC));
    let compare = if lanes == 64 { Code::Cmp_rm64_imm8 } else { Code::Cmp_rm32_imm8 };
    e.asm.add(Instruction::with2(compare, exec, -1));
    e.asm.jump_if(When::NotZero, one);
    let mut both = e.abreast(plan);
    both.asm.bind(head);
    both.load_exec(one, false);
    both.begin_strip();
    both.asm.load64(Register::R8, in_context(offset_of!(Context, trace)));
    both.asm.load32(Register::R10D, in_context(offset_of!(Context, done)));
    both.asm.add(Instruction::with1(Code::Dec_rm32, Register::R10D));
    both.asm.bind(round);
    for strip in [0, SECOND] {
        both.strip = if sabotage.has(Switch::SameStrip) { 0 } else { strip };
        body(&mut both, (segment, false), (places, rows, light), &mut Reach::default(), (one, sabotage));
    }
    both.strip = 0;
    both.end_round();
    both.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::R8, i32::try_from(bytes).unwrap_or(0)));
    both.asm.add(Instruction::with1(Code::Dec_rm32, Register::R10D));
    both.asm.jump_if(When::NotZero, round);
    both.end_strip();
    both.advance(2, lanes, head);
    // Each strip has its last round to do.
    both.go_back(lanes);
    both.asm.store64(from, Register::R8);
    both.asm.add(Instruction::with2(Code::Mov_rm32_imm32, rounds, 1u32));
    both.asm.jump(one);
    both.finish_cold();
    e.rejoin(both);
    e.asm.bind(one);
    true
}
