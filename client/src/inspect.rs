// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the driver has and did for this process (vkfd only).
//!
//! Mechanism: the SNAPSHOT command, page by page. Between two calls for one list things can change;
//! the result is then a mix.

use vkfd_uapi::pod::Pod;
use vkfd_uapi::vkfd::{
    self, BoInfo, ProcessInfo, QueueInfo, RangeInfo, SnapshotArgs, SvmRangeInfo, SNAPSHOT_BOS, SNAPSHOT_PAGES,
    SNAPSHOT_PROCESS, SNAPSHOT_QUEUES, SNAPSHOT_RANGES, SNAPSHOT_SVM_RANGES,
};

use crate::address::{CpuVa, GpuId, GpuVa, Handle, PAGE};
use crate::client::Client;
use crate::error::{ClientError, Result};

/// Entries asked for in one call.
const CHUNK: usize = 1024;

impl Client {
    /// Counters of the process.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unsupported`] on a KFD without snapshots.
    pub fn snapshot(&self) -> Result<ProcessInfo> {
        let mut info = [ProcessInfo::zeroed()];
        self.snapshot_call(SNAPSHOT_PROCESS, 0, 0, &mut info)?;
        Ok(info[0])
    }

    /// The process's BOs.
    ///
    /// # Errors
    ///
    /// As [`Client::snapshot`].
    pub fn bos(&self) -> Result<Vec<BoInfo>> {
        self.snapshot_list(SNAPSHOT_BOS, 0)
    }

    /// The process's queues, and why those stopped that did.
    ///
    /// # Errors
    ///
    /// As [`Client::snapshot`]; EINVAL on a vkfd that does not show them ([`crate::Caps::queues`]).
    pub fn queues(&self) -> Result<Vec<QueueInfo>> {
        self.snapshot_list(SNAPSHOT_QUEUES, 0)
    }

    /// One queue, if it exists.
    pub(crate) fn queue(&self, id: u32) -> Result<Option<QueueInfo>> {
        let mut info = [QueueInfo::zeroed()];
        let args = self.snapshot_call(SNAPSHOT_QUEUES, id, 0, &mut info)?;
        Ok(info.into_iter().find(|info| args.count == 1 && info.queue_id == id))
    }

    /// The ranges of a userptr BO, in the order of their GPU addresses.
    ///
    /// # Errors
    ///
    /// As [`Client::snapshot`]; EINVAL when there is no such BO.
    pub fn ranges(&self, bo: Handle) -> Result<Vec<RangeInfo>> {
        self.snapshot_list(SNAPSHOT_RANGES, bo.0)
    }

    /// The raw page-table entries of `pages` pages from `va` on, as the GPU walks them.
    ///
    /// # Errors
    ///
    /// As [`Client::snapshot`]; [`ClientError::NoGpu`].
    pub fn ptes(&self, gpu: GpuId, va: GpuVa, pages: usize) -> Result<Vec<u64>> {
        let place = self.gpus().iter().position(|info| info.id == gpu).ok_or(ClientError::NoGpu(gpu))?;
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        let mut entries = vec![0_u64; pages];
        let mut at = va;
        for chunk in entries.chunks_mut(CHUNK) {
            self.snapshot_call(SNAPSHOT_PAGES, place, at.0, chunk)?;
            at = at.offset(u64::try_from(chunk.len()).unwrap_or(0) * PAGE);
        }
        Ok(entries)
    }

    pub(crate) fn snapshot_svm_ranges(&self) -> Result<Vec<SvmRangeInfo>> {
        let mut list = Vec::new();
        let mut at = 0;
        loop {
            let mut room = [SvmRangeInfo::zeroed(); 64];
            let args = self.snapshot_call(SNAPSHOT_SVM_RANGES, 0, at, &mut room)?;
            let count = usize::try_from(args.count).unwrap_or(0).min(room.len());
            list.extend_from_slice(&room[..count]);
            if count < room.len() {
                return Ok(list);
            }
            at = args.handle;
        }
    }

    fn snapshot_list<T: Pod>(&self, op: u32, handle: u64) -> Result<Vec<T>> {
        let mut list = Vec::new();
        let mut index = 0;
        loop {
            let start = list.len();
            list.resize(start + CHUNK, T::zeroed());
            let args = self.snapshot_call(op, index, handle, &mut list[start..])?;
            list.truncate(start + usize::try_from(args.count).unwrap_or(0).min(CHUNK));
            // For BOs and queues the driver says where to go on; ranges are numbered without a gap.
            index = if op != SNAPSHOT_RANGES { args.index } else { index.saturating_add(args.count) };
            let total = usize::try_from(args.total).unwrap_or(usize::MAX);
            if args.count == 0 || list.len() >= total {
                return Ok(list);
            }
        }
    }

    pub(crate) fn snapshot_call<T: Pod>(
        &self,
        op: u32,
        index: u32,
        handle: u64,
        room: &mut [T],
    ) -> Result<SnapshotArgs> {
        if !self.caps().snapshot {
            return Err(ClientError::Unsupported("this KFD has no snapshots (it is not vkfd)".into()));
        }
        let mut args = SnapshotArgs {
            op,
            index,
            handle,
            buffer: CpuVa::of(room.as_mut_ptr()).0,
            capacity: u32::try_from(room.len()).unwrap_or(u32::MAX),
            count: 0,
            total: 0,
        };
        self.ioctl(vkfd::SNAPSHOT, &mut args).map_err(ClientError::call("SNAPSHOT"))?;
        Ok(args)
    }
}
