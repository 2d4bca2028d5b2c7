// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the waves of a workgroup share. One thread runs a workgroup at a time, so LDS is ordinary
//! memory.

use crate::lds::Lds;
use std::any::Any;

/// Where FLAT addresses are not global memory: the high halves of the two apertures' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apertures {
    /// Bits 63:32 of addresses in LDS.
    pub shared: u32,
    /// Bits 63:32 of addresses in scratch.
    pub private: u32,
}

/// Where a compute unit is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its shader engine.
    pub engine: u32,
    /// Its shader array in the engine.
    pub array: u32,
    /// Its number in the array.
    pub unit: u32,
}

/// The state that an engine with checks has of a group. Copies of a group are not checked.
#[derive(Default)]
pub struct Watched(pub Option<Box<dyn Any + Send + Sync>>);

impl Clone for Watched {
    fn clone(&self) -> Watched {
        Watched(None)
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watched").field(&self.0.is_some()).finish()
    }
}

/// A workgroup.
#[derive(Clone, Debug)]
pub struct Group {
    /// Local data share.
    pub lds: Lds,
    /// The apertures.
    pub apertures: Apertures,
    /// An engine's own state of it, where that checks.
    pub watch: Watched,
    /// Its compute unit, for programs that ask where they run (HW_ID).
    pub place: Place,
}
