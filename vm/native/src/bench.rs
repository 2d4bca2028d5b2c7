// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a registration costs the guest: register, map, one pass of the GPU, free; of memory in few
//! pieces and of memory in many. Passes: a kernel that computes a CRC, one that only adds words up,
//! and the GPU's copier.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use vkfd_remote::protocol::hsakmt::memory::Layout;
use vkfd_remote::protocol::hsakmt::Request;

use crate::age::Aged;
use crate::aql::AqlQueue;
use crate::library::{Allocation, CopyQueue, Session};
use crate::memory::Buffer;

#[derive(clap::Args)]
pub struct Args {
    /// Pages of each buffer
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 256, 4096, 16384])]
    pages: Vec<u64>,
    /// Times that each is measured
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

/// One measurement, in microseconds.
#[derive(Serialize)]
struct Times {
    pages: u64,
    scattered: bool,
    register: f64,
    map: f64,
    crc: f64,
    sum: f64,
    copy: f64,
    free: f64,
    round_trip: f64,
}

impl Times {
    fn print(&self) -> Result<()> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}

pub fn run(args: &Args, layout: Layout) -> Result<()> {
    let most = args.pages.iter().copied().max().context("no sizes")?;
    let mut session = Session::open(layout)?;
    let mut queue = session.copy_queue()?;
    let mut aql = AqlQueue::new(&mut session)?;
    let target = session.alloc(session.gpus[0], most * 4096, false)?;
    // Warm, so that the first measurement is like the others.
    let whole: Vec<Buffer> =
        args.pages.iter().map(|pages| filled(Buffer::of_large_pages(pages * 4096)?, *pages)).collect::<Result<_>>()?;
    let adopted = |session: &mut Session, buffers: &[Buffer]| -> Result<Vec<_>> {
        buffers.iter().map(|buffer| session.adopt(buffer.at(), buffer.bytes())).collect()
    };
    let few = adopted(&mut session, &whole)?;
    let aged = Aged::new(args.pages.iter().sum::<u64>() * 4096)?;
    let scattered: Vec<Buffer> =
        args.pages.iter().map(|pages| filled(Buffer::new(pages * 4096)?, *pages)).collect::<Result<_>>()?;
    let many = adopted(&mut session, &scattered)?;
    for (few, many) in few.iter().zip(&many) {
        for run in 0..=args.runs {
            // In turn, so that both have the same machine.
            for (registered, is_scattered) in [(few, false), (many, true)] {
                let times = measure(&mut session, (&mut queue, &mut aql), &target, registered, is_scattered)?;
                if run > 0 {
                    times.print()?;
                }
            }
        }
    }
    drop(aged);
    Ok(())
}

fn filled(buffer: Buffer, seed: u64) -> Result<Buffer> {
    buffer.fill(seed);
    Ok(buffer)
}

fn measure(
    session: &mut Session,
    (queue, aql): (&mut CopyQueue, &mut AqlQueue),
    target: &Allocation,
    registered: &crate::library::Registered,
    scattered: bool,
) -> Result<Times> {
    let bytes = registered.bytes;
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let mut clock = Instant::now();
    let mut lap = || {
        let now = Instant::now();
        let time = micros(now - clock);
        clock = now;
        time
    };
    session.register_only(registered)?;
    let register = lap();
    session.map(registered.address, bytes, registered.gem.resource)?;
    let map = lap();
    aql.crc(registered.address, bytes)?;
    let crc = lap();
    aql.sum(registered.address, bytes)?;
    let sum = lap();
    queue.copy(target.address, registered.address, bytes, None)?;
    let copy = lap();
    session.deregister(registered)?;
    let free = lap();
    // What a request costs that does nothing.
    session.send(&Request::Nop)?;
    let round_trip = lap();
    Ok(Times { pages: bytes / 4096, scattered, register, map, crc, sum, copy, free, round_trip })
}
