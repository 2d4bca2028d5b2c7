// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of the library's modules. Its own test program would run on the hooks that it defines.

#![allow(dead_code, reason = "the library's")]

#[path = "../src/event_wait.rs"]
mod event_wait;
#[path = "../src/signal_wait.rs"]
mod signal_wait;
