// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that a queue relies on: SVM ranges that a GPU may use and has entries for without a
//! fault.
//!
//! KFD asks this of a queue's save area (`kfd_queue_buffer_svm_get`): each range of it must have
//! access for the GPU, in place or by migration, and SVM_FLAG_GPU_ALWAYS_MAPPED. Reads the ranges
//! under the lock of rank `Svm`. Limit: the ranges are not held. Memory that goes while a queue
//! uses it is a page fault of the queue, where KFD stops the queues of the process.

use super::SvmWork;
use crate::base::errno::Result;
use vkfd_uapi::svm as abi;

impl SvmWork<'_> {
    /// Whether GPU number `gpu` always has entries for all of `[va, end)`. Called without locks.
    /// O(ranges of it).
    pub(crate) fn always_mapped(&self, gpu: usize, va: u64, end: u64) -> Result<bool> {
        // Ranges whose memory has gone are no longer there.
        self.sweep()?;
        let inner = self.process.svm().inner.lock();
        let mut at = va;
        for range in inner.ranges.within(va, end) {
            let relied_on =
                range.attributes.has(abi::SVM_FLAG_GPU_ALWAYS_MAPPED) && range.attributes.allowed() >> gpu & 1 != 0;
            if range.start > at || !relied_on {
                return Ok(false);
            }
            at = range.end;
        }
        Ok(va != 0 && at >= end)
    }
}
