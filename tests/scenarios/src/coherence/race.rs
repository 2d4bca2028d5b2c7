// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Invalidations at the same time as everything else. At any time, the GPU may see every value that
//! the CPU could have seen; at the end, exactly the CPU's.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vkfd_client::uapi::batch::{AllocMemoryOfGpuBatchArgs, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_client::uapi::memory::{ALLOC_MEM_FLAGS_NO_SUBSTITUTE, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::vkfd::{LastErrorArgs, LAST_ERROR, REASON_DEADLINE};
use vkfd_client::{AllocOptions, Buffer, ClientError, CpuVa, Errno, GpuSet, RegisterOptions, PAGE};

use super::batch::{Batch, FIRST, RANGE_PAGES};
use crate::engine::Engine;
use crate::memory::{Layout, Memory};
use crate::verdict::Stop;
use crate::world::{Seen, World, WorldSpec};

/// The time after which a race that should have been seen was not.
const LIMIT: Duration = Duration::from_secs(300);

/// A storm's calls without progress of the work after which its pauses double: a slow or busy
/// machine must get its turn, too.
const PATIENCE: u64 = 256;

/// What storm and work know of each other.
#[derive(Default)]
struct Weather {
    stop: AtomicBool,
    /// Calls of all storms.
    calls: AtomicU64,
    /// Calls at the work's last progress.
    seen: AtomicU64,
}

impl Weather {
    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The work got something done.
    fn progress(&self) {
        self.seen.store(self.calls(), Ordering::Relaxed);
    }

    fn pause(&self, least: Duration) -> Duration {
        let stalled = self.calls().saturating_sub(self.seen.load(Ordering::Relaxed)) / PATIENCE;
        least * (1 << stalled.min(8))
    }
}

/// Runs `work` while other threads call each of `storms` again and again, with the number of the
/// call, and pause for at least `least` in between.
fn during<R>(
    storms: &[&(dyn Fn(u64) -> io::Result<()> + Sync)],
    least: Duration,
    work: impl FnOnce(&Weather) -> Result<R, Stop>,
) -> Result<R, Stop> {
    let weather = Weather::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = storms
            .iter()
            .map(|storm| {
                scope.spawn(|| -> io::Result<()> {
                    let mut n = 0;
                    while !weather.stop.load(Ordering::Relaxed) {
                        storm(n)?;
                        weather.calls.fetch_add(1, Ordering::Relaxed);
                        n += 1;
                        if !least.is_zero() {
                            std::thread::sleep(weather.pause(least));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        let result = work(&weather);
        weather.stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a storm panicked"))??;
        }
        result
    })
}

/// Registers in a storm. On a machine so slow that none of the driver's passes comes between two
/// invalidations a call fails at its deadline, as it may; the storm abates meanwhile.
fn registered(mut register: impl FnMut() -> vkfd_client::Result<Buffer>) -> Result<Buffer, Stop> {
    let start = Instant::now();
    loop {
        match register() {
            Err(error) if error.errno() == Some(Errno::AGAIN) && start.elapsed() < LIMIT => {}
            done => return Ok(done?),
        }
    }
}

/// A range is discarded in a loop while 4,096 ranges are registered: it succeeds, and what is
/// registered is right.
pub(super) fn invalidated_while_registered() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Discard)?;
    const N: u64 = 4096;
    let memory = Memory::anonymous(N * RANGE_PAGES * PAGE)?;
    let ranges = memory.scatter(N, RANGE_PAGES * PAGE, Layout::Shuffled);
    let victim = ranges[2000].start - memory.whole().start;
    let start = Instant::now();
    let mut raced = 0;
    while raced < 3 {
        ensure!(start.elapsed() < LIMIT, "no registration met an invalidation");
        memory.fill(FIRST);
        let retries = world.client().snapshot()?.register_retries;
        // SAFETY: no reference to the memory is ever made.
        let register = || unsafe { world.client().register_ranges(&ranges, &RegisterOptions::default()) };
        let discard = |_| memory.discard(victim, RANGE_PAGES * PAGE);
        // With pauses: memory that is discarded without any can never be registered, that is the
        // next scenario.
        let buffer = during(&[&discard], Duration::from_micros(100), |weather| {
            let seen = weather.calls();
            while weather.calls() == seen {
                std::thread::yield_now();
            }
            weather.progress();
            registered(register)
        })?;
        if world.client().snapshot()?.register_retries > retries {
            raced += 1;
        }
        memory.fill_pages(victim / PAGE..victim / PAGE + RANGE_PAGES, FIRST);
        world.settle()?;
        let seen = world.read_gpu(buffer.gpu_va(), buffer.len())?;
        let pages = ranges.iter().flat_map(|range| {
            let first = (range.start - memory.whole().start) / PAGE;
            first..first + RANGE_PAGES
        });
        ensure_eq!(crate::memory::wrong_page(&seen, pages, FIRST), None);
        buffer.free()?;
    }
    Ok(())
}

/// Memory that never holds still: EAGAIN names a range that was hit, and nothing is left behind.
pub(super) fn deadline() -> Result<(), Stop> {
    let spec = WorldSpec { register_deadline: Some(Duration::from_millis(2)), ..WorldSpec::default() };
    let world = World::new(spec)?;
    world.sees(Seen::Discard)?;
    const N: u64 = 512;
    let memory = Memory::anonymous(N * RANGE_PAGES * PAGE)?;
    let ranges = memory.scatter(N, RANGE_PAGES * PAGE, Layout::Adjacent);
    let size = RANGE_PAGES * PAGE;
    // GPU addresses of a buffer that is not there any more.
    let place = world.client().alloc(&AllocOptions { cpu_map: false, ..AllocOptions::gtt(memory.bytes()) })?.gpu_va();
    let flags = ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_NO_SUBSTITUTE;
    let mut args = AllocMemoryOfGpuBatchArgs {
        va_addr: place.0,
        total_size: memory.bytes(),
        ranges_ptr: CpuVa::of(ranges.as_ptr()).0,
        num_ranges: u32::try_from(N)?,
        gpu_id: world.gpu(0).0,
        flags,
        ..AllocMemoryOfGpuBatchArgs::zeroed()
    };
    let before = world.client().snapshot()?;
    let storms: [&(dyn Fn(u64) -> io::Result<()> + Sync); 2] =
        [&|_| memory.discard(100 * size, 100 * size), &|_| memory.discard(300 * size, size)];
    let last = during(&storms, Duration::ZERO, |_| {
        let start = Instant::now();
        loop {
            ensure!(start.elapsed() < LIMIT, "the registration always succeeds");
            // SAFETY: the arguments are the command's; no reference to the memory is ever made.
            let result = unsafe { world.client().raw_ioctl(ALLOC_MEMORY_OF_GPU_BATCH, &mut args) };
            if result.is_ok() {
                let mut free = vkfd_client::uapi::memory::FreeMemoryOfGpuArgs { handle: args.handle };
                // SAFETY: frees what was made just now, which nobody uses.
                unsafe { world.client().raw_ioctl(vkfd_client::uapi::command::FREE_MEMORY_OF_GPU, &mut free)? };
                continue;
            }
            ensure_eq!(result, Err(Errno::AGAIN));
            let mut last = LastErrorArgs::zeroed();
            // SAFETY: the argument is the command's and has no pointers.
            unsafe { world.client().raw_ioctl(LAST_ERROR, &mut last)? };
            return Ok(last);
        }
    })?;
    ensure_eq!((last.reason, last.has_index), (REASON_DEADLINE, 1));
    ensure!((100..200).contains(&last.index) || last.index == 300, "range {} was left alone", last.index);
    ensure_eq!(last.address, ranges[usize::try_from(last.index)?].start);
    let after = world.client().snapshot()?;
    ensure_eq!((after.bos, after.notifiers, after.userptr_ranges), (before.bos, before.notifiers, 0));
    // In peace it works, through the library, and for the same addresses.
    memory.fill(FIRST);
    let batch = Batch::of(world.client(), memory, ranges, &RegisterOptions::default())?;
    batch.expect_all_but(&world, &[], FIRST)
}

/// Every word says where it belongs and when it was written.
const SEQUENCE_BITS: u32 = 32;

/// Invalidations and writes while the GPU copies everything: each word is one that was legal during
/// the copy.
pub(super) fn copies_in_a_storm() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Unmap)?;
    world.sees(Seen::Discard)?;
    const N: usize = 128;
    let pages = N as u64 * RANGE_PAGES;
    let memory = Memory::anonymous(pages * PAGE)?;
    let ranges = memory.scatter(N as u64, RANGE_PAGES * PAGE, Layout::Reversed);
    let batch = Batch::of(world.client(), memory, ranges, &RegisterOptions::default())?;
    let written: Vec<_> = (0..pages).map(|_| AtomicU64::new(0)).collect();
    let writing: Vec<_> = (0..pages).map(|_| AtomicU64::new(0)).collect();
    // Each storm has its own half of the pages. A page's first half is written before the discard,
    // all of it after.
    let storm = |half: u64, n: u64| {
        let size = RANGE_PAGES * PAGE;
        let range = half * N as u64 / 2 + n * 5 % (N as u64 / 2);
        match n % 4 {
            0 => batch.memory.replace(range * size, size)?,
            _ => batch.memory.discard(range * size, size)?,
        }
        for page in range * RANGE_PAGES..(range + 1) * RANGE_PAGES {
            let at = usize::try_from(page).map_err(io::Error::other)?;
            let sequence = writing[at].fetch_add(1, Ordering::SeqCst) + 1;
            let word = (page << SEQUENCE_BITS | sequence).to_ne_bytes();
            for i in 0..PAGE / 512 {
                batch.memory.write(page * PAGE + i * 512, &word);
            }
            written[at].store(sequence, Ordering::SeqCst);
        }
        Ok(())
    };
    let target = world.client().alloc(&AllocOptions::gtt(pages * PAGE))?;
    let before = world.client().snapshot()?;
    during(&[&|n| storm(0, n), &|n| storm(1, n)], Duration::from_micros(1500), |weather| {
        let start = Instant::now();
        let mut copies = 0;
        while copies < 30 || weather.calls() < 300 {
            ensure!(start.elapsed() < LIMIT, "only {copies} copies in {} invalidations", weather.calls());
            let at_least: Vec<_> = written.iter().map(|n| n.load(Ordering::SeqCst)).collect();
            world.copy(target.gpu_va(), batch.buffer.gpu_va(), target.len())?;
            let at_most: Vec<_> = writing.iter().map(|n| n.load(Ordering::SeqCst)).collect();
            let mut seen = vec![0; usize::try_from(target.len())?];
            target.read(0, &mut seen)?;
            let order = (0..N).flat_map(|range| batch.pages(range));
            for (page, bytes) in order.zip(seen.chunks(usize::try_from(PAGE)?)) {
                let at = usize::try_from(page)?;
                for word in
                    bytes.chunks(512).map(|b| u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
                {
                    let (place, sequence) = (word >> SEQUENCE_BITS, word & ((1 << SEQUENCE_BITS) - 1));
                    let fresh = place == page && (at_least[at]..=at_most[at]).contains(&sequence);
                    // Zero is legal as long as the page may have been discarded meanwhile, and
                    // before it is first written.
                    let zero = word == 0;
                    ensure!(
                        fresh || zero,
                        "copy {copies}, page {page}: word {word:#x}, legal are {}..={}",
                        at_least[at],
                        at_most[at]
                    );
                }
            }
            copies += 1;
            weather.progress();
        }
        Ok(())
    })?;
    ensure!(world.client().snapshot()?.evictions > before.evictions);
    world.settle()?;
    let seen = world.read_gpu(batch.buffer.gpu_va(), batch.buffer.len())?;
    ensure!(seen == crate::memory::gather(&batch.ranges), "GPU and CPU see different memory at the end");
    batch.expect_valid(world.gpu(0))
}

/// Mapping and unmapping in a storm, with the GPU using whatever is mapped.
pub(super) fn mapped_in_a_storm() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Discard)?;
    let batch =
        Batch::with(&world, 256, Layout::Shuffled, &RegisterOptions { map: false, ..RegisterOptions::default() })?;
    let size = batch.range_bytes();
    // The last 64 ranges of the memory are left alone.
    let storm = |n: u64| batch.memory.discard(n * 11 % 192 * size, size);
    let quiet: Vec<usize> = (0..256).filter(|i| batch.offset(*i) >= 192 * size).take(4).collect();
    during(&[&storm, &storm], Duration::from_micros(200), |weather| {
        let start = Instant::now();
        let mut rounds = 0;
        while rounds < 100 || weather.calls() < 500 {
            ensure!(start.elapsed() < LIMIT, "only {rounds} rounds in {} invalidations", weather.calls());
            batch.buffer.map(&GpuSet::All)?;
            if rounds % 10 == 0 {
                for range in &quiet {
                    batch.expect(&world, *range, FIRST)?;
                }
            }
            batch.buffer.unmap(&GpuSet::All)?;
            ensure!(batch.all_ptes(world.gpu(0))?.iter().all(|pte| *pte == 0), "entries are left after UNMAP");
            rounds += 1;
            weather.progress();
        }
        Ok(())
    })?;
    batch.buffer.map(&GpuSet::All)?;
    batch.memory.fill(7);
    world.settle()?;
    batch.expect_valid(world.gpu(0))?;
    batch.expect_all_but(&world, &[], 7)
}

/// Four threads register, use and free buffers over the same memory while it is invalidated.
pub(super) fn registered_and_freed_in_a_storm() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Discard)?;
    const N: u64 = 256;
    let memory = Memory::anonymous(N * RANGE_PAGES * PAGE)?;
    memory.fill(FIRST);
    let size = RANGE_PAGES * PAGE;
    // Odd ranges are stormed at, even ones keep their pattern.
    let storm = |n: u64| memory.discard((n * 13 % (N / 2) * 2 + 1) * size, size);
    let worker = |seed: u64, weather: &Weather| -> Result<u64, Stop> {
        let layouts = [Layout::Adjacent, Layout::Reversed, Layout::Shuffled, Layout::Shuffled];
        let ranges = memory.scatter(N, size, layouts[usize::try_from(seed)?]);
        let mut engine = Engine::new(world.client(), world.gpu(0))?;
        let start = Instant::now();
        let mut rounds = 0;
        while rounds < 25 || weather.calls() < 200 {
            ensure!(start.elapsed() < LIMIT, "only {rounds} rounds in {} invalidations", weather.calls());
            // SAFETY: no reference to the memory is ever made.
            let buffer =
                registered(|| unsafe { world.client().register_ranges(&ranges, &RegisterOptions::default()) })?;
            let even = |range: &vkfd_client::UserptrRange| (range.start - memory.whole().start) / size % 2 == 0;
            let at = ranges.iter().skip(usize::try_from(rounds)? % 200).position(even).unwrap_or(0);
            let at = at + usize::try_from(rounds)? % 200;
            let seen = engine.read(buffer.gpu_va().offset(at as u64 * size), size)?;
            let first = (ranges[at].start - memory.whole().start) / PAGE;
            ensure_eq!(crate::memory::wrong_page(&seen, first.., FIRST), None, "range {at} of buffer {rounds}");
            if rounds % 2 == 0 {
                buffer.free()?;
            }
            rounds += 1;
            weather.progress();
        }
        Ok(rounds)
    };
    during(&[&storm], Duration::from_micros(400), |weather| {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|seed| scope.spawn(move || worker(seed, weather))).collect();
            workers.into_iter().try_for_each(|w| match w.join() {
                Ok(result) => result.map(drop),
                Err(_) => bail!("a worker panicked"),
            })
        })
    })?;
    world.until("the process is restored", |info| info.evicted == 0)?;
    let info = world.client().snapshot()?;
    ensure_eq!((info.userptr_bos, info.notifiers, info.userptr_bytes), (0, 0, 0));
    let batch = Batch::new(&world, 16)?;
    batch.expect_all_but(&world, &[], FIRST)
}

/// A single range longer than the span that is faulted in at a time, hit again and again in the
/// middle of being restored.
pub(super) fn long_range_in_a_storm() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Discard)?;
    let memory = Memory::anonymous(80 << 20)?;
    let whole = memory.whole();
    let pages = memory.pages();
    let probe = [0, 1, 511, 512, 16_383, 16_384, pages - 1];
    let storm = |n: u64| memory.discard(n * 4099 % pages * PAGE, PAGE);
    // SAFETY: no reference to the memory is ever made.
    let register = || unsafe { world.client().register_ranges(&[whole], &RegisterOptions::default()) };
    let buffer = during(&[&storm], Duration::from_millis(7), |weather| {
        let buffer = registered(register)?;
        let start = weather.calls();
        while weather.calls() < start + 50 {
            match world.read_gpu(buffer.gpu_va().offset(probe[2] * PAGE), PAGE) {
                // Under a storm that hits everything, waiting is all that is allowed.
                Ok(_) | Err(ClientError::Timeout(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(buffer)
    })?;
    for page in probe {
        memory.fill_pages(page..page + 1, page + 5);
    }
    world.settle()?;
    for page in probe {
        let seen = world.read_gpu(buffer.gpu_va().offset(page * PAGE), PAGE)?;
        ensure_eq!(crate::memory::wrong_page(&seen, [page], page + 5), None, "page {page}");
    }
    Ok(())
}
