// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The threads that run kernels at work.
//!
//! A queue's own thread runs the work-groups of its launches itself. If there are more than it gets
//! done in [`ALONE`], it puts the launch on the pool's list, from which workers help. So small
//! launches wake nobody, and large ones use all processors. With one thread there are no workers,
//! and a queue runs its groups in a fixed order.

use crate::base::clock;
use crate::base::lock::lock;
use crate::base::queue_error::Stop;
use crate::base::signal_mask::SignalMask;
use crate::kernels::engine::Engine;
use crate::kernels::world::{Halt, Surroundings};
use crate::state::access::Port;
use crate::state::contain::contain;
use crate::state::control::Control;
use crate::state::pool::{self, Failed, Failure, Job, Returned};
use crate::state::shared::Shared;
use crate::state::tally::Tally;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use vkfd_cu::launch::{free_spare, Dispatch, Launch, Next, Schedule, Turn, Units, Workgroup};
use vkfd_rt::thread::Thread;
use vkfd_sabotage::Switch;

/// How long a queue's thread works on a launch before it asks for help.
const ALONE: Duration = Duration::from_micros(20);
/// Instructions of groups that a thread takes at once, and most groups.
const TOGETHER: u64 = 8192;
const MOST: u64 = 64;
/// How long all groups may have waited before threads sleep, and how long they do then. Beside
/// busy threads a yield may take milliseconds, and one that sleeps is woken before those.
const PATIENCE: Duration = Duration::from_micros(200);
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

/// How a thread waits whose groups all wait for something outside.
#[derive(Default)]
struct Pause {
    since: Option<Instant>,
    sleeps: u32,
}

impl Pause {
    /// Nothing to do since so long: how long to sleep, or `None` to yield.
    fn next(&mut self, waited: Duration) -> Option<Duration> {
        if waited < PATIENCE {
            return None;
        }
        let sleep = SHORTEST * 2u32.pow(self.sleeps.min(10) / 2);
        self.sleeps += 1;
        Some(sleep.min(LONGEST))
    }

    fn wait(&mut self) {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        match self.next(waited) {
            None => thread::yield_now(),
            Some(sleep) => thread::sleep(sleep),
        }
    }
}

fn note(job: &Job, failed: Failed) {
    // Later ones are consequences, or as good.
    lock(&job.failed).get_or_insert(failed);
}

/// How many groups more a thread takes that has taken one: such as end soon are run within one
/// access.
fn more(job: &Job) -> usize {
    let each = job.short.load(Relaxed);
    let most = (TOGETHER / each.max(1)).min(MOST);
    usize::try_from(if each == 0 { 1 } else { most }).unwrap_or(1).saturating_sub(1)
}

/// What is to come after a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Group,
    /// All groups only wait.
    Pause,
    /// No group is left.
    End,
}

/// Runs `group` for a turn, and in its place others if they end soon.
fn turn(job: &Job, mut group: Box<Workgroup>, port: &mut Port, engine: &mut Engine, patient: bool) -> After {
    let more = more(job);
    let mut taken = if more > 0 { job.dispatch.take_more(&mut group, more) } else { Vec::new() };
    let count = 1 + taken.len();
    let lost = port.shared.sabotage.has(Switch::LostGroups);
    let ran = contain(port, |port| {
        engine.sabotage(&port.shared.sabotage);
        let mut world = Surroundings::new(port, &job.dispatch, patient);
        engine.begin(job.number);
        let (mut begun, mut waves) = (0, group.waves().len() as u64);
        let next = |group: &mut Workgroup| {
            let Some(taken) = taken.get_mut(begun) else { return false };
            begun += 1;
            if !lost {
                job.dispatch.replace(group, taken);
            }
            waves += group.waves().len() as u64;
            true
        };
        let turn = group.run_all(next, (engine, &mut world), job.dispatch.budget());
        engine.flush();
        (group, taken, (begun, waves), turn, world.halt.take(), std::mem::take(&mut world.tally))
    });
    let (group, mut taken, (begun, waves), turn, halt, mut tally) = match ran {
        Ok(ran) => ran,
        Err(error) => {
            *engine = Engine::new(&port.shared);
            let failure = Failure::Stop(Stop::Error(error));
            fail(job, port, Failed { failure, group: [0; 3], wave: 0, pc: 0 });
            // The others are lost with it.
            (1..count).for_each(|_| job.dispatch.stop());
            tell(job, port);
            return After::Group;
        }
    };
    let is_done = turn == Turn::Done;
    tally.groups = begun as u64 + u64::from(is_done);
    tally.waves = waves - if is_done { 0 } else { group.waves().len() as u64 };
    let short = if tally.groups == count as u64 { tally.instructions / tally.groups } else { 0 };
    job.short.store(short, Relaxed);
    lock(&job.tally).add(tally);
    if count > 1 {
        let left = taken.split_off(begun);
        job.dispatch.finish_all(taken.into_iter());
        job.dispatch.return_all(left.into_iter());
    }
    let park = |group, waiting| if job.dispatch.park(group, waiting) { After::Pause } else { After::Group };
    let next = match (turn, halt) {
        (Turn::Done, _) => {
            if job.dispatch.finish(group) {
                After::End
            } else {
                After::Group
            }
        }
        (Turn::More { waiting }, _) => park(group, waiting),
        (Turn::Stop { .. }, Some(Halt::Closed)) => park(group, false),
        (Turn::Stop { .. }, Some(Halt::Ended)) => {
            job.dispatch.stop();
            After::Group
        }
        (Turn::Stop { cause, wave, pc }, halt) => {
            let failure = match halt {
                Some(Halt::Stop(stop)) => Failure::Stop(stop),
                _ => Failure::Wave(cause),
            };
            fail(job, port, Failed { failure, group: group.id, wave, pc });
            After::Group
        }
    };
    tell(job, port);
    next
}

/// Ends the launch because of one of its groups, which does not go on.
fn fail(job: &Job, port: &Port, failed: Failed) {
    note(job, failed);
    // The other threads notice it now and not at the end of their turns.
    job.dispatch.stop();
    port.shared.slots.want_queue(job.control.id);
}

/// Tells the threads that wait for it that a group was given back.
fn tell(job: &Job, port: &Port) {
    job.returned.tell();
    // This thread takes one of them itself.
    if job.published.load(Relaxed) && job.dispatch.idle_groups() > 1 {
        port.shared.pool.wake();
    }
}

/// A launch that workers and counters of waves may know of. When its thread leaves it, also by a
/// panic, workers start no more of its groups.
struct Listed<'a> {
    shared: &'a Shared,
    job: &'a Arc<Job>,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        *lock(&self.job.control.launch) = None;
        if self.job.published.load(Relaxed) {
            self.shared.pool.withdraw(self.job);
        }
        if std::thread::panicking() {
            self.job.dispatch.cancel();
            self.shared.slots.want_queue(self.job.control.id);
        }
    }
}

/// Runs a launch that was checked, on the queue's own thread and as many workers as help. Returns
/// when no thread has any of it. `begun`: when it began, by [`clock::nanoseconds`].
pub(crate) fn run(
    (port, shared): (&mut Port, &Arc<Shared>),
    engine: &mut Engine,
    launch: Launch,
    begun: u64,
) -> (Result<(), Failed>, Tally) {
    let lone = shared.sabotage.has(Switch::LoneLaunches).then(Arc::default);
    let residency = lone.as_ref().unwrap_or(&shared.residency);
    // A single group is this thread's.
    let mut alone = !shared.pool.has_workers() || launch.groups() <= 1;
    let number = shared.pool.number_of_launch();
    let schedule = if shared.sabotage.has(Switch::UsualOrder) { Schedule::Usual } else { shared.config.schedule };
    let units = if shared.sabotage.has(Switch::OtherUnits) { Units::VEGA10 } else { shared.config.units };
    let mut dispatch = Dispatch::new(launch, units, residency);
    dispatch.set_order(schedule, number);
    let job = Arc::new(Job {
        number,
        control: port.control.clone(),
        dispatch,
        short: AtomicU64::new(0),
        published: AtomicBool::new(false),
        failed: Mutex::default(),
        tally: Mutex::default(),
        returned: Returned::default(),
    });
    *lock(&job.control.launch) = Some(job.clone());
    let listed = Listed { shared, job: &job };
    let mut pause = Pause::default();
    loop {
        let returned = job.returned.times();
        match job.dispatch.take() {
            Next::Finished => break,
            Next::Run(group) => match turn(&job, group, port, engine, true) {
                After::Group => pause = Pause::default(),
                After::Pause => pause.wait(),
                After::End => break,
            },
            Next::Wait => job.returned.wait(returned),
        }
        if !alone && clock::since(begun) > ALONE && job.dispatch.idle_groups() > 1 {
            alone = true;
            shared.pool.publish(&job, |number| start(shared, number));
        }
    }
    drop(listed);
    // Before anybody learns that it has ended.
    if let Some(watch) = &job.dispatch.launch().watch {
        watch.end();
    }
    let tally = std::mem::take(&mut *lock(&job.tally));
    let failed = lock(&job.failed).take();
    (failed.map_or(Ok(()), Err), tally)
}

/// Starts worker number `number`.
fn start(shared: &Arc<Shared>, number: usize) -> io::Result<Thread> {
    let shared = shared.clone();
    let name = format!("gpu{}-cu-{number}", shared.index);
    // Restored when it is dropped.
    let _mask = SignalMask::block_asynchronous();
    vkfd_rt::thread::spawn(&name, move || {
        work(&shared);
        free_spare();
    })
}

/// A worker.
fn work(shared: &Arc<Shared>) {
    let Some(slot) = shared.slots.claim_worker() else { return };
    let idle = Control::nowhere();
    let mut port = Port::new(shared.clone(), idle.clone(), slot);
    let mut engine = Engine::new(shared);
    let mut pause = Pause::default();
    while let Some((job, group)) = shared.pool.next() {
        pool::serve(Some((shared.index, job.control.id)));
        port.bind(&job.control);
        let after = turn(&job, group, &mut port, &mut engine, false);
        // No part of a queue is kept when its launch is over.
        port.bind(&idle);
        pool::serve(None);
        drop(job);
        match after {
            After::Pause => pause.wait(),
            After::Group | After::End => pause = Pause::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_sleeps_after_a_time_however_few_its_yields_were() {
        let mut pause = Pause::default();
        assert_eq!(pause.next(PATIENCE / 2), None);
        // The second yield took as long as a busy processor makes it.
        let sleeps: Vec<Duration> = (0..20).filter_map(|_| pause.next(4 * LONGEST)).collect();
        assert_eq!((sleeps.len(), sleeps[0], sleeps[19]), (20, SHORTEST, LONGEST));
        assert!(sleeps.is_sorted());
    }
}
