// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files of buffers, as far as a test wants one.

use std::sync::{Arc, Mutex};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::buffers::dmabuf::DmaBuf;
use vkfd_driver::buffers::files::Files;

/// The buffer that was last made a file of. Its descriptor is 3.
#[derive(Default)]
pub struct OneFile(Mutex<Option<Arc<DmaBuf>>>);

impl OneFile {
    /// Closes it.
    pub fn close(&self) {
        self.0.lock().unwrap().take();
    }
}

impl Files for OneFile {
    fn export(&self, buffer: &Arc<DmaBuf>, _: u32) -> Result<u32> {
        *self.0.lock().unwrap() = Some(buffer.clone());
        Ok(3)
    }

    fn import(&self, _: u32) -> Result<Arc<DmaBuf>> {
        self.0.lock().unwrap().clone().ok_or(Errno::EBADF.into())
    }
}
