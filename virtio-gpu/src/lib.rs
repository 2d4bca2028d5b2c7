// SPDX-License-Identifier: GPL-2.0 OR MIT
//! virtio-gpu native context: the ROCm stack of a guest, on the host's vkfd.
//!
//! A guest whose kernel is unmodified has a virtio-gpu without displays. Its ROCm library makes a
//! context of capset 8 on it, and sends its KFD calls through the context. The buffers of its
//! programs come as scatter lists of guest memory, thousands of runs each, and one batch call
//! registers each with KFD. This crate is the host's side: a vhost-user device in a process of its
//! own, beside the VMM.
//!
//! | module | what |
//! | --- | --- |
//! | [`protocol`] | the wire formats, without I/O |
//! | [`device`] | the device: resources, contexts, fences; without vhost, so that tests and fuzzers drive it directly |
//! | [`bare`] | a guest without a virtual machine, for tests and benchmarks |
//! | [`fuzz`] | what fuzz targets run |
//! | [`server`] | vhost-user: a socket that a VMM connects to |
//! | [`guest`] | the other side: a guest's ways to the device, and forwarded calls |
//! | [`serve`] | one machine for several programs of this computer |
//! | [`loopback`] | the device without a virtual machine: a socket that such a program connects to |
//!
//! `docs/native-context.md` describes it for those who build the other sides.

#[cfg(feature = "device")]
pub mod bare;
#[cfg(feature = "device")]
pub mod device;
#[cfg(feature = "device")]
pub mod fuzz;
pub mod guest;
#[cfg(feature = "device")]
pub mod loopback;
pub mod protocol;
#[cfg(feature = "device")]
pub mod serve;
#[cfg(feature = "device")]
pub mod server;
