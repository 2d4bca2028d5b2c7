// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Progress of a long build: a bar on a terminal, else a line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const BETWEEN_LINES: Duration = Duration::from_secs(30);

/// Counts steps.
pub struct Progress {
    bar: ProgressBar,
    what: &'static str,
    expected: u64,
    done: u64,
    began: Instant,
    shown: Instant,
    terminal: bool,
}

impl Progress {
    /// `what` is made in about `expected` steps.
    pub fn new(what: &'static str, expected: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(expected) } else { ProgressBar::hidden() };
        if let Ok(style) =
            ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {elapsed}, {eta} to go  {wide_msg}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(what);
        let began = Instant::now();
        Self { bar, what, expected, done: 0, began, shown: began, terminal }
    }

    /// A step begins.
    pub fn step(&mut self, name: &str) {
        self.done += 1;
        // What was expected is an estimate.
        self.bar.set_length(self.expected.max(self.done));
        self.bar.set_position(self.done);
        self.bar.set_message(name.to_string());
        if !self.terminal && self.shown.elapsed() >= BETWEEN_LINES {
            self.shown = Instant::now();
            println!(
                "{}: {} of about {} steps after {}",
                self.what,
                self.done,
                self.expected.max(self.done),
                minutes(self.began.elapsed())
            );
        }
    }

    /// Takes the bar away and says how long it took.
    pub fn finish(self) {
        self.bar.finish_and_clear();
        println!("{}: built in {}", self.what, minutes(self.began.elapsed()));
    }
}

/// "3 min 07 s".
pub fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        format!("{seconds} s")
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}
