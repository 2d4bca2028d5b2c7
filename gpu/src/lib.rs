// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A software GPU behind real page tables.
//!
//! The GPU sees memory only through page tables in its VRAM ([`memory::pte`]), in the format of
//! AMD's gfx9, and caches translations until they are flushed. A driver that leaves a stale entry
//! corrupts memory, as it would with hardware. It runs SDMA, AQL and PM4 queues, one thread each,
//! and kernels of AMD's machine code (`vkfd_cu`) on as many threads as there are processors. It
//! knows nothing of the driver: it reaches system memory through [`Bus`] and the driver through
//! [`Interrupts`].
//!
//! The source stands in rooms, from the ground up: `base`, `memory`, `state`, `kernels`, `packets`,
//! `queue`, `gpu`. A room knows those below it (`cargo xtask stray` checks that).
//!
//! | module | |
//! |---|---|
//! | [`raw`] | memory accesses that survive SIGSEGV and SIGBUS |
//! | `vram`, `fabric` | the memory of one GPU, and of all |
//! | `gart` | the address space of VMID 0 |
//! | [`memory::pte`], `walk`, `tlb` | address translation |
//! | `vmid` | the gate that suspending and flushing close; documents the access protocol |
//! | `access` | a queue's port to memory: chunks, faults, retries |
//! | `view` | a port for callers that are no queue: firmware |
//! | `queue`, `control` | a queue's thread, and what it shares with the GPU's methods |
//! | `stream`, `sdma`, `aql`, `pm4`, `signal` | the packet processors |
//! | `compute`, `hsa_queue` | launches of kernels, and what the HSA runtime's queues have to do with them |
//! | `pool`, `worker`, `world`, `engine`, `gws` | threads that run kernels, and what waves see of the GPU |
//! | `profile` | what kernels have cost |
//! | `timeline` | when kernels and copies ran |
//! | `busy` | how long kernels have been on the GPU |
//! | `symbol` | the name of a kernel |
//!
//! Limits: no images, no model of speed. A queue's packets run one after the other.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod base;
mod gpu;
mod kernels;
pub mod memory;
mod packets;
mod queue;
mod state;

pub use vkfd_raw as raw;

pub use base::clock::{clock, CLOCK_HZ};
pub use base::counters::Counters;
pub use base::error::GpuError;
pub use base::fault::{Access, FaultReason, PageFault};
pub use base::ids::{QueueId, Vmid, MAX_QUEUES};
pub use base::interrupts::Interrupts;
pub use base::queue_error::{Exception, KernelError, KernelName, QueueError, WaveAt};
pub use gpu::Gpu;
pub use memory::bus::{Bus, BusError, HostSpan, PhysAddr};
pub use memory::fabric::{Fabric, FabricAddr};
pub use memory::gart::Gart;
pub use memory::vram::{Vram, VramError, VRAM_GRANULE};
pub use memory::walk::{Translation, WalkError};
pub use state::busy::Work;
pub use state::config::{Checking, Config, Family, Translate};
pub use state::control::{DoorbellPtr, QueueConfig, QueueKind};
pub use state::profile::{BadReport, KernelCost, Profile, Report, DETOURS, OTHER_DETOURS};
pub use state::timeline::{BadRecord, Record, Span, Timeline, Track};
pub use state::view::{View, ViewError};
pub use state::vmid::FaultOutcome;
pub use vkfd_cu::check;
pub use vkfd_cu::launch::Schedule;
pub use vkfd_cu::launch::{LaunchError, Units};
pub use vkfd_isa as isa;
pub use vkfd_sabotage as sabotage;

/// The value that a switch of a GPU or its engines has by a name: an operation's, for
/// [`Switch::Handler`](sabotage::Switch::Handler).
#[cfg(debug_assertions)]
pub fn sabotage_value(switch: sabotage::Switch, name: &str) -> Option<u64> {
    let number = isa::Op::ALL.iter().position(|op| op.name() == name);
    number.filter(|_| switch == sabotage::Switch::Handler).map(|number| number as u64)
}
