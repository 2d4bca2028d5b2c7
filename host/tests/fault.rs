// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Faulting in: which span fails and why, and what reading must not do.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the tests' own memory

mod common;

use common::{memory, protect, serial, unmap, Area, Watched, RW};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use vkfd_driver::base::addr::{CpuSpan, CpuVa, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Page, Watch};
use vkfd_host::address_space::ProcessMemory;
use vkfd_host::mm::Mm;
use vkfd_host::Source;

/// No thread allocates while the event reader waits for it.
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<std::alloc::System> = vkfd_rt::section::Checked(std::alloc::System);

fn mm() -> &'static Mm {
    memory(Source::Auto).expect("Auto always finds a source")
}

/// Faults 4,000 one-page spans, some of them adjacent, after `damage` was done to the page of span
/// 2,345.
fn failing(access: Access, damage: impl FnOnce(CpuSpan)) -> Faulted {
    let area = Area::new(8000);
    let w = Watched::new(mm(), area.all());
    let place = |i: u64| if i % 10 < 5 { i } else { i + 4000 };
    let spans: Vec<CpuSpan> = (0..4000).map(|i| area.pages(place(i), 1)).collect();
    assert_eq!(w.fault_spans(&spans, Access::Write).0, Faulted { spans: 4000, error: None }, "control");
    damage(spans[2345]);
    let (faulted, pages) = w.fault_spans(&spans, access);
    for (i, page) in pages.iter().enumerate().take(faulted.spans) {
        assert!(w.is_live(*page, spans[i].start()), "span {i} before the failing one");
    }
    faulted
}

#[test]
fn a_hole_names_its_span() {
    let _one = serial();
    assert_eq!(failing(Access::Write, unmap), Faulted { spans: 2345, error: Some(Errno::EFAULT) });
    assert_eq!(failing(Access::Read, unmap), Faulted { spans: 2345, error: Some(Errno::EFAULT) });
}

#[test]
fn a_missing_permission_names_its_span() {
    let _one = serial();
    let eperm = Faulted { spans: 2345, error: Some(Errno::EPERM) };
    let all = Faulted { spans: 4000, error: None };
    assert_eq!(failing(Access::Write, |s| protect(s, libc::PROT_READ)), eperm);
    assert_eq!(failing(Access::Read, |s| protect(s, libc::PROT_READ)), all);
    assert_eq!(failing(Access::Read, |s| protect(s, libc::PROT_NONE)), eperm);
    assert_eq!(failing(Access::Write, |s| protect(s, libc::PROT_NONE)), eperm);
}

#[test]
fn a_page_past_the_end_of_its_file() {
    let _one = serial();
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC)) };
    let truncate = |pages: u64| {
        let bytes = libc::off_t::try_from(pages * PAGE).unwrap();
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes) }, 0);
    };
    truncate(4);
    let area = Area::map(0, 4, RW, libc::MAP_SHARED, fd.as_raw_fd());
    let w = Watched::new(mm(), area.all());
    let spans = [area.pages(0, 2), area.pages(2, 2)];
    assert_eq!(w.fault_spans(&spans, Access::Write).0.error, None, "control");
    truncate(3);
    assert_eq!(w.fault_spans(&spans, Access::Write).0, Faulted { spans: 1, error: Some(Errno::EFAULT) });
}

#[test]
fn a_read_only_file_can_be_read() {
    let _one = serial();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for kind in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        let area = Area::map(0, 4, libc::PROT_READ, kind, file.as_raw_fd());
        let w = Watched::new(mm(), area.all());
        w.fault(area.all(), Access::Read);
        assert_eq!(w.fault_spans(&[area.all()], Access::Write).0.error, Some(Errno::EPERM));
    }
}

/// Whether a page is a private copy: bit 61 of its pagemap entry is set for pages of files and
/// shared memory.
fn is_private_copy(span: CpuSpan) -> bool {
    use std::os::unix::fs::FileExt;
    let mut entry = [0; 8];
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    map.read_exact_at(&mut entry, span.start().0 / PAGE * 8).unwrap();
    let entry = u64::from_ne_bytes(entry);
    assert_ne!(entry & 1 << 63, 0, "not present");
    entry & 1 << 61 == 0
}

#[test]
fn reading_does_not_break_copy_on_write() {
    let _one = serial();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let area = Area::map(0, 2, RW, libc::MAP_PRIVATE, file.as_raw_fd());
    let w = Watched::new(mm(), area.all());
    w.fault(area.all(), Access::Read);
    assert!(!is_private_copy(area.pages(0, 1)) && !is_private_copy(area.pages(1, 1)));
    w.fault(area.pages(1, 1), Access::Write);
    assert!(!is_private_copy(area.pages(0, 1)));
    assert!(is_private_copy(area.pages(1, 1)), "control: writing does");
}

#[test]
fn a_span_longer_than_one_call_covers() {
    let _one = serial();
    // More than one process_madvise call covers (2 GiB); read, so that it costs page tables only.
    let pages = 3 << 18;
    let area = Area::new(pages);
    let w = Watched::new(mm(), area.all());
    let (faulted, got) = w.fault_spans(&[area.all(), area.pages(0, 1)], Access::Read);
    assert_eq!(faulted, Faulted { spans: 2, error: None });
    assert!(w.is_live(got[usize::try_from(pages).unwrap() - 1], area.pages(pages - 1, 1).start()));
    assert_eq!(got.first(), got.last());
}

#[test]
fn device_memory_is_refused() {
    let _one = serial();
    // The kernel's page of clock data: readable, mapped, and no memory of ours (VM_PFNMAP).
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|l| l.ends_with("[vvar]")) else {
        eprintln!("SKIPPED: no [vvar] here");
        return;
    };
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let span = CpuSpan::new(CpuVa(start), PAGE).unwrap();
    let w = Watched::new(mm(), span);
    assert_eq!(w.fault_spans(&[span], Access::Read).0, Faulted { spans: 0, error: Some(Errno::EFAULT) });
}

#[test]
fn mapped_means_every_page_whatever_it_permits() {
    let _one = serial();
    let memory = ProcessMemory::new(mm());
    let area = Area::new(8);
    protect(area.pages(2, 1), libc::PROT_NONE);
    assert!(memory.mapped(area.all()));
    unmap(area.pages(5, 1));
    assert!(!memory.mapped(area.all()) && !memory.mapped(area.pages(5, 1)));
    assert!(memory.mapped(area.pages(0, 5)) && memory.mapped(area.pages(6, 2)));
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let _one = serial();
    let area = Area::new(4);
    let w = Watched::new(mm(), area.all());
    let seq = w.watch.read_begin();
    let mut one = [Page::default()];
    let refused = Faulted { spans: 0, error: Some(Errno::EINVAL) };
    assert_eq!(w.memory.fault(&*w.watch, seq, &[area.pages(0, 2)], Access::Read, &mut one), refused);
    struct Foreign;
    impl Watch for Foreign {
        fn span(&self) -> CpuSpan {
            CpuSpan::between(CpuVa(0), CpuVa(PAGE))
        }
        fn read_begin(&self) -> vkfd_driver::seams::address_space::Seq {
            vkfd_driver::seams::address_space::Seq(0)
        }
        fn read_retry(&self, _: vkfd_driver::seams::address_space::Seq) -> bool {
            false
        }
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }
    }
    assert_eq!(w.memory.fault(&Foreign, seq, &[area.pages(0, 1)], Access::Read, &mut one), refused);
    assert!(w.memory.watch(CpuSpan::between(CpuVa(1), CpuVa(PAGE)), common::Counter::new()).is_err());
    assert!(w.memory.watch(CpuSpan::between(CpuVa(0), CpuVa(0)), common::Counter::new()).is_err());
}

#[test]
fn caller_memory_that_is_not_there_is_efault() {
    let _one = serial();
    let memory = ProcessMemory::new(mm());
    let area = Area::new(2);
    unmap(area.pages(1, 1));
    let mut buffer = [7u8; 16];
    let at = |offset| CpuVa(area.at + offset);
    assert!(memory.write(at(100), &[1; 16]).is_ok());
    assert!(memory.read(at(100), &mut buffer).is_ok());
    assert_eq!(buffer, [1; 16]);
    assert_eq!(memory.read(at(PAGE - 8), &mut buffer).unwrap_err().errno, Errno::EFAULT);
    assert_eq!(memory.write(at(PAGE - 8), &buffer).unwrap_err().errno, Errno::EFAULT);
    for bad in [0, 1 << 47, u64::MAX - 4] {
        assert_eq!(memory.read(CpuVa(bad), &mut buffer).unwrap_err().errno, Errno::EFAULT);
    }
    protect(area.pages(0, 1), libc::PROT_READ);
    assert_eq!(memory.write(at(0), &buffer).unwrap_err().errno, Errno::EFAULT);
}

#[test]
fn sequence_numbers_follow_invalidations() {
    let _one = serial();
    let mm = mm();
    let area = Area::new(8);
    let w = Watched::new(mm, area.pages(0, 4));
    let seq = w.watch.read_begin();
    drop(mm.invalidation(area.pages(4, 4)));
    assert!(!w.watch.read_retry(seq), "next door");
    let under_way = mm.invalidation(area.pages(3, 2));
    assert!(w.watch.read_retry(seq));
    // `read_begin` waits for the end.
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let waiting = s.spawn(|| {
            let seq = w.watch.read_begin();
            assert!(ended.load(std::sync::atomic::Ordering::SeqCst));
            seq
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        ended.store(true, std::sync::atomic::Ordering::SeqCst);
        drop(under_way);
        assert!(!w.watch.read_retry(waiting.join().unwrap()));
    });
}

#[test]
fn shared_memory_has_two_mappings_of_the_same_pages() {
    use vkfd_driver::seams::gpu::DmaMemory;
    let _one = serial();
    let mm = mm();
    let dma = vkfd_host::dma::SharedMemory::new(mm, None, 4 << 20).unwrap();
    assert_eq!(dma.page(0).0 % (2 << 20), 0, "fit for huge entries");
    assert_eq!(dma.page(511).0 - dma.page(0).0, 511 * PAGE);
    dma.write_u64(PAGE + 8, 42);
    let view = unsafe { dma.map_again(PAGE, PAGE, RW, None) }.unwrap();
    let word: *mut u64 = std::ptr::with_exposed_provenance_mut(usize::try_from(view.0 + 8).unwrap());
    unsafe {
        assert_eq!(word.read_volatile(), 42);
        word.write_volatile(43);
    }
    assert_eq!(dma.read_u64(PAGE + 8), 43);
    // An invalidation of everything (a fork) does not touch the driver's own memory.
    let page = dma.page(1);
    drop(mm.invalidation(CpuSpan::between(CpuVa(0), CpuVa(1 << 47))));
    assert!(matches!(mm.frames().resolve(page, 1), vkfd_host::frame::Resolved::Live(..)));
    // The client's view outlives it.
    drop(dma);
    assert_eq!(mm.frames().resolve(page, 1), vkfd_host::frame::Resolved::Stale);
    assert_eq!(unsafe { word.read_volatile() }, 43);
    unmap(CpuSpan::new(view, PAGE).unwrap());
    let small = vkfd_host::dma::SharedMemory::new(mm, None, 1).unwrap();
    assert_eq!(small.bytes(), PAGE);
    assert!(unsafe { small.map_again(0, 2 * PAGE, RW, None) }.is_err());
    assert!(vkfd_host::dma::SharedMemory::new(mm, None, 0).is_err());
}
