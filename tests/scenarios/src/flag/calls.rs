// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The call itself: the order of the list, errors, conflicts with SVM, failures on its way.

use vkfd_client::uapi::memory::{
    ALLOC_MEM_FLAGS_AQL_QUEUE_MEM, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_VRAM,
};
use vkfd_client::{CpuVa, Errno, UserptrRange, PAGE};

use super::{batch, expect_same, filled, gap, register, with_gaps, world};
use crate::coherence::batch::{FIRST, RANGE_PAGES};
use crate::geometry::{gpu_sees, gpu_writes, pages_of};
use crate::memory::{Layout, Memory};
use crate::raw::{self, Form, Request};
use crate::{Scenario, Stop, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "flag_ranges_lie_in_the_lists_order",
        about: "1 to 65,536 ranges, in every layout: the GPU reads what the CPU wrote, and the CPU what the GPU wrote.",
        run: order,
    },
    Scenario {
        name: "flag_errors_are_known_by_their_number",
        about: "Every way of being wrong has its errno, and after all of them a good call works (fault h).",
        run: errors,
    },
    Scenario {
        name: "flag_a_list_that_cannot_be_read_is_a_bad_address",
        about: "Null, kernel addresses, ends that wrap, and lists that end in the middle of an entry.",
        run: pointers,
    },
    Scenario {
        name: "flag_memory_that_is_not_there_is_a_bad_address",
        about: "The first, a middle and the last range without memory, and one that must not be written; a good call works afterwards (faults c, d).",
        run: missing,
    },
    Scenario {
        name: "flag_and_svm_have_no_memory_in_common",
        about: "EADDRINUSE both ways, for the CPU's ranges and the GPU's, mapped or not; gaps are free (fault f).",
        run: svm,
    },
    Scenario {
        name: "flag_fails_anywhere_and_leaves_nothing",
        about: "Each allocation on the call's way fails in turn; then it works, with the right memory (faults c, d).",
        run: failures,
    },
];

fn order() -> Result<(), Stop> {
    let world = world()?;
    for layout in [Layout::Adjacent, Layout::Reversed, Layout::Shuffled, Layout::Gaps] {
        for (count, pages) in [(1, 1), (2, 3), (1024, 1)] {
            check(&world, layout, count, pages)?;
        }
    }
    check(&world, Layout::Shuffled, 3, 700)?;
    check(&world, Layout::Shuffled, world.client().caps().max_ranges.min(65_536), 1)
}

fn check(world: &World, layout: Layout, count: u64, pages: u64) -> Result<(), Stop> {
    let memory = filled(2 * count * pages)?;
    let ranges = memory.scatter(count, pages * PAGE, layout);
    let buffer = register(world, &ranges)?;
    ensure_eq!(buffer.handles().len(), 1);
    let order = pages_of(&memory, &ranges);
    gpu_sees(world, &buffer, &order, FIRST)?;
    gpu_writes(world, &buffer, &memory, &order, 2)?;
    let others = (0..memory.pages()).filter(|page| !order.contains(page)).take(64);
    for page in others {
        ensure_eq!(memory.find_wrong(page..page + 1, FIRST), None, "{layout:?}: a page outside of the list");
    }
    Ok(buffer.free()?)
}

/// A correct request for eight pages.
fn good(world: &World, memory: &Memory, window: &Memory) -> Request {
    Request::new(Form::Flag, world.gpu(0), window.whole().start, &memory.scatter(8, PAGE, Layout::Shuffled))
}

fn succeeds(world: &World, request: &Request) -> Result<(), Stop> {
    let handle = request.send(world.client());
    ensure!(handle.is_ok(), "a good call fails: {handle:?}");
    Ok(raw::free(world.client(), handle?)?)
}

fn errors() -> Result<(), Stop> {
    let world = world()?;
    let (memory, window) = (filled(64)?, raw::gpu_window(64 * PAGE)?);
    let fails = |what: &str, errno: Errno, change: &dyn Fn(&mut Request)| -> Result<(), Stop> {
        let mut request = good(&world, &memory, &window);
        change(&mut request);
        ensure_eq!(request.send(world.client()), Err(errno), "{what}");
        Ok(())
    };
    let invalid = |what: &str, change: &dyn Fn(&mut Request)| fails(what, Errno::INVAL, change);
    let limit = u32::try_from(world.client().caps().max_ranges)?;
    let top = u64::MAX - PAGE + 1;
    succeeds(&world, &good(&world, &memory, &window))?;
    fails("without USERPTR", Errno::OPNOTSUPP, &|r| r.flags &= !ALLOC_MEM_FLAGS_USERPTR)?;
    invalid("no size", &|r| r.total = 0)?;
    invalid("no ranges", &|r| r.count = 0)?;
    invalid("the reserved word", &|r| r.reserved = 1)?;
    invalid("VRAM", &|r| r.flags |= ALLOC_MEM_FLAGS_VRAM)?;
    invalid("GTT", &|r| r.flags |= ALLOC_MEM_FLAGS_GTT)?;
    invalid("memory of an AQL queue", &|r| r.flags |= ALLOC_MEM_FLAGS_AQL_QUEUE_MEM)?;
    // The list of eight is not read any further.
    invalid("too many ranges", &|r| r.count = limit + 1)?;
    invalid("very many ranges", &|r| r.count = u32::MAX)?;
    invalid("a page more", &|r| r.total += PAGE)?;
    invalid("a page less", &|r| r.total -= PAGE)?;
    invalid("a byte more", &|r| r.total += 1)?;
    invalid("a range less", &|r| r.count -= 1)?;
    invalid("no such GPU", &|r| r.gpu = !r.gpu)?;
    for i in [0, 3, 7] {
        invalid("start 0", &|r| r.ranges[i].start = 0)?;
        invalid("size 0", &|r| r.ranges[i].size = 0)?;
        invalid("an unaligned start", &|r| r.ranges[i].start += 8)?;
        invalid("an unaligned size", &|r| r.ranges[i].size -= 8)?;
        invalid("an end that wraps", &|r| r.ranges[i].start = top)?;
        invalid("a size that wraps", &|r| r.ranges[i].size = top)?;
    }
    invalid("a sum that wraps", &|r| {
        (r.ranges[0], r.ranges[1]) = (half(), half());
        r.total = 6 * PAGE;
    })?;
    // As many as are allowed get past that check, to the next one that they fail.
    let ranges = vec![memory.range(0, PAGE); usize::try_from(limit)?];
    let many = Request { total: PAGE, ..Request::new(Form::Flag, world.gpu(0), window.whole().start, &ranges) };
    ensure_eq!(many.send(world.client()), Err(Errno::INVAL), "the greatest number with a wrong sum");
    succeeds(&world, &good(&world, &memory, &window))
}

/// Two of it add up to 0.
fn half() -> UserptrRange {
    UserptrRange { start: PAGE, size: 1 << 63 }
}

fn pointers() -> Result<(), Stop> {
    let world = world()?;
    let (memory, window) = (filled(64)?, raw::gpu_window(512 * PAGE)?);
    let bad = |list: u64| -> Result<(), Stop> {
        let request = Request { list: Some(list), ..good(&world, &memory, &window) };
        ensure_eq!(request.send(world.client()), Err(Errno::FAULT), "a list at {list:#x}");
        Ok(())
    };
    for list in [0, 0xffff_8000_0000_0000, u64::MAX - 7, 1 << 47] {
        bad(list)?;
    }
    // 400 entries in front of a page that is not there.
    let list = Memory::anonymous(3 * PAGE)?;
    list.unmap(2 * PAGE, PAGE)?;
    let ranges = [memory.range(0, PAGE)].repeat(400);
    let mut request = Request::new(Form::Flag, world.gpu(0), window.whole().start, &ranges);
    let bytes = request.list_bytes();
    list.write(0, &bytes);
    request.list = Some(CpuVa::of(list.at(0)).0);
    succeeds(&world, &request)?;
    let whole = bytes.len() as u64;
    for readable in [4, 8, 16, 24, 2000, whole - 8, whole - 1] {
        list.write(2 * PAGE - readable, &bytes[..usize::try_from(readable)?]);
        request.list = Some(CpuVa::of(list.at(2 * PAGE - readable)).0);
        ensure_eq!(request.send(world.client()), Err(Errno::FAULT), "{readable} bytes can be read");
    }
    Ok(())
}

fn missing() -> Result<(), Stop> {
    let world = world()?;
    let (memory, window) = (filled(64)?, raw::gpu_window(64 * PAGE)?);
    let request = good(&world, &memory, &window);
    for i in [0, 4, 7] {
        let offset = request.ranges[i].start - memory.whole().start;
        memory.unmap(offset, PAGE)?;
        ensure_eq!(request.send(world.client()), Err(Errno::FAULT), "range {i} has no memory");
        memory.map_again(offset, PAGE)?;
        succeeds(&world, &request)?;
        memory.protect(offset, PAGE, libc::PROT_READ)?;
        let denied = request.send(world.client());
        ensure_eq!(denied, Err(Errno::PERM), "range {i} must not be written");
        memory.protect(offset, PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
    }
    // Nothing watches the memory any more.
    memory.discard(0, memory.bytes())?;
    succeeds(&world, &request)
}

fn svm() -> Result<(), Stop> {
    let world = world()?;
    let client = world.client();
    let other = filled(8)?;
    raw::register_svm(client, other.range(2 * PAGE, 2 * PAGE))?;
    let (memory, window) = (filled(64)?, raw::gpu_window(64 * PAGE)?);
    let request = good(&world, &memory, &window);
    for (page, result) in [(1, true), (2, false), (3, false), (4, true)] {
        let mut request = request.clone();
        request.ranges[5] = other.range(page * PAGE, PAGE);
        let handle = request.send(client);
        ensure_eq!(handle.is_ok(), result, "page {page}: {handle:?}");
        match handle {
            Ok(handle) => raw::free(client, handle)?,
            Err(errno) => ensure_eq!(errno, Errno::ADDRINUSE),
        }
    }
    let gpu = Request { va: other.range(0, PAGE).start, ..request.clone() };
    ensure_eq!(gpu.send(client), Err(Errno::ADDRINUSE), "the GPU's range");

    // And the other way round: the ranges of a batch, and no gap of it.
    let batch = with_gaps(&world, 16)?;
    for mapped in [true, false] {
        for range in [0, 7, 15] {
            let (start, bytes) = (batch.offset(range), RANGE_PAGES * PAGE);
            for (offset, bytes) in [(start, PAGE), (start + bytes - PAGE, 2 * PAGE), (start, 2 * bytes)] {
                let used = raw::register_svm(client, batch.memory.range(offset, bytes));
                ensure_eq!(used, Err(Errno::ADDRINUSE), "range {range}, mapped: {mapped}");
            }
        }
        if mapped {
            batch.buffer.unmap(&vkfd_client::GpuSet::All)?;
        }
    }
    raw::register_svm(client, batch.memory.range(gap(&batch, 7), RANGE_PAGES * PAGE))?;
    batch.buffer.map(&vkfd_client::GpuSet::All)?;
    expect_same(&world, &batch)?;
    let (memory, ranges) = (batch.memory, batch.ranges);
    batch.buffer.free()?;
    let first = memory.range(ranges[0].start - memory.whole().start, PAGE);
    Ok(raw::register_svm(client, first)?)
}

fn failures() -> Result<(), Stop> {
    const ENOUGH: u64 = 4000;
    let world = world()?;
    let (memory, window) = (filled(400)?, raw::gpu_window(400 * PAGE)?);
    let ranges = memory.scatter(100, 4 * PAGE, Layout::Shuffled);
    let request = Request::new(Form::Flag, world.gpu(0), window.whole().start, &ranges);
    let mut failed = 0;
    for n in 0..ENOUGH {
        let (result, reached) = world.fail_nth(n, || request.send(world.client()))?;
        match result {
            Ok(handle) => raw::free(world.client(), handle)?,
            Err(errno) => {
                ensure!(reached, "{errno:?} although nothing was made to fail");
                // A page fault or a copy that fails is a bad address.
                ensure!([Errno::NOMEM, Errno::FAULT, Errno::AGAIN].contains(&errno), "failing at {n}: {errno:?}");
                failed += 1;
            }
        }
        // This would reach a notifier that a failed call has left behind.
        memory.discard(n % 100 * 4 * PAGE, 4 * PAGE)?;
        if !reached {
            ensure!(failed > 3, "only {failed} of {n} points made the call fail");
            memory.fill(7);
            let again = batch(&world, 8)?;
            expect_same(&world, &again)?;
            let buffer = register(&world, &ranges)?;
            gpu_sees(&world, &buffer, &pages_of(&memory, &ranges), 7)?;
            return Ok(buffer.free()?);
        }
    }
    bail!("the call has more than {ENOUGH} points")
}
