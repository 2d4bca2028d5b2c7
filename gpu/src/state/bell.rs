// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How idle queues wait: they poll their doorbells, first spinning, then sleeping longer and
//! longer.
//!
//! A doorbell is plain shared memory. A sleeper wakes by time alone, unless the thread that wrote
//! it also calls [`Gpu::ring`](crate::Gpu::ring). The mutex guards nothing; it orders going to
//! sleep against ringing.

use crate::base::lock::lock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

const SPIN: Duration = Duration::from_micros(20);
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

/// Wakes the sleeping queues of a GPU.
#[derive(Default)]
pub(crate) struct Bell {
    rung: AtomicU64,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Bell {
    /// Wakes everyone who sleeps. Two atomic operations if nobody does.
    pub(crate) fn ring(&self) {
        self.rung.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.lock));
            self.wake.notify_all();
        }
    }

    /// Sleeps until the bell rings after `seen` was read, `cancelled` is set (and the bell rung),
    /// or time is up.
    fn sleep(&self, seen: u64, cancelled: &AtomicBool, longest: Duration) {
        self.sleepers.fetch_add(1, SeqCst);
        let guard = lock(&self.lock);
        if self.rung.load(SeqCst) == seen && !cancelled.load(SeqCst) {
            drop(self.wake.wait_timeout(guard, longest));
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

/// One waiter's state, from the moment it found nothing to do.
pub(crate) struct Idle {
    seen: u64,
    since: Instant,
    pause: Duration,
}

impl Idle {
    pub(crate) fn new(bell: &Bell) -> Idle {
        Idle { seen: bell.rung.load(SeqCst), since: Instant::now(), pause: SHORTEST }
    }

    /// Waits a little; longer each time. The caller looks for work after each return.
    pub(crate) fn wait(&mut self, bell: &Bell, cancelled: &AtomicBool) {
        if self.since.elapsed() < SPIN {
            for _ in 0..32 {
                std::hint::spin_loop();
            }
        } else {
            bell.sleep(self.seen, cancelled, self.pause);
            self.pause = (self.pause * 2).min(LONGEST);
        }
        self.seen = bell.rung.load(SeqCst);
    }
}
