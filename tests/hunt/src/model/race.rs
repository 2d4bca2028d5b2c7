// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Changes of memory, at once or in a race: after a fault of the driver, before it has the pages.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vkfd_sim::SimMm;

/// A change of pages. Pages that are not mapped stay so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// They go.
    Unmap,
    /// They get other frames, as by a discard or a migration.
    Renew,
    /// They become writable or not.
    Protect { writable: bool },
    /// Nothing; the driver is notified all the same.
    Nothing,
}

impl Change {
    /// Changes `count` pages from `first` on.
    pub fn apply(self, mm: &SimMm, first: u64, count: u64) {
        match self {
            Self::Unmap => mm.unmap(first, count),
            Self::Renew => mm.renew(first, count),
            Self::Protect { writable } => mm.protect(first, count, writable),
            Self::Nothing => {
                mm.notify(first, count, true);
            }
        }
    }
}

/// A change of `count` pages from `first` on, after the `skip`-th fault call from now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Race {
    /// Fault calls to let pass.
    pub skip: u32,
    /// The change.
    pub change: Change,
    /// First page.
    pub first: u64,
    pub count: u64,
}

#[derive(Default)]
struct State {
    armed: Option<Race>,
    raced: Vec<Race>,
}

/// The races on a memory: one at a time.
#[derive(Clone, Default)]
pub struct Races(Arc<Mutex<State>>);

impl Races {
    /// Races on `mm`.
    #[must_use]
    pub fn on(mm: &SimMm) -> Self {
        let races = Self::default();
        let own = races.clone();
        mm.after_fault(move |mm, _| own.run(mm));
        races
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arms a race, or none.
    pub fn arm(&self, race: Option<Race>) {
        self.lock().armed = race;
    }

    /// The races that have happened since this was last asked.
    pub fn take(&self) -> Vec<Race> {
        std::mem::take(&mut self.lock().raced)
    }

    fn run(&self, mm: &SimMm) {
        let due = {
            let mut state = self.lock();
            match state.armed.as_mut() {
                Some(waiting) if waiting.skip > 0 => {
                    waiting.skip -= 1;
                    None
                }
                _ => {
                    let due = state.armed.take();
                    state.raced.extend(due);
                    due
                }
            }
        };
        if let Some(race) = due {
            race.change.apply(mm, race.first, race.count);
        }
    }
}
