// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The software GPU as a PCI device of a virtual machine.
//!
//! ```text
//!  guest                        | host
//!  driver --- BAR 2 ------------+--- registers, VRAM ---- device process: GPUs, one executor each
//!         --- BAR 0 doorbell ---+--- eventfd -----------> executor wakes
//!         <-- MSI-X ------------+--- eventfd ------------ interrupt line
//!  RAM -------------------------+--- shared file -------- bus
//!                               |    server: made BARs and eventfds, starts and ends the process
//! ```
//!
//! Two processes of one program. The *server* speaks QEMU's ivshmem protocol and owns what must
//! outlive a crash: the memory of the BARs, the eventfds. The *device* process runs the GPUs and
//! can die at any time; the server confirms its end to the guest and starts the next one on the
//! same memory. What they share with the guest is defined in [`vkfd_wire`].
//!
//! | module | what |
//! | --- | --- |
//! | [`ivshmem`] | messages of the ivshmem protocol, both sides |
//! | [`registers`] | the register part of a BAR, mapped |
//! | [`ram`] | the guest's RAM, and the GPU's bus on it |
//! | [`executor`] | carries out the driver's commands on a GPU |
//! | [`interrupts`] | the GPU's interrupts on their way into the ring |
//! | [`device`] | all GPUs of a device process |
//! | [`server`] | the server |
//!
//! [`vfio_user`] is another device, for guests whose driver is AMD's own (`vkfd-pci-gpu`).

pub mod device;
pub mod executor;
pub mod interrupts;
pub mod ivshmem;
pub mod ram;
pub mod registers;
pub mod server;
pub mod vfio_user;
