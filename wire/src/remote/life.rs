// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether there is a device, and which: epoch and phase in one atomic word.
//!
//! ```text
//!            attach               replayed
//!   Lost ------------> Replaying -----------> Live
//!    ^                     |                   |
//!    |                     +------> Dying <----+   gave up: kill it
//!    +--------- ended --------------- |
//! ```
//!
//! Sequentially consistent throughout. A thread that changes the driver's state of an address space
//! does so first and looks here afterwards. A replay announces itself here first and reads that
//! state afterwards. So one of the two sends it to the device.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// What can be asked of the device of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Nothing: it has ended.
    Lost,
    /// Nothing, and it may still run: somebody is having it killed.
    Dying,
    /// Address spaces: it is being told about them.
    Replaying,
    Live,
}

/// The word.
pub(super) struct Life(AtomicU64);

const fn pack(epoch: u64, phase: Phase) -> u64 {
    let phase = match phase {
        Phase::Lost => 0,
        Phase::Dying => 1,
        Phase::Replaying => 2,
        Phase::Live => 3,
    };
    epoch << 2 | phase
}

/// Epochs that fit.
pub(super) const MAX_EPOCH: u64 = (1 << 62) - 1;

impl Life {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(pack(0, Phase::Lost)))
    }

    /// Epoch and phase.
    pub(super) fn now(&self) -> (u64, Phase) {
        let word = self.0.load(SeqCst);
        let phase = match word & 3 {
            0 => Phase::Lost,
            1 => Phase::Dying,
            2 => Phase::Replaying,
            _ => Phase::Live,
        };
        (word >> 2, phase)
    }

    /// The epoch, if commands for address spaces can be sent.
    pub(super) fn reachable(&self) -> Option<u64> {
        match self.now() {
            (epoch, Phase::Live | Phase::Replaying) => Some(epoch),
            _ => None,
        }
    }

    /// Goes from one phase of `epoch` to another. False when it is not in that phase.
    pub(super) fn change(&self, epoch: u64, from: Phase, to: Phase) -> bool {
        self.0.compare_exchange(pack(epoch, from), pack(epoch, to), SeqCst, SeqCst).is_ok()
    }

    /// Begins `epoch`, at most [`MAX_EPOCH`]. Only from [`Phase::Lost`], by the one thread that
    /// attaches.
    pub(super) fn begin(&self, epoch: u64) {
        self.0.store(pack(epoch, Phase::Replaying), SeqCst);
    }
}
