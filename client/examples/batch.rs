// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One GPU range out of a thousand scattered pieces of memory.
use std::alloc::{alloc_zeroed, Layout};
use std::time::Duration;
use vkfd_client::{AllocOptions, Client, CopyQueue, MachineOptions, RegisterOptions, Result, UserptrRange};

fn main() -> Result {
    let client = Client::embedded(MachineOptions::default())?; // Client::open() for /dev/kfd
    let gpu = client.gpus()[0].id;
    let page = Layout::from_size_align(4096, 4096).expect("a page");
    // SAFETY: the layout is not empty.
    let piece = |_| UserptrRange { start: unsafe { alloc_zeroed(page) } as u64, size: 4096 };
    let pieces: Vec<UserptrRange> = (0..1000).map(piece).collect();
    // SAFETY: the pieces stay allocated, and nothing has a reference to them.
    let source = unsafe { client.register_ranges(&pieces, &RegisterOptions::default())? };
    let target = client.alloc(&AllocOptions::vram(gpu, source.len()))?;
    let mut queue = CopyQueue::new(&client, gpu)?;
    queue.copy_now(target.gpu_va(), source.gpu_va(), source.len(), Duration::from_secs(5))?;
    println!("{} pieces are one GPU range of {} bytes at {}", pieces.len(), source.len(), source.gpu_va());
    Ok(())
}
