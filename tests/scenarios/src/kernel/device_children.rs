// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What only a forked child still has of a GPU's memory: the driver evicts it like any other when
//! it needs the room.
//!
//! The child looks at its memory only afterwards: looking would bring private pages back. So would
//! the parent's driver. Fork protects the memory from writes. With XNACK off a restore maps it for
//! the GPU to write, and that takes private pages from both processes. On an idle machine the
//! parent had let go before the restore came. With XNACK on, nothing is mapped that no GPU asks
//! for.

use std::io;
use std::time::{Duration, Instant};

use vkfd_client::{AllocOptions, Buffer, Location, SvmAccess, SvmSet, PAGE};

use super::client_process::{ClientProcess, Scenario};
use super::device_stage::{expect_resident, spec, Kind};
use super::fork::Forked;
use crate::limits::available;
use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};

const HUGE: u64 = 2 << 20;
const PAGES: u64 = 2 * HUGE / PAGE;
const PATIENCE: Duration = Duration::from_secs(60);

/// How the parent lets go of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Unmaps,
    /// All pages: it gets copies in system memory.
    Writes,
    /// To another address, where it has no range.
    Moves,
}

/// Memory with the pattern of 1, in the first GPU's memory as SVM memory.
fn prefetched(world: &World) -> Result<Memory, Stop> {
    expect_resident(world, 0)?;
    let gpu = world.gpu(0);
    let memory = Memory::anonymous(PAGES * PAGE)?;
    memory.fill(1);
    let list = [SvmSet::Access(gpu, SvmAccess::Migrate), SvmSet::Prefetch(Location::Gpu(gpu))];
    // SAFETY: no reference to the memory is ever made.
    unsafe { world.client().svm_set(memory.whole(), &list)? };
    expect_resident(world, PAGES)?;
    Ok(memory)
}

/// Takes so much VRAM that next to nothing is left for anyone else's.
fn take_all(world: &World) -> Result<Buffer, Stop> {
    let gpu = world.gpu(0);
    // SVM memory counts as available.
    let room = available(world.client(), gpu)? - HUGE / 4;
    // Its page tables are in VRAM, too.
    let bytes = room - room / HUGE * PAGE;
    Ok(world.client().alloc(&AllocOptions { cpu_map: false, ..AllocOptions::vram(gpu, bytes) })?)
}

/// The parent lets go, the child does not, and somebody needs the room.
pub(super) fn left_to_a_child() -> Result<(), Stop> {
    for kind in [Kind::Coherent, Kind::Private] {
        for way in [Way::Unmaps, Way::Writes, Way::Moves] {
            // The touch of a private page takes it back from both.
            if (kind, way) == (Kind::Private, Way::Writes) {
                continue;
            }
            let world = World::new(WorldSpec { xnack: kind == Kind::Private, ..spec(kind)? })?;
            let memory = prefetched(&world)?;
            let child = |_| memory.find_wrong(0..PAGES, 1).is_none();
            // SAFETY: looking at memory neither allocates nor locks.
            let forked = unsafe { Forked::new(child)? };
            let mut elsewhere = None;
            match way {
                Way::Unmaps => memory.unmap(0, PAGES * PAGE)?,
                Way::Writes => memory.fill(2),
                Way::Moves => elsewhere = Some(memory.remap(0, PAGES * PAGE)?),
            }
            expect_resident(&world, PAGES)?;
            let taken = take_all(&world)?;
            expect_resident(&world, 0)?;
            ensure!(forked.step()?, "{kind:?}, the parent {way:?}: the child has lost something");
            if way == Way::Writes {
                ensure_eq!(memory.find_wrong(0..PAGES, 2), None, "what the parent has written");
                let seen = world.read_gpu(vkfd_client::GpuVa(memory.whole().start), 4 * PAGE)?;
                ensure_eq!(crate::memory::wrong_page(&seen, 0..4, 2), None, "what the parent's GPU sees of it");
            }
            if let Some(elsewhere) = &elsewhere {
                ensure_eq!(elsewhere.find_wrong(0..PAGES, 1), None, "what the parent has elsewhere");
            }
            drop((taken, forked, memory, elsewhere));
            expect_resident(&world, 0)?;
        }
    }
    Ok(())
}

/// The same with a parent that has ended, with and without its device's file left to the child.
pub(super) fn orphaned() -> Result<(), Stop> {
    for kind in [Kind::Coherent, Kind::Private] {
        for role in ["device_parent", "device_parent_closing"] {
            let world = World::new(spec(kind)?)?;
            expect_resident(&world, 0)?;
            let mut parent = ClientProcess::start(role, None)?;
            parent.expect("forked")?;
            expect_resident(&world, PAGES)?;
            parent.tell("end")?;
            parent.expect("done")?;
            ended(parent.id())?;
            expect_resident(&world, PAGES)?;
            let taken = take_all(&world)?;
            expect_resident(&world, 0)?;
            parent.tell("look")?;
            parent.expect("right")?;
            drop((taken, parent));
            expect_resident(&world, 0)?;
        }
    }
    Ok(())
}

/// Waits until a process has nothing left but its status.
fn ended(id: u32) -> Result<(), Stop> {
    let start = Instant::now();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')) {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "process {id} does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn parent_role(scenario: &mut Scenario) -> Result<(), Stop> {
    parent(scenario, false)
}

pub(super) fn closing_parent_role(scenario: &mut Scenario) -> Result<(), Stop> {
    parent(scenario, true)
}

fn parent(scenario: &mut Scenario, close: bool) -> Result<(), Stop> {
    let world = World::new(WorldSpec { xnack: true, ..WorldSpec::default() })?;
    let memory = prefetched(&world)?;
    let own = std::process::id();
    // SAFETY: the child makes system calls and looks at memory, which neither allocates nor locks.
    match unsafe { libc::fork() } {
        0 => child(&memory, own, close),
        id => ensure!(id > 0, "fork: {}", io::Error::last_os_error()),
    }
    scenario.say("forked")?;
    scenario.await_order("end")?;
    // Nothing is tidied up: the memory and the device end with the process.
    std::mem::forget((world, memory));
    Ok(())
}

/// When its parent has ended, says what is with the memory when it is asked, until nobody is there
/// to ask.
fn child(memory: &Memory, parent: u32, close: bool) -> ! {
    // SAFETY: system calls with room for their output; `_exit` runs nothing of this program.
    unsafe {
        if close {
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        }
        while u32::try_from(libc::getppid()) == Ok(parent) {
            libc::usleep(1000);
        }
        let mut order = [0_u8; 64];
        while libc::read(0, order.as_mut_ptr().cast(), order.len()) > 0 {
            let word = if memory.find_wrong(0..PAGES, 1).is_none() { c"right\n" } else { c"wrong\n" };
            libc::write(1, word.as_ptr().cast(), word.to_bytes().len());
        }
        libc::_exit(0)
    }
}
