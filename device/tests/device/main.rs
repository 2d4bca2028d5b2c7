// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Driver and device over shared memory: in one process, in two, and with a driver's whole KFD on
//! top.
//!
//! The test plays the guest. It has RAM in a file, and reaches the BAR either directly or as a
//! client of the server's socket.

mod access;
mod broken;
mod death;
mod guest;
mod interrupts;
mod kfd;
mod machine;
mod memory;
mod qemu;
mod queue;
mod ram;
mod server;
