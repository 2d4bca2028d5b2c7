// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Lists of every shape: what lies where on the GPU.

mod backing;
mod guest;
mod order;
mod tables;

use vkfd_client::{Buffer, RegisterOptions, Strategy, UserptrRange, PAGE};

use crate::memory::{pattern, wrong_page, Memory};
use crate::{Scenario, Stop, World};

/// The scenarios.
pub(crate) fn scenarios() -> Vec<Scenario> {
    [order::SCENARIOS, tables::SCENARIOS, backing::SCENARIOS, guest::SCENARIOS].concat()
}

/// Pages that the GPU copies at once when it is checked.
const STEP: usize = 2048;

/// Registers ranges of a scenario's memory.
fn register(world: &World, ranges: &[UserptrRange], options: &RegisterOptions) -> vkfd_client::Result<Buffer> {
    // SAFETY: the scenario accesses the memory by volatile operations only.
    unsafe { world.client().register_ranges(ranges, options) }
}

fn with_strategy(strategy: Strategy) -> RegisterOptions {
    RegisterOptions { strategy, ..RegisterOptions::default() }
}

/// The numbers of the memory's pages in the order in which a list has them.
pub(crate) fn pages_of(memory: &Memory, ranges: &[UserptrRange]) -> Vec<u64> {
    let base = memory.whole().start;
    ranges.iter().flat_map(|r| (r.start - base) / PAGE..(r.start + r.size - base) / PAGE).collect()
}

/// The GPU must see, page by page from the buffer's start on, the pages of these numbers with the
/// pattern of `seed`.
pub(crate) fn gpu_sees(world: &World, buffer: &Buffer, pages: &[u64], seed: u64) -> Result<(), Stop> {
    ensure_eq!(buffer.len(), pages.len() as u64 * PAGE, "the buffer's size");
    let mut at = buffer.gpu_va();
    for (step, some) in pages.chunks(STEP).enumerate() {
        let bytes = some.len() as u64 * PAGE;
        let read = world.read_gpu(at, bytes)?;
        if let Some(wrong) = wrong_page(&read, some.iter().copied(), seed) {
            bail!("page {} of the GPU range is not memory page {}", step * STEP + wrong, some[wrong]);
        }
        at = at.offset(bytes);
    }
    Ok(())
}

/// The GPU writes the pattern of `seed` to its page i as that of memory page `pages[i]`, and the
/// CPU must see it there.
pub(crate) fn gpu_writes(
    world: &World,
    buffer: &Buffer,
    memory: &Memory,
    pages: &[u64],
    seed: u64,
) -> Result<(), Stop> {
    let mut at = buffer.gpu_va();
    for some in pages.chunks(STEP) {
        let bytes: Vec<u8> = some.iter().flat_map(|page| pattern(*page, seed)).collect();
        world.write_gpu(at, &bytes)?;
        at = at.offset(bytes.len() as u64);
    }
    for page in pages {
        ensure_eq!(memory.find_wrong(*page..page + 1, seed), None, "a page that the GPU wrote, seen by the CPU");
    }
    Ok(())
}
