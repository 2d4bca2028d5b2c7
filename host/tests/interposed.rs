// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Notification by interposed calls, and how the source is chosen. Each test runs in a process of
//! its own, in which a seccomp filter refuses userfaultfd as container runtimes do.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the tests' own memory

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{advise, protect, Area, Watched, RW};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, PAGE};
use vkfd_driver::seams::address_space::{Access, AddressSpace, Invalidate};
use vkfd_host::address_space::ProcessMemory;
use vkfd_host::frame::Resolved;
use vkfd_host::mm::Mm;
use vkfd_host::{HostError, Source};
use vkfd_sabotage::Switch;

const CHILD: &str = "VKFD_TEST_CHILD";
const NOTHING: fn() -> CpuSpan = || CpuSpan::between(CpuVa(0), CpuVa(0));

/// Runs `test` in a child process, filtered, with `VKFD_NOTIFY` as said.
fn isolated(name: &str, notify: Option<&str>, test: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(name) {
        refuse_userfaultfd();
        return test();
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, name).env_remove("VKFD_NOTIFY");
    if let Some(notify) = notify {
        child.env("VKFD_NOTIFY", notify);
    }
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A BPF program: userfaultfd is EPERM, everything else allowed.
fn refuse_userfaultfd() {
    let code = |c: u32| u16::try_from(c).unwrap();
    let number = u32::try_from(libc::SYS_userfaultfd).unwrap();
    let errno = u32::try_from(libc::EPERM).unwrap();
    let mut filter = [
        // The system call's number is the first word of the data.
        libc::sock_filter { code: code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), jt: 0, jf: 1, k: number },
        libc::sock_filter { code: code(libc::BPF_RET | libc::BPF_K), jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | errno },
        libc::sock_filter { code: code(libc::BPF_RET | libc::BPF_K), jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        assert_eq!(libc::syscall(libc::SYS_userfaultfd, 1), -1, "control: the filter works");
    }
}

fn auto() -> &'static Mm {
    let mm = Mm::get(Source::Auto).unwrap();
    assert_eq!(mm.source(), Source::Interposed);
    mm
}

#[test]
fn auto_falls_back_and_says_what_it_cannot_see() {
    isolated("auto_falls_back_and_says_what_it_cannot_see", None, || {
        let mm = auto();
        let seen = mm.capabilities();
        assert!(seen.unmap && seen.protect && seen.fork && seen.before_change && !seen.raw_system_calls);
        assert!(seen.unseen().contains("raw system calls"), "{}", seen.unseen());
        assert!(matches!(Mm::get(Source::Userfaultfd), Err(HostError::SourceTaken { .. })));
    });
}

#[test]
fn userfaultfd_on_demand_is_an_error_here() {
    isolated("userfaultfd_on_demand_is_an_error_here", Some("uffd"), || {
        assert!(matches!(Mm::get(Source::Auto), Err(HostError::Source { wanted: Source::Userfaultfd, .. })));
    });
}

#[test]
fn the_environment_can_turn_notification_off() {
    isolated("the_environment_can_turn_notification_off", Some("none"), || {
        let mm = Mm::get(Source::Auto).unwrap();
        assert_eq!(mm.source(), Source::AccessOnly);
        let area = Area::new(4);
        let w = Watched::new(mm, area.all());
        let pages = w.fault(area.all(), Access::Write);
        common::unmap(area.pages(1, 1));
        assert_eq!(w.told(area.all(), &pages, NOTHING()), None);
        mm.lost(pages[1].phys());
        assert_eq!(w.told(area.all(), &pages, area.pages(1, 1)), Some(area.pages(1, 1)));
    });
}

#[test]
fn a_variable_that_means_nothing_is_an_error() {
    isolated("a_variable_that_means_nothing_is_an_error", Some("maybe"), || {
        assert!(matches!(Mm::get(Source::Auto), Err(HostError::BadVariable(v)) if v.0 == "maybe"));
    });
}

#[test]
fn every_call_is_seen() {
    isolated("every_call_is_seen", None, || {
        let mm = auto();
        let check = |what: &str, change: &dyn Fn(&Area, CpuSpan)| {
            let area = Area::new(8);
            let w = Watched::new(mm, area.all());
            let pages = w.fault(area.all(), Access::Write);
            let part = area.pages(2, 3);
            change(&area, part);
            assert_eq!(w.told(area.all(), &pages, part), Some(part), "{what}");
        };
        check("munmap", &|_, part| common::unmap(part));
        check("MADV_DONTNEED", &|_, part| advise(part, libc::MADV_DONTNEED));
        check("MADV_FREE", &|_, part| advise(part, libc::MADV_FREE));
        check("MADV_PAGEOUT", &|_, part| advise(part, libc::MADV_PAGEOUT));
        check("mprotect", &|_, part| protect(part, libc::PROT_READ));
        check("mmap over it", &|_, part| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            std::mem::forget(Area::map(part.start().0, 3, RW, flags, -1));
        });
        check("mremap away", &|_, part| {
            let bytes = index(part.bytes());
            let moved = unsafe {
                let target = Area::new(3);
                libc::mremap(
                    common::pointer(part),
                    bytes,
                    bytes,
                    libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                    common::pointer(target.all()),
                )
            };
            assert_ne!(moved, libc::MAP_FAILED);
        });
        check("mremap over it", &|_, part| {
            let other = Area::new(3);
            let bytes = index(part.bytes());
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let moved =
                unsafe { libc::mremap(common::pointer(other.all()), bytes, bytes, flags, common::pointer(part)) };
            assert_eq!(moved, common::pointer(part));
        });
        // What changes nothing is not announced.
        let area = Area::new(8);
        let w = Watched::new(mm, area.all());
        let pages = w.fault(area.all(), Access::Write);
        advise(area.all(), libc::MADV_WILLNEED);
        drop(Area::new(8));
        assert_eq!(w.told(area.all(), &pages, NOTHING()), None);
        let raw = unsafe { libc::syscall(libc::SYS_munmap, area.at, PAGE) };
        assert_eq!((raw, w.told(area.all(), &pages, NOTHING())), (0, None), "control: a raw call is not seen");
    });
}

#[test]
fn a_fork_is_seen_and_the_child_can_exit() {
    isolated("a_fork_is_seen_and_the_child_can_exit", None, || {
        let mm = auto();
        let area = Area::new(4);
        let w = Watched::new(mm, area.all());
        let pages = w.fault(area.all(), Access::Write);
        let child = unsafe { libc::fork() };
        if child == 0 {
            common::unmap(area.pages(0, 1));
            drop(w);
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert!(w.told(area.all(), &pages, area.all()).is_some());
        // It has ended: otherwise this would wait for ever.
        w.watch.read_begin();
    });
}

/// Looks at its page from within the callback.
struct Peek {
    page: u64,
    value: std::sync::atomic::AtomicU8,
}

impl Invalidate for Peek {
    fn invalidate(&self, _: CpuSpan, _: bool) -> bool {
        let page: *const u8 = std::ptr::with_exposed_provenance(index(self.page));
        self.value.store(unsafe { page.read_volatile() }, Ordering::SeqCst);
        // A callback that maps and unmaps must not come back to itself.
        drop(Area::new(1));
        true
    }
}

#[test]
fn callbacks_come_before_the_change_and_errno_is_the_calls() {
    isolated("callbacks_come_before_the_change_and_errno_is_the_calls", None, || {
        let mm = auto();
        let area = Area::new(4);
        unsafe { area.byte(0).write_volatile(9) };
        let peek = Arc::new(Peek { page: area.at, value: 0.into() });
        let memory = ProcessMemory::new(mm);
        let watch = memory.watch(area.all(), peek.clone()).unwrap();
        advise(area.all(), libc::MADV_DONTNEED);
        assert_eq!(peek.value.load(Ordering::SeqCst), 9, "the page was still there");
        assert_eq!(unsafe { area.byte(0).read_volatile() }, 0, "and then it went");
        drop(watch);
        let w = Watched::new(mm, area.all());
        let errno = || std::io::Error::last_os_error().raw_os_error();
        let failed = unsafe { libc::mprotect(common::pointer(area.all()), index(area.bytes), 1 << 30) };
        assert_eq!((failed, errno()), (-1, Some(libc::EINVAL)));
        let odd = unsafe { libc::munmap(area.byte(1).cast(), index(PAGE)) };
        assert_eq!((odd, errno()), (-1, Some(libc::EINVAL)));
        let bad = unsafe {
            libc::mmap(common::pointer(area.all()), index(PAGE), RW, libc::MAP_FIXED | libc::MAP_SHARED, -1, 0)
        };
        assert_eq!((bad, errno()), (libc::MAP_FAILED, Some(libc::EBADF)));
        // A success leaves errno alone.
        unsafe { *libc::__errno_location() = libc::EXDEV };
        advise(area.all(), libc::MADV_DONTNEED);
        assert_eq!(errno(), Some(libc::EXDEV));
        drop(w);
    });
}

/// What the handler below unmaps.
static HANDLED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

extern "C" fn unmaps(_: libc::c_int) {
    let at = CpuVa(HANDLED.swap(0, Ordering::SeqCst));
    common::unmap(CpuSpan::between(at, CpuVa(at.0 + PAGE)));
}

/// Interrupts its own thread from within the callback.
struct Interrupts;

impl Invalidate for Interrupts {
    fn invalidate(&self, _: CpuSpan, _: bool) -> bool {
        unsafe { libc::raise(libc::SIGUSR1) };
        true
    }
}

/// Whether a handler of a signal that arrives within a hook unmaps memory, and that is announced.
fn unmapped_by_a_handler(name: &str, test: fn(handled: bool, announced: bool), switch: Option<Switch>) {
    isolated(name, None, || {
        switch.into_iter().for_each(|switch| vkfd_host::sabotage::switches().turn(switch, true));
        let mm = auto();
        let handler: extern "C" fn(libc::c_int) = unmaps;
        unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
        let (first, second) = (Area::new(4), Area::new(4));
        let memory = ProcessMemory::new(mm);
        let watch = memory.watch(first.all(), Arc::new(Interrupts)).unwrap();
        let w = Watched::new(mm, second.all());
        let pages = w.fault(second.all(), Access::Write);
        HANDLED.store(second.at, Ordering::SeqCst);
        common::unmap(first.pages(1, 1));
        let handled = HANDLED.load(Ordering::SeqCst) == 0;
        mm.settle();
        let announced = w.counter.take() == Some(second.pages(0, 1));
        assert_ne!(w.is_live(pages[0], second.pages(0, 1).start()), announced, "what is announced is dead");
        drop(watch);
        test(handled, announced);
    });
}

#[test]
fn what_a_signal_handler_unmaps_within_a_hook_is_seen() {
    let test = |handled, announced| assert!(handled && announced, "handled {handled}, announced {announced}");
    unmapped_by_a_handler("what_a_signal_handler_unmaps_within_a_hook_is_seen", test, None);
}

/// The control.
#[test]
fn hooks_that_let_signal_handlers_in_are_noticed() {
    let test = |handled, announced: bool| assert!(handled && !announced, "handled {handled}, announced {announced}");
    unmapped_by_a_handler("hooks_that_let_signal_handlers_in_are_noticed", test, Some(Switch::SignalsInHooks));
}

#[test]
fn memory_that_goes_is_told_apart_from_pages_that_change() {
    isolated("memory_that_goes_is_told_apart_from_pages_that_change", None, || {
        let mm = auto();
        let area = Area::new(64);
        let w = Watched::new(mm, area.all());
        w.fault(area.all(), Access::Write);
        let gone = || w.counter.take_gone();
        advise(area.pages(0, 8), libc::MADV_DONTNEED);
        protect(area.pages(0, 8), libc::PROT_READ);
        assert_eq!(gone(), 0, "pages change");
        common::unmap(area.pages(8, 8));
        assert_eq!(gone(), 1, "munmap");
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        std::mem::forget(Area::map(area.at + 20 * PAGE, 2, RW, flags, -1));
        assert_eq!(gone(), 1, "mmap over it");
        let refused =
            unsafe { libc::mmap(area.byte(20 * PAGE).cast(), index(PAGE), RW, flags & !libc::MAP_ANONYMOUS, -1, 0) };
        assert_eq!((refused, gone()), (libc::MAP_FAILED, 0), "a call that was refused");
        let tail = area.pages(56, 8);
        let shrunk = unsafe { libc::mremap(common::pointer(tail), index(8 * PAGE), index(4 * PAGE), 0) };
        assert_eq!((shrunk, gone()), (common::pointer(tail), 1), "the end of it");
        let target = Area::new(4);
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let moved = unsafe {
            libc::mremap(common::pointer(tail), index(4 * PAGE), index(4 * PAGE), fixed, common::pointer(target.all()))
        };
        assert_eq!((moved, gone()), (common::pointer(target.all()), 1), "mremap");
    });
}

#[test]
fn a_dead_frame_stays_dead_over_unmap_and_map() {
    isolated("a_dead_frame_stays_dead_over_unmap_and_map", None, || {
        let mm = auto();
        let area = Area::new(4);
        let w = Watched::new(mm, area.all());
        let before = w.fault(area.all(), Access::Write);
        common::unmap(area.all());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        std::mem::forget(Area::map(area.at, 4, RW, flags, -1));
        let after = w.fault(area.all(), Access::Write);
        assert_eq!(w.resolve(before[0].phys()), Resolved::Stale);
        assert!(w.is_live(after[0], area.all().start()));
    });
}

#[test]
fn a_gpu_sees_memory_that_was_mapped_anew() {
    isolated("a_gpu_sees_memory_that_was_mapped_anew", None, || {
        let mut rig = rig::Rig::new();
        assert_eq!(rig.machine.memory().source(), Source::Interposed);
        let area = Area::new(64);
        rig.register(&area);
        for round in 0..20 {
            rig::remap(&area);
            rig::fill(&area, round * 1_000_000);
            rig.copy(rig::USER, rig::VRAM, area.bytes);
            assert!((0..area.bytes / 8).all(|i| rig.vram.get(i) == round * 1_000_000 + i), "round {round}");
        }
        let counters = rig.machine.counters()[0];
        assert_eq!((counters.stale, counters.faults), (0, 0));
        assert!(counters.suspends >= 20, "each change evicted");
    });
}
