// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Lists taken from running guests: one guest buffer as the runs of guest-physical memory that back
//! it.
//!
//! One mapping stands for the guest's memory, as in a VMM; the list's entries are places in it.

use vkfd_client::{RegisterOptions, UserptrRange, PAGE};

use super::{gpu_sees, gpu_writes, pages_of, register};
use crate::memory::{pattern_sum, Memory};
use crate::{Scenario, Stop, World, WorldSpec};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "guest_buffer_of_a_fresh_guest",
        about: "64 MiB in 73 runs.",
        run: || replay(include_str!("../../../../bench/guest-scatter/fresh-64M.ranges"), 64 << 20),
    },
    Scenario {
        name: "guest_buffer_of_an_aged_guest_with_huge_pages",
        about: "64 MiB in 519 runs.",
        run: || replay(include_str!("../../../../bench/guest-scatter/aged-thp-64M.ranges"), 64 << 20),
    },
    Scenario {
        name: "guest_buffer_of_an_aged_guest",
        about: "256 MiB in 9953 runs.",
        run: || replay(include_str!("../../../../bench/guest-scatter/aged-4k-256M.ranges"), 256 << 20),
    },
    Scenario {
        name: "guest_buffer_of_random_pages",
        about: "64 MiB in 16384 runs of a page.",
        run: || replay(include_str!("../../../../bench/guest-scatter/random-4k-64M.ranges"), 64 << 20),
    },
];

/// Guest-physical start and length of each run, in the buffer's order.
fn parse(list: &str) -> Result<Vec<(u64, u64)>, Stop> {
    let mut runs = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let Some((start, length)) = line.split_once(' ') else { bail!("not two columns: {line:?}") };
        runs.push((u64::from_str_radix(start, 16)?, u64::from_str_radix(length, 16)?));
    }
    Ok(runs)
}

fn replay(list: &str, bytes: u64) -> Result<(), Stop> {
    let runs = parse(list)?;
    ensure_eq!(runs.iter().map(|(_, length)| length).sum::<u64>(), bytes, "the list's bytes");
    let world = World::new(WorldSpec::default())?;
    let guest = Memory::anonymous(runs.iter().map(|(start, length)| start + length).max().unwrap_or(PAGE))?;
    let ranges: Vec<UserptrRange> = runs.iter().map(|(start, length)| guest.range(*start, *length)).collect();
    let order = pages_of(&guest, &ranges);
    for page in &order {
        guest.fill_pages(*page..page + 1, 1);
    }
    let buffer = register(&world, &ranges, &RegisterOptions::default())?;
    let bo = world.client().bos()?.into_iter().find(|bo| bo.ranges > 0);
    let Some(bo) = bo else { bail!("no registered BO") };
    ensure_eq!(bo.ranges, ranges.len() as u64);
    ensure!(bo.windows <= 64, "{} notifiers for {} ranges", bo.windows, bo.ranges);
    gpu_sees(&world, &buffer, &order, 1)?;
    let sum = order.iter().fold(0_u64, |sum, page| sum.wrapping_add(pattern_sum(*page, 1)));
    ensure_eq!(world.sum64(buffer.gpu_va(), bytes)?, sum);
    if bytes <= 64 << 20 {
        gpu_writes(&world, &buffer, &guest, &order, 2)?;
    }
    Ok(())
}
