// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The fabric: one address space for the VRAM of all GPUs, as in an XGMI hive.
//!
//! GPU `n`'s VRAM starts at `n * segment`; the segment is a power of two no smaller than the
//! largest VRAM. A page-table entry without the SYSTEM bit holds a fabric address, so any GPU can
//! map any VRAM. Immutable after creation.

use crate::memory::vram::{Vram, VramError};
use std::fmt;
use std::sync::Arc;

/// Address in the fabric, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FabricAddr(pub u64);

impl fmt::Display for FabricAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fabric {:#x}", self.0)
    }
}

/// All VRAMs, by GPU index.
#[derive(Debug)]
pub struct Fabric {
    vrams: Vec<Vram>,
    segment_shift: u32,
}

impl Fabric {
    /// A fabric with new VRAM of each of the given sizes in bytes.
    ///
    /// # Errors
    /// [`VramError`] if a VRAM cannot be made or the list is empty.
    pub fn new(vram_bytes: &[u64]) -> Result<Arc<Fabric>, VramError> {
        Fabric::with_vrams(vram_bytes.iter().map(|&size| Vram::create(size)).collect::<Result<_, _>>()?)
    }

    /// A fabric of VRAMs that exist already.
    ///
    /// # Errors
    /// [`VramError::Size`] if there are none, or the fabric would exceed the 48 bits of a
    /// page-table entry.
    pub fn with_vrams(vrams: Vec<Vram>) -> Result<Arc<Fabric>, VramError> {
        let largest = vrams.iter().map(Vram::size).max().ok_or(VramError::Size(0))?;
        let segment_shift = largest.checked_next_power_of_two().ok_or(VramError::Size(largest))?.trailing_zeros();
        let end = (vrams.len() as u64).checked_mul(1 << segment_shift);
        if end.is_none_or(|end| end > 1 << 48) {
            return Err(VramError::Size(largest));
        }
        Ok(Arc::new(Fabric { vrams, segment_shift }))
    }

    /// Number of VRAMs.
    pub fn gpus(&self) -> usize {
        self.vrams.len()
    }

    /// Distance between the bases of two neighbours, in bytes; a power of two.
    pub fn segment_bytes(&self) -> u64 {
        1 << self.segment_shift
    }

    /// VRAM of GPU `index`.
    pub fn vram(&self, index: usize) -> Option<&Vram> {
        self.vrams.get(index)
    }

    /// Fabric address of the first byte of GPU `index`'s VRAM.
    pub fn base(&self, index: usize) -> FabricAddr {
        FabricAddr((index as u64) << self.segment_shift)
    }

    /// The VRAM and the offset in it behind a fabric address; `None` if there is no memory.
    pub fn resolve(&self, addr: FabricAddr) -> Option<(&Vram, u64)> {
        let vram = self.vrams.get(usize::try_from(addr.0 >> self.segment_shift).ok()?)?;
        let offset = addr.0 & (self.segment_bytes() - 1);
        (offset < vram.size()).then_some((vram, offset))
    }
}
