// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The system's KFD, which may be AMD's. 64 scattered pages of the process go through a copy
//! queue into the GPU's memory and back. Then 8 MiB move to the GPU, are filled there at the same
//! address, and come back when the CPU touches them.

use std::alloc::{alloc_zeroed, Layout};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::time::Duration;

use vkfd_client::{
    AllocOptions, Client, CopyQueue, GpuSet, GpuVa, Location, RegisterOptions, Result, SvmAccess, SvmSet, UserptrRange,
};

const PAGE: usize = 4096;
const PAGES: usize = 64;
const BYTES: usize = 8 << 20;
const WAIT: Duration = Duration::from_secs(30);

fn main() -> Result {
    let client = Client::open()?;
    let gpu = client.gpus()[0].id;
    let mut queue = CopyQueue::new(&client, gpu)?;
    scattered(&client, &mut queue)?;
    moved(&client, &mut queue)
}

/// Each page is a buffer of its own, as any KFD has them.
fn scattered(client: &Client, queue: &mut CopyQueue) -> Result {
    let gpu = queue.gpu();
    let layout = Layout::from_size_align(PAGE, PAGE).expect("a page");
    // SAFETY: the layout is not empty.
    let page = || unsafe { alloc_zeroed(layout) };
    // Pages between them stay unused.
    let pages: Vec<*mut u8> = (0..2 * PAGES).map(|_| page()).collect::<Vec<_>>().into_iter().step_by(2).collect();
    let contents = |number: usize| u8::try_from(number + 1).expect("a byte");
    let vram = client.alloc(&AllocOptions::vram(gpu, (PAGES * PAGE) as u64))?;
    vram.map(&GpuSet::from(gpu))?;
    let mut buffers = Vec::new();
    for (number, page) in pages.iter().enumerate() {
        // SAFETY: allocated above; the GPU does not know of it yet.
        unsafe { page.write_bytes(contents(number), PAGE) };
        // SAFETY: the page stays allocated; nothing has a reference to it while copies run.
        let buffer = unsafe { client.register(page.cast(), PAGE as u64, &RegisterOptions::default())? };
        queue.copy(GpuVa(vram.gpu_va().0 + (number * PAGE) as u64), buffer.gpu_va(), PAGE as u64);
        buffers.push(buffer);
    }
    queue.submit()?.wait(WAIT)?;
    // Back, each into the page of another.
    for (number, buffer) in buffers.iter().rev().enumerate() {
        queue.copy(buffer.gpu_va(), GpuVa(vram.gpu_va().0 + (number * PAGE) as u64), PAGE as u64);
    }
    queue.submit()?.wait(WAIT)?;
    let right = pages.iter().rev().enumerate().filter(|(number, page)| {
        // SAFETY: allocated above, and the copies are done.
        (0..PAGE).all(|byte| unsafe { page.add(byte).read() } == contents(*number))
    });
    assert_eq!(right.count(), PAGES, "pages with the right contents");
    println!("{PAGES} scattered pages went to the GPU's memory and back");
    Ok(())
}

/// Pages of the memory that are with a device: those that the kernel shows as swapped, on a
/// machine without swap.
fn away(at: usize) -> usize {
    const SWAPPED: u64 = 1 << 62;
    let pagemap = File::open("/proc/self/pagemap").expect("pagemap");
    let mut entries = vec![0; BYTES / PAGE * 8];
    pagemap.read_exact_at(&mut entries, (at / PAGE * 8) as u64).expect("entries of the pagemap");
    let entries = entries.chunks_exact(8).map(|entry| u64::from_le_bytes(entry.try_into().expect("eight bytes")));
    entries.filter(|entry| entry & SWAPPED != 0).count()
}

fn moved(client: &Client, queue: &mut CopyQueue) -> Result {
    let gpu = queue.gpu();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED, "mmap");
    let words = at.cast::<u32>();
    let number = |word: usize| u32::try_from(word).expect("a word's number");
    // SAFETY: mapped above; the GPU does not know of it yet.
    (0..BYTES / 4).for_each(|word| unsafe { words.add(word).write(number(word)) });
    let memory = UserptrRange { start: at as u64, size: BYTES as u64 };
    // SAFETY: from here on nothing has a reference to the memory.
    unsafe { client.svm_set(memory, &[SvmSet::Access(gpu, SvmAccess::Migrate)])? };
    client.prefetch(memory, Location::Gpu(gpu))?;
    assert_eq!(away(at as usize), BYTES / PAGE, "pages that have moved");
    // The second half; the first has to come along unchanged.
    queue.fill(GpuVa(memory.start + memory.size / 2), 7, memory.size / 2)?.submit()?.wait(WAIT)?;
    let expected = |word| if word < BYTES / 8 { number(word) } else { 7 };
    // SAFETY: mapped above, and the GPU is done.
    let wrong = (0..BYTES / 4).filter(|word| unsafe { words.add(*word).read() } != expected(*word)).count();
    assert_eq!((wrong, away(at as usize)), (0, 0), "wrong words, and pages that have not come back");
    println!("8 MiB went to the GPU's memory and came back");
    Ok(())
}
