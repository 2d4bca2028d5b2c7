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
//! | [`device`] | the device: resources, contexts, fences; without vhost, so that tests and fuzzers drive it directly |
//! | [`vhost_user`] | the device for a VMM, by vhost-user |
//! | [`socket_server`] | the device for programs of this computer, without a virtual machine: each has a machine of its own |
//! | [`shared_machine`] | one machine for several programs of this computer (`vkfd serve`) |
//! | [`simulated_guest`] | a guest without a virtual machine, for tests and benchmarks |
//! | [`fuzz`] | what fuzz targets run |
//!
//! The wire formats and the guest's side are the package `vkfd-remote`. `docs/native-context.md`
//! describes it for those who build the other sides.

pub mod device;
pub mod fuzz;
pub mod shared_machine;
pub mod simulated_guest;
pub mod socket_server;
pub mod vhost_user;
