// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Switches that break vkfd on purpose, so that a test can show that it would notice; and fail
//! points, at which a test makes a call fail. One list of each, [`Switch`] and [`FailPoint`], for
//! all crates and the kernel module.
//!
//! Mechanism: a breakable component has a set of switches, and asks it:
//! `switches.has(Switch::TlbFlush)`. A set belongs to one component (the options of one machine,
//! one GPU, one engine, one device), so two tests of one program do not disturb each other.
//! [`Switches`] is a value, for options; [`LiveSwitches`] can be changed while its owner runs. Some
//! switches take a value, for instance which operation is spoilt.
//!
//! | build | sets |
//! | --- | --- |
//! | with debug assertions, or `--cfg vkfd_sabotage` | bits, and a word for each switch that takes a value |
//! | without both, such as a release | of no size; each question is answered "no" at compile time, and nothing can turn a switch on |
//!
//! The profile decides and not a feature, so that no crate is compiled a second time to be broken:
//! whatever tests run can be, and nothing that people install. The flag is for the kernel module,
//! which a kernel without debug assertions has built.
//!
//! People name switches as docs/sabotage.md does: `driver.tlb_flush,cu.handler=v_mov_b32`. `parse`
//! is the one function that reads this, for `VKFD_SABOTAGE`, `--sabotage` and the module's
//! parameter. It allocates nothing.
//!
//! There are no locks. Changes of a live set are seen by questions that are asked after them
//! (sequentially consistent).
//!
//! A process has one set for everything that it has once, such as its memory: [`process`].
//!
//! Limit: one value for each switch of a set.
#![no_std]

#[cfg(test)]
extern crate std;

mod fail_point;
mod live;
#[cfg(any(debug_assertions, vkfd_sabotage))]
mod parse;
mod switch;
mod switches;

pub use fail_point::FailPoint;
pub use live::{process, LiveSwitches};
#[cfg(any(debug_assertions, vkfd_sabotage))]
pub use parse::{parse, BadSwitch};
pub use switch::{Part, Switch};
pub use switches::Switches;

// What the table above says of a release, checked by each of them.
#[cfg(not(any(debug_assertions, vkfd_sabotage)))]
const _: () = {
    assert!(size_of::<Switches>() == 0 && size_of::<LiveSwitches>() == 0);
    assert!(!Switches::NONE.has(Switch::Invalidation));
};
