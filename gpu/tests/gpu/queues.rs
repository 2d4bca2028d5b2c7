// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Adding and removing queues.

use crate::rig::*;
use std::sync::atomic::Ordering::SeqCst;
use vkfd_gpu::memory::pte;
use vkfd_gpu::*;

const AREA: u64 = 0x1234_5000_0000;

fn waiting_poll() -> [u32; 6] {
    let [low, high] = split(VA + SCRATCH);
    [8 | 3 << 28 | 1 << 31, low, high, 1, 1, 0x0fff_0004]
}

/// Removes the queue; that this returns is the test. Afterwards the same ring works again.
fn removed(rig: &Rig, queue: TestQueue) {
    let slot = queue.slot.clone();
    let id = queue.id;
    queue.remove();
    assert!(matches!(rig.gpu.remove_queue(id), Err(GpuError::BadQueue(_))));
    assert_eq!(std::sync::Arc::strong_count(&slot), 1, "the doorbell is let go");
    rig.gpu.resume(VMID);
    rig.gpu.suspend(VMID);
    rig.gpu.resume(VMID);
    rig.write(0, &[0; 64]);
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&[0]);
    queue.wait();
}

#[test]
fn removal_when_idle_spinning_or_asleep() {
    let rig = Rig::new();
    let queue = rig.queue(QueueKind::Sdma);
    removed(&rig, queue);
    let queue = rig.queue(QueueKind::Aql);
    std::thread::sleep(std::time::Duration::from_millis(5));
    removed(&rig, queue);
}

#[test]
fn removal_while_suspended() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    rig.gpu.suspend(VMID);
    queue.submit(&[0]);
    std::thread::sleep(std::time::Duration::from_millis(2));
    removed(&rig, queue);
}

#[test]
fn removal_while_disabled() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    rig.gpu.update_queue(queue.id, VA, RING_BYTES, false).unwrap();
    queue.submit(&[0]);
    std::thread::sleep(std::time::Duration::from_millis(2));
    removed(&rig, queue);
}

#[test]
fn removal_while_polling() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&waiting_poll());
    until("polling", || rig.gpu.counters().tlb_hits > 20);
    removed(&rig, queue);
}

#[test]
fn removal_while_a_fault_waits() {
    let rig = Rig::with(Config::default(), true);
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + SCRATCH, AREA, 4));
    assert!(matches!(rig.event(), Event::Fault(PageFault { retry: true, .. })));
    removed(&rig, queue);
    // An answer for a queue that is gone is nobody's.
    rig.gpu.fault_done(VMID, AREA, FaultOutcome::Fail);
    let mut queue = rig.queue_at(QueueKind::Sdma, 8 << 20);
    queue.submit(&copy_packet(VA + SCRATCH, AREA, 4));
    assert!(matches!(rig.event(), Event::Fault(PageFault { retry: true, .. })));
}

#[test]
fn removal_of_a_halted_queue() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&[0x77]);
    assert!(matches!(rig.event(), Event::Error(_)));
    removed(&rig, queue);
}

#[test]
fn removal_during_a_long_copy() {
    let rig = Rig::new();
    for block in 0..512 {
        rig.map_huge(AREA + block * (2 << 20), pte::Target::Vram(rig.fabric(32 << 20)), RW);
    }
    let mut queue = rig.queue(QueueKind::Sdma);
    for _ in 0..1000 {
        queue.submit(&copy_packet(AREA, AREA, 1 << 30));
    }
    until("started", || rig.gpu.counters().bytes_copied > 0);
    removed(&rig, queue);
    assert!(rig.gpu.counters().bytes_copied < 1000 << 30);
}

#[test]
fn removal_from_within_an_interrupt() {
    let rig = Rig::new();
    let gpu = rig.weak();
    *rig.host.on_fault.lock().unwrap() = Some(Box::new(move |fault: PageFault| {
        if let Some(gpu) = gpu.upgrade() {
            gpu.remove_queue(fault.queue).unwrap();
        }
    }));
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + SCRATCH, AREA, 4));
    assert!(matches!(rig.event(), Event::Fault(_)));
    until("let go", || std::sync::Arc::strong_count(&queue.slot) == 1);
    *rig.host.on_fault.lock().unwrap() = None;
}

#[test]
fn dropping_the_gpu_ends_its_queues() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&waiting_poll());
    let slot = queue.slot;
    drop(rig);
    assert_eq!(std::sync::Arc::strong_count(&slot), 1);
}

#[test]
fn bad_configurations_are_refused() {
    let rig = Rig::new();
    let (gpu, template) = (&rig.gpu, rig.queue(QueueKind::Sdma));
    let ptr = std::ptr::NonNull::new(template.slot.as_ptr()).unwrap();
    // SAFETY: the Arc keeps the slot in place.
    let doorbell = unsafe { DoorbellPtr::new(ptr, template.slot.clone()) };
    let good = QueueConfig {
        vmid: VMID,
        kind: QueueKind::Sdma,
        ring_va: VA,
        ring_bytes: 4096,
        rptr_va: 0,
        wptr_va: 0,
        doorbell,
        enabled: true,
    };
    assert!(matches!(gpu.add_queue(QueueConfig { vmid: Vmid(16), ..good.clone() }), Err(GpuError::BadVmid(_))));
    for (ring_va, ring_bytes) in [(VA, 4095), (VA, 128), (VA, 0), (VA + 32, 4096), (!63, 4096)] {
        let config = QueueConfig { ring_va, ring_bytes, ..good.clone() };
        assert!(matches!(gpu.add_queue(config), Err(GpuError::BadRing { .. })));
    }
    let config = QueueConfig { rptr_va: VA + 4, ..good.clone() };
    assert!(matches!(gpu.add_queue(config), Err(GpuError::BadPointer(_))));
    template.slot.store(3, SeqCst);
    gpu.ring();
    assert!(matches!(rig.event(), Event::Error(QueueError::BadDoorbell { doorbell: 3, rptr: 0, .. })));
    // All slots: 256 queues, one is there. Each failure above gave its slot back.
    let ids: Vec<QueueId> = (1..MAX_QUEUES).map(|_| gpu.add_queue(good.clone()).unwrap()).collect();
    assert!(matches!(gpu.add_queue(good.clone()), Err(GpuError::NoQueue)));
    gpu.remove_queue(ids[100]).unwrap();
    gpu.add_queue(good).unwrap();
}
