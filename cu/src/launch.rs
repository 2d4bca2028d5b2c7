// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Launching: from a kernel descriptor and a dispatch to workgroups that run.
//!
//! A packet processor reads a [`Descriptor`] (AQL) or registers (PM4), and both make a [`Program`].
//! With the sizes of the grid, that makes a [`Launch`], which is checked as AMD's firmware checks
//! it ([`LaunchError`]). A [`Dispatch`] is a launch under way: any number of threads take
//! [`Workgroup`]s from it, run each for a turn on an [`Engine`] of their own, and give it back.
//!
//! | module | |
//! |---|---|
//! | `descriptor` | kernel objects of code object version 2 to 6 |
//! | `program` | a program's description for the hardware: entry, registers, modes |
//! | `grid` | a launch: sizes, arguments, scratch; the initial state of a wave |
//! | `workgroup` | waves and barriers of a workgroup on one thread |
//! | `dispatch` | workgroups over threads: which runs next |
//! | `schedule` | in which order groups and waves run |
//! | `units` | a GPU's compute units: where each is, and what they have room for |
//! | `residency` | the part of them that all launches under way have taken |
//! | `section` | the accesses between two barriers |
//! | `spare` | registers of waves that have ended, for the next ones |
//!
//! Limits: no TG_SPLIT, no cluster launches, no saved waves. A runtime's trap handler is not
//! executed: `s_trap` ends the launch, but for numbers 0 and 3, which do nothing.

mod descriptor;
mod dispatch;
mod grid;
mod program;
mod residency;
mod schedule;
mod section;
mod spare;
mod units;
mod workgroup;

pub use descriptor::{Descriptor, Preload, DESCRIPTOR_BYTES};
pub use dispatch::{Dispatch, Next, Taken};
pub use grid::{Launch, Scratch, Sizes, Watcher, MAX_GROUP, MAX_LDS};
pub use program::{LaunchError, Program};
pub use residency::Residency;
pub(crate) use schedule::Choices;
pub use schedule::{Schedule, UnknownSchedule};
pub use section::{Section, Span};
pub use spare::free_spare;
pub use units::Units;
pub use workgroup::{Cause, Engine, Turn, Workgroup};
