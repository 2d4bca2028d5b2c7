// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory is either registered or an SVM range, never both.

use std::os::fd::{FromRawFd, OwnedFd};

use vkfd_client::uapi::memory::{
    ExportDmabufArgs, ImportDmabufArgs, ALLOC_MEM_FLAGS_DOORBELL, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_VRAM,
    ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_client::uapi::{command, vkfd};
use vkfd_client::{Client, ClientError, Errno, GpuVa, UserptrRange, PAGE};

use crate::memory::{wrong_page, Layout, Memory};
use crate::raw::{self, Request, FORMS};
use crate::{Scenario, Stop, World, WorldSpec};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "batch_over_an_svm_range_is_refused_by_name",
        about: "Rows 10 and 11: the GPU range, and each CPU range with its index.",
        run: batch_after_svm,
    },
    Scenario {
        name: "svm_over_a_batch_is_refused_also_when_it_comes_later",
        about: "Fault (f): every CPU range and the GPU range of a batch are in a later SVM call's way; the gaps between ranges are not.",
        run: svm_after_batch,
    },
    Scenario {
        name: "svm_over_single_ranges_and_back",
        about: "Section 5's conflicts of the single-range path, and none once either has gone.",
        run: single,
    },
    Scenario {
        name: "svm_and_buffers_of_every_kind_have_no_address_in_common",
        about: "VRAM, GTT, doorbells, imported buffers, to the page and in both orders; also against a range that a GPU's fault made.",
        run: buffers,
    },
    Scenario {
        name: "svm_arguments_are_checked",
        about: "Zero and unaligned are EINVAL, an end that wraps EOVERFLOW, no mapping EFAULT.",
        run: arguments,
    },
];

fn busy(client: &Client, range: UserptrRange, reason: u32, what: &str) -> Result<(), Stop> {
    ensure_eq!(raw::register_svm(client, range), Err(Errno::ADDRINUSE), "SVM over {what}");
    ensure_eq!(raw::last_error(client)?.reason, reason, "SVM over {what}");
    Ok(())
}

fn batch_after_svm() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let memory = Memory::anonymous(64 * PAGE)?;
    let window = raw::gpu_window(32 * PAGE)?;
    let ranges = memory.scatter(8, 4 * PAGE, Layout::Reversed);
    for form in FORMS {
        let request = Request::new(form, world.gpu(0), window.whole().start, &ranges);
        raw::free(client, request.send(client)?)?;
    }
    // One page inside range 5: after the first pages of the memory, so that no other is hit.
    let inside = UserptrRange { start: ranges[5].start + 3 * PAGE, size: PAGE };
    raw::register_svm(client, inside)?;
    for form in FORMS {
        let request = Request::new(form, world.gpu(0), window.whole().start, &ranges);
        request.must_fail(client, Errno::ADDRINUSE, vkfd::REASON_CPU_RANGE_IS_SVM, Some(5))?;
        let without = [&ranges[..5], &ranges[6..]].concat();
        let request = Request::new(form, world.gpu(0), window.whole().start, &without);
        raw::free(client, request.send(client)?)?;
    }
    // SVM memory where the GPU range would be.
    let shared = Memory::anonymous(40 * PAGE)?;
    raw::register_svm(client, shared.range(31 * PAGE, PAGE))?;
    let ranges = memory.scatter(4, 8 * PAGE, Layout::Reversed);
    for form in FORMS {
        let request = Request::new(form, world.gpu(0), shared.whole().start, &ranges[..1]);
        raw::free(client, request.send(client)?)?;
        let longer = [memory.range(33 * PAGE, 31 * PAGE), memory.range(32 * PAGE, PAGE)];
        let request = Request::new(form, world.gpu(0), shared.whole().start, &longer);
        request.must_fail(client, Errno::ADDRINUSE, vkfd::REASON_GPU_RANGE_BUSY, None)?;
        let request = Request::new(form, world.gpu(0), shared.whole().start, &longer[..1]);
        raw::free(client, request.send(client)?)?;
    }
    Ok(())
}

fn svm_after_batch() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let size = 4 * PAGE;
    for form in FORMS {
        let memory = Memory::anonymous(16 * size)?;
        // Mapped, so that SVM could use it but for the batch's GPU range there.
        let window = Memory::anonymous(8 * size)?;
        let ranges = memory.scatter(8, size, Layout::Gaps);
        let handle = Request::new(form, world.gpu(0), window.whole().start, &ranges).send(client)?;
        for (i, range) in ranges.iter().enumerate() {
            let what = format!("CPU range {i} of a batch ({form:?})");
            busy(client, *range, vkfd::REASON_CPU_RANGE_IS_SVM, &what)?;
            let first = UserptrRange { size: PAGE, ..*range };
            busy(client, first, vkfd::REASON_CPU_RANGE_IS_SVM, &what)?;
            let last = UserptrRange { start: range.start + size - PAGE, size: PAGE };
            busy(client, last, vkfd::REASON_CPU_RANGE_IS_SVM, &what)?;
            let across = UserptrRange { start: last.start, size: 2 * PAGE };
            busy(client, across, vkfd::REASON_CPU_RANGE_IS_SVM, &what)?;
            let gap = UserptrRange { start: range.start + size, size };
            ensure_eq!(raw::register_svm(client, gap), Ok(()), "SVM in the gap after range {i}");
        }
        busy(client, memory.whole(), vkfd::REASON_CPU_RANGE_IS_SVM, "the whole memory")?;
        for offset in [0, 4 * size, 8 * size - PAGE] {
            busy(client, window.range(offset, PAGE), vkfd::REASON_GPU_RANGE_BUSY, "the batch's GPU range")?;
        }
        raw::free(client, handle)?;
        for range in ranges {
            ensure_eq!(raw::register_svm(client, range), Ok(()), "the batch is gone");
        }
        raw::register_svm(client, window.whole())?;
    }
    Ok(())
}

fn single() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let (client, gpu) = (world.client(), world.id());
    let memory = Memory::anonymous(8 * PAGE)?;
    let window = raw::gpu_window(8 * PAGE)?;
    let (va, cpu) = (window.whole().start, memory.whole().start);
    let handle = raw::alloc(client, va, 4 * PAGE, cpu, gpu, raw::USERPTR)?.handle;
    busy(client, memory.range(3 * PAGE, PAGE), vkfd::REASON_CPU_RANGE_IS_SVM, "a registered range")?;
    raw::register_svm(client, memory.range(4 * PAGE, 4 * PAGE))?;
    let second = raw::alloc(client, va + 4 * PAGE, 4 * PAGE, cpu + PAGE, gpu, raw::USERPTR);
    ensure_eq!(second, Err(Errno::ADDRINUSE), "a range that reaches into SVM memory");
    let last = raw::last_error(client)?;
    raw::explained(&last, Errno::ADDRINUSE, vkfd::REASON_CPU_RANGE_IS_SVM, Some(0), "a single range")?;
    let over = raw::alloc(client, cpu + 4 * PAGE, PAGE, cpu, gpu, raw::USERPTR);
    ensure_eq!(over, Err(Errno::ADDRINUSE), "a GPU range over SVM memory");
    raw::free(client, handle)?;
    raw::register_svm(client, memory.range(3 * PAGE, PAGE))?;
    // Unmapping the memory ends its SVM range: what is mapped there later may be registered.
    memory.unmap(3 * PAGE, 5 * PAGE)?;
    let gone = raw::alloc(client, va, PAGE, cpu + 3 * PAGE, gpu, raw::USERPTR);
    ensure_eq!(gone, Err(Errno::FAULT), "nothing is mapped there");
    memory.map_again(3 * PAGE, 5 * PAGE)?;
    let fresh = raw::alloc(client, va, PAGE, cpu + 3 * PAGE, gpu, raw::USERPTR)?;
    raw::free(client, fresh.handle)?;
    // Another process's SVM ranges are its own.
    let other = world.open()?;
    raw::register_svm(&other, memory.range(0, PAGE))?;
    let mine = raw::alloc(client, va, PAGE, cpu, gpu, raw::USERPTR)?;
    raw::free(client, mine.handle)?;
    Ok(())
}

/// Buffer objects of [`PAGES`] pages that take GPU addresses.
const KINDS: [u32; 3] = [ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_DOORBELL];
const PAGES: u64 = 2;

fn buffers() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let (client, gpu) = (world.client(), world.id());
    for kind in KINDS {
        let make = |va| raw::alloc(client, va, PAGES * PAGE, 0, gpu, kind | ALLOC_MEM_FLAGS_WRITABLE);
        // CPU memory where the buffer is on the GPU.
        let memory = Memory::anonymous(8 * PAGE)?;
        let start = memory.whole().start;
        let handle = make(start + 3 * PAGE)?.handle;
        for (first, pages) in [(0, 8), (3, 1), (4, 1), (2, 2), (4, 4)] {
            let what = format!("a buffer ({kind:#x}), pages {first} to {}", first + pages);
            busy(client, memory.range(first * PAGE, pages * PAGE), vkfd::REASON_GPU_RANGE_BUSY, &what)?;
        }
        for (first, pages) in [(0, 3), (5, 3)] {
            raw::register_svm(client, memory.range(first * PAGE, pages * PAGE))?;
        }
        raw::free(client, handle)?;
        raw::register_svm(client, memory.range(3 * PAGE, PAGES * PAGE))?;
        // And the other way round.
        for first in [0, 3, 7] {
            ensure_eq!(
                make(start + first * PAGE).err(),
                Some(Errno::ADDRINUSE),
                "{kind:#x} over SVM memory, page {first}"
            );
            ensure_eq!(raw::last_error(client)?.reason, vkfd::REASON_GPU_RANGE_BUSY);
        }
        ensure_eq!(make(start - PAGE).err(), Some(Errno::ADDRINUSE), "{kind:#x}: its last page is SVM memory's first");
        memory.unmap(0, 8 * PAGE)?;
        world.told();
        raw::free(client, make(start + 3 * PAGE)?.handle)?;
    }
    imported(&world)?;
    faulted()
}

/// A buffer's file is not imported over SVM memory.
fn imported(world: &World) -> Result<(), Stop> {
    let (client, gpu) = (world.client(), world.id());
    let (memory, window) = (Memory::anonymous(PAGES * PAGE)?, raw::gpu_window(PAGES * PAGE)?);
    let handle = raw::alloc(client, window.whole().start, PAGES * PAGE, 0, gpu, ALLOC_MEM_FLAGS_VRAM)?.handle;
    let mut export = ExportDmabufArgs { handle, flags: 0, dmabuf_fd: 0 };
    match raw::ioctl(client, command::EXPORT_DMABUF, &mut export) {
        // This host makes no files of buffers.
        Err(Errno::OPNOTSUPP) => return raw::free(client, handle).map_err(Stop::from),
        result => ensure_eq!(result, Ok(())),
    }
    // SAFETY: the call has given the descriptor to this process.
    let file = unsafe { OwnedFd::from_raw_fd(i32::try_from(export.dmabuf_fd)?) };
    let va_addr = memory.whole().start;
    let import = ImportDmabufArgs { va_addr, handle: 0, gpu_id: gpu, dmabuf_fd: export.dmabuf_fd };
    raw::register_svm(client, memory.range(PAGE, PAGE))?;
    let refused = raw::ioctl(client, command::IMPORT_DMABUF, &mut import.clone());
    ensure_eq!(refused, Err(Errno::ADDRINUSE), "a file over SVM memory");
    memory.unmap(PAGE, PAGE)?;
    world.told();
    let mut there = import;
    ensure_eq!(raw::ioctl(client, command::IMPORT_DMABUF, &mut there), Ok(()));
    busy(client, memory.range(0, PAGE), vkfd::REASON_GPU_RANGE_BUSY, "an imported buffer")?;
    drop(file);
    raw::free(client, there.handle)?;
    raw::free(client, handle)?;
    Ok(())
}

/// A range that a GPU's fault made is in the way as one that was asked for; and a fault makes none
/// where something else is.
fn faulted() -> Result<(), Stop> {
    let world = World::new(WorldSpec { xnack: true, ..WorldSpec::default() })?;
    let (client, gpu) = (world.client(), world.id());
    let memory = Memory::anonymous(8 * PAGE)?;
    memory.fill(1);
    let start = memory.whole().start;
    let window = raw::gpu_window(PAGE)?;
    let userptr = |page: u64| raw::alloc(client, window.whole().start, PAGE, start + page * PAGE, gpu, raw::USERPTR);
    // Registered at other addresses on the GPU: at its own it is nobody's there.
    let handle = userptr(6)?.handle;
    let read = |page: u64| world.read_gpu(GpuVa(start + page * PAGE), PAGE);
    ensure_eq!(wrong_page(&read(1)?, [1], 1), None);
    ensure!(matches!(read(6), Err(ClientError::GpuFault { .. })), "a fault on registered memory makes no range");
    raw::free(client, handle)?;
    ensure_eq!(userptr(1).err(), Some(Errno::ADDRINUSE), "memory that a GPU has faulted in");
    let over = raw::alloc(client, start + PAGE, PAGE, 0, gpu, ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_WRITABLE);
    ensure_eq!(over.err(), Some(Errno::ADDRINUSE), "a buffer over memory that a GPU has faulted in");
    let batch =
        |page: u64| Request::new(FORMS[0], world.gpu(0), window.whole().start, &[memory.range(page * PAGE, PAGE)]);
    batch(1).must_fail(client, Errno::ADDRINUSE, vkfd::REASON_CPU_RANGE_IS_SVM, Some(0))?;
    raw::free(client, batch(6).send(client)?)?;
    Ok(())
}

fn arguments() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let memory = Memory::anonymous(4 * PAGE)?;
    let start = memory.whole().start;
    let set = |start, size| raw::register_svm(client, UserptrRange { start, size });
    ensure_eq!(set(0, PAGE), Err(Errno::INVAL));
    ensure_eq!(set(start, 0), Err(Errno::INVAL));
    ensure_eq!(set(start + 1, PAGE), Err(Errno::INVAL));
    ensure_eq!(set(start, PAGE - 1), Err(Errno::INVAL));
    ensure_eq!(set(start, u64::MAX - PAGE + 1), Err(Errno::OVERFLOW));
    memory.unmap(2 * PAGE, PAGE)?;
    ensure_eq!(set(start, 4 * PAGE), Err(Errno::FAULT));
    ensure_eq!(set(start, 2 * PAGE), Ok(()));
    Ok(())
}
