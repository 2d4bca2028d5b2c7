// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queues, their eviction and restart, events, and faults that wait to be served.

pub mod event;
pub mod eviction;
pub mod fault;
pub mod queue;
