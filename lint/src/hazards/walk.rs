// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ways backwards through a function.

use std::collections::BTreeMap;

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

/// An instruction that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Its index.
    pub at: usize,
    /// Wait states between: on the shortest way, and on the longest within the limit.
    pub fewest: u32,
    pub most: u32,
}

/// An instruction that conflicts with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its index.
    pub at: usize,
    /// Whether each way has one. LLVM looks at a block once, though ways to it differ.
    pub everywhere: bool,
}

/// What the ways to an instruction have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    pub hits: Vec<Hit>,
    /// Whether each way has one.
    pub on_all: bool,
}

/// Blocks that one search enters. Ways are short, and real code stays far below.
const WAYS: u32 = 4096;

impl Graph {
    /// The nearest hits on the ways to `from`. Ways are followed for `limit` wait states, and end
    /// behind an instruction for which `ends` is true.
    pub fn nearest(&self, from: usize, limit: u32, hit: impl Fn(&Step) -> bool, ends: impl Fn(&Step) -> bool) -> Hits {
        let mut hits: BTreeMap<usize, Hit> = BTreeMap::new();
        let look = |states: &mut u32, at: usize, step: &Step| {
            if hit(step) {
                let found = hits.entry(at).or_insert(Hit { at, fewest: *states, most: *states });
                found.fewest = found.fewest.min(*states);
                found.most = found.most.max(*states);
                return Verdict::Found;
            }
            *states += step.states();
            if *states >= limit || ends(step) {
                Verdict::Ended
            } else {
                Verdict::Go
            }
        };
        let on_all = self.follow(from, 0, look, |states, before, block| *states += self.branches(before, block));
        Hits { hits: hits.into_values().collect(), on_all }
    }

    /// Follows the ways to `from` backwards, each with a state. `look` gets an instruction, and
    /// `enter` a block and the one behind it. Whether each way has what `look` finds.
    fn follow<S: Clone>(
        &self,
        from: usize,
        state: S,
        mut look: impl FnMut(&mut S, usize, &Step) -> Verdict,
        enter: impl Fn(&mut S, usize, usize),
    ) -> bool {
        let mut on_all = true;
        let mut ways = vec![(from, state, vec![self.block_of[from]])];
        let mut followed = 0;
        'ways: while let Some((end, mut state, path)) = ways.pop() {
            let Some(&block) = path.last() else { continue };
            for at in (self.blocks[block].first..end).rev() {
                match look(&mut state, at, &self.steps[at]) {
                    Verdict::Go => {}
                    Verdict::Found => continue 'ways,
                    Verdict::Ended => {
                        on_all = false;
                        continue 'ways;
                    }
                }
            }
            followed += 1;
            if followed > WAYS || self.blocks[block].before.is_empty() {
                on_all = false;
                continue;
            }
            for &before in &self.blocks[block].before {
                // Back to the first block is a way; twice through another is none.
                if !path[1..].contains(&before) {
                    let mut state = state.clone();
                    enter(&mut state, before, block);
                    let path = path.iter().copied().chain([before]).collect();
                    ways.push((self.blocks[before].end, state, path));
                }
            }
        }
        on_all
    }

    /// Wait states that LLVM counts between two blocks, beside the instructions on the way. Behind
    /// a conditional branch that is taken, it is the branch for the other case.
    fn branches(&self, from: usize, to: usize) -> u32 {
        let end = self.blocks[from].end;
        let taken = self.block_of.get(end).is_some_and(|next| *next != to);
        let other = self.steps.get(end).is_some_and(|step| step.op == Op::SBranch);
        let conditional = self.steps[end - 1].op != Op::SBranch;
        u32::from(taken && other && conditional)
    }

    /// What a search that keeps a state finds on the ways to `from`.
    pub fn search<S: Clone>(
        &self,
        from: usize,
        state: S,
        mut look: impl FnMut(&mut S, &Step) -> Verdict,
    ) -> Option<Found> {
        let mut found = None;
        let look = |state: &mut S, at: usize, step: &Step| {
            let verdict = look(state, step);
            if verdict == Verdict::Found {
                found.get_or_insert(at);
            }
            verdict
        };
        let everywhere = self.follow(from, state, look, |_, _, _| {});
        found.map(|at| Found { at, everywhere })
    }
}
