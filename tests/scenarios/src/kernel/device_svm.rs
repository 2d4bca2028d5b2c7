// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM ranges that move to a GPU's memory because the driver wants it: prefetched, faulted there,
//! and evicted when it gets tight.
//!
//! The GPU has them at the CPU's addresses. What others do with pages there is in
//! [`super::device_users`]; this module has their moves.

use std::fs;
use std::ops::Range;

use vkfd_client::{AllocOptions, Errno, GpuVa, Location, RegisterOptions, SvmAccess, SvmSet, UserptrRange, PAGE};

use super::device_stage::{count, expect_resident, spec, Kind};
use crate::limits::available;
use crate::memory::{wrong_page, Memory};
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};

const HUGE: u64 = 2 << 20;
const MIB: u64 = 1 << 20;
/// Pages that the GPU reads or writes at a time.
const PIECE: u64 = 256;

const BOTH: [Kind; 2] = [Kind::Coherent, Kind::Private];

/// Sets attributes of memory.
fn set(world: &World, memory: &Memory, list: &[SvmSet]) -> Result<(), Stop> {
    // SAFETY: no reference to the memory is ever made.
    unsafe { world.client().svm_set(memory.whole(), list)? };
    Ok(())
}

/// The GPU reads the pattern of `seed` in pages of `memory`.
fn gpu_sees(world: &World, memory: &Memory, pages: Range<u64>, seed: u64) -> Result<(), Stop> {
    for first in pages.clone().step_by(usize::try_from(PIECE)?) {
        let count = PIECE.min(pages.end - first);
        let seen = world.read_gpu(GpuVa(memory.whole().start + first * PAGE), count * PAGE)?;
        let wrong = wrong_page(&seen, first.., seed);
        ensure_eq!(wrong, None, "a page from page {first} on that the GPU sees without pattern {seed}");
    }
    Ok(())
}

/// The GPU writes the pattern of `seed` to pages of `memory`.
fn gpu_writes(world: &World, memory: &Memory, pages: Range<u64>, seed: u64) -> Result<(), Stop> {
    let bytes: Vec<u8> = pages.clone().flat_map(|page| crate::memory::pattern(page, seed)).collect();
    Ok(world.write_gpu(GpuVa(memory.whole().start + pages.start * PAGE), &bytes)?)
}

/// Prefetched to the GPU, used there by both, prefetched back. XNACK off.
pub(super) fn prefetched() -> Result<(), Stop> {
    for kind in BOTH {
        let world = World::new(spec(kind)?)?;
        expect_resident(&world, 0)?;
        let gpu = world.gpu(0);
        let memory = Memory::anonymous(2 * HUGE)?;
        memory.fill(1);
        set(&world, &memory, &[SvmSet::Access(gpu, SvmAccess::Migrate)])?;
        gpu_sees(&world, &memory, 0..memory.pages(), 1)?;
        expect_resident(&world, 0)?;
        world.client().prefetch(memory.whole(), Location::Gpu(gpu))?;
        expect_resident(&world, memory.pages())?;
        let there = count(&world)?;
        gpu_sees(&world, &memory, 0..memory.pages(), 1)?;
        ensure_eq!(count(&world)?, there, "what was moved by the GPU's reading");
        gpu_writes(&world, &memory, 0..8, 2)?;
        ensure_eq!(memory.find_wrong(0..8, 2), None);
        ensure_eq!(memory.find_wrong(8..memory.pages(), 1), None);
        match kind {
            Kind::Coherent => ensure_eq!(count(&world)?, there, "what was moved by the CPU's reading"),
            Kind::Private => expect_resident(&world, 0)?,
        }
        // Also that the CPU touched it is a move.
        let (info, moved) = (world.client().svm()?, if kind == Kind::Private { memory.pages() } else { 0 });
        ensure_eq!((info.pages_in, info.pages_out, info.evictions), (memory.pages(), moved, 0));
        memory.fill(3);
        gpu_sees(&world, &memory, 0..memory.pages(), 3)?;
        world.client().prefetch(memory.whole(), Location::Gpu(gpu))?;
        gpu_sees(&world, &memory, 0..memory.pages(), 3)?;
        world.client().prefetch(memory.whole(), Location::System)?;
        expect_resident(&world, 0)?;
        gpu_sees(&world, &memory, 0..memory.pages(), 3)?;
        ensure_eq!(memory.find_wrong(0..memory.pages(), 3), None);
        let info = world.client().svm()?;
        ensure_eq!(info.pages_in, info.pages_out, "all that went there came back");
    }
    Ok(())
}

/// Private pages beside some that there are not: what is missing is faulted in, and nothing comes
/// back for that.
pub(super) fn beside_missing() -> Result<(), Stop> {
    /// Missing: at the beginning, in the middle, side by side, at the end.
    const MISSING: [u64; 6] = [0, 1, 200, 301, 302, 511];
    const PAGES: u64 = HUGE / PAGE;
    for register in [true, false] {
        let world = World::new(spec(Kind::Private)?)?;
        expect_resident(&world, 0)?;
        let memory = Memory::anonymous(HUGE)?;
        memory.fill(1);
        ensure_eq!(world.client().move_to_gpu(memory.whole(), world.gpu(0))?.moved, PAGES);
        for page in MISSING {
            memory.discard(page * PAGE, PAGE)?;
        }
        let there = PAGES - MISSING.len() as u64;
        expect_resident(&world, there)?;
        let before = count(&world)?;
        let mut batch = None;
        let va = if register {
            // SAFETY: no reference to the memory is ever made.
            let buffer = unsafe { world.client().register_ranges(&[memory.whole()], &RegisterOptions::default())? };
            batch.insert(buffer).gpu_va()
        } else {
            set(&world, &memory, &[SvmSet::Access(world.gpu(0), SvmAccess::Migrate)])?;
            GpuVa(memory.whole().start)
        };
        ensure_eq!(count(&world)?, before, "what has moved because pages were missing");
        let seen = world.read_gpu(va, HUGE)?;
        for (page, bytes) in (0..).zip(seen.chunks(usize::try_from(PAGE)?)) {
            let missing = MISSING.contains(&page);
            let right = if missing { bytes.iter().all(|b| *b == 0) } else { bytes == crate::memory::pattern(page, 1) };
            ensure!(right, "the GPU sees something else in page {page}");
        }
        ensure_eq!(count(&world)?, before, "what has moved because the GPU has looked");
        world.write_gpu(va, &crate::memory::pattern(0, 2))?;
        ensure_eq!(memory.find_wrong(0..1, 2), None);
        ensure_eq!(memory.find_wrong(2..200, 1), None);
        drop((batch, memory));
        expect_resident(&world, 0)?;
    }
    Ok(())
}

/// The GPU faults on memory that prefers its own, also what nobody has touched. XNACK on.
pub(super) fn faulted() -> Result<(), Stop> {
    for kind in BOTH {
        let world = World::new(WorldSpec { xnack: true, ..spec(kind)? })?;
        expect_resident(&world, 0)?;
        let gpu = world.gpu(0);
        let memory = Memory::anonymous(2 * HUGE)?;
        memory.fill(1);
        set(&world, &memory, &[SvmSet::Preferred(Location::Gpu(gpu)), SvmSet::Access(gpu, SvmAccess::Migrate)])?;
        expect_resident(&world, 0)?;
        gpu_sees(&world, &memory, 0..HUGE / PAGE, 1)?;
        expect_resident(&world, HUGE / PAGE)?;
        gpu_writes(&world, &memory, 600..608, 2)?;
        ensure_eq!(memory.find_wrong(600..608, 2), None);
        ensure_eq!(memory.find_wrong(0..600, 1), None);
        ensure_eq!(memory.find_wrong(608..memory.pages(), 1), None);
    }
    Ok(())
}

/// Twice as much as there is room for in the GPU's memory. With XNACK on the GPU fetches it granule
/// by granule, with XNACK off it is prefetched as far as that goes.
pub(super) fn too_large() -> Result<(), Stop> {
    const ROOM: u64 = 8 * MIB;
    for (kind, xnack) in [(Kind::Coherent, true), (Kind::Coherent, false), (Kind::Private, true)] {
        let world = World::new(WorldSpec { xnack, ..spec(kind)? })?;
        expect_resident(&world, 0)?;
        let gpu = world.gpu(0);
        let memory = Memory::anonymous(2 * ROOM)?;
        memory.fill(1);
        // The rest of VRAM is taken.
        let taken = available(world.client(), world.gpu(0))?.saturating_sub(ROOM) / HUGE * HUGE;
        let taken = AllocOptions { cpu_map: false, ..AllocOptions::vram(world.gpu(0), taken) };
        let taken = world.client().alloc(&taken)?;
        set(&world, &memory, &[SvmSet::Preferred(Location::Gpu(gpu)), SvmSet::Access(gpu, SvmAccess::Migrate)])?;
        world.client().prefetch(memory.whole(), Location::Gpu(gpu))?;
        for seed in 1..4 {
            gpu_sees(&world, &memory, 0..memory.pages(), seed)?;
            let resident = count(&world)?.resident;
            ensure!(resident > 0 && resident <= ROOM / PAGE + HUGE / PAGE, "{resident} pages in the GPU's memory");
            for first in (0..memory.pages()).step_by(usize::try_from(PIECE)?) {
                gpu_writes(&world, &memory, first..first + PIECE, seed + 1)?;
            }
            ensure_eq!(memory.find_wrong(0..memory.pages(), seed + 1), None);
        }
        drop(taken);
    }
    Ok(())
}

/// Pages of the kernel's pool of huge ones, as many as before when this goes.
struct Pool(String);

const POOL: &str = "/proc/sys/vm/nr_hugepages";

impl Pool {
    fn of(pages: u64) -> Result<Self, Stop> {
        let before = fs::read_to_string(POOL);
        let before = before.map_err(|e| Stop::Skip(format!("{POOL}: {e}: a kernel without CONFIG_HUGETLBFS?")))?;
        let pool = Self(before);
        fs::write(POOL, pages.to_string())?;
        let there = fs::read_to_string(POOL)?;
        ensure_eq!(there.trim(), pages.to_string(), "huge pages in the pool");
        Ok(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // What cannot be given back is gone with the guest.
        let _ = fs::write(POOL, &self.0);
    }
}

/// Pages of hugetlbfs: the GPU has them where they are, by attributes and by faults; a prefetch
/// moves none.
pub(super) fn hugetlbfs() -> Result<(), Stop> {
    let _pool = Pool::of(2)?;
    for (kind, xnack) in [(Kind::Coherent, false), (Kind::Coherent, true), (Kind::Private, true)] {
        let world = World::new(WorldSpec { xnack, ..spec(kind)? })?;
        expect_resident(&world, 0)?;
        let gpu = world.gpu(0);
        let memory = Memory::anonymous(2 * HUGE)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_HUGETLB;
        let (protection, bytes) = (libc::PROT_READ | libc::PROT_WRITE, usize::try_from(memory.bytes())?);
        // SAFETY: the addresses are the memory's own, at a multiple of 2 MiB, and there is no
        // reference to them.
        let mapped = unsafe { libc::mmap(memory.at(0).cast(), bytes, protection, flags, -1, 0) };
        ensure!(mapped != libc::MAP_FAILED, "mmap of huge pages: {}", std::io::Error::last_os_error());
        memory.fill(1);
        if !xnack {
            set(&world, &memory, &[SvmSet::Access(gpu, SvmAccess::Migrate)])?;
        }
        gpu_sees(&world, &memory, 0..memory.pages(), 1)?;
        world.client().prefetch(memory.whole(), Location::Gpu(gpu))?;
        expect_resident(&world, 0)?;
        gpu_sees(&world, &memory, 0..memory.pages(), 1)?;
        gpu_writes(&world, &memory, 508..516, 2)?;
        ensure_eq!(memory.find_wrong(508..516, 2), None);
        ensure_eq!(memory.find_wrong(0..508, 1), None);
        ensure_eq!(memory.find_wrong(516..memory.pages(), 1), None);
        memory.fill(3);
        gpu_sees(&world, &memory, 0..memory.pages(), 3)?;
        ensure_eq!(world.client().svm()?.pages_in, 0);
    }
    Ok(())
}

/// A client's mappings of the device (VRAM, which has no pages of the process there, and GTT, which
/// are the driver's) are no SVM memory.
pub(super) fn mappings_of_the_device() -> Result<(), Stop> {
    let world = World::new(spec(Kind::Coherent)?)?;
    for options in [AllocOptions::vram(world.gpu(0), HUGE), AllocOptions::gtt(HUGE)] {
        let buffer = world.client().alloc(&AllocOptions { cpu_map: true, ..options })?;
        let Some(cpu) = buffer.cpu_ptr() else { bail!("no mapping") };
        buffer.write(0, &[7; 64])?;
        let mapping = UserptrRange { start: cpu.as_ptr().expose_provenance() as u64, size: 4 * PAGE };
        for list in [SvmSet::Access(world.gpu(0), SvmAccess::Migrate), SvmSet::Prefetch(Location::Gpu(world.gpu(0)))] {
            // SAFETY: the buffer's memory, of which no reference is ever made.
            let set = unsafe { world.client().svm_set(mapping, &[list]) };
            ensure_eq!(set.err().and_then(|error| error.errno()), Some(Errno::FAULT), "SVM over a device's mapping");
        }
        let mut seen = [0; 64];
        buffer.read(0, &mut seen)?;
        ensure_eq!(seen, [7; 64]);
    }
    ensure_eq!(world.client().svm_ranges()?.len(), 0);
    Ok(())
}
