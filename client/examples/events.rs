// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Waiting: work on two GPUs at a time, looked at without waiting, and waited for by KFD's events,
//! which lets the thread sleep.

use std::time::Duration;

use vkfd_client::{AllocOptions, Client, ComputeQueue, Kernel, MachineOptions, Result};

const COUNT: u64 = 1 << 18;

fn main() -> Result {
    let client = Client::embedded(MachineOptions { gpus: 2, ..MachineOptions::default() })?;
    let mut under_way = Vec::new();
    for gpu in client.gpus() {
        let words = client.alloc(&AllocOptions::vram(gpu.id, COUNT * 8))?;
        let sum = client.alloc(&AllocOptions::vram(gpu.id, 8))?;
        let mut queue = ComputeQueue::new(&client, gpu.id)?;
        // One after the other in one queue, beside the other GPU's.
        queue.launch(&Kernel::Iota64 { dst: words.gpu_va(), count: COUNT, start: 1 })?;
        let fence = queue.launch(&Kernel::Sum64 { src: words.gpu_va(), count: COUNT, out: sum.gpu_va() })?;
        under_way.push((gpu.id, queue, words, sum, fence));
    }
    // Whatever else there is to do can be done here.
    let done = under_way.iter().filter(|(.., fence)| fence.is_done()).count();
    println!("{} GPUs at work, {done} done already", under_way.len());
    for (gpu, _queue, _words, sum, fence) in &under_way {
        fence.wait(Duration::from_secs(60))?;
        let mut bytes = [0; 8];
        sum.read(0, &mut bytes)?;
        assert_eq!(u64::from_le_bytes(bytes), COUNT * (COUNT + 1) / 2);
        println!("GPU {gpu}: 1 + 2 + ... + {COUNT} = {}", u64::from_le_bytes(bytes));
    }
    Ok(())
}
