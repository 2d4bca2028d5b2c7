// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The driver on simulated hosts, one program for all files: each program is linked anew.

mod bounds;
mod drm;
mod extremes;
mod gem;
mod limits;
mod monitors;
mod moving;
mod queues;
mod reports;
mod svm;
mod svm_blocks;
mod svm_eviction;
mod svm_migration;
mod svm_pressure;
mod svm_unmap;
mod userptr;
