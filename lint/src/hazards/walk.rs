// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ways backwards through a function.

use std::collections::{BTreeMap, BTreeSet};

use vkfd_isa::Op;

use crate::graph::Graph;
use crate::step::Step;

/// What a search makes of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Go,
    Found,
    /// Nothing farther on this way matters.
    Ended,
}

impl Graph {
    /// The nearest hits on the ways to `from`, each with the wait states between. Ways are followed
    /// for `limit` wait states, and end behind an instruction for which `ends` is true.
    pub fn nearest(
        &self,
        from: usize,
        limit: u32,
        hit: impl Fn(&Step) -> bool,
        ends: impl Fn(&Step) -> bool,
    ) -> Vec<(usize, u32)> {
        let mut hits: BTreeMap<usize, u32> = BTreeMap::new();
        // The wait states with which a block was entered from its end, the fewest.
        let mut entered: BTreeMap<usize, u32> = BTreeMap::new();
        let mut ways = vec![(self.block_of[from], from, 0)];
        'ways: while let Some((block, end, mut states)) = ways.pop() {
            for at in (self.blocks[block].first..end).rev() {
                let step = &self.steps[at];
                if hit(step) {
                    let fewest = hits.entry(at).or_insert(states);
                    *fewest = states.min(*fewest);
                    continue 'ways;
                }
                states += step.states();
                if states >= limit || ends(step) {
                    continue 'ways;
                }
            }
            for &before in &self.blocks[block].before {
                let states = states + self.branches(before, block);
                if entered.get(&before).is_none_or(|fewest| states < *fewest) {
                    entered.insert(before, states);
                    ways.push((before, self.blocks[before].end, states));
                }
            }
        }
        hits.into_iter().collect()
    }

    /// Wait states that LLVM counts on a way from one block to the next beside the instructions on
    /// it: behind a conditional branch that is taken, the branch for the other case.
    fn branches(&self, from: usize, to: usize) -> u32 {
        let end = self.blocks[from].end;
        let taken = self.block_of.get(end).is_some_and(|next| *next != to);
        let other = self.steps.get(end).is_some_and(|step| step.op == Op::SBranch);
        let conditional = self.steps[end - 1].op != Op::SBranch;
        u32::from(taken && other && conditional)
    }

    /// Whether a search that keeps a state finds something on a way to `from`, and where.
    pub fn search<S: Clone>(
        &self,
        from: usize,
        state: S,
        mut look: impl FnMut(&mut S, &Step) -> Verdict,
    ) -> Option<usize> {
        let mut entered = BTreeSet::new();
        let mut ways = vec![(self.block_of[from], from, state)];
        'ways: while let Some((block, end, mut state)) = ways.pop() {
            for at in (self.blocks[block].first..end).rev() {
                match look(&mut state, &self.steps[at]) {
                    Verdict::Go => {}
                    Verdict::Found => return Some(at),
                    Verdict::Ended => continue 'ways,
                }
            }
            for &before in &self.blocks[block].before {
                if entered.insert(before) {
                    ways.push((before, self.blocks[before].end, state.clone()));
                }
            }
        }
        None
    }
}
