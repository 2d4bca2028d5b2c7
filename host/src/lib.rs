// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The user host: the driver inside the client's own process, on ordinary CPU memory.
//!
//! A module names only those of lower floors (`cargo xtask stray` checks that; the floors are in
//! `xtask/src/rooms.rs`). The process's memory makes requests to the mover of its pages through a
//! trait (`mm::elsewhere`).
//!
//! | module | what |
//! | --- | --- |
//! | [`mm`] | the process's memory: watches, invalidations, faulting in; the locking rules |
//! | [`frame`] | what a physical address means here, and how a stale one is caught |
//! | [`uffd`], [`interpose`], [`source`] | where notifications come from, and what they do not show |
//! | [`migrate`] | data that moves into a GPU's memory and back |
//! | [`dma`] | memory that GPU, driver and client share |
//! | `mapping_count` | how many mappings are left, and stay for the program |
//! | `files` | files that calls give to the program |
//! | [`hook`] | functions that stand in libc's place, and their list |
//! | [`device`] | the software GPU as the driver's device |
//! | [`device_file`], [`description`], [`preload_list`] | for programs that open devices by path: one file with all memory, a machine in words, the library's place in LD_PRELOAD |
//! | [`size`], `memory_left`, `system` | sizes as people write them; how much memory there is for this process; what the system lets the host do |
//! | [`listening`], [`log_rate`] | for commands that serve others: sockets by path, and how many log lines others can cause |
//! | [`per_process`] | what a forked child does not inherit |
//! | [`grants`], [`confined`] | for guests and programs elsewhere: the memory of this process that they may have, and a machine that gives them no other |
//! | `timeline` | the driver's events in a timeline |
//! | [`address_space`] | a process's memory as the driver sees it |
//! | `devices`, `mapping` | a machine's GPUs and driver; their memory in the client's |
//! | [`kfd_file`], [`render_file`] | open device files |
//! | [`machine`] | GPUs and driver put together: what programs use |
//!
//! The kernel module (`linux/`) has files of the same names for the same parts.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod address_space;
pub mod blocks;
mod confined;
pub mod description;
pub mod device;
pub mod device_file;
mod devices;
pub mod dma;
mod error;
mod files;
pub mod frame;
pub mod grants;
pub mod hook;
pub mod interpose;
mod interposed;
pub mod kfd_file;
pub mod listening;
pub mod log_rate;
pub mod machine;
mod mapping;
mod mapping_count;
mod maps;
mod memory_left;
pub mod migrate;
pub mod mm;
mod pagemap;
pub mod per_process;
mod populate;
pub mod preload_list;
pub mod render_file;
pub mod sabotage;
mod shape;
pub mod size;
pub mod source;
mod sys;
mod system;
mod table;
mod timeline;
pub mod uffd;

pub use confined::Confined;
pub use description::Description;
pub use error::HostError;
pub use grants::{Grant, Grants};
pub use kfd_file::KfdFile;
pub use listening::Listening;
pub use log_rate::LogRate;
pub use machine::{Machine, MachineOptions};
pub use memory_left::memory_left;
pub use render_file::RenderFile;
pub use shape::Shape;
pub use source::{Capabilities, Source};
pub use system::{system, System};
pub use vkfd_driver::targets::Target;
