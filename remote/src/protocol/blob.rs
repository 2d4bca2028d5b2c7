// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A blob's scatter list: runs of guest-physical memory that make up one buffer.

use super::{u32_at, u64_at, Malformed, PAGE};

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 16;
/// Most entries of a list: 256 MiB of which no two pages are neighbours.
pub const MAX_ENTRIES: u32 = 65_536;

/// `VIRTIO_GPU_BLOB_MEM_GUEST`: guest memory.
pub const MEM_GUEST: u32 = 1;
/// `..HOST3D`: an object of the context.
pub const MEM_HOST3D: u32 = 2;
/// `..HOST3D_GUEST`: guest memory that the context uses.
pub const MEM_HOST3D_GUEST: u32 = 3;
/// `VIRTIO_GPU_BLOB_FLAG_USE_MAPPABLE`: the guest maps it.
pub const FLAG_MAPPABLE: u32 = 1;

/// A run of guest-physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its first guest-physical address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// Decodes `count` entries, which must be whole pages that add up to `size`, none of them twice.
///
/// # Errors
/// [`Malformed`].
pub fn decode(bytes: &[u8], count: u32, size: u64) -> Result<Vec<Run>, Malformed> {
    if count > MAX_ENTRIES {
        return Err(Malformed::TooMuch);
    }
    let count = super::index(count);
    if bytes.len() < count * ENTRY_BYTES {
        return Err(Malformed::Short);
    }
    let mut runs = Vec::with_capacity(count);
    let mut total = 0_u64;
    for entry in bytes.chunks_exact(ENTRY_BYTES).take(count) {
        let run = Run { address: u64_at(entry, 0)?, bytes: u32_at(entry, 8)?.into() };
        let whole = run.bytes != 0 && run.bytes % PAGE == 0 && run.address % PAGE == 0;
        if !whole || run.address.checked_add(run.bytes).is_none() {
            return Err(Malformed::Value);
        }
        total = total.checked_add(run.bytes).ok_or(Malformed::Value)?;
        runs.push(run);
    }
    if total != size {
        return Err(Malformed::Value);
    }
    let mut order: Vec<(u64, u64)> = runs.iter().map(|run| (run.address, run.address + run.bytes)).collect();
    order.sort_unstable();
    match order.windows(2).all(|pair| pair[0].1 <= pair[1].0) {
        true => Ok(runs),
        false => Err(Malformed::Value),
    }
}

/// The bytes of a list.
#[must_use]
pub fn encode(runs: &[Run]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(runs.len() * ENTRY_BYTES);
    for run in runs {
        bytes.extend(run.address.to_le_bytes());
        bytes.extend(run.bytes.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Run = Run { address: 0x10_0000, bytes: 0x2000 };
    const B: Run = Run { address: 0x8000, bytes: 0x1000 };

    #[test]
    fn a_list_keeps_its_order() {
        let bytes = encode(&[A, B]);
        assert_eq!(bytes[..12], [0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0x20, 0, 0]);
        assert_eq!(decode(&bytes, 2, 0x3000), Ok(vec![A, B]));
    }

    #[test]
    fn what_no_kernel_sends_is_refused() {
        let case = |runs: &[Run], size| decode(&encode(runs), u32::try_from(runs.len()).unwrap(), size);
        assert_eq!(case(&[A, B], 0x2000), Err(Malformed::Value), "the wrong sum");
        assert_eq!(case(&[A, Run { bytes: 0, ..B }], 0x2000), Err(Malformed::Value), "an empty run");
        assert_eq!(case(&[A, Run { address: A.address + 0x1000, ..B }], 0x3000), Err(Malformed::Value), "a page twice");
        assert_eq!(case(&[Run { address: 0x8001, ..B }], 0x1000), Err(Malformed::Value), "no page's address");
        assert_eq!(case(&[Run { address: u64::MAX - 0xfff, ..B }], 0x1000), Err(Malformed::Value), "past the end");
        assert_eq!(decode(&encode(&[A]), 2, 0x3000), Err(Malformed::Short));
        assert_eq!(decode(&[], MAX_ENTRIES + 1, 0x3000), Err(Malformed::TooMuch));
    }
}
