// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queues of programs: descriptors, the scheduler's run lists, and what runs them.

pub mod hqd;
pub(crate) mod scheduler;
pub(crate) mod user;
