// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the parts of `cargo xtask` share: the tree, cargo, the cache, packages, locks.
//!
//! | crate | what |
//! | --- | --- |
//! | `xtask-base` | this |
//! | `xtask-clients` | the distribution's ROCm programs under `vkfd run` |
//! | `xtask-vm` | the kernel module, the virtio-gpu and AMD's driver in guests |
//! | `xtask-programs` | test suites of other projects |
//! | `xtask` | the tasks themselves: checks of the tree, generators, packages |

pub mod apt;
pub mod cache;
pub mod cargo;
pub mod debian;
pub mod group;
pub mod lock;
pub mod made;
pub mod pattern;
pub mod tree;
pub mod venv;
pub mod wrap;

/// What a task found out.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is well; the text says what was looked at.
    Clean(String),
    /// What is wrong, one line each.
    Findings(Vec<String>),
}
