// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What every room uses: kinds of addresses, errors, handles, the index of intervals, the order of locks.

pub mod addr;
pub mod errno;
pub mod handle;
pub mod interval;
pub mod lock_rank;
