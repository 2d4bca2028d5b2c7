// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The memory of a VMID for callers that are no queue, such as a device's firmware.
//!
//! A view is a port with a slot of its own: suspending and flushing wait for its accesses, too. Its
//! faults are the caller's; none is reported, and none waits for an answer.

use crate::base::error::GpuError;
use crate::base::ids::Vmid;
use crate::base::queue_error::{QueueError, Stop};
use crate::state::access::Port;
use crate::state::control::Control;
use crate::state::shared::Shared;
use std::sync::Arc;

/// Why a view's access did nothing, or not all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// There is no memory at the address, or it does not permit the access.
    #[error("no access to GPU address {va:#x}")]
    Absent {
        /// GPU address.
        va: u64,
    },
    /// As a queue would have it.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// The memory of a VMID.
pub struct View {
    port: Port,
}

impl View {
    pub(crate) fn new(shared: &Arc<Shared>, vmid: Vmid) -> Result<View, GpuError> {
        shared.vmid(vmid).ok_or(GpuError::BadVmid(vmid))?;
        let control = Control::view(vmid);
        let slot = shared.slots.claim(vmid.0, control.id).ok_or(GpuError::NoQueue)?;
        Ok(View { port: Port::new(shared.clone(), control, slot) })
    }

    /// Reads `dst.len()` bytes at `va`.
    ///
    /// # Errors
    /// [`ViewError::Absent`]; some bytes may have been read.
    pub fn read(&mut self, va: u64, dst: &mut [u8]) -> Result<(), ViewError> {
        match self.port.peek(va, dst) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ViewError::Absent { va }),
            Err(stop) => Err(error(stop, va)),
        }
    }

    /// Reads the 32-bit word at `va`, which may have any alignment.
    ///
    /// # Errors
    /// As [`View::read`].
    pub fn load_u32(&mut self, va: u64) -> Result<u32, ViewError> {
        let mut bytes = [0; 4];
        self.read(va, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads the 64-bit word at `va`, which may have any alignment.
    ///
    /// # Errors
    /// As [`View::read`].
    pub fn load_u64(&mut self, va: u64) -> Result<u64, ViewError> {
        let mut bytes = [0; 8];
        self.read(va, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes `src` at `va`, aligned words of it as a whole.
    ///
    /// # Errors
    /// [`ViewError::Absent`]; some bytes may have been written.
    pub fn write(&mut self, va: u64, src: &[u8]) -> Result<(), ViewError> {
        self.port.poke(va, src).map_err(|stop| error(stop, va)).and_then(|whole| match whole {
            true => Ok(()),
            false => Err(ViewError::Absent { va }),
        })
    }

    /// Writes the aligned 32-bit word at `va`, as a whole.
    ///
    /// # Errors
    /// As [`View::write`].
    pub fn store_u32(&mut self, va: u64, value: u32) -> Result<(), ViewError> {
        self.write(va, &value.to_le_bytes())
    }

    /// Writes the aligned 64-bit word at `va`, as a whole.
    ///
    /// # Errors
    /// As [`View::write`].
    pub fn store_u64(&mut self, va: u64, value: u64) -> Result<(), ViewError> {
        self.write(va, &value.to_le_bytes())
    }
}

fn error(stop: Stop, va: u64) -> ViewError {
    match stop {
        // Nobody removes a view.
        Stop::Removed => ViewError::Absent { va },
        Stop::Error(error) => ViewError::Queue(error),
    }
}
