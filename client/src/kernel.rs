// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The computations that this library brings along.
//!
//! Mechanism: each is one or two dispatches of kernels in code objects of `vkfd-kernels`, of which
//! there is one for each processor that is known. Addresses are GPU addresses, counts are elements;
//! values are little-endian.

use crate::address::GpuVa;

/// A computation that this library has the code of, for [`crate::ComputeQueue::launch`]. For a
/// kernel of your own see [`crate::CodeObject`].
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
    /// `y = a * x + y` on 32-bit floats, rounding twice.
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
    /// `c = a * b` on row-major matrices of 32-bit floats, products added in the order of `k`.
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
    /// What pages of 4096 bytes hold whose 64-bit words say where they belong: the page in bits
    /// 63:40, a version in bits 39:12, the index in bits 11:0.
    Watch {
        /// The pages.
        src: GpuVa,
        /// How many.
        pages: u64,
        /// Where the results go, four words of 32 bits for each page: the oldest version and the
        /// newest, how many words are zero, how many belong elsewhere.
        out: GpuVa,
    },
}

impl Kernel {
    /// The dispatches that compute it.
    pub(crate) fn steps(&self) -> Vec<vkfd_kernels::Step> {
        use vkfd_kernels::Kernel as Code;
        let code = match *self {
            Self::Sum64 { src, count, out } => Code::Sum64 { src: src.0, count, out: out.0 },
            Self::Crc32 { segments, count, out } => Code::Crc32 { segments: segments.0, count, out: out.0 },
            Self::Fill64 { dst, count, value } => Code::Fill64 { dst: dst.0, count, value },
            Self::Iota64 { dst, count, start } => Code::Iota64 { dst: dst.0, count, start },
            Self::Saxpy { a, x, y, count } => Code::Saxpy { a, x: x.0, y: y.0, count },
            Self::Watch { src, pages, out } => Code::Watch { src: src.0, pages, out: out.0 },
            Self::Matmul { a, b, c, m, n, k } => Code::Matmul { a: a.0, b: b.0, c: c.0, m, n, k },
        };
        code.steps()
    }
}
