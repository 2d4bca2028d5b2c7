// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The threads that run kernels: compute units, as it were.
//!
//! A queue's own thread runs the work-groups of its launches itself. If there are more than it gets done in [`ALONE`], it puts
//! the launch on a list, from which the GPU's workers help: each takes a group of the next launch on the list, runs it for a turn,
//! gives it back. So small launches wake nobody, large ones use all processors, and several queues share the workers evenly.
//! Workers start when first needed and sleep while the list has nothing for them.
//!
//! The mutex of the list guards it; a worker holds it to choose a launch, and nobody takes another lock meanwhile but the launch's
//! own. A worker reports no error: it notes it in the [`Job`], and the queue's thread, which leaves its launch only when no worker
//! has any of it, halts the queue.
//!
//! With one thread there are no workers, and a queue runs its groups in a fixed order.

use crate::access::{Port, Stop};
use crate::engine::Engine;
use crate::gpu::Shared;
use crate::queue::{Control, QueueId, SignalMask};
use crate::vmid::lock;
use crate::world::{Halt, Surroundings, Tally};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use vkfd_cu::launch::{Cause, Dispatch, Launch, Next, Turn, Workgroup};

/// How long a queue's thread works on a launch before it asks for help.
const ALONE: Duration = Duration::from_micros(20);
/// Instructions that a wave may execute before another one's turn.
const BUDGET: u32 = 20_000;
/// How often all groups may have waited before threads sleep, and how long they do then.
const PATIENCE: u32 = 64;
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

thread_local! {
    /// The queue for which this thread works at the moment, with its GPU's index.
    static SERVES: Cell<Option<(usize, QueueId)>> = const { Cell::new(None) };
}

/// Whether this thread runs a kernel for `queue` of GPU `gpu`: it may not be waited for.
pub(crate) fn serves(gpu: usize, queue: QueueId) -> bool {
    SERVES.get() == Some((gpu, queue))
}

/// Why a launch has failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// For the queue's reasons.
    Stop(Stop),
    /// For the wave's.
    Wave(Cause),
}

/// What failed, and where.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    pub(crate) group: [u32; 3],
    pub(crate) wave: u16,
    pub(crate) pc: u64,
}

/// A launch of a queue.
struct Job {
    /// No other of this GPU has it.
    number: u64,
    control: Arc<Control>,
    dispatch: Dispatch,
    /// Workers may know of it.
    published: AtomicBool,
    failed: Mutex<Option<Failed>>,
    tally: Mutex<Tally>,
    /// How often a thread has given a group back; who found none waits for that.
    returned: Mutex<u64>,
    changed: Condvar,
}

#[derive(Default)]
struct List {
    jobs: Vec<Arc<Job>>,
    /// Which is looked at first.
    turn: usize,
    stop: bool,
}

/// The workers of a GPU.
pub(crate) struct Pool {
    /// Workers there may be.
    most: usize,
    list: Mutex<List>,
    wake: Condvar,
    workers: Mutex<Vec<JoinHandle<()>>>,
    /// Launches so far.
    launches: AtomicU64,
}

/// How a thread waits whose groups all wait for something outside.
#[derive(Default)]
struct Pause {
    rounds: u32,
}

impl Pause {
    fn wait(&mut self) {
        self.rounds += 1;
        match self.rounds.checked_sub(PATIENCE) {
            None => thread::yield_now(),
            Some(more) => thread::sleep((SHORTEST * 2u32.pow(more.min(10) / 2)).min(LONGEST)),
        }
    }
}

impl Job {
    fn note(&self, failed: Failed) {
        // Later ones are consequences, or as good.
        lock(&self.failed).get_or_insert(failed);
    }

    /// Runs `group` for a turn. Whether all groups only wait.
    fn turn(&self, mut group: Box<Workgroup>, port: &mut Port, engine: &mut Engine, patient: bool) -> bool {
        #[cfg(feature = "sabotage")]
        engine.obey(&port.shared.sabotage);
        let mut world = Surroundings::new(port, &self.dispatch, patient);
        engine.begin(self.number);
        let turn = group.run(engine, &mut world, BUDGET);
        let (halt, mut tally) = (world.halt.take(), std::mem::take(&mut world.tally));
        if turn == Turn::Done {
            (tally.groups, tally.waves) = (1, group.waves().len() as u64);
        }
        lock(&self.tally).add(tally);
        let waits = match (turn, halt) {
            (Turn::Done, _) => {
                self.dispatch.finish(*group);
                false
            }
            (Turn::More { waiting }, _) => self.dispatch.park(group, waiting),
            (Turn::Stop { .. }, Some(Halt::Closed)) => self.dispatch.park(group, false),
            (Turn::Stop { .. }, Some(Halt::Ended)) => {
                self.dispatch.stop();
                false
            }
            (Turn::Stop { cause, wave, pc }, halt) => {
                let failure = match halt {
                    Some(Halt::Stop(stop)) => Failure::Stop(stop),
                    _ => Failure::Wave(cause),
                };
                self.note(Failed { failure, group: group.id, wave, pc });
                // The other threads hear of it now and not at the end of their turns.
                let port = &*port;
                self.dispatch.stop();
                port.shared.slots.want_queue(self.control.id);
                false
            }
        };
        *lock(&self.returned) += 1;
        self.changed.notify_all();
        // This thread takes one of them itself.
        if self.published.load(Relaxed) && self.dispatch.idle_groups() > 1 {
            port.shared.pool.wake.notify_all();
        }
        waits
    }
}

impl Pool {
    /// A pool for `threads` threads, queues' own included.
    pub(crate) fn new(threads: usize) -> Pool {
        let (list, workers) = (Mutex::default(), Mutex::default());
        let most = threads.saturating_sub(1).min(crate::vmid::MAX_WORKERS);
        Pool { most, list, wake: Condvar::new(), workers, launches: AtomicU64::new(0) }
    }

    /// Runs a launch that was checked, on the queue's own thread and as many workers as help. Returns when no thread has any of it.
    pub(crate) fn run(port: &mut Port, engine: &mut Engine, launch: Launch) -> (Result<(), Failed>, Tally) {
        let shared = port.shared.clone();
        let job = Arc::new(Job {
            number: shared.pool.launches.fetch_add(1, Relaxed) + 1,
            control: port.control.clone(),
            dispatch: Dispatch::new(launch),
            published: AtomicBool::new(false),
            failed: Mutex::default(),
            tally: Mutex::default(),
            returned: Mutex::new(0),
            changed: Condvar::new(),
        });
        let begun = Instant::now();
        let mut published = shared.pool.most == 0;
        let mut pause = Pause::default();
        loop {
            let returned = *lock(&job.returned);
            match job.dispatch.take() {
                Next::Finished => break,
                Next::Run(group) => {
                    if job.turn(group, port, engine, true) {
                        pause.wait();
                    } else {
                        pause = Pause::default();
                    }
                }
                Next::Wait => {
                    let mut now = lock(&job.returned);
                    while *now == returned {
                        now = job.changed.wait(now).unwrap_or_else(PoisonError::into_inner);
                    }
                }
            }
            if !published && begun.elapsed() > ALONE && job.dispatch.idle_groups() > 1 {
                published = true;
                shared.pool.publish(&shared, &job);
            }
        }
        if published && shared.pool.most > 0 {
            lock(&shared.pool.list).jobs.retain(|other| !Arc::ptr_eq(other, &job));
        }
        let tally = std::mem::take(&mut *lock(&job.tally));
        let failed = lock(&job.failed).take();
        (failed.map_or(Ok(()), Err), tally)
    }

    fn publish(&self, shared: &Arc<Shared>, job: &Arc<Job>) {
        job.published.store(true, Relaxed);
        lock(&self.list).jobs.push(job.clone());
        {
            let mut workers = lock(&self.workers);
            while workers.len() < self.most {
                let (number, shared) = (workers.len(), shared.clone());
                let name = format!("gpu{}-cu-{number}", shared.index);
                let mask = SignalMask::block_asynchronous();
                let spawned = thread::Builder::new().name(name).spawn(move || work(&shared));
                drop(mask);
                match spawned {
                    Ok(worker) => workers.push(worker),
                    Err(error) => {
                        // The queues' own threads get everything done.
                        tracing::warn!(%error, "cannot start a compute thread");
                        break;
                    }
                }
            }
        }
        self.wake.notify_all();
    }

    /// Ends the workers, and waits for them, but for the one that calls.
    pub(crate) fn stop(&self) {
        lock(&self.list).stop = true;
        self.wake.notify_all();
        let workers = std::mem::take(&mut *lock(&self.workers));
        for worker in workers {
            if worker.thread().id() != thread::current().id() && worker.join().is_err() {
                tracing::error!("compute thread panicked");
            }
        }
    }

    /// A launch that wants a thread, and a group of it; waits for one. `None`: it is over.
    fn next(&self) -> Option<(Arc<Job>, Box<Workgroup>)> {
        loop {
            let job = self.choose()?;
            // Made outside of the lock. Another thread may have been faster.
            if let Next::Run(group) = job.dispatch.take() {
                return Some((job, group));
            }
        }
    }

    fn choose(&self) -> Option<Arc<Job>> {
        let mut list = lock(&self.list);
        loop {
            if list.stop {
                return None;
            }
            let count = list.jobs.len();
            for _ in 0..count {
                list.turn = (list.turn + 1) % count;
                let job = list.jobs.get(list.turn).filter(|job| job.dispatch.idle_groups() > 0);
                if let Some(job) = job {
                    return Some(job.clone());
                }
            }
            list = self.wake.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A worker.
fn work(shared: &Arc<Shared>) {
    let Some(slot) = shared.slots.claim_worker() else { return };
    let idle = Control::nowhere();
    let mut port = Port::new(shared.clone(), idle.clone(), slot);
    let mut engine = Engine::new(shared.config.target, shared.config.reference);
    let mut pause = Pause::default();
    while let Some((job, group)) = shared.pool.next() {
        SERVES.set(Some((shared.index, job.control.id)));
        port.bind(&job.control);
        let waits = job.turn(group, &mut port, &mut engine, false);
        // Nothing of a queue's is kept when its launch is over.
        port.bind(&idle);
        SERVES.set(None);
        drop(job);
        if waits {
            pause.wait();
        } else {
            pause = Pause::default();
        }
    }
}
