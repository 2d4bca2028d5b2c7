// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernels that are built into vkfd's GPU.
//!
//! Mechanism: a dispatch packet names a 64-byte descriptor in executable memory (magic, version, number) instead of code, and a structure
//! of 64-bit words as arguments. Addresses are GPU addresses, counts are elements; values are little-endian.

use crate::address::GpuVa;

const MAGIC: u64 = u64::from_le_bytes(*b"VKFDKERN");
const VERSION: u64 = 1;

/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_BYTES: u64 = 64;
/// How many kernels there are; they are numbered from 1.
pub(crate) const COUNT: u64 = 6;

/// A kernel and its arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// Adds 64-bit words, wrapping.
    Sum64 {
        /// The words.
        src: GpuVa,
        /// How many.
        count: u64,
        /// Where the sum goes, 64 bits.
        out: GpuVa,
    },
    /// CRC-32 (IEEE 802.3) of each of a list of segments.
    Crc32 {
        /// The list: address and length, 64 bits each.
        segments: GpuVa,
        /// How many.
        count: u64,
        /// Where the results go, 32 bits each.
        out: GpuVa,
    },
    /// Sets 64-bit words.
    Fill64 {
        /// The words.
        dst: GpuVa,
        /// How many.
        count: u64,
        /// Their value.
        value: u64,
    },
    /// Numbers 64-bit words.
    Iota64 {
        /// The words.
        dst: GpuVa,
        /// How many.
        count: u64,
        /// The value of the first.
        start: u64,
    },
    /// `y = a * x + y` on 32-bit floats.
    Saxpy {
        /// The factor.
        a: f32,
        /// `x`.
        x: GpuVa,
        /// `y`.
        y: GpuVa,
        /// How many of each.
        count: u64,
    },
    /// `c = a * b` on row-major matrices of 32-bit floats.
    Matmul {
        /// `m` rows of `k`.
        a: GpuVa,
        /// `k` rows of `n`.
        b: GpuVa,
        /// `m` rows of `n`.
        c: GpuVa,
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// The inner dimension.
        k: u64,
    },
}

impl Kernel {
    /// Its number, from 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        match self {
            Self::Sum64 { .. } => 1,
            Self::Crc32 { .. } => 2,
            Self::Fill64 { .. } => 3,
            Self::Iota64 { .. } => 4,
            Self::Saxpy { .. } => 5,
            Self::Matmul { .. } => 6,
        }
    }

    /// Its argument structure; words that the kernel has not are 0.
    pub(crate) fn arguments(&self) -> [u8; 48] {
        let words = match *self {
            Self::Sum64 { src, count, out } => [src.0, count, out.0, 0, 0, 0],
            Self::Crc32 { segments, count, out } => [segments.0, count, out.0, 0, 0, 0],
            Self::Fill64 { dst, count, value } => [dst.0, count, value, 0, 0, 0],
            Self::Iota64 { dst, count, start } => [dst.0, count, start, 0, 0, 0],
            Self::Saxpy { a, x, y, count } => [x.0, y.0, count, a.to_bits().into(), 0, 0],
            Self::Matmul { a, b, c, m, n, k } => [a.0, b.0, c.0, m, n, k],
        };
        let mut bytes = [0; 48];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// The descriptor of kernel `number`.
pub(crate) fn descriptor(number: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (place, word) in bytes.chunks_exact_mut(8).zip([MAGIC, VERSION | number << 32]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_gpu::kernel as gpu;

    #[test]
    fn descriptors_are_those_that_the_gpu_knows() {
        assert_eq!(u64::try_from(gpu::BuiltinKernel::ALL.len()), Ok(COUNT));
        for (number, kernel) in (1..).zip(gpu::BuiltinKernel::ALL) {
            assert_eq!(descriptor(number), gpu::descriptor(kernel), "{kernel:?}");
        }
    }

    #[test]
    fn arguments_are_those_that_the_gpu_reads() {
        let [a, b, c] = [0x1000, 0x2000, 0x3000].map(GpuVa);
        let same = |kernel: Kernel, number: gpu::BuiltinKernel, bytes: Vec<u8>| {
            assert_eq!(kernel.arguments()[..bytes.len()], bytes, "{kernel:?}");
            assert_eq!(descriptor(kernel.number()), gpu::descriptor(number));
        };
        let args = gpu::Sum64 { src: a.0, count: 7, out: b.0 };
        same(Kernel::Sum64 { src: a, count: 7, out: b }, gpu::BuiltinKernel::Sum64, args.to_bytes());
        let args = gpu::Crc32 { segments: a.0, count: 7, out: b.0 };
        same(Kernel::Crc32 { segments: a, count: 7, out: b }, gpu::BuiltinKernel::Crc32, args.to_bytes());
        let args = gpu::Fill64 { dst: a.0, count: 7, value: 9 };
        same(Kernel::Fill64 { dst: a, count: 7, value: 9 }, gpu::BuiltinKernel::Fill64, args.to_bytes());
        let args = gpu::Iota64 { dst: a.0, count: 7, start: 9 };
        same(Kernel::Iota64 { dst: a, count: 7, start: 9 }, gpu::BuiltinKernel::Iota64, args.to_bytes());
        let args = gpu::Saxpy { x: a.0, y: b.0, count: 7, a: 1.5, pad: 0 };
        same(Kernel::Saxpy { a: 1.5, x: a, y: b, count: 7 }, gpu::BuiltinKernel::Saxpy, args.to_bytes());
        let args = gpu::Matmul { a: a.0, b: b.0, c: c.0, m: 4, n: 5, k: 6 };
        same(Kernel::Matmul { a, b, c, m: 4, n: 5, k: 6 }, gpu::BuiltinKernel::Matmul, args.to_bytes());
    }
}
