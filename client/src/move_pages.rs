// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages that are moved to a GPU's memory and back on request (vkfd only), for diagnosis and tests.

use vkfd_uapi::pod::Pod;
use vkfd_uapi::vkfd::{self, MoveArgs};

use crate::client::Client;
use crate::error::{ClientError, Result};
use crate::{GpuId, UserptrRange};

/// What is, and has been, in a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Pages that this call has moved.
    pub moved: u64,
    /// Pages of the GPU's memory that processes have now.
    pub resident: u64,
    /// Pages of it that they have had and have no more.
    pub released: u64,
}

impl Client {
    /// Moves the pages of `range` from system memory to a GPU's. Those that cannot move stay where
    /// they are.
    ///
    /// # Errors
    ///
    /// What the KFD refused: EOPNOTSUPP where memory cannot move, ENOMEM without VRAM, ENOTTY when
    /// it is not vkfd.
    pub fn move_to_gpu(&self, range: UserptrRange, gpu: GpuId) -> Result<Moved> {
        self.move_pages(range, gpu, vkfd::MOVE_TO_GPU)
    }

    /// Moves the pages of `range` that are in any GPU's memory back to system memory.
    ///
    /// # Errors
    ///
    /// As [`Client::move_to_gpu`].
    pub fn move_to_system(&self, range: UserptrRange, gpu: GpuId) -> Result<Moved> {
        self.move_pages(range, gpu, vkfd::MOVE_TO_SYSTEM)
    }

    /// Moves nothing: what is in a GPU's memory.
    ///
    /// # Errors
    ///
    /// As [`Client::move_to_gpu`].
    pub fn moved_pages(&self, gpu: GpuId) -> Result<Moved> {
        self.move_pages(UserptrRange { start: 0, size: 0 }, gpu, vkfd::MOVE_TO_GPU)
    }

    fn move_pages(&self, range: UserptrRange, GpuId(gpu_id): GpuId, direction: u32) -> Result<Moved> {
        let mut args = MoveArgs { start: range.start, size: range.size, gpu_id, direction, ..MoveArgs::zeroed() };
        self.ioctl(vkfd::MOVE, &mut args).map_err(ClientError::call("MOVE"))?;
        Ok(Moved { moved: args.moved, resident: args.resident, released: args.released })
    }
}
