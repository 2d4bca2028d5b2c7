// SPDX-License-Identifier: GPL-2.0 OR MIT
//! CPU and GPU keep seeing the same memory while mappings change.
//!
//! | module | what changes, and what is shown |
//! | --- | --- |
//! | [`unmap`] | memory goes, and perhaps comes back |
//! | [`change`] | memory is discarded, protected, forked, paged out |
//! | [`partial`] | exactly what is hit is invalidated and restored |
//! | `restore` | eviction, restore, two GPUs, two processes, the end of a process |
//! | `retry` | XNACK on |
//! | `race` | all at the same time as registering, mapping, copying and freeing |
//!
//! Every scenario checks what the GPU and the CPU see, and what the driver says of its ranges and
//! page tables. Those that take a [`WorldSpec`] are also run with parts of the driver broken on
//! purpose (`tests/controls.rs`), where they must fail.

pub(crate) mod batch;
pub mod change;
pub mod partial;
mod race;
mod restore;
mod retry;
pub mod unmap;

use crate::verdict::Stop;
use crate::world::WorldSpec;
use crate::Scenario;

/// The checks that every way of watching memory must pass.
///
/// # Errors
///
/// The first check's that fails.
pub fn core(spec: WorldSpec) -> Result<(), Stop> {
    unmap::unmap_one_of_many(spec)?;
    unmap::replace_in_place(spec)?;
    change::discard(spec)?;
    change::restored_pages_through_a_warm_tlb(spec)?;
    partial::only_what_is_hit(spec)
}

fn per_range_windows() -> Result<(), Stop> {
    core(WorldSpec { per_range_windows: true, ..WorldSpec::default() })
}

macro_rules! scenarios {
    ($($name:ident: $run:expr, $about:literal;)+) => {
        /// The scenarios.
        pub const SCENARIOS: &[Scenario] =
            &[$(Scenario { name: concat!("coherence_", stringify!($name)), about: $about, run: $run }),+];
    };
}

scenarios! {
    unmap_one_of_many: || unmap::unmap_one_of_many(WorldSpec::default()),
        "munmap of one range of 64: the rest goes on, an access to it faults and is reported (fault i)";
    replace_in_place: || unmap::replace_in_place(WorldSpec::default()),
        "mmap over a range: the GPU sees the new memory";
    unmap_and_map_at_once: unmap::unmap_and_map_at_once,
        "munmap and mmap with nothing between: the GPU sees the new memory";
    memory_comes_back: unmap::memory_comes_back,
        "memory mapped again after the restore found it gone is taken up by the next MAP";
    mremap_away: unmap::mremap_away,
        "mremap: the GPU keeps neither the old nor the new place";
    truncated_file: unmap::truncated_file,
        "a file shorter than its registered pages: GPU page faults, no crash";
    discard: || change::discard(WorldSpec::default()),
        "MADV_DONTNEED: the GPU sees zeroes, then what the CPU writes";
    warm_tlb: || change::restored_pages_through_a_warm_tlb(WorldSpec::default()),
        "restored pages are reached through a queue whose TLB had the old ones";
    protect: change::protect,
        "mprotect read-only and back under a writable registration";
    protect_found_by_access: change::protect_found_by_access,
        "the GPU cannot write to memory that was made read-only, whoever was told";
    found_by_access: change::found_by_access,
        "changes that the notification source may not show: the GPU sees what the CPU sees all the same";
    fork: change::fork,
        "parent and child write after a fork: the GPU keeps seeing the parent's memory";
    page_out: change::page_out,
        "MADV_PAGEOUT is an invalidation and changes no contents";
    read_only: change::read_only,
        "a read-only registration: reads, write faults, and no copy-on-write is broken";
    only_what_is_hit: || partial::only_what_is_hit(WorldSpec::default()),
        "ranges invalidated, restored and rewritten are exactly those hit; one stop for one invalidation (faults a, b)";
    gaps_and_neighbours: || partial::gaps_and_neighbours(WorldSpec::default()),
        "changes in the gaps of a window and a page beside a range touch nothing";
    unmapped_object: partial::unmapped_object,
        "an object that no GPU has mapped stops no queue; MAP brings it up to date";
    freed_memory: || partial::freed_memory(WorldSpec::default()),
        "changes of memory that was freed reach nobody";
    aliased_ranges: partial::aliased_ranges,
        "the same memory several times in one buffer is invalidated in every place";
    per_range_windows: per_range_windows,
        "the core checks with one notifier a range";
    denied_does_not_spin: restore::denied_does_not_spin,
        "a restore that cannot succeed (EPERM) ends, and the queues go on";
    work_waits_while_evicted: restore::work_waits_while_evicted,
        "work submitted to stopped queues waits and is done afterwards";
    two_gpus: restore::two_gpus,
        "two GPUs see the same changes; unmapping from one leaves the other's mapping";
    two_processes: restore::two_processes,
        "two process objects over the same memory: independent evictions, both restored";
    closed_while_evicted: restore::closed_while_evicted,
        "a process ends with everything alive and a restore to come: nothing hangs or is left";
    xnack_served_on_access: retry::served_on_access,
        "XNACK on: entries are cleared, no queue stops, the access is served";
    xnack_gone_is_reported: retry::gone_is_reported,
        "XNACK on: an access to memory that is gone is reported, and served when it is back";
    xnack_copy_through_a_storm: retry::copy_through_a_storm,
        "XNACK on: a long copy goes through a storm of invalidations";
    xnack_stays_while_there_are_queues: retry::stays,
        "XNACK cannot be switched with queues, on or off, and can be when they are gone";
    xnack_switched_off: retry::switched_off,
        "XNACK cannot be switched with queues; switched off, everything is restored";
    invalidated_while_registered: race::invalidated_while_registered,
        "invalidations during the registration of 4,096 ranges";
    deadline: race::deadline,
        "memory that never holds still: EAGAIN names the range, nothing is left";
    copies_in_a_storm: race::copies_in_a_storm,
        "every word that the GPU delivers in a storm was legal at the time";
    mapped_in_a_storm: race::mapped_in_a_storm,
        "MAP and UNMAP in a storm leave right entries or none";
    registered_and_freed_in_a_storm: race::registered_and_freed_in_a_storm,
        "four threads register and free in a storm; nothing is left";
    long_range_in_a_storm: race::long_range_in_a_storm,
        "one range of 80 MiB, restored piece by piece in a storm";
}
