// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Others that use pages in a GPU's memory: children, devices that do I/O, other processes, pipes;
//! and a thread that takes the pages away.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vkfd_client::{Errno, PAGE};

use super::client_process::{ClientProcess, Scenario};
use super::device_stage::{count, expect_resident, moved, spec, DeviceStage, Kind};
use super::fork::{pipe, Forked};
use super::{pages, swap};
use crate::coherence::batch::FIRST;
use crate::memory::{pattern, Memory};
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};

/// Pages of memory that is no batch.
const PAGES: u64 = 64;
const MIB: u64 = 1 << 20;

const BOTH: [Kind; 2] = [Kind::Coherent, Kind::Private];

/// Does `use_it`, which must move nothing.
fn in_place(world: &World, memory: &Memory, use_it: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
    let (before, frames) = (count(world)?, pages::frames(memory)?);
    use_it()?;
    ensure_eq!(pages::frames(memory)?, frames, "frames of pages that were only used");
    ensure_eq!(count(world)?, before, "what was moved by use");
    Ok(())
}

fn bytes(seed: u64) -> Vec<u8> {
    (0..PAGES).flat_map(|page| pattern(page, seed)).collect()
}

fn done(result: isize, wanted: u64, what: &str) -> Result<(), Stop> {
    if result < 0 {
        bail!("{what}: {}", io::Error::last_os_error());
    }
    ensure_eq!(u64::try_from(result)?, wanted, "bytes of {what}");
    Ok(())
}

/// Parent, child and GPU write after a fork with everything in the GPU's memory: each sees its own.
pub(super) fn forked() -> Result<(), Stop> {
    for kind in BOTH {
        let device = DeviceStage::moved(spec(kind)?, 128, 4)?;
        let memory = device.memory();
        let all = 0..memory.pages();
        let child = |number: u32| match number {
            0 | 1 => memory.find_wrong(all.clone(), FIRST).is_none(),
            2 => {
                memory.fill(100);
                true
            }
            _ => memory.find_wrong(all.clone(), 100).is_none(),
        };
        let before = count(device.world())?;
        // SAFETY: looking at memory and writing to it neither allocates nor locks.
        let forked = unsafe { Forked::new(child)? };
        ensure!(forked.step()?, "{kind:?}: the child sees something else");
        if kind == Kind::Coherent {
            ensure_eq!(count(device.world())?, before, "what was moved by a child that reads");
        }
        device.stage.gpu_sees(FIRST)?;
        for range in (0..device.stage.batch.ranges.len()).step_by(4) {
            device.stage.batch.write_from_gpu(device.world(), range, 50)?;
        }
        ensure!(forked.step()?, "{kind:?}: the child sees what GPU and parent have written");
        device.stage.exchange(2)?;
        ensure!(forked.step()?);
        device.stage.exchange(4)?;
        ensure!(forked.step()?, "{kind:?}: the child does not see what it has written itself");
        drop(forked);
        device.stage.gpu_sees(4)?;
        device.stage.exchange(6)?;
        device.move_to_system(count(device.world())?.resident)?;
        expect_resident(device.world(), 0)?;
        device.stage.gpu_sees(6)?;
    }
    Ok(())
}

/// A compressed RAM disk of its own. Removed on drop.
struct Disk {
    number: u32,
    file: Option<File>,
}

const ZRAM: &str = "/sys/class/zram-control";

impl Disk {
    fn new() -> Result<Self, Stop> {
        let number = fs::read_to_string(format!("{ZRAM}/hot_add"));
        let number = number.map_err(|e| Stop::Skip(format!("{ZRAM}: {e}: a kernel without CONFIG_ZRAM?")))?;
        let mut disk = Self { number: number.trim().parse()?, file: None };
        fs::write(format!("/sys/block/zram{}/disksize", disk.number), (PAGES * PAGE).to_string())?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC);
        disk.file = Some(options.open(format!("/dev/zram{}", disk.number))?);
        Ok(disk)
    }

    /// Reads from the disk into `memory`, or the other way round, without a copy in between.
    fn transfer(&self, memory: &Memory, write: bool) -> Result<(), Stop> {
        let Some(file) = &self.file else { bail!("the disk is not open") };
        let (fd, at, bytes) = (file.as_raw_fd(), memory.at(0), usize::try_from(PAGES * PAGE)?);
        // SAFETY: the memory is mapped, and there is no reference to it.
        let done_bytes = unsafe {
            if write {
                libc::pwrite(fd, at.cast(), bytes, 0)
            } else {
                libc::pread(fd, at.cast(), bytes, 0)
            }
        };
        done(done_bytes, PAGES * PAGE, "direct I/O")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.file = None;
        // What cannot be removed is gone with the guest.
        let _ = fs::write(format!("{ZRAM}/hot_remove"), self.number.to_string());
    }
}

/// A disk reads and writes the GPU's memory.
pub(super) fn direct_io() -> Result<(), Stop> {
    let disk = Disk::new()?;
    let (world, memory) = moved(Kind::Coherent, PAGES)?;
    in_place(&world, &memory, || {
        disk.transfer(&memory, true)?;
        memory.fill(2);
        disk.transfer(&memory, false)?;
        ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None, "a page that the disk has brought back");
        Ok(())
    })?;
    // A read through the CPU's page tables shows the bytes that the disk got from the GPU's memory.
    let mut seen = vec![0; usize::try_from(PAGES * PAGE)?];
    File::open(format!("/dev/zram{}", disk.number))?.read_exact_at(&mut seen, 0)?;
    ensure!(seen == bytes(FIRST), "the disk has something else");
    // The same with memory that comes back when it is touched.
    drop((memory, world));
    let (world, memory) = moved(Kind::Private, PAGES)?;
    disk.transfer(&memory, true)?;
    expect_resident(&world, 0)?;
    memory.fill(3);
    ensure_eq!(world.client().move_to_gpu(memory.whole(), world.gpu(0))?.moved, PAGES);
    disk.transfer(&memory, false)?;
    ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None, "a page that the disk has brought back");
    Ok(())
}

/// Another process's memory in the GPU's is read, and one's own written, by process_vm_readv and
/// process_vm_writev.
pub(super) fn other_processes() -> Result<(), Stop> {
    let (world, memory) = moved(Kind::Coherent, PAGES)?;
    let size = usize::try_from(PAGES * PAGE)?;
    let there = libc::iovec { iov_base: memory.at(0).cast(), iov_len: size };
    // SAFETY: a child that does nothing.
    let child = unsafe { Forked::new(|_| true)? };
    in_place(&world, &memory, || {
        let mut seen = vec![0_u8; size];
        let here = libc::iovec { iov_base: seen.as_mut_ptr().cast(), iov_len: size };
        // SAFETY: the buffer is as long as said; the child has the memory at the same address.
        let read = unsafe { libc::process_vm_readv(child.pid(), &raw const here, 1, &raw const there, 1, 0) };
        done(read, PAGES * PAGE, "process_vm_readv")?;
        ensure!(seen == bytes(FIRST), "the child's memory has something else");
        Ok(())
    })?;
    drop(child);
    // Now nobody else has the pages, so that writing makes no copies of them.
    in_place(&world, &memory, || {
        let mut new = bytes(2);
        let here = libc::iovec { iov_base: new.as_mut_ptr().cast(), iov_len: size };
        // SAFETY: the buffer is as long as said; the memory is this process's, and there is no
        // reference to it.
        let written = unsafe { libc::process_vm_writev(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
        done(written, PAGES * PAGE, "process_vm_writev")?;
        ensure_eq!(memory.find_wrong(0..PAGES, 2), None);
        Ok(())
    })
}

/// A pipe holds pages in the GPU's memory: they stay until it has been read.
pub(super) fn held_by_a_pipe() -> Result<(), Stop> {
    const HELD: u64 = 8;
    let (world, memory) = moved(Kind::Coherent, PAGES)?;
    let (out, into) = pipe()?;
    let size = usize::try_from(HELD * PAGE)?;
    let held = libc::iovec { iov_base: memory.at(0).cast(), iov_len: size };
    in_place(&world, &memory, || {
        // SAFETY: the memory is mapped.
        done(unsafe { libc::vmsplice(into.as_raw_fd(), &raw const held, 1, 0) }, HELD * PAGE, "vmsplice")
    })?;
    let back = world.client().move_to_system(memory.whole(), world.gpu(0))?;
    ensure_eq!(back.moved, PAGES - HELD, "pages moved that nobody holds");
    expect_resident(&world, HELD)?;
    ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None);
    let mut seen = vec![0_u8; size];
    // SAFETY: the buffer is as long as said.
    done(unsafe { libc::read(out.as_raw_fd(), seen.as_mut_ptr().cast(), size) }, HELD * PAGE, "the pipe")?;
    ensure!(seen[..] == bytes(FIRST)[..size], "the pipe has something else");
    ensure_eq!(world.client().move_to_system(memory.whole(), world.gpu(0))?.moved, HELD);
    expect_resident(&world, 0)?;
    ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None);
    Ok(())
}

/// A device that pins memory for long (without page faults) gets it in system memory.
pub(super) fn pinned_for_long() -> Result<(), Stop> {
    for kind in BOTH {
        let (world, memory) = moved(kind, PAGES)?;
        world.client().measure_pin(&[memory.range(0, PAGES / 2 * PAGE)])?;
        expect_resident(&world, PAGES / 2)?;
        ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None);
    }
    Ok(())
}

/// Pages in swap stay there, and move when they have come back.
pub(super) fn swapped() -> Result<(), Stop> {
    for kind in BOTH {
        let world = World::new(spec(kind)?)?;
        expect_resident(&world, 0)?;
        let memory = Memory::anonymous(PAGES * PAGE)?;
        memory.fill(FIRST);
        memory.page_out(0, PAGES / 2 * PAGE)?;
        let out = pages::swapped(&memory)? as u64;
        if out == 0 {
            return Err(Stop::Skip("MADV_PAGEOUT swaps nothing out: no swap?".into()));
        }
        ensure_eq!(world.client().move_to_gpu(memory.whole(), world.gpu(0))?.moved, PAGES - out);
        ensure_eq!(pages::swapped(&memory)? as u64, if kind == Kind::Private { PAGES } else { out });
        ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None);
        world.client().move_to_gpu(memory.whole(), world.gpu(0))?;
        expect_resident(&world, PAGES)?;
        ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None);
    }
    Ok(())
}

/// Under memory pressure what is in the GPU's memory stays there.
pub(super) fn under_pressure() -> Result<(), Stop> {
    swap::bounded("device_under_pressure", 12 * MIB, |cgroup| {
        ensure!(cgroup.read("memory.swap.current")? > 0, "nothing is in swap");
        Ok(())
    })
}

pub(super) fn under_pressure_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let device = DeviceStage::moved(WorldSpec::default(), 256, 4)?;
    let frames = device.frames()?;
    let hog = Memory::anonymous(16 * MIB)?;
    device.stage.beside(FIRST, |work| {
        for seed in 0..2 {
            swap::press(&hog, seed, || Ok(()))?;
            work.more(1)?;
            ensure_eq!(hog.find_wrong(0..hog.pages(), seed), None);
        }
        Ok(())
    })?;
    ensure!(pages::swapped(&hog)? > 0, "nothing is in swap");
    ensure_eq!(device.frames()?, frames, "frames of pages in the GPU's memory");
    device.expect_first()?;
    scenario.say("look")?;
    scenario.await_order("end")
}

/// A client with pages in the GPU's memory is killed.
pub(super) fn killed() -> Result<(), Stop> {
    let world = World::new(spec(Kind::Coherent)?)?;
    expect_resident(&world, 0)?;
    let mut client = ClientProcess::start("device_owner", None)?;
    client.expect("moved")?;
    expect_resident(&world, 1024)?;
    client.kill()?;
    client.killed()?;
    expect_resident(&world, 0)
}

pub(super) fn owner_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let device = DeviceStage::moved(WorldSpec::default(), 256, 4)?;
    device.stage.beside(FIRST, |_| {
        scenario.say("moved")?;
        scenario.await_order("never")
    })
}

/// The driver is unloaded under a process that still has pages in the GPU's memory.
pub(super) fn unloaded() -> Result<(), Stop> {
    for kind in BOTH {
        let (world, memory) = moved(kind, PAGES)?;
        let there = pages::frames(&memory)?;
        drop(world);
        let other = World::new(WorldSpec { ram: Some(8 << 30), ..spec(kind)? })?;
        ensure_eq!(count(&other)?.resident, 0, "pages in the memory of a GPU that has a new driver");
        let here = pages::frames(&memory)?;
        ensure!(here.iter().all(Option::is_some), "{kind:?}: pages that are not in memory");
        if kind == Kind::Coherent {
            ensure_eq!(pages::moved(&there, &here) as u64, PAGES);
        }
        ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None);
        ensure_eq!(other.client().move_to_gpu(memory.whole(), other.gpu(0))?.moved, PAGES);
        ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None);
    }
    Ok(())
}

/// The first GPU is taken away from the driver under a client with a registration in its memory.
pub(super) fn unbound() -> Result<(), Stop> {
    const DRIVER: &str = "/sys/bus/pci/drivers/vkfd";
    for kind in BOTH {
        // A driver of its own: afterwards it has a GPU less.
        let spec = WorldSpec { ram: Some(9 << 30), ..spec(kind)? };
        let device = DeviceStage::moved(spec, 128, 4)?;
        let there = pages::frames(device.memory())?;
        let mut devices = Vec::new();
        for entry in fs::read_dir(DRIVER)? {
            devices.push(entry?.file_name().into_string().unwrap_or_default());
        }
        // As they were found; what is no device has another name.
        devices.retain(|name| name.contains(':'));
        devices.sort_unstable();
        let first = devices.first().ok_or_else(|| Stop::Skip(format!("{DRIVER} has no device")))?;
        fs::write(format!("{DRIVER}/unbind"), first)?;
        let here = pages::frames(device.memory())?;
        ensure!(here.iter().all(Option::is_some), "{kind:?}: pages that are not in memory");
        if kind == Kind::Coherent {
            ensure_eq!(pages::moved(&there, &here) as u64, device.pages());
        }
        device.stage.cpu_sees(FIRST)?;
        expect_resident(device.world(), 0)?;
        let again = device.world().client().move_to_gpu(device.memory().whole(), device.world().gpu(0));
        let refused = again.err().and_then(|error| error.errno());
        ensure_eq!(refused, Some(Errno::NODEV), "why nothing moves to a GPU that has gone");
        device.memory().fill(2);
        ensure_eq!(device.memory().find_wrong(0..device.pages(), 2), None);
    }
    // With all GPUs again.
    expect_resident(&World::new(spec(Kind::Coherent)?)?, 0)
}

/// Whatever allocation fails while pages move, they are here or there, whole, and nothing is left
/// behind.
pub(super) fn failing() -> Result<(), Stop> {
    const STEPS: u64 = 10_000;
    for kind in BOTH {
        let world = World::new(spec(kind)?)?;
        expect_resident(&world, 0)?;
        let memory = Memory::anonymous(PAGES * PAGE)?;
        memory.fill(FIRST);
        let (whole, gpu) = (memory.whole(), world.gpu(0));
        let mut failed = 0;
        for back in [false, true] {
            let mut n = 0;
            loop {
                if back {
                    world.client().move_to_gpu(whole, gpu)?;
                }
                let move_them = || match back {
                    false => world.client().move_to_gpu(whole, gpu),
                    true => world.client().move_to_system(whole, gpu),
                };
                let (result, reached) = world.fail_nth(n, move_them)?;
                if let Err(error) = &result {
                    ensure_eq!(error.errno(), Some(Errno::NOMEM), "failure {n}");
                }
                failed += u32::from(result.is_err());
                ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None, "{kind:?}, failure {n}, back: {back}");
                world.client().move_to_system(whole, gpu)?;
                expect_resident(&world, 0)?;
                if !reached {
                    break;
                }
                n += 1;
                ensure!(n < STEPS, "there is no end to it");
            }
            ensure!(n > 0, "nothing can fail");
        }
        ensure!(failed > 0, "nothing has failed");
        ensure_eq!(memory.find_wrong(0..PAGES, FIRST), None);
    }
    Ok(())
}

/// The same with a part of a huge page, which has to be split first: a new one for each failure.
pub(super) fn failing_huge() -> Result<(), Stop> {
    const STEPS: u64 = 10_000;
    const HUGE: u64 = 2 * MIB;
    for kind in BOTH {
        let world = World::new(spec(kind)?)?;
        expect_resident(&world, 0)?;
        let (mut n, mut failed) = (0, 0);
        loop {
            let memory = Memory::anonymous(HUGE)?;
            memory.want_huge_pages()?;
            memory.fill(FIRST);
            let huge = pages::smaps(&memory, "AnonHugePages")?;
            if huge != HUGE {
                return Err(Stop::Skip(format!("only {huge:#x} bytes are in huge pages")));
            }
            let part = memory.range(HUGE / 4, PAGES * PAGE);
            let (result, reached) = world.fail_nth(n, || world.client().move_to_gpu(part, world.gpu(0)))?;
            if let Err(error) = &result {
                ensure_eq!(error.errno(), Some(Errno::NOMEM), "failure {n}");
                failed += 1;
            }
            ensure_eq!(memory.find_wrong(0..memory.pages(), FIRST), None, "{kind:?}, failure {n}");
            world.client().move_to_gpu(part, world.gpu(0))?;
            ensure_eq!(memory.find_wrong(0..memory.pages(), FIRST), None, "{kind:?}, after failure {n}");
            drop(memory);
            expect_resident(&world, 0)?;
            if !reached {
                break;
            }
            n += 1;
            ensure!(n < STEPS, "there is no end to it");
        }
        ensure!(failed > 0, "nothing has failed");
    }
    Ok(())
}

/// Pages move to and fro while the CPU counts in them and the GPU reads others: no write is lost.
pub(super) fn to_and_fro() -> Result<(), Stop> {
    const WRITERS: u64 = 2;
    for kind in BOTH {
        let device = DeviceStage::new(spec(kind)?, 128, 4)?;
        let (client, gpu) = (device.world().client(), device.world().gpu(0));
        let counted = Memory::anonymous(PAGES * PAGE)?;
        let stop = AtomicBool::new(false);
        let rounds: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
        let word = |page: u64, writer: u64| counted.at(page * PAGE + writer * 8).cast::<u64>();
        let (mut there, mut back) = (0, 0);
        device.stage.beside(FIRST, |work| {
            std::thread::scope(|scope| {
                for writer in 0..WRITERS {
                    let (rounds, stop, word) = (&rounds, &stop, &word);
                    let writer_rounds = &rounds[usize::try_from(writer)?];
                    scope.spawn(move || {
                        while !stop.load(Ordering::Relaxed) {
                            for page in 0..PAGES {
                                // SAFETY: inside the mapping; the word is this thread's own, and
                                // accessed without a reference.
                                unsafe { word(page, writer).write_volatile(word(page, writer).read_volatile() + 1) };
                            }
                            writer_rounds.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                let mut run = || -> Result<(), Stop> {
                    for _ in 0..30 {
                        for range in [counted.whole(), device.memory().whole()] {
                            there += client.move_to_gpu(range, gpu)?.moved;
                        }
                        for range in [device.memory().whole(), counted.whole()] {
                            back += client.move_to_system(range, gpu)?.moved;
                        }
                    }
                    work.more(1)
                };
                let result = run();
                stop.store(true, Ordering::Relaxed);
                result
            })
        })?;
        ensure!(there >= 10 * PAGES && back > 0, "only {there} pages moved there and {back} back");
        for (writer, rounds) in (0..).zip(&rounds) {
            let rounds = rounds.load(Ordering::Relaxed);
            for page in 0..PAGES {
                // SAFETY: inside the mapping.
                let value = unsafe { word(page, writer).read_volatile() };
                ensure_eq!(value, rounds, "{kind:?}: what writer {writer} has counted in page {page}");
            }
            ensure!(rounds > 0, "writer {writer} has done nothing");
        }
        device.expect_first()?;
        device.stage.exchange(2)?;
    }
    Ok(())
}

/// What is in one GPU's memory another GPU uses there.
pub(super) fn peer() -> Result<(), Stop> {
    for kind in BOTH {
        let device = DeviceStage::moved(WorldSpec { gpus: 2, ..spec(kind)? }, 64, 4)?;
        let batch = &device.stage.batch;
        let before = count(device.world())?;
        for range in 0..batch.ranges.len() {
            let seen = device.world().with_engine(1, |gpu| gpu.read(batch.va(range), batch.range_bytes()))?;
            batch.compare(range, &seen, FIRST)?;
        }
        let new: Vec<u8> = batch.pages(0).flat_map(|page| pattern(page, 9)).collect();
        device.world().with_engine(1, |gpu| gpu.write(batch.va(0), &new))?;
        batch.expect(device.world(), 0, 9)?;
        ensure_eq!(count(device.world())?, before, "what was moved by another GPU's access");
        ensure_eq!(device.memory().find_wrong(batch.pages(0), 9), None);
    }
    Ok(())
}
