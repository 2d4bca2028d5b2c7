// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What clients note about a buffer for each other.

use crate::base::errno::Result;
use crate::base::lock_rank::Rank;
use crate::os::{self, Arc, Mutex};

/// Bytes of metadata that an object can have.
pub(crate) const METADATA_BYTES: usize = 256;

/// What a client notes about a buffer for others to read: how it is tiled, and words of its own.
#[derive(Clone, Copy)]
pub struct Noted {
    /// `AMDGPU_TILING_*`.
    pub tiling: u64,
    /// The client's flags.
    pub flags: u64,
    /// The client's bytes, so many of them.
    pub bytes: [u8; METADATA_BYTES],
    /// How many.
    pub length: usize,
}

/// The same, of a buffer: objects and files of one buffer share it.
pub struct Metadata(Mutex<Noted>);

impl Metadata {
    /// None yet.
    pub fn new() -> Result<Arc<Self>> {
        let none = Noted { tiling: 0, flags: 0, bytes: [0; METADATA_BYTES], length: 0 };
        os::arc(Self(Mutex::new(Rank::Offset, none)?))
    }

    /// What was noted.
    pub fn get(&self) -> Noted {
        *self.0.lock()
    }

    /// Notes it.
    pub fn set(&self, noted: Noted) {
        *self.0.lock() = noted;
    }
}
