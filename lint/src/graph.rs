// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A function's instructions and the ways that control takes through them.
//!
//! Mechanism: words are decoded from the function's start; blocks begin at its entry, at targets of
//! branches, and behind instructions that may leave. A long branch, which compilers make of
//! `s_getpc_b64`, an addition and `s_setpc_b64`, is followed.
//!
//! Limits: an indirect branch whose target the code before it does not say has no successor. The
//! checks know nothing on such a way, and report nothing.

use std::collections::BTreeMap;

use vkfd_isa::{decode_as_hardware, Inst, Op, Operand, Target, MAX_WORDS};

use crate::step::{step, Step};

/// Instructions without a branch into or out of them, the ends aside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// The first instruction, and the one behind the last.
    pub first: usize,
    pub end: usize,
    pub next: Vec<usize>,
    pub before: Vec<usize>,
}

/// A function.
pub(crate) struct Graph {
    pub steps: Vec<Step>,
    pub blocks: Vec<Block>,
    /// The block of each instruction.
    pub block_of: Vec<usize>,
}

/// How control goes on behind an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Next,
    /// To a place, in bytes from the function's start.
    To(i64),
    Either(i64),
    /// Nowhere, or nobody knows where.
    End,
}

impl Graph {
    pub fn new(target: Target, mask: u8, code: &[u8]) -> Graph {
        let words: Vec<u32> = code.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let mut steps = Vec::new();
        let mut ways = Vec::new();
        let mut recent: Vec<Inst> = Vec::new();
        // Where data stand in the code, no control goes.
        let mut broken = Vec::new();
        let mut at = 0;
        while at < words.len() {
            let window = &words[at..words.len().min(at + MAX_WORDS)];
            let Ok(inst) = decode_as_hardware(target, window) else {
                broken.push(steps.len());
                recent.clear();
                at += 1;
                continue;
            };
            let offset = u32::try_from(4 * at).unwrap_or(u32::MAX);
            let way = way(&inst, offset, &recent);
            recent.push(inst);
            if way != Way::Next {
                recent.clear();
            } else if recent.len() > 12 {
                recent.remove(0);
            }
            steps.push(step(target, mask, offset, window, &inst));
            ways.push(way);
            at += usize::from(inst.bytes / 4).max(1);
        }
        for n in broken {
            if let Some(way) = n.checked_sub(1).and_then(|n| ways.get_mut(n)) {
                *way = match *way {
                    Way::Next => Way::End,
                    Way::Either(to) => Way::To(to),
                    other => other,
                };
            }
        }
        Graph::connect(steps, &ways)
    }

    /// Whether it returns to a caller, by the calling convention's register.
    pub fn returns(&self) -> bool {
        self.steps.iter().any(|step| step.op == Op::SSetpcB64 && step.reads.has(crate::waits::RETURN))
    }

    fn connect(steps: Vec<Step>, ways: &[Way]) -> Graph {
        let places: BTreeMap<i64, usize> = steps.iter().enumerate().map(|(n, step)| (step.offset.into(), n)).collect();
        let mut begins = vec![false; steps.len() + 1];
        begins[0] = true;
        for (n, way) in ways.iter().enumerate() {
            if let Way::To(to) | Way::Either(to) = way {
                if let Some(&to) = places.get(to) {
                    begins[to] = true;
                }
            }
            begins[n + 1] |= *way != Way::Next;
        }
        let mut blocks: Vec<Block> = Vec::new();
        let mut block_of = Vec::with_capacity(steps.len());
        for (n, begins) in begins.iter().enumerate().take(steps.len()) {
            if *begins {
                blocks.push(Block { first: n, ..Block::default() });
            }
            block_of.push(blocks.len() - 1);
            if let Some(block) = blocks.last_mut() {
                block.end = n + 1;
            }
        }
        for n in 0..blocks.len() {
            let end = blocks[n].end;
            let mut next = Vec::new();
            let way = ways[end - 1];
            if let Way::To(to) | Way::Either(to) = way {
                next.extend(places.get(&to).map(|&to| block_of[to]));
            }
            if matches!(way, Way::Next | Way::Either(_)) && end < steps.len() {
                next.push(block_of[end]);
            }
            next.sort_unstable();
            next.dedup();
            for &to in &next {
                blocks[to].before.push(n);
            }
            blocks[n].next = next;
        }
        Graph { steps, blocks, block_of }
    }
}

fn way(inst: &Inst, offset: u32, recent: &[Inst]) -> Way {
    let to = i64::from(offset) + 4 + 4 * i64::from(inst.imm);
    match inst.op {
        Op::SBranch => Way::To(to),
        Op::SEndpgm | Op::SEndpgmSaved | Op::SEndpgmOrderedPsDone | Op::SRfeB64 | Op::SRfeRestoreB64 => Way::End,
        Op::SCodeEnd => Way::End,
        Op::SSetpcB64 => long_branch(inst, offset, recent).map_or(Way::End, Way::To),
        Op::SCbranchGFork | Op::SCbranchJoin => Way::End,
        Op::SSubvectorLoopBegin | Op::SSubvectorLoopEnd | Op::SCbranchIFork => Way::Either(to),
        op if op.name().starts_with("s_cbranch") => Way::Either(to),
        _ => Way::Next,
    }
}

/// Where `s_setpc_b64` goes, if a program counter and constants make its address: the addition's
/// constant from behind `s_getpc_b64`.
fn long_branch(inst: &Inst, offset: u32, recent: &[Inst]) -> Option<i64> {
    let Operand::Scalar(low) = inst.src[0] else { return None };
    let mut place = i64::from(offset);
    let mut added = None;
    for inst in recent.iter().rev() {
        let behind = place;
        place -= i64::from(inst.bytes);
        if inst.op == Op::SGetpcB64 && inst.dst == Operand::Scalar(low) {
            return added.map(|added: i64| behind + added);
        }
        if inst.dst == Operand::Scalar(low) {
            let (sum, other) = (inst.op == Op::SAddU32, inst.op == Op::SSubU32);
            if !(sum || other) || inst.src[0] != Operand::Scalar(low) || added.is_some() {
                return None;
            }
            let constant = match inst.src[1] {
                Operand::Literal(value) => i64::from(i32::from_ne_bytes(value.to_ne_bytes())),
                Operand::Int(value) => value.into(),
                _ => return None,
            };
            added = Some(if sum { constant } else { -constant });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(words: &[u32]) -> Graph {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Graph::new(Target::Gfx900, 2, &code)
    }

    const END: u32 = 0xbf81_0000;
    const NOP: u32 = 0xbf80_0000;

    #[test]
    fn branches_make_blocks() {
        // s_cbranch_scc0 over s_nop, back to the start
        let graph = graph(&[NOP, 0xbf84_0001, NOP, 0xbf82_fffc, END]);
        let next: Vec<&[usize]> = graph.blocks.iter().map(|block| block.next.as_slice()).collect();
        assert_eq!(next, [&[1, 2][..], &[2], &[0], &[]]);
        assert_eq!(graph.blocks[0].before, [2]);
        assert_eq!(graph.block_of, [0, 0, 1, 2, 3]);
    }

    #[test]
    fn a_long_branch_is_followed() {
        // s_getpc_b64 s[4:5]; s_add_u32 s4, s4, 20; s_addc_u32 s5, s5, 0; s_setpc_b64 s[4:5]
        let graph = graph(&[0xbe84_1c00, 0x8004_9404, 0x8205_8005, 0xbe80_1d04, NOP, NOP, END]);
        assert_eq!(graph.blocks[0].next, [graph.block_of[6]]);
    }

    #[test]
    fn an_unknown_branch_has_no_successor() {
        let graph = graph(&[0xbe80_1d04, NOP, END]);
        assert!(graph.blocks[0].next.is_empty());
        assert!(graph.blocks[1].before.is_empty());
    }

    #[test]
    fn data_end_a_way() {
        let graph = graph(&[NOP, 0xffff_ffff, NOP, END]);
        assert!(graph.blocks[0].next.is_empty());
    }
}
