// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The log of commands that serve others until they are stopped: on stderr, as much of it as
//! VKFD_LOG says.

use std::io::{self, IsTerminal};
use tracing_subscriber::filter::LevelFilter;

/// Starts it, with `level` unless VKFD_LOG names one.
pub fn start(level: LevelFilter) {
    let level = std::env::var("VKFD_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(level);
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .init();
}
