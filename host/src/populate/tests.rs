// SPDX-License-Identifier: GPL-2.0 OR MIT
use super::*;
use vkfd_driver::base::addr::PAGE;

/// Every other page of an area, `count` spans.
struct Area {
    at: u64,
    count: u64,
}

impl Area {
    fn new(count: u64) -> Self {
        Self::with(count, libc::MAP_PRIVATE)
    }

    fn with(count: u64, kind: i32) -> Self {
        let flags = kind | libc::MAP_NORESERVE;
        let at = sys::map_anonymous(index(2 * count * PAGE), flags).unwrap();
        Self { at: at.as_ptr().expose_provenance() as u64, count }
    }

    fn spans(&self) -> Vec<CpuSpan> {
        (0..self.count).map(|i| CpuSpan::new(CpuVa(self.at + 2 * i * PAGE), PAGE).unwrap()).collect()
    }

    fn protect(&self, i: u64, prot: i32) {
        // SAFETY: the page is this test's own, and nothing has a reference to it.
        unsafe { sys::mprotect(self.at + 2 * i * PAGE, PAGE, prot) }.unwrap();
    }

    fn unmap(&self, from: u64, count: u64) {
        // SAFETY: the pages are this test's own, and nothing has a reference to them.
        unsafe { sys::unmap(self.at + 2 * from * PAGE, 2 * count * PAGE) };
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        self.unmap(0, self.count);
    }
}

fn without_batches(supported: bool) -> Populate {
    Populate { pidfd: None, batched: AtomicBool::new(false), supported, ..Populate::new() }
}

/// Every way in which a kernel may let us populate.
fn all_ways() -> Vec<(&'static str, Populate)> {
    let batches_without_pidfd = Populate { pidfd: None, present: None, ..Populate::new() };
    batches_without_pidfd.batched.store(true, Ordering::Relaxed);
    vec![
        ("as found", Populate::new()),
        ("process_madvise fails", batches_without_pidfd),
        ("all pages", Populate { present: None, ..Populate::new() }),
        ("madvise only", Populate { present: None, ..without_batches(true) }),
        ("madvise of what is not there", without_batches(true)),
        ("permissions only", Populate { present: None, ..without_batches(false) }),
    ]
}

#[test]
fn all_ways_name_the_same_span_and_reason() {
    for (name, populate) in all_ways() {
        let area = Area::new(3000);
        let spans = area.spans();
        let all = Faulted { spans: 3000, error: None };
        let failed = |at, errno| Faulted { spans: at, error: Some(errno) };
        assert_eq!(populate.populate(&spans, Access::Write), all, "{name}");
        area.protect(2500, libc::PROT_READ);
        assert_eq!(populate.populate(&spans, Access::Read), all, "{name}");
        assert_eq!(populate.populate(&spans, Access::Write), failed(2500, Errno::EPERM), "{name}");
        area.protect(1024, libc::PROT_NONE);
        assert_eq!(populate.populate(&spans, Access::Read), failed(1024, Errno::EPERM), "{name}");
    }
}

#[test]
fn a_kernel_without_batches_is_asked_once() {
    let (_, populate) = all_ways().swap_remove(1);
    let area = Area::new(10);
    assert_eq!(populate.populate(&area.spans(), Access::Write), Faulted { spans: 10, error: None });
    assert!(!populate.batched.load(Ordering::Relaxed));
    // A failure that is the memory's own does not count as one of batches.
    let populate = Populate::new();
    let before = populate.batched.load(Ordering::Relaxed);
    area.protect(0, libc::PROT_READ);
    assert_eq!(populate.populate(&area.spans(), Access::Write).error, Some(Errno::EPERM));
    assert_eq!(populate.batched.load(Ordering::Relaxed), before);
}

fn gathered(spans: &[CpuSpan]) -> Batch {
    let mut batch = Batch::with_room(spans.len().min(BATCH)).unwrap();
    batch.gather(spans);
    batch
}

#[test]
fn spans_that_touch_are_one_piece_and_pieces_are_bounded() {
    let span = |page: u64, pages: u64| CpuSpan::new(CpuVa(page * PAGE), pages * PAGE).unwrap();
    let batch = gathered(&[span(1, 2), span(3, 1), span(5, 1), span(4, 1)]);
    assert_eq!((batch.pieces.len(), batch.spans), (3, 4));
    assert_eq!(batch.first_span[..3], [0, 2, 3]);
    assert_eq!(batch.pieces[0].iov_len, index(3 * PAGE));
    let half = PIECE / PAGE / 2;
    assert_eq!(gathered(&[span(1, half), span(1 + half, half), span(1 + 2 * half, 1)]).pieces.len(), 2);
    let many: Vec<CpuSpan> = (0..2000).map(|i| span(2 * i, 1)).collect();
    assert_eq!(gathered(&many).spans, BATCH);
}

#[test]
fn what_is_there_is_left_out_and_nothing_else() {
    let Some(present) = Present::new() else {
        eprintln!("skipped: this kernel has no PAGEMAP_SCAN and PROCMAP_QUERY");
        return;
    };
    let area = Area::new(600);
    let spans: Vec<CpuSpan> = area.spans().into_iter().rev().collect();
    let left = |access| {
        let mut batch = gathered(&spans);
        present.skip_present(&mut batch, access);
        batch.first_span
    };
    let all: Vec<usize> = (0..600).collect();
    assert_eq!(left(Access::Read), all);
    // Reading maps the zero page: enough for reading, not for writing.
    let populate = Populate::new();
    assert_eq!(populate.populate(&spans[..300], Access::Read).error, None);
    assert_eq!(left(Access::Read), all[300..]);
    assert_eq!(left(Access::Write), all);
    assert_eq!(populate.populate(&spans, Access::Write).error, None);
    assert_eq!(left(Access::Write), [0; 0]);
    // Span i of the reversed list is page 599 - i of the area.
    area.protect(9, libc::PROT_READ);
    assert_eq!(left(Access::Write), [590]);
    assert_eq!(left(Access::Read), [0; 0]);
    area.unmap(20, 1);
    assert_eq!(left(Access::Read), [579]);
    assert_eq!(populate.populate(&spans, Access::Write), Faulted { spans: 579, error: Some(Errno::EFAULT) });
}

#[test]
fn a_piece_is_there_only_as_a_whole() {
    let Some(present) = Present::new() else {
        eprintln!("skipped: this kernel has no PAGEMAP_SCAN and PROCMAP_QUERY");
        return;
    };
    let area = Area::new(600);
    // Populates every other page; then pieces of one, two and very many pages.
    assert_eq!(Populate::new().populate(&area.spans(), Access::Write).error, None);
    let span = |page: u64, pages: u64| CpuSpan::new(CpuVa(area.at + page * PAGE), pages * PAGE).unwrap();
    let spans =
        [span(0, 1), span(2, 2), span(5, 1), span(6, 1100), span(1106, 1), span(1108, 1), span(1108, 1), span(1109, 1)];
    let mut batch = gathered(&spans);
    present.skip_present(&mut batch, Access::Write);
    assert_eq!(batch.first_span[..], [1, 2, 6]);
}

/// A file of one page, mapped.
fn mapped_file(file: &std::fs::File, kind: i32) -> u64 {
    file.set_len(PAGE).unwrap();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), index(PAGE), access, kind, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.expose_provenance() as u64
}

#[test]
fn shared_memory_that_is_there_is_left_out_and_files_are_not() {
    let Some(present) = Present::new() else {
        eprintln!("skipped: this kernel has no PAGEMAP_SCAN and PROCMAP_QUERY");
        return;
    };
    let left = |spans: &[CpuSpan], access| {
        let mut batch = gathered(spans);
        present.skip_present(&mut batch, access);
        batch.first_span
    };
    let area = Area::with(300, libc::MAP_SHARED);
    let spans = area.spans();
    let populate = Populate::new();
    assert_eq!(left(&spans, Access::Read).len(), 300);
    assert_eq!(populate.populate(&spans[..200], Access::Write).error, None);
    assert_eq!(left(&spans, Access::Write), (200..300).collect::<Vec<_>>());
    area.protect(7, libc::PROT_READ);
    assert_eq!(left(&spans[..200], Access::Write), [7]);
    assert_eq!(left(&spans[..200], Access::Read), [0; 0]);
    // What was discarded is not there any more.
    let page = std::ptr::with_exposed_provenance_mut(index(area.at + 2 * 9 * PAGE));
    // SAFETY: the page is this test's own, and nothing has a reference to it.
    assert_eq!(unsafe { libc::madvise(page, index(PAGE), libc::MADV_REMOVE) }, 0);
    assert_eq!(left(&spans[..200], Access::Write), [7, 9]);
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a descriptor that nobody else has.
    let memory = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let disk = tempfile::tempfile().unwrap();
    for (file, kind, there) in
        [(&memory, libc::MAP_SHARED, true), (&memory, libc::MAP_PRIVATE, false), (&disk, libc::MAP_SHARED, false)]
    {
        let at = mapped_file(file, kind);
        let span = [CpuSpan::new(CpuVa(at), PAGE).unwrap()];
        assert_eq!(populate.populate(&span, Access::Write).error, None);
        assert_eq!(left(&span, Access::Write).is_empty(), there, "kind {kind}");
        // SAFETY: the mapping is this test's own.
        unsafe { sys::unmap(at, PAGE) };
    }
}
