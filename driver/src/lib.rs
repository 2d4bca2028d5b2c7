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

pub mod addr;
pub mod address_space;
pub mod batch;
pub mod bo;
pub mod counters;
pub mod device;
pub mod device_memory;
pub mod dmabuf;
pub mod drm;
pub mod errno;
pub mod event;
pub mod eviction;
pub mod fault;
pub mod files;
pub mod gpu;
pub mod handle;
pub mod interval;
pub mod ioctl;
pub mod kfd;
pub mod last_error;
pub mod limit;
pub mod lock_rank;
pub mod measure;
pub mod memory;
pub mod mmap;
pub mod move_pages;
pub mod os;
pub mod page_table;
pub mod process;
pub mod pte;
pub mod queue;
pub mod range_set;
pub mod revalidate;
pub mod sabotage;
pub mod settings;
pub mod share;
pub mod smi;
pub mod snapshot;
pub mod svm;
pub mod topology;
pub mod userptr;
pub mod vm;
pub mod vram;
pub mod window;
