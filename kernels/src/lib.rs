// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernels of the client library: real code objects, from the OpenCL C beside them.
//!
//! `src/kernels.cl` is the source; `cargo xtask kernels` compiles it for each target into `code/`,
//! and compares. The same objects run on AMD's hardware. [`code`] finds a target's, [`Image`] says
//! how any code object is laid out in GPU memory, and [`Kernel`] turns what a caller wants into
//! dispatches.

mod image;
mod kernel;

pub use image::{Entry, Image, ImageError};
pub use kernel::{Kernel, Step, GROUP};

/// The code object of a processor, by KFD's `gfx_target_version` (major * 10000 + minor * 100 +
/// stepping). `None`: there is none.
#[must_use]
pub fn code(gfx_target_version: u32) -> Option<&'static [u8]> {
    // NEW TARGET: its code object
    match gfx_target_version {
        90_000 => Some(include_bytes!("../code/gfx900.co")),
        90_010 => Some(include_bytes!("../code/gfx90a.co")),
        90_402 => Some(include_bytes!("../code/gfx942.co")),
        100_300 => Some(include_bytes!("../code/gfx1030.co")),
        110_000 => Some(include_bytes!("../code/gfx1100.co")),
        _ => None,
    }
}
