// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The driver in many thread orders, by shuttle (`cargo xtask interleavings`).
#![cfg(vkfd_shuttle)]

mod interleavings;
mod object_interleavings;
mod svm_block_interleavings;
mod svm_interleavings;
