// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory whose page faults a thread of the process serves (userfaultfd): a GPU gets from it what a
//! processor would.
//!
//! A calling thread waits for that thread, and can be killed meanwhile. What the driver does on
//! its own, for a fault of the GPU, waits for nobody: such an access fails.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vkfd_client::{GpuVa, Location, RegisterOptions, SvmAccess, SvmSet, UserptrRange, PAGE};

use super::device_stage::{expect_resident, spec, Kind};
use crate::memory::{pattern, wrong_page, Memory};
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};

const PAGES: u64 = 16;

/// Serves the faults of `memory` with the pattern of `seed` while `f` runs, which is given the
/// number of pages served so far.
fn served(memory: &Memory, seed: u64, f: impl FnOnce(&AtomicU64) -> Result<(), Stop>) -> Result<(), Stop> {
    served_when(memory.whole(), &AtomicBool::new(true), |page| pattern(page, seed), |count, _| f(count))
}

/// Serves the faults of `memory` while `f` runs, but only while `open`. A page, counted from the
/// first, gets `contents` of its number. `f` is given the number of pages served so far, and of
/// those that have been asked for.
fn served_when(
    memory: UserptrRange,
    open: &AtomicBool,
    contents: impl Fn(u64) -> Vec<u8> + Sync,
    f: impl FnOnce(&AtomicU64, &AtomicU64) -> Result<(), Stop>,
) -> Result<(), Stop> {
    const API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
    const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
    const COPY: libc::Ioctl = 0xc028_aa03_u32 as libc::Ioctl;
    const MISSING: u64 = 1;
    const PAGE_FAULT: u8 = 0x12;

    fn request<const N: usize>(fd: &OwnedFd, command: libc::Ioctl, mut words: [u64; N]) -> io::Result<()> {
        // SAFETY: the structure of the command has these words.
        match unsafe { libc::ioctl(fd.as_raw_fd(), command, &raw mut words) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    // SAFETY: no preconditions.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(Stop::Skip(format!("userfaultfd: {}", io::Error::last_os_error())));
    }
    // SAFETY: a new descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) };
    request(&fd, API, [0xaa, 0, 0])?;
    request(&fd, REGISTER, [memory.start, memory.size, MISSING, 0])?;
    let (stop, count, asked) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                let mut message = [0_u64; 4];
                // SAFETY: one descriptor to poll; room for a message.
                let read = unsafe {
                    libc::poll(&raw mut poll, 1, 10);
                    libc::read(fd.as_raw_fd(), message.as_mut_ptr().cast(), size_of_val(&message))
                };
                if read < 0 || message[0].to_ne_bytes()[0] != PAGE_FAULT {
                    continue;
                }
                let at = message[2] / PAGE * PAGE;
                let bytes = contents((at - memory.start) / PAGE);
                asked.fetch_add(1, Ordering::SeqCst);
                while !open.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Before the waiting thread can continue.
                count.fetch_add(1, Ordering::SeqCst);
                request(&fd, COPY, [at, bytes.as_ptr().expose_provenance() as u64, PAGE, 0, 0])?;
            }
            Ok::<(), io::Error>(())
        });
        let result = f(&count, &asked);
        open.store(true, Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
        server.join().map_err(|_| anyhow::anyhow!("the thread that serves faults"))??;
        result
    })
}

/// The GPU sees the pattern of `seed` in pages of SVM memory.
fn gpu_sees(world: &World, memory: &Memory, first: u64, pages: u64, seed: u64) -> Result<(), Stop> {
    let seen = world.read_gpu(GpuVa(memory.whole().start + first * PAGE), pages * PAGE)?;
    ensure_eq!(wrong_page(&seen, first..first + pages, seed), None, "a page that the GPU sees");
    Ok(())
}

/// SVM memory and a registration, XNACK off: the call has every page served. Then they move to the
/// GPU's memory.
pub(super) fn of_a_call() -> Result<(), Stop> {
    for kind in [Kind::Coherent, Kind::Private] {
        let world = World::new(spec(kind)?)?;
        expect_resident(&world, 0)?;
        let memory = Memory::anonymous(PAGES * PAGE)?;
        served(&memory, 5, |count| {
            // What nobody has touched is the serving thread's business, and does not become zeroes.
            ensure_eq!(world.client().move_to_gpu(memory.whole(), world.gpu(0))?.moved, 0);
            ensure_eq!(count.load(Ordering::SeqCst), 0);
            let access = [SvmSet::Access(world.gpu(0), SvmAccess::Migrate)];
            // SAFETY: no reference to the memory is ever made.
            unsafe { world.client().svm_set(memory.whole(), &access)? };
            ensure_eq!(count.load(Ordering::SeqCst), PAGES);
            gpu_sees(&world, &memory, 0, PAGES, 5)?;
            world.client().prefetch(memory.whole(), Location::Gpu(world.gpu(0)))?;
            expect_resident(&world, PAGES)?;
            gpu_sees(&world, &memory, 0, PAGES, 5)?;
            ensure_eq!(memory.find_wrong(0..PAGES, 5), None);
            Ok(())
        })?;
        let memory = Memory::anonymous(PAGES * PAGE)?;
        served(&memory, 6, |count| {
            let ranges = [memory.range(0, 4 * PAGE), memory.range(8 * PAGE, 8 * PAGE)];
            // SAFETY: no reference to the memory is ever made.
            let batch = unsafe { world.client().register_ranges(&ranges, &RegisterOptions::default()) }?;
            ensure_eq!(count.load(Ordering::SeqCst), 12);
            let seen = world.read_gpu(batch.gpu_va(), batch.len())?;
            ensure_eq!(wrong_page(&seen, (0..4).chain(8..16), 6), None);
            Ok(())
        })?;
    }
    Ok(())
}

/// XNACK on: a fault of the GPU's waits for no thread of a process. What the CPU has had served the
/// GPU uses.
pub(super) fn of_the_gpu() -> Result<(), Stop> {
    let world = World::new(WorldSpec { xnack: true, ..spec(Kind::Coherent)? })?;
    let memory = Memory::anonymous(PAGES * PAGE)?;
    served(&memory, 7, |count| {
        ensure!(gpu_sees(&world, &memory, 0, PAGES, 7).is_err(), "the driver has waited for a process");
        ensure_eq!(count.load(Ordering::SeqCst), 0);
        ensure_eq!(memory.find_wrong(0..PAGES, 7), None);
        ensure_eq!(count.load(Ordering::SeqCst), PAGES);
        gpu_sees(&world, &memory, 0, PAGES, 7)
    })
}

/// A call waits for a page of its memory and holds the block of 2 MiB around it. Its memory goes
/// meanwhile, and another thread registers memory of the same 2 MiB. The second call's registration
/// stays when the first call continues.
pub(super) fn beside_a_call_that_waits() -> Result<(), Stop> {
    let world = World::new(spec(Kind::Coherent)?)?;
    let gpu = world.gpu(0);
    let access = [SvmSet::Access(gpu, SvmAccess::Migrate)];
    for round in 0..20 {
        let memory = Memory::anonymous(3 * 512 * PAGE)?;
        // The first whole 2 MiB.
        let block = (512 - memory.whole().start / PAGE % 512) % 512;
        let (waits, goes, other) = (block + 16, block, block + 256);
        memory.fill_pages(goes..goes + 16, 5);
        memory.fill_pages(other..other + 8, 6);
        let client = world.client();
        let register = |first, pages| {
            // SAFETY: no reference to the memory is ever made.
            unsafe { client.svm_set(memory.range(first * PAGE, pages * PAGE), &access) }
        };
        register(goes, 16)?;
        let entry = || -> Result<u64, Stop> {
            let va = GpuVa(memory.range(other * PAGE, PAGE).start);
            Ok(client.ptes(gpu, va, 1)?.first().copied().unwrap_or(0))
        };
        let open = AtomicBool::new(false);
        served_when(
            memory.range(waits * PAGE, PAGE),
            &open,
            |_| pattern(waits, 7),
            |_, asked| {
                std::thread::scope(|scope| {
                    let waiting = scope.spawn(|| register(waits, 1));
                    while asked.load(Ordering::SeqCst) == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let second = scope.spawn(|| register(other, 8));
                    std::thread::sleep(Duration::from_micros(round * 100));
                    memory.unmap(goes * PAGE, 16 * PAGE)?;
                    open.store(true, Ordering::SeqCst);
                    let both = [waiting.join(), second.join()];
                    for done in both {
                        done.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
                    }
                    Ok::<_, Stop>(())
                })
            },
        )?;
        world.until("the process is restored", |info| info.evicted == 0)?;
        ensure!(entry()? & 1 != 0, "round {round}: memory that nobody has touched has no entry");
        gpu_sees(&world, &memory, other, 8, 6)?;
        gpu_sees(&world, &memory, waits, 1, 7)?;
        memory.unmap(other * PAGE, 8 * PAGE)?;
        ensure!(entry()? & 1 == 0, "round {round}: memory was unmapped, and its entry is there");
    }
    Ok(())
}
