// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The address space of VMID 0, in which a driver's own rings are.
//!
//! It has no directories: an aperture on the VRAM, and one flat table for a range of addresses
//! besides (the graphics address remapping table).

use crate::memory::fabric::FabricAddr;

/// What VMID 0 translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gart {
    /// First address of the aperture on the VRAM whose fabric address is 0.
    pub frame_buffer: u64,
    /// Bytes of the aperture.
    pub frame_buffer_bytes: u64,
    /// First address of the table's range.
    pub first: u64,
    /// Last address of the table's range.
    pub last: u64,
    /// The table: an entry of 8 bytes for each 4 KiB.
    pub table: FabricAddr,
}
