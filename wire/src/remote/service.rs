// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the host has done from time to time: handing interrupts on, noticing that the device has
//! gone, taking the next one over.
//!
//! One thread at a time does it; others that call meanwhile leave it more to do and return.
#![expect(clippy::arithmetic_side_effects, reason = "words of an entry that there is")]

use super::{properties, ready_epoch, same, Loss, Phase, Remote};
use crate::bar::Bar;
use crate::command::Command;
use crate::interrupt::{self, Interrupt};
use crate::layout;
use crate::Condition;
use core::sync::atomic::Ordering::SeqCst;
use vkfd_driver::os;
use vkfd_driver::seams::gpu::{HwQueue, Interrupts, Vmid};

impl<B: Bar> Remote<B> {
    /// Asks the device whether it is there, and gives it up if it does not answer in time. Then
    /// [`Remote::service`] reports it.
    pub fn check(&self) {
        if let (epoch, Phase::Live) = self.life.now() {
            // Any answer is one.
            let _ = self.call(epoch, &Command::Clock);
        }
    }

    /// Hands interrupts on to `driver`, reports the queues of a device that was lost, and takes a
    /// new one over. No lock of the driver may be held. Calls at the same time are one call.
    pub fn service(&self, driver: &dyn Interrupts) -> Condition {
        if self.wanted.fetch_add(1, SeqCst) != 0 {
            return self.condition();
        }
        loop {
            let wanted = self.wanted.load(SeqCst);
            self.service_once(driver);
            if self.wanted.compare_exchange(wanted, 0, SeqCst, SeqCst).is_ok() {
                return self.condition();
            }
        }
    }

    fn service_once(&self, driver: &dyn Interrupts) {
        if let (epoch, Phase::Live | Phase::Replaying) = self.life.now() {
            self.serve_interrupts(epoch, driver);
            // After the interrupts: what it raised last still counts.
            self.is_reachable(epoch);
        }
        if let (epoch, Phase::Dying) = self.life.now() {
            // The killing thread does not come back to report it.
            self.wait_dying(epoch);
        }
        let (epoch, Phase::Lost) = self.life.now() else { return };
        self.report_loss(epoch, driver);
        let next = ready_epoch(&self.bar).filter(|next| *next > epoch && *next != self.refused.load(SeqCst));
        let Some(next) = next else { return };
        match properties(&self.bar) {
            Some((found, at)) if same(&found, &self.properties) && at == self.place => {
                if self.attach(next).is_ok() {
                    os::warn(format_args!("gpu {:#x}: device process {next} has taken over", self.id()));
                    self.serve_interrupts(next, driver);
                }
            }
            _ => {
                self.refused.store(next, SeqCst);
                os::warn(format_args!("gpu {:#x}: device process {next} is another GPU: not used", self.id()));
            }
        }
    }

    fn report_loss(&self, epoch: u64, driver: &dyn Interrupts) {
        if self.reported.swap(epoch, SeqCst) == epoch {
            return;
        }
        let why = match self.loss.load(SeqCst) {
            n if n == Loss::Ended as u32 => "its process has ended",
            n if n == Loss::Silent as u32 => "its process does not run",
            n if n == Loss::Stuck as u32 => "it does not answer",
            n if n == Loss::Refused as u32 => "it refused a command",
            n if n == Loss::Corrupt as u32 => "its interrupts make no sense",
            _ => "the driver has ended it",
        };
        os::warn(format_args!("gpu {:#x}: device lost: {why}. Its queues have stopped, memory stays", self.id()));
        if self.unconfirmed.load(SeqCst) == epoch {
            os::warn(format_args!(
                "gpu {:#x}: the server does not confirm that the device process was killed: it may still write to memory",
                self.id()
            ));
        }
        self.queues.end(epoch, |vmid, queue| self.queue_error(driver, vmid, queue, "the device was lost"));
    }

    fn queue_error(&self, driver: &dyn Interrupts, vmid: Vmid, queue: HwQueue, message: &str) {
        driver.queue_stops(self.id(), vmid, queue, message);
        driver.queue_error(self.id(), vmid, queue);
    }

    fn serve_interrupts(&self, epoch: u64, driver: &dyn Interrupts) {
        if !self.take_interrupts(epoch, driver) {
            self.give_up(epoch, Loss::Corrupt);
        }
    }

    /// Takes what the ring has. False when it makes no sense.
    fn take_interrupts(&self, epoch: u64, driver: &dyn Interrupts) -> bool {
        let raised = self.bar.read(layout::INTERRUPTS);
        if self.bar.read(layout::EPOCH) != epoch {
            // A new process has begun to write there.
            return true;
        }
        let seen = self.seen.load(SeqCst);
        let count = raised.wrapping_sub(seen);
        if count > layout::RING_ENTRIES {
            return false;
        }
        for number in (0..count).map(|n| seen.wrapping_add(n)) {
            let at = layout::entry(number);
            let mut words = [0; interrupt::WORDS];
            for (i, word) in (0..).zip(words.iter_mut()) {
                *word = self.bar.read(at + 8 * i);
            }
            // Given back before it is served: serving may take long, and the copy is ours.
            self.seen.store(number.wrapping_add(1), SeqCst);
            self.bar.write(layout::INTERRUPTS_SEEN, number.wrapping_add(1));
            let Some(interrupt) = Interrupt::decode(&words) else { return false };
            let known = |vmid: Vmid| (1..self.properties.vmids).contains(&vmid.number());
            match interrupt {
                Interrupt::Fault(fault) if known(fault.vmid) => driver.page_fault(self.id(), fault),
                Interrupt::Event { vmid, event } if known(vmid) => driver.signal_event(self.id(), vmid, event),
                Interrupt::Error { vmid, queue, message } if known(vmid) => {
                    self.queue_error(driver, vmid, queue, message.as_str());
                }
                _ => return false,
            }
        }
        true
    }
}
