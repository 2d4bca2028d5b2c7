// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The errors of calls: names, the driver's reason, and the range at fault.

use vkfd_uapi::ioctl::Command;
use vkfd_uapi::vkfd::{self, LastErrorArgs};
use vkfd_uapi::{batch, command};

use crate::address::CpuVa;
use crate::error::{ClientError, Errno, RangeError, RangeFault};

/// A command's name for messages.
pub(crate) fn call_name(command: Command) -> &'static str {
    if command == batch::ALLOC_MEMORY_OF_GPU_BATCH {
        return "ALLOC_MEMORY_OF_GPU_BATCH";
    }
    command::name(command).or_else(|| vkfd::name(command)).unwrap_or("ioctl")
}

/// A range at fault, by its place in the list.
pub(crate) fn range_error(index: usize, (start, bytes): (CpuVa, u64), fault: RangeFault, errno: Errno) -> RangeError {
    RangeError { index: u64::try_from(index).unwrap_or(u64::MAX), start, bytes, fault, errno }
}

/// A failure that the driver has explained.
pub(crate) fn refused(call: &'static str, errno: Errno, last: &LastErrorArgs) -> ClientError {
    if last.has_index == 0 {
        let why = vkfd::reason_text(last.reason).unwrap_or("for a reason that this library does not know");
        return ClientError::Refused { call, errno, why };
    }
    let fault = match last.reason {
        vkfd::REASON_ZERO_OR_UNALIGNED => RangeFault::ZeroOrUnaligned,
        vkfd::REASON_WRAPS => RangeFault::Wraps,
        vkfd::REASON_NOT_MAPPED => RangeFault::NotMapped,
        vkfd::REASON_NO_PERMISSION => RangeFault::NoPermission,
        vkfd::REASON_CPU_RANGE_IS_SVM => RangeFault::Svm,
        vkfd::REASON_DEADLINE => RangeFault::Deadline,
        _ => RangeFault::Other,
    };
    let range = RangeError { index: last.index, start: CpuVa(last.address), bytes: last.size, fault, errno };
    ClientError::Range { call, range }
}

/// Puts the caller's range into an error of a call that was about that range alone. Other errors
/// stay as they are.
pub(crate) fn name_range(error: ClientError, index: usize, range: Option<(CpuVa, u64)>) -> ClientError {
    let Some(range) = range else { return error };
    match error {
        ClientError::Range { call, range: known } => {
            ClientError::Range { call, range: range_error(index, range, known.fault, known.errno) }
        }
        ClientError::Call { call, errno } => {
            let fault = match errno {
                Errno::FAULT => RangeFault::NotMapped,
                Errno::PERM => RangeFault::NoPermission,
                Errno::ADDRINUSE => RangeFault::Svm,
                Errno::AGAIN => RangeFault::Deadline,
                _ => RangeFault::Other,
            };
            ClientError::Range { call, range: range_error(index, range, fault, errno) }
        }
        other => other,
    }
}
