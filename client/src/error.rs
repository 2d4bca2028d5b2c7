// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a call of this library fails with.
//!
//! A KFD answers with an error number alone. [`ClientError`] adds the call, and for a list of
//! ranges the range at fault and the remedy. They come from the driver's own record if it keeps one
//! (vkfd), else from checks before the call.

use std::fmt;

use crate::address::{CpuVa, GpuId, GpuVa};

/// The library's result.
pub type Result<T = ()> = std::result::Result<T, ClientError>;

/// A Linux error number (positive).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! constants {
    ($($name:ident $short:ident = $value:literal, $text:literal;)+) => {
        impl Errno {
            $(#[doc = concat!($text, ".")] pub const $short: Errno = Errno($value);)+

            /// The symbolic name and the meaning, where it is one that a KFD returns.
            fn known(self) -> Option<(&'static str, &'static str)> {
                match self {
                    $(Self::$short => Some((stringify!($name), $text)),)+
                    _ => None,
                }
            }
        }
    };
}

vkfd_uapi::errnos!(constants);

impl Errno {
    /// The error number of the last libc call of this thread.
    pub(crate) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((name, text)) => write!(f, "{text} ({name})"),
            None => fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f),
        }
    }
}

impl std::error::Error for Errno {}

/// Why a range was refused, as far as the driver or the checks before the call can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeFault {
    /// Its address or size is zero or not a multiple of the page size.
    ZeroOrUnaligned,
    /// It goes past the end of the address space, or the sizes do not add up within 64 bits.
    Wraps,
    /// Memory is not mapped there.
    NotMapped,
    /// The mapping does not allow the access that was asked for.
    NoPermission,
    /// It overlaps memory that is registered as an SVM range.
    Svm,
    /// The driver could not finish in time because the memory kept changing.
    Deadline,
    /// The driver refused it for a reason it does not tell.
    Other,
}

impl RangeFault {
    /// What is wrong.
    #[must_use]
    pub fn problem(self) -> &'static str {
        match self {
            Self::ZeroOrUnaligned => "address or size is zero or not page-aligned",
            Self::Wraps => "address plus size, or the sum of sizes, overflows",
            Self::NotMapped => "not mapped",
            Self::NoPermission => "the mapping does not permit the access",
            Self::Svm => "overlaps an SVM range",
            Self::Deadline => "the memory kept changing until the deadline",
            Self::Other => "refused by the driver",
        }
    }

    /// What the caller can do.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::ZeroOrUnaligned => "pass whole pages of at least one page",
            Self::Wraps => "check the list's addresses and sizes",
            Self::NotMapped => "map the memory before registering it",
            Self::NoPermission => "make the mapping writable, or register it read-only",
            Self::Svm => "remove the SVM registration of that memory first",
            Self::Deadline => "do not remap or discard the memory during the call, then try again",
            Self::Other => "see the error number",
        }
    }
}

/// A range of a caller's list that could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeError {
    /// Position in the caller's list.
    pub index: u64,
    /// Its first CPU address.
    pub start: CpuVa,
    /// Its size in bytes.
    pub bytes: u64,
    /// The reason of the error.
    pub fault: RangeFault,
    /// What the call returned, or would have returned where the check was made before it.
    pub errno: Errno,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, start, bytes, fault, errno } = self;
        write!(f, "range {index} at {start}, {bytes:#x} bytes: {} ({errno:?}): {}", fault.problem(), fault.advice())
    }
}

/// A failed call of this library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A KFD is not there or cannot be opened.
    #[error("cannot open {path}: {errno}{}", open_advice(*errno))]
    Open {
        /// Which file.
        path: String,
        /// The system's error.
        errno: Errno,
    },
    /// A system call or ioctl failed.
    #[error("{call}: {errno}")]
    Call {
        /// The ioctl's or system call's name.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// As [`ClientError::Call`], and the driver said why.
    #[error("{call}: {errno}: {why}")]
    Refused {
        /// The ioctl's name.
        call: &'static str,
        /// The error number.
        errno: Errno,
        /// The driver's reason.
        why: &'static str,
    },
    /// A range of the list is at fault.
    #[error("{call}: {range}")]
    Range {
        /// The ioctl's name.
        call: &'static str,
        /// Which range and why.
        range: RangeError,
    },
    /// The GPU accessed memory that its page tables do not allow; the queue has stopped.
    #[error("GPU {gpu} page fault at {va}: {}", fault_text(*not_present, *read_only))]
    GpuFault {
        /// Which GPU.
        gpu: GpuId,
        /// The page's address.
        va: GpuVa,
        /// The page is not mapped on the GPU.
        not_present: bool,
        /// The access was a write and the page is read-only.
        read_only: bool,
    },
    /// The queue stopped on something that it cannot execute.
    #[error("GPU {gpu}: the queue stopped on an error (a packet it cannot execute, or a reset)")]
    QueueError {
        /// Which GPU.
        gpu: GpuId,
    },
    /// The time given to a wait has passed.
    #[error("timed out after {0:?}")]
    Timeout(std::time::Duration),
    /// The topology cannot be read or makes no sense.
    #[error("topology: {0}")]
    Topology(String),
    /// No such GPU.
    #[error("no GPU with gpu_id {0}")]
    NoGpu(GpuId),
    /// The driver or device lacks what the call needs.
    #[error("{0}")]
    Unsupported(String),
    /// The arguments make no sense.
    #[error("{0}")]
    Invalid(String),
    /// The in-process machine could not be started.
    #[error("in-process machine: {0}")]
    Machine(String),
}

fn open_advice(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => " (no KFD is loaded: use an in-process machine)",
        Errno::ACCES | Errno::PERM => " (is the user in the groups `render` and `video`?)",
        _ => "",
    }
}

fn fault_text(not_present: bool, read_only: bool) -> &'static str {
    match (not_present, read_only) {
        (true, _) => "no page is mapped there",
        (false, true) => "write to a read-only page",
        (false, false) => "access not permitted",
    }
}

impl ClientError {
    /// The error number behind it, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno, .. } | Self::Call { errno, .. } | Self::Refused { errno, .. } => Some(*errno),
            Self::Range { range, .. } => Some(range.errno),
            Self::Invalid(_) => Some(Errno::INVAL),
            Self::NoGpu(_) => Some(Errno::NODEV),
            Self::Unsupported(_) => Some(Errno::OPNOTSUPP),
            Self::Timeout(_) => Some(Errno::TIME),
            _ => None,
        }
    }

    /// The range at fault, where one is.
    #[must_use]
    pub fn range(&self) -> Option<&RangeError> {
        match self {
            Self::Range { range, .. } => Some(range),
            _ => None,
        }
    }

    /// For `map_err`: names the call.
    pub(crate) fn call(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Call { call, errno }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_and_what_to_do() {
        let range = RangeError {
            index: 17,
            start: CpuVa(0x7f00_0000_3000),
            bytes: 0x2000,
            fault: RangeFault::NotMapped,
            errno: Errno::FAULT,
        };
        let error = ClientError::Range { call: "ALLOC_BATCH", range };
        assert_eq!(
            error.to_string(),
            "ALLOC_BATCH: range 17 at 0x7f0000003000, 0x2000 bytes: not mapped (EFAULT): map the memory before registering it"
        );
        assert_eq!(error.errno(), Some(Errno::FAULT));
        let fault =
            ClientError::GpuFault { gpu: GpuId(0x1234), va: GpuVa(0xabc000), not_present: true, read_only: false };
        assert_eq!(fault.to_string(), "GPU 0x1234 page fault at 0xabc000: no page is mapped there");
    }

    #[test]
    fn unknown_numbers_fall_back_to_the_system() {
        assert_eq!(format!("{:?}", Errno(133)), "errno 133");
        assert!(Errno(133).to_string().contains("133"));
        assert_eq!(Errno::NOTTY.to_string(), "unknown command (ENOTTY)");
    }
}
