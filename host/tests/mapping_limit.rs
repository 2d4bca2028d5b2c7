// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is watched separately takes mappings, and these are limited: a watch that cannot be had is
//! refused, never left deaf. A process of its own, because it uses up all the mappings there are.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the test's own memory

mod common;

use common::{memory, protect, Area, Counter};
use std::sync::Arc;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::AddressSpace;
use vkfd_host::address_space::ProcessMemory;
use vkfd_host::Source;

#[test]
fn a_watch_for_which_there_is_no_mapping_is_refused() {
    let Some(mm) = memory(Source::Userfaultfd) else { return };
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let limit: u64 = limit.trim().parse().unwrap();
    if limit > 1 << 18 {
        eprintln!("skipped: vm.max_map_count is {limit}, and so many mappings take too long");
        return;
    }
    let process = ProcessMemory::new(mm);
    let area = Area::new(512);
    // Every other page protected: a mapping each. A few are left above what stays for the program.
    let filler = Area::new(limit);
    let there = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64;
    let (spare, reserve) = (100, limit / 16);
    let pages = (limit - there() - reserve - spare) / 2;
    for page in 0..pages {
        protect(filler.pages(2 * page, 1), libc::PROT_NONE);
    }
    let mut watches = Vec::new();
    let refused = (0..256).find_map(|i| match process.watch(area.pages(2 * i, 1), Counter::new()) {
        Ok(watch) => {
            watches.push(watch);
            None
        }
        Err(error) => Some(error.errno),
    });
    let held = watches.len() as u64;
    // The program goes on: its own mappings are still to be had.
    let own = reserve / 2 - 256;
    for page in pages..pages + own / 2 {
        protect(filler.pages(2 * page, 1), libc::PROT_NONE);
    }
    let used = there();
    drop(filler);
    assert_eq!(refused, Some(Errno::ENOMEM), "{held} watches with {spare} mappings to spare");
    assert!((10..=spare).contains(&held), "{held} watches with {spare} mappings to spare");
    assert!(used + 2 * spare > limit - reserve + own, "{used} of {limit}");
    // With room again it works, and is told.
    let told = Counter::new();
    let watch = process.watch(area.pages(500, 1), Arc::clone(&told) as Arc<_>).unwrap();
    common::unmap(area.pages(500, 1));
    mm.settle();
    assert_eq!(told.calls(), 1);
    drop(watch);
}
