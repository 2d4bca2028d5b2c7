// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A kernel at work on memory for as long as a scenario wants (`stir.cl`).
//!
//! Each word goes from step to step of a linear congruential generator, every step from memory and
//! to memory. A lost write, a read of a page after its replacement, or a step that is done twice
//! leaves a word that does not match the count of steps.

use std::time::Duration;

use vkfd_client::{Client, ClientError, CodeObject, ComputeQueue, GpuId, GpuVa, Launch, Result};

const CODE: &[u8] = include_bytes!("stir.gfx900.co");
/// What the code was compiled for.
const TARGET: u32 = 90_000;
/// Work-items of a group.
const GROUP: u16 = 256;
/// Of a launch: few enough that each sees many pages.
const GROUPS: u32 = 8;
const LIMIT: Duration = Duration::from_secs(300);
/// Of the generator.
const FACTOR: u32 = 1_664_525;
const SUMMAND: u32 = 1_013_904_223;

/// A queue of a GPU, with the kernel.
pub(crate) struct Stirrer {
    // Before the code: its launches end first.
    queue: ComputeQueue,
    code: CodeObject,
}

impl Stirrer {
    /// # Errors
    ///
    /// [`ClientError::Unsupported`] for a GPU that the kernel was not compiled for; otherwise what
    /// the calls failed with.
    pub(crate) fn new(client: &Client, gpu: GpuId) -> Result<Self> {
        let target = client.gpus().iter().find(|info| info.id == gpu).map(|info| info.gfx_target_version);
        if target != Some(TARGET) {
            return Err(ClientError::Unsupported(format!("the kernel is for {TARGET}, {gpu} is {target:?}")));
        }
        Ok(Self { queue: ComputeQueue::new(client, gpu)?, code: CodeObject::load(client, gpu, CODE)? })
    }

    /// Takes `words` words of 32 bits `steps` steps further and waits.
    ///
    /// # Errors
    ///
    /// As [`ComputeQueue::dispatch`] and [`vkfd_client::Fence::wait`].
    pub(crate) fn stir(&mut self, va: GpuVa, words: u64, steps: u64) -> Result {
        let kernel = self.code.kernel("stir").ok_or_else(|| ClientError::Invalid("no kernel stir".into()))?;
        let items = GROUPS * u32::from(GROUP);
        let args: Vec<u8> = [va.0, words, steps, u64::from(items)].iter().flat_map(|word| word.to_le_bytes()).collect();
        let launch = Launch { kernel, args: &args, grid: [items, 1, 1], workgroup: [GROUP, 1, 1], dynamic_bytes: 0 };
        self.queue.dispatch(&launch)?.wait(LIMIT)
    }
}

/// What `bytes` are after so many steps. O(log `steps` + bytes).
pub(crate) fn stirred(bytes: &[u8], steps: u64) -> Vec<u8> {
    // x -> factor * x + summand, `steps` times, by squares.
    let (mut factor, mut summand) = (1_u32, 0_u32);
    let (mut square, mut offset, mut left) = (FACTOR, SUMMAND, steps);
    while left > 0 {
        if left & 1 == 1 {
            (factor, summand) = (factor.wrapping_mul(square), summand.wrapping_mul(square).wrapping_add(offset));
        }
        (square, offset) = (square.wrapping_mul(square), offset.wrapping_mul(square).wrapping_add(offset));
        left >>= 1;
    }
    let step = |word: u32| word.wrapping_mul(factor).wrapping_add(summand);
    let words = bytes.chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes));
    words.flat_map(|word| step(word).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_steps_at_once_are_the_steps_one_by_one() {
        let bytes: Vec<u8> = (0..64).collect();
        let mut one_by_one = bytes.clone();
        for steps in 0..100 {
            assert_eq!(stirred(&bytes, steps), one_by_one, "{steps} steps");
            one_by_one = stirred(&one_by_one, 1);
        }
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        assert_eq!(word(&stirred(&bytes, 1)), word(&bytes).wrapping_mul(FACTOR).wrapping_add(SUMMAND));
    }
}
