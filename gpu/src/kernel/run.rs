// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernels' code. Each works through its operands a buffer at a time.

use super::{arguments, Crc32, Fill64, Iota64, Matmul, Saxpy, Segment, Sum64};
use crate::access::{Port, Stop};
use crate::queue::QueueError;

/// Words of the buffer: 256 KiB.
const WORDS: usize = 32 << 10;
/// Rows and columns of the matrix tiles; three of them fill three quarters of the buffer.
const TILE: usize = 128;

/// A queue's private memory for kernels.
pub(crate) struct Buffer(Box<[u64]>);

impl Buffer {
    pub(crate) fn new() -> Buffer {
        Buffer(vec![0; WORDS].into_boxed_slice())
    }

    fn words(&mut self) -> &mut [u64] {
        &mut self.0
    }

    fn floats(&mut self) -> &mut [f32] {
        // SAFETY: any bytes are valid floats, and words are aligned more strictly, so that all of them are in
        // the middle.
        unsafe { self.0.align_to_mut().1 }
    }
}

fn bytes_mut<T: Number>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: numbers have no padding, and any bytes are a valid number.
    unsafe { numbers.align_to_mut().1 }
}

fn bytes<T: Number>(numbers: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding.
    unsafe { numbers.align_to().1 }
}

/// Types without padding or invalid values.
trait Number: Copy {}
impl Number for u64 {}
impl Number for u32 {}
impl Number for f32 {}

/// A kernel being run.
pub(super) struct Run<'a> {
    pub(super) port: &'a mut Port,
    pub(super) buffer: &'a mut Buffer,
    pub(super) kernarg: u64,
}

impl Run<'_> {
    fn bad(&self, message: &'static str) -> Stop {
        QueueError::BadArguments { kernarg: self.kernarg, message }.into()
    }

    /// Checks that an array of `count` elements of `size` bytes at `va` does not leave the 64-bit address
    /// space.
    fn check(&self, va: u64, count: u64, size: u64) -> Result<(), Stop> {
        let end = count.checked_mul(size).and_then(|bytes| va.checked_add(bytes));
        end.map(|_| ()).ok_or_else(|| self.bad("an operand leaves the address space"))
    }

    pub(super) fn sum64(&mut self) -> Result<(), Stop> {
        let Sum64 { src, count, out } = arguments(self.port, self.kernarg)?;
        self.check(src, count, 8)?;
        let mut sum = 0u64;
        let mut done = 0;
        while done < count {
            let words = first(self.buffer.words(), count - done);
            self.port.read(src + done * 8, bytes_mut(words))?;
            sum = words.iter().fold(sum, |sum, &word| sum.wrapping_add(u64::from_le(word)));
            done += words.len() as u64;
        }
        self.port.write(out, &sum.to_le_bytes())
    }

    pub(super) fn crc32(&mut self) -> Result<(), Stop> {
        let Crc32 { segments, count, out } = arguments(self.port, self.kernarg)?;
        self.check(segments, count, 16)?;
        self.check(out, count, 4)?;
        for index in 0..count {
            let Segment { va, len } = arguments(self.port, segments + index * 16)?;
            self.check(va, len, 1)?;
            let mut hasher = crc32fast::Hasher::new();
            let mut done = 0;
            while done < len {
                let bytes = first(bytes_mut(self.buffer.words()), len - done);
                self.port.read(va + done, bytes)?;
                hasher.update(bytes);
                done += bytes.len() as u64;
            }
            self.port.write(out + index * 4, &hasher.finalize().to_le_bytes())?;
        }
        Ok(())
    }

    pub(super) fn fill64(&mut self) -> Result<(), Stop> {
        let Fill64 { dst, count, value } = arguments(self.port, self.kernarg)?;
        self.generate(dst, count, |_| value)
    }

    pub(super) fn iota64(&mut self) -> Result<(), Stop> {
        let Iota64 { dst, count, start } = arguments(self.port, self.kernarg)?;
        self.generate(dst, count, |index| start.wrapping_add(index))
    }

    fn generate(&mut self, dst: u64, count: u64, word: impl Fn(u64) -> u64) -> Result<(), Stop> {
        self.check(dst, count, 8)?;
        let mut done = 0;
        while done < count {
            let words = first(self.buffer.words(), count - done);
            for (slot, index) in words.iter_mut().zip(done..) {
                *slot = word(index).to_le();
            }
            self.port.write(dst + done * 8, bytes(words))?;
            done += words.len() as u64;
        }
        Ok(())
    }

    pub(super) fn saxpy(&mut self) -> Result<(), Stop> {
        let Saxpy { x, y, count, a, .. } = arguments(self.port, self.kernarg)?;
        self.check(x, count, 4)?;
        self.check(y, count, 4)?;
        let mut done = 0;
        while done < count {
            let (xs, ys) = self.buffer.floats().split_at_mut(WORDS);
            let (xs, ys) = (first(xs, count - done), first(ys, count - done));
            self.port.read(x + done * 4, bytes_mut(xs))?;
            self.port.read(y + done * 4, bytes_mut(ys))?;
            for (y, &x) in ys.iter_mut().zip(xs.iter()) {
                *y += a * x;
            }
            self.port.write(y + done * 4, bytes(ys))?;
            done += ys.len() as u64;
        }
        Ok(())
    }

    pub(super) fn matmul(&mut self) -> Result<(), Stop> {
        let Matmul { a, b, c, m, n, k } = arguments(self.port, self.kernarg)?;
        for (va, rows, columns) in [(a, m, k), (b, k, n), (c, m, n)] {
            let count = rows.checked_mul(columns).ok_or_else(|| self.bad("a matrix is too large"))?;
            self.check(va, count, 4)?;
        }
        let (tile_a, rest) = self.buffer.floats().split_at_mut(TILE * TILE);
        let (tile_b, rest) = rest.split_at_mut(TILE * TILE);
        let tile_c = first(rest, (TILE * TILE) as u64);
        for row in (0..m).step_by(TILE) {
            self.port.check_removed()?;
            for column in (0..n).step_by(TILE) {
                tile_c.fill(0.0);
                for depth in (0..k).step_by(TILE) {
                    read_tile(self.port, tile_a, a, (row, m), (depth, k))?;
                    read_tile(self.port, tile_b, b, (depth, k), (column, n))?;
                    multiply(tile_a, tile_b, tile_c);
                }
                for (offset, line) in (row..m).zip(tile_c.chunks_exact(TILE)) {
                    let part = line.get(..extent(column, n)).unwrap_or_default();
                    self.port.write(c + (offset * n + column) * 4, bytes(part))?;
                }
            }
        }
        Ok(())
    }
}

/// The first `count` elements, or all there are.
fn first<T>(elements: &mut [T], count: u64) -> &mut [T] {
    let len = usize::try_from(count).map_or(elements.len(), |count| count.min(elements.len()));
    elements.get_mut(..len).unwrap_or_default()
}

/// Elements of a tile that starts at `start` in a dimension of `size`.
fn extent(start: u64, size: u64) -> usize {
    usize::try_from(size - start).map_or(TILE, |left| left.min(TILE))
}

/// Reads a tile of a matrix at `va`, whose rows and columns are given as (start, size); pads it with zeros.
fn read_tile(port: &mut Port, tile: &mut [f32], va: u64, rows: (u64, u64), columns: (u64, u64)) -> Result<(), Stop> {
    tile.fill(0.0);
    for (row, line) in (rows.0..rows.1).zip(tile.chunks_exact_mut(TILE)) {
        let part = line.get_mut(..extent(columns.0, columns.1)).unwrap_or_default();
        port.read(va + (row * columns.1 + columns.0) * 4, bytes_mut(part))?;
    }
    Ok(())
}

fn multiply(a: &[f32], b: &[f32], c: &mut [f32]) {
    for (line_a, line_c) in a.chunks_exact(TILE).zip(c.chunks_exact_mut(TILE)) {
        for (&factor, line_b) in line_a.iter().zip(b.chunks_exact(TILE)) {
            for (sum, &value) in line_c.iter_mut().zip(line_b) {
                *sum += factor * value;
            }
        }
    }
}
