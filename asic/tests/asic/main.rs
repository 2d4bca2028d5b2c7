// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The device on a bench: register accesses, rings and run lists as a driver writes them.

mod garbage;
mod programs;
mod registers;
mod rig;
mod rings;
