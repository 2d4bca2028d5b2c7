// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Address and identifier kinds; each is its own type so that none can stand in for another.

use std::fmt;

/// Bytes in a page, of the CPU and of the GPU.
pub const PAGE: u64 = 4096;

const _: () = assert!(usize::BITS == 64, "KFD is for 64-bit machines");

/// `u64` to `usize`; lossless on the machines this builds for.
#[allow(clippy::cast_possible_truncation)] // asserted above
pub(crate) const fn index(n: u64) -> usize {
    n as usize
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

number! {
    /// An address in this process's CPU address space.
    CpuVa(u64)
}
number! {
    /// An address in this process's GPU address space (the same on all its GPUs).
    GpuVa(u64)
}
number! {
    /// A GPU's identifier in the ABI (`gpu_id`).
    GpuId(u32)
}
number! {
    /// A buffer object's handle in the ABI.
    Handle(u64)
}

impl CpuVa {
    /// The address a pointer holds.
    #[must_use]
    pub fn of<T: ?Sized>(pointer: *const T) -> Self {
        Self(pointer.cast::<u8>().expose_provenance() as u64)
    }
}

impl GpuVa {
    /// This address plus `bytes`, unless that wraps.
    #[must_use]
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }

    /// This address plus `bytes`; wraps as the GPU's arithmetic does.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}
