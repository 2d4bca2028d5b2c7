// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Fork: memory is shared until one side writes, and the GPU is one side.
//!
//! What must not happen: that the GPU goes on writing to pages which are the child's as well, or
//! which are only the child's any more.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use vkfd_client::PAGE;

use super::client_process::{ClientProcess, Scenario};
use super::stage::Stage;
use crate::coherence::batch::FIRST;
use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::WorldSpec;

/// A forked process. Ended and collected on drop.
pub(super) struct Forked {
    pid: libc::pid_t,
    /// Each byte is a step that the process may take.
    steps: OwnedFd,
    /// Each byte is the result of a step.
    results: OwnedFd,
}

/// Reading end and writing end.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new descriptors that nobody else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

impl Forked {
    /// Forks. The child calls `step` with 0, 1, 2, ... each time it is told to, and ends when there
    /// is nobody any more to tell it.
    ///
    /// # Safety
    ///
    /// There may be other threads, which the child does not have: `step` must not allocate, and
    /// take no lock.
    pub(super) unsafe fn new(step: impl Fn(u32) -> bool) -> io::Result<Self> {
        let ((told, steps), (results, result)) = (pipe()?, pipe()?);
        // SAFETY: the child only makes system calls and calls `step`.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        if pid == 0 {
            // SAFETY: the descriptors are open and the byte is there; `_exit` runs nothing of this
            // program.
            unsafe {
                libc::close(steps.as_raw_fd());
                let mut byte = 0_u8;
                let mut number = 0;
                while libc::read(told.as_raw_fd(), (&raw mut byte).cast(), 1) == 1 {
                    byte = step(number).into();
                    number += 1;
                    libc::write(result.as_raw_fd(), (&raw const byte).cast(), 1);
                }
                libc::_exit(0);
            }
        }
        Ok(Self { pid, steps, results })
    }

    /// Its process number.
    pub(super) fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// Lets it take its next step: what `step` returned.
    pub(super) fn step(&self) -> io::Result<bool> {
        let mut byte = 0_u8;
        // SAFETY: the descriptors are open and the byte is there.
        let read = unsafe {
            libc::write(self.steps.as_raw_fd(), (&raw const byte).cast(), 1);
            libc::read(self.results.as_raw_fd(), (&raw mut byte).cast(), 1)
        };
        match read {
            1 => Ok(byte == 1),
            0 => Err(io::Error::other("the forked process has ended")),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: a child of this process that has not been waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// The parent is the client. Both write after the fork, and so does the GPU; each sees its own.
pub(super) fn of_a_client() -> Result<(), Stop> {
    let stage = Stage::new(super::world_spec()?, 1024, 1)?;
    let memory = stage.memory();
    let all = 0..memory.pages();
    stage.gpu_sees(FIRST)?;
    let child = |number: u32| match number {
        // First what it was given, whatever parent and GPU have written since; then what it writes
        // itself.
        0 | 1 => memory.find_wrong(all.clone(), FIRST).is_none(),
        2 => {
            memory.fill(100);
            true
        }
        _ => memory.find_wrong(all.clone(), 100).is_none(),
    };
    // SAFETY: looking at memory and writing to it neither allocates nor locks.
    let forked = unsafe { Forked::new(child)? };
    // The GPU writes first: to a page that was shared until then.
    for range in (0..stage.batch.ranges.len()).step_by(4) {
        stage.batch.write_from_gpu(&stage.world, range, 50)?;
    }
    ensure!(forked.step()?, "the child sees what its parent's GPU has written");
    stage.exchange(2)?;
    ensure!(forked.step()?, "the child sees what its parent has written");
    stage.exchange(4)?;
    ensure!(forked.step()?);
    stage.gpu_sees(4)?;
    stage.exchange(6)?;
    ensure!(forked.step()?, "the child does not see what it has written itself");
    drop(forked);
    stage.gpu_sees(6)?;
    stage.exchange(8)?;
    stage.batch.expect_valid(stage.world.gpu(0))
}

/// Forks while the GPU fills the memory again and again: what the child was given does not change
/// any more.
pub(super) fn while_the_gpu_writes() -> Result<(), Stop> {
    let stage = Stage::new(super::world_spec()?, 1024, 1)?;
    let memory = stage.memory();
    let (va, bytes) = (stage.batch.buffer.gpu_va(), stage.batch.buffer.len());
    let sum = || {
        let words = (0..memory.bytes()).step_by(8).map(|at| {
            // SAFETY: inside the memory, which is mapped and to which there is no reference.
            unsafe { memory.at(at).cast::<u64>().read_volatile() }
        });
        words.fold(0_u64, |sum, word| sum.rotate_left(1) ^ word)
    };
    let fills = |engine: &mut crate::engine::Engine, round: u64| {
        for n in 0..16 {
            engine.fill(va, u32::try_from(round * 16 + n + 1)?, bytes)?;
        }
        Ok(())
    };
    stage.beside_work(fills, |work| {
        for _ in 0..4 {
            work.more(1)?;
            let first = std::cell::Cell::new(0);
            let child = |number: u32| {
                if number == 0 {
                    first.set(sum());
                }
                sum() == first.get()
            };
            // SAFETY: looking at memory neither allocates nor locks.
            let forked = unsafe { Forked::new(child)? };
            for round in 0..3 {
                ensure!(forked.step()?, "the child's memory has changed after round {round}");
                work.more(2)?;
            }
        }
        Ok(())
    })?;
    stage.exchange(2)
}

/// The child is the client: it registers memory that it has from its parent, and the GPU writes to
/// it.
pub(super) fn of_a_parent() -> Result<(), Stop> {
    drop(super::world()?);
    ClientProcess::start("fork_of_a_parent", None)?.finish()
}

pub(super) fn of_a_parent_role(_: &mut Scenario) -> Result<(), Stop> {
    let memory = Memory::anonymous(1024 * PAGE)?;
    memory.fill(FIRST);
    // SAFETY: this process has one thread, so that the child is a process like any other.
    match unsafe { libc::fork() } {
        0 => {
            let result = client(memory);
            if let Err(Stop::Fail(error)) = &result {
                eprintln!("the forked client: {error:#}");
            }
            // SAFETY: ends this process; no state of the parent is flushed or dropped.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        child => {
            ensure!(child > 0, "fork: {}", io::Error::last_os_error());
            let mut status = -1;
            // SAFETY: room for the status.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            ensure_eq!(status, 0, "the forked client's status");
            ensure_eq!(
                memory.find_wrong(0..memory.pages(), FIRST),
                None,
                "the parent sees what its child's GPU has written"
            );
            Ok(())
        }
    }
}

fn client(memory: Memory) -> Result<(), Stop> {
    let ranges = memory.scatter(1024, PAGE, crate::memory::Layout::Shuffled);
    let world = crate::world::World::new(WorldSpec::default())?;
    let stage = Stage::of(world, memory, ranges, &vkfd_client::RegisterOptions::default())?;
    stage.gpu_sees(FIRST)?;
    for range in 0..8 {
        stage.batch.write_from_gpu(&stage.world, range, 9)?;
    }
    stage.exchange(2)
}
