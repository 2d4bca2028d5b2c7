// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What threads that run a kernel have counted.

use std::collections::BTreeMap;
use vkfd_cu::Detour;
use vkfd_isa::Op;

/// What a thread has counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Instructions executed.
    pub(crate) instructions: u64,
    /// Bytes that vector instructions reached.
    pub(crate) bytes: u64,
    /// Work-groups that have ended, and their waves.
    pub(crate) groups: u64,
    pub(crate) waves: u64,
    /// Operations executed that only approximate hardware's, and how often.
    pub(crate) inexact: BTreeMap<Op, u64>,
    /// Instructions that the reference engine executed, and why.
    pub(crate) detours: BTreeMap<(Op, Detour), u64>,
}

impl Tally {
    /// Adds another thread's.
    pub(crate) fn add(&mut self, other: Tally) {
        let Tally { instructions, bytes, groups, waves, inexact, detours } = other;
        self.instructions += instructions;
        self.bytes += bytes;
        self.groups += groups;
        self.waves += waves;
        for (op, times) in inexact {
            *self.inexact.entry(op).or_insert(0) += times;
        }
        for (detour, times) in detours {
            *self.detours.entry(detour).or_insert(0) += times;
        }
    }
}
