// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of the GPU through its public interface.

mod access;
mod aql;
mod bounds;
mod busy;
mod checks;
mod code_objects;
mod garbage;
mod idle;
mod kernels;
mod order;
mod panics;
mod pm4;
mod queues;
mod rig;
mod sdma;
mod section;
mod strict;
mod together;
mod translation;
mod units;

/// No thread allocates while the event reader waits for it.
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<std::alloc::System> = vkfd_rt::section::Checked(std::alloc::System);
