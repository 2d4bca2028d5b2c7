// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernel's list of mappings (`PROCMAP_QUERY`, Linux 6.11). A query does not
//! allocate.

use crate::pagemap::{Pagemap, NO_REGION};
use linux_raw_sys::general as raw;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, PAGE};
use vkfd_driver::seams::address_space::Mapping;

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u32 = 0xc068_6611;
const HEAP: &[u8] = b"[heap]";
const STACK: &[u8] = b"[stack]";

/// The file behind a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) inode: u64,
}

impl FileId {
    pub(super) fn of(fd: i32) -> io::Result<Self> {
        // SAFETY: zero is a value of each field, and the call fills the structure.
        let stat = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &raw mut stat) != 0 {
                return Err(io::Error::last_os_error());
            }
            stat
        };
        Ok(Self { major: libc::major(stat.st_dev), minor: libc::minor(stat.st_dev), inode: stat.st_ino })
    }
}

/// A mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vma {
    pub(super) span: CpuSpan,
    /// `PROT_*`.
    pub(super) prot: i32,
    pub(super) shared: bool,
    /// The file and where in it the mapping starts.
    pub(super) file: Option<(FileId, u64)>,
    /// malloc's heap, or the first thread's stack.
    pub(super) special: bool,
}

impl Vma {
    /// The part of it in `span`; empty when there is none.
    pub(super) fn cut(&self, span: CpuSpan) -> CpuSpan {
        CpuSpan::between(self.span.start().max(span.start()), self.span.end().min(span.end()))
    }
}

/// The mappings of this process.
pub(super) struct Mappings {
    maps: File,
    pagemap: Pagemap,
}

impl Mappings {
    /// # Errors
    /// No /proc, or a kernel before Linux 6.11.
    pub(super) fn open() -> io::Result<Self> {
        let mappings = Self { maps: File::open("/proc/self/maps")?, pagemap: Pagemap::open()? };
        mappings.query(CpuVa(0)).map_err(|errno| match errno {
            libc::ENOTTY => io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel cannot be asked for a mapping (Linux 6.11 and later can)",
            ),
            _ => io::Error::from_raw_os_error(errno),
        })?;
        Ok(mappings)
    }

    /// The mapping that `at` is in, or else the next; `None` above all.
    pub(super) fn query(&self, at: CpuVa) -> Result<Option<Vma>, i32> {
        let mut name = [0u8; 32];
        // SAFETY: plain numbers; zero is a value of each.
        let mut query: raw::procmap_query = unsafe { std::mem::zeroed() };
        query.size = size_of_val(&query) as u64;
        query.query_flags = raw::procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;
        query.query_addr = at.0;
        query.vma_name_size = u32::try_from(name.len()).unwrap_or(0);
        query.vma_name_addr = name.as_mut_ptr().expose_provenance() as u64;
        let mut done = self.ask(&mut query);
        if done == Err(libc::ENAMETOOLONG) {
            // A path: none of the names that matter.
            query.vma_name_size = 0;
            query.vma_name_addr = 0;
            done = self.ask(&mut query);
        }
        match done {
            Ok(()) => {}
            Err(libc::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let has = |flag: raw::procmap_query_flags| query.vma_flags & flag as u64 != 0;
        let mut prot = libc::PROT_NONE;
        for (flag, bit) in [
            (raw::procmap_query_flags::PROCMAP_QUERY_VMA_READABLE, libc::PROT_READ),
            (raw::procmap_query_flags::PROCMAP_QUERY_VMA_WRITABLE, libc::PROT_WRITE),
            (raw::procmap_query_flags::PROCMAP_QUERY_VMA_EXECUTABLE, libc::PROT_EXEC),
        ] {
            if has(flag) {
                prot |= bit;
            }
        }
        let id = FileId { major: query.dev_major, minor: query.dev_minor, inode: query.inode };
        Ok(Some(Vma {
            span: CpuSpan::between(CpuVa(query.vma_start), CpuVa(query.vma_end)),
            prot,
            shared: has(raw::procmap_query_flags::PROCMAP_QUERY_VMA_SHARED),
            file: (query.inode != 0).then_some((id, query.vma_offset)),
            special: query.vma_name_size != 0 && (name.starts_with(HEAP) || name.starts_with(STACK)),
        }))
    }

    fn ask(&self, query: &mut raw::procmap_query) -> Result<(), i32> {
        // SAFETY: the structure is the one that the request takes, and the buffer it names is as
        // long as it says.
        match unsafe { libc::ioctl(self.maps.as_raw_fd(), PROCMAP_QUERY.into(), std::ptr::from_mut(query)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Whether a huge page is at `at`.
    pub(super) fn is_huge(&self, at: CpuVa) -> bool {
        let found =
            self.pagemap.scan(at.0, at.0 + PAGE, raw::PAGE_IS_HUGE, 0, &mut [NO_REGION]).map(|found| found.0.len());
        found == Some(1)
    }

    /// Where the hole that begins at `start` ends, at `end` if not before; `None` where a page is,
    /// wherever its contents are. No more than one page where the kernel does not answer.
    pub(super) fn hole_end(&self, start: CpuVa, end: CpuVa) -> Option<CpuVa> {
        let first = |is| {
            let mut region = [NO_REGION];
            let (found, _) = self.pagemap.scan(start.0, end.0, is, 0, &mut region)?;
            Some(found.first().map_or(end.0, |region| region.start))
        };
        let next = match (first(raw::PAGE_IS_PRESENT), first(raw::PAGE_IS_SWAPPED)) {
            (Some(present), Some(swapped)) => present.min(swapped),
            _ => end.0.min(start.0 + PAGE),
        };
        (next != start.0).then_some(CpuVa(next))
    }

    /// Calls `f` for the mappings that share a byte with `span`, in order, until it says false.
    pub(super) fn within(&self, span: CpuSpan, mut f: impl FnMut(&Vma) -> bool) {
        let mut at = span.start();
        while at < span.end() {
            match self.query(at) {
                Ok(Some(vma)) if vma.span.start() < span.end() => {
                    if !f(&vma) {
                        return;
                    }
                    at = vma.span.end();
                }
                _ => return,
            }
        }
    }

    /// Calls `f` for the parts of `span` that nothing is mapped in, as far as that can be told.
    pub(super) fn each_hole(&self, span: CpuSpan, f: &mut dyn FnMut(CpuSpan)) {
        let mut at = span.start();
        while at < span.end() {
            let Ok(next) = self.query(at) else { return };
            let (start, end) = next.map_or((span.end(), span.end()), |vma| (vma.span.start(), vma.span.end()));
            let hole = CpuSpan::between(at, start.min(span.end()).max(at));
            if hole.bytes() != 0 {
                f(hole);
            }
            at = end;
        }
    }

    /// The mapping that `at` is in, within `span`. What is registered for events by itself is a
    /// mapping of its own.
    pub(super) fn around(&self, at: CpuVa, span: CpuSpan) -> Option<Mapping> {
        let vma = self.query(at).ok()?.filter(|vma| vma.span.contains(at))?;
        Some(Mapping { span: vma.cut(span), heap_or_stack: vma.special })
    }

    /// The protection that all of `span` is mapped with, by mappings that satisfy `f`; `None` where
    /// it is not so.
    pub(super) fn uniform(&self, span: CpuSpan, f: impl Fn(&Vma) -> bool) -> Option<i32> {
        let mut prot = None;
        let mut end = span.start();
        self.within(span, |vma| {
            let fits = vma.span.start() <= end && *prot.get_or_insert(vma.prot) == vma.prot && f(vma);
            if fits {
                end = vma.span.end();
            }
            fits
        });
        prot.filter(|_| end >= span.end())
    }
}
