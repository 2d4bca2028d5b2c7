// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs a kernel of one's own (`triple.cl`) over scattered memory: a thousand pages from here and
//! there are one range for the GPU.

use std::alloc::{alloc_zeroed, Layout};
use std::time::Duration;

use vkfd_client::{Client, CodeObject, ComputeQueue, Launch, MachineOptions, RegisterOptions, Result, UserptrRange};

const PAGES: u32 = 1000;
const WORDS: u32 = 1024;

fn main() -> Result {
    let client = Client::embedded(MachineOptions::default())?; // Client::open() for /dev/kfd
    let gpu = client.gpus()[0].id;
    let code = CodeObject::load(&client, gpu, include_bytes!("triple.gfx900.co"))?;
    let triple = code.kernel("triple").expect("the kernel is in the file");

    let page = Layout::new::<Page>();
    // SAFETY: the layout is not empty, and zeros are a page.
    let pages: Vec<*mut Page> = (0..PAGES).map(|_| unsafe { alloc_zeroed(page) }.cast()).collect();
    for (number, page) in (0..).zip(&pages) {
        let mut words = [0; WORDS as usize];
        (0..).zip(&mut words).for_each(|(word, value)| *value = word + number * 10_000);
        // SAFETY: allocated above; the GPU does not know of it yet.
        unsafe { page.write(Page(words)) };
    }
    let list: Vec<_> = pages.iter().map(|page| UserptrRange { start: *page as u64, size: 4096 }).collect();
    // SAFETY: the pages stay allocated, and while a kernel works on them nothing has a reference to
    // them.
    let buffer = unsafe { client.register_ranges(&list, &RegisterOptions::default())? };

    // The kernel's arguments, as the compiler lays them out: a pointer and a count.
    let count = PAGES * WORDS;
    let args = [&buffer.gpu_va().0.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let mut queue = ComputeQueue::new(&client, gpu)?;
    let launch = Launch { kernel: triple, args: &args, grid: [count, 1, 1], workgroup: [64, 1, 1], dynamic_bytes: 0 };
    queue.dispatch(&launch)?.wait(Duration::from_secs(60))?;

    for (number, page) in (0..).zip(&pages) {
        // SAFETY: allocated above, and the kernel is done.
        let Page(words) = unsafe { page.read() };
        assert!((0..).zip(words).all(|(word, value)| value == 3 * (word + number * 10_000)), "page {number}");
    }
    println!("{PAGES} scattered pages, tripled in place by a kernel");
    Ok(())
}

#[repr(C, align(4096))]
struct Page([u32; WORDS as usize]);
