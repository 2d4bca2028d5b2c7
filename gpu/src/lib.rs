// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A software GPU behind real page tables.
//!
//! The GPU sees memory only through page tables in its VRAM ([`pte`]), in the format of AMD's gfx9, and
//! caches translations until they are flushed: a driver that leaves a stale entry corrupts memory, as it
//! would with hardware. It runs SDMA, AQL and PM4 queues, one thread each, and a few built-in kernels
//! ([`kernel`]). It knows nothing of the driver: it reaches system memory through [`Bus`] and the driver
//! through [`Interrupts`].
//!
//! | module | |
//! |---|---|
//! | [`raw`] | memory accesses that survive SIGSEGV and SIGBUS |
//! | `vram`, `fabric` | the memory of one GPU, and of all |
//! | [`pte`], `walk`, `tlb` | address translation |
//! | `vmid` | the gate that suspending and flushing close; documents the access protocol |
//! | `access` | a queue's port to memory: chunks, faults, retries |
//! | `queue`, `stream`, `sdma`, `aql`, `pm4`, `signal` | the packet processors |
//! | `known` | programs that are known by their code |
//! | `symbol` | the name of a kernel that cannot be run |
//!
//! Limits: no instruction set, no model of speed. A queue's packets run one after the other.

mod access;
mod aql;
mod bell;
mod bus;
mod counters;
mod fabric;
mod gpu;
pub mod kernel;
mod known;
mod pm4;
mod poll;
pub mod pte;
mod queue;
pub mod raw;
mod registers;
mod sdma;
mod signal;
mod stream;
mod symbol;
mod tlb;
mod vmid;
mod vram;
mod walk;

pub use bus::{Access, Bus, BusError, FaultReason, HostSpan, Interrupts, PageFault, PhysAddr, Vmid};
pub use counters::Counters;
pub use fabric::{Fabric, FabricAddr};
#[cfg(feature = "sabotage")]
pub use gpu::Sabotage;
pub use gpu::{clock, Config, Family, Gpu, GpuError, CLOCK_HZ};
pub use queue::{DoorbellPtr, QueueConfig, QueueError, QueueId, QueueKind};
pub use vmid::{FaultOutcome, MAX_QUEUES};
pub use vram::{Vram, VramError, VRAM_GRANULE};
pub use walk::{Translation, WalkError};
