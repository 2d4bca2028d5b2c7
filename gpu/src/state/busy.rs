// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How long a GPU has run kernels: the time in which at least one was on it.
//!
//! A kernel that waits for a page, or whose VMID is suspended, is on the GPU. Packets that copy are
//! no kernels, as AMD's firmware counts the load.
//!
//! Each address space counts the same for itself, and the time in which its SDMA queues executed
//! packets ([`Copying`]).

use crate::base::clock;
use crate::base::lock::lock;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;
use std::time::Duration;

/// How much a GPU has worked since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Nanoseconds with a kernel.
    pub nanoseconds: u64,
    /// Whether there is one now.
    pub now: bool,
}

#[derive(Default)]
struct State {
    kernels: u64,
    /// Since when there is one, if there is one.
    since: u64,
    /// Nanoseconds before that.
    before: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Busy(Mutex<State>);

/// A kernel, as long as it is on the GPU.
pub(crate) struct Running<'a> {
    all: [&'a Busy; 2],
    begun: u64,
}

impl<'a> Running<'a> {
    /// A kernel of an address space begins. For a GPU and an address space the clock is read once.
    pub(crate) fn begin(gpu: &'a Busy, space: &'a Busy) -> Running<'a> {
        let running = Running { all: [gpu, space], begun: clock::nanoseconds() };
        running.all.iter().for_each(|busy| busy.begin_at(running.begun));
        running
    }

    /// When it began, by [`clock::nanoseconds`].
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// It ends: how long it took.
    pub(crate) fn end(self) -> Duration {
        ManuallyDrop::new(self).stop()
    }

    fn stop(&self) -> Duration {
        let now = clock::nanoseconds();
        self.all.iter().for_each(|busy| busy.end_at(now));
        Duration::from_nanos(now.saturating_sub(self.begun))
    }
}

impl Busy {
    /// The work until now.
    pub(crate) fn work(&self) -> Work {
        self.work_at(clock::nanoseconds())
    }

    fn begin_at(&self, now: u64) {
        let mut state = lock(&self.0);
        if state.kernels == 0 {
            state.since = now;
        }
        state.kernels += 1;
    }

    fn end_at(&self, now: u64) {
        let mut state = lock(&self.0);
        state.kernels = state.kernels.saturating_sub(1);
        if state.kernels == 0 {
            state.before += now.saturating_sub(state.since);
        }
    }

    fn work_at(&self, time: u64) -> Work {
        let state = lock(&self.0);
        let now = state.kernels != 0;
        let current = if now { time.saturating_sub(state.since) } else { 0 };
        Work { nanoseconds: state.before + current, now }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The time that SDMA queues took for their packets, each queue's by itself.
#[derive(Default)]
pub(crate) struct Copying(AtomicU64);

impl Copying {
    /// A packet was executed from this time on until now.
    pub(crate) fn add_since(&self, begun: u64) {
        self.0.fetch_add(clock::nanoseconds().saturating_sub(begun), Relaxed);
    }

    /// Nanoseconds, of packets that have ended.
    pub(crate) fn nanoseconds(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_overlap_count_once() {
        let busy = Busy::default();
        let work = |at| (busy.work_at(at).nanoseconds, busy.work_at(at).now);
        assert_eq!(work(90), (0, false));
        busy.begin_at(100);
        busy.begin_at(110);
        assert_eq!(work(115), (15, true));
        busy.end_at(120);
        assert_eq!(work(125), (25, true));
        busy.end_at(130);
        assert_eq!(work(1000), (30, false));
        busy.begin_at(2000);
        busy.end_at(2007);
        assert_eq!(work(3000), (37, false));
    }

    #[test]
    fn a_kernel_ends_with_its_guard() {
        let (busy, own) = (Busy::default(), Busy::default());
        for ends in [false, true] {
            let running = Running::begin(&busy, &own);
            assert!(busy.work().now && own.work().now);
            let took = ends.then(|| running.end());
            let first = busy.work();
            assert_eq!((first.now, busy.work()), (false, first));
            assert_eq!(first, own.work());
            assert!(took.is_none_or(|took| took.as_nanos() <= first.nanoseconds.into()));
        }
    }
}
