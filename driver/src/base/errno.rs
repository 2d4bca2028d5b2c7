// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Error numbers, and the error that driver paths return.
//!
//! The ioctl boundary speaks errno, as KFD does. Inside the driver an [`Error`] also carries *why*
//! and *which range*, so that a client can ask afterwards (`LAST_ERROR`) instead of bisecting its
//! list.

use crate::base::addr::CpuVa;
use vkfd_uapi::vkfd as abi;

/// A Linux error number (positive).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Errno(pub i32);

macro_rules! constants {
    ($($name:ident $short:ident = $value:literal, $text:literal;)+) => {
        impl Errno {
            $(#[doc = concat!($text, ".")] pub const $name: Errno = Errno($value);)+

            /// The symbolic name, for messages.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($value => stringify!($name),)+
                    _ => "E?",
                }
            }
        }
    };
}

vkfd_uapi::errnos!(constants);

/// Why a call failed; the numbers are ABI (`REASON_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs)] // the names say it, and the ABI documents each
pub enum Reason {
    None = abi::REASON_NONE,
    ZeroOrUnaligned = abi::REASON_ZERO_OR_UNALIGNED,
    Wraps = abi::REASON_WRAPS,
    SumMismatch = abi::REASON_SUM_MISMATCH,
    TooManyRanges = abi::REASON_TOO_MANY_RANGES,
    GpuRangeBusy = abi::REASON_GPU_RANGE_BUSY,
    CpuRangeIsSvm = abi::REASON_CPU_RANGE_IS_SVM,
    NotMapped = abi::REASON_NOT_MAPPED,
    NoPermission = abi::REASON_NO_PERMISSION,
    MemoryLimit = abi::REASON_MEMORY_LIMIT,
    Deadline = abi::REASON_DEADLINE,
    BadGpu = abi::REASON_BAD_GPU,
    BadFlags = abi::REASON_BAD_FLAGS,
    BadPointer = abi::REASON_BAD_POINTER,
    NoMemory = abi::REASON_NO_MEMORY,
    BadHandle = abi::REASON_BAD_HANDLE,
    StillMapped = abi::REASON_STILL_MAPPED,
    OutOfAperture = abi::REASON_OUT_OF_APERTURE,
    NoVram = abi::REASON_NO_VRAM,
}

/// The range of a call's list that an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeAt {
    /// Position in the caller's array.
    pub index: u64,
    /// The range's first CPU address, as the caller gave it.
    pub start: CpuVa,
    /// Its size in bytes, as the caller gave it.
    pub bytes: u64,
}

/// What a driver path fails with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error {
    /// What the ioctl returns.
    pub errno: Errno,
    pub reason: Reason,
    /// Which range, where one is at fault.
    pub at: Option<RangeAt>,
}

/// The driver's result.
pub type Result<T = ()> = core::result::Result<T, Error>;

impl Error {
    /// An error with its reason.
    pub const fn new(errno: Errno, reason: Reason) -> Self {
        Self { errno, reason, at: None }
    }

    /// The same error, naming the range at fault.
    pub const fn at(mut self, at: RangeAt) -> Self {
        self.at = Some(at);
        self
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        let reason = if errno == Errno::ENOMEM { Reason::NoMemory } else { Reason::None };
        Self::new(errno, reason)
    }
}
