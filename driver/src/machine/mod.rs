// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine: its devices, who may have how much of it, and what is told of it.

pub mod device;
pub mod kfd;
pub mod limit;
pub mod sabotage;
pub mod share;
pub mod smi;
