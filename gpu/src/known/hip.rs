// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HIP's own programs (`__amd_rocclr_copyBuffer` and five more): copies within a GPU, and memset.
//!
//! Each work-item copies or fills one element, or none if it is outside of what the arguments say; so what a dispatch does depends on its
//! grid, too. Here the work-items of a row are one copy or fill: a [`Row`]. Work-items have no order among each other, so neither have
//! rows.
//!
//! Argument structures are 64-bit words. After the arguments proper come the offsets of the grid.

use super::{arguments, bad, fill, FILL};
use crate::access::{Port, Stop};

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Words, of which the last may be short; or bytes.
    Copy,
    /// Elements of 4 or 16 bytes.
    CopyElements,
    /// Bytes in rows and slices.
    CopyRect,
    /// Elements of 4 or 16 bytes in rows and slices.
    CopyRectElements,
    /// A pattern of 1, 2, 4 or 8 byte elements.
    Fill,
    /// The same in rows, each work-item at the element after the one before.
    FillRect,
}

/// A stretch of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    src: u64,
    dst: u64,
    bytes: u64,
}

/// Indices of work-items in one dimension that are below a limit: first, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u64,
    count: u64,
}

impl Run {
    /// Of a grid that begins at `offset`. Indices that wrap have a second run, which nobody has: they are left out by saturating.
    fn new(offset: u64, grid: u32, limit: u64) -> Self {
        let end = offset.saturating_add(u64::from(grid)).min(limit);
        Self { first: offset, count: end.saturating_sub(offset) }
    }

    fn indices(self) -> impl Iterator<Item = u64> {
        self.first..self.first + self.count
    }
}

/// Rows and slices of an image in memory, in elements.
#[derive(Clone, Copy)]
struct Layout {
    base: u64,
    row: u64,
    slice: u64,
    start: u64,
    element: u64,
}

impl Layout {
    /// Address of an element. Wraps, as the program's additions do.
    fn at(self, x: u64, y: u64, z: u64) -> u64 {
        let index =
            self.start.wrapping_add(x).wrapping_add(y.wrapping_mul(self.row)).wrapping_add(z.wrapping_mul(self.slice));
        self.base.wrapping_add(index.wrapping_mul(self.element))
    }
}

impl Program {
    pub(super) fn run(self, port: &mut Port, kernarg: u64, grid: [u32; 3]) -> Result<(), Stop> {
        match self {
            Program::Copy => {
                let words = arguments(port, kernarg)?;
                copy_rows(port, copy(&words, grid))
            }
            Program::CopyElements => {
                let words = arguments(port, kernarg)?;
                copy_rows(port, copy_elements(&words, grid))
            }
            Program::CopyRect | Program::CopyRectElements => {
                let words = arguments(port, kernarg)?;
                let in_bytes = self == Program::CopyRect;
                copy_rows(port, copy_rect(&words, grid, in_bytes))
            }
            Program::Fill => {
                let words: [u64; 9] = arguments(port, kernarg)?;
                let [.., start, size, offset] = words;
                let Some((base, pattern, element)) = pattern(port, kernarg, &words)? else { return Ok(()) };
                let run = Run::new(offset, grid[0], size);
                let each = pattern.len() as u64;
                let first = start.wrapping_mul(element).wrapping_add(run.first.wrapping_mul(each));
                let bytes = done(port, run.count.wrapping_mul(each));
                fill(port, base.wrapping_add(first), bytes, &pattern)
            }
            Program::FillRect => {
                let words: [u64; 12] = arguments(port, kernarg)?;
                let [.., start, width, height, pitch, x, y] = words;
                let Some((base, pattern, element)) = pattern(port, kernarg, &words)? else { return Ok(()) };
                let (columns, rows) = (Run::new(x, grid[0], width), Run::new(y, grid[1], height));
                let mut elements = pattern.chunks_exact(usize::try_from(element).unwrap_or(1));
                let first = elements.next().unwrap_or_default();
                if columns.count == 0 {
                    return Ok(());
                }
                // Work-items write over each other's elements, in no order, unless there is one; of equal ones it does not show.
                if elements.any(|other| other != first) {
                    return Err(bad(kernarg, "the work-items of a fill of rows overwrite each other"));
                }
                let bytes = (columns.count - 1).wrapping_mul(element).wrapping_add(pattern.len() as u64);
                let layout = Layout { base, row: pitch, slice: 0, start, element };
                let bytes = done(port, bytes);
                for y in rows.indices() {
                    fill(port, layout.at(columns.first, y, 0), bytes, first)?;
                }
                Ok(())
            }
        }
    }
}

/// How many of the bytes that a row should have a GPU does: all, unless it was told to be wrong.
#[cfg(not(feature = "sabotage"))]
fn done(_: &Port, bytes: u64) -> u64 {
    bytes
}

#[cfg(feature = "sabotage")]
fn done(port: &Port, bytes: u64) -> u64 {
    let short = port.shared.sabotage.short_blit.load(std::sync::atomic::Ordering::SeqCst);
    bytes.saturating_sub(u64::from(short))
}

fn copy_rows(port: &mut Port, mut rows: impl Iterator<Item = Row>) -> Result<(), Stop> {
    rows.try_for_each(|row| match done(port, row.bytes) {
        0 => port.check_removed(),
        bytes => port.copy(row.dst, row.src, bytes),
    })
}

/// `remain` is how many bytes of the last word there are, or 8 if elements are bytes.
fn copy(words: &[u64; 7], grid: [u32; 3]) -> impl Iterator<Item = Row> {
    let [src, dst, src_origin, dst_origin, size, remain, offset] = *words;
    let remain = remain & u64::from(u32::MAX);
    let run = Run::new(offset, grid[0], size);
    let (src, dst) = (src.wrapping_add(src_origin), dst.wrapping_add(dst_origin));
    let element = if remain == 8 { 1 } else { 4 };
    let is_last = run.count > 0 && run.first + run.count == size;
    let bytes = match is_last && remain != 8 {
        true => (run.count - 1).wrapping_mul(element).wrapping_add(remain),
        false => run.count.wrapping_mul(element),
    };
    let skip = run.first.wrapping_mul(element);
    std::iter::once(Row { src: src.wrapping_add(skip), dst: dst.wrapping_add(skip), bytes })
}

fn copy_elements(words: &[u64; 7], grid: [u32; 3]) -> impl Iterator<Item = Row> {
    let [src, dst, src_origin, dst_origin, size, alignment, offset] = *words;
    let element = if alignment & u64::from(u32::MAX) == 16 { 16 } else { 4 };
    let run = Run::new(offset, grid[0], size);
    let from = |base: u64, origin: u64| base.wrapping_add(origin.wrapping_add(run.first).wrapping_mul(element));
    let bytes = run.count.wrapping_mul(element);
    std::iter::once(Row { src: from(src, src_origin), dst: from(dst, dst_origin), bytes })
}

/// The words: source and destination; rows, slices and start of each; how many elements in each dimension, and their bytes; offsets.
fn copy_rect(words: &[u64; 19], grid: [u32; 3], in_bytes: bool) -> impl Iterator<Item = Row> {
    let element = match words[15] {
        _ if in_bytes => 1,
        16 => 16,
        _ => 4,
    };
    let layout = |base, at: usize| Layout { base, row: words[at], slice: words[at + 1], start: words[at + 2], element };
    let (src, dst) = (layout(words[0], 4), layout(words[1], 8));
    let [x, y, z] = [0, 1, 2].map(|dimension| Run::new(words[16 + dimension], grid[dimension], words[12 + dimension]));
    let bytes = x.count.wrapping_mul(element);
    z.indices().flat_map(move |z| {
        y.indices().map(move |y| Row { src: src.at(x.first, y, z), dst: dst.at(x.first, y, z), bytes })
    })
}

/// What a fill writes: where, the pattern, bytes of an element. One of the four pointers that it begins with says of which size
/// elements are: the largest that is there. `None` if the pattern is empty.
fn pattern(port: &mut Port, kernarg: u64, words: &[u64]) -> Result<Option<(u64, Vec<u8>, u64)>, Stop> {
    let Some(&[bytes, shorts, ints, longs, at, elements]) = words.first_chunk() else { return Ok(None) };
    let (base, element) = match (longs, ints, shorts) {
        (0, 0, 0) => (bytes, 1),
        (0, 0, shorts) => (shorts, 2),
        (0, ints, _) => (ints, 4),
        (longs, ..) => (longs, 8),
    };
    let length = (elements & u64::from(u32::MAX)) * element;
    let length = usize::try_from(length).ok().filter(|length| *length <= FILL);
    let mut pattern = vec![0; length.ok_or_else(|| bad(kernarg, "the pattern of a fill is longer than 64 KiB"))?];
    port.read(at, &mut pattern)?;
    Ok((!pattern.is_empty()).then_some((base, pattern, element)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program does, a work-item at a time, as its code says: pairs of addresses of bytes.
    fn by_work_item(words: &[u64; 19], grid: [u32; 3], element: u64) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for z in 0..u64::from(grid[2]) {
            for y in 0..u64::from(grid[1]) {
                for x in 0..u64::from(grid[0]) {
                    let [x, y, z] = [x + words[16], y + words[17], z + words[18]];
                    if x < words[12] && y < words[13] && z < words[14] {
                        let place = |at: usize| (words[at + 2] + x + y * words[at] + z * words[at + 1]) * element;
                        all.extend((0..element).map(|byte| (words[0] + place(4) + byte, words[1] + place(8) + byte)));
                    }
                }
            }
        }
        all
    }

    fn bytes(rows: impl Iterator<Item = Row>) -> Vec<(u64, u64)> {
        let mut all: Vec<_> =
            rows.flat_map(|row| (0..row.bytes).map(move |byte| (row.src + byte, row.dst + byte))).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn rows_are_what_the_work_items_of_a_rectangle_do() {
        let mut words = [0; 19];
        words[..2].copy_from_slice(&[1 << 20, 1 << 30]);
        words[4..7].copy_from_slice(&[40, 400, 7]);
        words[8..11].copy_from_slice(&[50, 900, 3]);
        words[12..16].copy_from_slice(&[11, 5, 3, 16]);
        for (grid, offsets) in
            [([16, 8, 4], [0; 3]), ([8, 5, 3], [0; 3]), ([16, 8, 4], [9, 1, 2]), ([16, 8, 4], [11, 0, 0])]
        {
            words[16..].copy_from_slice(&offsets);
            for (in_bytes, element) in [(true, 1), (false, 16)] {
                let mut expected = by_work_item(&words, grid, element);
                expected.sort_unstable();
                assert_eq!(bytes(copy_rect(&words, grid, in_bytes)), expected, "{grid:?} {offsets:?} {element}");
            }
        }
    }

    #[test]
    fn the_last_word_of_a_copy_may_be_short() {
        let row = |words: [u64; 7], grid| copy(&words, [grid, 1, 1]).next();
        // Three words and one byte; the grid is larger than that, and then smaller.
        assert_eq!(row([1000, 2000, 5, 6, 4, 1, 0], 256), Some(Row { src: 1005, dst: 2006, bytes: 13 }));
        assert_eq!(row([1000, 2000, 5, 6, 4, 1, 0], 3), Some(Row { src: 1005, dst: 2006, bytes: 12 }));
        assert_eq!(row([1000, 2000, 5, 6, 4, 4, 0], 256), Some(Row { src: 1005, dst: 2006, bytes: 16 }));
        // Bytes.
        assert_eq!(row([1000, 2000, 5, 6, 4, 8, 0], 256), Some(Row { src: 1005, dst: 2006, bytes: 4 }));
        // Nothing.
        assert_eq!(row([1000, 2000, 5, 6, 0, 1, 0], 256), Some(Row { src: 1005, dst: 2006, bytes: 0 }));
        let elements = copy_elements(&[1000, 2000, 1, 2, 3, 16, 1], [256, 1, 1]).next();
        assert_eq!(elements, Some(Row { src: 1032, dst: 2048, bytes: 32 }));
    }
}
