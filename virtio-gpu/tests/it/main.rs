// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The device and its clients, one test program for all files: each program is linked anew.

mod amplification;
mod boundary;
mod chance;
mod descriptors;
mod device;
mod forward;
mod killed;
mod limits;
mod program;
mod sabotage;
mod serve;
