// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Moving where something is refused: mappings are used up, or the kernel's accesses may not wait.
//! A process of its own for each test, because they use up all the mappings there are, or filter
//! system calls for good.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the tests' own memory

mod common;
#[path = "common/filter.rs"]
mod filter;
#[path = "common/moving.rs"]
mod moving;

use common::{protect, Area};
use filter::{alone, Refuse};
use moving::{aligned, check, fill, rig, word};
use vkfd_driver::base::addr::{index, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::{Access, AddressSpace};
use vkfd_host::address_space::ProcessMemory;
use vkfd_host::{Machine, MachineOptions, Source};
use vkfd_sabotage::Switch;

const MB: u64 = 1 << 20;

/// Mappings that are there only to be many, `spare` short of the limit. `None` where the limit is
/// too high to be reached.
fn all_but(spare: u64) -> Option<Area> {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let limit: u64 = limit.trim().parse().unwrap();
    if limit > 1 << 18 {
        eprintln!("SKIPPED: vm.max_map_count is {limit}, and so many mappings take too long");
        return None;
    }
    let filler = Area::new(limit);
    let there = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64;
    // Every other page protected: a mapping each.
    for page in 0..(limit - there).saturating_sub(spare) / 2 {
        protect(filler.pages(2 * page, 1), libc::PROT_NONE);
    }
    Some(filler)
}

/// Nothing more moves to a device, and what is there can be used; with room again it goes on.
#[test]
fn near_the_limit_of_mappings_memory_stays_where_it_is() {
    alone("near_the_limit_of_mappings_memory_stays_where_it_is", &[], || {
        let Some(rig) = rig(true, 16 * MB) else { return };
        let area = aligned(2048);
        fill(&area, 7);
        let there = area.pages(0, 512);
        assert_eq!(rig.go(there), 512);
        // Fewer mappings are free than the host leaves to the program.
        let Some(filler) = all_but(1000) else { return };
        assert_eq!(rig.go(area.pages(512, 1024)), 0, "each piece would be a mapping");
        check(&area, 7, 0, 2048);
        assert_eq!(rig.held(), 512);
        // Back, as few are needed for that; each second page would be a mapping of its own.
        assert_eq!(rig.back(area.pages(0, 256)), 256);
        check(&area, 7, 0, 2048);
        assert_eq!(rig.held(), 256);
        drop(filler);
        assert_eq!(rig.go(area.all()), 2048 - 256);
        check(&area, 7, 0, 2048);
        assert_eq!(rig.back(area.all()), 2048);
        check(&area, 7, 0, 2048);
        assert_eq!(rig.held(), 0);
    });
}

/// The control: without a reserve the program is the first that is refused a mapping.
#[test]
fn a_host_that_takes_the_programs_mappings_is_noticed() {
    alone("a_host_that_takes_the_programs_mappings_is_noticed", &[], || {
        // Before the mover starts, which reads its limit once.
        vkfd_host::sabotage::switches().turn(Switch::NoReserve, true);
        let Some(rig) = rig(true, 16 * MB) else { return };
        let area = aligned(1024);
        fill(&area, 7);
        let Some(_filler) = all_but(1000) else { return };
        assert!(rig.go(area.pages(0, 512)) > 0);
    });
}

/// Not one mapping is to be had: what is on the device stays there, whole.
#[test]
fn at_the_limit_of_mappings_nothing_is_lost() {
    alone("at_the_limit_of_mappings_nothing_is_lost", &[], || {
        let Some(rig) = rig(true, 16 * MB) else { return };
        let area = aligned(1024);
        fill(&area, 7);
        assert_eq!(rig.go(area.all()), 1024);
        // What is left is used up one by one, in which nothing may allocate.
        let mut last = Vec::with_capacity(1000);
        let Some(filler) = all_but(0) else { return };
        for i in 0..1000 {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // Neighbours differ, so that they do not become one.
            let prot = if i % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
            let page = unsafe { libc::mmap(std::ptr::null_mut(), index(PAGE), prot, flags, -1, 0) };
            if page == libc::MAP_FAILED {
                break;
            }
            last.push(page);
        }
        let refused = last.len() < 1000;
        let moved = rig.back(area.pages(100, 100));
        let (held, right) =
            (rig.held(), (0..1024).all(|page| unsafe { word(&area, page).read_volatile() } == 7 + page));
        for page in last {
            unsafe { libc::munmap(page, index(PAGE)) };
        }
        drop(filler);
        assert!(refused, "control: the limit was reached");
        assert_eq!((moved, held, right), (0, 1024, true));
        assert_eq!(rig.back(area.all()), 1024);
        check(&area, 7, 0, 1024);
        assert_eq!(rig.held(), 0);
    });
}

/// Without userfaultfd nothing moves, and that is said; memory is registered all the same.
#[test]
fn without_userfaultfd_nothing_moves_and_why_is_said() {
    alone("without_userfaultfd_nothing_moves_and_why_is_said", &[Refuse::Userfaultfd], || {
        let machine = Machine::new(&MachineOptions { vram_bytes: 16 * MB, ..MachineOptions::default() }).unwrap();
        let mm = machine.memory();
        assert_ne!(mm.source(), Source::Userfaultfd);
        let why = vkfd_host::migrate::why_not_moved(mm);
        assert!(why.contains("userfaultfd") && why.contains("seccomp"), "says what to do: {why}");
        let memory = ProcessMemory::with_gpus(mm, machine.gpus());
        assert!(!memory.migration().coherent && !memory.migration().private);
        let device = moving::stranger();
        let area = Area::new(1);
        let moved = memory.migrate_to_device(area.all(), &device, &mut [None]);
        assert_eq!(moved.unwrap_err().errno, Errno::EOPNOTSUPP);
        assert_eq!(memory.migrate_to_system(area.all()).unwrap(), 0);
        let w = common::Watched::new(mm, area.all());
        assert_eq!(w.fault(area.all(), Access::Write).len(), 1);
    });
}

/// As for programs without the privilege (vm.unprivileged_userfaultfd is 0): only user mode can
/// wait.
#[test]
fn without_privilege_user_mode_waits_and_system_calls_fail() {
    alone("without_privilege_user_mode_waits_and_system_calls_fail", &[Refuse::KernelFaults], || {
        let Some(rig) = rig(false, 16 * MB) else { return };
        let area = aligned(512);
        fill(&area, 7);
        assert_eq!(rig.go(area.all()), 512);
        let mut ends = [0; 2];
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let written = unsafe { libc::write(ends[1], area.byte(0).cast(), 8) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((written, errno), (-1, Some(libc::EFAULT)), "a system call cannot wait");
        assert_eq!(rig.held(), 512, "and nothing has moved for it");
        check(&area, 7, 0, 512);
        assert_eq!(unsafe { libc::write(ends[1], area.byte(0).cast(), 8) }, 8, "what was touched is back");
        rig.wait_held(0);
    });
}
