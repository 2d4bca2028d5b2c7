// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What happens to memory while it is on a GPU, or on its way there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vkfd_client::{SvmAccess, PAGE};
use vkfd_driver::seams::device_memory::Kind;

use super::{both, Svm, GRANULE};
use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::{Seen, WorldSpec};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "svm_memory_on_a_gpu_is_copied_on_write_after_a_fork",
        about: "Fork with memory in VRAM: parent, child and GPU each write, and see their own.",
        run: || both(copy_on_write),
    },
    Scenario {
        name: "svm_memory_on_a_gpu_is_unmapped_in_parts",
        about: "The rest stays, VRAM comes back, the hole faults.",
        run: || both(partial_unmap),
    },
    Scenario {
        name: "svm_memory_that_comes_in_the_place_of_other_is_seen_at_once",
        about: "Unmapped on a GPU and mapped anew, or discarded, by calls that no library sees; read by the GPU next.",
        run: || both(anew),
    },
    Scenario {
        name: "svm_memory_is_unmapped_while_it_moves",
        about: "munmap in one thread, prefetch in another, a GPU at work: no stale page, nothing lost of the rest.",
        run: || both(unmap_while_moving),
    },
    Scenario {
        name: "svm_a_process_that_ends_gets_its_memory_back",
        about: "The device is closed while memory is on it: the CPU has all of it, VRAM is free.",
        run: || both(release),
    },
    Scenario {
        name: "svm_mixed_memory_is_one_to_everybody",
        about: "Parts on two GPUs, parts in system memory, parts never touched; discarded here and there.",
        run: || both(mixed),
    },
    Scenario {
        name: "svm_writers_lose_nothing_while_memory_moves",
        about: "CPU threads count up words and check each value they find, while pages go to and fro under them.",
        run: || both(writers),
    },
];

fn on_gpu(kind: Kind, bytes: u64) -> Result<Svm, Stop> {
    let svm = Svm::moving(WorldSpec::default(), kind, Memory::anonymous(bytes)?)?;
    let pages = svm.memory.pages();
    svm.memory.fill(1);
    svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
    svm.prefetch(0, pages, Some(0))?;
    ensure_eq!(svm.in_vram()?, pages);
    Ok(svm)
}

fn copy_on_write(kind: Kind) -> Result<(), Stop> {
    let svm = on_gpu(kind, GRANULE)?;
    svm.world.sees(Seen::Fork)?;
    let pages = svm.memory.pages();
    svm.with_child(|| {
        svm.expect(0, 0, pages, 1)?;
        svm.write(0, 0, pages / 2, 2)?;
        svm.cpu_expects(0, pages / 2, 2)?;
        svm.memory.fill_pages(pages / 2..pages, 3);
        svm.expect(0, pages / 2, pages / 2, 3)
    })?;
    svm.expect(0, 0, pages / 2, 2)?;
    svm.prefetch(0, pages, None)?;
    svm.cpu_expects(0, pages / 2, 2)?;
    svm.cpu_expects(pages / 2, pages / 2, 3)
}

fn partial_unmap(kind: Kind) -> Result<(), Stop> {
    let svm = on_gpu(kind, 2 * GRANULE)?;
    svm.world.sees(Seen::Unmap)?;
    let pages = svm.memory.pages();
    svm.memory.unmap(100 * PAGE, 600 * PAGE)?;
    svm.world.told();
    svm.expect_fault(0, 300, false)?;
    svm.expect(0, 0, 100, 1)?;
    svm.expect(0, 700, pages - 700, 1)?;
    svm.world.until("the VRAM of unmapped memory is free", |_| svm.in_vram().is_ok_and(|left| left == pages - 600))?;
    svm.write(0, 0, 100, 2)?;
    svm.cpu_expects(0, 100, 2)?;
    svm.memory.map_again(100 * PAGE, 600 * PAGE)?;
    svm.give(100, 600, &[(0, SvmAccess::Migrate)])?;
    svm.memory.fill(3);
    svm.expect(0, 0, pages, 3)
}

/// New memory replaces memory that was on a GPU, and the GPU reads it before anybody has called the
/// driver.
///
/// # Errors
///
/// What the GPU saw of the memory that was there before.
pub fn anew(kind: Kind) -> Result<(), Stop> {
    let spec = WorldSpec { xnack: true, ..WorldSpec::default() };
    let svm = Svm::moving(spec, kind, Memory::anonymous(GRANULE)?)?;
    svm.world.sees(Seen::Unmap)?;
    svm.world.sees(Seen::Discard)?;
    let pages = svm.memory.pages();
    let to_gpu = |seed| {
        svm.memory.fill(seed);
        svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
        svm.prefetch(0, pages, Some(0))?;
        ensure_eq!(svm.in_vram()?, pages);
        svm.expect(0, 0, pages, seed)
    };
    for round in 0..4 {
        let seed = 10 * (round + 1);
        to_gpu(seed)?;
        // SAFETY: the memory is the scenario's own, of which no reference is ever made.
        unsafe { raw(libc::SYS_munmap, &svm.memory, 0) }?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is there that could be replaced.
        unsafe { map(&svm.memory, flags) }?;
        svm.memory.fill(seed + 1);
        svm.expect(0, 0, pages, seed + 1)?;
        to_gpu(seed + 2)?;
        // SAFETY: as above.
        unsafe { map(&svm.memory, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) }?;
        svm.memory.fill(seed + 3);
        svm.expect(0, 0, pages, seed + 3)?;
    }
    to_gpu(50)?;
    // At the end: where such a discard was, nothing goes to a GPU for a second.
    // SAFETY: as above.
    unsafe { raw(libc::SYS_madvise, &svm.memory, libc::MADV_DONTNEED) }?;
    let bytes = svm.world.with_engine(0, |engine| engine.read(svm.va(0), pages * PAGE))?;
    let old = bytes.iter().position(|byte| *byte != 0).map(|at| at as u64 / PAGE);
    ensure_eq!(old, None, "a page that was discarded");
    Ok(())
}

/// A system call on all of `memory`, past the C library.
///
/// # Safety
///
/// That of the call.
unsafe fn raw(call: i64, memory: &Memory, argument: i32) -> Result<(), Stop> {
    let span = memory.whole();
    // SAFETY: promised by the caller.
    match unsafe { libc::syscall(call, span.start, span.size, argument) } {
        0 => Ok(()),
        _ => Err(anyhow::Error::from(std::io::Error::last_os_error()).into()),
    }
}

/// Maps memory where `memory` is, past the C library.
///
/// # Safety
///
/// That of mmap.
unsafe fn map(memory: &Memory, flags: i32) -> Result<(), Stop> {
    let (span, prot) = (memory.whole(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: promised by the caller.
    let at = unsafe { libc::syscall(libc::SYS_mmap, span.start, span.size, prot, flags, -1, 0) };
    ensure_eq!(u64::try_from(at).ok(), Some(span.start), "where memory was mapped");
    Ok(())
}

fn unmap_while_moving(kind: Kind) -> Result<(), Stop> {
    let svm = on_gpu(kind, 2 * GRANULE)?;
    svm.world.sees(Seen::Unmap)?;
    let half = GRANULE / PAGE;
    for round in 0..10 {
        let seed = 10 + round;
        svm.memory.fill(seed);
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                for to in [None, Some(0), None] {
                    // Refused once the second half has gone.
                    let _ = svm.prefetch(0, 2 * half, to);
                    svm.prefetch(0, half, to)?;
                }
                Ok::<(), Stop>(())
            });
            svm.memory.unmap(GRANULE, GRANULE)?;
            svm.expect(0, 0, half, seed)?;
            mover.join().map_err(|_| anyhow::anyhow!("the mover panicked"))?
        })?;
        svm.cpu_expects(0, half, seed)?;
        svm.memory.map_again(GRANULE, GRANULE)?;
        svm.give(half, half, &[(0, SvmAccess::Migrate)])?;
        svm.prefetch(0, 2 * half, Some(0))?;
    }
    Ok(())
}

fn release(kind: Kind) -> Result<(), Stop> {
    let svm = on_gpu(kind, 2 * GRANULE)?;
    let Svm { world, memory } = svm;
    let other = world.open()?;
    let pages = memory.pages();
    // The second process of the same memory sees it come and go.
    let room = memory.whole();
    drop(world);
    ensure_eq!(memory.find_wrong(0..pages, 1), None);
    let free = other.svm()?;
    ensure_eq!(free.vram_pages, 0);
    // SAFETY: the memory is the scenario's own, of which no reference is ever made.
    unsafe { other.svm_set(room, &[vkfd_client::SvmSet::Access(other.gpus()[0].id, SvmAccess::Migrate)]) }?;
    Ok(())
}

fn mixed(kind: Kind) -> Result<(), Stop> {
    let spec = WorldSpec { gpus: 2, ..WorldSpec::default() };
    let svm = Svm::moving(spec, kind, Memory::anonymous(4 * GRANULE)?)?;
    let (pages, granule) = (svm.memory.pages(), GRANULE / PAGE);
    // A quarter is never touched by the CPU.
    svm.memory.fill_pages(0..3 * granule, 1);
    svm.give(0, pages, &[(0, SvmAccess::Migrate), (1, SvmAccess::InPlace)])?;
    svm.prefetch(0, granule / 2, Some(0))?;
    svm.prefetch(granule / 2, granule, Some(1))?;
    svm.prefetch(3 * granule + 7, 100, Some(1))?;
    if svm.world.sees(Seen::Discard).is_ok() {
        svm.memory.discard(10 * PAGE, 5 * PAGE)?;
        svm.memory.fill_pages(10..15, 1);
    }
    for gpu in [0, 1] {
        svm.expect(gpu, 0, 3 * granule, 1)?;
        let zeroes = svm.world.with_engine(gpu, |engine| engine.read(svm.va(3 * granule), GRANULE))?;
        ensure!(zeroes.iter().all(|byte| *byte == 0), "memory that nobody wrote is zero");
    }
    svm.write(0, 0, pages, 2)?;
    svm.expect(1, 0, pages, 2)?;
    svm.cpu_expects(0, pages, 2)?;
    svm.prefetch(0, pages, None)?;
    svm.expect(1, 0, pages, 2)
}

fn writers(kind: Kind) -> Result<(), Stop> {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 16;
    let svm = Svm::moving(WorldSpec::default(), kind, Memory::anonymous(GRANULE)?)?;
    let pages = svm.memory.pages();
    svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (svm, stop, written) = (&svm, &stop, &written);
                scope.spawn(move || {
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        for page in 0..pages {
                            let at = svm.memory.at(page * PAGE + thread * 8).cast::<u64>();
                            // SAFETY: the word is this thread's alone, in memory that is mapped; no
                            // reference is made.
                            let found = unsafe { at.read_volatile() };
                            if found != count {
                                return Err(format!("page {page}: thread {thread} wrote {count} and finds {found}"));
                            }
                            // SAFETY: as above.
                            unsafe { at.write_volatile(count + 1) };
                        }
                        count += 1;
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(count)
                })
            })
            .collect();
        let moved = (|| {
            for round in 0..ROUNDS {
                // Each move meets writers at work.
                let before = written.load(Ordering::Relaxed);
                while written.load(Ordering::Relaxed) == before && threads.iter().all(|thread| !thread.is_finished()) {
                    std::thread::yield_now();
                }
                svm.prefetch(0, pages, (round % 2 == 0).then_some(0))?;
                svm.world.sum64(svm.va(0), GRANULE)?;
            }
            Ok::<(), Stop>(())
        })();
        stop.store(true, Ordering::Relaxed);
        let mut counts = Vec::new();
        for thread in threads {
            let count = thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?;
            counts.push(count.map_err(|lost| anyhow::anyhow!("a write was lost: {lost}"))?);
        }
        moved?;
        // At the end, the GPU sees the counted value.
        let bytes = svm.world.read_gpu(svm.va(0), GRANULE)?;
        for (thread, count) in counts.into_iter().enumerate() {
            for page in bytes.chunks_exact(usize::try_from(PAGE)?) {
                let word = &page[thread * 8..thread * 8 + 8];
                ensure_eq!(word.try_into().map_or(0, u64::from_ne_bytes), count);
            }
        }
        Ok(())
    })
}
