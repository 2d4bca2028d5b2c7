// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Broken blocks, for the tests that every handler's result is looked at.

use super::block::Block;
use super::code::branch;
use super::lane;
use super::step::{Chained, Cx, Flow, Place, Step, ROW};
use vkfd_isa::{Format, Op, Operand};
use vkfd_sabotage::{Switch, Switches};

/// A branch that leads nowhere else.
unsafe fn go_on(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the caller's; a superblock goes on behind its branch.
    unsafe { step.go_on(cx) }
}

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
        if sabotage.has(Switch::ClosedSuperblock) {
            for joint in &self.joints {
                let is_branch = self.insts.get(joint.last).is_some_and(|last| branch(last, 0).is_some());
                let step = self.steps.iter_mut().find(|step| step.inst as usize == joint.last);
                if let Some(step) = step.filter(|_| is_branch) {
                    step.run = go_on;
                }
            }
        }
        if sabotage.has(Switch::LostTile) {
            self.steps.iter_mut().for_each(|step| step.loses_tiles = true);
        }
        if sabotage.has(Switch::GuessedShape) {
            self.steps.iter_mut().for_each(|step| step.guesses = true);
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
            if inst.op != op || step.is_left {
                continue;
            }
            let place = Place { inst: step.inst, offset: step.offset, bytes: step.bytes };
            let spoil = |operand| {
                let row = self.layout.row(operand, 1).map(|row| (row * ROW, 0));
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
