// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files of buffers, as far as tests need them.

use crate::lock;
use std::sync::{Arc, Mutex};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::buffers::dmabuf::DmaBuf;
use vkfd_driver::buffers::files::Files;

/// The file that was last made of a buffer. Its descriptor is 3.
#[derive(Default)]
pub struct OneFile(Mutex<Option<Arc<DmaBuf>>>);

impl OneFile {
    /// Closes it.
    pub fn close(&self) {
        let file = lock(&self.0).take();
        drop(file);
    }
}

impl Files for OneFile {
    fn export(&self, buffer: &Arc<DmaBuf>, _: u32) -> Result<u32> {
        let before = lock(&self.0).replace(buffer.clone());
        drop(before);
        Ok(3)
    }

    fn import(&self, _: u32) -> Result<Arc<DmaBuf>> {
        lock(&self.0).clone().ok_or(Errno::EBADF.into())
    }
}
