// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A client library for KFD, AMD's compute driver: memory, copies, waiting, and batch registration
//! of CPU memory.
//!
//! It works on any KFD: AMD's `/dev/kfd`, vkfd's kernel module, and vkfd in this process (feature
//! `embedded`). What a driver can do is looked up, never tried out ([`Caps`]);
//! [`Client::register_ranges`] uses the best form of registration that is there.
//!
//! ```no_run
//! use std::time::Duration;
//! use vkfd_client::{AllocOptions, Client, CopyQueue, RegisterOptions};
//!
//! # fn main() -> vkfd_client::Result {
//! let client = Client::open()?;
//! let gpu = client.gpus()[0].id;
//! # let ranges: Vec<vkfd_client::UserptrRange> = Vec::new();
//! // SAFETY: the ranges stay mapped, and nothing refers to them while the GPU works on them.
//! let source = unsafe { client.register_ranges(&ranges, &RegisterOptions::default())? };
//! let target = client.alloc(&AllocOptions::vram(gpu, source.len()))?;
//! let mut queue = CopyQueue::new(&client, gpu)?;
//! queue.copy(target.gpu_va(), source.gpu_va(), source.len());
//! queue.submit()?.wait(Duration::from_secs(5))?;
//! # Ok(()) }
//! ```
//!
//! # Which part for what
//!
//! | to | take | example |
//! | --- | --- | --- |
//! | use scattered memory of the process as one GPU range | [`Client::register_ranges`] | `batch.rs` |
//! | run a kernel of your own | [`CodeObject`], [`ComputeQueue::dispatch`] | `kernel.rs` |
//! | use memory at the CPU's own addresses, and move it | [`Client::svm_set`], [`Client::prefetch`] | `svm.rs` |
//! | wait for work, sleeping | [`Fence`] | `events.rs` |
//! | go on after a page fault | [`ClientError::GpuFault`], [`Buffer::range_at`], [`Buffer::revalidate`] | `recover.rs` |
//! | see what the driver has | [`Client::snapshot`], [`Client::bos`], [`Client::ranges`] | `vkfd inspect` |
//!
//! Threads: [`Client`], [`Buffer`] and [`Fence`] can be shared; a queue belongs to one thread at a
//! time.
//!
//! Faults: a page fault that is not retried stops its queue for good, and what was submitted to it
//! fails with [`ClientError::GpuFault`], also later. Buffers and other queues are not touched by
//! that: drop the queue, fix the error and make another. [`Buffer::range_at`] says which range of a
//! batch the fault's address is in.
//!
//! Limits: 64-bit Linux, pages of 4 KiB, GPUs from gfx9 on. After `fork` the child must not use
//! what the parent opened.

mod address;
mod aql;
mod buffer;
mod call;
mod caps;
mod client;
mod code_object;
mod compute_queue;
mod copy_queue;
mod dev_kfd;
mod doorbell;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod event;
mod fence;
mod inspect;
mod kernel;
mod measure;
mod move_pages;
mod queue;
mod ranges;
mod register;
mod ring;
mod sdma;
mod svm;
pub mod topology;
mod transport;
mod va;

pub use address::{CpuVa, GpuId, GpuVa, Handle, PAGE};
pub use buffer::{AllocOptions, Buffer, BufferKind};
pub use caps::Caps;
pub use client::{Client, GpuSet};
pub use code_object::{CodeObject, LoadedKernel};
pub use compute_queue::{ComputeQueue, Launch, MAX_ARGS};
pub use copy_queue::CopyQueue;
pub use dev_kfd::DevKfd;
#[cfg(feature = "embedded")]
pub use embedded::{Confined, DriverOptions, Embedded, Machine, MachineOptions, Source, Target};
pub use error::{ClientError, Errno, RangeError, RangeFault, Result};
pub use fence::Fence;
pub use kernel::Kernel;
pub use move_pages::Moved;
pub use ranges::{AsRanges, HsaMemoryRange};
pub use register::{RegisterOptions, Strategy};
pub use svm::{Location, SvmAccess, SvmAttributes, SvmSet};
pub use topology::{GpuInfo, Node};
pub use transport::{MmapFile, Transport};
pub use va::Aperture;
pub use vkfd_uapi::batch::UserptrRange;
pub use vkfd_uapi::vkfd::{BoInfo, ProcessInfo, QueueInfo, RangeInfo, SvmInfo, SvmRangeInfo};
pub use vkfd_uapi::{self as uapi};

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Client>();
    shared::<Buffer>();
    shared::<Fence>();
};
