// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The memory that calls read and write: arguments and lists.
//!
//! A test passes pointers to its own variables. A test that makes up addresses cannot: there, the
//! only memory is an array at [`CALLER`], and every other address is EFAULT. Arguments and lists
//! have one place each in it, so calls are made by one thread.

use crate::{lock, SimMm};
use std::ops::Range;
use std::sync::Mutex;
use vkfd_driver::base::addr::{CpuVa, PAGE};
use vkfd_driver::base::errno::{Errno, Result};

/// The address of the array.
pub const CALLER: u64 = 0x10_0000;
/// Its size.
pub const CALLER_BYTES: usize = 0x1_0000;
/// Where arguments are in it.
pub const ARGUMENT: u64 = CALLER;
/// Where lists are in it.
pub const LIST: u64 = CALLER + 0x1000;

/// The memory of callers.
#[derive(Default)]
pub(crate) enum Caller {
    /// The test's own.
    #[default]
    Pointers,
    /// The array.
    Array(Mutex<Vec<u8>>),
}

fn place(at: u64, bytes: usize) -> Option<Range<usize>> {
    let start = usize::try_from(at.checked_sub(CALLER)?).ok()?;
    let end = start.checked_add(bytes)?;
    (end <= CALLER_BYTES).then_some(start..end)
}

fn pointer(at: CpuVa, bytes: usize) -> Result<*mut u8> {
    match usize::try_from(at.0) {
        Ok(address) if at.0 >= PAGE || bytes == 0 => Ok(std::ptr::with_exposed_provenance_mut(address)),
        _ => Err(Errno::EFAULT.into()),
    }
}

impl Caller {
    pub(crate) fn array() -> Self {
        Self::Array(Mutex::new(vec![0; CALLER_BYTES]))
    }

    pub(crate) fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        match self {
            Self::Pointers => {
                let from = pointer(from, to.len())?;
                // SAFETY: tests pass pointers to their own live memory, or ones that were refused
                // above. They do not use it during the call.
                unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), to.len()) };
            }
            Self::Array(bytes) => to.copy_from_slice(&lock(bytes)[place(from.0, to.len()).ok_or(Errno::EFAULT)?]),
        }
        Ok(())
    }

    pub(crate) fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        match self {
            Self::Pointers => {
                let to = pointer(to, from.len())?;
                // SAFETY: as in `read`.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
            }
            Self::Array(bytes) => {
                lock(bytes)[place(to.0, from.len()).ok_or(Errno::EFAULT)?].copy_from_slice(from);
            }
        }
        Ok(())
    }
}

impl SimMm {
    /// Puts bytes into the array; bytes that do not fit are left out.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        if let (Caller::Array(array), Some(place)) = (&self.caller, place(at, bytes.len())) {
            lock(array)[place].copy_from_slice(bytes);
        }
    }

    /// The address that a call names for `bytes`: their own, or `at` in the array.
    pub fn lend(&self, at: u64, bytes: &mut [u8]) -> u64 {
        match &self.caller {
            Caller::Pointers => bytes.as_mut_ptr().expose_provenance() as u64,
            Caller::Array(_) => {
                self.put(at, bytes);
                at
            }
        }
    }

    /// What the call has written there.
    pub fn take_back(&self, at: u64, bytes: &mut [u8]) {
        if let (Caller::Array(array), Some(place)) = (&self.caller, place(at, bytes.len())) {
            bytes.copy_from_slice(&lock(array)[place]);
        }
    }

    /// Bytes that a list can have.
    pub fn list_room(&self) -> usize {
        match &self.caller {
            Caller::Pointers => usize::MAX,
            Caller::Array(_) => CALLER_BYTES - 0x1000,
        }
    }
}
