// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The KFD driver: processes, GPU address spaces and page tables, buffer objects, userptr (one range and batch),
//! invalidation, eviction and restore, queues, events.
//!
//! It does not know where it runs. It reaches the world through three seams, and what implements them is a *host*:
//!
//! | seam | what is behind it |
//! | --- | --- |
//! | [`os`] | memory, locks, work items, a clock: one implementation a host, picked in one file |
//! | [`address_space::AddressSpace`] | a process's CPU memory: interval notifiers, faulting pages in |
//! | [`device_memory`] | data that moves between the two |
//! | [`files::Files`] | files that calls give to their callers: SMI events, exported buffers |
//! | [`gpu::Gpu`] | the device: page-table roots, TLB flushes, queues, its VRAM |
//!
//! A call comes in through [`ioctl`], is checked in [`memory`], [`batch`], [`queue`] or [`svm`], and changes objects of
//! its [`process::Process`]. Userptr is in [`userptr`] (state and invalidation), [`range_set`] (the ranges and their index),
//! [`window`] (their notifiers), [`revalidate`] (faulting and committing), [`eviction`] and `process` (restore), [`fault`]
//! (XNACK); what libdrm asks a render node is answered in [`drm`]. Every allocation is fallible, every error is an errno with a reason, and the order of locks is in [`lock_rank`].
#![no_std]
// In a kernel that is built with overflow checks each of these is its end. A module that has some of them left says why they cannot happen; those that a
// client's arguments come into have none.
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

mod base;
mod calls;
pub mod drm;
mod gpuvm;
mod machine;
pub mod os;
pub mod process;
mod queues;
mod seams;
pub mod svm;
pub mod topology;
pub mod userptr;

// Hosts and tests name a module without its room.
pub use base::{addr, errno, handle, interval, lock_rank};
pub use calls::{batch, ioctl, measure, memory, mmap, move_pages, settings, snapshot};
pub use gpuvm::{bo, dmabuf, page_table, pte, vm, vram};
pub use machine::{device, kfd, limit, sabotage, share, smi};
pub use process::{counters, last_error};
pub use queues::{event, eviction, fault, queue};
pub use seams::{address_space, device_memory, files, gpu};
pub use userptr::{range_set, revalidate, window};
