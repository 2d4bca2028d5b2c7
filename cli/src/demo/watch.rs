// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The last change: a kernel looks at all pages again and again while the CPU goes on replacing
//! them.
//!
//! Every word of the buffer says which page it belongs to, which version of it, and where in the
//! page. The kernel `watch` (kernels/src/kernels.cl) notes of each page what it finds. At any
//! moment, a word is one of that page. No version is older than the page's version before the pass,
//! nor newer than the last.

use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde_json::json;
use vkfd_client::{AllocOptions, Buffer, Client, ComputeQueue, GpuId, GpuSet, GpuVa, Kernel, PAGE};

use super::scene::Scene;
use crate::format::{bytes, count, counted};
use crate::guest::{Guest, Range, PAGE_BYTES};
use crate::memory::Mapping;
use crate::report::{Report, Title};
use crate::session::PATIENCE;

/// Passes over the buffer.
const PASSES: u32 = 6;
/// Changes in a pass at most: each may stop the GPU's queues.
const CHANGES: u32 = 24;
/// Between two changes, so that the GPU gets on.
const PAUSE: Duration = Duration::from_micros(500);
/// Bytes of a page's result.
const RESULT: usize = 16;

/// Lets a GPU watch the buffer.
pub struct Watch {
    queue: ComputeQueue,
    results: Buffer,
    pages: u64,
}

/// What a pass found on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The oldest version of a word, if there was any.
    pub oldest: Option<u32>,
    /// The newest.
    pub newest: u32,
    /// Words that are zero.
    pub empty: u32,
    /// Words of another page, or of another place in it.
    pub foreign: u32,
}

impl Watch {
    /// A queue on `gpu` and room for the results of `pages`.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn new(client: &Client, gpu: GpuId, pages: u64) -> Result<Self> {
        let size = (pages * RESULT as u64).next_multiple_of(PAGE);
        let results = client.alloc(&AllocOptions { gpus: GpuSet::from(gpu), ..AllocOptions::gtt(size) })?;
        Ok(Self { queue: ComputeQueue::new(client, gpu)?, results, pages })
    }

    /// Looks at every page at `src`; until the kernel has ended, `meanwhile` is called.
    ///
    /// # Errors
    ///
    /// What the queue stopped on, or `meanwhile` failed with.
    pub fn pass(&mut self, src: GpuVa, mut meanwhile: impl FnMut() -> Result<()>) -> Result<Vec<Found>> {
        // What the kernel does not write is no result.
        self.results.write(0, &vec![0xff; usize::try_from(self.pages)? * RESULT])?;
        let fence = self.queue.launch(&Kernel::Watch { src, pages: self.pages, out: self.results.gpu_va() })?;
        while !fence.is_done() {
            meanwhile()?;
        }
        fence.wait(PATIENCE)?;
        let mut bytes = vec![0; usize::try_from(self.pages)? * RESULT];
        self.results.read(0, &mut bytes)?;
        let word = |four: &[u8]| u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        Ok(bytes
            .chunks_exact(RESULT)
            .map(|page| Found {
                oldest: Some(word(page)).filter(|oldest| *oldest != u32::MAX),
                newest: word(&page[4..]),
                empty: word(&page[8..]),
                foreign: word(&page[12..]),
            })
            .collect())
    }
}

/// The contents of page `page` in `version`.
pub fn page(page: u64, version: u32) -> [u8; PAGE_BYTES] {
    let mut out = [0; PAGE_BYTES];
    for (index, word) in (0_u64..).zip(out.chunks_exact_mut(8)) {
        word.copy_from_slice(&(page << 40 | u64::from(version) << 12 | index).to_le_bytes());
    }
    out
}

/// The part of `found` that cannot have been there: of `before`, the versions when the pass began,
/// and `after`, those when it had ended.
pub fn wrong(found: &[Found], before: &[u32], after: &[u32]) -> Option<String> {
    if found.len() != before.len() || found.len() != after.len() {
        return Some(format!("{} results for {}", found.len(), counted(before.len() as u64, "page")));
    }
    for (number, (found, (before, after))) in found.iter().zip(before.iter().zip(after)).enumerate() {
        let changed = before != after;
        let old = found.oldest.is_some_and(|oldest| oldest < *before) || (found.oldest.is_none() && !changed);
        if found.foreign != 0 || old || found.newest > *after || (found.empty != 0 && !changed) {
            return Some(format!("page {number} had versions {before} to {after}, the GPU found {found:?}"));
        }
    }
    None
}

fn fill(guest: &Guest, memory: &Mapping, offset: u64, range: &Range, version: u32) {
    debug_assert!(guest.bytes >= range.at + range.bytes);
    for number in 0..range.bytes / PAGE {
        memory.write(offset + number * PAGE, &page(range.at / PAGE + number, version));
    }
}

/// The demo's step.
pub fn run(scene: &mut Scene<'_>, report: &mut Report<'_>) -> Result<()> {
    let title = format!(
        "A kernel read the whole buffer {PASSES} times, while the CPU went on replacing its pieces: every word says to which page it belongs \
         and how new it is"
    );
    let hears = scene.session.hears();
    if !scene.engines[0].has_kernels() {
        return report.skip("watch", title, "this program's kernels are built into vkfd's GPU");
    }
    if !hears.remap || !hears.discard {
        let reason = "on this system nothing tells the driver in this process of such changes when they happen";
        return report.skip("watch", title, reason);
    }
    report
        .step("watch", Title::new("Reading the buffer while the CPU replaces its pieces", title), |step| {
            let pages = scene.guest.bytes / PAGE;
            let src = scene.buffer()?.gpu_va();
            let mut versions = vec![1_u32; usize::try_from(pages)?];
            for range in &scene.guest.ranges {
                fill(&scene.guest, &scene.guest.ram, range.offset, range, 1);
            }
            let before = scene.counters()?;
            let mut watch = Watch::new(scene.client(), scene.engines[0].gpu, pages)?;
            let (mut moved, mut discarded, mut differing, mut bad) = (0_u64, 0_u64, 0_u64, None);
            for _ in 0..PASSES {
                let begin = versions.clone();
                let mut changes = 0;
                let mut next = Instant::now();
                let found = watch.pass(src, || {
                    if changes == CHANGES || Instant::now() < next {
                        std::thread::yield_now();
                        return Ok(());
                    }
                    changes += 1;
                    next = Instant::now() + PAUSE;
                    let Some(index) = scene.pick(1).first().copied() else { bail!("no range to change") };
                    let range = scene.guest.ranges[index];
                    let first = usize::try_from(range.at / PAGE)?;
                    let own = &mut versions[first..first + usize::try_from(range.bytes / PAGE)?];
                    let version = own.first().context("an empty range")? + 1;
                    if changes % 2 == 0 {
                        let other = Mapping::anonymous(range.bytes)?;
                        fill(&scene.guest, &other, 0, &range, version);
                        scene.guest.ram.move_in(range.offset, other).context("mremap")?;
                        moved += 1;
                    } else {
                        scene.guest.ram.advise(range.offset, range.bytes, libc::MADV_DONTNEED).context("madvise")?;
                        fill(&scene.guest, &scene.guest.ram, range.offset, &range, version);
                        discarded += 1;
                    }
                    own.fill(version);
                    Ok(())
                })?;
                differing += (begin.iter().zip(&versions)).filter(|(before, after)| before != after).count() as u64;
                bad = bad.or_else(|| wrong(&found, &begin, &versions));
            }
            step.check("no word came from elsewhere, and none was older than what was there when its pass began", bad.is_none(), || {
                bad.clone().unwrap_or_default()
            });
            let last = watch.pass(src, || {
                std::thread::yield_now();
                Ok(())
            })?;
            let late = wrong(&last, &versions, &versions);
            step.check("once nothing changes, every page is the last version", late.is_none(), || late.clone().unwrap_or_default());
            step.note(format!(
                "{} moved in (mremap) and {} discarded and written anew (madvise) under the running kernel: {} changed while it read {}",
                counted(moved, "range"),
                counted(discarded, "range"),
                counted(differing, "page"),
                bytes(scene.guest.bytes * u64::from(PASSES))
            ));
            step.number("pages", pages).number("moved", moved).number("discarded", discarded);
            step.number("words", json!(count(pages * 512)));
            if let Some((before, after)) = before.zip(scene.counters()?) {
                step.counters(&before, &after);
            }
            Ok(())
        })
        .map(drop)
}
