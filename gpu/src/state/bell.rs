// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How idle queues wait: they poll their doorbells, first spinning, then sleeping longer and
//! longer. At last one of them polls for all that have nothing in their rings.
//!
//! A doorbell is plain shared memory. A sleeper wakes by time alone, unless the thread that wrote
//! it also calls [`Gpu::ring`](crate::Gpu::ring). A program has half a dozen queues, most of them
//! empty. Each wake-up of their threads would displace a thread that computes.
//!
//! The mutex guards the list of those that doze, and orders going to sleep against ringing. It is a
//! leaf.

use crate::base::lock::lock;
use crate::state::control::Control;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const SPIN: Duration = Duration::from_micros(20);
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

/// A queue whose thread sleeps until its doorbell is another one.
struct Dozing {
    control: Arc<Control>,
    doorbell: u64,
}

impl Dozing {
    /// Whether its thread has something to do. A doorbell that cannot be read is its thread's.
    fn is_rung(&self) -> bool {
        self.control.removed.load(SeqCst) || self.control.doorbell.load().ok() != Some(self.doorbell)
    }
}

/// Those that doze, and whether one of them polls for the others.
#[derive(Default)]
struct Dozers {
    all: Vec<Dozing>,
    has_watcher: bool,
}

/// Wakes the sleeping queues of a GPU.
#[derive(Default)]
pub(crate) struct Bell {
    rung: AtomicU64,
    sleepers: AtomicU32,
    dozers: Mutex<Dozers>,
    wake: Condvar,
}

impl Bell {
    /// Wakes everyone who sleeps. Two atomic operations if nobody does.
    pub(crate) fn ring(&self) {
        self.rung.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            let dozers = lock(&self.dozers);
            dozers.all.iter().for_each(|dozing| dozing.control.wake.notify_one());
            drop(dozers);
            self.wake.notify_all();
        }
    }

    /// Sleeps until the bell rings after `seen` was read, `cancelled` is set (and the bell rung),
    /// or time is up.
    fn sleep(&self, seen: u64, cancelled: &AtomicBool, longest: Duration) {
        self.sleepers.fetch_add(1, SeqCst);
        let guard = lock(&self.dozers);
        if self.rung.load(SeqCst) == seen && !cancelled.load(SeqCst) {
            drop(self.wake.wait_timeout(guard, longest));
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }

    /// Sleeps until the bell rings after `seen` was read, or the queue's doorbell is not this any
    /// more. As long as the list of those that doze, each time that this thread polls.
    fn doze(&self, seen: u64, control: &Arc<Control>, doorbell: u64) {
        let own = Dozing { control: control.clone(), doorbell };
        self.sleepers.fetch_add(1, SeqCst);
        let mut dozers = lock(&self.dozers);
        dozers.all.push(Dozing { control: control.clone(), doorbell });
        let mut watches = false;
        while self.rung.load(SeqCst) == seen && !own.is_rung() {
            watches |= !std::mem::replace(&mut dozers.has_watcher, true);
            dozers = if watches {
                let others = dozers.all.iter().filter(|other| other.control.id != control.id);
                others.filter(|other| other.is_rung()).for_each(|other| other.control.wake.notify_one());
                let woken = control.wake.wait_timeout(dozers, LONGEST);
                woken.map_or_else(|poisoned| poisoned.into_inner().0, |(dozers, _)| dozers)
            } else {
                control.wake.wait(dozers).unwrap_or_else(std::sync::PoisonError::into_inner)
            };
        }
        dozers.all.retain(|other| !Arc::ptr_eq(&other.control, control));
        dozers.has_watcher &= !watches;
        if let Some(next) = dozers.all.first().filter(|_| !dozers.has_watcher) {
            next.control.wake.notify_one();
        }
        drop(dozers);
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

    /// Waits for a queue's next packet: as [`Idle::wait`], and if all before this doorbell is done,
    /// in the end until there is another one.
    pub(crate) fn wait_for_packet(&mut self, bell: &Bell, control: &Arc<Control>, doorbell: Option<u64>) {
        match doorbell {
            // Another doorbell than this, and nothing done: the rest of a packet is to come.
            Some(doorbell) if self.pause == LONGEST && control.doorbell.load().ok() == Some(doorbell) => {
                bell.doze(self.seen, control, doorbell);
                self.seen = bell.rung.load(SeqCst);
            }
            _ => self.wait(bell, &control.removed),
        }
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
