// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Code objects in GPU memory: programs that a compute queue can run.
//!
//! Mechanism: the file is laid out as [`vkfd_kernels::Image`] says, in one executable buffer; a
//! kernel's handle is the address of its descriptor in there. Nothing is looked up later, so an
//! object may be used by any number of queues of its GPU.
//!
//! Limits: kernels that need scratch are refused at launch, because that takes a queue structure
//! that only a runtime keeps.

use vkfd_kernels::Image;

use crate::address::{GpuId, GpuVa};
use crate::buffer::{AllocOptions, Buffer};
use crate::client::{Client, GpuSet};
use crate::error::{ClientError, Result};

/// A kernel that is loaded: what a launch needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedKernel {
    /// GPU address of its descriptor.
    pub object: GpuVa,
    /// LDS that its workgroups have without asking, in bytes.
    pub group_bytes: u32,
    /// Scratch that a work-item needs, in bytes.
    pub private_bytes: u32,
    /// Bytes of its arguments; 0 where the descriptor does not say.
    pub kernarg_bytes: u32,
}

/// A code object in a GPU's memory: kernels of your own, compiled for that GPU's target. It goes
/// when this is dropped, which must not be before its launches are done. `examples/kernel.rs` loads
/// one and runs it.
#[derive(Debug)]
pub struct CodeObject {
    image: Image,
    memory: Buffer,
}

impl CodeObject {
    /// Loads a code object (an ELF file as compilers make it, for that GPU's processor) into memory
    /// of `gpu`.
    ///
    /// # Errors
    ///
    /// [`ClientError::Invalid`] for a file that is not one; otherwise what the calls failed with.
    pub fn load(client: &Client, gpu: GpuId, file: &[u8]) -> Result<Self> {
        let image = Image::new(file).map_err(|error| ClientError::Invalid(format!("code object: {error}")))?;
        if image.is_empty() {
            return Err(ClientError::Invalid("code object: nothing to load".into()));
        }
        let gtt = AllocOptions::gtt(image.len());
        let memory = client.alloc(&AllocOptions { gpus: GpuSet::from(gpu), executable: true, ..gtt })?;
        memory.write(0, &image.at(memory.gpu_va().0))?;
        Ok(Self { image, memory })
    }

    /// The names of its kernels.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.image.kernels().iter().map(|kernel| kernel.name.as_str())
    }

    /// A kernel by its name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<LoadedKernel> {
        self.image.kernel(name).map(|entry| LoadedKernel {
            object: self.memory.gpu_va().offset(entry.descriptor),
            group_bytes: entry.group_bytes,
            private_bytes: entry.private_bytes,
            kernarg_bytes: entry.kernarg_bytes,
        })
    }
}
