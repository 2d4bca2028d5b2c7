// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Kernels that are launched: on a GPU of this process, by packets in a queue, with all its
//! threads.
//!
//! Times are the clock's, for several threads work. What the host does beside it uses one thread.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use vkfd_client::{
    AllocOptions, Buffer, Client, CodeObject, ComputeQueue, Launch, Machine, MachineOptions, RegisterOptions,
    UserptrRange,
};
use vkfd_gpu::{Translate, Vmid};

use super::{add, host, Report, Row, Who, Work};
use crate::arena::{Arena, Pages};
use crate::goal::Goal;
use crate::spread::{Samples, Spread};

/// The kernels, compiled from `kernels/launch.cl`.
const CODE: &[u8] = include_bytes!("kernels/launch.co");
const PATIENCE: Duration = Duration::from_secs(120);
/// Work-items that share a buffer: each has a part of it by a stride.
const ITEMS: u32 = 65_536;
const GROUP: u16 = 256;
/// Rows and columns of the matrices.
const ORDER: usize = 256;
/// Ranges of the scattered buffer, and bytes of each.
const RANGES: usize = 10_000;
const RANGE_BYTES: u64 = 16 << 10;

const FILL: &str = "filling 192 MiB, all threads: speed relative to memset";
const COPY: &str = "copying 192 MiB, all threads: speed relative to memcpy";
const MATMUL: &str =
    "tiled f32 product of 256 x 256 matrices, all threads: speed relative to naive code on one host thread";
const LAUNCH: &str = "launching an empty kernel, until its signal: time relative to a barrier packet";
const SUSPEND: &str = "suspending while all threads compute, 99th percentile: microseconds";
const SCATTERED: &str = "filling 10,000 scattered ranges of 16 KiB: speed relative to one contiguous range";

/// A GPU and a queue.
pub(crate) struct Rig {
    machine: Machine,
    client: Client,
    queue: ComputeQueue,
    code: CodeObject,
}

impl Rig {
    pub(super) fn new() -> Result<Rig> {
        Rig::with(CODE, Translate::default())
    }

    /// A GPU that has other kernels, and translates hot code or interprets all.
    pub(crate) fn with(code: &[u8], translate: Translate) -> Result<Rig> {
        let machine = Machine::new(&MachineOptions { translate, ..MachineOptions::default() })
            .context("cannot start a GPU in this process")?;
        let client = Client::on(&machine)?;
        let gpu = client.gpus().first().context("the machine has no GPU")?.id;
        let queue = ComputeQueue::new(&client, gpu)?;
        let code = CodeObject::load(&client, gpu, code)?;
        Ok(Rig { machine, client, queue, code })
    }

    pub(crate) fn memory(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.client.alloc(&AllocOptions::gtt(bytes as u64))?;
        // Every page is there before the first round.
        zero(&buffer)?;
        Ok(buffer)
    }

    fn launch(&mut self, name: &str, args: &[u8], grid: [u32; 3], workgroup: [u16; 3]) -> Result<vkfd_client::Fence> {
        let kernel = self.code.kernel(name).with_context(|| format!("no kernel {name}"))?;
        Ok(self.queue.dispatch(&Launch { kernel, args, grid, workgroup, dynamic_bytes: 0 })?)
    }

    /// Runs a kernel over a buffer; the time until its signal.
    pub(crate) fn run(&mut self, name: &str, args: &[u8], grid: [u32; 3], workgroup: [u16; 3]) -> Result<Duration> {
        let begin = Instant::now();
        self.launch(name, args, grid, workgroup)?.wait(PATIENCE)?;
        Ok(begin.elapsed())
    }

    fn fill(&mut self, to: u64, bytes: u64, value: u32) -> Result<Duration> {
        let mut args = words(&[to, bytes / 16, ITEMS.into()]);
        args.extend(value.to_le_bytes());
        self.run("fill", &args, [ITEMS, 1, 1], [GROUP, 1, 1])
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn zero(buffer: &Buffer) -> Result<()> {
    let page = [0; 4096];
    for at in (0..buffer.len()).step_by(page.len()) {
        buffer.write(at, &page)?;
    }
    Ok(())
}

fn word(buffer: &Buffer, at: u64) -> Result<u32> {
    let mut bytes = [0; 4];
    buffer.read(at, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Measures one kind of work.
pub(super) fn measure(work: Work, rig: &mut Rig, report: &mut Report, rounds: usize, advance: impl Fn()) -> Result<()> {
    match work {
        Work::Memory => memory(rig, report, rounds, &advance),
        Work::Matmul => matmul(rig, report, rounds, &advance),
        Work::Launch => launch(rig, report, rounds, &advance),
        Work::Suspend => suspend(rig, report, rounds, &advance),
        Work::Scattered => scattered(rig, report, rounds, &advance),
        _ => Ok(()),
    }
}

fn memory(rig: &mut Rig, report: &mut Report, rounds: usize, advance: &impl Fn()) -> Result<()> {
    let bytes: usize = 192 << 20;
    let (mut from, mut to) = (vec![1u8; bytes], vec![2u8; bytes]);
    let (source, target) = (rig.memory(bytes)?, rig.memory(bytes)?);
    let (mut fills, mut copies) = (Samples::default(), Samples::default());
    for round in 0..rounds {
        let value = 0x0101_0101 * (u32::try_from(round % 200)? + 1);
        fills.add_to(round, Who::Engine, rig.fill(source.gpu_va().0, bytes as u64, value)?);
        let begin = Instant::now();
        to.fill(std::hint::black_box(3));
        std::hint::black_box(&mut to);
        fills.add_to(round, Who::Yardstick, begin.elapsed());
        let args = words(&[target.gpu_va().0, source.gpu_va().0, bytes as u64 / 16, ITEMS.into()]);
        copies.add_to(round, Who::Engine, rig.run("copy", &args, [ITEMS, 1, 1], [GROUP, 1, 1])?);
        let begin = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        copies.add_to(round, Who::Yardstick, begin.elapsed());
        from[round] = to[round];
        for at in [0, bytes as u64 / 2 + 4, bytes as u64 - 4] {
            ensure!(word(&target, at)? == value, "what was filled and copied is wrong at {at:#x}");
        }
        advance();
    }
    let amount = [bytes as f64; 2];
    add(report, &fills, Row { what: FILL, unit: "bytes", yardstick: "memset", amounts: amount, limit: 0.7 });
    add(report, &copies, Row { what: COPY, unit: "bytes", yardstick: "memcpy", amounts: amount, limit: 0.7 });
    Ok(())
}

fn matmul(rig: &mut Rig, report: &mut Report, rounds: usize, advance: &impl Fn()) -> Result<()> {
    // Small integers: all sums are exact.
    let element = |row: usize, column: usize, add: usize| ((row * 3 + column * 5 + add) % 7) as f32 - 3.0;
    let matrix = |add| -> Vec<f32> { (0..ORDER * ORDER).map(|n| element(n / ORDER, n % ORDER, add)).collect() };
    let (a, b) = (matrix(0), matrix(2));
    let mut expected = vec![0f32; ORDER * ORDER];
    let buffers = [rig.memory(4 * ORDER * ORDER)?, rig.memory(4 * ORDER * ORDER)?, rig.memory(4 * ORDER * ORDER)?];
    for (buffer, matrix) in buffers.iter().zip([&a, &b]) {
        buffer.write(0, &matrix.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?;
    }
    let order = u32::try_from(ORDER)?;
    let mut args = words(&buffers.each_ref().map(|buffer| buffer.gpu_va().0));
    args.extend([order, order].iter().flat_map(|order| order.to_le_bytes()));
    let mut samples = Samples::default();
    for round in 0..rounds {
        samples.add_to(round, Who::Engine, rig.run("matmul", &args, [order, order, 1], [16, 16, 1])?);
        let begin = Instant::now();
        host::matmul(&a, &b, &mut expected, ORDER);
        samples.add_to(round, Who::Yardstick, begin.elapsed());
        advance();
    }
    let [.., result] = &buffers;
    for n in (0..ORDER * ORDER).step_by(37) {
        let found = f32::from_bits(word(result, 4 * n as u64)?);
        ensure!(found == expected[n], "element {n} of the product is {found}, not {}", expected[n]);
    }
    let amounts = [2.0 * (ORDER * ORDER * ORDER) as f64; 2];
    add(report, &samples, Row { what: MATMUL, unit: "flop", yardstick: "naive code", amounts, limit: 1.0 });
    Ok(())
}

/// The middle one of many times.
fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn launch(rig: &mut Rig, report: &mut Report, rounds: usize, advance: &impl Fn()) -> Result<()> {
    let mut samples = Samples::default();
    for round in 0..rounds {
        let (mut launches, mut barriers) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            launches.push(rig.run("empty", &[], [64, 1, 1], [GROUP, 1, 1])?);
            let begin = Instant::now();
            rig.queue.barrier()?.wait(PATIENCE)?;
            barriers.push(begin.elapsed());
        }
        samples.add_to(round, Who::Engine, middle(launches));
        samples.add_to(round, Who::Yardstick, middle(barriers));
        advance();
    }
    let row = Row { what: LAUNCH, unit: "packets", yardstick: "barrier packet", amounts: [1.0; 2], limit: 2.0 };
    super::note(report, &samples, &row);
    report.head.targets.push(Goal::at_most(LAUNCH, 2.0, samples.ratio(Who::Engine, Who::Yardstick)));
    Ok(())
}

/// Suspends of the GPU's address spaces, of which one computes; in microseconds.
fn suspend(rig: &mut Rig, report: &mut Report, rounds: usize, advance: &impl Fn()) -> Result<()> {
    let gpus = rig.machine.gpus().to_vec();
    let gpu = gpus.first().context("the machine has no GPU")?.software();
    let to = rig.memory(4 * ITEMS as usize)?;
    let (mut worst, mut all) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut args = words(&[to.gpu_va().0]);
        args.extend(2000u32.to_le_bytes());
        let fence = rig.launch("busy", &args, [ITEMS, 1, 1], [GROUP, 1, 1])?;
        let mut times = Vec::new();
        std::thread::sleep(Duration::from_millis(2));
        while times.len() < 200 && !fence.is_done() {
            let begin = Instant::now();
            (0..16).for_each(|vmid| gpu.suspend(Vmid(vmid)));
            times.push(begin.elapsed());
            (0..16).for_each(|vmid| gpu.resume(Vmid(vmid)));
            std::thread::sleep(Duration::from_micros(200));
        }
        let computed = !fence.is_done();
        all.extend(&times);
        fence.wait(PATIENCE)?;
        ensure!(computed || times.len() > 50, "the kernel that computes meanwhile ended too early");
        times.sort_unstable();
        let at = (times.len() * 99 / 100).min(times.len().saturating_sub(1));
        worst.push(times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6));
        advance();
    }
    report.head.targets.push(Goal::at_most(SUSPEND, 100.0, Spread::of(worst)));
    report.suspending = super::Quantiles::of(all);
    Ok(())
}

fn scattered(rig: &mut Rig, report: &mut Report, rounds: usize, advance: &impl Fn()) -> Result<()> {
    let arena = Arena::scattered(RANGES, RANGE_BYTES, Pages::Small)?;
    let register = |ranges: &[UserptrRange]| -> Result<Buffer> {
        // SAFETY: the arena's memory is accessed by raw pointers only, and outlives the buffers.
        Ok(unsafe { rig.client.register_ranges(ranges, &RegisterOptions::default())? })
    };
    let buffers = [register(&arena.ranges)?, register(std::slice::from_ref(&arena.whole))?];
    let mut samples = Samples::default();
    for round in 0..rounds {
        for turn in 0..2 {
            let index = (round + turn) % 2;
            let who = [Who::Engine, Who::Yardstick][index];
            let value = u32::try_from(round)? + 1;
            let buffer = &buffers[index];
            samples.add_to(round, who, rig.fill(buffer.gpu_va().0, buffer.len(), value)?);
        }
        let first = NonNull::new(arena.pointer(arena.ranges[0])).context("a range")?;
        // SAFETY: the range's first word; the GPU has finished.
        let found = unsafe { first.cast::<u32>().as_ptr().read_volatile() };
        ensure!(found == u32::try_from(round)? + 1, "the first range has {found}");
        advance();
    }
    let amounts = [(RANGES as u64 * RANGE_BYTES) as f64; 2];
    add(report, &samples, Row { what: SCATTERED, unit: "bytes", yardstick: "one range", amounts, limit: 0.9 });
    drop(buffers);
    drop(arena);
    Ok(())
}
