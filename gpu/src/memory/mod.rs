// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory and the page tables that say where it is.

pub(crate) mod bus;
pub(crate) mod fabric;
pub(crate) mod gart;
pub mod pte;
pub(crate) mod vram;
pub(crate) mod walk;
