// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Work of a GPU that continues in a thread beside a scenario.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::verdict::Stop;

/// How long work beside an event may take for a round.
const PATIENCE: Duration = Duration::from_secs(600);

/// Does `event` while `work` is done again and again, and how often it was done.
pub(crate) fn repeat<R>(
    mut work: impl FnMut(u64) -> Result<(), Stop> + Send,
    event: impl FnOnce(&Progress) -> Result<R, Stop>,
) -> Result<(R, u64), Stop> {
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut result = Ok(());
            while result.is_ok() && !progress.stop.load(Ordering::Relaxed) {
                result = work(progress.rounds());
                progress.rounds.fetch_add(1, Ordering::Relaxed);
            }
            progress.ended.store(true, Ordering::Relaxed);
            result
        });
        let result = progress.more(1).and_then(|()| event(&progress)).and_then(|r| progress.more(2).map(|()| r));
        progress.stop.store(true, Ordering::Relaxed);
        // What went wrong with the work comes first: the event only finds that there is none.
        worker.join().map_err(|_| anyhow::anyhow!("the work panicked"))??;
        Ok((result?, progress.rounds()))
    })
}

/// Work that goes on beside an event.
#[derive(Default)]
pub(crate) struct Progress {
    rounds: AtomicU64,
    stop: AtomicBool,
    ended: AtomicBool,
}

impl Progress {
    /// Rounds done.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Waits for `rounds` more.
    pub(crate) fn more(&self, rounds: u64) -> Result<(), Stop> {
        let (first, start) = (self.rounds(), Instant::now());
        while self.rounds() < first + rounds {
            ensure!(!self.ended.load(Ordering::Relaxed), "the work has failed");
            ensure!(start.elapsed() < PATIENCE, "no {rounds} rounds of GPU work in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
