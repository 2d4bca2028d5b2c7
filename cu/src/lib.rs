// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A compute unit: waves of AMD machine code, executed.
//!
//! Machine code is input from a client: no code and no descriptor makes anything here panic, and
//! memory is reached only through [`World`]. Two engines give one meaning. `reference`, the oracle,
//! executes one lane at a time in the order of AMD's manuals and is never optimised. `fast` is
//! pre-decoded, executes all lanes at once, and is compared with it in lock-step.
//!
//! | module | |
//! |---|---|
//! | `wave` | the state of a wave |
//! | `group` | what the waves of a workgroup share |
//! | `world` | what a wave needs of the GPU around it: memory, time, interrupts |
//! | `flat` | a world without a GPU, for tests and benchmarks |
//! | `exit` | why an engine stops running a wave |
//! | [`mod@reference`] | the engine that says what an instruction means |
//! | [`fast`] | the engine that is quick; what it lacks it gives to the reference engine |
//! | [`check`] | the reference engine with an eye on each access: bugs that hardware hides |
//! | [`launch`] | kernel descriptors, workgroups, barriers, threads |
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod check;
mod exit;
pub mod fast;
mod few;
mod flat;
mod group;
mod lds;

pub mod launch;
pub mod reference;
mod wave;
mod world;

pub use exit::{Access, Exit, Miss, Refusal, Stop};
pub use flat::{Flat, Rights};
pub use group::{Apertures, Group, Place, Watched};
pub use lds::Lds;
pub use reference::fidelity::{fidelity, Fidelity};
pub use wave::{Mode, Round, Row, Wave, LANES};
pub use world::{Detour, Reach, Span, Spot, Touch, World};
