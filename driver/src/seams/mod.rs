// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The seams: traits that a host implements. Two are elsewhere: the system's own services in
//! [`crate::os`], files of buffers in [`crate::buffers::files`].

pub mod address_space;
pub mod device_memory;
pub mod event_stream;
pub mod gpu;
