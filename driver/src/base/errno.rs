// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Error numbers, and the error that driver paths return.
//!
//! The ioctl boundary speaks errno, as KFD does. Inside the driver an [`Error`] also carries *why*
//! and *which range*, so that a client can ask afterwards (`LAST_ERROR`) instead of bisecting its
//! list.

use crate::addr::CpuVa;
use vkfd_uapi::vkfd as abi;

/// A Linux error number (positive).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Errno = Errno($value);)*

            /// The symbolic name, for messages.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($value => stringify!($name),)*
                    _ => "E?",
                }
            }
        }
    };
}

errnos! {
    /// Operation not permitted: here, a mapping without the asked permission.
    EPERM = 1;
    /// No such entry.
    ENOENT = 2;
    /// No such process: the address space has gone.
    ESRCH = 3;
    /// Interrupted by a signal.
    EINTR = 4;
    /// Input or output error: here, an event was destroyed while it was waited for.
    EIO = 5;
    /// Bad file: used by another process than the one that opened it.
    EBADF = 9;
    /// Try again.
    EAGAIN = 11;
    /// Out of memory, or over a memory limit.
    ENOMEM = 12;
    /// Permission denied.
    EACCES = 13;
    /// Bad address.
    EFAULT = 14;
    EBUSY = 16;
    /// Exists already.
    EEXIST = 17;
    /// No such device.
    ENODEV = 19;
    /// Invalid argument.
    EINVAL = 22;
    /// No more files: as many buffers have some as the host allows.
    EMFILE = 24;
    /// No space: hardware resources are used up.
    ENOSPC = 28;
    /// Unknown command.
    ENOTTY = 25;
    /// Timer expired.
    ETIME = 62;
    /// Value too large.
    EOVERFLOW = 75;
    /// Not supported for this object.
    EOPNOTSUPP = 95;
    /// The address range is in use.
    EADDRINUSE = 98;
}

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
