// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Step 3: the CPU changes its mappings under the registration, and the GPU has to see what the CPU
//! sees.
//!
//! Each change hits a few ranges. Afterwards the driver's counters must have moved, the generation
//! of exactly the ranges hit must have changed, and CPU and GPU must agree on every range that
//! still has memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use vkfd_client::uapi::vkfd::{RANGE_DENIED, RANGE_GONE, RANGE_VALID};
use vkfd_client::{ClientError, ComputeQueue, CpuVa, Kernel, PAGE};

use super::scene::Scene;
use crate::format::{bytes, counted, time};
use crate::guest::{Guest, Range};
use crate::memory::Mapping;
use crate::report::{Report, Step, Title};

/// Ranges that one change hits at most.
const HIT: usize = 8;
/// How long a GPU access to a missing page may take to be reported.
const FAULT: Duration = Duration::from_secs(10);

/// What a change leaves of the ranges it hits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaves {
    Memory,
    /// No mapping.
    Nothing,
    /// A mapping that the GPU may not use.
    Refused,
}

impl Leaves {
    fn state(self) -> (u32, &'static str) {
        match self {
            Self::Memory => (RANGE_VALID, "valid"),
            Self::Nothing => (RANGE_GONE, "gone"),
            Self::Refused => (RANGE_DENIED, "refused"),
        }
    }
}

/// A change of some ranges' mappings.
struct Change<'a> {
    name: &'static str,
    doing: &'static str,
    did: String,
    hit: &'a [usize],
    leaves: Leaves,
    act: &'a dyn Fn(&Guest, usize) -> io::Result<()>,
}

/// Makes the changes.
pub fn run(scene: &mut Scene<'_>, report: &mut Report<'_>) -> Result<()> {
    let hears = scene.session.hears();
    let hit = scene.pick(HIT);
    let what = amount(scene, &hit);
    if told(report, hears.unmap, "unmap", format!("munmap of {what}"))? {
        unmap(scene, report, &hit, &what)?;
    }
    let hit = scene.pick(HIT);
    let what = amount(scene, &hit);
    if told(report, hears.unmap, "replace", format!("mmap of new memory over {what}"))? {
        let act = |guest: &Guest, range: usize| {
            let Range { offset, bytes, .. } = guest.ranges[range];
            guest.ram.map_anew(offset, bytes, true)?;
            guest.fill(range, 2);
            Ok(())
        };
        let did = format!("The CPU mapped new memory over {what} (mmap) and wrote new contents");
        change(
            scene,
            report,
            &Change {
                name: "replace",
                doing: "Mapping new memory over some ranges",
                did,
                hit: &hit,
                leaves: Leaves::Memory,
                act: &act,
            },
        )?;
    }
    let hit = scene.pick(HIT);
    let what = amount(scene, &hit);
    if told(report, hears.remap, "move", format!("mremap of other memory over {what}"))? {
        let act = |guest: &Guest, range: usize| {
            let Range { offset, bytes, at } = guest.ranges[range];
            let other = Mapping::anonymous(bytes)?;
            guest.fill_mapping(&other, 0, at, bytes, 3);
            guest.ram.move_in(offset, other)
        };
        let did = format!("The CPU moved other, filled memory over {what} (mremap)");
        change(
            scene,
            report,
            &Change {
                name: "move",
                doing: "Moving other memory over some ranges",
                did,
                hit: &hit,
                leaves: Leaves::Memory,
                act: &act,
            },
        )?;
    }
    discard(scene, report)?;
    let hit = scene.pick(HIT);
    let what = amount(scene, &hit);
    if told(report, hears.protect, "protect", format!("mprotect of {what}"))? {
        protect(scene, report, &hit, &what)?;
    }
    page_out(scene, report)
}

/// How many ranges with how many bytes, in words.
fn amount(scene: &Scene<'_>, hit: &[usize]) -> String {
    let total = hit.iter().map(|range| scene.guest.ranges[*range].bytes).sum();
    format!("{} ({})", counted(hit.len() as u64, "range"), bytes(total))
}

/// Whether the driver is notified of such a change; otherwise it is noted as skipped.
fn told(report: &mut Report<'_>, hears: bool, name: &'static str, title: String) -> Result<bool> {
    if !hears {
        report.skip(
            name,
            title,
            "on this system nothing tells the driver in this process of such a change when it happens",
        )?;
    }
    Ok(hears)
}

fn change(scene: &mut Scene<'_>, report: &mut Report<'_>, change: &Change<'_>) -> Result<bool> {
    report.step(change.name, Title::new(change.doing, change.did.clone()), |step| {
        // So that the GPU's TLB has what is about to change.
        scene.read(change.hit)?;
        let before = scene.counters()?;
        let states = scene.range_states()?;
        let start = Instant::now();
        for range in change.hit {
            (change.act)(&scene.guest, *range).context("changing the mapping")?;
        }
        if let Some(before) = &before {
            let settled = scene.settle(before, start)?;
            step.took("settled", settled);
            step.note(if scene.session.xnack {
                format!("known to the driver {} after the change began", time(settled))
            } else {
                format!("restored {} after the change began, and the queues run again", time(settled))
            });
        }
        let left: Vec<usize> = match change.leaves {
            Leaves::Memory => (0..scene.guest.ranges.len()).collect(),
            _ => (0..scene.guest.ranges.len()).filter(|range| !change.hit.contains(range)).collect(),
        };
        let what = match change.leaves {
            Leaves::Memory => "CPU and GPU agree on all ranges",
            _ => "the GPU goes on with all other ranges, and agrees with the CPU",
        };
        if change.leaves == Leaves::Memory {
            // First and alone, before other accesses push them out of the TLB.
            scene.verify(step, change.hit, "CPU and GPU agree on what was changed")?;
        }
        scene.verify(step, &left, what)?;
        step.number("ranges_hit", change.hit.len() as u64);
        let Some((before, after)) = before.zip(scene.counters()?) else {
            step.note("this driver does not show its counters");
            return Ok(());
        };
        step.check("the driver learned of it", after.invalidations > before.invalidations, || "it was not".into());
        if !scene.session.xnack {
            let stops = after.evictions - before.evictions;
            let goes = after.restores - before.restores;
            step.check("each stop of the queues was followed by a restore", stops == goes, || {
                format!("{stops} and {goes}")
            });
        }
        if let Some((before, after)) = states.zip(scene.range_states()?) {
            let moved: Vec<usize> = (0..after.len())
                .filter(|i| before.get(*i).map(|r| r.generation) != Some(after[*i].generation))
                .collect();
            step.check(
                format!("exactly the {} hit became invalid", counted(change.hit.len() as u64, "range")),
                moved == change.hit,
                || format!("{} did", counted(moved.len() as u64, "range")),
            );
            // With XNACK a range is looked up again only when the GPU asks for it.
            if !scene.session.xnack {
                let (state, word) = change.leaves.state();
                let there = change.hit.iter().filter(|range| after[**range].state == state).count();
                step.check(format!("they are {word} now"), there == change.hit.len(), || {
                    format!("{there} of {}", change.hit.len())
                });
            }
        }
        step.counters(&before, &after);
        Ok(())
    })
}

/// Unmaps ranges, lets the GPU run into one, and maps them again.
fn unmap(scene: &mut Scene<'_>, report: &mut Report<'_>, hit: &[usize], what: &str) -> Result<()> {
    let act = |guest: &Guest, range: usize| {
        let Range { offset, bytes, .. } = guest.ranges[range];
        guest.ram.unmap(offset, bytes)
    };
    let did = format!("The CPU unmapped {what} and left holes (munmap)");
    change(
        scene,
        report,
        &Change { name: "unmap", doing: "Unmapping some ranges", did, hit, leaves: Leaves::Nothing, act: &act },
    )?;
    fault(scene, report, "fault", "an unmapped range", hit)?;
    report
        .step(
            "map-again",
            Title::new(
                "Mapping new memory into the holes",
                format!("The CPU mapped new memory into the holes, {what}; the buffer was mapped on the GPU again"),
            ),
            |step| {
                for range in hit {
                    let Range { offset, bytes, .. } = scene.guest.ranges[*range];
                    scene.guest.ram.map_anew(offset, bytes, false).context("mapping memory into the hole")?;
                    scene.guest.fill(*range, 1);
                }
                revalidate(scene, step)
            },
        )
        .map(drop)
}

/// Takes the write permission away, lets the GPU run into it, and gives it back.
fn protect(scene: &mut Scene<'_>, report: &mut Report<'_>, hit: &[usize], what: &str) -> Result<()> {
    let permit = |guest: &Guest, range: usize, prot: i32| {
        let Range { offset, bytes, .. } = guest.ranges[range];
        guest.ram.protect(offset, bytes, prot)
    };
    let did = format!("The CPU made {what} inaccessible (mprotect to PROT_NONE)");
    let act = |guest: &Guest, range: usize| permit(guest, range, libc::PROT_NONE);
    change(
        scene,
        report,
        &Change {
            name: "protect",
            doing: "Making some ranges inaccessible",
            did,
            hit,
            leaves: Leaves::Refused,
            act: &act,
        },
    )?;
    fault(scene, report, "protect-fault", "an inaccessible range", hit)?;
    report
        .step(
            "permit-again",
            Title::new(
                "Making the ranges accessible again",
                format!("The CPU made {what} accessible again; the buffer was mapped on the GPU again"),
            ),
            |step| {
                for range in hit {
                    permit(&scene.guest, *range, libc::PROT_READ | libc::PROT_WRITE).context("mprotect")?;
                }
                revalidate(scene, step)
            },
        )
        .map(drop)
}

/// Maps the buffer again and compares everything.
fn revalidate(scene: &mut Scene<'_>, step: &mut Step) -> Result<()> {
    let start = Instant::now();
    scene.buffer()?.revalidate()?;
    step.took("map", start.elapsed());
    let all: Vec<usize> = (0..scene.guest.ranges.len()).collect();
    scene.verify(step, &all, "CPU and GPU agree on all ranges")?;
    if let Some(states) = scene.range_states()? {
        let valid = states.iter().filter(|range| range.state == RANGE_VALID).count();
        step.check("all ranges are valid", valid == states.len(), || format!("{valid} of {}", states.len()));
    }
    Ok(())
}

/// Lets a kernel access a range that has no usable memory, on a queue of its own.
fn fault(scene: &mut Scene<'_>, report: &mut Report<'_>, name: &'static str, what: &str, hit: &[usize]) -> Result<()> {
    let title = Title::new(format!("Sending a kernel to {what}"), format!("A kernel was sent to {what}"));
    if !scene.engines[0].has_kernels() {
        return report.skip(name, title, "on a GPU that is not vkfd's a page fault can stop the whole device");
    }
    let ok = report.step(name, title, |step| {
        let gpu = scene.engines[0].gpu;
        let mut queue = ComputeQueue::new(scene.client(), gpu)?;
        let segment = scene.segment(*hit.first().context("no range was hit")?)?;
        let out = scene.engines[0].scratch();
        let before = scene.counters()?;
        let fence = queue.launch(&Kernel::Sum64 { src: segment.va, count: segment.bytes / 8, out })?;
        let end = segment.va.offset(segment.bytes);
        match fence.wait(FAULT) {
            Err(ClientError::GpuFault { va, .. }) => {
                step.note(format!("reported: page fault at {va}; that queue has stopped"));
                step.number("fault_va", va.to_string());
                let inside = (segment.va..end).contains(&va);
                step.check("a page fault in that range is reported, and nothing is read", inside, || {
                    format!("the fault is at {va}, outside of {} to {end}", segment.va)
                });
            }
            Err(other) => bail!("no page fault is reported, but: {other}"),
            Ok(()) => {
                step.check("a page fault is reported", false, || "the kernel finished".into());
            }
        }
        drop(queue);
        if let Some((before, after)) = before.zip(scene.counters()?) {
            step.counters(&before, &after);
            let faults = after.gpu_faults - before.gpu_faults;
            step.check("the driver counts it", faults != 0, || "it does not".into());
        }
        Ok(())
    })?;
    if !ok {
        return Ok(());
    }
    scene.engines.iter_mut().try_for_each(crate::engine::Engine::renew)
}

/// Discards contents, by libc's call and past it.
fn discard(scene: &mut Scene<'_>, report: &mut Report<'_>) -> Result<()> {
    let hears = scene.session.hears();
    let zeros = |guest: &Guest, range: usize| {
        let Range { offset, bytes, .. } = guest.ranges[range];
        let mut first = [1; 8];
        guest.ram.read(offset, &mut first);
        if first != [0; 8] || bytes < PAGE {
            return Err(io::Error::other("discarded memory does not read as zeros on the CPU"));
        }
        Ok(())
    };
    let hit = scene.pick(HIT);
    let what = amount(scene, &hit);
    if told(report, hears.discard, "discard", format!("madvise(MADV_DONTNEED) of {what}"))? {
        let act = |guest: &Guest, range: usize| {
            let Range { offset, bytes, .. } = guest.ranges[range];
            guest.ram.advise(offset, bytes, libc::MADV_DONTNEED)?;
            zeros(guest, range)
        };
        let did = format!("The CPU discarded the contents of {what}, which are zeros then (madvise, MADV_DONTNEED)");
        change(
            scene,
            report,
            &Change {
                name: "discard",
                doing: "Discarding the contents of some ranges",
                did,
                hit: &hit,
                leaves: Leaves::Memory,
                act: &act,
            },
        )?;
    }
    let hit = scene.pick(HIT);
    let what = amount(scene, &hit);
    let title = format!("The same by a bare system call, past libc, of {what}");
    if !hears.raw_system_calls {
        let reason = "without userfaultfd the driver in this process sees only calls through libc";
        return report.skip("discard-past-libc", title, reason);
    }
    let act = |guest: &Guest, range: usize| {
        let Range { offset, bytes, .. } = guest.ranges[range];
        guest.ram.discard_past_libc(offset, bytes)?;
        zeros(guest, range)?;
        guest.fill(range, 4);
        Ok(())
    };
    let did = format!("{title}; then the CPU wrote new contents");
    change(
        scene,
        report,
        &Change {
            name: "discard-past-libc",
            doing: "Discarding by a bare system call",
            did,
            hit: &hit,
            leaves: Leaves::Memory,
            act: &act,
        },
    )
    .map(drop)
}

/// Swaps ranges out, where there is swap.
fn page_out(scene: &mut Scene<'_>, report: &mut Report<'_>) -> Result<()> {
    let hit = scene.pick(HIT);
    let what = amount(scene, &hit);
    let title = format!("Swapping {what} out (madvise, MADV_PAGEOUT)");
    if swap_bytes() == 0 {
        return report.skip("page-out", title, "this machine has no swap, so the kernel has no place to put the pages");
    }
    if !told(report, scene.session.hears().pageout, "page-out", title)? {
        return Ok(());
    }
    let act = |guest: &Guest, range: usize| {
        let Range { offset, bytes, .. } = guest.ranges[range];
        guest.ram.advise(offset, bytes, libc::MADV_PAGEOUT)
    };
    let did = format!("The CPU swapped {what} out (madvise, MADV_PAGEOUT)");
    let start = scene.guest.ram.start();
    let swapped = std::cell::Cell::new(0);
    let counting = |guest: &Guest, range: usize| {
        act(guest, range)?;
        let Range { offset, bytes, .. } = guest.ranges[range];
        swapped.set(swapped.get() + swapped_pages(CpuVa(start.0 + offset), bytes)?);
        Ok(())
    };
    change(
        scene,
        report,
        &Change {
            name: "page-out",
            doing: "Swapping some ranges out",
            did,
            hit: &hit,
            leaves: Leaves::Memory,
            act: &counting,
        },
    )?;
    report
        .step(
            "swapped",
            Title::new("Looking at /proc/self/pagemap", "Looked at /proc/self/pagemap for the pages swapped out"),
            |step| {
                step.number("pages", swapped.get());
                step.note(format!(
                    "{} in swap right after the call; the kernel may keep some",
                    counted(swapped.get(), "page")
                ));
                Ok(())
            },
        )
        .map(drop)
}

/// Bytes of swap that the machine has.
fn swap_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("SwapTotal:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// How many pages are in swap, by bit 62 of their entries in `/proc/self/pagemap`.
fn swapped_pages(start: CpuVa, bytes: u64) -> io::Result<u64> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut entry = [0; 8];
    let mut swapped = 0;
    for page in start.0 / PAGE..(start.0 + bytes) / PAGE {
        pagemap.read_exact_at(&mut entry, page * 8)?;
        swapped += u64::from_ne_bytes(entry) >> 62 & 1;
    }
    Ok(swapped)
}
