// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hazards: two instructions that stand too near to each other.
//!
//! Mechanism: for each instruction that a rule calls a consumer, the ways that lead to it are
//! walked backwards, and wait states are counted. A way ends at a producer of the rule, or at its
//! distance. An instruction is one wait state, and `s_nop n` is n + 1. A rule is a row of the table
//! in `rules`, or a function in `order` where a count of wait states does not say it.
//!
//! Limits: calls are one wait state, and the callee's code is not entered.

mod clause;
mod distance;
mod matrix;
mod order;
mod rules;
mod walk;

pub(crate) use rules::{Rule, RULES};

use vkfd_isa::Target;

use crate::graph::Graph;

/// What the check has to know about a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub target: Target,
    /// Waves of 64 lanes.
    pub wave64: bool,
    /// Whether memory may fault and instructions be replayed.
    pub xnack: bool,
}

/// Too few wait states, or a missing instruction between two others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Near {
    pub rule: &'static Rule,
    /// The consumer, by its index.
    pub at: usize,
    /// The producer.
    pub by: usize,
    /// Wait states that are needed and that there are. `None`: the rule is no count.
    pub states: Option<(u32, u32)>,
    /// Whether it is so on every way to the consumer. LLVM decides for one producer and one of
    /// several ways, and so leaves some out.
    pub everywhere: bool,
}

impl Near {
    pub fn message(&self) -> String {
        match self.states {
            Some((needed, there)) => {
                let states = if needed == 1 { "wait state is" } else { "wait states are" };
                let way = if self.everywhere { "" } else { " on the shortest of several ways" };
                format!("{}: {needed} {states} needed, and {there} there{way}", self.rule.summary)
            }
            None => format!("{}: {}", self.rule.summary, self.rule.remedy),
        }
    }
}

/// The hazards of a function.
pub(crate) fn check(graph: &Graph, setting: Setting) -> Vec<Near> {
    let rules: Vec<&'static Rule> = RULES.iter().filter(|rule| rule.applies(setting)).collect();
    let mut found = Vec::new();
    for at in 0..graph.steps.len() {
        for rule in &rules {
            found.extend(rule.check(graph, at, setting));
        }
    }
    found
}
