// SPDX-License-Identifier: GPL-2.0 OR MIT
//! GPU address spaces: their page tables, the memory that a GPU owns, and the buffer objects that are mapped there.

pub mod bo;
pub mod dmabuf;
pub mod page_table;
pub mod pte;
pub mod vm;
pub mod vram;
