// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Clauses that may be replayed: with XNACK, memory instructions in a row are executed again from
//! the first that faulted, and read their registers again.

use super::walk::Found;
use crate::class::Class;
use crate::graph::Graph;
use crate::step::Step;

/// How far back compilers look.
const INSTRUCTIONS: usize = 5;

/// An earlier instruction of the same clause that this one may not stand behind.
pub(crate) fn overlaps(graph: &Graph, at: usize) -> Option<Found> {
    let last = &graph.steps[at];
    let kinds = [Class::SMEM, Class::VECTOR_MEMORY];
    let kind = kinds.into_iter().find(|kind| last.class.intersects(*kind))?;
    let follows = |n: usize| {
        let step = &graph.steps[n];
        step.class.intersects(kind) && step.offset + u32::from(step.bytes) == graph.steps[n + 1].offset
    };
    let first = (at.saturating_sub(INSTRUCTIONS)..at).rev().take_while(|&n| follows(n)).last()?;
    let clause = &graph.steps[first..=at];
    let writes = |step: &Step| step.writes.iter().next().is_some();
    if !clause[..clause.len() - 1].iter().any(writes) {
        return None;
    }
    let overwrites =
        |one: &Step| clause.iter().any(|other| one.writes.iter().any(|written| other.reads.touches(written)));
    let meets = clause.iter().any(overwrites);
    // Earlier ones have been reported where they stand.
    let before = &clause[..clause.len() - 1];
    let earlier = before
        .iter()
        .any(|one| before.iter().any(|other| one.writes.iter().any(|written| other.reads.touches(written))));
    (meets && !earlier).then_some(Found { at: first, everywhere: true })
}
