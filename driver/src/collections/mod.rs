// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tables of handles, an index of intervals, orders by a key, sets of pages.

pub mod handle;
pub mod interval;
pub mod order;
pub mod page_bits;
