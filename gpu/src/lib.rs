// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A software GPU behind real page tables.
//!
//! The GPU sees memory only through page tables in its VRAM ([`pte`]), in the format of AMD's gfx9, and
//! caches translations until they are flushed: a driver that leaves a stale entry corrupts memory, as it
//! would with hardware. It runs SDMA, AQL and PM4 queues, one thread each, and kernels of AMD's machine code
//! (`vkfd_cu`) on as many threads as there are processors. It knows nothing of the driver: it reaches system
//! memory through [`Bus`] and the driver through [`Interrupts`].
//!
//! | module | |
//! |---|---|
//! | [`raw`] | memory accesses that survive SIGSEGV and SIGBUS |
//! | `vram`, `fabric` | the memory of one GPU, and of all |
//! | [`pte`], `walk`, `tlb` | address translation |
//! | `vmid` | the gate that suspending and flushing close; documents the access protocol |
//! | `access` | a queue's port to memory: chunks, faults, retries |
//! | `queue`, `stream`, `sdma`, `aql`, `pm4`, `signal` | the packet processors |
//! | `compute`, `hsa_queue` | launches of kernels, and what the HSA runtime's queues have to do with them |
//! | `pool`, `world`, `engine`, `gws` | threads that run kernels, and what waves see of the GPU |
//! | `profile` | what kernels have cost |
//! | `symbol` | the name of a kernel |
//!
//! Limits: no images, no model of speed. A queue's packets run one after the other.

mod access;
mod aql;
mod bell;
mod bus;
mod compute;
mod counters;
mod engine;
mod fabric;
mod futex;
mod gpu;
mod gws;
mod hsa_queue;
mod pm4;
mod poll;
mod pool;
mod profile;
pub mod pte;
mod queue;
pub use vkfd_raw as raw;
mod registers;
mod sdma;
mod signal;
mod stream;
mod symbol;
mod tlb;
mod vmid;
mod vram;
mod walk;
mod world;

pub use bus::{Access, Bus, BusError, FaultReason, HostSpan, Interrupts, PageFault, PhysAddr, Vmid};
pub use counters::Counters;
pub use fabric::{Fabric, FabricAddr};
#[cfg(feature = "sabotage")]
pub use gpu::Sabotage;
pub use gpu::{clock, Config, Family, Gpu, GpuError, CLOCK_HZ};
pub use profile::{BadReport, KernelCost, Profile, Report};
pub use queue::{DoorbellPtr, KernelError, KernelName, QueueConfig, QueueError, QueueId, QueueKind, WaveAt};
pub use vkfd_cu::launch::LaunchError;
pub use vkfd_isa as isa;
pub use vmid::{FaultOutcome, MAX_QUEUES};
pub use vram::{Vram, VramError, VRAM_GRANULE};
pub use walk::{Translation, WalkError};
