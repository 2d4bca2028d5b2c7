// SPDX-License-Identifier: GPL-2.0 OR MIT
//! That guest and GPU see the same memory, whichever writes it.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use vkfd_remote::protocol::hsakmt::memory::{Layout, Memory};

use crate::age::Aged;
use crate::aql::AqlQueue;
use crate::library::{Allocation, CopyQueue, Registered, Session, PATIENCE};
use crate::memory::{crc, Buffer};

#[derive(clap::Args)]
pub struct Args {
    /// Size of the largest buffer in MiB
    #[arg(long, default_value_t = 64)]
    mib: u64,
}

#[derive(clap::Args)]
pub struct HoldArgs {
    /// Size of the buffer in MiB
    #[arg(long, default_value_t = 16)]
    mib: u64,
    /// Use it until the guest's balloon has taken memory and given it back so often
    #[arg(long)]
    balloons: Option<u32>,
}

/// What a check needs.
pub struct Bench {
    pub session: Session,
    queue: CopyQueue,
    /// For the GPU's view, as large as the largest buffer.
    copy: Allocation,
}

impl Bench {
    pub fn new(layout: Layout, bytes: u64) -> Result<Self> {
        let mut session = Session::open(layout)?;
        let queue = session.copy_queue()?;
        let copy = session.alloc(session.gpus[0], bytes, true)?;
        Ok(Self { session, queue, copy })
    }

    /// CRC of the memory at `address`, as the GPU reads it.
    pub fn gpu_crc(&mut self, address: u64, bytes: u64) -> Result<u32> {
        self.queue.copy(self.copy.address, address, bytes, None)?;
        let at = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(usize::try_from(self.copy.address)?));
        Ok(crc(at.context("the null page")?, usize::try_from(bytes)?))
    }

    /// That the GPU sees what the CPU does.
    pub fn agree(&mut self, buffer: &Buffer, registered: &Registered, what: &str) -> Result<()> {
        let (gpu, cpu) = (self.gpu_crc(registered.address, buffer.bytes())?, buffer.crc());
        ensure!(gpu == cpu, "{what}: CRC {gpu:08x} on the GPU, {cpu:08x} in the guest");
        Ok(())
    }
}

pub fn run(args: &Args, layout: Layout) -> Result<()> {
    let bytes = args.mib << 20;
    let aged = Aged::new(bytes).context("age memory")?;
    let mut bench = Bench::new(layout, bytes.max(PEER_BYTES))?;
    println!("{} GPUs, gfx{}; layout {layout:?}", bench.session.gpus.len(), bench.session.gfx);
    for (seed, pages) in [(1, 1), (2, 3), (3, 64), (4, 1000), (5, bytes / 4096)] {
        one(&mut bench, seed, pages.min(bytes / 4096) * 4096)?;
    }
    let stand_in = if bench.session.stand_in { "stood in for userptr (a stock kernel)" } else { "userptr" };
    println!("buffers of the guest: {stand_in}");
    two_contexts(&mut bench)?;
    events(&mut bench)?;
    let mut aql = AqlQueue::new(&mut bench.session)?;
    for _ in 0..3 {
        aql.barrier()?;
    }
    println!("an AQL queue's barriers have decremented their signals");
    kernels(&mut bench, &mut aql)?;
    drop(aged);
    Ok(())
}

/// One buffer: read by the GPU, written by the GPU, written by the CPU, registered again.
fn one(bench: &mut Bench, seed: u64, bytes: u64) -> Result<()> {
    let buffer = Buffer::new(bytes)?;
    buffer.fill(seed);
    let began = Instant::now();
    let registered = bench.session.register(buffer.at(), bytes)?;
    let took = began.elapsed();
    ensure!(buffer.wrong(seed).is_none(), "registration has changed the contents");
    bench.agree(&buffer, &registered, "after registration")?;
    // The CPU writes.
    buffer.fill(seed + 100);
    bench.agree(&buffer, &registered, "after the CPU has written")?;
    // The GPU writes what it has seen before, over something else.
    buffer.fill(seed + 200);
    bench.queue.copy(registered.address, bench.copy.address, bytes, None)?;
    if let Some((place, count)) = buffer.wrong(seed + 100) {
        anyhow::bail!("after the GPU has written: {count} words are wrong, the first is number {place}");
    }
    // And once more, registered anew.
    bench.session.deregister(&registered)?;
    ensure!(bench.session.deregister(&registered).is_err(), "what is not registered was unregistered");
    buffer.fill(seed + 300);
    bench.session.register_again(&registered)?;
    bench.agree(&buffer, &registered, "after registering again")?;
    println!(
        "{bytes} bytes: CRC {:08x} in guest and GPU; registered in {:.2} ms",
        buffer.crc(),
        took.as_secs_f64() * 1e3
    );
    Ok(())
}

/// A kernel of the guest's reads scattered memory of the guest.
fn kernels(bench: &mut Bench, aql: &mut AqlQueue) -> Result<()> {
    const BYTES: u64 = 1 << 20;
    let buffer = Buffer::new(BYTES)?;
    buffer.fill(21);
    let registered = bench.session.register(buffer.at(), BYTES)?;
    for seed in 22..24 {
        let (gpu, cpu) = (aql.crc(registered.address, BYTES)?, buffer.crc());
        ensure!(gpu == cpu, "a kernel: CRC {gpu:08x} on the GPU, {cpu:08x} in the guest");
        buffer.fill(seed);
    }
    println!("a kernel of the guest's has the CRC {:08x}, as the guest", aql.crc(registered.address, BYTES)?);
    Ok(())
}

/// Two processes at once see each its own memory, and not the other's. (In one process there cannot
/// be two: each has the same addresses of the host.)
fn two_contexts(first: &mut Bench) -> Result<()> {
    let buffer = Buffer::new(PEER_BYTES)?;
    buffer.fill(11);
    let registered = first.session.register(buffer.at(), PEER_BYTES)?;
    let mut other = Command::new(std::env::current_exe().context("this program's file")?);
    other.arg("peer").arg("--resource").arg(registered.gem.resource.to_string());
    let mut other = other.spawn().context("start another process")?;
    let mut rounds = 0;
    let ended = loop {
        buffer.fill(11 + rounds);
        first.agree(&buffer, &registered, "beside another context")?;
        rounds += 1;
        if let Some(ended) = other.try_wait()? {
            break ended;
        }
    };
    ensure!(ended.success(), "the other context: {ended}");
    first.agree(&buffer, &registered, "after the other context has gone")?;
    println!("two contexts at once: each its own memory ({rounds} rounds)");
    Ok(())
}

const PEER_BYTES: u64 = 4 << 20;

#[derive(clap::Args)]
pub struct PeerArgs {
    /// A resource of another context
    #[arg(long)]
    resource: u32,
}

/// The other context.
pub fn peer(args: &PeerArgs, layout: Layout) -> Result<()> {
    let mut bench = Bench::new(layout, PEER_BYTES)?;
    let borrowed = Memory::MapUserptr { resource: args.resource };
    ensure!(bench.session.try_memory(borrowed)? != 0, "a context used another one's blob");
    let buffer = Buffer::new(PEER_BYTES)?;
    let registered = bench.session.register(buffer.at(), PEER_BYTES)?;
    for seed in 0..8 {
        buffer.fill(1000 + seed);
        bench.agree(&buffer, &registered, "the second of two contexts")?;
    }
    Ok(())
}

/// Signals by CPU and GPU, and a wait that nobody ends.
fn events(bench: &mut Bench) -> Result<()> {
    let (event, slot) = bench.session.event()?;
    let began = Instant::now();
    ensure!(!bench.session.wait(&[event], 100)?, "an event that nobody has signalled");
    ensure!(began.elapsed() >= Duration::from_millis(100), "the wait was too short");
    bench.session.set_event(event)?;
    ensure!(bench.session.wait(&[event], 5000)?, "an event that the CPU has signalled");
    bench.queue.copy(bench.copy.address, bench.copy.address + 4096, 4096, Some((event, slot)))?;
    ensure!(bench.session.wait(&[event], 5000)?, "an event that the GPU has signalled");
    println!("events: signalled by CPU and GPU");
    Ok(())
}

/// Registers and waits, for tests that end this program.
pub fn hold(args: &HoldArgs, layout: Layout) -> Result<()> {
    let bytes = args.mib << 20;
    let mut bench = Bench::new(layout, bytes.max(PEER_BYTES))?;
    let buffer = Buffer::new(bytes)?;
    buffer.fill(1);
    let registered = bench.session.register(buffer.at(), bytes)?;
    bench.agree(&buffer, &registered, "held")?;
    println!("holding {bytes} bytes");
    if let Some(times) = args.balloons {
        return balloons(&mut bench, &buffer, &registered, times);
    }
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Guest and GPU agree about what is registered, and about what is registered anew, while memory
/// of the guest is discarded.
fn balloons(bench: &mut Bench, buffer: &Buffer, registered: &Registered, times: u32) -> Result<()> {
    let whole = memory_kib()?;
    let (mut taken, mut smaller) = (0, false);
    let began = Instant::now();
    for seed in 1000.. {
        buffer.fill(seed);
        bench.agree(buffer, registered, "under a balloon")?;
        let new = Buffer::new(PEER_BYTES)?;
        new.fill(seed + 1);
        let short = bench.session.register(new.at(), PEER_BYTES)?;
        bench.agree(&new, &short, "registered under a balloon")?;
        bench.session.deregister(&short)?;
        match (memory_kib()?, smaller) {
            (now, false) if now < whole / 4 * 3 => {
                smaller = true;
                println!("smaller: {now} of {whole} KiB");
            }
            (now, true) if now >= whole => {
                smaller = false;
                taken += 1;
                if taken == times {
                    println!("the balloon has taken memory and given it back {times} times, in {} rounds", seed - 999);
                    return Ok(());
                }
                println!("whole again");
            }
            _ => {}
        }
        let patience = PATIENCE.load(Ordering::Relaxed);
        ensure!(began.elapsed() < Duration::from_secs(patience), "no balloon came and went in {patience} s");
    }
    Ok(())
}

/// The memory that this kernel has.
fn memory_kib() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    Ok(number.context("/proc/meminfo does not say how much memory there is")?.parse()?)
}
