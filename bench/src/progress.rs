// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Progress bars on standard error, if that is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Where bars are shown.
pub struct Progress {
    shown: bool,
}

/// A bar, which disappears when it is dropped.
pub struct Bar(ProgressBar);

impl Progress {
    /// On standard error.
    pub fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() }
    }

    /// A bar of `steps` steps.
    pub fn bar(&self, what: &'static str, steps: usize) -> Bar {
        if !self.shown {
            return Bar(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(steps as u64);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg:22} {wide_bar} {pos}/{len} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        Bar(bar)
    }
}

impl Bar {
    /// One step is done.
    pub fn advance(&self) {
        self.0.inc(1);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
