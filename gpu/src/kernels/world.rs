// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The memory, the time and the interrupts of a queue, as a wave of one of its kernels sees them on
//! one thread.
//!
//! This is `vkfd_cu`'s [`World`] on a [`Port`]: every translation goes through the port's TLB and
//! the page tables behind it. An access is open while an engine runs, over many instructions. A
//! thread that waits for its end marks the slot as wanted, and engines look at that mark. Faults
//! are settled as those of any queue.

use crate::base::clock::{clock, cycles};
use crate::base::fault::{Access, FaultReason};
use crate::base::queue_error::Stop;
use crate::state::access::{Port, PANIC_IN_KERNEL, PANIC_IN_WORKER};
use crate::state::tally::{Counts, Tally};
use crate::state::vmid::Epoch;
use std::time::Duration;
use vkfd_cu::launch::Dispatch;
use vkfd_cu::{Detour, Miss, Span, World};
use vkfd_isa::Op;
use vkfd_sabotage::Switch;

/// How long a thread that could work for other queues waits for a suspended VMID.
const PATIENCE: Duration = Duration::from_millis(2);

/// Why a wave does not go on.
#[derive(Debug)]
pub(crate) enum Halt {
    /// For the queue's reasons.
    Stop(Stop),
    /// The VMID is suspended, or the queue disabled, for longer than this thread waits.
    Closed,
    /// Another thread has ended the launch.
    Ended,
}

/// A queue's world on one thread.
pub(crate) struct Surroundings<'a> {
    port: &'a mut Port,
    dispatch: &'a Dispatch,
    /// Wait as long as it takes.
    patient: bool,
    epoch: Option<Epoch>,
    /// Address that was last lost, and how often in a row.
    lost: (u64, u32),
    /// Why the last call said stop.
    pub(crate) halt: Option<Halt>,
    pub(crate) tally: Tally,
    /// A wave has written.
    written: bool,
    /// Counts of the access under way, in which nothing is allocated. `tally` gets them later.
    inexact: Counts<Op>,
    detours: Counts<(Op, Detour)>,
}

impl<'a> Surroundings<'a> {
    pub(crate) fn new(port: &'a mut Port, dispatch: &'a Dispatch, patient: bool) -> Surroundings<'a> {
        Surroundings {
            port,
            dispatch,
            patient,
            epoch: None,
            lost: (0, 0),
            halt: None,
            tally: Tally::default(),
            inexact: Counts::new(),
            detours: Counts::new(),
            written: false,
        }
    }

    fn halt(&mut self, halt: Halt) -> vkfd_cu::Stop {
        self.halt = Some(halt);
        vkfd_cu::Stop
    }
}

fn access(access: vkfd_cu::Access) -> Access {
    match access {
        vkfd_cu::Access::Read => Access::Read,
        vkfd_cu::Access::Write => Access::Write,
        vkfd_cu::Access::Execute => Access::Execute,
    }
}

/// The reasons of faults, by the number that stands for them in a [`Miss`].
const REASONS: [FaultReason; 4] =
    [FaultReason::NotPresent, FaultReason::Permission, FaultReason::Stale, FaultReason::NoMemory];

impl World for Surroundings<'_> {
    fn enter(&mut self) -> Result<(), vkfd_cu::Stop> {
        if self.dispatch.is_stopped() {
            return Err(self.halt(Halt::Ended));
        }
        let patience = (!self.patient).then_some(PATIENCE);
        match self.port.enter_within(patience) {
            Ok(Some(epoch)) => {
                self.epoch = Some(epoch);
                self.port.provoked(if self.patient { PANIC_IN_KERNEL } else { PANIC_IN_WORKER });
                Ok(())
            }
            Ok(None) => Err(self.halt(Halt::Closed)),
            Err(stop) => Err(self.halt(Halt::Stop(stop))),
        }
    }

    fn leave(&mut self) {
        self.epoch = None;
        self.port.leave();
        self.inexact.move_to(&mut self.tally.inexact);
        self.detours.move_to(&mut self.tally.detours);
    }

    fn wanted(&self) -> bool {
        self.port.wanted() || self.inexact.is_half_full() || self.detours.is_half_full()
    }

    fn opening(&self) -> Option<u64> {
        self.epoch.is_some().then(|| self.port.opening.number())
    }

    fn translate(&mut self, va: u64, wanted: vkfd_cu::Access) -> Result<Span, Miss> {
        let miss = |reason: u32| Miss { va, access: wanted, lost: false, reason };
        let Some(epoch) = self.epoch else { return Err(miss(0)) };
        match self.port.span(epoch, va, access(wanted)) {
            Ok(span) => Ok(Span { ptr: span.ptr, len: span.len }),
            Err(reason) => {
                let number = REASONS.iter().position(|&other| other == reason).unwrap_or(0);
                Err(miss(u32::try_from(number).unwrap_or(0)))
            }
        }
    }

    fn strict(&self) -> bool {
        self.port.shared.config.strict && !self.port.shared.sabotage.has(Switch::Lenient)
    }

    fn is_host(&mut self, va: u64) -> bool {
        self.epoch.is_some_and(|epoch| self.port.is_host(epoch, va))
    }

    fn retries(&self) -> bool {
        self.port.vmid().retry_faults()
    }

    fn settle(&mut self, miss: &Miss) -> Result<(), vkfd_cu::Stop> {
        let access = access(miss.access);
        let settled = if miss.lost {
            let times = if self.lost.0 == miss.va { self.lost.1 } else { 0 };
            let mut times = times;
            let settled = self.port.settle_lost(miss.va, access, &mut times);
            self.lost = (miss.va, times);
            settled
        } else {
            let reason = usize::try_from(miss.reason).ok().and_then(|reason| REASONS.get(reason));
            self.port.settle_fault(miss.va, access, reason.copied().unwrap_or(FaultReason::NotPresent))
        };
        settled.map_err(|stop| self.halt(Halt::Stop(stop)))
    }

    fn interrupt(&mut self, event: u32) {
        self.port.signal_event(event);
    }

    fn clock(&self) -> u64 {
        clock()
    }

    fn cycles(&self) -> u64 {
        cycles(self.port.shared.config.shader_mhz)
    }

    fn retired(&mut self, instructions: u64) {
        self.tally.instructions += instructions;
    }

    fn executed(&self) -> u64 {
        self.tally.instructions
    }

    fn wrote(&mut self) {
        self.written = true;
    }

    fn has_written(&mut self) -> bool {
        std::mem::take(&mut self.written)
    }

    fn moved(&mut self, bytes: u64) {
        self.tally.bytes += bytes;
    }

    fn gws_init(&mut self, resource: u32, value: u32) {
        self.port.vmid().gws.init(resource, value);
    }

    fn gws_arrive(&mut self, resource: u32, value: u32) -> u64 {
        self.port.vmid().gws.arrive(resource, value)
    }

    fn gws_passed(&mut self, resource: u32, ticket: u64) -> bool {
        self.port.vmid().gws.passed(resource, ticket)
    }

    fn detour(&mut self, op: Op, why: Detour) {
        self.detours.add((op, why));
    }

    fn inexact(&mut self, op: Op) {
        self.inexact.add(op);
    }
}
