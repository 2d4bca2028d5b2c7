// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A client's calls by ioctl and mmap, checked and handed to the rooms below.
//!
//! A call is a function over the process and its argument. The methods of [`Process`] here are the
//! entries that hosts use. No room below has methods of this one.

pub mod batch;
pub mod dmabuf;
pub mod ioctl;
pub mod measure;
pub mod memory;
pub mod mmap;
pub mod move_pages;
pub mod queue;
pub mod settings;
pub mod smi;
pub mod snapshot;

use self::mmap::Mapped;
use crate::base::addr::CpuVa;
use crate::base::errno::Result;
use crate::os::Arc;
use crate::process::Process;
use crate::seams::event_stream::EventStream;

impl Process {
    /// An ioctl on the device. ENOTTY for an unknown command, EBADF when another process than the
    /// opener calls.
    pub fn ioctl(self: &Arc<Self>, command: u32, arg: CpuVa) -> Result {
        ioctl::ioctl(self, command, arg)
    }

    /// The memory behind `bytes` (whole pages) at `offset` of the device's file. EINVAL when that
    /// is nothing.
    pub fn mmap(&self, offset: u64, bytes: u64) -> Result<Mapped> {
        mmap::mmap(self, offset, bytes)
    }

    /// Where the CPU maps an object: for a host whose clients cannot be told by a call, such as
    /// importers.
    pub fn mmap_offset(&self, handle: u64) -> Result<u64> {
        Ok(self.bo(handle)?.mmap_offset())
    }

    /// Gives the host all events of a GPU that are about this process. ENOSPC as for a file.
    pub fn listen(&self, gpu_id: u32, stream: Arc<dyn EventStream>) -> Result {
        smi::listen(self, gpu_id, stream)
    }
}
