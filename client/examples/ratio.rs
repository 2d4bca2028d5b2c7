// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Times of the system's KFD for scattered pages: registered with one call for each, and with one
//! call for all where the KFD has it. Each by itself: registration with mapping, a copy of all
//! pages, a copy right after one page was replaced (the driver stops the queues and restores), and
//! the end. The middle one of three rounds is shown.

use std::ptr;
use std::time::{Duration, Instant};

use vkfd_client::{AllocOptions, Buffer, Client, CopyQueue, GpuSet, RegisterOptions, Result, Strategy, UserptrRange};

const PAGE: u64 = 4096;
const WAIT: Duration = Duration::from_secs(120);
const STEPS: [&str; 4] = ["register", "copy", "restore", "free"];

fn main() -> Result {
    let client = Client::open()?;
    let gpu = client.gpus()[0].id;
    let mut queue = CopyQueue::new(&client, gpu)?;
    for pages in [64, 1024, 4096] {
        let calls = rounds(&client, &mut queue, pages, Strategy::PerRange)?;
        if !client.caps().batch_flag {
            println!("{pages} pages: {}", show(&calls));
            continue;
        }
        let batch = rounds(&client, &mut queue, pages, Strategy::BatchFlag)?;
        println!("{pages} pages, a call for each: {}", show(&calls));
        println!("{pages} pages, one call:        {}", show(&batch));
        let ratio =
            |step: usize| format!("{} {:.1}", STEPS[step], calls[step].as_secs_f64() / batch[step].as_secs_f64());
        println!("{pages} pages, times as fast:   {}", (0..4).map(ratio).collect::<Vec<_>>().join(", "));
    }
    println!("ok");
    Ok(())
}

fn show(times: &[Duration; 4]) -> String {
    let step = |(name, time): (&&str, &Duration)| format!("{name} {:.2} ms", time.as_secs_f64() * 1e3);
    STEPS.iter().zip(times).map(step).collect::<Vec<_>>().join(", ")
}

fn rounds(client: &Client, queue: &mut CopyQueue, pages: u64, strategy: Strategy) -> Result<[Duration; 4]> {
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(round(client, queue, pages, strategy)?);
    }
    Ok(std::array::from_fn(|step| {
        let mut times: Vec<Duration> = all.iter().map(|times| times[step]).collect();
        times.sort();
        times[1]
    }))
}

fn round(client: &Client, queue: &mut CopyQueue, pages: u64, strategy: Strategy) -> Result<[Duration; 4]> {
    // Every second page, so that no two are one range.
    let bytes = usize::try_from(2 * pages * PAGE).expect("an address space");
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags | libc::MAP_POPULATE, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED, "mmap");
    let ranges: Vec<_> = (0..pages).map(|n| UserptrRange { start: at as u64 + 2 * n * PAGE, size: PAGE }).collect();
    let target = client.alloc(&AllocOptions::vram(queue.gpu(), pages * PAGE))?;
    target.map(&GpuSet::from(queue.gpu()))?;
    let mut times = [Duration::ZERO; 4];
    let start = Instant::now();
    let options = RegisterOptions { strategy, ..RegisterOptions::default() };
    // SAFETY: the memory stays mapped; nothing has a reference to it.
    let buffer: Buffer = unsafe { client.register_ranges(&ranges, &options)? };
    times[0] = start.elapsed();
    let mut copy = || -> Result<Duration> {
        let start = Instant::now();
        queue.copy(target.gpu_va(), buffer.gpu_va(), buffer.len()).submit()?.wait(WAIT)?;
        Ok(start.elapsed())
    };
    times[1] = copy()?;
    let middle = usize::try_from(pages / 2 * 2 * PAGE).expect("an address space");
    // SAFETY: a page of the mapping above, which the GPU only reads.
    let done = unsafe { libc::madvise(at.cast::<u8>().add(middle).cast(), 4096, libc::MADV_DONTNEED) };
    assert_eq!(done, 0, "madvise");
    times[2] = copy()?;
    let start = Instant::now();
    buffer.free()?;
    times[3] = start.elapsed();
    // SAFETY: the mapping above, of which nobody knows any more.
    unsafe { libc::munmap(at, bytes) };
    Ok(times)
}
