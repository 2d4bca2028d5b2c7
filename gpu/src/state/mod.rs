// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the threads of a GPU share: its address spaces, the port of a queue to them, the threads that run kernels.

pub(crate) mod access;
pub(crate) mod bell;
pub(crate) mod gws;
pub(crate) mod pool;
pub(crate) mod profile;
pub(crate) mod tlb;
pub(crate) mod vmid;
