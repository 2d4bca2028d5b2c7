// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SMI_EVENTS: a client gets a file of a GPU's events ([`crate::device::smi`]).

use crate::base::errno::Result;
use crate::os::Arc;
use crate::process::Process;
use crate::seams::event_stream::EventStream;

pub(super) fn listen(process: &Process, gpu_id: u32, stream: Arc<dyn EventStream>) -> Result {
    let device = process.kfd().device(gpu_id)?;
    device.smi().reserve(process.number(), process.user())?;
    device.smi().fill(process.number(), Some(stream));
    Ok(())
}

/// Opens a file of events of a GPU: its descriptor.
pub(crate) fn open_smi(process: &Process, gpu_id: u32) -> Result<u32> {
    let device = process.kfd().device(gpu_id)?;
    // The file last: nobody could take it back.
    device.smi().reserve(process.number(), process.user())?;
    match process.kfd().files().event_stream() {
        Ok((file, stream)) => {
            device.smi().fill(process.number(), Some(stream));
            Ok(file)
        }
        Err(error) => {
            device.smi().fill(process.number(), None);
            Err(error)
        }
    }
}
