// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tables of handles, an index of intervals, sets of pages.

pub mod handle;
pub mod interval;
pub mod page_bits;
