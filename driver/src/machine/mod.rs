// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine: its GPUs, its limits, its parameters, the list of its processes, and what its
//! devices tell it.

pub mod kfd;
pub mod listing;
pub mod options;
