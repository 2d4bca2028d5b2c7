// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The simulated host does what it simulates: tests on it would pass with less.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{channel, sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use vkfd_driver::base::addr::{CpuSpan, FabricAddr, VramOffset, PAGE};
use vkfd_driver::seams::address_space::{AddressSpace, Invalidate, Watch};
use vkfd_driver::seams::gpu::{Gpu, Vmid};
use vkfd_sim::memory::span;
use vkfd_sim::{Seen, SimGpu, SimMm, GPU_ID};

/// Time in which a thread that does not wait goes on.
const SOON: Duration = Duration::from_millis(50);

/// A receiver that says when it is called, and waits for leave to return.
struct Slow(SyncSender<(u64, u64)>, Mutex<Receiver<()>>);

impl Invalidate for Slow {
    fn invalidate(&self, span: CpuSpan, _: bool) -> bool {
        self.0.send((span.start().0 / PAGE, span.pages())).unwrap();
        self.1.lock().unwrap().recv().unwrap();
        true
    }
}

/// The memory, the watch, the calls of its receiver, and the leave to return.
type Watched = (Arc<SimMm>, Arc<dyn Watch>, Receiver<(u64, u64)>, SyncSender<()>);

/// Memory of pages 10 to 29, and a watch of 10 to 19 with a slow receiver.
fn watched() -> Watched {
    let mm = Arc::new(SimMm::default());
    mm.map(10, 20, true);
    let (called, calls) = sync_channel(1);
    let (go_on, wait) = sync_channel(1);
    let watch = mm.watch(span(10, 10), Arc::new(Slow(called, Mutex::new(wait)))).unwrap();
    (mm, watch, calls, go_on)
}

#[test]
fn a_watch_is_called_before_the_change_with_its_own_part() {
    let (mm, _watch, calls, go_on) = watched();
    let before = mm.frame(19);
    thread::scope(|scope| {
        scope.spawn(|| mm.renew(18, 5));
        assert_eq!(calls.recv().unwrap(), (18, 2));
        assert_eq!(mm.frame(19), before);
        go_on.send(()).unwrap();
    });
    assert_ne!(mm.frame(19), before);
}

#[test]
fn read_begin_waits_for_changes_and_their_calls_raise_the_sequence() {
    let (mm, watch, calls, go_on) = watched();
    let sequence = watch.read_begin();
    mm.renew(25, 1);
    assert!(!watch.read_retry(sequence), "a change elsewhere");
    thread::scope(|scope| {
        scope.spawn(|| mm.renew(12, 1));
        calls.recv().unwrap();
        assert!(watch.read_retry(sequence));
        let (done, begun) = channel();
        let (own, watch) = (watch.clone(), &watch);
        scope.spawn(move || done.send(own.read_begin()));
        assert!(begun.recv_timeout(SOON).is_err(), "in the middle of a change");
        go_on.send(()).unwrap();
        assert_eq!(begun.recv().unwrap(), watch.read_begin());
    });
}

#[test]
fn the_end_of_a_watch_waits_for_calls_under_way() {
    let (mm, watch, calls, go_on) = watched();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| mm.notify(12, 1, true));
        calls.recv().unwrap();
        scope.spawn(|| {
            drop(watch);
            ended.store(true, SeqCst);
        });
        thread::sleep(SOON);
        assert!(!ended.load(SeqCst), "in the middle of a call");
        go_on.send(()).unwrap();
    });
    assert_eq!((ended.into_inner(), mm.watch_count()), (true, 0));
    assert!(mm.notify(12, 1, true), "nobody is called any more");
}

#[test]
fn an_entry_stays_in_the_tlb_until_it_is_flushed() {
    let gpu = SimGpu::new(GPU_ID, 8);
    let base = gpu.properties().vram_base.0;
    for level in 0..3 {
        gpu.write_entries(VramOffset(level * PAGE), (base + (level + 1) * PAGE) | 1, 0, 1);
    }
    gpu.write_entries(VramOffset(3 * PAGE), (7 * PAGE) | 3, 0, 1);
    gpu.set_root(Vmid(1), Some(FabricAddr(base)), false);
    let seen = Seen::Memory { frame: 7, system: true, writable: false };
    assert_eq!(gpu.access(0), seen);
    gpu.clear(VramOffset(3 * PAGE), PAGE);
    assert_eq!((gpu.walk(0), gpu.access(0)), (None, seen));
    gpu.suspend(Vmid(1));
    assert_eq!(gpu.access(0), Seen::Suspended);
    gpu.resume(Vmid(1));
    gpu.flush_tlb(Vmid(1));
    assert_eq!(gpu.access(0), Seen::Nothing);
}
