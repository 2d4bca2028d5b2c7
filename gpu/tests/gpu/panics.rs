// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A panic of a GPU's thread halts its queue, and nobody waits for the thread.

use crate::kernels::{load, Dispatch, Kernel};
use crate::rig::*;
use std::sync::mpsc::channel;
use std::time::Duration;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

/// Where the switch makes a thread panic: a packet processor's access; a kernel's on the queue's
/// own thread; a kernel's on another thread.
const PLACES: [u64; 3] = [1, 2, 3];

fn machine() -> Rig {
    let rig = Rig::with(Config { threads: 3, ..Config::default() }, false);
    load(&rig);
    rig
}

/// Makes a thread of a new queue panic; the queue, which has halted.
fn panicked(rig: &Rig, place: u64) -> TestQueue<'_> {
    let kind = if place == 1 { QueueKind::Sdma } else { QueueKind::Aql };
    let mut queue = rig.queue(kind);
    rig.gpu.sabotage().turn_on_with(Switch::Panic, place);
    if place == 1 {
        queue.submit(&[0]);
    } else {
        Dispatch::new(Kernel::Forever, 64 * 1000, 64).submit(&mut queue, &[]);
    }
    let event = rig.event();
    rig.gpu.sabotage().turn(Switch::Panic, false);
    let Event::Error(error @ QueueError::Panicked { .. }) = event else { panic!("{event:?}") };
    assert!(error.to_string().contains("panicked") && error.to_string().contains("provoked"), "{error}");
    queue
}

#[test]
fn a_panic_halts_its_queue_and_no_other() {
    for place in PLACES {
        let rig = machine();
        let queue = panicked(&rig, place);
        // Whatever waits for accesses ends.
        rig.gpu.suspend(VMID);
        rig.gpu.resume(VMID);
        rig.gpu.flush_tlb(VMID);
        rig.gpu.update_queue(queue.id, VA, RING_BYTES, false).unwrap();
        let [low, high] = split(VA + DATA);
        let mut other = rig.queue_at(QueueKind::Aql, 0x60000);
        for number in [1, 2] {
            rig.write_u64(DATA, 0);
            let count = Dispatch { number, ..Dispatch::new(Kernel::Count, 64 * 1000, 64) };
            count.run(&mut other, &[low, high]);
            assert_eq!(rig.read_u32(DATA), 1000 * (64 * 65 / 2), "{place}");
        }
        queue.remove();
        other.remove();
    }
}

#[test]
fn an_access_that_stays_open_is_waited_for() {
    let rig = machine();
    rig.gpu.sabotage().turn(Switch::OpenSlot, true);
    let queue = panicked(&rig, 1);
    let (done, suspended) = channel();
    let gpu = rig.gpu.clone();
    let thread = std::thread::spawn(move || {
        gpu.suspend(VMID);
        done.send(()).unwrap();
    });
    assert!(suspended.recv_timeout(Duration::from_millis(300)).is_err(), "nothing has ended the access");
    // Its slot goes with the queue's thread.
    queue.remove();
    suspended.recv_timeout(HANG).unwrap();
    thread.join().unwrap();
}
