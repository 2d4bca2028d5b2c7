// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The last things that happened between driver and device, for the end of a driver that hangs.
//!
//! Mechanism: a ring of [`STEPS`] steps. Equal steps in a row are one step with a count, so that a
//! driver that spins on a register does not push out the steps before. Each step has its time. The
//! device's lock guards the ring. Its size is fixed.

use crate::interrupts::Interrupt;
use crate::registers::file::name;
use crate::registers::Dword;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// Steps that are kept.
pub const STEPS: usize = 64;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The driver has read a register.
    Read { at: Dword, value: u32 },
    /// The driver has written a register.
    Write { at: Dword, value: u32 },
    /// The driver has written a doorbell, counted in words.
    Doorbell { at: Dword, value: u64 },
    /// The device has sent an interrupt.
    Interrupt { client: u8, source: u8, ring: u8 },
}

impl From<&Interrupt> for Step {
    fn from(interrupt: &Interrupt) -> Self {
        Self::Interrupt { client: interrupt.client, source: interrupt.source, ring: interrupt.ring }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Read { at, value } => write!(f, "read {} = {value:#x}", name(at)),
            Self::Write { at, value } => write!(f, "write {} = {value:#x}", name(at)),
            Self::Doorbell { at, value } => write!(f, "doorbell {at:#x} = {value:#x}"),
            Self::Interrupt { client, source, ring } => {
                write!(f, "interrupt of client {client:#x}, source {source}, ring {ring:#x}")
            }
        }
    }
}

/// The last steps.
pub struct Trail {
    begin: Instant,
    /// Each with its number in a row, and the time of the last.
    steps: VecDeque<(Step, u64, Duration)>,
}

impl Default for Trail {
    fn default() -> Self {
        Self { begin: Instant::now(), steps: VecDeque::with_capacity(STEPS) }
    }
}

impl Trail {
    /// Something happened.
    pub fn note(&mut self, step: Step) {
        let now = self.begin.elapsed();
        match self.steps.back_mut() {
            Some((last, count, time)) if *last == step => {
                *count += 1;
                *time = now;
            }
            _ => {
                if self.steps.len() == STEPS {
                    self.steps.pop_front();
                }
                self.steps.push_back((step, 1, now));
            }
        }
    }

    /// The last `most` steps, the oldest first, each a line.
    pub fn lines(&self, most: usize) -> Vec<String> {
        let skipped = self.steps.len().saturating_sub(most);
        let line = |(step, count, time): &(Step, u64, Duration)| {
            let times = if *count > 1 { format!(", {count} times") } else { String::new() };
            format!("{:.3} s: {step}{times}", time.as_secs_f64())
        };
        self.steps.iter().skip(skipped).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::gc;

    #[test]
    fn a_driver_that_spins_leaves_the_steps_before() {
        let mut trail = Trail::default();
        for at in 0..100 {
            trail.note(Step::Write { at, value: 1 });
        }
        trail.note(Step::Doorbell { at: 0x20, value: 7 });
        for _ in 0..5000 {
            trail.note(Step::Read { at: gc::RLC_SAFE_MODE, value: 1 });
        }
        let lines = trail.lines(usize::MAX);
        assert_eq!(lines.len(), STEPS);
        assert!(lines.last().unwrap().ends_with("s: read GC.RLC_SAFE_MODE = 0x1, 5000 times"), "{lines:?}");
        assert_eq!(trail.lines(2)[0].split_once(": ").unwrap().1, "doorbell 0x20 = 0x7");
    }
}
