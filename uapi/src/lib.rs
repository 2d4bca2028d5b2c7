// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ABI of AMD's compute driver KFD (`/dev/kfd`), of batch userptr, and of vkfd's own queries.
//!
//! Mechanism: plain `repr(C)` structures that are [`pod::Pod`], integer constants, and 32-bit
//! command words. Compile-time assertions pin every size, the offsets that matter and every command
//! word; `cargo xtask abi` compares all of it with the system's `linux/kfd_ioctl.h`.
//!
//! Names: a constant has AMD's name without its prefix (`KFD_IOC_`, `KFD_IOCTL_`, `KFD_`,
//! `AMDKFD_IOC_`), a structure AMD's name in Rust's style, a field AMD's name. Addresses and sizes
//! are in bytes unless a field says otherwise. "In" and "out" are seen from the driver: "in" is
//! passed by the caller.
//!
//! Sources: `include/uapi/linux/kfd_ioctl.h` of Linux up to 7.3 (interface version 1.23),
//! `drivers/gpu/drm/amd/amdkfd/kfd_priv.h` for mmap offsets. For batch userptr, the posts v2
//! (January 2026), v3 and v4 (February 2026) on the amd-gfx list.
//!
//! Limits: the command encoding is the generic one (x86-64, arm64, riscv). Debugger, CRIU and
//! profiler calls have their command words here but no structures. There is no lock and no state in
//! this crate.
//!
//! Modules refer to each other by `super::`, so the tree also compiles as a module of another
//! crate.
#![no_std]

pub mod batch;
pub mod call;
pub mod command;
pub mod drm;
pub mod errno;
pub mod event;
pub mod ioctl;
pub mod memory;
pub mod mmap;
pub mod pod;
pub mod process;
pub mod queue;
pub mod smi;
pub mod svm;
pub mod vkfd;
