// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests that hunt what the scenario suite misses.
//!
//! | module | what |
//! | --- | --- |
//! | [`model`] | random sequences of calls on a simulated host, against a flat model of the GPUs' right view |
//! | [`live`] | the same on a real machine in this process, through the client library, with real memory |
//! | [`moving`] | memory moves to GPUs and back under threads that write to it; `vkfd-stress` does that, too |
//! | [`svm`] | as `live`, for memory that moves to a GPU and back |
//! | [`stress`] | many threads, many processes, a continuous checker, failures: the program `vkfd-stress` |
//! | [`fuzz`] | what the fuzz targets run, callable from anywhere |
//! | [`compaction`] | the kernel moves pages all the time, beside whatever runs |
//! | [`cases`] | how many cases, from which seed |
//! | [`watchdog`] | a run that does not end says where its threads are |

pub mod cases;
pub mod compaction;
pub mod fuzz;
pub mod live;
pub mod model;
pub mod moving;
pub mod stress;
pub mod svm;
pub mod watchdog;
