// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The event reader never calls malloc or free: a thread that sleeps in munmap until its event is
//! read may hold malloc's locks.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are system calls on the tests' own memory

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{advise, memory, serial, Area, Watched, RW};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::Arc;
use vkfd_driver::base::addr::{index, CpuSpan, PAGE};
use vkfd_driver::seams::address_space::{Access, AddressSpace, Invalidate};
use vkfd_host::address_space::ProcessMemory;
use vkfd_host::mm::Pause;
use vkfd_host::Source;

/// Counts the calls of one thread.
struct Counting;

static WATCHED_THREAD: AtomicI64 = AtomicI64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn note() {
    let watched = WATCHED_THREAD.load(Ordering::Relaxed);
    if watched != 0 && watched == unsafe { libc::syscall(libc::SYS_gettid) } {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note();
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The reader's thread id.
fn reader() -> i64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let ids = tasks.map(|t| t.unwrap().file_name().into_string().unwrap());
    let mut readers = ids.filter(|id| {
        std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).is_ok_and(|name| name.trim() == "vkfd-notify")
    });
    readers.next().expect("a reader thread").parse().unwrap()
}

#[derive(Default)]
struct Gate {
    closed: AtomicBool,
    rounds: AtomicU64,
}

impl Pause for Gate {
    fn pause(&self) {
        assert!(!self.closed.swap(true, Ordering::SeqCst));
    }
    fn unpause(&self) {
        assert!(self.closed.swap(false, Ordering::SeqCst));
        self.rounds.fetch_add(1, Ordering::SeqCst);
    }
}

/// Notes whether the gate was closed in each callback.
struct Behind(Arc<Gate>, AtomicU64);

impl Invalidate for Behind {
    fn invalidate(&self, _: CpuSpan, _: bool) -> bool {
        assert!(self.0.closed.load(Ordering::SeqCst));
        self.1.fetch_add(1, Ordering::SeqCst);
        true
    }
}

#[test]
fn callbacks_run_with_the_gates_closed() {
    let _one = serial();
    let Some(mm) = memory(Source::Userfaultfd) else { return };
    let gate = Arc::new(Gate::default());
    let as_gate: Arc<dyn Pause> = gate.clone();
    assert!(mm.add_gate(as_gate.clone()));
    let area = Area::new(4);
    let client = Arc::new(Behind(gate, AtomicU64::new(0)));
    let watch = ProcessMemory::new(mm).watch(area.all(), client.clone()).unwrap();
    for _ in 0..100 {
        advise(area.all(), libc::MADV_DONTNEED);
    }
    mm.settle();
    assert_eq!(client.1.load(Ordering::SeqCst), 100);
    drop(watch);
    mm.remove_gate(&as_gate);
}

#[test]
fn evicting_a_running_gpu_does_not_allocate() {
    let _one = serial();
    if memory(Source::Userfaultfd).is_none() {
        return;
    }
    let mut rig = rig::Rig::new();
    let area = Area::new(512);
    rig.register(&area);
    WATCHED_THREAD.store(reader(), Ordering::SeqCst);
    for _ in 0..50 {
        rig::remap(&area);
        advise(area.pages(100, 100), libc::MADV_DONTNEED);
        rig.copy(rig::USER, rig::VRAM, area.bytes);
    }
    rig.machine.memory().settle();
    WATCHED_THREAD.store(0, Ordering::SeqCst);
    assert_eq!(CALLS.swap(0, Ordering::SeqCst), 0);
    assert!(rig.machine.counters()[0].suspends > 0);
}

#[test]
fn reading_events_does_not_allocate() {
    let _one = serial();
    let Some(mm) = memory(Source::Userfaultfd) else {
        return;
    };
    let area = Area::new(1024);
    let watches: Vec<Watched> = (0..64).map(|i| Watched::new(mm, area.pages(i * 16, 16))).collect();
    let change_all = || {
        for (i, w) in (0..64).zip(&watches) {
            let all = area.pages(i * 16, 16);
            w.fault(all, Access::Write);
            advise(area.pages(i * 16, 4), libc::MADV_DONTNEED);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            std::mem::forget(Area::map(area.at + (i * 16 + 4) * PAGE, 4, RW, flags, -1));
            let part = area.pages(i * 16 + 8, 4);
            let bytes = index(part.bytes());
            let moved = unsafe { libc::mremap(common::pointer(part), bytes, bytes, libc::MREMAP_MAYMOVE | 4, 0) };
            assert_ne!(moved, libc::MAP_FAILED);
            std::mem::forget(Area::map(part.start().0, 4, RW, flags, -1));
        }
        let child = unsafe { libc::fork() };
        if child == 0 {
            unsafe { libc::_exit(0) };
        }
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    };
    let gate = Arc::new(Gate::default());
    let as_gate: Arc<dyn Pause> = gate.clone();
    assert!(mm.add_gate(as_gate.clone()));
    WATCHED_THREAD.store(reader(), Ordering::SeqCst);
    change_all();
    mm.settle();
    WATCHED_THREAD.store(0, Ordering::SeqCst);
    assert_eq!(CALLS.swap(0, Ordering::SeqCst), 0);
    assert!(watches.iter().all(|w| w.counter.calls() >= 4), "the events were handled");
    assert!(gate.rounds.load(Ordering::SeqCst) > 0 && !gate.closed.load(Ordering::SeqCst));
    mm.remove_gate(&as_gate);
    let rounds = gate.rounds.load(Ordering::SeqCst);
    // Control: the count does count.
    WATCHED_THREAD.store(unsafe { libc::syscall(libc::SYS_gettid) }, Ordering::SeqCst);
    drop(std::hint::black_box(vec![1u8; 100]));
    WATCHED_THREAD.store(0, Ordering::SeqCst);
    assert_eq!(CALLS.swap(0, Ordering::SeqCst), 2);
    change_all();
    mm.settle();
    assert_eq!(gate.rounds.load(Ordering::SeqCst), rounds, "a gate that was taken away is left alone");
}
