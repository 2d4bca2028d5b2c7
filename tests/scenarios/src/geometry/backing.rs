// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Anonymous, shared and file memory, for writing and for reading only.

use std::os::unix::fs::FileExt;

use vkfd_client::{ClientError, Errno, RegisterOptions, UserptrRange, PAGE};

use super::{gpu_sees, gpu_writes, pages_of, register};
use crate::memory::{pattern, Backing, Layout, Memory};
use crate::{maps, Scenario, Stop, World, WorldSpec};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "every_kind_of_memory_can_be_registered_for_writing",
        about: "Anonymous, memfd, private and shared file mappings; what the GPU writes to a shared one is in the file.",
        run: writable,
    },
    Scenario {
        name: "read_only_mappings_can_be_registered_for_reading_only",
        about: "Section 5: KFD refuses them. The GPU reads; its writes fault; registering for writing is EPERM and names the range.",
        run: read_only,
    },
    Scenario {
        name: "read_only_use_does_not_break_copy_on_write",
        about: "Section 5: KFD always asks for writing and so copies every page. Pages of a private file mapping stay the file's; untouched \
                anonymous memory stays the zero page's.",
        run: copy_on_write,
    },
];

const KINDS: [Backing; 4] = [Backing::Anonymous, Backing::Shared, Backing::FilePrivate, Backing::FileShared];

/// 64 pages with the pattern of seed 1; a file's are written to the file and not through the
/// mapping.
fn memory_of(backing: Backing) -> Result<(Memory, Vec<UserptrRange>), Stop> {
    let memory = Memory::new(backing, 64 * PAGE)?;
    match memory.file() {
        None => memory.fill(1),
        Some(file) => {
            for page in 0..memory.pages() {
                file.write_all_at(&pattern(page, 1), page * PAGE)?;
            }
        }
    }
    let ranges = memory.scatter(16, 2 * PAGE, Layout::Gaps).into_iter().rev().collect();
    Ok((memory, ranges))
}

fn writable() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    for backing in KINDS {
        let (memory, ranges) = memory_of(backing)?;
        let buffer = register(&world, &ranges, &RegisterOptions::default())?;
        let order = pages_of(&memory, &ranges);
        gpu_sees(&world, &buffer, &order, 1)?;
        gpu_writes(&world, &buffer, &memory, &order, 2)?;
        let Some(file) = memory.file() else { continue };
        let mut page = pattern(0, 0);
        for number in &order {
            file.read_exact_at(&mut page, number * PAGE)?;
            let seed = if backing == Backing::FilePrivate { 1 } else { 2 };
            ensure!(page == pattern(*number, seed), "{backing:?}: page {number} of the file");
        }
    }
    Ok(())
}

fn read_only() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    ensure!(world.client().caps().read_only, "the driver says that it can register for reading");
    let options = RegisterOptions { writable: false, ..RegisterOptions::default() };
    for backing in KINDS {
        let (memory, ranges) = memory_of(backing)?;
        // One range of the list is of a mapping that cannot be written.
        let locked = ranges[5];
        let offset = locked.start - memory.whole().start;
        memory.protect(offset, locked.size, libc::PROT_READ)?;
        match register(&world, &ranges, &RegisterOptions::default()) {
            Ok(_) => bail!("{backing:?}: a mapping without write permission was registered for writing"),
            Err(ClientError::Range { range, .. }) => {
                ensure_eq!((range.index, range.errno), (5, Errno::PERM), "{backing:?}");
                ensure_eq!(range.start.0, locked.start, "{backing:?}");
            }
            Err(other) => bail!("{backing:?}: {other}"),
        }
        memory.protect(0, memory.bytes(), libc::PROT_READ)?;
        let buffer = register(&world, &ranges, &options)?;
        let order = pages_of(&memory, &ranges);
        gpu_sees(&world, &buffer, &order, 1)?;
        for place in [0, 31] {
            match world.write_gpu(buffer.gpu_va().offset(place * PAGE), &pattern(0, 9)) {
                Err(ClientError::GpuFault { read_only: true, not_present: false, va, .. }) => {
                    ensure_eq!(va, buffer.gpu_va().offset(place * PAGE), "{backing:?}");
                }
                other => bail!("{backing:?}: a write to read-only memory ended in {other:?}"),
            }
        }
        gpu_sees(&world, &buffer, &order, 1)?;
        ensure_eq!(memory.find_wrong(0..memory.pages(), 1), None, "{backing:?}");
    }
    Ok(())
}

/// Bytes of anonymous memory that the process has now.
fn anonymous_bytes() -> Result<u64, Stop> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|rest| rest.split_whitespace().next()).unwrap_or("");
    Ok(number.parse::<u64>()? * 1024)
}

fn copy_on_write() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let read_only = RegisterOptions { writable: false, ..RegisterOptions::default() };
    let (memory, ranges) = memory_of(Backing::FilePrivate)?;
    let order = pages_of(&memory, &ranges);
    let of_file = |page: &u64| -> Result<bool, Stop> {
        let entry = maps::page(memory.whole().start + page * PAGE)?;
        ensure!(entry & maps::PRESENT != 0, "page {page} is present once the GPU has read it");
        Ok(entry & maps::FILE_PAGE != 0)
    };
    let buffer = register(&world, &ranges, &read_only)?;
    gpu_sees(&world, &buffer, &order, 1)?;
    for page in &order {
        ensure!(of_file(page)?, "page {page} was copied by a use that only reads");
    }
    buffer.free()?;
    // Registering for writing does copy: the check above can fail.
    let buffer = register(&world, &ranges, &RegisterOptions::default())?;
    gpu_sees(&world, &buffer, &order, 1)?;
    for page in &order {
        ensure!(!of_file(page)?, "page {page} is still the file's after it was registered for writing");
    }
    buffer.free()?;

    let bytes = 64 << 20;
    for (options, grows) in [(&read_only, false), (&RegisterOptions::default(), true)] {
        let untouched = Memory::anonymous(bytes)?;
        world.sum64(register(&world, &ranges, &read_only)?.gpu_va(), PAGE)?;
        let before = anonymous_bytes()?;
        let buffer = register(&world, &[untouched.whole()], options)?;
        ensure_eq!(world.sum64(buffer.gpu_va(), bytes)?, 0);
        let grown = anonymous_bytes()?.saturating_sub(before);
        ensure_eq!(grown > bytes / 2, grows, "{bytes:#x} bytes of zeroes took {grown:#x} bytes of memory");
    }
    Ok(())
}
