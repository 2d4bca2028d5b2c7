// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The collector on the worker's processor, while much moves.
//!
//! The worker sleeps in each change of mappings until the collector has read the event. On one
//! processor that is two switches. On two processors each is woken for it in turn, which takes
//! several times as long if an idle processor is halted, as in a virtual machine.
//!
//! Limit: the collector has the worker's affinity after that, not one of its own.

use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity, CpuSet, Pid};
use std::sync::atomic::{AtomicI32, Ordering};

/// The two threads that share a processor.
pub(super) struct Together {
    /// The collector's thread number.
    collector: AtomicI32,
}

/// They are on the same processor while it lives.
pub(super) struct Gathered<'a> {
    together: &'a Together,
    /// The processors that the worker may use.
    all: Option<CpuSet>,
}

impl Together {
    pub(super) const fn new() -> Self {
        Self { collector: AtomicI32::new(0) }
    }

    /// The calling thread is the collector.
    pub(super) fn begun(&self) {
        self.collector.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
    }

    fn keep_on(&self, processors: &CpuSet) -> rustix::io::Result<()> {
        sched_setaffinity(Pid::from_raw(self.collector.load(Ordering::SeqCst)), processors)
    }

    /// Takes the collector to the processor that the caller, the worker, is on.
    pub(super) fn gather(&self) -> Gathered<'_> {
        let mut here = CpuSet::new();
        let processor = sched_getcpu();
        let all = (processor < CpuSet::MAX_CPU).then(|| {
            here.set(processor);
            sched_getaffinity(None).ok().filter(|_| self.keep_on(&here).is_ok())
        });
        Gathered { together: self, all: all.flatten() }
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        if let Some(all) = &self.all {
            let _ = self.together.keep_on(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn one_is_where_the_other_is_until_they_part() {
        let (together, there) = (Together::new(), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                together.begun();
                there.wait();
                there.wait();
            });
            there.wait();
            let collector = Pid::from_raw(together.collector.load(Ordering::SeqCst));
            let all = sched_getaffinity(None).unwrap();
            for _ in 0..100 {
                let before = sched_getcpu();
                let gathered = together.gather();
                let after = sched_getcpu();
                let beside = sched_getaffinity(collector).unwrap();
                // This thread may be taken elsewhere at any time.
                assert!(beside.count() == 1 && (before != after || beside.is_set(before)));
                drop(gathered);
                assert_eq!(sched_getaffinity(collector).unwrap(), all);
            }
            there.wait();
        });
    }
}
