// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Carries out the driver's commands on one GPU, on a thread of its own.
//!
//! The thread polls the mailboxes and spins for a moment when they are empty. Then it yields to
//! other threads between polls, and then it sleeps on the eventfd of the guest's doorbell register.
//! It announces its sleep before its last poll. The driver looks for that announcement after it has
//! written a command. One of the two sees the other.
//!
//! Commands come from a guest that may be wrong. Each is decoded from a copy and checked; what
//! makes no sense is refused with EINVAL.

use crate::interrupts::{wait_signal, InterruptLine, Names};
use crate::ram::GuestRam;
use crate::registers::Registers;
use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::gpu::{HwQueue, QueueKind, Vmid, Work};
use vkfd_gpu::{FabricAddr, FaultOutcome, Gpu, PhysAddr, QueueId};
use vkfd_host::device::errno_of;
use vkfd_wire::command::{work_word, Command, NewQueue, WORDS};
use vkfd_wire::layout;
use vkfd_wire::vmid::VmidState;

/// How long after the last command the thread has the processor for itself.
const SPIN: Duration = Duration::from_micros(20);
/// How long the mailboxes are polled after the last command before the thread sleeps. A driver that
/// works range by range has its next command ready by then, also in an emulated guest. If the
/// thread slept between commands, each would take several times as long.
const AWAKE: Duration = Duration::from_micros(500);

/// What an executor works on.
pub struct Parts {
    /// The GPU's registers.
    pub registers: Arc<Registers>,
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// The guest's RAM.
    pub ram: Arc<GuestRam>,
    /// Its interrupts.
    pub line: Arc<InterruptLine>,
    /// Its queues' names.
    pub names: Arc<Names>,
    /// Readable when the guest has rung.
    pub kick: Arc<OwnedFd>,
    /// VMIDs it has.
    pub vmids: u32,
    /// This process's epoch.
    pub epoch: u64,
}

/// The executor of a GPU.
pub struct Executor {
    parts: Parts,
    attached: bool,
    /// By VMID: what it was told last.
    states: Vec<Option<VmidState>>,
    queues: BTreeMap<u32, QueueId>,
    /// By mailbox: the number of the last command.
    answered: Vec<u64>,
}

type Answer = Result<u64, Errno>;

impl Executor {
    /// An executor that has been told nothing yet. Empties the mailboxes.
    pub fn new(parts: Parts) -> Self {
        for at in (layout::MAILBOX_BASE..layout::mailbox(layout::MAILBOXES)).step_by(8) {
            parts.registers.write(at, 0);
        }
        let states = (0..parts.vmids).map(|_| None).collect();
        let answered = (0..layout::MAILBOXES).map(|_| 0).collect();
        Self { parts, attached: false, states, queues: BTreeMap::new(), answered }
    }

    /// Works until `stop` is set (and the eventfd written).
    pub fn run(mut self, stop: &AtomicBool) {
        let mut busy = Instant::now();
        while !stop.load(Ordering::SeqCst) {
            if self.look() {
                busy = Instant::now();
                continue;
            }
            match busy.elapsed() {
                idle if idle < SPIN => (0..32).for_each(|_| std::hint::spin_loop()),
                idle if idle < AWAKE => std::thread::yield_now(),
                _ => {
                    self.sleep();
                    busy = Instant::now();
                }
            }
        }
    }

    fn sleep(&mut self) {
        self.parts.registers.write(layout::ASLEEP, 1);
        fence(Ordering::SeqCst);
        if !self.look() {
            if let Err(error) = wait_signal(&self.parts.kick) {
                tracing::error!(%error, "the doorbell's eventfd cannot be read");
                std::thread::sleep(Duration::from_millis(1));
            }
            // It may have been rung for a client's doorbell, too.
            self.parts.gpu.ring();
        }
        self.parts.registers.write(layout::ASLEEP, 0);
    }

    /// Answers every command that is there. Whether there was one.
    fn look(&mut self) -> bool {
        let mut found = false;
        for (index, at) in (0..layout::MAILBOXES).map(|index| (index as usize, layout::mailbox(index))) {
            let number = self.parts.registers.read(at + layout::NUMBER);
            if number == 0 || self.answered[index] == number {
                continue;
            }
            found = true;
            self.answered[index] = number;
            let (status, value) = match self.answer(at) {
                Ok(value) => (0, value),
                Err(errno) => (u64::try_from(errno.0).unwrap_or(0), 0),
            };
            self.parts.registers.write(at + layout::STATUS, status);
            self.parts.registers.write(at + layout::VALUE, value);
            self.parts.registers.write(at + layout::DONE, number);
        }
        found
    }

    fn answer(&mut self, at: u64) -> Answer {
        let registers = &self.parts.registers;
        if registers.read(at + layout::FOR_EPOCH) != self.parts.epoch {
            // For a device process before this one; its sender does not wait any more.
            return Err(Errno::ENODEV);
        }
        let mut words = [0; WORDS];
        for (i, word) in (0..).zip(words.iter_mut()) {
            *word = registers.read(at + layout::COMMAND + 8 * i);
        }
        let command = Command::decode(&words).ok_or(Errno::EINVAL)?;
        let answer = self.execute(&command);
        match &answer {
            Ok(_) => tracing::trace!(?command, "done"),
            Err(errno) => tracing::debug!(?command, errno = errno.name(), "refused"),
        }
        answer
    }

    fn execute(&mut self, command: &Command) -> Answer {
        let gpu = &self.parts.gpu;
        match *command {
            Command::Attach { probe, nonce } => return self.attach(PhysAddr(probe.0), nonce),
            Command::SetVmid { vmid, state } => return self.set_vmid(vmid, state),
            Command::FlushTlb { vmid } => gpu.flush_tlb(self.vmid(vmid)?),
            Command::FaultDone { vmid, va, served } => {
                let outcome = if served { FaultOutcome::Retry } else { FaultOutcome::Fail };
                gpu.fault_done(self.vmid(vmid)?, va.0, outcome);
            }
            Command::AddQueue(new) => return self.add_queue(&new),
            Command::UpdateQueue { queue, ring, ring_bytes, enabled } => {
                gpu.update_queue(self.queue(queue)?, ring.0, ring_bytes, enabled).map_err(|error| errno_of(&error))?;
            }
            Command::RemoveQueue { queue } => {
                let id = self.queue(queue)?;
                gpu.remove_queue(id).map_err(|error| errno_of(&error))?;
                self.queues.remove(&queue.0);
                self.parts.names.hold().queues.remove(&id);
            }
            Command::Clear { at, bytes } => {
                gpu.vram()
                    .discard(at.0, bytes)
                    .or_else(|error| {
                        tracing::debug!(%error, %at, bytes, "VRAM is written instead of discarded");
                        gpu.vram().fill(at.0, bytes, 0)
                    })
                    .map_err(|_| Errno::EINVAL)?;
            }
            Command::Clock => return Ok(vkfd_gpu::clock()),
            Command::Waves { vmid } => return Ok(gpu.waves_of(self.vmid(vmid)?)),
            Command::Work => {
                let vkfd_gpu::Work { nanoseconds, now } = gpu.work();
                return Ok(work_word(Work { nanoseconds, now }));
            }
        }
        Ok(0)
    }

    fn vmid(&self, vmid: Vmid) -> Result<vkfd_gpu::Vmid, Errno> {
        (vmid.number() < self.parts.vmids).then_some(vkfd_gpu::Vmid(vmid.number())).ok_or(Errno::EINVAL)
    }

    fn queue(&self, queue: HwQueue) -> Result<QueueId, Errno> {
        self.queues.get(&queue.0).copied().ok_or(Errno::EINVAL)
    }

    fn attach(&mut self, probe: PhysAddr, nonce: u64) -> Answer {
        if let Err(error) = self.parts.ram.open() {
            tracing::error!(%error, "no guest RAM");
            return Err(Errno::ENOENT);
        }
        if self.parts.ram.read(probe) != Some(nonce) {
            tracing::error!(
                "the driver's word at {probe} is not there: --ram is not the file that this guest's RAM is in, or --machine or \
                 --below-4g do not match QEMU's -machine"
            );
            return Err(Errno::EFAULT);
        }
        self.attached = true;
        self.parts.line.attach();
        tracing::info!(gpu = self.parts.gpu.index(), epoch = self.parts.epoch, "driver attached");
        Ok(0)
    }

    fn set_vmid(&mut self, vmid: Vmid, state: VmidState) -> Answer {
        let id = self.vmid(vmid)?;
        let last = self.states.get_mut(vmid.number() as usize).ok_or(Errno::EINVAL)?;
        if last.is_some_and(|last| !state.is_newer_than(last)) {
            return Ok(0);
        }
        let was_suspended = last.is_some_and(|last| last.suspended());
        *last = Some(state);
        if state.suspended() && !was_suspended {
            self.parts.gpu.suspend(id);
        }
        self.parts.gpu.set_root(id, state.root().map(|root| FabricAddr(root.0)), state.retry());
        if !state.suspended() {
            self.parts.gpu.resume(id);
        }
        Ok(0)
    }

    fn add_queue(&mut self, new: &NewQueue) -> Answer {
        let vmid = self.vmid(new.vmid)?;
        // Without a driver that has shown its memory nothing is to be accessed. Address spaces it
        // may be told about earlier: other threads of the driver do not wait for the attachment.
        if !self.attached || new.queue.0 == 0 || self.queues.contains_key(&new.queue.0) {
            return Err(Errno::EINVAL);
        }
        let doorbell = self.parts.ram.word(PhysAddr(new.doorbell.0)).ok_or(Errno::EFAULT)?;
        let keeper: Arc<dyn Any + Send + Sync> = self.parts.ram.clone();
        let config = vkfd_gpu::QueueConfig {
            vmid,
            kind: match new.kind {
                QueueKind::Sdma => vkfd_gpu::QueueKind::Sdma,
                QueueKind::Aql => vkfd_gpu::QueueKind::Aql,
                QueueKind::Pm4 => vkfd_gpu::QueueKind::Pm4,
            },
            ring_va: new.ring.0,
            ring_bytes: new.ring_bytes,
            rptr_va: new.rptr.0,
            wptr_va: new.wptr.0,
            // SAFETY: `word` checked place and alignment, and the RAM is mapped as long as the
            // keeper lives.
            doorbell: unsafe { vkfd_gpu::DoorbellPtr::new(doorbell, keeper) },
            enabled: true,
        };
        let mut names = self.parts.names.hold();
        let id = self.parts.gpu.add_queue(config).map_err(|error| errno_of(&error))?;
        names.queues.insert(id, new.queue);
        names.vms.insert(vmid.0, new.vmid);
        self.queues.insert(new.queue.0, id);
        Ok(0)
    }
}
