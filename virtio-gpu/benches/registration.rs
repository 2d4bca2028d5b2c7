// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the device costs a registration, without a virtual machine: the whole job by stage, of
//! memory in one piece and of the same memory in many, and the registration alone beside that of
//! the same list by a client of the same driver. The last column is what the pass would be without
//! a GPU: a plain copy of the same pages, by the processor.
//!
//! Each size's jobs are done in turn, so every ratio is of one run. Times are medians in
//! microseconds of the processor, not of the clock: what else runs on the machine does not count.
//! `PAGES=16384` does one size, `RUNS` says how often.

#[path = "../tests/guest/mod.rs"]
mod guest;

use std::time::Duration;

use guest::{Guest, Library, OK, PAGE, RAM_AT};
use vkfd_client::{Client, RegisterOptions, Strategy, UserptrRange};
use vkfd_virtio_gpu::device::register::Method;
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::protocol::blob::Run;
use vkfd_virtio_gpu::protocol::control::Command;
use vkfd_virtio_gpu::protocol::hsakmt::memory::{Layout, Memory};
use vkfd_virtio_gpu::protocol::hsakmt::Request;

const SIZES: [u64; 6] = [1, 16, 256, 4096, 16_384, 65_536];
const LARGEST: u64 = SIZES[SIZES.len() - 1];
const LIMIT: Duration = Duration::from_secs(60);
const STAGES: [&str; 6] = ["blob", "register", "map", "pass", "unregister", "unref"];

/// Microseconds of each stage.
type Times = [f64; STAGES.len()];

/// As [`guest::scattered`], in an order without a pattern.
fn scattered(pages: u64) -> Vec<Run> {
    let mut runs = guest::scattered(1, pages);
    let mut state = 1_u64;
    for place in (1..runs.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        runs.swap(place, usize::try_from(state >> 33).unwrap() % (place + 1));
    }
    runs
}

fn whole(pages: u64) -> Vec<Run> {
    vec![Run { address: RAM_AT + (2 * LARGEST + 2) * PAGE, bytes: pages * PAGE }]
}

/// Microseconds that this process has had a processor, the GPU's threads included.
fn busy() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is whole.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap()).as_secs_f64() * 1e6
}

struct Job {
    guest: Guest,
    library: Library,
    copies: guest::Copies,
    target: u64,
    local: Client,
}

impl Job {
    fn new() -> Self {
        let mut options = Options { window: 1 << 30, method: Method::Batch, ..Options::default() };
        options.machine.vram = 1 << 30;
        let mut guest = Guest::with_ram(options, (3 * LARGEST + 4) * PAGE);
        for page in 0..3 * LARGEST {
            guest.ram.word(page * PAGE).store(page, std::sync::atomic::Ordering::Relaxed);
        }
        let mut library = Library::open(&mut guest, 1, Layout::Y2026);
        let copies = library.copies(&mut guest);
        let (target, _, _) = library.alloc(&mut guest, LARGEST * PAGE);
        let local = Client::on(guest.device.machine()).expect("a client of the machine");
        Self { guest, library, copies, target, local }
    }

    /// Register, map, one pass, free.
    fn run(&mut self, runs: &[Run]) -> Times {
        let Self { guest, library, copies, target, .. } = self;
        let bytes = runs.iter().map(|run| run.bytes).sum();
        let mut clock = busy();
        let mut lap = || {
            let now = busy();
            now - std::mem::replace(&mut clock, now)
        };
        let resource = guest.guest_blob(1, runs.to_vec()).unwrap();
        let address = library.value(guest, &Request::Memory(Memory::MapUserptr { resource }, library.layout));
        let blob = lap();
        assert_eq!(library.memory(guest, Memory::Register { address, bytes, flags: 0, resource }), 0);
        let register = lap();
        assert_eq!(library.memory(guest, Memory::MapToNodes { address, bytes, resource: 0, nodes: vec![1] }), 0);
        let map = lap();
        assert!(copies.copy(guest, *target, address, bytes, LIMIT));
        let pass = lap();
        assert_eq!(library.memory(guest, Memory::Unmap { address }), 0);
        assert_eq!(library.memory(guest, Memory::Deregister { address, resource: 0 }), 0);
        let unregister = lap();
        assert_eq!(guest.command(0, &Command::Unref { resource }), OK);
        [blob, register, map, pass, unregister, lap()]
    }

    /// The registration alone, by a client beside the device.
    fn local(&self, runs: &[Run]) -> f64 {
        let memory = self.guest.device.ram().read().unwrap().find(runs).unwrap();
        let ranges: Vec<UserptrRange> = memory.ranges().to_vec();
        let options = RegisterOptions { strategy: Strategy::Batch, map: false, ..RegisterOptions::default() };
        let began = busy();
        // SAFETY: the ranges are shared memory, of which this process has no references, and
        // `memory` keeps them.
        let buffer = unsafe { self.local.register_ranges(&ranges[..], &options) }.unwrap();
        let took = busy() - began;
        drop(buffer);
        took
    }
}

impl Job {
    /// One pass without a GPU: the processor copies the list's memory to one place.
    fn plain(&self, runs: &[Run], to: &mut [u8]) -> f64 {
        let memory = self.guest.device.ram().read().unwrap().find(runs).unwrap();
        let mut to = to;
        let began = busy();
        for range in memory.ranges() {
            let (part, rest) = to.split_at_mut(usize::try_from(range.size).unwrap());
            let from = std::ptr::with_exposed_provenance::<u8>(usize::try_from(range.start).unwrap());
            // SAFETY: the range is mapped as long as `memory`, and nobody writes it now.
            unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len()) };
            to = rest;
        }
        busy() - began
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let runs: usize = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(9);
    let mut job = Job::new();
    let mut room = vec![1; usize::try_from(LARGEST * PAGE).unwrap()];
    println!(
        "{:>6} {:>7} {:>8}  register/local | {}",
        "pages",
        "pieces",
        "percent",
        STAGES.map(|s| format!("{s:>10}")).join(" ") + "      plain"
    );
    let only = std::env::var("PAGES").ok().and_then(|pages| pages.parse::<u64>().ok());
    for pages in SIZES.into_iter().filter(|pages| only.is_none_or(|only| only == *pages)) {
        let lists = [whole(pages), scattered(pages)];
        let mut times: [Vec<Times>; 2] = [Vec::new(), Vec::new()];
        let mut ratios = Vec::new();
        let mut plain: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        for turn in 0..=runs {
            for (list, times) in lists.iter().zip(&mut times) {
                let time = job.run(list);
                if turn > 0 {
                    times.push(time);
                }
            }
            if turn > 0 {
                ratios.push(times[1][turn - 1][1] / job.local(&lists[1]));
                for (list, plain) in lists.iter().zip(&mut plain) {
                    plain.push(job.plain(list, &mut room));
                }
            }
        }
        let percent = times[0]
            .iter()
            .zip(&times[1])
            .map(|(few, many)| 100.0 * few.iter().sum::<f64>() / many.iter().sum::<f64>());
        let percent = median(percent.collect());
        let ratio = median(ratios);
        for ((list, times), plain) in lists.iter().zip(&times).zip(plain) {
            let stages = (0..STAGES.len()).map(|n| format!("{:>10.0}", median(times.iter().map(|t| t[n]).collect())));
            let stages = format!("{} {:>10.0}", stages.collect::<Vec<_>>().join(" "), median(plain));
            let many = list.len() > 1 || pages == 1;
            match many {
                true => println!("{pages:>6} {:>7} {percent:>8.1} {ratio:>15.2} | {stages}", list.len()),
                false => println!("{pages:>6} {:>7} {:>8} {:>15} | {stages}", list.len(), "", ""),
            }
        }
    }
}
