// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queues of programs: descriptors, the scheduler's run lists, and what runs them.

pub(crate) mod exceptions;
pub mod hqd;
pub(crate) mod scheduler;
pub(crate) mod user;
