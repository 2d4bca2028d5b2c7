// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The meaning of an operation on one lane, by its name.

use super::semantics::Semantics;
use super::{vop1, vop2, vop3};
use vkfd_isa::Op;

/// The meaning of an operation that is a function of one lane.
pub(crate) fn semantics(op: Op) -> Option<Semantics> {
    vop1::semantics(op).or_else(|| vop2::semantics(op)).or_else(|| vop3::semantics(op))
}
