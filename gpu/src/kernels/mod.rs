// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Running a kernel: from a packet's launch to the instructions of a wave.

pub(crate) mod compute;
pub(crate) mod engine;
pub(crate) mod hsa_queue;
pub(crate) mod signal;
pub(crate) mod symbol;
pub(crate) mod worker;
pub(crate) mod world;
