// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU in another process: what driver and device say to each other through shared memory.
//!
//! The device is a process outside the virtual machine. To the guest it is a PCI device, QEMU's
//! `ivshmem-doorbell`, whose BAR 2 is memory that both sides map. One GPU is one such device. In
//! the BAR there are registers ([`layout`]) and behind them the GPU's VRAM, so the driver writes
//! page tables there directly, as it would with a resizable BAR. System memory the device reaches
//! by guest-physical address, in the file that backs the guest's RAM.
//!
//! | module | what |
//! | --- | --- |
//! | [`layout`] | the BAR's layout, and the writer of each part |
//! | [`command`] | what the driver asks for: a mailbox each, answered one by one |
//! | [`vmid`] | an address space's wanted state, which a new device process is told again |
//! | [`interrupt`] | what the device reports: a ring |
//! | [`remote`] | [`Remote`]: the driver's side, a [`Gpu`](vkfd_driver::seams::gpu::Gpu) over a [`Bar`] |
//!
//! # Life and death
//! Each device process is an *epoch*. The server, which made the BAR and outlives device processes,
//! announces an epoch when a process connects and confirms its end when the process has ended. A
//! process that does not answer is given up by the driver, which asks the server to kill it, so
//! that "no access is in flight" is true also then. Queues end with their epoch. VRAM and address
//! spaces do not: the driver tells the next process about them.
//!
//! # Trust
//! The device can be wrong. Everything read from the BAR is checked before it is used, nothing in
//! it is an index or a length unchecked, and no call waits without bound. What a device writes into
//! guest memory, nobody can check.
//!
//! Limits: no live migration, at most [`layout::MAX_VMIDS`] address spaces and
//! [`layout::MAX_QUEUES`] queues a GPU.
#![no_std]
// In a kernel that is built with overflow checks each of these is its end. A module that has some
// of them left says why they cannot happen; those that a client's arguments come into have none.
#![warn(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::todo,
    clippy::unimplemented,
    clippy::unreachable,
    clippy::unwrap_used
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod bar;
pub mod command;
pub mod interrupt;
pub mod layout;
pub mod remote;
pub mod vmid;

pub use bar::Bar;
pub use remote::{Condition, Limits, Remote};
