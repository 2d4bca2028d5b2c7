// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The KFD driver: processes, GPU address spaces and page tables, buffer objects, userptr (one
//! range and batch), invalidation, eviction and restore, queues, events.
//!
//! It does not know where it runs. It reaches the world through three seams, and what implements
//! them is a *host*:
//!
//! | seam | what is behind it |
//! | --- | --- |
//! | [`os`] | memory, locks, work items, a clock: one implementation per host, picked in one file |
//! | [`seams::address_space::AddressSpace`] | a process's CPU memory: interval notifiers, faulting pages in |
//! | [`seams::device_memory`] | data that moves between the two |
//! | [`buffers::files::Files`] | files that calls give to their callers: SMI events, exported buffers |
//! | [`seams::gpu::Gpu`] | the device: page-table roots, TLB flushes, queues, its VRAM |
//!
//! The source stands in rooms, from the ground up; a room knows those below it, and asks something
//! of the one above only through a small trait ([`device::vmid_owner::VmidOwner`],
//! [`userptr::owner::UserptrOwner`], [`svm::owner::SvmOwner`]). `cargo xtask stray` checks that.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`base`], [`os`] | addresses, page-table entries, errors, the order of locks; the system's services |
//! | [`collections`] | tables of handles, an index of intervals, orders by a key, sets of pages |
//! | [`seams`] | traits that a host implements |
//! | [`topology`] | what clients read of the machine |
//! | [`device`] | a GPU as the driver keeps it: VMIDs, VRAM and what is in it, limits, event readers |
//! | [`gpuvm`], [`queues`] | page tables and VMs; queues, eviction, events, faults |
//! | [`userptr`] | ranges of the client's memory: state, index, notifiers, faulting in and committing |
//! | [`buffers`] | what a handle stands for: buffer objects, DRM's objects, files of both |
//! | [`svm`] | a process's SVM memory: ranges, windows, blocks |
//! | [`machine`] | the driver of one machine, and its parameters |
//! | [`process`] | a process, its restore and fault workers, what it does with its SVM memory |
//! | [`calls`], [`drm`] | KFD's calls; what libdrm asks a render node |
//!
//! Every allocation is fallible, every error is an errno with a reason, and the order of locks is
//! in [`base::lock_rank`].
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

pub mod base;
pub mod buffers;
pub mod calls;
pub mod collections;
pub mod device;
pub mod drm;
pub mod gpuvm;
pub mod machine;
pub mod os;
pub mod process;
pub mod queues;
pub mod seams;
pub mod svm;
pub mod topology;
pub mod userptr;

/// Switches that break the driver on purpose, and fail points.
pub use vkfd_sabotage as sabotage;
/// The targets of GPUs, with their numbers in the topology.
pub use vkfd_targets as targets;
