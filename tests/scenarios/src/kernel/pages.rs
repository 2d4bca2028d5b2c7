// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernel's information about pages: their places, their sharers, and its work on them.
//!
//! Page frame numbers are shown to root only.

use std::ffi::{c_int, c_long, c_void};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;

use vkfd_client::{UserptrRange, PAGE};

use crate::maps::PRESENT;
use crate::memory::Memory;
use crate::verdict::Stop;

/// `MPOL_MF_MOVE` of move_pages: pages that no other process has.
const MOVE: c_int = 1 << 1;
/// In a `pagemap` entry: the page is in swap.
const SWAPPED: u64 = 1 << 62;
/// In a `pagemap` entry of a page that is present: its frame.
const FRAME: u64 = (1 << 55) - 1;

/// The `pagemap` entries of a range, in one read.
fn entries(range: UserptrRange) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; usize::try_from(range.size / PAGE * 8).map_err(io::Error::other)?];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut bytes, range.start / PAGE * 8)?;
    Ok(bytes.chunks_exact(8).map(|b| b.try_into().map_or(0, u64::from_ne_bytes)).collect())
}

/// How many pages of `memory` are in swap.
pub(crate) fn swapped(memory: &Memory) -> io::Result<usize> {
    Ok(entries(memory.whole())?.into_iter().filter(|entry| entry & SWAPPED != 0).count())
}

/// The frame of each page of `memory`; none for a page that is not present.
pub(crate) fn frames(memory: &Memory) -> Result<Vec<Option<u64>>, Stop> {
    let entries = entries(memory.whole())?;
    let frames: Vec<_> = entries.into_iter().map(|e| (e & PRESENT != 0).then_some(e & FRAME)).collect();
    // Frame 0 is never a process's: it stands for "not for you".
    if frames.contains(&Some(0)) {
        return Err(Stop::Skip("page frame numbers are not shown".into()));
    }
    Ok(frames)
}

/// How many pages are elsewhere now.
pub(crate) fn moved(before: &[Option<u64>], after: &[Option<u64>]) -> usize {
    before.iter().zip(after).filter(|(a, b)| a.is_some() && b.is_some() && a != b).count()
}

/// The sum of a field of `/proc/self/smaps` over the mappings of `memory`, in bytes.
pub(crate) fn smaps(memory: &Memory, field: &str) -> Result<u64, Stop> {
    let whole = memory.whole();
    let mut inside = false;
    let mut sum = 0;
    for line in fs::read_to_string("/proc/self/smaps")?.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
            inside = start < whole.start + whole.size && whole.start < end;
        } else if inside && first.strip_suffix(':') == Some(field) {
            sum += kibibytes(line)?;
        }
    }
    Ok(sum)
}

/// The part of this process in swap, in bytes, as `/proc/self/status` says.
pub(crate) fn vm_swap() -> Result<u64, Stop> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmSwap:"));
    kibibytes(line.ok_or_else(|| Stop::Skip("/proc/self/status has no VmSwap".into()))?)
}

/// "Name:   12 kB".
fn kibibytes(line: &str) -> Result<u64, Stop> {
    let number = line.split_ascii_whitespace().nth(1).unwrap_or_default();
    Ok(number.parse::<u64>()? << 10)
}

/// One of the kernel's counts in `/proc/vmstat`.
pub(crate) fn vmstat(name: &str) -> Result<u64, Stop> {
    let text = fs::read_to_string("/proc/vmstat")?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.ok_or_else(|| Stop::Skip(format!("/proc/vmstat has no {name}")))?.parse()?)
}

/// Moves each page of `range` to NUMA node `node`, or only asks where it is. The node of each;
/// negative for a page that is on none or could not be moved.
pub(crate) fn nodes(range: UserptrRange, node: Option<c_int>) -> Result<Vec<c_int>, Stop> {
    let addresses: Vec<*mut c_void> = (range.start..range.start + range.size)
        .step_by(usize::try_from(PAGE)?)
        .map(|at| Ok(ptr::with_exposed_provenance_mut(usize::try_from(at)?)))
        .collect::<Result<_, Stop>>()?;
    let targets = node.map(|node| vec![node; addresses.len()]);
    let mut status: Vec<c_int> = vec![-1; addresses.len()];
    // SAFETY: the arrays have an entry a page. Moving a page changes neither its address nor its
    // contents.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            c_long::from(0_u8),
            addresses.len(),
            addresses.as_ptr(),
            targets.as_ref().map_or(ptr::null(), Vec::as_ptr),
            status.as_mut_ptr(),
            MOVE,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(status)
}
