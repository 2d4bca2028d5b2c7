// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A PCI device of a virtual machine, over vfio-user (QEMU's `docs/interop/vfio-user.rst`).
//!
//! QEMU's `vfio-user-pci` connects to a unix socket and sends requests: what the device is, the
//! guest's memory as descriptors, accesses to regions, an eventfd for interrupts.
//!
//! | module | |
//! |---|---|
//! | [`message`] | the layout of messages |
//! | [`dma`] | the guest's memory, and the GPU's bus on it |
//! | [`server`] | one connection: requests in, replies out |
//!
//! The other side is not trusted. Sizes are bounded, and descriptors are closed with the message
//! that they came with. A request that makes no sense is answered with an errno.

pub mod dma;
pub mod message;
pub mod server;
