// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The checks of batch registration, in both forms.

use vkfd_client::uapi::memory::{
    ALLOC_MEM_FLAGS_AQL_QUEUE_MEM, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_VRAM,
};
use vkfd_client::uapi::vkfd;
use vkfd_client::{ClientError, CpuVa, Errno, RegisterOptions, Strategy, UserptrRange, PAGE};

use crate::memory::{Layout, Memory};
use crate::raw::{self, Form, Request, FORMS};
use crate::{Scenario, Stop, World, WorldSpec};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "batch_arguments_that_are_zero_are_refused",
        about: "Rows 1 to 3 of v2's checks; the flag form has the same ones where it has the field.",
        run: zeroes,
    },
    Scenario {
        name: "batch_without_the_userptr_flag_is_not_supported",
        about: "Row 4, and flags that do not go with it.",
        run: flags,
    },
    Scenario {
        name: "batch_padding_and_unknown_flags_must_be_zero",
        about: "Fault (h): v2 does not look at its padding, so that it can never be used.",
        run: reserved,
    },
    Scenario {
        name: "batch_list_pointers_that_cannot_be_read_are_bad_addresses",
        about: "Row 7: null, unmapped, and readable only in part, at the first entry and at a late one.",
        run: list_pointers,
    },
    Scenario {
        name: "batch_ranges_must_be_whole_pages_and_the_error_names_the_one_at_fault",
        about: "Row 8, with the index and the address of the range.",
        run: unaligned,
    },
    Scenario {
        name: "batch_addresses_and_sums_that_wrap_are_refused",
        about: "Fault (h): start plus size, the sum of sizes, and the GPU range wrap around.",
        run: wraps,
    },
    Scenario { name: "batch_sizes_must_add_up_to_the_total", about: "Row 9, one page more and one less.", run: sum },
    Scenario {
        name: "batch_range_counts_above_the_limit_are_refused_before_the_list_is_read",
        about: "Fault (h): v2 has no cap. The limit itself is allowed.",
        run: too_many,
    },
    Scenario {
        name: "batch_gpu_must_exist_and_its_range_be_in_the_aperture",
        about: "Rows 12 and 14: unknown gpu_id, AQL memory, addresses that are zero, unaligned or beyond the aperture.",
        run: gpu,
    },
    Scenario {
        name: "batch_range_without_a_mapping_is_named_by_driver_and_library",
        about: "Row 16: the first, a middle and the last range; the library's message has index and address.",
        run: holes,
    },
    Scenario {
        name: "batch_checks_come_in_their_order",
        about: "Of two mistakes the one of the lower row is reported.",
        run: order,
    },
];

struct Setting {
    world: World,
    memory: Memory,
    window: Memory,
}

impl Setting {
    fn new() -> Result<Self, Stop> {
        let world = World::new(WorldSpec::default())?;
        // The helper's queue would otherwise change the counts that are compared.
        let memory = Memory::anonymous(64 * PAGE)?;
        memory.fill(1);
        Ok(Self { world, memory, window: raw::gpu_window(64 * PAGE)? })
    }

    /// A correct request for eight pages in shuffled order.
    fn good(&self, form: Form) -> Request {
        let ranges = self.memory.scatter(8, PAGE, Layout::Shuffled);
        Request::new(form, self.world.gpu(0), self.window.whole().start, &ranges)
    }

    /// Both forms, changed by `f`, must fail.
    fn fail(&self, errno: Errno, reason: u32, range: Option<u64>, f: impl Fn(&mut Request)) -> Result<(), Stop> {
        for form in FORMS {
            let mut request = self.good(form);
            f(&mut request);
            request.must_fail(self.world.client(), errno, reason, range)?;
        }
        Ok(())
    }

    /// Both forms, changed by `f`, must succeed: what was refused was refused for the reason given.
    fn succeed(&self, f: impl Fn(&mut Request)) -> Result<(), Stop> {
        for form in FORMS {
            let mut request = self.good(form);
            f(&mut request);
            let handle = request.send(self.world.client());
            ensure!(handle.is_ok(), "{form:?}: {handle:?} {:?}", raw::last_error(self.world.client()));
            raw::free(self.world.client(), handle?)?;
        }
        Ok(())
    }
}

fn zeroes() -> Result<(), Stop> {
    let s = Setting::new()?;
    s.succeed(|_| {})?;
    s.fail(Errno::INVAL, vkfd::REASON_ZERO_OR_UNALIGNED, None, |r| r.total = 0)?;
    for (form, reason) in [(Form::Command, vkfd::REASON_ZERO_OR_UNALIGNED), (Form::Flag, vkfd::REASON_BAD_FLAGS)] {
        let none = Request { count: 0, ..s.good(form) };
        none.must_fail(s.world.client(), Errno::INVAL, reason, None)?;
    }
    let null = Request { list: Some(0), ..s.good(Form::Command) };
    null.must_fail(s.world.client(), Errno::INVAL, vkfd::REASON_ZERO_OR_UNALIGNED, None)
}

fn flags() -> Result<(), Stop> {
    let s = Setting::new()?;
    s.fail(Errno::OPNOTSUPP, vkfd::REASON_BAD_FLAGS, None, |r| r.flags &= !ALLOC_MEM_FLAGS_USERPTR)?;
    s.fail(Errno::OPNOTSUPP, vkfd::REASON_BAD_FLAGS, None, |r| r.flags = ALLOC_MEM_FLAGS_GTT)?;
    s.fail(Errno::INVAL, vkfd::REASON_BAD_FLAGS, None, |r| r.flags |= ALLOC_MEM_FLAGS_VRAM)?;
    s.fail(Errno::INVAL, vkfd::REASON_BAD_FLAGS, None, |r| r.flags |= ALLOC_MEM_FLAGS_GTT)?;
    let both = Request { flags: raw::USERPTR | 1 << 22, ..s.good(Form::Command) };
    both.must_fail(s.world.client(), Errno::INVAL, vkfd::REASON_BAD_FLAGS, None)
}

fn reserved() -> Result<(), Stop> {
    let s = Setting::new()?;
    s.fail(Errno::INVAL, vkfd::REASON_BAD_FLAGS, None, |r| r.reserved = 1)?;
    s.fail(Errno::INVAL, vkfd::REASON_BAD_FLAGS, None, |r| r.reserved = 1 << 31)?;
    for bit in 5..22 {
        s.fail(Errno::INVAL, vkfd::REASON_BAD_FLAGS, None, |r| r.flags |= 1 << bit)?;
    }
    Ok(())
}

fn list_pointers() -> Result<(), Stop> {
    let s = Setting::new()?;
    let bad = |list| s.fail(Errno::FAULT, vkfd::REASON_BAD_POINTER, None, move |r| r.list = Some(list));
    let null = Request { list: Some(0), ..s.good(Form::Flag) };
    null.must_fail(s.world.client(), Errno::FAULT, vkfd::REASON_BAD_POINTER, None)?;
    // Kernel addresses, and ends that wrap.
    bad(0xffff_8000_0000_0000)?;
    bad(u64::MAX - 7)?;
    bad(1 << 47)?;
    // A page, and none after it.
    let list = Memory::anonymous(3 * PAGE)?;
    list.unmap(2 * PAGE, PAGE)?;
    bad(CpuVa::of(list.at(2 * PAGE)).0)?;
    for form in FORMS {
        // 400 entries, of which the last ones cannot be read; more than a driver copies in one
        // step.
        let ranges = [s.memory.range(0, PAGE)].repeat(400);
        let mut request = Request::new(form, s.world.gpu(0), s.window.whole().start, &ranges);
        let bytes = request.list_bytes();
        let len = bytes.len() as u64;
        list.write(0, &bytes);
        request.list = Some(CpuVa::of(list.at(0)).0);
        raw::free(s.world.client(), request.send(s.world.client())?)?;
        for readable in [8, 16, 24, 2000, len - 8, len - 1] {
            let kept = usize::try_from(readable)?;
            list.write(2 * PAGE - readable, &bytes[..kept]);
            request.list = Some(CpuVa::of(list.at(2 * PAGE - readable)).0);
            request.must_fail(s.world.client(), Errno::FAULT, vkfd::REASON_BAD_POINTER, None)?;
        }
    }
    Ok(())
}

fn unaligned() -> Result<(), Stop> {
    let s = Setting::new()?;
    for i in [0, 3, 7] {
        let index = Some(i as u64);
        let fail = |f: &dyn Fn(&mut UserptrRange)| {
            s.fail(Errno::INVAL, vkfd::REASON_ZERO_OR_UNALIGNED, index, |r| f(&mut r.ranges[i]))
        };
        fail(&|range| range.start = 0)?;
        fail(&|range| range.size = 0)?;
        fail(&|range| range.start += 1)?;
        fail(&|range| range.start += PAGE / 2)?;
        fail(&|range| range.size -= 1)?;
        fail(&|range| range.size = 1)?;
    }
    Ok(())
}

fn wraps() -> Result<(), Stop> {
    let s = Setting::new()?;
    // start + size is 2^64, then more.
    let top = u64::MAX - PAGE + 1;
    s.fail(Errno::INVAL, vkfd::REASON_WRAPS, Some(2), |r| r.ranges[2].start = top)?;
    s.fail(Errno::INVAL, vkfd::REASON_WRAPS, Some(2), |r| r.ranges[2].size = top)?;
    // Each range is possible, but their sum wraps to the given total: two of 2^63 bytes add up to
    // 0.
    s.fail(Errno::INVAL, vkfd::REASON_WRAPS, Some(1), |r| {
        (r.ranges[0].size, r.ranges[1].size) = (1 << 63, 1 << 63);
        (r.ranges[0].start, r.ranges[1].start) = (PAGE, PAGE);
        r.total = 6 * PAGE;
    })?;
    // The GPU range wraps.
    s.fail(Errno::INVAL, vkfd::REASON_WRAPS, None, |r| r.va = top)
}

fn sum() -> Result<(), Stop> {
    let s = Setting::new()?;
    s.fail(Errno::INVAL, vkfd::REASON_SUM_MISMATCH, None, |r| r.total += PAGE)?;
    s.fail(Errno::INVAL, vkfd::REASON_SUM_MISMATCH, None, |r| r.total -= PAGE)?;
    s.fail(Errno::INVAL, vkfd::REASON_SUM_MISMATCH, None, |r| r.total += 1)?;
    s.fail(Errno::INVAL, vkfd::REASON_SUM_MISMATCH, None, |r| r.count -= 1)
}

fn too_many() -> Result<(), Stop> {
    let s = Setting::new()?;
    let limit = u32::try_from(s.world.client().caps().max_ranges)?;
    ensure!(limit > 0, "the driver says how many ranges a batch may have");
    // The list of eight is not read any further.
    s.fail(Errno::INVAL, vkfd::REASON_TOO_MANY_RANGES, None, |r| r.count = limit + 1)?;
    s.fail(Errno::INVAL, vkfd::REASON_TOO_MANY_RANGES, None, |r| r.count = u32::MAX)?;
    // As many as allowed get past that check, to the next one that they fail.
    let ranges = vec![s.memory.range(0, PAGE); usize::try_from(limit)?];
    for form in FORMS {
        let request = Request { total: PAGE, ..Request::new(form, s.world.gpu(0), s.window.whole().start, &ranges) };
        request.must_fail(s.world.client(), Errno::INVAL, vkfd::REASON_SUM_MISMATCH, None)?;
    }
    Ok(())
}

fn gpu() -> Result<(), Stop> {
    let s = Setting::new()?;
    for unknown in [0, 1, !s.world.id(), u32::MAX] {
        s.fail(Errno::INVAL, vkfd::REASON_BAD_GPU, None, |r| r.gpu = unknown)?;
    }
    s.fail(Errno::INVAL, vkfd::REASON_BAD_FLAGS, None, |r| r.flags |= ALLOC_MEM_FLAGS_AQL_QUEUE_MEM)?;
    s.fail(Errno::INVAL, vkfd::REASON_ZERO_OR_UNALIGNED, None, |r| r.va = 0)?;
    s.fail(Errno::INVAL, vkfd::REASON_ZERO_OR_UNALIGNED, None, |r| r.va += 8)?;
    let end = s.world.client().aperture().limit.0 + 1;
    s.fail(Errno::INVAL, vkfd::REASON_OUT_OF_APERTURE, None, |r| r.va = end)?;
    s.fail(Errno::INVAL, vkfd::REASON_OUT_OF_APERTURE, None, |r| r.va = end - 7 * PAGE)?;
    s.succeed(|r| r.va = end - 8 * PAGE)
}

fn holes() -> Result<(), Stop> {
    let s = Setting::new()?;
    let order = s.memory.scatter(8, PAGE, Layout::Shuffled);
    for i in [0, 4, 7] {
        let range = order[i];
        let offset = range.start - s.memory.whole().start;
        s.memory.unmap(offset, PAGE)?;
        s.fail(Errno::FAULT, vkfd::REASON_NOT_MAPPED, Some(i as u64), |_| {})?;
        for strategy in [Strategy::Batch, Strategy::BatchFlag, Strategy::PerRange] {
            let options = RegisterOptions { strategy, ..RegisterOptions::default() };
            // SAFETY: nothing else uses the memory, and it is not registered in the end.
            let result = unsafe { s.world.client().register_ranges(&order, &options) };
            let Err(error) = result else { bail!("{strategy:?}: a range without a mapping was registered") };
            let text = error.to_string();
            let wanted = format!("range {i} at {:#x}, 0x1000 bytes: not mapped (EFAULT)", range.start);
            ensure!(text.contains(&wanted), "{strategy:?}: {text:?} does not say {wanted:?}");
            ensure!(matches!(error, ClientError::Range { .. }), "{error:?}");
        }
        s.memory.map_again(offset, PAGE)?;
        s.succeed(|_| {})?;
    }
    Ok(())
}

fn order() -> Result<(), Stop> {
    let s = Setting::new()?;
    let unreadable = 1 << 47;
    s.fail(Errno::INVAL, vkfd::REASON_ZERO_OR_UNALIGNED, None, |r| (r.total, r.flags) = (0, 0))?;
    s.fail(Errno::OPNOTSUPP, vkfd::REASON_BAD_FLAGS, None, |r| (r.flags, r.list) = (0, Some(unreadable)))?;
    s.fail(Errno::FAULT, vkfd::REASON_BAD_POINTER, None, |r| (r.list, r.gpu) = (Some(unreadable), 0))?;
    s.fail(Errno::INVAL, vkfd::REASON_ZERO_OR_UNALIGNED, Some(0), |r| {
        r.ranges[0].start += 1;
        r.total += PAGE;
    })?;
    let other = Memory::anonymous(PAGE)?;
    raw::register_svm(s.world.client(), other.whole())?;
    let svm = other.whole();
    s.fail(Errno::INVAL, vkfd::REASON_SUM_MISMATCH, None, |r| (r.ranges[5], r.total) = (svm, PAGE))?;
    s.fail(Errno::ADDRINUSE, vkfd::REASON_CPU_RANGE_IS_SVM, Some(5), |r| (r.ranges[5], r.gpu) = (svm, 0))?;
    // The GPU range is looked at before the CPU ranges.
    s.fail(Errno::ADDRINUSE, vkfd::REASON_GPU_RANGE_BUSY, None, |r| (r.ranges[5], r.va) = (svm, svm.start))?;
    s.fail(Errno::INVAL, vkfd::REASON_BAD_GPU, None, |r| {
        r.gpu = 0;
        r.flags |= ALLOC_MEM_FLAGS_AQL_QUEUE_MEM;
    })?;
    // What is wrong with a list is known before the memory is looked at.
    s.memory.unmap(0, PAGE)?;
    s.fail(Errno::INVAL, vkfd::REASON_BAD_FLAGS, None, |r| r.flags |= ALLOC_MEM_FLAGS_AQL_QUEUE_MEM)?;
    s.fail(Errno::INVAL, vkfd::REASON_BAD_GPU, None, |r| r.gpu = 0)
}
