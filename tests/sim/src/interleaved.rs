// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests under shuttle, the scheduler that explores the order of threads: threads on a rig, a GPU
//! that accesses memory as long as they run, and random clients. The failure to find is an access
//! that reaches a frame of no page.

use crate::Rig;
use shuttle::thread::{self, JoinHandle};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// How many thread orders each test tries (`cargo xtask interleavings --runs`).
fn runs() -> usize {
    std::env::var("VKFD_INTERLEAVINGS").ok().and_then(|n| n.parse().ok()).unwrap_or(1000)
}

/// Tries `body` in many thread orders. Random and not by priorities: threads here wait for others
/// in loops, which only a fair scheduler ends.
pub fn check(body: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(body, runs());
}

/// As [`check`], for a mechanism that is broken on purpose: the failure is found sooner or later.
pub fn until_found(body: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(body, runs().max(10_000));
}

/// A thread that works on a rig.
pub fn with(rig: &Arc<Rig>, f: impl FnOnce(&Rig) + Send + 'static) -> JoinHandle<()> {
    let rig = rig.clone();
    thread::spawn(move || f(&rig))
}

/// A GPU that accesses one address after the other until [`Accesses::end`].
pub struct Accesses {
    stop: Arc<AtomicBool>,
    gpu: JoinHandle<()>,
}

impl Accesses {
    /// GPU `number` accesses `at(0)`, `at(1)` and so on; `missing` is called for an address without
    /// an entry.
    pub fn start(
        rig: &Arc<Rig>,
        number: usize,
        at: impl Fn(u64) -> u64 + Send + 'static,
        missing: impl Fn(&Rig, u64) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let running = stop.clone();
        let gpu = with(rig, move |rig| {
            for turn in 0.. {
                if running.load(Ordering::SeqCst) {
                    break;
                }
                let (va, mut there) = (at(turn), true);
                rig.gpus[number].access_with(va, |frame| {
                    there = frame.is_some();
                    let live = frame.is_none_or(|frame| rig.mm.is_live(frame));
                    assert!(live, "the GPU reached a frame that was taken away, at {va:#x}");
                });
                if !there {
                    missing(rig, va);
                }
                thread::yield_now();
            }
        });
        Self { stop, gpu }
    }

    /// Waits until the last access is over.
    pub fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.gpu.join().unwrap();
    }
}

/// A thread of the client, with memory of its own, that checks this memory.
pub trait Owner {
    /// Makes a step, and checks.
    fn act(&mut self, rig: &Rig);
}

/// Owners in `threads` threads make so many steps each, while `accesses` go on. Then the process
/// ends, and nothing is left of it.
pub fn at_random<O: Owner>(
    rig: &Arc<Rig>,
    accesses: Accesses,
    threads: usize,
    times: u32,
    owner: impl Fn(usize) -> O + Send + Copy + 'static,
) {
    let work: Vec<_> = (0..threads)
        .map(|number| {
            with(rig, move |rig| {
                let mut owner = owner(number);
                (0..times).for_each(|_| owner.act(rig));
            })
        })
        .collect();
    work.into_iter().for_each(|thread| thread.join().unwrap());
    accesses.end();
    rig.settle();
    assert_eq!(rig.close(), Ok(()));
}
