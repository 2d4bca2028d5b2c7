// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest's memory, as this process sees it.
//!
//! Mechanism: each file that the VMM backs guest memory with is mapped once, as a whole, and stays
//! mapped as long as anybody uses it. Which guest-physical addresses lie where in the files changes
//! while a guest starts; a new [`Ram`] has the new table and the old mappings. So a registration
//! keeps its addresses whatever the table does.
//!
//! Limits: the VMM is trusted not to cut its files short.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use vkfd_client::UserptrRange;
use vkfd_host::{Grant, Grants};
use vkfd_remote::protocol::blob::Run;

use super::gtt::Gtt;
use super::mapping_changes::Spans;
use super::window::{map, size};

/// Where a part of guest memory is.
#[derive(Debug)]
pub struct Part<'a> {
    /// Its first guest-physical address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The file.
    pub file: &'a File,
    /// Where in the file it begins.
    pub offset: u64,
}

/// A mapped file.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Device, inode.
    identity: (u64, u64),
    pub(super) at: NonNull<c_void>,
    pub(super) bytes: u64,
    pub(super) file: File,
    /// The parts that are not mapped: see `mapping_changes`.
    pub(super) unmapped: Mutex<Spans>,
    grant: Grant,
}

// SAFETY: the mapping makes no reference to its memory.
unsafe impl Send for Mapping {}
// SAFETY: as above; the fields are only read.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.grant.end();
        // SAFETY: `Ram` made this mapping, and its last user is gone.
        unsafe { libc::munmap(self.at.as_ptr(), size(self.bytes)) };
    }
}

#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) mapping: Arc<Mapping>,
    pub(super) offset: u64,
}

/// The guest's memory at one time.
#[derive(Clone, Debug, Default)]
pub struct Ram {
    grants: Arc<Grants>,
    pub(super) regions: Vec<Region>,
}

impl Ram {
    /// A guest without memory. Memory that it gets is granted to its processes.
    pub fn new(grants: Arc<Grants>) -> Self {
        Self { grants, regions: Vec::new() }
    }

    /// The memory of `parts`, with the mappings of `self` where they are of the same files. A part
    /// of the file `apart` is none of the guest's own.
    ///
    /// # Errors
    /// The system's, and InvalidInput for a part that its file has not.
    pub fn replaced(&self, parts: &[Part<'_>], apart: &File) -> io::Result<Self> {
        let apart = identity(apart)?.0;
        let mut new = Self::new(self.grants.clone());
        for part in parts {
            let (identity, length) = identity(part.file)?;
            if identity == apart {
                continue;
            }
            if part.offset.checked_add(part.bytes).is_none_or(|end| end > length) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let known = self.regions.iter().chain(&new.regions).map(|region| &region.mapping);
            let mapping = known.clone().find(|mapping| mapping.identity == identity && mapping.bytes == length);
            let mapping = match mapping {
                Some(mapping) => mapping.clone(),
                None => {
                    let file = part.file.try_clone()?;
                    let at = map(part.file, length)?;
                    let grant = self.grants.grant(at.as_ptr().expose_provenance() as u64, length);
                    Arc::new(Mapping { identity, at, bytes: length, file, unmapped: Mutex::default(), grant })
                }
            };
            new.regions.push(Region { address: part.address, bytes: part.bytes, mapping, offset: part.offset });
        }
        Ok(new)
    }

    /// How much there is.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().fold(0, |sum, region| region.bytes.saturating_add(sum))
    }

    /// Where the runs are here, in their order; `None` when one of them is not wholly the guest's
    /// memory.
    pub fn find(&self, runs: &[Run]) -> Option<GuestMemory> {
        let mut memory = GuestMemory {
            grants: self.grants.clone(),
            ranges: Vec::with_capacity(runs.len()),
            offsets: Vec::with_capacity(runs.len()),
            bytes: 0,
            mappings: Vec::new(),
        };
        for run in runs {
            let (mut address, end) = (run.address, run.address.checked_add(run.bytes)?);
            // One run in two regions that touch is two ranges.
            while address < end {
                let inside = |region: &&Region| address.wrapping_sub(region.address) < region.bytes;
                let region = self.regions.iter().find(inside)?;
                let skip = address - region.address;
                let bytes = (end - address).min(region.bytes - skip);
                let start = region.mapping.at.as_ptr().expose_provenance() as u64 + region.offset + skip;
                memory.ranges.push(UserptrRange { start, size: bytes });
                memory.offsets.push(memory.bytes);
                memory.bytes += bytes;
                if !memory.mappings.iter().any(|known| Arc::ptr_eq(known, &region.mapping)) {
                    memory.mappings.push(region.mapping.clone());
                }
                address += bytes;
            }
        }
        Some(memory)
    }
}

/// The guest's memory as it is now, which the VMM may change at any time.
pub struct RamTable {
    ram: RwLock<Ram>,
    /// The limit that follows from its size, if the machine is the guest's alone.
    gtt: Option<Gtt>,
}

impl RamTable {
    /// A guest without memory.
    pub fn new(grants: Arc<Grants>, gtt: Option<Gtt>) -> Self {
        Self { ram: RwLock::new(Ram::new(grants)), gtt }
    }

    /// As it is now.
    pub fn read(&self) -> RwLockReadGuard<'_, Ram> {
        self.ram.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest's memory is `parts` from now on; see [`Ram::replaced`].
    ///
    /// # Errors
    /// As there; then it is as before.
    pub fn replace(&self, parts: &[Part<'_>], apart: &File) -> io::Result<()> {
        let mut ram = self.ram.write().unwrap_or_else(PoisonError::into_inner);
        *ram = ram.replaced(parts, apart)?;
        if let Some(gtt) = &self.gtt {
            gtt.guest_has(ram.bytes());
        }
        Ok(())
    }
}

fn identity(file: &File) -> io::Result<((u64, u64), u64)> {
    let data = file.metadata()?;
    Ok(((data.dev(), data.ino()), data.len()))
}

/// Memory of the guest by its addresses in this process, which stay valid as long as this lives.
#[derive(Debug)]
pub struct GuestMemory {
    grants: Arc<Grants>,
    ranges: Vec<UserptrRange>,
    /// The offset in the memory at which each range begins.
    offsets: Vec<u64>,
    bytes: u64,
    mappings: Vec<Arc<Mapping>>,
}

impl GuestMemory {
    /// The ranges in the guest's order.
    pub fn ranges(&self) -> &[UserptrRange] {
        &self.ranges
    }

    /// The ranges of `[start, end)` of it. O(log ranges) for the first.
    pub fn part(&self, start: u64, end: u64) -> impl Iterator<Item = UserptrRange> + '_ {
        let first = self.offsets.partition_point(|offset| *offset <= start).saturating_sub(1);
        let ranges = self.offsets.iter().zip(&self.ranges).skip(first);
        ranges.take_while(move |(offset, _)| **offset < end).filter_map(move |(offset, range)| {
            let (from, to) = (start.max(*offset), end.min(offset + range.size));
            (from < to).then(|| UserptrRange { start: range.start + (from - offset), size: to - from })
        })
    }

    /// Their sum.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// To grant what the same memory is mapped at besides.
    pub(super) fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    /// To break the list on purpose.
    pub(super) fn ranges_mut(&mut self) -> &mut Vec<UserptrRange> {
        &mut self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_raw::memory_file;
    use vkfd_remote::protocol::PAGE;

    fn file(pages: u64) -> File {
        memory_file::sealed(c"file", pages * PAGE).unwrap()
    }

    #[test]
    fn addresses_stay_when_the_table_changes() {
        let (ram, window) = (file(16), file(4));
        let part = |address: u64, pages: u64, offset: u64| Part {
            address: address * PAGE,
            bytes: pages * PAGE,
            file: &ram,
            offset: offset * PAGE,
        };
        let first = Ram::default().replaced(&[part(0, 16, 0)], &window).unwrap();
        let run = Run { address: 3 * PAGE, bytes: 2 * PAGE };
        let before = first.find(&[run]).unwrap();
        let shown = Part { address: 100 * PAGE, bytes: 4 * PAGE, file: &window, offset: 0 };
        let second = first.replaced(&[part(0, 4, 0), part(4, 12, 4), shown], &window).unwrap();
        drop(first);
        let after = second.find(&[run]).unwrap();
        assert_eq!(after.bytes(), before.bytes());
        assert_eq!(after.ranges()[0].start, before.ranges()[0].start);
        // Cut where the regions touch, without a gap.
        assert_eq!(after.ranges().iter().map(|r| r.size).collect::<Vec<_>>(), [PAGE, PAGE]);
        assert_eq!(after.ranges()[0].start + PAGE, after.ranges()[1].start);
        // The window is no memory of the guest.
        assert!(second.find(&[Run { address: 100 * PAGE, bytes: PAGE }]).is_none());
    }

    #[test]
    fn a_part_has_the_ranges_that_are_in_it() {
        let (ram, window) = (file(64), file(1));
        let all = Part { address: 0, bytes: 64 * PAGE, file: &ram, offset: 0 };
        let table = Ram::default().replaced(&[all], &window).unwrap();
        let run = |first: u64, pages: u64| Run { address: first * PAGE, bytes: pages * PAGE };
        let memory = table.find(&[run(40, 3), run(2, 1), run(10, 2), run(50, 4)]).unwrap();
        let pages: Vec<u64> =
            memory.ranges().iter().flat_map(|r| (0..r.size / PAGE).map(|n| r.start + n * PAGE)).collect();
        for start in 0..10 {
            for end in start + 1..=10 {
                let part: Vec<_> = memory.part(start * PAGE, end * PAGE).collect();
                let found: Vec<u64> =
                    part.iter().flat_map(|r| (0..r.size / PAGE).map(|n| r.start + n * PAGE)).collect();
                assert_eq!(found, pages[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()]);
                assert!(part.len() <= 4);
            }
        }
    }

    #[test]
    fn what_is_not_wholly_memory_is_refused() {
        let (ram, window) = (file(16), file(1));
        let part = Part { address: 16 * PAGE, bytes: 8 * PAGE, file: &ram, offset: 8 * PAGE };
        let ram_table = Ram::default().replaced(&[part], &window).unwrap();
        let run = |address: u64, pages: u64| ram_table.find(&[Run { address, bytes: pages * PAGE }]);
        assert!(run(16 * PAGE, 8).is_some());
        for (address, pages) in [(15 * PAGE, 1), (15 * PAGE, 2), (16 * PAGE, 9), (24 * PAGE, 1), (u64::MAX - 4095, 1)] {
            assert!(run(address, pages).is_none(), "{address:#x} {pages}");
        }
        let outside = Part { address: 0, bytes: 9 * PAGE, file: &ram, offset: 8 * PAGE };
        assert!(Ram::default().replaced(&[outside], &window).is_err());
    }
}
