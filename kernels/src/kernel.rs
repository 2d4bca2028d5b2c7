// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a caller wants computed, as dispatches of kernels.
//!
//! Addresses are GPU addresses, counts are elements. Results that are combined by atomic operations
//! are prepared by a dispatch of their own, so dispatches have to run one after the other.

use crate::Entry;

/// Work-items of a workgroup of every kernel here.
pub const GROUP: u16 = 256;

/// Work-items of a grid at most: enough for every processor, few enough that each has something to
/// do.
const ITEMS: u64 = 64 << 10;
/// Rows and columns of the matrices' tiles.
const TILE: u64 = 16;
/// Groups that share a segment's checksum when there are few segments.
const SHARE: u64 = 16;
/// From this many segments on each has one group.
const MANY: u64 = 64;

/// A computation and its operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// Adds `count` 64-bit words from `src` on, wrapping; the sum goes to the word at `out`.
    Sum64 {
        /// Address of the words.
        src: u64,
        /// How many.
        count: u64,
        /// Address of the sum.
        out: u64,
    },
    /// CRC-32 (IEEE 802.3) of each of `count` segments.
    Crc32 {
        /// Address of the list: address and length of each, 64 bits each.
        segments: u64,
        /// How many.
        count: u64,
        /// Address of the results, 32 bits each.
        out: u64,
    },
    /// Sets 64-bit words.
    Fill64 {
        /// Address of the words.
        dst: u64,
        /// How many.
        count: u64,
        /// Their value.
        value: u64,
    },
    /// Numbers 64-bit words.
    Iota64 {
        /// Address of the words.
        dst: u64,
        /// How many.
        count: u64,
        /// The value of the first.
        start: u64,
    },
    /// Copies 64-bit words.
    Copy64 {
        /// Where to.
        dst: u64,
        /// Where from.
        src: u64,
        /// How many.
        count: u64,
    },
    /// `y = a * x + y` on 32-bit floats, rounding twice.
    Saxpy {
        /// The factor.
        a: f32,
        /// Address of `x`.
        x: u64,
        /// Address of `y`.
        y: u64,
        /// How many of each.
        count: u64,
    },
    /// `c = a * b` on row-major matrices of 32-bit floats, products added in the order of `k`.
    Matmul {
        /// Address of `m` rows of `k`.
        a: u64,
        /// Address of `k` rows of `n`.
        b: u64,
        /// Address of `m` rows of `n`.
        c: u64,
        /// Rows of the result, at most 2^32 tiles of 16.
        m: u64,
        /// Columns of the result, at most 2^24 tiles of 16.
        n: u64,
        /// The inner dimension.
        k: u64,
    },
    /// What pages of 4096 bytes hold whose 64-bit words say where they belong: the page in bits
    /// 63:40, a version in bits 39:12, the index in bits 11:0.
    Watch {
        /// Address of the pages.
        src: u64,
        /// How many.
        pages: u64,
        /// Address of the results, four words of 32 bits for each: the oldest version and the
        /// newest, how many words are zero, how many belong elsewhere.
        out: u64,
    },
}

/// A dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The kernel's name.
    pub name: &'static str,
    /// Its arguments.
    pub args: Vec<u8>,
    /// Work-items; groups are of [`GROUP`] by 1 by 1.
    pub grid: [u32; 3],
}

impl Step {
    /// Operands walked with a stride that is the grid, which comes last among the arguments.
    fn strided(name: &'static str, words: &[u64], items: u64) -> Step {
        let items = items.clamp(1, ITEMS).next_multiple_of(GROUP.into());
        Step::new(name, &[words, &[items]].concat(), [u32::try_from(items).unwrap_or(u32::MAX), 1, 1])
    }

    fn new(name: &'static str, words: &[u64], grid: [u32; 3]) -> Step {
        Step { name, args: words.iter().flat_map(|word| word.to_le_bytes()).collect(), grid }
    }

    /// The AQL packet that dispatches it, with the barrier bit and fences of system scope before
    /// and after. `entry` is its kernel in the code object at `code`; its arguments are at
    /// `arguments`. At the end `signal` is counted down, unless it is 0. The packet is the GPU's
    /// with its first word, which is written last.
    pub fn packet(&self, entry: &Entry, code: u64, arguments: u64, signal: u64) -> [u32; 16] {
        const DISPATCH: u32 = 2 | 1 << 8 | 2 << 9 | 2 << 11;
        let dimensions = if self.grid[1] > 1 { 2 } else { 1 };
        let [object, arguments, signal] = [code + entry.descriptor, arguments, signal].map(halves);
        let mut packet = [0; 16];
        packet[0] = DISPATCH | dimensions << 16;
        packet[1] = u32::from(GROUP) | 1 << 16;
        packet[2] = 1;
        packet[3..6].copy_from_slice(&self.grid);
        packet[7] = entry.group_bytes;
        packet[8..10].copy_from_slice(&object);
        packet[10..12].copy_from_slice(&arguments);
        packet[14..].copy_from_slice(&signal);
        packet
    }
}

/// The low and the high half of an address.
fn halves(address: u64) -> [u32; 2] {
    let b = address.to_le_bytes();
    [u32::from_le_bytes([b[0], b[1], b[2], b[3]]), u32::from_le_bytes([b[4], b[5], b[6], b[7]])]
}

impl Kernel {
    /// The dispatches that compute it, to be run one after the other.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        match *self {
            Kernel::Sum64 { src, count, out } => {
                vec![Step::strided("fill64", &[out, 1, 0], 1), Step::strided("sum64", &[src, count, out], count)]
            }
            Kernel::Crc32 { segments, count, out } => {
                let items = u64::from(GROUP) * if count < MANY { SHARE } else { 1 };
                let rows = count.clamp(1, ITEMS);
                let [x, y] = [items, rows].map(|size| u32::try_from(size).unwrap_or(u32::MAX));
                let add = Step::new("crc32_add", &[segments, count, out, rows, items], [x, y, 1]);
                vec![Step::strided("crc32_begin", &[segments, count, out], count), add]
            }
            Kernel::Fill64 { dst, count, value } => vec![Step::strided("fill64", &[dst, count, value], count)],
            Kernel::Iota64 { dst, count, start } => vec![Step::strided("iota64", &[dst, count, start], count)],
            Kernel::Copy64 { dst, src, count } => vec![Step::strided("copy64", &[dst, src, count], count)],
            Kernel::Saxpy { a, x, y, count } => {
                let mut step = Step::strided("saxpy", &[x, y, count], count);
                step.args.extend(a.to_bits().to_le_bytes());
                vec![step]
            }
            Kernel::Matmul { a, b, c, m, n, k } => {
                let tiles = |size: u64| u32::try_from(size.div_ceil(TILE).max(1)).unwrap_or(u32::MAX);
                let grid = [tiles(n).saturating_mul(GROUP.into()), tiles(m), 1];
                vec![Step::new("matmul", &[a, b, c, m, n, k], grid)]
            }
            Kernel::Watch { src, pages, out } => {
                let groups = pages.clamp(1, ITEMS / u64::from(GROUP));
                let items = u32::try_from(groups).unwrap_or(u32::MAX) * u32::from(GROUP);
                vec![Step::new("watch", &[src, pages, out, groups], [items, 1, 1])]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{code, Image};

    #[test]
    fn arguments_are_as_long_as_the_code_objects_say() {
        let image = Image::new(code(90_000).unwrap()).unwrap();
        let kernels = [
            Kernel::Sum64 { src: 0x1000, count: 7, out: 0x2000 },
            Kernel::Crc32 { segments: 0x1000, count: 3, out: 0x2000 },
            Kernel::Fill64 { dst: 0x1000, count: 7, value: 1 },
            Kernel::Iota64 { dst: 0x1000, count: 1 << 40, start: 1 },
            Kernel::Copy64 { dst: 0x1000, src: 0x2000, count: 7 },
            Kernel::Saxpy { a: 1.5, x: 0x1000, y: 0x2000, count: 7 },
            Kernel::Matmul { a: 0x1000, b: 0x2000, c: 0x3000, m: 17, n: 33, k: 5 },
            Kernel::Watch { src: 0x1000, pages: 70_000, out: 0x2000 },
        ];
        for step in kernels.iter().flat_map(Kernel::steps) {
            let entry = image.kernel(step.name).unwrap();
            assert_eq!(step.args.len(), entry.kernarg_bytes as usize, "{}", step.name);
            assert!(step.grid[0] % u32::from(GROUP) == 0 && !step.grid.contains(&0), "{step:?}");
        }
        assert_eq!(kernels[6].steps()[0].grid, [3 * 256, 2, 1]);
    }

    #[test]
    fn a_grid_has_a_bound_whatever_the_count() {
        for count in [0, 1, 255, 256, 257, u64::MAX] {
            let steps = Kernel::Fill64 { dst: 0, count, value: 0 }.steps();
            assert!((256..=65_536).contains(&steps[0].grid[0]), "{count}: {:?}", steps[0].grid);
        }
    }
}
