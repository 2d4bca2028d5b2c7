// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The seam to files: some calls give their caller a new file, or take one that another call gave.
//!
//! All of it is about the process that makes the current call. A host that has no such files says
//! EOPNOTSUPP, and so do the calls then.

use crate::base::errno::{Errno, Result};
use crate::buffers::dmabuf::DmaBuf;
use crate::os::Arc;
use crate::seams::event_stream::EventStream;

/// The host's files.
pub trait Files: Send + Sync {
    /// A new file of events for the caller: its descriptor, and this side of it.
    fn event_stream(&self) -> Result<(u32, Arc<dyn EventStream>)> {
        Err(Errno::EOPNOTSUPP.into())
    }

    /// A file that stands for `buffer`, with the flags of open(2): its descriptor.
    fn export(&self, buffer: &Arc<DmaBuf>, flags: u32) -> Result<u32> {
        let _ = (buffer, flags);
        Err(Errno::EOPNOTSUPP.into())
    }

    /// Lets go of buffers whose files have been closed, where the host is not notified of that.
    fn forget_closed(&self) {}

    /// What a descriptor of the caller's stands for. EBADF for no file, EINVAL for one that is no
    /// buffer.
    fn import(&self, file: u32) -> Result<Arc<DmaBuf>> {
        let _ = file;
        Err(Errno::EOPNOTSUPP.into())
    }
}

/// A host without any.
pub struct NoFiles;

impl Files for NoFiles {}
