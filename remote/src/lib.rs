// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A KFD that is not in this process: the protocols, and a program's end of them.
//!
//! The other end is the package `vkfd-virtio-gpu`: a virtual machine's host, or `vkfd serve`, whose
//! machine several programs share.
//!
//! | module | what |
//! | --- | --- |
//! | [`protocol`] | the wire formats, without I/O |
//! | [`guest`] | a program's ways to the device, and forwarded calls |
//!
//! `docs/native-context.md` and `docs/forwarding.md` describe it for those who build other ends.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod guest;
pub mod protocol;
