// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The register file: the values, the names, and the reads that nobody models.
//!
//! A register without behaviour of its own reads as it was written, and 0 before. If it is outside
//! of the tables, its first read is noted: what a driver reads steers it, so each such register is
//! a gap in the model ([`RegisterFile::unmodelled`]).

use super::{sdma, tables, Dword};
use std::collections::BTreeSet;

/// Bytes of the register BAR. Half of it would do for the registers; the driver reaches some by
/// other means then, before it has set those up.
pub const BYTES: u64 = 512 << 10;
/// Registers of the BAR.
pub const WORDS: usize = (BYTES / 4) as usize;

/// The name of a register: `GC.GRBM_CNTL`, or its byte offset if it is in no table.
pub fn name(at: Dword) -> String {
    if let Some((engine, inner)) = sdma::engine_of(at) {
        if let Some(name) = sdma::TABLE.iter().find_map(|register| register.name_of(inner)) {
            return name.replace("SDMA0.", &format!("SDMA{engine}."));
        }
    }
    tables().find_map(|register| register.name_of(at)).unwrap_or_else(|| format!("{:#x}", u64::from(at) * 4))
}

/// All registers of a device.
pub struct RegisterFile {
    values: Box<[u32]>,
    modelled: Box<[bool]>,
    unmodelled: BTreeSet<Dword>,
    reads: u64,
    writes: u64,
}

impl Default for RegisterFile {
    fn default() -> Self {
        let mut modelled = vec![false; WORDS].into_boxed_slice();
        let mut mark = |at: Dword| {
            if let Some(mark) = usize::try_from(at).ok().and_then(|at| modelled.get_mut(at)) {
                *mark = true;
            }
        };
        for register in tables() {
            (0..register.count).for_each(|number| mark(register.at + number * register.stride));
        }
        for register in sdma::TABLE {
            for base in sdma::ENGINES {
                (0..register.count).for_each(|number| mark(base + register.at + number * register.stride));
            }
        }
        Self { values: vec![0; WORDS].into_boxed_slice(), modelled, unmodelled: BTreeSet::new(), reads: 0, writes: 0 }
    }
}

impl RegisterFile {
    /// The value as it was written last; 0 outside of the BAR.
    pub fn get(&self, at: Dword) -> u32 {
        usize::try_from(at).ok().and_then(|at| self.values.get(at)).copied().unwrap_or(0)
    }

    /// Two registers as one number.
    pub fn wide(&self, low: Dword, high: Dword) -> u64 {
        u64::from(self.get(low)) | u64::from(self.get(high)) << 32
    }

    /// Sets a value; nothing outside of the BAR.
    pub fn set(&mut self, at: Dword, value: u32) {
        if let Some(place) = usize::try_from(at).ok().and_then(|at| self.values.get_mut(at)) {
            *place = value;
        }
    }

    /// Sets two registers to a number.
    pub fn set_wide(&mut self, low: Dword, high: Dword, value: u64) {
        let [low_half, high_half] = halves(value);
        self.set(low, low_half);
        self.set(high, high_half);
    }

    /// The driver reads this.
    pub fn note_read(&mut self, at: Dword) {
        self.reads += 1;
        if !usize::try_from(at).ok().and_then(|at| self.modelled.get(at)).copied().unwrap_or(true) {
            self.unmodelled.insert(at);
        }
    }

    /// The driver writes this.
    pub fn note_write(&mut self) {
        self.writes += 1;
    }

    /// Registers outside of the tables that were read, by name.
    pub fn unmodelled(&self) -> Vec<String> {
        self.unmodelled.iter().map(|at| name(*at)).collect()
    }

    /// How often registers were read and written.
    pub fn accesses(&self) -> (u64, u64) {
        (self.reads, self.writes)
    }
}

/// Lower and upper half.
pub fn halves(value: u64) -> [u32; 2] {
    let bytes = value.to_le_bytes();
    let half = |at: usize| bytes.get(at..at + 4).and_then(|half| half.try_into().ok()).unwrap_or([0; 4]);
    [u32::from_le_bytes(half(0)), u32::from_le_bytes(half(4))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::{gc, hub::gfxhub};

    #[test]
    fn registers_have_the_names_of_the_headers() {
        assert_eq!(name(gc::GRBM_GFX_CNTL), "GC.GRBM_GFX_CNTL");
        assert_eq!(name(gfxhub::VM_CONTEXT_BASE_LO + 6), "GC.VM_CONTEXT3_PAGE_TABLE_BASE_ADDR_LO32");
        assert_eq!(name(gfxhub::VM_CONTEXT_BASE_LO + 7), "GC.VM_CONTEXT3_PAGE_TABLE_BASE_ADDR_HI32");
        assert_eq!(name(sdma::ENGINES[3] + sdma::RLC_RB_CNTL + 2 * sdma::QUEUE_STRIDE), "SDMA3.RLC2_RB_CNTL");
        assert_eq!(name(0x7), "0x1c");
    }

    #[test]
    fn only_reads_outside_of_the_tables_are_noted() {
        let mut file = RegisterFile::default();
        for at in [gc::GRBM_CNTL, sdma::ENGINES[4] + sdma::CNTL, 7, 0x1_ffff, Dword::MAX] {
            file.note_read(at);
        }
        assert_eq!(file.unmodelled(), ["0x1c", "0x7fffc"]);
        file.set(Dword::MAX, 1);
        assert_eq!(file.get(Dword::MAX), 0);
        file.set_wide(gc::CP_HQD_PQ_BASE, gc::CP_HQD_PQ_BASE_HI, 0x1_2345_6789);
        assert_eq!((file.get(gc::CP_HQD_PQ_BASE), file.get(gc::CP_HQD_PQ_BASE_HI)), (0x2345_6789, 1));
    }
}
