// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Records that calls write into the client's memory, some at a time.

use super::Process;
use crate::base::addr::CpuVa;
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::os::{self, Vec};
use vkfd_uapi::pod::{slice_as_bytes, Pod};
use vkfd_uapi::vkfd as abi;

const STEP: usize = 32;

impl Process {
    /// The answer of an operation that has one record.
    pub(crate) fn copy_out_one(&self, args: &mut abi::SnapshotArgs, record: &impl Pod) -> Result {
        args.total = 1;
        args.count = 0;
        if args.capacity > 0 {
            self.mm().write(CpuVa(args.buffer), record.as_bytes())?;
            args.count = 1;
        }
        Ok(())
    }

    /// Writes up to `capacity` items from number `first` on, of those that `item` gives until it
    /// gives none.
    pub(crate) fn copy_out<T: Pod>(
        &self,
        args: &mut abi::SnapshotArgs,
        mut item: impl FnMut(u64) -> Result<Option<T>>,
    ) -> Result {
        let bad_pointer = Error::new(Errno::EFAULT, Reason::BadPointer);
        // Not an array: too large for a kernel's stack.
        let mut step = Vec::with_capacity(STEP)?;
        let mut done = 0u64;
        loop {
            os::interrupted()?;
            step.clear();
            while step.len() < STEP {
                let number = done.saturating_add(step.len() as u64);
                if number >= u64::from(args.capacity) {
                    break;
                }
                let Some(value) = item(number)? else { break };
                step.push_reserved(value);
            }
            let offset = done.checked_mul(size_of::<T>() as u64);
            let at = offset.and_then(|offset| args.buffer.checked_add(offset)).ok_or(bad_pointer)?;
            if !step.is_empty() {
                self.mm().write(CpuVa(at), slice_as_bytes(&step))?;
            }
            done = done.saturating_add(step.len() as u64);
            if step.len() < STEP {
                // At most the capacity.
                args.count = u32::try_from(done).unwrap_or(args.capacity);
                return Ok(());
            }
        }
    }
}
