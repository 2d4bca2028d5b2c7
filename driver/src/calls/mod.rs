// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The calls of a client: what comes in by ioctl and mmap, checked and handed to the rooms below.

pub mod batch;
pub mod ioctl;
pub mod measure;
pub mod memory;
pub mod mmap;
pub mod move_pages;
pub mod settings;
pub mod snapshot;
