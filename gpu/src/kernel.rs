// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Built-in kernels: what a dispatch can run on a GPU without an instruction set.
//!
//! The kernel object of a dispatch packet points at a 64-byte descriptor ([`descriptor`]) in executable GPU
//! memory, its kernarg address at the kernel's argument structure. Each dispatch runs the kernel once,
//! whatever its grid. A few programs of the HSA runtime's and of HIP's own are known by their code (`known`). Anything else halts
//! the queue.
//!
//! Kernels go through the queue's port like packets do, with a buffer of fixed size: they can be suspended,
//! faulted and removed at any chunk, and go on where they were. Addresses are GPU virtual addresses and need
//! no alignment, counts are elements, all values are little-endian.

use crate::access::{Port, Stop};
use crate::known;
use crate::queue::QueueError;
use crate::symbol;

mod run;

pub(crate) use run::Buffer;

/// First word of a descriptor.
pub const MAGIC: [u8; 8] = *b"VKFDKERN";
/// Version of the descriptor and of all argument structures.
pub const VERSION: u32 = 1;

/// The kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum BuiltinKernel {
    /// [`Sum64`].
    Sum64 = 1,
    /// [`Crc32`].
    Crc32 = 2,
    /// [`Fill64`].
    Fill64 = 3,
    /// [`Iota64`].
    Iota64 = 4,
    /// [`Saxpy`].
    Saxpy = 5,
    /// [`Matmul`].
    Matmul = 6,
}

impl BuiltinKernel {
    /// All of them.
    pub const ALL: [BuiltinKernel; 6] = [
        BuiltinKernel::Sum64,
        BuiltinKernel::Crc32,
        BuiltinKernel::Fill64,
        BuiltinKernel::Iota64,
        BuiltinKernel::Saxpy,
        BuiltinKernel::Matmul,
    ];
}

/// The descriptor to put into executable GPU memory: the magic, the version, the kernel's number, zeros.
pub fn descriptor(kernel: BuiltinKernel) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(kernel as u32).to_le_bytes());
    bytes
}

/// Arguments of a kernel that adds `count` 64-bit words from `src` on, wrapping, and writes the sum to the
/// word at `out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sum64 {
    /// Address of the words.
    pub src: u64,
    /// Number of words.
    pub count: u64,
    /// Address of the sum.
    pub out: u64,
}

/// Arguments of a kernel that computes the CRC-32 (IEEE 802.3, as zlib's) of each of `count` segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Crc32 {
    /// Address of an array of [`Segment`].
    pub segments: u64,
    /// Number of segments.
    pub count: u64,
    /// Address of an array of 32-bit words for the results.
    pub out: u64,
}

/// A range of GPU memory; element of the array that [`Crc32`] reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// First byte.
    pub va: u64,
    /// Bytes.
    pub len: u64,
}

/// Arguments of a kernel that sets `count` 64-bit words from `dst` on to `value`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fill64 {
    /// Address of the words.
    pub dst: u64,
    /// Number of words.
    pub count: u64,
    /// Their value.
    pub value: u64,
}

/// Arguments of a kernel that sets word `i` of `count` 64-bit words from `dst` on to `start + i`, wrapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Iota64 {
    /// Address of the words.
    pub dst: u64,
    /// Number of words.
    pub count: u64,
    /// Value of the first.
    pub start: u64,
}

/// Arguments of a kernel that computes `y = a * x + y` on `count` 32-bit floats, rounding twice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Saxpy {
    /// Address of `x`.
    pub x: u64,
    /// Address of `y`.
    pub y: u64,
    /// Number of elements of each.
    pub count: u64,
    /// The factor.
    pub a: f32,
    /// Unused.
    pub pad: u32,
}

/// Arguments of a kernel that computes `c = a * b` on row-major matrices of 32-bit floats. Products are added
/// in the order of `k`, in 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Matmul {
    /// Address of `a`, `m` rows of `k`.
    pub a: u64,
    /// Address of `b`, `k` rows of `n`.
    pub b: u64,
    /// Address of `c`, `m` rows of `n`.
    pub c: u64,
    /// Rows of `a` and `c`.
    pub m: u64,
    /// Columns of `b` and `c`.
    pub n: u64,
    /// Columns of `a`, rows of `b`.
    pub k: u64,
}

/// Argument structures: they are all 64-bit words.
trait Arguments: Sized {
    const WORDS: usize;
    fn from_words(words: &[u64; 6]) -> Self;
    fn to_words(&self) -> [u64; 6];
}

macro_rules! arguments {
    ($type:ident, $words:literal, |$w:ident| $from:expr, |$s:ident| $to:expr) => {
        impl Arguments for $type {
            const WORDS: usize = $words;
            fn from_words($w: &[u64; 6]) -> $type {
                $from
            }
            fn to_words(&self) -> [u64; 6] {
                let $s = self;
                $to
            }
        }
        impl $type {
            /// The structure as it lies in memory.
            pub fn to_bytes(&self) -> Vec<u8> {
                self.to_words().iter().take(Self::WORDS).flat_map(|word| word.to_le_bytes()).collect()
            }
        }
    };
}

arguments!(Sum64, 3, |w| Sum64 { src: w[0], count: w[1], out: w[2] }, |s| [s.src, s.count, s.out, 0, 0, 0]);
arguments!(Crc32, 3, |w| Crc32 { segments: w[0], count: w[1], out: w[2] }, |s| [s.segments, s.count, s.out, 0, 0, 0]);
arguments!(Segment, 2, |w| Segment { va: w[0], len: w[1] }, |s| [s.va, s.len, 0, 0, 0, 0]);
arguments!(Fill64, 3, |w| Fill64 { dst: w[0], count: w[1], value: w[2] }, |s| [s.dst, s.count, s.value, 0, 0, 0]);
arguments!(Iota64, 3, |w| Iota64 { dst: w[0], count: w[1], start: w[2] }, |s| [s.dst, s.count, s.start, 0, 0, 0]);
arguments!(
    Saxpy,
    4,
    |w| {
        let (a, pad) = (w[3] & u64::from(u32::MAX), w[3] >> 32);
        let [a, pad] = [a, pad].map(|half| u32::try_from(half).unwrap_or(0));
        Saxpy { x: w[0], y: w[1], count: w[2], a: f32::from_bits(a), pad }
    },
    |s| [s.x, s.y, s.count, u64::from(s.a.to_bits()) | u64::from(s.pad) << 32, 0, 0]
);
arguments!(Matmul, 6, |w| Matmul { a: w[0], b: w[1], c: w[2], m: w[3], n: w[4], k: w[5] }, |s| [
    s.a, s.b, s.c, s.m, s.n, s.k
]);

/// Reads an argument structure.
fn arguments<T: Arguments>(port: &mut Port, va: u64) -> Result<T, Stop> {
    let mut bytes = [0u8; 48];
    port.read(va, bytes.get_mut(..T::WORDS * 8).unwrap_or_default())?;
    let mut words = [0; 6];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = chunk.try_into().map(u64::from_le_bytes).unwrap_or(0);
    }
    Ok(T::from_words(&words))
}

/// What a dispatch packet asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatch {
    /// Address of the kernel object.
    pub(crate) object: u64,
    /// Address of the arguments.
    pub(crate) kernarg: u64,
    /// Work-items in each dimension.
    pub(crate) grid: [u32; 3],
}

/// Runs a kernel.
pub(crate) fn dispatch(port: &mut Port, buffer: &mut Buffer, dispatch: &Dispatch) -> Result<(), Stop> {
    let Dispatch { object, kernarg, grid } = *dispatch;
    let mut bytes = [0; 64];
    port.read_code(object, &mut bytes)?;
    let kernel = BuiltinKernel::ALL.into_iter().find(|&kernel| descriptor(kernel) == bytes);
    let mut run = run::Run { port, buffer, kernarg };
    match kernel {
        Some(BuiltinKernel::Sum64) => run.sum64(),
        Some(BuiltinKernel::Crc32) => run.crc32(),
        Some(BuiltinKernel::Fill64) => run.fill64(),
        Some(BuiltinKernel::Iota64) => run.iota64(),
        Some(BuiltinKernel::Saxpy) => run.saxpy(),
        Some(BuiltinKernel::Matmul) => run.matmul(),
        None => match known::find(run.port, object)? {
            Some(program) => program.run(run.port, kernarg, grid),
            None => Err(unknown(run.port, object)?.into()),
        },
    }
}

/// The error for code at `object` that this GPU cannot run, with its name if that can be found.
pub(crate) fn unknown(port: &mut Port, object: u64) -> Result<QueueError, Stop> {
    Ok(QueueError::UnknownKernel { object, name: symbol::name(port, object)? })
}
