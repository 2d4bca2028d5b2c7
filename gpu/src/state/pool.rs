// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The launches that workers help with, and the workers: compute units, as it were.
//!
//! A queue's own thread puts a large launch on a list, and the GPU's workers help. Each worker
//! takes a group of the next launch on the list, runs it for a turn and gives it back (`worker`).
//! So several queues share the workers evenly. Workers start when first needed and sleep while the
//! list has nothing for them.
//!
//! The mutex of the list guards it; a worker holds it to choose a launch, and nobody takes another
//! lock meanwhile but the launch's own. A worker reports no error: it notes it in the [`Job`], and
//! the queue's thread, which leaves its launch only when no worker has any of it, halts the queue.

use crate::base::ids::QueueId;
use crate::base::lock::lock;
use crate::base::queue_error::Stop;
use crate::state::control::{Control, HasWaves};
use crate::state::tally::Tally;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use vkfd_cu::launch::{Cause, Dispatch, Next, Workgroup};
use vkfd_rt::thread::Thread;

thread_local! {
    /// The queue for which this thread works at the moment, with its GPU's index.
    static SERVES: Cell<Option<(usize, QueueId)>> = const { Cell::new(None) };
}

/// Whether this thread runs a kernel for `queue` of GPU `gpu`: it may not be waited for.
pub(crate) fn serves(gpu: usize, queue: QueueId) -> bool {
    SERVES.get() == Some((gpu, queue))
}

/// For which queue this thread works from now on.
pub(crate) fn serve(queue: Option<(usize, QueueId)>) {
    SERVES.set(queue);
}

/// Why a launch has failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// For the queue's reasons.
    Stop(Stop),
    /// For the wave's.
    Wave(Cause),
}

/// What failed, and where.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    pub(crate) group: [u32; 3],
    pub(crate) wave: u16,
    pub(crate) pc: u64,
}

/// A launch of a queue.
pub(crate) struct Job {
    /// No other of this GPU has it.
    pub(crate) number: u64,
    pub(crate) control: Arc<Control>,
    pub(crate) dispatch: Dispatch,
    /// Instructions of a group that ended in its first turn; 0 if none has.
    pub(crate) short: AtomicU64,
    /// Workers may know of it.
    pub(crate) published: AtomicBool,
    pub(crate) failed: Mutex<Option<Failed>>,
    pub(crate) tally: Mutex<Tally>,
    pub(crate) returned: Returned,
}

impl HasWaves for Job {
    fn waves(&self) -> u64 {
        self.dispatch.waves()
    }
}

/// How often a thread has given a group back. The queue's own thread, which found none, waits for
/// the next: only then is it worth a system call.
///
/// That thread says that it waits and then looks at the number; another one counts and then looks
/// whether somebody waits. So one of both sees the other (sequentially consistent), and the lock is
/// taken only then.
#[derive(Default)]
pub(crate) struct Returned {
    times: AtomicU64,
    is_awaited: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Returned {
    /// How often until now. The groups that were given back before are there.
    pub(crate) fn times(&self) -> u64 {
        self.times.load(SeqCst)
    }

    /// A group was given back.
    pub(crate) fn tell(&self) {
        self.times.fetch_add(1, SeqCst);
        if self.is_awaited.load(SeqCst) {
            // A thread that has looked and does not sleep yet has the lock.
            drop(lock(&self.lock));
            self.changed.notify_all();
        }
    }

    /// Waits until it was more often than so many times.
    pub(crate) fn wait(&self, times: u64) {
        let mut guard = lock(&self.lock);
        self.is_awaited.store(true, SeqCst);
        while self.times() == times {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.is_awaited.store(false, SeqCst);
    }
}

#[derive(Default)]
struct List {
    jobs: Vec<Arc<Job>>,
    /// Which is looked at first.
    turn: usize,
    stop: bool,
}

/// The workers of a GPU.
pub(crate) struct Pool {
    /// Workers there may be.
    most: usize,
    list: Mutex<List>,
    wake: Condvar,
    /// Workers that sleep, or are about to: to wake them takes a system call.
    asleep: AtomicUsize,
    workers: Mutex<Vec<Thread>>,
    /// Launches so far.
    launches: AtomicU64,
}

impl Pool {
    /// A pool for `threads` threads, queues' own included.
    pub(crate) fn new(threads: usize) -> Pool {
        let (list, workers) = (Mutex::default(), Mutex::default());
        let most = threads.saturating_sub(1).min(crate::state::vmid::MAX_WORKERS);
        Pool { most, list, wake: Condvar::new(), asleep: AtomicUsize::new(0), workers, launches: AtomicU64::new(0) }
    }

    /// Puts a launch on the list. `start` makes the worker of a number, where there are not all
    /// yet.
    pub(crate) fn publish(&self, job: &Arc<Job>, start: impl Fn(usize) -> io::Result<Thread>) {
        job.published.store(true, Relaxed);
        lock(&self.list).jobs.push(job.clone());
        {
            let mut workers = lock(&self.workers);
            while workers.len() < self.most {
                match start(workers.len()) {
                    Ok(worker) => workers.push(worker),
                    Err(error) => {
                        // The queues' own threads get everything done.
                        tracing::warn!(%error, "cannot start a compute thread");
                        break;
                    }
                }
            }
        }
        self.wake.notify_all();
    }

    /// Ends the workers, and waits for them, but for the one that calls.
    pub(crate) fn stop(&self) {
        lock(&self.list).stop = true;
        self.wake.notify_all();
        let workers = std::mem::take(&mut *lock(&self.workers));
        for worker in workers {
            if !worker.is_current() && worker.join() {
                tracing::error!("compute thread panicked");
            }
        }
    }

    /// The number of the next launch; no other of this GPU has it.
    pub(crate) fn number_of_launch(&self) -> u64 {
        self.launches.fetch_add(1, Relaxed) + 1
    }

    /// Whether there can be workers.
    pub(crate) fn has_workers(&self) -> bool {
        self.most > 0
    }

    /// Workers may help with this launch no more.
    pub(crate) fn withdraw(&self, job: &Arc<Job>) {
        lock(&self.list).jobs.retain(|other| !Arc::ptr_eq(other, job));
    }

    /// There are groups for workers that sleep.
    pub(crate) fn wake(&self) {
        if self.asleep.load(SeqCst) > 0 {
            self.wake.notify_all();
        }
    }

    /// A launch that wants a thread, and a group of it; waits for one. `None`: it is over.
    pub(crate) fn next(&self) -> Option<(Arc<Job>, Box<Workgroup>)> {
        loop {
            let job = self.choose()?;
            // Made outside of the lock. Another thread may have been faster.
            if let Next::Run(group) = job.dispatch.take() {
                return Some((job, group));
            }
        }
    }

    fn choose(&self) -> Option<Arc<Job>> {
        let mut list = lock(&self.list);
        loop {
            if list.stop {
                return None;
            }
            let count = list.jobs.len();
            for _ in 0..count {
                list.turn = (list.turn + 1) % count;
                let job = list.jobs.get(list.turn).filter(|job| job.dispatch.idle_groups() > 0);
                if let Some(job) = job {
                    return Some(job.clone());
                }
            }
            self.asleep.fetch_add(1, SeqCst);
            list = self.wake.wait(list).unwrap_or_else(PoisonError::into_inner);
            self.asleep.fetch_sub(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_sees_each_group_that_another_gives_back() {
        const GROUPS: u64 = 20_000;
        let (there, back) = (Returned::default(), Returned::default());
        // Each gives one back when it has seen the other's.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..GROUPS {
                    there.wait(round);
                    back.tell();
                }
            });
            for round in 0..GROUPS {
                there.tell();
                back.wait(round);
            }
        });
        assert_eq!((there.times(), back.times()), (GROUPS, GROUPS));
    }
}
