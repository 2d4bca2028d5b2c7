// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The seams: traits that a host implements. The fourth, the operating system's own services, is [`crate::os`].

pub mod address_space;
pub mod device_memory;
pub mod files;
pub mod gpu;
