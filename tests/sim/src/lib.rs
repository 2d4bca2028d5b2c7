// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A simulated host: CPU memory that is a table of pages, and GPUs that are arrays of entries with
//! a TLB. The driver on it is the real one, with its workers.
//!
//! Tests, models and fuzz targets share it. It starts thousands of drivers a second. Hooks stop the
//! driver where it calls the host, so that a race is a test that always runs the same way. Under
//! `--cfg vkfd_shuttle` a scheduler explores the order of threads instead (`interleaved`).
//!
//! # The duties of a host
//!
//! This crate is also the shortest host, to read and to begin another with. The exact terms are in
//! [`vkfd_driver::seams`].
//!
//! | duty | here |
//! | --- | --- |
//! | Each watch of changed memory is called **before** the change, with its own part of the span only. | `notifiers.rs` |
//! | `read_begin` waits for changes under way, so that no fault returns a page that is just going. | `notifiers.rs` |
//! | The end of a watch waits for calls under way. The driver then frees the receiver. | `notifiers.rs` |
//! | A fault fills in the pages span by span up to the first error, and says how far it came. | `address_space.rs` |
//! | A page in VRAM is faulted in as such. The host owns its place until it says `released`. | `migration.rs` |
//! | A copy from or to client memory that is not there is EFAULT. Here pointers of a test are trusted. | `caller.rs` |
//! | `flush_tlb` and `suspend` return when no access is in flight. They allocate nothing and wait for nothing else. | `gpu.rs` |
//! | Every retry fault is answered once, by the driver; the GPU then translates again or halts. | `gpu.rs` |
//! | Memory for both sides is zeroed and stays in place. | `dma.rs` |
//! | A failing call of the host is an errno. Failpoints make each of them fail once. | everywhere |
//!
//! Limits: GPUs run no queues. A test makes their accesses and their faults. A page holds one word.
//! [`rig::Rig`] puts the driver, a process, memory and GPUs together.
//!
//! Locks: each object has its own. The table's may be held with one of pinned pages or of failures,
//! which comes after it. None is held while the driver or a hook is called, so the driver may call
//! back. A GPU's state is locked during an access, which thereby never is on both sides of a flush.

mod address_space;
pub mod caller;
mod dma;
pub mod files;
pub mod gpu;
mod hooks;
#[cfg(vkfd_shuttle)]
pub mod interleaved;
pub mod memory;
pub mod migration;
mod notifiers;
pub mod patience;
pub mod rig;
pub mod svm;
mod table;

pub use gpu::{Seen, SimGpu};
pub use memory::SimMm;
pub use rig::{Form, Rig, GPU_ID, WRITABLE_USERPTR};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock, also after a thread has panicked with it: the test that failed has said why.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
