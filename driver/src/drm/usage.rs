// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How much of a GPU's memory is in use, and how much the GPU works. DRM answers that, and files of
//! the GPU's device in sysfs show monitors the same.
//!
//! Mechanism: [`FILES`] has a row for each file. A host makes a file of each, and asks for its
//! number whenever somebody reads it.
//!
//! Limits: silicon has no files: clocks, temperatures, power, fans.

use crate::base::errno::{Errno, Result};
use crate::machine::kfd::Kfd;
use core::ffi::CStr;

/// What a file says: bytes, but for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fact {
    /// All VRAM. The processors reach all of it.
    Vram,
    /// VRAM that is given out.
    VramUsed,
    /// The limit of system memory for GPUs.
    Gtt,
    /// System memory that counts against the limit: the driver's, and what is registered.
    GttUsed,
    /// The share of time in which the GPU runs kernels, in percent
    /// ([`load`](crate::device::load)).
    Busy,
}

/// The files, as `amdgpu` names them.
pub const FILES: [(&CStr, Fact); 7] = [
    (c"mem_info_vram_total", Fact::Vram),
    (c"mem_info_vram_used", Fact::VramUsed),
    (c"mem_info_vis_vram_total", Fact::Vram),
    (c"mem_info_vis_vram_used", Fact::VramUsed),
    (c"mem_info_gtt_total", Fact::Gtt),
    (c"mem_info_gtt_used", Fact::GttUsed),
    (c"gpu_busy_percent", Fact::Busy),
];

/// The number of a file of GPU number `index`.
///
/// # Errors
/// ENODEV where there is none.
pub fn number(kfd: &Kfd, index: usize, fact: Fact) -> Result<u64> {
    let usage = || Usage::of(kfd, index);
    Ok(match fact {
        Fact::Vram => usage()?.vram,
        Fact::VramUsed => usage()?.vram_used,
        Fact::Gtt => usage()?.gtt,
        Fact::GttUsed => usage()?.gtt_used,
        Fact::Busy => kfd.devices().get(index).ok_or(Errno::ENODEV)?.busy_percent().into(),
    })
}

/// Of the memory, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    pub vram: u64,
    pub vram_used: u64,
    pub gtt: u64,
    pub gtt_used: u64,
}

impl Usage {
    /// Of GPU number `index`.
    ///
    /// # Errors
    /// ENODEV where there is none.
    pub fn of(kfd: &Kfd, index: usize) -> Result<Self> {
        let device = kfd.devices().get(index).ok_or(Errno::ENODEV)?;
        // Some buffers that are given out may be nobody's any more.
        kfd.files().forget_closed();
        let vram = device.properties().vram_bytes;
        let limit = kfd.limit();
        let gtt_used = limit.used();
        Ok(Self {
            vram,
            vram_used: vram.saturating_sub(device.vram().available()),
            gtt: gtt_used.saturating_add(limit.available()),
            gtt_used,
        })
    }
}
