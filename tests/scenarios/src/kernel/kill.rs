// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Clients that are killed: in the middle of a registration, of a restore, with their queues at
//! work, and for want of memory.
//!
//! Afterwards nothing of them is left (what may be registered, and VRAM), another client's work has
//! gone on, and their pages belong to their next owner.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use vkfd_client::{AllocOptions, CopyQueue, RegisterOptions, PAGE};

use super::cgroup::Cgroup;
use super::client_process::{ClientProcess, Scenario};
use super::stage::Stage;
use crate::coherence::batch::FIRST;
use crate::limits::available;
use crate::memory::{Layout, Memory};
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};

const RANGES: u64 = 4096;
const PAGES: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(300);

/// Does `event`, in which clients are killed, while another client's work goes on; the check that
/// `event` is given fails when something is left of them.
fn beside_a_bystander(event: impl FnOnce(&dyn Fn() -> Result<(), Stop>) -> Result<(), Stop>) -> Result<(), Stop> {
    let stage = Stage::new(super::world_spec()?, 64, 4)?;
    stage.beside(FIRST, |work| {
        let before = room(&stage.world)?;
        event(&|| {
            work.more(1)?;
            let start = Instant::now();
            // The last of it is given back by a worker.
            loop {
                let now = room(&stage.world)?;
                if now == before {
                    return Ok(());
                }
                ensure!(start.elapsed() < PATIENCE, "room for (registrations, VRAM): {now:?}, before {before:?}");
                std::thread::sleep(Duration::from_millis(2));
            }
        })
    })?;
    stage.exchange(2)
}

/// Bytes that may be registered, and bytes of VRAM.
fn room(world: &World) -> Result<(u64, u64), Stop> {
    let client = world.open()?;
    Ok((client.caps().max_bytes, available(&client, world.gpu(0))?))
}

/// Memory that a killed process has given back does not change under its new owner.
fn expect_stillness() -> Result<(), Stop> {
    let memory = Memory::anonymous(2 * RANGES * PAGES * PAGE)?;
    memory.fill(5);
    std::thread::sleep(Duration::from_millis(20));
    ensure_eq!(memory.find_wrong(0..memory.pages(), 5), None, "a page that changed by itself");
    Ok(())
}

/// Kills clients between `begin` and `end`, each later than the one before, until `wanted` were
/// killed in the middle.
fn kill_between(role: &str, begin: &str, end: &str, wanted: u32) -> Result<(), Stop> {
    beside_a_bystander(|nothing_left| {
        let took = {
            let mut client = ClientProcess::start(role, None)?;
            client.expect(begin)?;
            let start = Instant::now();
            client.expect(end)?;
            start.elapsed()
        };
        let mut between = 0;
        for round in 0..10 * wanted {
            let mut client = ClientProcess::start(role, None)?;
            client.expect(begin)?;
            std::thread::sleep(took * (round % (wanted + 1)) / (wanted + 2));
            client.kill()?;
            let words = client.killed()?;
            expect_stillness()?;
            nothing_left()?;
            between += u32::from(!words.iter().any(|word| word == end));
            if between == wanted {
                return Ok(());
            }
        }
        bail!("only {between} clients were killed between {begin:?} and {end:?}, which takes {took:?}")
    })
}

fn batch(options: &RegisterOptions) -> Result<Stage, Stop> {
    Stage::with(WorldSpec::default(), RANGES, PAGES, Layout::Shuffled, options)
}

/// SIGKILL during a registration.
pub(super) fn during_registration() -> Result<(), Stop> {
    kill_between("registering", "registering", "registered", 4)
}

pub(super) fn registering_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(RANGES * PAGES * PAGE)?;
    let ranges = memory.scatter(RANGES, PAGES * PAGE, Layout::Shuffled);
    scenario.say("registering")?;
    // SAFETY: no reference to the memory is ever made.
    let buffer = unsafe { world.client().register_ranges(&ranges, &RegisterOptions::default())? };
    scenario.say("registered")?;
    scenario.await_order("never")?;
    drop(buffer);
    Ok(())
}

/// SIGKILL during a restore.
pub(super) fn during_restore() -> Result<(), Stop> {
    kill_between("restoring", "evicted", "restored", 4)
}

pub(super) fn restoring_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let stage = batch(&RegisterOptions::default())?;
    let before = stage.world.client().snapshot()?;
    stage.memory().discard(0, stage.memory().bytes())?;
    stage.world.until("the queues are stopped", |info| info.evictions > before.evictions)?;
    scenario.say("evicted")?;
    stage.world.until("the process is restored", |info| info.restores > before.restores)?;
    scenario.say("restored")?;
    scenario.await_order("never")
}

/// Submits much more work than there is time for, says so, and goes on. A process with many threads
/// takes a while to die.
pub(super) fn working_role(scenario: &mut Scenario) -> Result<(), Stop> {
    for _ in 0..64 {
        std::thread::spawn(|| std::thread::sleep(PATIENCE));
    }
    let stage = batch(&RegisterOptions::default())?;
    let world = &stage.world;
    let vram = world.client().alloc(&AllocOptions::vram(world.gpu(0), stage.batch.buffer.len()))?;
    let (here, there, bytes) = (stage.batch.buffer.gpu_va(), vram.gpu_va(), vram.len());
    let mut queue = CopyQueue::new(world.client(), world.gpu(0))?;
    let first = queue.fill(here, 0xdead_beef, bytes)?.submit()?;
    first.wait(PATIENCE)?;
    let mut last = first;
    // Always some seconds ahead.
    for round in 0.. {
        for _ in 0..16 {
            queue.fill(here, round, bytes)?.copy(there, here, bytes).copy(here, there, bytes);
        }
        let next = queue.submit()?;
        if round == 1 {
            scenario.say("working")?;
        }
        if round > 1 {
            last.wait(PATIENCE)?;
        }
        last = next;
    }
    Ok(())
}

/// SIGKILL while queues write to registered memory. The pages are the next owner's at once.
pub(super) fn with_queues_at_work() -> Result<(), Stop> {
    beside_a_bystander(|nothing_left| {
        for round in 0..4 {
            let mut client = ClientProcess::start("working", None)?;
            client.expect("working")?;
            std::thread::sleep(Duration::from_millis(7 * round));
            client.kill()?;
            client.killed()?;
            expect_stillness()?;
            nothing_left()?;
        }
        Ok(())
    })
}

/// As the kernel's OOM reaper does it: the pages are taken from a process that is being killed and
/// has not gone yet. Its invalidations may not sleep.
pub(super) fn reaped() -> Result<(), Stop> {
    const WANTED: u32 = 3;
    beside_a_bystander(|nothing_left| {
        let mut reaped = 0;
        for _ in 0..20 * WANTED {
            let mut client = ClientProcess::start("working", None)?;
            client.expect("working")?;
            reaped += u32::from(kill_and_reap(&mut client)?);
            expect_stillness()?;
            client.killed()?;
            nothing_left()?;
            if reaped == WANTED {
                return Ok(());
            }
        }
        bail!("only {reaped} clients were reaped before they had gone by themselves")
    })
}

/// Whether the pages of the client were taken while it was still there.
fn kill_and_reap(client: &mut ClientProcess) -> Result<bool, Stop> {
    let pid = libc::pid_t::try_from(client.id())?;
    // SAFETY: no pointers. The process has not been waited for, so that the number is its own.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    ensure!(descriptor >= 0, "pidfd_open: {}", io::Error::last_os_error());
    // SAFETY: a new descriptor that nobody else owns.
    let descriptor = unsafe { OwnedFd::from_raw_fd(i32::try_from(descriptor)?) };
    client.kill()?;
    // SAFETY: no pointers.
    if unsafe { libc::syscall(libc::SYS_process_mrelease, descriptor.as_raw_fd(), 0) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS) => Err(Stop::Skip("this kernel has no process_mrelease".into())),
        // It has gone already; or its memory could not be had without waiting, and goes with it.
        Some(libc::ESRCH | libc::EAGAIN) => Ok(false),
        _ => bail!("process_mrelease: {error}"),
    }
}

/// A client exceeds what its cgroup allows and is killed for it, with its queues at work.
pub(super) fn out_of_memory() -> Result<(), Stop> {
    beside_a_bystander(|nothing_left| {
        for mode in ["xnack off", "xnack on"] {
            let cgroup = Cgroup::new(2 * RANGES * PAGES * PAGE)?;
            cgroup.write("memory.swap.max", "0")?;
            let mut client = ClientProcess::start("out_of_memory", Some(&cgroup))?;
            client.tell(mode)?;
            match client.expect("working") {
                Err(Stop::Skip(_)) => continue,
                word => word?,
            };
            let words = client.killed()?;
            ensure!(words.is_empty(), "the client was not killed for want of memory, but said {words:?}");
            ensure!(cgroup.events("oom_kill")? > 0, "the client was killed, but not for want of memory");
            expect_stillness()?;
            nothing_left()?;
        }
        Ok(())
    })
}

pub(super) fn out_of_memory_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let xnack = scenario.order()? == "xnack on";
    let stage = Stage::new(WorldSpec { xnack, ..WorldSpec::default() }, RANGES, PAGES)?;
    stage.beside(FIRST, |_| {
        scenario.say("working")?;
        // Address space only, until it is written to.
        let hog = Memory::anonymous(8 * RANGES * PAGES * PAGE)?;
        hog.fill(1);
        scenario.say("alive")?;
        scenario.await_order("never")
    })
}
