// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queues: rings of packets in GPU memory, each worked off by a thread of its own.
//!
//! The thread polls its doorbell, reads packets through its [`Port`], and writes the read pointer
//! back after each. An error halts it: it reports, and then waits to be removed. It sees removal at
//! the latest at its next access, and in every wait. A panic of the thread is such an error, too
//! (`contain`).

use crate::base::counters::count;
use crate::base::error::GpuError;
use crate::base::fault::FaultReason;
use crate::base::queue_error::Stop;
use crate::base::signal_mask::SignalMask;
use crate::kernels::compute::Compute;
use crate::packets::aql::Aql;
use crate::packets::pm4::Pm4;
use crate::packets::sdma::Sdma;
use crate::state::access::Port;
use crate::state::bell::Idle;
use crate::state::contain::contain;
use crate::state::control::{Control, QueueKind};
use crate::state::pool;
use crate::state::shared::Shared;
use crate::state::vmid::SlotClaim;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use vkfd_cu::launch::free_spare;
use vkfd_rt::thread::{self, Thread};
use vkfd_sabotage::Switch;

/// A running queue.
pub(crate) struct Queue {
    pub(crate) control: Arc<Control>,
    thread: Thread,
}

impl Queue {
    /// Starts the queue's thread.
    pub(crate) fn start(shared: &Arc<Shared>, control: Arc<Control>, slot: SlotClaim) -> Result<Queue, GpuError> {
        let aql = u64::from(control.kind == QueueKind::Aql);
        let initial = control.start.wrapping_sub(aql);
        control.doorbell.store(initial).map_err(GpuError::Doorbell)?;
        let kind = match control.kind {
            QueueKind::Sdma => "sdma",
            QueueKind::Aql => "aql",
            QueueKind::Pm4 => "pm4",
        };
        let name = format!("gpu{}-{kind}-{}", shared.index, control.id.0);
        let port = Port::new(shared.clone(), control.clone(), slot);
        let mask = SignalMask::block_asynchronous();
        let run = move || {
            run(port);
            free_spare();
        };
        let thread = thread::spawn(&name, run).map_err(GpuError::Thread)?;
        drop(mask);
        Ok(Queue { control, thread })
    }

    /// Makes the thread end, and waits for it unless this is the thread itself, or one that it
    /// would have to wait for.
    pub(crate) fn stop(self, shared: &Shared) {
        self.control.removed.store(true, SeqCst);
        shared.slots.want_queue(self.control.id);
        shared.vmid_of(&self.control).wake_all();
        shared.bell.ring();
        let own = self.thread.is_current() || pool::serves(shared.index, self.control.id);
        if !own && self.thread.join() {
            tracing::error!(queue = self.control.id.0, "queue thread panicked");
        }
    }
}

/// The packet processors.
enum Engine {
    Sdma(Sdma),
    Aql(Box<Aql>),
    Pm4(Box<(Pm4, Compute)>),
}

/// Works off packets; returns why the queue does not go on.
fn work_off(port: &mut Port) -> Stop {
    let (control, shared) = (port.control.clone(), port.shared.clone());
    let mut engine = match control.kind {
        QueueKind::Aql => Engine::Aql(Box::new(Aql::new(&shared, control.start))),
        QueueKind::Sdma => Engine::Sdma(Sdma::new(shared.config.family, control.start)),
        QueueKind::Pm4 => Engine::Pm4(Box::new((Pm4::new(shared.config.family, control.start), Compute::new(&shared)))),
    };
    let mut idle = Idle::new(&shared.bell);
    loop {
        let worked = port.check_removed().and_then(|()| match &mut engine {
            Engine::Sdma(sdma) => sdma.step(port),
            Engine::Aql(aql) => aql.step(port),
            Engine::Pm4(both) => both.0.step(port, &mut both.1),
        });
        match worked {
            Ok(true) => {
                count(&shared.counters.packets, 1);
                idle = Idle::new(&shared.bell);
            }
            Ok(false) => {
                let doorbell = match &engine {
                    Engine::Sdma(sdma) => sdma.done(),
                    Engine::Aql(aql) => aql.done(),
                    Engine::Pm4(both) => both.0.done(),
                };
                let doorbell = doorbell.filter(|_| !shared.sabotage.has(Switch::OwnPolls));
                idle.wait_for_packet(&shared.bell, &control, doorbell);
            }
            Err(stop) => return stop,
        }
    }
}

fn run(mut port: Port) {
    let (control, shared) = (port.control.clone(), port.shared.clone());
    let stop = contain(&mut port, work_off).unwrap_or_else(Stop::Error);
    if let Stop::Error(error) = stop {
        shared.irq.queue_stops(control.vmid, control.id, &error);
        if let Some(fault) = error.fault() {
            count(&shared.counters.faults, 1);
            if fault.reason == FaultReason::Stale {
                count(&shared.counters.stale, 1);
            }
            shared.irq.page_fault(*fault);
        }
        count(&shared.counters.queue_errors, 1);
        tracing::debug!(gpu = shared.index, queue = control.id.0, %error, "queue halted");
        // The event first: a thread that the runtime's signal wakes finds the queue's state.
        shared.irq.queue_error(control.vmid, control.id, error.clone());
        if control.kind == QueueKind::Aql {
            // It may be removed meanwhile.
            let _ = contain(&mut port, |port| Aql::failed(port, &error));
        }
        shared.vmid_of(&control).park_while(|| !control.removed.load(SeqCst));
    }
}
