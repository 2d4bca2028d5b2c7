// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is measured on: one machine, and a guest for each way of registering, all with the same
//! memory. The memory is a file, the guests are in this process.
//!
//! Each guest's device maps the memory for itself, so what one way does to its mapping (`mremap`
//! leaves it without page-table entries) costs no other way anything.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use vkfd_client::{Client, RegisterOptions, Strategy};
use vkfd_host::Source;
use vkfd_remote::protocol::blob::Run;
use vkfd_remote::protocol::hsakmt::memory::{Layout, Memory};
use vkfd_remote::protocol::hsakmt::Request;
use vkfd_sabotage::Switches;
use vkfd_virtio_gpu::device::register::Method;
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::simulated_guest::{Copies, Guest, Kernels, Library, PAGE, RAM_AT};

use super::cell::{Pass, Stage, Way};
use crate::text::count;

/// A pass that has not ended then is lost.
const LIMIT: Duration = Duration::from_secs(120);
/// Words of a page.
const WORDS: u64 = PAGE / 8;
/// Memory for rings, code and responses, beside the copies' target.
const BESIDE: u64 = 16 << 20;

/// How many times a buffer's bytes are in use at most. The guests' memory has the buffer scattered,
/// with as much between, and in one piece. Each guest has a copy, and this process one.
const TIMES: u64 = 3 + 3 + 1;

/// Bytes of memory that buffers of `pages` need.
pub fn needed(pages: u64) -> u64 {
    TIMES * pages * PAGE + 3 * BESIDE
}

/// A buffer of the guests'.
pub struct List {
    /// Its runs, in the buffer's order.
    pub runs: Vec<Run>,
    pages: u64,
    /// The sum of its words, without the first.
    rest: u64,
}

impl List {
    fn bytes(&self) -> u64 {
        self.pages * PAGE
    }

    /// How often its job is done for one sample: a small job ends before a thread of the GPU falls
    /// asleep.
    pub fn times(&self) -> u32 {
        u32::try_from(1024 / self.pages).unwrap_or(0).clamp(1, 32)
    }

    /// Where each page is in the guests' memory.
    fn places(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flat_map(|run| (run.address..run.address + run.bytes).step_by(4096)).map(|at| at - RAM_AT)
    }
}

/// The processor time of a job's stages, and what it took by the clock.
pub struct Job {
    /// Each stage, as in [`Stage::PARTS`].
    pub parts: [Duration; Stage::PARTS.len()],
    /// By the clock.
    pub clock: Duration,
}

/// A guest, and what its library has made.
struct Seat {
    guest: Guest,
    library: Library,
    copies: Copies,
    kernels: Kernels,
    target: u64,
    target_at: u64,
}

/// The machine and its guests.
pub struct Rig {
    batch: Seat,
    per_range: Seat,
    mremap: Seat,
    local: Client,
    room: Vec<u8>,
    largest: u64,
    number: u64,
    /// Mappings of the process before anything was registered.
    mappings: usize,
}

/// Processor time of this process, with all its threads: the GPU's, too.
fn busy() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is whole, and this process's clock can be read.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Something that depends on a number, and no two numbers have the same.
fn mixed(number: u64) -> u64 {
    let x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Seat {
    fn new(mut guest: Guest, largest: u64) -> Result<Self> {
        let mut library = Library::open(&mut guest, 1, Layout::Y2026);
        let copies = library.copies(&mut guest);
        let kernels = library.kernels(&mut guest).context("there are no kernels for this GPU")?;
        let (target, target_at, _) = library.alloc(&mut guest, largest * PAGE);
        Ok(Self { guest, library, copies, kernels, target, target_at })
    }

    /// Registers, maps, has the GPU pass over the buffer, frees. What the pass has found is checked
    /// after the clock has stopped. `Err` inside: the device refused the registration, with this
    /// status.
    fn job(&mut self, list: &List, pass: Pass, sum: u64) -> Result<Result<Job, i32>> {
        let bytes = list.bytes();
        // Each page of the copy is looked at in one word, which the copy has to put there.
        let looked = |place: u64| place * PAGE + 8 * (place % WORDS);
        for place in 0..list.pages {
            self.guest.window.word(self.target_at + looked(place)).store(0, Ordering::Relaxed);
        }
        let Self { guest, library, copies, kernels, target, .. } = self;
        let runs = list.runs.clone();
        let began = Instant::now();
        let mut before = busy();
        let mut lap = || {
            let now = busy();
            now - std::mem::replace(&mut before, now)
        };
        let refused = |status| anyhow::anyhow!("the device refuses a sound list of ranges ({status:#x})");
        let resource = guest.guest_blob(1, runs).map_err(refused)?;
        let address = library.value(guest, &Request::Memory(Memory::MapUserptr { resource }, library.layout));
        let blob = lap();
        let status = library.memory(guest, Memory::Register { address, bytes, flags: 0, resource });
        if status != 0 {
            guest.unref(resource);
            return Ok(Err(status));
        }
        let register = lap();
        let status = library.memory(guest, Memory::MapToNodes { address, bytes, resource: 0, nodes: vec![1] });
        ensure!(status == 0, "the device does not map a registered buffer: status {status}");
        let map = lap();
        let seen = match pass {
            Pass::Kernel => Some(kernels.sum(guest, address, bytes, LIMIT).context("a kernel has not ended")?),
            Pass::Copy | Pass::Processor => {
                ensure!(copies.copy(guest, *target, address, bytes, LIMIT), "a copy has not ended");
                None
            }
        };
        let passed = lap();
        for request in [Memory::Unmap { address }, Memory::Deregister { address, resource: 0 }] {
            let status = library.memory(guest, request);
            ensure!(status == 0, "the device does not free a registered buffer: status {status}");
        }
        let unregister = lap();
        guest.unref(resource);
        let unref = lap();
        let clock = began.elapsed();
        match seen {
            Some(seen) => ensure!(
                seen == sum,
                "the GPU's sum of a buffer of {} pages in {} ranges is {seen:#x}, not {sum:#x}",
                count(usize::try_from(list.pages)?),
                count(list.runs.len())
            ),
            None => {
                let word = |at: u64| self.guest.window.word(self.target_at + at).load(Ordering::Acquire);
                let wrong = (0..).zip(list.places()).find(|(place, from)| {
                    word(looked(*place)) != self.guest.ram.word(from + looked(*place) % PAGE).load(Ordering::Acquire)
                });
                if let Some((place, _)) = wrong {
                    anyhow::bail!("page {place} of a copy of {} ranges is wrong", count(list.runs.len()));
                }
            }
        }
        Ok(Ok(Job { parts: [blob, register, map, passed, unregister, unref], clock }))
    }
}

impl Rig {
    /// For buffers of up to `largest` pages, on a machine that may be broken on purpose.
    ///
    /// # Errors
    /// When the system has not so much memory, or a GPU that there is no code for.
    pub fn new(largest: u64, sabotage: Switches) -> Result<Self> {
        let target = largest * PAGE;
        let mut options = Options { window: target + BESIDE, sabotage, ..Options::default() };
        options.machine.vram = (3 * (target + BESIDE)).next_multiple_of(2 << 20);
        let of = |method| Options { method, ..options };
        let guest = Guest::with_ram(of(Method::Batch), (3 * largest + 2) * PAGE);
        for at in 0..guest.ram.bytes() / 8 {
            guest.ram.word(8 * at).store(mixed(at), Ordering::Relaxed);
        }
        let local = Client::on(guest.device.machine())?;
        let [per_range, mremap] = [Method::PerRange, Method::Remap].map(|method| guest.beside(of(method)));
        Ok(Self {
            batch: Seat::new(guest, largest)?,
            per_range: Seat::new(per_range, largest)?,
            mremap: Seat::new(mremap, largest)?,
            local,
            room: vec![1; usize::try_from(target)?],
            largest,
            number: 0,
            mappings: crate::arena::mappings().count(),
        })
    }

    /// Where the driver learns of changed mappings.
    pub fn source(&self) -> String {
        self.batch.guest.device.machine().memory().source().to_string()
    }

    /// Why this way cannot have so many ranges, if it cannot.
    pub fn cannot(&self, way: Way, list: &List) -> Option<String> {
        let watches = self.batch.guest.device.machine().memory().source() == Source::Userfaultfd;
        (way == Way::PerRange && watches).then(|| crate::rig::too_many_watches(list.runs.len())).flatten()
    }

    /// Waits until the host has tidied up behind a way, so that no other way pays for it. Small
    /// buffers leave little.
    pub fn rest(&self, way: Way, list: &List) {
        if list.pages >= 256 {
            crate::rig::rest(matches!(way, Way::PerRange | Way::Mremap).then_some(self.mappings));
        }
    }

    /// What the devices have of contexts, resources, processes and parts of the window.
    #[cfg(test)]
    pub fn left(&self) -> usize {
        let devices = [&self.batch, &self.per_range, &self.mremap].map(|seat| &seat.guest.device);
        devices.iter().map(|device| device.left() + device.counts().1).sum()
    }

    fn list(&self, pages: u64, runs: Vec<Run>) -> List {
        let mut list = List { runs, pages, rest: 0 };
        let ram = &self.batch.guest.ram;
        let words = list.places().flat_map(|at| (at..at + PAGE).step_by(8)).skip(1);
        list.rest = words.fold(0, |sum, at| sum.wrapping_add(ram.word(at).load(Ordering::Relaxed)));
        list
    }

    /// `pages` in one run.
    pub fn whole(&self, pages: u64) -> List {
        self.list(pages, vec![Run { address: RAM_AT + (2 * self.largest + 1) * PAGE, bytes: pages * PAGE }])
    }

    /// `pages` of which no two are neighbours, in an order without a pattern.
    pub fn scattered(&self, pages: u64) -> List {
        let mut runs = vkfd_virtio_gpu::simulated_guest::scattered(1, pages);
        let mut state = 1_u64;
        for place in (1..runs.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let other = usize::try_from(state >> 33).unwrap_or(0) % (place + 1);
            runs.swap(place, other);
        }
        self.list(pages, runs)
    }

    /// The whole job. `Err` inside: refused with this status.
    ///
    /// # Errors
    /// When anything but the registration is refused, or the pass has found other memory than the
    /// guest has.
    pub fn job(&mut self, way: Way, list: &List, pass: Pass) -> Result<Result<Job, i32>> {
        // The first word is another each time, so that no earlier result is right.
        self.number += 1;
        let first = list.places().next().unwrap_or(0);
        self.batch.guest.ram.word(first).store(mixed(!self.number), Ordering::Release);
        let sum = list.rest.wrapping_add(mixed(!self.number));
        let seat = match way {
            Way::NotScattered | Way::Batch | Way::Local => &mut self.batch,
            Way::PerRange => &mut self.per_range,
            Way::Mremap => &mut self.mremap,
        };
        seat.job(list, pass, sum)
    }

    /// The registration alone, by a client beside the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn local(&self, list: &List) -> Result<Duration> {
        let ram = self.batch.guest.device.ram().read();
        let memory = ram.find(&list.runs).context("a list of the guest's memory")?;
        drop(ram);
        let options = RegisterOptions { strategy: Strategy::Batch, map: false, ..RegisterOptions::default() };
        let began = busy();
        // SAFETY: the ranges are shared memory, of which this process has no references, and
        // `memory` keeps them.
        let buffer = unsafe { self.local.register_ranges(memory.ranges(), &options) }?;
        let took = busy() - began;
        buffer.free()?;
        Ok(took)
    }

    /// The processor copies the list's memory to one place.
    ///
    /// # Errors
    /// None that a sound list has.
    pub fn plain(&mut self, list: &List) -> Result<Duration> {
        let ram = self.batch.guest.device.ram().read();
        let memory = ram.find(&list.runs).context("a list of the guest's memory")?;
        drop(ram);
        let mut to = &mut self.room[..];
        let began = busy();
        for range in memory.ranges() {
            let (part, rest) = to.split_at_mut(usize::try_from(range.size)?);
            let from = std::ptr::with_exposed_provenance::<u8>(usize::try_from(range.start)?);
            // SAFETY: the range is mapped as long as `memory`, and nobody writes it now.
            unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len()) };
            to = rest;
        }
        Ok(busy() - began)
    }
}
