// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What every room uses: kinds of addresses, page-table entries, errors, counters, the order of
//! locks.

pub mod addr;
pub mod counters;
pub mod errno;
pub mod hook;
pub mod lock_rank;
pub mod pte;
