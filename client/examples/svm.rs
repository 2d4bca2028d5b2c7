// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM: a GPU uses memory of the process at the address where the CPU has it. The memory moves to
//! the GPU, is used there, and comes back when the CPU touches it.

use std::ptr;
use std::time::Duration;

use vkfd_client::{Client, CopyQueue, GpuVa, Location, MachineOptions, Result, SvmAccess, SvmSet, UserptrRange};

const BYTES: usize = 8 << 20;
const WORDS: usize = BYTES / 4;

fn main() -> Result {
    let client = Client::embedded(MachineOptions::default())?;
    let gpu = client.gpus()[0].id;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED, "mmap");
    let words = at.cast::<u32>();
    // SAFETY: mapped above; the GPU does not know of it yet.
    (0..WORDS).for_each(|word| unsafe { words.add(word).write(1) });

    let memory = UserptrRange { start: at as u64, size: BYTES as u64 };
    // SAFETY: from here on nothing has a reference to the memory.
    unsafe { client.svm_set(memory, &[SvmSet::Access(gpu, SvmAccess::Migrate)])? };
    let before = client.available_vram(gpu)?;
    client.prefetch(memory, Location::Gpu(gpu))?;
    println!("on the GPU: {} KiB of its memory are used", (before - client.available_vram(gpu)?) >> 10);

    // The same address, on the GPU.
    let mut queue = CopyQueue::new(&client, gpu)?;
    queue.fill(GpuVa(memory.start), 2, memory.size / 2)?.submit()?.wait(Duration::from_secs(60))?;

    // And on the CPU, which brings the memory back where it has to.
    // SAFETY: mapped above, and the GPU is done.
    let right = (0..WORDS).all(|word| unsafe { words.add(word).read() } == if word < WORDS / 2 { 2 } else { 1 });
    assert!(right, "the CPU sees what the GPU wrote");
    println!("the CPU sees what the GPU wrote at the same address");

    // SAFETY: takes access away.
    unsafe { client.svm_set(memory, &[SvmSet::Access(gpu, SvmAccess::None)])? };
    // SAFETY: mapped above, and nobody uses it any more.
    unsafe { libc::munmap(at, BYTES) };
    Ok(())
}
