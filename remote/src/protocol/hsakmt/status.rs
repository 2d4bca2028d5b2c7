// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What came of a request: libhsakmt's status numbers. What the host refuses without asking KFD is
//! a negative errno, as in virglrenderer.

/// All well.
pub const SUCCESS: i32 = 0;
pub const ERROR: i32 = 1;
/// A parameter makes no sense.
pub const INVALID_PARAMETER: i32 = 3;
/// No such object.
pub const INVALID_HANDLE: i32 = 4;
/// No such node.
pub const INVALID_NODE: i32 = 5;
/// No memory.
pub const NO_MEMORY: i32 = 6;
/// The host has not this call.
pub const NOT_IMPLEMENTED: i32 = 10;
/// The machine cannot do this.
pub const NOT_SUPPORTED: i32 = 11;
/// No more of these.
pub const OUT_OF_RESOURCES: i32 = 13;
/// The time is up.
pub const WAIT_TIMEOUT: i32 = 31;

/// What a failed call of KFD is to the library: it maps error numbers so.
#[must_use]
pub fn of_errno(errno: i32) -> i32 {
    match errno {
        // ENOMEM, ENOSPC.
        12 | 28 => NO_MEMORY,
        // EINVAL, EFAULT, EADDRINUSE.
        22 | 14 | 98 => INVALID_PARAMETER,
        // EOPNOTSUPP, EPERM.
        95 | 1 => NOT_SUPPORTED,
        // ETIME.
        62 => WAIT_TIMEOUT,
        _ => ERROR,
    }
}
