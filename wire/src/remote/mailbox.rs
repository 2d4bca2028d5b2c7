// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sending a command and waiting for its answer.
//!
//! A call claims a mailbox (a bit of one atomic word), writes the command, its epoch and then its
//! number, and polls until the device has written that number back. Calls are independent of each
//! other: one that is preempted holds up nobody. They run in memory reclaim, so there is no lock
//! and no allocation.
//!
//! How long a call waits is bounded ([`Patience`]) by the device's heartbeat, and in all. Time is
//! counted in small steps, so that a guest that stood still for a while does not take that for the
//! device's silence.
#![expect(clippy::arithmetic_side_effects, reason = "of constants and of a mailbox that there is")]

use super::life::Phase;
use super::{Loss, Remote};
use crate::bar::Bar;
use crate::command::Command;
use crate::layout;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use core::time::Duration;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::os::{self, Time};

/// Most that passes between two looks, as far as patience goes.
const STEP: u64 = 20_000_000;
/// Pause after which a device that seems asleep is woken again.
const KICK_AGAIN: u64 = 10_000_000;

/// Why a call has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failed {
    /// The device of that epoch has ended.
    Gone,
    /// The device refused.
    Refused(Errno),
}

impl From<Failed> for Errno {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Gone => Self::ENODEV,
            Failed::Refused(errno) => errno,
        }
    }
}

/// The driver's half of the mailboxes.
pub(super) struct Mailboxes {
    /// Bit n: mailbox n is in use.
    claimed: AtomicU32,
    next: AtomicU64,
}

const _: () = assert!(layout::MAILBOXES == u32::BITS, "one bit a mailbox");

struct Claim<'a> {
    boxes: &'a Mailboxes,
    index: u32,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.boxes.claimed.fetch_and(!(1 << self.index), SeqCst);
    }
}

impl Mailboxes {
    pub(super) const fn new() -> Self {
        Self { claimed: AtomicU32::new(0), next: AtomicU64::new(1) }
    }

    fn claim(&self) -> Option<Claim<'_>> {
        loop {
            let free = !self.claimed.load(SeqCst);
            if free == 0 {
                return None;
            }
            let index = free.trailing_zeros();
            if self.claimed.fetch_or(1 << index, SeqCst) & (1 << index) == 0 {
                return Some(Claim { boxes: self, index });
            }
        }
    }
}

pub(super) fn nanoseconds(d: Duration) -> u64 {
    d.as_secs().saturating_mul(1_000_000_000).saturating_add(d.subsec_nanos().into())
}

/// How long one waits: counts turns and time.
pub(super) struct Patience {
    turn: u32,
    last: Time,
    waited: u64,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { turn: 0, last: os::now(), waited: 0 }
    }

    /// Lets a little time pass. Returns how much counts, in nanoseconds.
    pub(super) fn turn(&mut self, bar: &impl Bar) -> u64 {
        bar.relax(self.turn);
        self.turn = self.turn.saturating_add(1);
        let now = os::now();
        let passed = now.0.saturating_sub(self.last.0).min(STEP);
        self.last = now;
        self.waited = self.waited.saturating_add(passed);
        passed
    }

    /// Whether it has lasted longer than `limit`.
    pub(super) fn exceeds(&self, limit: Duration) -> bool {
        self.waited > nanoseconds(limit)
    }
}

/// A [`Patience`] that also watches the heartbeat.
struct Watch {
    patience: Patience,
    heartbeat: u64,
    silent: u64,
    kicked: u64,
}

impl<B: Bar> Remote<B> {
    fn watch(&self) -> Watch {
        let heartbeat = self.bar().read(layout::HEARTBEAT);
        Watch { patience: Patience::new(), heartbeat, silent: 0, kicked: 0 }
    }

    /// One turn of waiting for the device of `epoch`. False when there is nothing to wait for any
    /// more.
    fn wait(&self, watch: &mut Watch, epoch: u64) -> bool {
        if !self.is_reachable(epoch) {
            return false;
        }
        let passed = watch.patience.turn(self.bar());
        watch.silent = watch.silent.saturating_add(passed);
        let heartbeat = self.bar().read(layout::HEARTBEAT);
        if heartbeat != watch.heartbeat {
            watch.heartbeat = heartbeat;
            watch.silent = 0;
        }
        let silent = watch.silent > nanoseconds(self.limits().silence);
        if silent || watch.patience.exceeds(self.limits().command) {
            self.give_up(epoch, if silent { Loss::Silent } else { Loss::Stuck });
            return false;
        }
        watch.kicked = watch.kicked.saturating_add(passed);
        if watch.kicked > KICK_AGAIN {
            watch.kicked = 0;
            self.kick();
        }
        true
    }

    /// Wakes the device if it sleeps.
    fn kick(&self) {
        self.bar().fence();
        if self.bar().read(layout::ASLEEP) != 0 {
            self.bar().doorbell(layout::KICK);
        }
    }

    /// Has the device of `epoch` do `command`. When it is found to have ended, no access of its is
    /// in flight any more.
    pub(super) fn call(&self, epoch: u64, command: &Command) -> Result<u64, Failed> {
        let mut watch = self.watch();
        let claim = loop {
            if let Some(claim) = self.mailboxes.claim() {
                break claim;
            }
            if !self.wait(&mut watch, epoch) {
                self.wait_dying(epoch);
                return Err(Failed::Gone);
            }
        };
        let at = layout::mailbox(claim.index);
        let bar = self.bar();
        for (i, word) in (0..).zip(command.encode()) {
            bar.write(at + layout::COMMAND + 8 * i, word);
        }
        bar.write(at + layout::FOR_EPOCH, epoch);
        let number = self.mailboxes.next.fetch_add(1, SeqCst);
        bar.write(at + layout::NUMBER, number);
        self.kick();
        loop {
            if bar.read(at + layout::DONE) == number {
                return match bar.read(at + layout::STATUS) {
                    0 => Ok(bar.read(at + layout::VALUE)),
                    status => Err(Failed::Refused(errno_of(status))),
                };
            }
            if !self.wait(&mut watch, epoch) {
                self.wait_dying(epoch);
                return Err(Failed::Gone);
            }
        }
    }

    /// Waits while somebody has the device of `epoch` killed.
    pub(super) fn wait_dying(&self, epoch: u64) {
        let mut patience = Patience::new();
        // A process that does it takes at most half as long.
        let limit = self.limits().reset * 2;
        while self.life.now() == (epoch, Phase::Dying) && !patience.exceeds(limit) {
            patience.turn(self.bar());
        }
    }
}

/// An errno that the device wrote; nonsense is ENODEV.
fn errno_of(status: u64) -> Errno {
    match i32::try_from(status) {
        Ok(errno @ 1..=4095) => Errno(errno),
        _ => Errno::ENODEV,
    }
}
