// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Recovering from a page fault: a part of registered memory is taken away under the GPU's feet.
//! The error says where, the buffer says which range of the list that is; memory is put there
//! again, the buffer is validated, and a new queue does the work.

use std::ptr;
use std::time::Duration;

use vkfd_client::{
    AllocOptions, Client, ClientError, CopyQueue, MachineOptions, RegisterOptions, Result, UserptrRange, PAGE,
};

const LIST: usize = 100;
const PAGE_BYTES: usize = 4096;
const LOST: usize = 43;
const PATIENCE: Duration = Duration::from_secs(60);

/// Maps pages. With an address they replace the mappings there.
fn map(at: u64, bytes: usize) -> u64 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: a new mapping, or one over a page of this program that nothing has a reference to.
    let mapped = unsafe { libc::mmap(at as *mut _, bytes, protection, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED, "mmap");
    mapped as u64
}

fn main() -> Result {
    let client = Client::embedded(MachineOptions::default())?;
    let gpu = client.gpus()[0].id;
    let memory = map(0, 2 * LIST * PAGE_BYTES);
    // Every second page.
    let list: Vec<_> = (0..LIST as u64).map(|i| UserptrRange { start: memory + 2 * i * PAGE, size: PAGE }).collect();
    // SAFETY: nothing has a reference to the memory.
    let source = unsafe { client.register_ranges(&list, &RegisterOptions::default())? };
    let target = client.alloc(&AllocOptions::vram(gpu, source.len()))?;

    // A reservation in its place keeps the address: the next mapping of the program's could be put
    // there.
    let gone = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: mapped above; nothing has a reference to it.
    let gone = unsafe { libc::mmap(list[LOST].start as *mut _, PAGE_BYTES, libc::PROT_NONE, gone, -1, 0) };
    assert_ne!(gone, libc::MAP_FAILED, "mmap");
    let mut queue = CopyQueue::new(&client, gpu)?;
    let error = queue.copy_now(target.gpu_va(), source.gpu_va(), source.len(), PATIENCE).unwrap_err();
    let ClientError::GpuFault { va, .. } = error else { return Err(error) };
    let (range, _) = source.range_at(va).expect("the address is in the buffer");
    println!("{error}: that is range {range}");
    assert_eq!(range, LOST);
    // It has stopped for good.
    drop(queue);

    let again = map(list[range].start, PAGE_BYTES);
    // SAFETY: mapped just now.
    unsafe { ptr::write_bytes(again as *mut u8, 0xee, PAGE_BYTES) };
    source.revalidate()?;
    let mut queue = CopyQueue::new(&client, gpu)?;
    queue.copy_now(target.gpu_va(), source.gpu_va(), source.len(), PATIENCE)?;
    let mut bytes = vec![0; PAGE_BYTES];
    target.read(range as u64 * PAGE, &mut bytes)?;
    assert!(bytes.iter().all(|byte| *byte == 0xee), "what is there now was copied");
    println!("and its new contents are copied");
    Ok(())
}
