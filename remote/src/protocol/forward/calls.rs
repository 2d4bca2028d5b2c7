// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which calls there are, and where their arguments point.
//!
//! The tables of the crate `vkfd-uapi` have sizes, arrays, and whether a call is forwarded. Both
//! sides refuse any other call, so no guest pointer ever reaches the host's driver.

use std::mem::size_of;

use vkfd_uapi::batch::{self, AllocMemoryOfGpuBatchArgs, ALLOC_MEMORY_OF_GPU_BATCH};
pub use vkfd_uapi::call::Way;
use vkfd_uapi::call::{Count, Forward, Known, Pointer};
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::{command as c, drm, errno, vkfd};

use super::{File, MAX_ARGUMENT_BYTES, MAX_ARRAY_BYTES};
use crate::protocol::{u32_at, u64_at};

/// A call that is not done, and the errno that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub i32);

impl Refused {
    /// No such call, or none that is forwarded (ENOTTY).
    pub const NO_CALL: Self = Self(errno::ENOTTY);
    /// No such call on a render node, or none that is forwarded (EOPNOTSUPP).
    pub const NO_RENDER_CALL: Self = Self(errno::EOPNOTSUPP);
    /// An argument makes no sense (EINVAL).
    pub const VALUE: Self = Self(errno::EINVAL);
    /// More than a message has room for (ENOMEM).
    pub const TOO_MUCH: Self = Self(errno::ENOMEM);
}

/// An array that an argument points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Where in the argument its pointer is.
    pub pointer: usize,
    pub bytes: usize,
    /// Which way it goes.
    pub way: Way,
}

/// The row of a call that `file` offers.
fn row(file: File, command: Command) -> Result<&'static Known, Refused> {
    let found = match file {
        // The batch allocation's number is also the profiler's: there the whole word counts.
        File::Kfd if command == ALLOC_MEMORY_OF_GPU_BATCH => Some(&batch::KNOWN),
        File::Kfd => find(command, c::ALL).or_else(|| find(command, vkfd::ALL)),
        File::Render(_) => find(command, drm::ALL),
        File::Sharing => super::sharing::row(command),
    };
    let refused = if matches!(file, File::Render(_)) { Refused::NO_RENDER_CALL } else { Refused::NO_CALL };
    found.filter(|known| file == File::Sharing || known.forward == Forward::Yes).ok_or(refused)
}

/// The row of a call by its letter and number.
pub(super) fn find(command: Command, all: &'static [Known]) -> Option<&'static Known> {
    let is = |known: &&Known| known.command.kind() == command.kind() && known.command.number() == command.number();
    all.iter().find(is)
}

/// Bytes of a call's argument as the driver knows it.
///
/// # Errors
/// [`Refused`] for a call that is not offered, or whose argument is said to be larger than any is.
pub fn size(file: File, command: Command) -> Result<usize, Refused> {
    let known = row(file, command)?.command.size();
    if command.size() > MAX_ARGUMENT_BYTES {
        return Err(Refused::VALUE);
    }
    Ok(known)
}

/// The arrays of an argument, those that are there: a null pointer and a count of 0 have none.
///
/// # Errors
/// [`Refused`] for a call that is not offered, or an array that is too long for a message.
pub fn arrays(file: File, command: Command, argument: &[u8]) -> Result<Vec<Array>, Refused> {
    let mut arrays = Vec::new();
    for Pointer { at: pointer, count, each, way } in row(file, command)?.pointers.iter().copied() {
        let value = |result: Result<u64, _>| result.map_err(|_| Refused::VALUE);
        if value(u64_at(argument, pointer))? == 0 {
            continue;
        }
        let word = |at| value(u32_at(argument, at).map(u64::from));
        let count = match count {
            Count::Word(at) => word(at)?,
            Count::Long(at) => value(u64_at(argument, at))?,
            Count::Bits(at) => word(at)?.div_ceil(8),
        };
        let bytes = count.checked_mul(each as u64).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.filter(|bytes| *bytes <= MAX_ARRAY_BYTES).ok_or(Refused::TOO_MUCH)?;
        if bytes > 0 {
            arrays.push(Array { pointer, bytes, way });
        }
    }
    Ok(arrays)
}

/// The places of all pointers in a call's argument, of arrays that are there or not.
///
/// # Errors
/// [`Refused`] for a call that is not offered.
pub fn pointers(file: File, command: Command) -> Result<impl Iterator<Item = usize>, Refused> {
    Ok(row(file, command)?.pointers.iter().map(|pointer| pointer.at))
}

const _: () = assert!(size_of::<AllocMemoryOfGpuBatchArgs>() <= MAX_ARGUMENT_BYTES);
