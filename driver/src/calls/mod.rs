// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A client's calls by ioctl and mmap, checked and handed to the rooms below.

pub mod batch;
pub mod dmabuf;
pub mod ioctl;
pub mod measure;
pub mod memory;
pub mod mmap;
pub mod move_pages;
pub mod queue;
pub mod settings;
pub mod smi;
pub mod snapshot;
