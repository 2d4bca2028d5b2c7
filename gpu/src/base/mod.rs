// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What every room uses.

pub(crate) mod counters;
