// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Suspending, faults, and memory that vanishes.

use crate::rig::*;
use vkfd_gpu::memory::pte;
use vkfd_gpu::memory::pte::EntryFlags;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

const AREA: u64 = 0x1234_5000_0000;
const BIG: u32 = 1 << 30;

/// Maps 1 GiB that aliases 2 MiB of VRAM, for copies that take long.
fn map_big(rig: &Rig) {
    for block in 0..512 {
        rig.map_huge(AREA + block * (2 << 20), pte::Target::Vram(rig.fabric(32 << 20)), RW);
    }
}

#[test]
fn suspending_stops_a_copy_in_the_middle() {
    let rig = Rig::new();
    map_big(&rig);
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(AREA, AREA, BIG));
    until("started", || rig.gpu.counters().bytes_copied > 0);
    for _ in 0..20 {
        rig.gpu.suspend(VMID);
        let copied = rig.gpu.counters().bytes_copied;
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(rig.gpu.counters().bytes_copied <= copied + (256 << 10), "at most the count of a chunk that had ended");
        rig.gpu.flush_tlb(VMID);
        rig.gpu.resume(VMID);
        let copied = rig.gpu.counters().bytes_copied;
        until("goes on", || rig.gpu.counters().bytes_copied > copied || queue.rptr() != 0);
    }
    queue.wait();
    assert_eq!(rig.gpu.counters().bytes_copied, u64::from(BIG));
    assert_eq!(rig.gpu.counters().suspends, 20);
}

#[test]
fn a_suspended_vmid_touches_nothing() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    rig.gpu.suspend(VMID);
    rig.gpu.suspend(VMID);
    queue.submit(&[0]);
    std::thread::sleep(std::time::Duration::from_millis(5));
    let counters = rig.gpu.counters();
    assert_eq!((counters.walks, counters.packets, queue.rptr()), (0, 0, 0));
    // Another VMID's gate is another gate.
    rig.gpu.resume(Vmid(VMID.0 + 1));
    assert_eq!(queue.rptr(), 0);
    rig.gpu.resume(VMID);
    queue.wait();
}

#[test]
fn a_disabled_queue_waits_and_its_ring_can_move() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    rig.gpu.update_queue(queue.id, VA, RING_BYTES, false).unwrap();
    queue.submit(&[0, 0x77]);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(rig.gpu.counters().packets, 0);
    // The new ring holds NOPs only.
    rig.gpu.update_queue(queue.id, VA + (4 << 20), RING_BYTES, true).unwrap();
    queue.wait();
    assert!(matches!(rig.gpu.update_queue(queue.id, VA + 1, 256, true), Err(GpuError::BadRing { .. })));
    assert!(matches!(rig.gpu.update_queue(QueueId(99), VA, 256, true), Err(GpuError::BadQueue(_))));
}

#[test]
fn faults_halt_the_queue_and_say_why() {
    let read_only = EntryFlags::READABLE;
    for (flags, dst, src, access, reason) in [
        (None, VA + SCRATCH, AREA, Access::Read, FaultReason::NotPresent),
        (None, AREA, VA, Access::Write, FaultReason::NotPresent),
        (Some(read_only), AREA, VA, Access::Write, FaultReason::Permission),
        (Some(EntryFlags::WRITEABLE), VA + SCRATCH, AREA, Access::Read, FaultReason::Permission),
    ] {
        let rig = Rig::new();
        if let Some(flags) = flags {
            rig.map(AREA, sys(DATA), flags, 0);
        }
        let mut queue = rig.queue(QueueKind::Sdma);
        queue.submit(&copy_packet(dst, src, 64));
        queue.submit(&[0]);
        let fault = PageFault { vmid: VMID, va: AREA, access, reason, retry: false, queue: queue.id };
        assert_eq!(rig.event(), Event::Fault(fault));
        assert_eq!(rig.event(), Event::Error(QueueError::Fault(fault)));
        rig.gpu.flush_tlb(VMID);
        assert_eq!((queue.rptr(), rig.gpu.counters().faults), (0, 1));
        queue.remove();
        // The VMID is fine.
        let mut queue = rig.queue(QueueKind::Sdma);
        queue.submit(&[0]);
        queue.wait();
    }
}

#[test]
fn a_copy_faults_at_the_exact_byte() {
    let rig = Rig::new();
    rig.write(DATA, &noise(7, 0x3000));
    rig.map(AREA, sys(DATA + (1 << 20)), RW, 0);
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(AREA + 0x10, VA + DATA, 0x3000));
    assert!(matches!(rig.event(), Event::Fault(PageFault { va, .. }) if va == AREA + 0x1000));
    assert_eq!(rig.read(DATA + (1 << 20) + 0x10, 0xff0), rig.read(DATA, 0xff0));
}

#[test]
fn a_retry_fault_waits_for_its_answer() {
    let rig = Rig::with(Config::default(), true);
    rig.write(DATA + 0x123, b"late");
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + SCRATCH, AREA + 0x123, 4));
    let Event::Fault(fault) = rig.event() else { panic!() };
    assert_eq!((fault.va, fault.retry, fault.reason), (AREA + 0x123, true, FaultReason::NotPresent));
    // An answer for another page is not for this queue; suspending a waiting queue does not hang.
    rig.gpu.fault_done(VMID, AREA + 0x1000, FaultOutcome::Retry);
    rig.gpu.suspend(VMID);
    rig.map(AREA, sys(DATA), RW, 0);
    rig.gpu.resume(VMID);
    assert_eq!(queue.rptr(), 0);
    rig.gpu.fault_done(VMID, AREA, FaultOutcome::Retry);
    queue.wait();
    assert_eq!((rig.gpu.counters().retries, rig.gpu.counters().faults), (1, 0));
    assert_eq!(rig.read(SCRATCH, 4), b"late");
}

/// As AMD's driver marks a page that it cannot provide.
#[test]
fn a_final_entry_is_not_retried() {
    let rig = Rig::with(Config::default(), true);
    rig.map(AREA, sys(0), EntryFlags::PRT, 0);
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + SCRATCH, AREA, 4));
    let Event::Fault(fault) = rig.event() else { panic!() };
    assert_eq!((fault.va, fault.retry), (AREA, false));
    assert_eq!(rig.event(), Event::Error(QueueError::Fault(fault)));
}

#[test]
fn an_early_answer_is_not_lost() {
    let rig = Rig::with(Config::default(), true);
    let gpu = rig.weak();
    *rig.host.on_fault.lock().unwrap() = Some(Box::new(move |fault: PageFault| {
        // Answered within the interrupt, before the queue can wait.
        if let Some(gpu) = gpu.upgrade() {
            gpu.fault_done(fault.vmid, fault.va, FaultOutcome::Retry);
        }
    }));
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + SCRATCH, AREA, 4));
    // Each answer leads to another fault, as nothing was mapped.
    for _ in 0..3 {
        assert!(matches!(rig.event(), Event::Fault(PageFault { retry: true, .. })));
    }
    rig.map(AREA, sys(DATA), RW, 0);
    until("recovered", || queue.rptr() == queue.wptr);
    *rig.host.on_fault.lock().unwrap() = None;
}

#[test]
fn a_retry_fault_that_fails_halts() {
    let rig = Rig::with(Config::default(), true);
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + SCRATCH, AREA, 4));
    assert!(matches!(rig.event(), Event::Fault(PageFault { retry: true, .. })));
    rig.gpu.fault_done(VMID, AREA, FaultOutcome::Fail);
    let Event::Fault(fault) = rig.event() else { panic!() };
    assert!(!fault.retry);
    assert_eq!(rig.event(), Event::Error(QueueError::Fault(fault)));
}

#[test]
fn a_stale_frame_is_always_fatal() {
    let rig = Rig::with(Config::default(), true);
    rig.host.stale.lock().unwrap().insert(DATA);
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + SCRATCH, VA + DATA, 4));
    assert!(matches!(rig.event(), Event::Fault(PageFault { reason: FaultReason::Stale, retry: false, .. })));
    assert_eq!((rig.gpu.counters().stale, rig.gpu.counters().faults), (1, 1));
}

#[test]
fn frames_that_never_were_are_no_memory() {
    for target in [pte::Target::System(PhysAddr(0x1000)), pte::Target::Vram(FabricAddr(0xffff_0000_0000))] {
        let rig = Rig::new();
        rig.map(AREA, target, RW, 0);
        let mut queue = rig.queue(QueueKind::Sdma);
        queue.submit(&copy_packet(VA + SCRATCH, AREA, 4));
        assert!(matches!(rig.event(), Event::Fault(PageFault { reason: FaultReason::NoMemory, .. })));
    }
}

#[test]
fn vanished_host_memory_is_reported_and_then_faults() {
    for write in [false, true] {
        let rig = Rig::new();
        let page = DATA + 0x1000;
        rig.host.set_backed(page, false);
        let (dst, src) = if write { (VA + DATA, VA + (4 << 20)) } else { (VA + (4 << 20), VA + DATA) };
        let mut queue = rig.queue(QueueKind::Sdma);
        queue.submit(&copy_packet(dst, src, 0x3000));
        let mut reports = 0;
        let fault = loop {
            match rig.event() {
                Event::Lost(offset, side) => {
                    assert_eq!((offset, side), (page, write));
                    reports += 1;
                }
                Event::Fault(fault) => break fault,
                event => panic!("{event:?}"),
            }
        };
        assert_eq!((fault.va, fault.reason), (VA + page, FaultReason::NoMemory));
        assert_eq!(reports, 999);
        rig.host.set_backed(page, true);
    }
}

#[test]
fn host_memory_that_comes_back_costs_only_a_report() {
    let rig = Rig::new();
    let page = DATA + 0x1000;
    rig.write(DATA, &[1; 0x3000]);
    rig.host.set_backed(page, false);
    let host = std::sync::Arc::downgrade(&rig.host);
    *rig.host.on_lost.lock().unwrap() = Some(Box::new(move |offset| {
        if let Some(host) = host.upgrade() {
            host.set_backed(offset, true);
        }
    }));
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + (4 << 20), VA + DATA, 0x3000));
    until("done", || queue.rptr() == queue.wptr);
    assert_eq!(rig.event(), Event::Lost(page, false));
    assert_eq!(rig.gpu.counters().lost, 1);
    let expected = [vec![1; 0x1000], vec![0; 0x1000], vec![1; 0x1000]].concat();
    assert_eq!(rig.read(4 << 20, 0x3000), expected);
}

#[test]
fn a_lost_answer_may_move_the_page() {
    let rig = Rig::new();
    rig.write(DATA + 0x2000, b"moved");
    rig.host.set_backed(DATA, false);
    let (weak, slot) = (rig.weak(), rig.slot(VA + DATA, pte::Level::Ptb));
    *rig.host.on_lost.lock().unwrap() = Some(Box::new(move |_| {
        if let Some(gpu) = weak.upgrade() {
            gpu.suspend(VMID);
            gpu.vram().write_u64(slot, pte::Entry::page(sys(DATA + 0x2000), RW, 0).0).unwrap();
            gpu.flush_tlb(VMID);
            gpu.resume(VMID);
        }
    }));
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + SCRATCH, VA + DATA, 5));
    until("done", || queue.rptr() == queue.wptr);
    assert_eq!(rig.read(SCRATCH, 5), b"moved");
    *rig.host.on_lost.lock().unwrap() = None;
    rig.host.set_backed(DATA, true);
}

const ADDS: u64 = 1 << 14;
const BUFFERS: u64 = 2700;
const ROUNDS: u32 = 200;

/// A queue that adds 1 to the word at [`AREA`], for much longer than any test takes.
fn adding_queue(rig: &Rig) -> TestQueue<'_> {
    rig.map(AREA, sys(DATA), RW, 0);
    let [low, high] = split(AREA);
    let add: Vec<u8> = [10 | 0x2f << 25, low, high, 1, 0, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    rig.write(4 << 20, &add.repeat(usize::try_from(ADDS).unwrap()));
    let mut queue = rig.queue(QueueKind::Sdma);
    let [low, high] = split(VA + (4 << 20));
    for _ in 0..BUFFERS {
        queue.submit(&[4, low, high, u32::try_from(ADDS * 8).unwrap(), 0, 0]);
    }
    until("adding", || rig.read_u64(DATA) > 0);
    queue
}

/// Ends an adding queue after the buffer it is at; returns how often it added.
fn finish(queue: &TestQueue) -> u64 {
    queue.rig.gpu.suspend(VMID);
    let rptr = queue.rptr();
    let rest = usize::try_from(queue.wptr - rptr - 24).unwrap();
    queue.rig.write(rptr + 24, &vec![0; rest]);
    queue.rig.gpu.resume(VMID);
    queue.wait();
    (rptr / 24 + 1) * ADDS
}

#[test]
fn a_suspended_word_stands_still() {
    let rig = Rig::new();
    let queue = adding_queue(&rig);
    let moves = || {
        let before = rig.read_u64(DATA);
        for _ in 0..2000 {
            std::hint::spin_loop();
        }
        rig.read_u64(DATA) != before
    };
    // The control: it moves otherwise.
    until("the word moves", moves);
    for _ in 0..ROUNDS {
        rig.gpu.suspend(VMID);
        assert!(!moves());
        let before = rig.read_u64(DATA);
        rig.gpu.resume(VMID);
        until("it goes on", || rig.read_u64(DATA) > before + 100);
    }
    assert_eq!(finish(&queue), rig.read_u64(DATA));
}

/// Keeps a queue adding to one word, moves the word's page to and fro, and says whether a page was
/// ever written after the flush that followed its removal.
fn old_page_written(rig: &Rig) -> bool {
    let queue = adding_queue(rig);
    let (mut old, mut new) = (DATA, DATA + 0x1000);
    let mut written = false;
    for _ in 0..ROUNDS {
        rig.map(AREA, sys(new), RW, 0);
        rig.gpu.flush_tlb(VMID);
        let (was_old, was_new) = (rig.read_u64(old), rig.read_u64(new));
        until("the word moves on", || rig.read_u64(new) > was_new + 3 || rig.read_u64(old) > was_old + 3);
        written |= rig.read_u64(old) != was_old;
        (old, new) = (new, old);
    }
    let sum = finish(&queue);
    assert_eq!(rig.read_u64(DATA) + rig.read_u64(DATA + 0x1000), sum, "no addition is lost or done twice");
    written
}

#[test]
fn a_flush_waits_for_the_accesses_in_flight() {
    assert!(!old_page_written(&Rig::new()));
}

#[test]
fn a_sabotaged_flush_lets_the_old_page_be_written() {
    let rig = Rig::new();
    rig.gpu.sabotage().turn(Switch::SkipTlbFlush, true);
    assert!(old_page_written(&rig));
}
