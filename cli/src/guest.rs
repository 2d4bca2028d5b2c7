// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest's scattered buffer in this process's memory, filled with a pattern that is different on
//! every page.

use std::io;

use vkfd_client::{UserptrRange, PAGE};

use crate::layout::Layout;
use crate::memory::Mapping;
use crate::scatter::Scatter;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
const _: () = assert!(PAGE == 4096);

/// A range of the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Where in the mapping.
    pub offset: u64,
    pub bytes: u64,
    /// Where in the buffer, as the GPU sees it.
    pub at: u64,
}

/// The buffer.
pub struct Guest {
    /// What stands for the guest's RAM.
    pub ram: Mapping,
    /// The buffer's pieces, in its order.
    pub ranges: Vec<Range>,
    /// The buffer's size.
    pub bytes: u64,
    seed: u64,
}

impl Guest {
    /// Maps memory for a list, and fills the buffer with the pattern of `seed`.
    ///
    /// # Errors
    ///
    /// What mmap failed with.
    pub fn new(list: &Scatter, layout: &Layout, seed: u64) -> io::Result<Self> {
        let ram = Mapping::anonymous(layout.span)?;
        let mut ranges = Vec::with_capacity(list.pieces.len());
        let mut at = 0;
        for (piece, offset) in list.pieces.iter().zip(&layout.offsets) {
            ranges.push(Range { offset: *offset, bytes: piece.bytes, at });
            at += piece.bytes;
        }
        let guest = Self { ram, ranges, bytes: at, seed };
        (0..guest.ranges.len()).for_each(|range| guest.fill(range, 0));
        Ok(guest)
    }

    /// The list to register.
    pub fn userptr_ranges(&self) -> Vec<UserptrRange> {
        let start = self.ram.start().0;
        self.ranges.iter().map(|r| UserptrRange { start: start + r.offset, size: r.bytes }).collect()
    }

    /// Fills a range with the pattern's `version`.
    pub fn fill(&self, range: usize, version: u64) {
        let Range { offset, bytes, at } = self.ranges[range];
        self.fill_mapping(&self.ram, offset, at, bytes, version);
    }

    /// Writes what belongs at `at` of the buffer to some memory.
    pub fn fill_mapping(&self, memory: &Mapping, offset: u64, at: u64, bytes: u64, version: u64) {
        for page in 0..bytes / PAGE {
            memory.write(offset + page * PAGE, &self.pattern(at / PAGE + page, version));
        }
    }

    /// The page number `page` of the pattern's `version`: whole numbers below 2^16 as 32-bit
    /// floats, so that kernels for floats are exact on them.
    pub fn pattern(&self, page: u64, version: u64) -> [u8; PAGE_BYTES] {
        let mut out = [0; PAGE_BYTES];
        let mut state = self.seed ^ mix(page ^ version << 44);
        for four in out.chunks_exact_mut(16) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let word = mix(state).to_le_bytes();
            for (float, half) in four.chunks_exact_mut(4).zip(word.chunks_exact(2)) {
                float.copy_from_slice(&f32::from(u16::from_le_bytes([half[0], half[1]])).to_le_bytes());
            }
        }
        out
    }

    /// Copies bytes of the buffer out, in the order that the GPU sees; they must not include a
    /// hole.
    pub fn read(&self, mut at: u64, mut into: &mut [u8]) {
        let mut range = self.ranges.partition_point(|r| r.at <= at).saturating_sub(1);
        while !into.is_empty() {
            let Range { offset, bytes, at: first } = self.ranges[range];
            let inside = at - first;
            let n = usize::try_from(bytes - inside).unwrap_or(usize::MAX).min(into.len());
            let (head, tail) = into.split_at_mut(n);
            self.ram.read(offset + inside, head);
            at += n as u64;
            into = tail;
            range += 1;
        }
    }
}

/// A 64-bit finaliser (SplitMix64's).
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> Guest {
        let list = Scatter::parse("l", "5000 1000\n1000 2000\n3000 1000").unwrap();
        Guest::new(&list, &Layout::new(&list, u64::MAX).unwrap(), 7).unwrap()
    }

    #[test]
    fn the_buffer_is_read_in_its_own_order() {
        let guest = guest();
        let mut whole = vec![0; 4 * PAGE_BYTES];
        guest.read(0, &mut whole);
        for (page, bytes) in (0..).zip(whole.chunks_exact(PAGE_BYTES)) {
            assert_eq!(bytes, guest.pattern(page, 0), "page {page}");
        }
        let mut part = vec![0; PAGE_BYTES + 10];
        guest.read(PAGE - 5, &mut part);
        assert_eq!(part, whole[PAGE_BYTES - 5..2 * PAGE_BYTES + 5]);
        // In memory the second piece comes first.
        let mut first = vec![0; PAGE_BYTES];
        guest.ram.read(0, &mut first);
        assert_eq!(first, guest.pattern(1, 0));
    }

    #[test]
    fn pages_versions_and_seeds_differ_and_are_whole_floats() {
        let guest = guest();
        let page = guest.pattern(3, 0);
        assert_ne!(page, guest.pattern(4, 0));
        assert_ne!(page, guest.pattern(3, 1));
        for float in page.chunks_exact(4) {
            let value = f32::from_le_bytes(float.try_into().unwrap());
            assert!((0.0..65536.0).contains(&value) && value.fract() == 0.0);
        }
    }

    #[test]
    fn ranges_to_register_are_at_the_mapping() {
        let guest = guest();
        let start = guest.ram.start().0;
        let list: Vec<_> = guest.userptr_ranges().iter().map(|r| (r.start - start, r.size)).collect();
        assert_eq!(list, [(0x4000, 0x1000), (0, 0x2000), (0x2000, 0x1000)]);
    }
}
