// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SMI_EVENTS: a client gets a file of a GPU's events ([`crate::device::smi`]).

use crate::base::errno::Result;
use crate::os::Arc;
use crate::process::Process;
use crate::seams::event_stream::EventStream;

impl Process {
    /// Gives the host all events of a GPU that are about this process. ENOSPC as for a file.
    pub fn listen(&self, gpu_id: u32, stream: Arc<dyn EventStream>) -> Result {
        let device = self.kfd().device(gpu_id)?;
        device.smi().reserve(self.number(), self.user())?;
        device.smi().fill(self.number(), Some(stream));
        Ok(())
    }

    /// Opens a file of events of a GPU: its descriptor.
    pub(crate) fn open_smi(&self, gpu_id: u32) -> Result<u32> {
        let device = self.kfd().device(gpu_id)?;
        // The file last: nobody could take it back.
        device.smi().reserve(self.number(), self.user())?;
        match self.kfd().files().event_stream() {
            Ok((file, stream)) => {
                device.smi().fill(self.number(), Some(stream));
                Ok(file)
            }
            Err(error) => {
                device.smi().fill(self.number(), None);
                Err(error)
            }
        }
    }
}
