// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the threads of a GPU share: its address spaces, the port of a queue to them, the launches
//! that want threads.

pub(crate) mod access;
pub(crate) mod bell;
pub(crate) mod busy;
pub(crate) mod config;
pub(crate) mod contain;
pub(crate) mod control;
pub(crate) mod gws;
pub(crate) mod opening;
pub(crate) mod pool;
pub(crate) mod profile;
pub(crate) mod shared;
pub(crate) mod tally;
pub(crate) mod timeline;
pub(crate) mod tlb;
pub(crate) mod track;
pub(crate) mod view;
pub(crate) mod vmid;
