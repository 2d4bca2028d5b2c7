// SPDX-License-Identifier: GPL-2.0 OR MIT
//! MEASURE: the host's own time for the pages of a list of ranges, without an object, an entry or a
//! commit. A benchmark subtracts it from a registration's time.
//!
//! Faulting goes as for a registration ([`crate::userptr::revalidate`]): the same windows, the same
//! order, the same chunks. An invalidation meanwhile does not matter, because nobody uses the
//! pages. The bare fault is the kernel's call and nothing of ours, so it stays the same when our
//! faulting gets faster.
//!
//! Only with diagnosis on ([`crate::machine::kfd::Options`]). The measured memory is charged to the
//! memory limit meanwhile, and one call at a time pins.

use crate::base::addr::{index, CpuSpan, CpuVa, PAGE};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::os::{self, Arc, Vec};
use crate::process::Process;
use crate::seams::address_space::{Access, Invalidate, Page};
use crate::userptr::range_set::RangeSet;
use crate::userptr::revalidate::{CHUNK_PAGES, CHUNK_RANGES};
use crate::userptr::window::Windows;
use core::time::Duration;
use vkfd_uapi::vkfd as abi;

/// Most pages pinned at a time on a machine: with 1,024 references each, half of a page's reference
/// count, if all are of one page.
const MAX_PINNED: u64 = 1 << 20;

/// Bytes of a chunk.
const CHUNK_BYTES: u64 = CHUNK_PAGES * PAGE;

/// Whom no invalidation concerns.
struct Nobody;

impl Invalidate for Nobody {
    fn invalidate(&self, _: CpuSpan, _: bool) -> bool {
        true
    }
}

/// The ranges by address, as a registration goes over them.
fn spans(ranges: &RangeSet) -> Result<Vec<CpuSpan>> {
    let mut spans = Vec::with_capacity(ranges.len())?;
    for number in ranges.by_cpu() {
        spans.push(ranges.span(index(u64::from(*number))))?;
    }
    Ok(spans)
}

/// The MEASURE call. O(pages).
pub(crate) fn measure(process: &Process, args: &mut abi::MeasureArgs) -> Result {
    if args.num_ranges == 0 || args.pad != 0 {
        return Err(Error::new(Errno::EINVAL, Reason::ZeroOrUnaligned));
    }
    let ranges = super::batch::range_list(process, args.ranges_ptr, args.num_ranges)?;
    // As long as the call lasts, as a registration would be.
    let _charge = process.kfd().limit().charge(ranges.pages().saturating_mul(PAGE))?;
    let took = match args.what {
        abi::MEASURE_FAULT => measure_fault(process, &ranges)?,
        abi::MEASURE_FAULT_BARE => {
            let nobody: Arc<dyn Invalidate> = os::arc(Nobody)?;
            let _windows = Windows::new(process.mm(), &ranges, &nobody, process.window_policy())?;
            process.mm().measure_fault_bare(&spans(&ranges)?)?
        }
        abi::MEASURE_PIN => {
            if ranges.pages() > MAX_PINNED {
                return Err(Error::new(Errno::EINVAL, Reason::TooManyRanges));
            }
            // Each pin is a thousand references to its page, and all of them may be to the
            // same: not two calls' at a time.
            let _only = process.kfd().begin_pinning().ok_or(Errno::EBUSY)?;
            process.mm().measure_pin(&spans(&ranges)?)?
        }
        _ => return Err(Errno::EINVAL.into()),
    };
    args.pages = ranges.pages();
    args.nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    Ok(())
}

fn measure_fault(process: &Process, ranges: &RangeSet) -> Result<Duration> {
    let nobody: Arc<dyn Invalidate> = os::arc(Nobody)?;
    let windows = Windows::new(process.mm(), ranges, &nobody, process.window_policy())?;
    let mut pages = Vec::filled(Page::default(), index(ranges.pages().min(CHUNK_PAGES)))?;
    let mut spans: Vec<CpuSpan> = Vec::with_capacity(ranges.len().min(CHUNK_RANGES))?;
    let start = os::now();
    let mut left = ranges.by_cpu();
    while let Some(first) = left.first() {
        os::interrupted()?;
        spans.clear();
        let mut room = CHUNK_PAGES;
        let number = |number: &u32| index(u64::from(*number));
        let watch = windows.of(number(first), ranges.span(number(first)).start());
        for next in left {
            let span = ranges.span(number(next));
            let here = Arc::ptr_eq(windows.of(number(next), span.start()), watch);
            if !here || span.pages() > room || !spans.push_reserved(span) {
                break;
            }
            room = room.saturating_sub(span.pages());
        }
        left = left.get(spans.len().max(1)..).unwrap_or_default();
        if spans.is_empty() {
            // Longer than a chunk: piece by piece.
            let span = ranges.span(number(first));
            let mut at = span.start();
            while at < span.end() {
                os::interrupted()?;
                let end = CpuVa(span.end().0.min(at.0.saturating_add(CHUNK_BYTES)));
                fault_for_measure(process, &**watch, &[CpuSpan::between(at, end)], &mut pages)?;
                at = end;
            }
        } else {
            fault_for_measure(process, &**watch, &spans, &mut pages)?;
        }
    }
    Ok(Duration::from_nanos(os::now().0.saturating_sub(start.0)))
}

fn fault_for_measure(
    process: &Process,
    watch: &dyn crate::seams::address_space::Watch,
    spans: &[CpuSpan],
    pages: &mut [Page],
) -> Result {
    let deadline = process.deadline();
    let mut done = 0;
    while done < spans.len() {
        os::interrupted()?;
        let spans = spans.get(done..).unwrap_or_default();
        let wanted = spans.iter().fold(0u64, |sum, span| sum.saturating_add(span.pages()));
        // A chunk at most.
        let pages = pages.get_mut(..index(wanted)).ok_or(Errno::EINVAL)?;
        let faulted = process.mm().fault(watch, watch.read_begin(), spans, Access::Write, pages);
        done = done.saturating_add(faulted.spans);
        match faulted.error {
            None => break,
            Some(Errno::EBUSY | Errno::EAGAIN) if os::now() < deadline => {}
            Some(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
