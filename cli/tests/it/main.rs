// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The program as people call it, one test program for all files: each program is linked anew.

mod circumstances;
mod command;
mod common;
mod disasm;
mod doctor;
mod lint;
mod locks;
mod monitors;
mod recorded;
mod run;
mod seccomp;
mod shared;
