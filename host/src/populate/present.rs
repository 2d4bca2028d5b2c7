// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which pieces are in memory already, asked of the page tables: a page there costs a few
//! nanoseconds to see, and 200 to populate again.
//!
//! Mechanism: the ioctl PAGEMAP_SCAN of `/proc/self/pagemap` (Linux 6.7) names the runs of present
//! pages of an interval, PROCMAP_QUERY of `/proc/self/maps` (6.11) the mapping of an address. The
//! pieces of a batch are looked at in the order of their addresses, those that lie near each other
//! in one call. A piece counts as present only if every page of it has memory with the wanted
//! permission. The memory must be private anonymous, or shared without a file system (memfd, shared
//! anonymous: a guest's RAM). Writing to a page of a file system may have to find room first, and
//! can fail. That a page may still be shared by copy-on-write does not matter on this host: the GPU
//! reaches it through its CPU address.
//!
//! Limits: on an older kernel, or without /proc, nothing counts as there, and everything is
//! populated.

use super::Batch;
use crate::pagemap::{Pagemap, NO_REGION};
use linux_raw_sys::general::{page_region, PAGE_IS_PFNZERO, PAGE_IS_PRESENT};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use vkfd_driver::base::addr::PAGE;
use vkfd_driver::seams::address_space::Access;
use vkfd_gpu::raw::memory_file;

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const VMA_READABLE: u64 = 1;
const VMA_WRITABLE: u64 = 2;
const VMA_SHARED: u64 = 8;

/// `_IOWR(type, number, struct of bytes)`.
const fn iowr<T>(kind: u8, number: u8) -> libc::Ioctl {
    (3 << 30 | (size_of::<T>() as libc::Ioctl) << 16) | (kind as libc::Ioctl) << 8 | number as libc::Ioctl
}

const PROCMAP_QUERY: libc::Ioctl = iowr::<MapQuery>(b'f', 17);

/// Pieces with at most so much between them are looked at together.
const NEAR: u64 = 64 * PAGE;

/// Most runs of present pages that one call is asked for: 3 KiB of the caller's stack.
const REGIONS: usize = 128;

pub(super) struct Present {
    pagemap: Pagemap,
    maps: File,
    /// The device of files that are nothing but shared memory: major, minor.
    shared: Option<(u32, u32)>,
}

impl Present {
    /// `None` where the kernel does not answer.
    pub(super) fn new() -> Option<Self> {
        let this =
            Self { pagemap: Pagemap::open().ok()?, maps: File::open("/proc/self/maps").ok()?, shared: shared_memory() };
        let page = (&raw const this).expose_provenance() as u64 / PAGE * PAGE;
        let known =
            this.mapping(page).is_some() && this.scan(page, page + PAGE, Access::Read, &mut [NO_REGION]).is_some();
        known.then_some(this)
    }

    /// Takes the pieces out of `batch` that need no populating. O(p log p) for p pieces, O(p) if
    /// they are in order, plus a few nanoseconds a page.
    pub(super) fn skip_present(&self, batch: &mut Batch, access: Access) {
        let Batch { pieces: all, first_span, sorted: pieces, there, .. } = batch;
        // Start, end, and which piece it is: in the order of their addresses.
        pieces.clear();
        pieces.extend(all.iter().zip(0..).map(|(piece, at)| {
            let start = piece.iov_base.addr() as u64;
            (start, start + piece.iov_len as u64, at)
        }));
        if !pieces.is_sorted() {
            pieces.sort_unstable();
        }
        there.clear();
        there.resize(all.len(), false);
        let mut regions = [NO_REGION; REGIONS];
        let mut allowed = (0, 0);
        let mut left = &pieces[..];
        while let Some((start, first_end, _)) = left.first() {
            let mut end = *first_end;
            let near = left[1..].iter().take_while(|(from, to, _)| {
                let near = *from <= end + NEAR;
                end = if near { end.max(*to) } else { end };
                near
            });
            let (cluster, others) = left.split_at(1 + near.count());
            left = others;
            // Each scan answers for the addresses that it passed; a piece that goes on behind that
            // is asked for again from its start. One with more runs than fit is not all there.
            let (mut at, mut next) = (*start, 0);
            while next < cluster.len() {
                let Some((mut found, until)) = self.scan(at, end, access, &mut regions) else { return };
                let answered = cluster[next..].iter().take_while(|(_, to, _)| *to <= until).count();
                for (from, to, piece) in &cluster[next..next + answered] {
                    // The last run that begins at the piece or before it.
                    while found.get(1).is_some_and(|run| run.start <= *from) {
                        found = &found[1..];
                    }
                    let inside = found.first().is_some_and(|run| run.start <= *from && *to <= run.end);
                    there[usize::from(*piece)] = inside && self.allows(*from, *to, access, &mut allowed);
                }
                next += answered.max(1);
                at = cluster.get(next).map_or(end, |piece| piece.0);
            }
        }
        let mut kept = 0;
        for at in (0..all.len()).filter(|at| !there[*at]) {
            all[kept] = all[at];
            first_span[kept] = first_span[at];
            kept += 1;
        }
        all.truncate(kept);
        first_span.truncate(kept);
    }

    /// Whether `[from, to)` lies in private anonymous or shared memory that allows the access.
    /// `known` is the last such mapping.
    fn allows(&self, from: u64, to: u64, access: Access, known: &mut (u64, u64)) -> bool {
        if !(known.0 <= from && to <= known.1) {
            let wanted = if access == Access::Write { VMA_WRITABLE } else { VMA_READABLE };
            let Some(m) = self.mapping(from).filter(|m| m.vma_flags & wanted != 0) else { return false };
            let kind = match m.vma_flags & VMA_SHARED {
                0 => m.inode == 0,
                _ => self.shared == Some((m.dev_major, m.dev_minor)),
            };
            if !kind {
                return false;
            }
            *known = (m.vma_start, m.vma_end);
        }
        to <= known.1
    }

    fn mapping(&self, at: u64) -> Option<MapQuery> {
        let mut query = MapQuery { size: size_of::<MapQuery>() as u64, query_addr: at, ..MapQuery::default() };
        // SAFETY: the argument is the structure that the call reads and writes, and names no other
        // memory.
        let done = unsafe { libc::ioctl(self.maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
        (done == 0).then_some(query)
    }

    /// The runs of present pages from `start` on, and how far the answer goes. For writing, the
    /// zero page is not there.
    fn scan<'r>(
        &self,
        start: u64,
        end: u64,
        access: Access,
        regions: &'r mut [page_region],
    ) -> Option<(&'r [page_region], u64)> {
        let zero = if access == Access::Write { PAGE_IS_PFNZERO } else { 0 };
        self.pagemap.scan(start, end, PAGE_IS_PRESENT, zero, regions)
    }
}

/// The device that a file of shared memory is on.
fn shared_memory() -> Option<(u32, u32)> {
    let device = memory_file::sealed(c"vkfd-device", 0).ok()?.metadata().ok()?.dev();
    Some((libc::major(device), libc::minor(device)))
}
