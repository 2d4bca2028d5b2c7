// SPDX-License-Identifier: GPL-2.0 OR MIT
//! GPU address spaces and their page tables.

pub mod page_table;
pub mod vm;
