// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The software GPU as AMD's own driver, amdgpu, sees it: a gfx90a (MI210) on a PCI bus.
//!
//! amdgpu speaks to hardware and to firmware. This crate is both: registers, rings with packets,
//! interrupts, and the schedulers that real firmware has. Behind it is `vkfd-gpu`, which walks page
//! tables and runs programs' queues. The crate does no input and output; a transport
//! (`device/src/vfio_user`) brings the bus, and tests bring lists of register accesses.
//!
//! | module | |
//! |---|---|
//! | [`asic`] | the device as a bus sees it; the firmware's thread |
//! | `chip` | the effects of register accesses |
//! | [`registers`] | tables of registers with the kernel's names, and their values |
//! | `ring`, `packets` | the driver's own rings: KIQ, HIQ, compute, SDMA |
//! | [`queues`] | hardware queue descriptors, run lists, programs' queues |
//! | [`interrupts`] | the interrupt ring |
//! | [`watchdog`], [`trail`] | names the register that a driver spins on; the last accesses |
//! | [`pci`] | configuration space and BARs |
//! | [`shape`], [`vbios`], [`ucode`] | the card's tables and firmware files, generated |
//!
//! One lock guards everything that registers can reach (`state`). The GPU is called with it held,
//! except to remove queues. Firmware's packets take it for each register access.
//!
//! Limits: no graphics, no display, no power management, no reset by the driver, no RAS. Waves are
//! not saved into a program's memory when a queue is preempted; they stay in the device.

pub mod asic;
mod chip;
pub mod host;
pub mod interrupts;
mod packets;
pub mod pci;
pub mod queues;
pub mod registers;
mod ring;
pub mod shape;
mod state;
pub mod trail;
pub mod ucode;
pub mod vbios;
pub mod watchdog;

pub use asic::{Asic, AsicError, Summary};
pub use host::Host;
pub use shape::Shape;
