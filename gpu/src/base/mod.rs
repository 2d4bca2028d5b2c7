// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What every room uses.

pub(crate) mod clock;
pub(crate) mod contain;
pub(crate) mod counters;
pub(crate) mod error;
pub(crate) mod fault;
pub(crate) mod futex;
pub(crate) mod ids;
pub(crate) mod interrupts;
pub(crate) mod lock;
pub(crate) mod queue_error;
pub(crate) mod signal_mask;
