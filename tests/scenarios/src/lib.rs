// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scenarios: what a KFD with batch userptr must do, each a program that speaks only to a KFD.
//!
//! By default that is a machine in this process; with `VKFD_DEVICE=/dev/kfd` it is the system's. A
//! scenario builds its own [`World`] and needs no other scenario. It ends in success, or in a
//! failure with the observation, or is skipped with the reason why this host cannot show it.
//!
//! Limits: scenarios of one process must run one after the other, because forking and unmapping are
//! seen by every machine in it.

#[macro_use]
mod verdict;

mod abi;
mod beside;
pub mod calls;
pub mod coherence;
mod engine;
mod failure;
mod flag;
mod geometry;
mod host;
mod hostile;
mod kernel;
mod limits;
mod maps;
mod memory;
mod module;
mod raw;
mod stir;
pub mod stock;
pub mod svm;
mod world;

pub use engine::Engine;
pub use host::Host;
pub use kernel::run_role;
pub use memory::{gather, pattern, pattern_sum, wrong_page, Backing, Layout, Memory};
pub use module::leave_as_found as leave_module_as_found;
pub use verdict::Stop;
pub use world::{Seen, World, WorldSpec};

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What happens, in words joined by underscores.
    pub name: &'static str,
    /// What it shows, and which known fault of the posted code it would catch.
    pub about: &'static str,
    /// Runs it.
    pub run: fn() -> Result<(), Stop>,
}

/// All scenarios, in the order in which they are best read.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let rest = [limits::SCENARIOS, hostile::SCENARIOS, failure::SCENARIOS, coherence::SCENARIOS];
    [abi::scenarios(), geometry::scenarios(), flag::scenarios(), rest.concat(), svm::scenarios()].concat()
}

/// Scenarios that only a kernel can show. They need root and a KFD that `VKFD_DEVICE` names; any
/// other skips them.
#[must_use]
pub fn kernel() -> Vec<Scenario> {
    kernel::SCENARIOS.to_vec()
}

/// What can be run here: all scenarios, and with `VKFD_DEVICE` also those that only a kernel can
/// show.
#[must_use]
pub fn runnable() -> Vec<Scenario> {
    let kernel = if std::env::var_os("VKFD_DEVICE").is_some() { kernel() } else { Vec::new() };
    [all(), kernel].concat()
}
