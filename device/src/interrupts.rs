// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU's interrupts on their way into the ring.
//!
//! Queue threads must not wait for the guest here: the driver may be waiting for that very queue to
//! end. So what does not fit into the ring stays in a backlog, which a thread of its own hands on
//! as the driver takes entries. It stays small: a queue raises at most a few interrupts without an
//! answer, and an event that is in the backlog already is not put there again.
//!
//! Two locks, neither held while waiting for anything: the line's guards ring and backlog, the
//! other one the queues' names.

use crate::registers::Registers;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use vkfd_driver::base::addr::GpuVa;
use vkfd_driver::seams::gpu::{FaultReason, HwQueue, PageFault, Vmid};
use vkfd_gpu::{Access, QueueError, QueueId};
use vkfd_uapi::event::SIGNAL_EVENT_LIMIT;
use vkfd_wire::interrupt::{Interrupt, Message};
use vkfd_wire::layout;

/// How often the backlog looks for room in the ring.
const RETRY: Duration = Duration::from_micros(200);

/// Locks a mutex whose data stays consistent even if a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes a thread that waits for an eventfd.
pub(crate) fn signal(fd: impl AsFd) {
    // Fails only when the counter is full, and then it is readable anyway.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// A new eventfd. Not blocking: QEMU makes those that it gets so, for everybody.
pub(crate) fn new_eventfd() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Waits until an eventfd was signalled, and takes the signals.
pub(crate) fn wait_signal(fd: impl AsFd) -> io::Result<()> {
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], None) {
        Ok(_) | Err(Errno::INTR) => take_signals(fd),
        Err(error) => Err(error.into()),
    }
}

/// Takes the signals of an eventfd, if there are any.
pub(crate) fn take_signals(fd: impl AsFd) -> io::Result<()> {
    match rustix::io::read(fd, &mut [0; 8]) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What the driver calls the GPU's queues and address spaces.
#[derive(Default)]
pub struct Table {
    /// Its numbers of the queues.
    pub queues: BTreeMap<QueueId, HwQueue>,
    /// By address space, the VM that the newest of its queues is of. All queues of the VM before
    /// have ended by then.
    pub vms: BTreeMap<u32, Vmid>,
}

/// The names of the interrupts' sources.
#[derive(Default)]
pub struct Names(Mutex<Table>);

impl Names {
    /// The names, held: interrupts of a queue that is being added wait until it has its name.
    pub fn hold(&self) -> MutexGuard<'_, Table> {
        lock(&self.0)
    }

    fn queue(&self, queue: QueueId) -> HwQueue {
        // Without a name it is on its way out, and the driver has forgotten it.
        self.hold().queues.get(&queue).copied().unwrap_or(HwQueue(0))
    }

    fn vm(&self, vmid: vkfd_gpu::Vmid) -> Vmid {
        self.hold().vms.get(&vmid.0).copied().unwrap_or(Vmid(vmid.0))
    }
}

#[derive(Default)]
struct State {
    /// A driver is there.
    attached: bool,
    raised: u64,
    backlog: VecDeque<Interrupt>,
    /// Events in the backlog.
    events: BTreeSet<(u32, u32)>,
    stop: bool,
}

struct Line {
    registers: Arc<Registers>,
    interrupt: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

impl Line {
    /// Writes an entry if there is room. The caller signals.
    fn write(&self, state: &mut State, interrupt: &Interrupt) -> bool {
        let taken = self.registers.read(layout::INTERRUPTS_SEEN);
        if state.raised.wrapping_sub(taken) >= layout::RING_ENTRIES {
            return false;
        }
        let at = layout::entry(state.raised);
        for (i, word) in (0..).zip(interrupt.encode()) {
            self.registers.write(at + 8 * i, word);
        }
        state.raised = state.raised.wrapping_add(1);
        self.registers.write(layout::INTERRUPTS, state.raised);
        true
    }

    fn raise(&self, interrupt: Interrupt) {
        let mut state = lock(&self.state);
        if !state.attached {
            return;
        }
        if state.backlog.is_empty() && self.write(&mut state, &interrupt) {
            drop(state);
            signal(&self.interrupt);
            return;
        }
        if let Interrupt::Event { vmid, event } = interrupt {
            if !state.events.insert((vmid.0, event)) {
                return;
            }
        }
        state.backlog.push_back(interrupt);
        drop(state);
        self.changed.notify_all();
    }

    fn hand_on(&self) {
        let mut state = lock(&self.state);
        while !state.stop {
            let Some(&next) = state.backlog.front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if self.write(&mut state, &next) {
                state.backlog.pop_front();
                if let Interrupt::Event { vmid, event } = next {
                    state.events.remove(&(vmid.0, event));
                }
                signal(&self.interrupt);
            } else {
                state = self.changed.wait_timeout(state, RETRY).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// A GPU's interrupts.
pub struct InterruptLine {
    line: Arc<Line>,
    names: Arc<Names>,
    thread: Option<JoinHandle<()>>,
}

impl InterruptLine {
    /// A line into the ring in `registers`; `interrupt` is the eventfd that interrupts the guest.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn new(registers: Arc<Registers>, interrupt: OwnedFd, names: Arc<Names>) -> io::Result<Self> {
        let line = Arc::new(Line { registers, interrupt, state: Mutex::default(), changed: Condvar::new() });
        let worker = line.clone();
        let thread = std::thread::Builder::new().name("interrupts".into()).spawn(move || worker.hand_on())?;
        Ok(Self { line, names, thread: Some(thread) })
    }

    /// A driver is there: from now on it is interrupted.
    pub fn attach(&self) {
        lock(&self.line.state).attached = true;
    }

    /// Interrupts the guest without an entry, to make it look at the other registers.
    pub fn nudge(&self) {
        signal(&self.line.interrupt);
    }
}

impl Drop for InterruptLine {
    fn drop(&mut self) {
        lock(&self.line.state).stop = true;
        self.line.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl vkfd_gpu::Interrupts for InterruptLine {
    fn page_fault(&self, fault: vkfd_gpu::PageFault) {
        let reason = match fault.reason {
            vkfd_gpu::FaultReason::NotPresent => FaultReason::NotPresent,
            vkfd_gpu::FaultReason::Permission => FaultReason::Permission,
            vkfd_gpu::FaultReason::Stale => FaultReason::Stale,
            vkfd_gpu::FaultReason::NoMemory => FaultReason::NoMemory,
        };
        self.line.raise(Interrupt::Fault(PageFault {
            vmid: self.names.vm(fault.vmid),
            queue: self.names.queue(fault.queue),
            va: GpuVa(fault.va),
            write: fault.access == Access::Write,
            reason,
            retry: fault.retry,
        }));
    }

    fn signal_event(&self, vmid: vkfd_gpu::Vmid, event_id: u32) {
        // The driver has no others, and what a client may invent must not fill the backlog.
        if event_id < SIGNAL_EVENT_LIMIT {
            self.line.raise(Interrupt::Event { vmid: self.names.vm(vmid), event: event_id });
        }
    }

    fn queue_error(&self, vmid: vkfd_gpu::Vmid, queue: QueueId, error: QueueError) {
        let message = Message::new(&error.to_string());
        self.line.raise(Interrupt::Error { vmid: self.names.vm(vmid), queue: self.names.queue(queue), message });
    }
}
