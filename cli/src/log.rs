// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The log of commands that serve others until they are stopped: on stderr, at the level that
//! VKFD_LOG names. [`LogRate`] limits each kind of line.

use std::io::{self, IsTerminal};
use tracing_subscriber::filter::{dynamic_filter_fn, FilterExt, LevelFilter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use vkfd_host::LogRate;

/// Starts it, with `level` unless VKFD_LOG names one.
pub fn start(level: LevelFilter) {
    let level = std::env::var("VKFD_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(level);
    let rate = LogRate::default();
    // The level is asked first: a line that it leaves out costs no budget.
    let filter = level.and(dynamic_filter_fn(move |place, _| place.is_span() || rate.admits(place)));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .with_filter(filter);
    tracing_subscriber::registry().with(lines).init();
}
