// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that changes under live ranges. Those that take a [`WorldSpec`] also run with parts of
//! the driver broken on purpose.

use vkfd_client::{SvmAccess, PAGE};

use super::Svm;
use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::{Seen, WorldSpec};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "svm_unmapped_parts_disappear_and_the_rest_goes_on",
        about: "munmap in the middle of a range: accesses there fault, the range is split, and what is mapped there later is unset.",
        run: || each(unmap),
    },
    Scenario {
        name: "svm_discarded_and_replaced_memory_is_seen_as_it_is",
        about: "MADV_DONTNEED and mmap over pages: the GPU sees zeroes, then what the CPU writes.",
        run: || each(discard),
    },
    Scenario {
        name: "svm_memory_in_the_place_of_other_has_no_range",
        about: "munmap or mremap, then mmap; or mmap over it: what was set of the memory before does not hold for what is there then.",
        run: || each(replace),
    },
    Scenario {
        name: "svm_mremap_takes_the_pages_and_leaves_no_range",
        about: "mremap: the old addresses fault, the new ones have the data.",
        run: || each(remap),
    },
    Scenario {
        name: "svm_protected_memory_is_read_only_for_gpus_too",
        about: "mprotect to read-only and back.",
        run: || each(protect),
    },
    Scenario {
        name: "svm_after_a_fork_the_gpu_keeps_the_parents_memory",
        about: "Parent, child and GPU write after a fork; the GPU sees the parent's pages.",
        run: || each(fork),
    },
];

fn each(run: fn(WorldSpec) -> Result<(), Stop>) -> Result<(), Stop> {
    run(WorldSpec::default())?;
    run(WorldSpec { xnack: true, ..WorldSpec::default() })
}

const PAGES: u64 = 600;

fn svm(spec: WorldSpec) -> Result<Svm, Stop> {
    let svm = Svm::new(spec, Memory::anonymous(PAGES * PAGE)?)?;
    svm.memory.fill(1);
    svm.give(0, PAGES, &[(0, SvmAccess::Migrate)])?;
    svm.expect(0, 0, PAGES, 1)?;
    Ok(svm)
}

/// The middle of a range is unmapped.
pub fn unmap(spec: WorldSpec) -> Result<(), Stop> {
    let svm = svm(spec)?;
    svm.world.sees(Seen::Unmap)?;
    svm.memory.unmap(100 * PAGE, 50 * PAGE)?;
    svm.world.told();
    svm.expect_fault(0, 120, false)?;
    svm.expect(0, 0, 100, 1)?;
    svm.expect(0, 150, PAGES - 150, 1)?;
    svm.memory.map_again(100 * PAGE, 50 * PAGE)?;
    svm.memory.fill_pages(100..150, 2);
    if spec.xnack {
        svm.expect(0, 100, 50, 2)?;
    } else {
        svm.give(100, 50, &[(0, SvmAccess::Migrate)])?;
        svm.expect(0, 100, 50, 2)?;
    }
    svm.write(0, 0, PAGES, 3)?;
    svm.cpu_expects(0, PAGES, 3)?;
    svm.memory.unmap(0, PAGES * PAGE)?;
    svm.world.told();
    svm.expect_fault(0, 0, false)
}

/// Pages are discarded, and replaced by others in one call.
pub fn discard(spec: WorldSpec) -> Result<(), Stop> {
    let svm = svm(spec)?;
    svm.world.sees(Seen::Discard)?;
    for seed in 2..6 {
        svm.memory.discard(10 * PAGE, 100 * PAGE)?;
        svm.world.told();
        let zeroes = svm.world.read_gpu(svm.va(10), 100 * PAGE)?;
        ensure!(zeroes.iter().all(|byte| *byte == 0), "the GPU sees what was discarded");
        svm.memory.fill_pages(10..110, seed);
        svm.expect(0, 10, 100, seed)?;
        svm.write(0, 10, 100, seed + 50)?;
        svm.cpu_expects(10, 100, seed + 50)?;
    }
    svm.cpu_expects(110, PAGES - 110, 1)?;
    svm.expect(0, 110, PAGES - 110, 1)
}

/// Memory goes and other memory comes to its place, before anybody has asked.
pub fn replace(spec: WorldSpec) -> Result<(), Stop> {
    let svm = svm(spec)?;
    svm.world.sees(Seen::Unmap)?;
    svm.world.sees(Seen::Remap)?;
    let (client, gpu) = (svm.world.client(), svm.world.gpu(0));
    let get = |first, pages| client.svm_get(svm.pages(first, pages), gpu);
    let fresh = Memory::anonymous(PAGE)?;
    let unset = client.svm_get(fresh.whole(), gpu)?;
    // A granularity of its own tells also where unset memory may be used.
    let set = |first, pages| svm.set(first, pages, &[vkfd_client::SvmSet::Granularity(3)]);
    set(0, PAGES)?;
    // With XNACK on, faults move memory, and the process may have it in several mappings then,
    // which mremap refuses.
    let third = if spec.xnack { 200 } else { 300 };
    for round in 2..12 {
        svm.memory.unmap(100 * PAGE, 50 * PAGE)?;
        svm.memory.map_again(100 * PAGE, 50 * PAGE)?;
        svm.memory.replace(200 * PAGE, 50 * PAGE)?;
        if third == 300 {
            let moved = svm.memory.remap(300 * PAGE, 50 * PAGE)?;
            svm.memory.map_again(300 * PAGE, 50 * PAGE)?;
            ensure_eq!(client.svm_get(moved.whole(), gpu)?, unset);
        }
        for first in [100, 200, third] {
            ensure_eq!(get(first, 50)?, unset);
            ensure_eq!(get(first - 1, 1)?.granularity, 3);
            ensure_eq!(get(first + 50, 1)?.granularity, 3);
        }
        // The new memory's attributes hold, also if the notification of the old memory's end comes
        // late.
        for first in [100, 200, third] {
            svm.memory.fill_pages(first..first + 50, round);
            svm.give(first, 50, &[(0, SvmAccess::Migrate)])?;
            set(first, 50)?;
        }
        svm.settle()?;
        for first in [100, 200, third] {
            svm.expect(0, first, 50, round)?;
            ensure_eq!(get(first, 50)?.granularity, 3);
        }
        svm.expect(0, 0, 100, 1)?;
    }
    Ok(())
}

fn remap(spec: WorldSpec) -> Result<(), Stop> {
    let svm = svm(spec)?;
    svm.world.sees(Seen::Remap)?;
    let moved = svm.memory.remap(512 * PAGE, 40 * PAGE)?;
    svm.world.told();
    svm.expect_fault(0, 520, false)?;
    svm.expect(0, 0, 512, 1)?;
    let there = Svm { world: svm.world, memory: moved };
    if !spec.xnack {
        there.give(0, 40, &[(0, SvmAccess::Migrate)])?;
    }
    let bytes = there.world.read_gpu(there.va(0), 40 * PAGE)?;
    ensure_eq!(crate::wrong_page(&bytes, 512..552, 1), None);
    Ok(())
}

fn protect(spec: WorldSpec) -> Result<(), Stop> {
    let svm = svm(spec)?;
    svm.world.sees(Seen::Protect)?;
    svm.memory.protect(64 * PAGE, 64 * PAGE, libc::PROT_READ)?;
    svm.world.told();
    svm.expect(0, 0, PAGES, 1)?;
    svm.expect_fault(0, 70, true)?;
    svm.write(0, 0, 64, 2)?;
    svm.memory.protect(64 * PAGE, 64 * PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
    svm.world.told();
    svm.settle()?;
    // Told or not, the CPU may write again; the GPU may after the next change or call.
    svm.give(64, 64, &[(0, SvmAccess::Migrate)])?;
    svm.set(64, 64, &[vkfd_client::SvmSet::Flags(0)])?;
    svm.write(0, 64, 64, 2)?;
    svm.cpu_expects(0, 128, 2)
}

fn fork(spec: WorldSpec) -> Result<(), Stop> {
    let svm = svm(spec)?;
    svm.world.sees(Seen::Fork)?;
    svm.with_child(|| {
        svm.expect(0, 0, PAGES, 1)?;
        svm.memory.fill(2);
        svm.expect(0, 0, PAGES, 2)?;
        svm.write(0, 0, PAGES, 3)?;
        svm.cpu_expects(0, PAGES, 3)
    })?;
    svm.expect(0, 0, PAGES, 3)
}

impl Svm {
    /// Runs `f` while a child exists that has written all over its copy of the memory.
    pub(super) fn with_child(&self, f: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
        let (mut ready, mut done) = ([0; 2], [0; 2]);
        // SAFETY: room for two descriptors each.
        let piped = unsafe {
            libc::pipe2(ready.as_mut_ptr(), libc::O_CLOEXEC) | libc::pipe2(done.as_mut_ptr(), libc::O_CLOEXEC)
        };
        ensure_eq!(piped, 0);
        let seen = self.memory.read(0, PAGE);
        // SAFETY: the child only reads and writes memory that is its own, uses pipes, and ends; no
        // lock is taken there.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0_u8;
            // SAFETY: as above; the descriptors are inherited, the memory is mapped and nobody has
            // a reference to it.
            unsafe {
                libc::close(done[1]);
                let first = self.memory.at(0).read_volatile();
                for page in 0..self.memory.pages() {
                    self.memory.at(page * PAGE).cast::<u64>().write_volatile(0xbad);
                }
                libc::write(ready[1], (&raw const byte).cast(), 1);
                // Until the parent has looked.
                libc::read(done[0], (&raw mut byte).cast(), 1);
                let kept = (0..self.memory.pages())
                    .all(|page| self.memory.at(page * PAGE).cast::<u64>().read_volatile() == 0xbad);
                libc::_exit(i32::from(!kept || first != seen[0]));
            }
        }
        let mut byte = 0_u8;
        // SAFETY: this function's own descriptor, and room for a byte.
        let started = child > 0 && unsafe { libc::read(ready[0], (&raw mut byte).cast(), 1) } == 1;
        let result = if started { f() } else { Err(anyhow::anyhow!("the child did not start").into()) };
        let mut status = -1;
        // SAFETY: the descriptors are this function's; closing lets the child end; there is room
        // for the status.
        unsafe {
            for fd in [ready[0], ready[1], done[0], done[1]] {
                libc::close(fd);
            }
            if child > 0 {
                libc::waitpid(child, &raw mut status, 0);
            }
        }
        result?;
        ensure_eq!(status, 0, "the child's status: its memory must be its own");
        Ok(())
    }
}
