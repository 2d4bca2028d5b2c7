// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What clients can make a GPU hold: waves that wait, and kernel objects that the profile knows.

use crate::kernels::{load, rig, Dispatch, Kernel};
use crate::rig::*;
use std::time::Duration;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

/// Groups of 64 KiB of LDS that a GPU takes: one of each compute unit.
const UNITS: u32 = 64;

/// A launch of many groups, each of which counts itself at `counter` and then waits for ever.
fn waiting(queue: &mut TestQueue, number: u64, counter: u64) {
    let [low, high] = split(VA + counter);
    let meet = Dispatch { lds: 65536, number, ..Dispatch::new(Kernel::Meet, 64 * 10_000, 64) };
    queue.rig.write_u64(counter, 0);
    meet.submit(queue, &[low, high, u32::MAX, 1, low, high]);
}

/// Groups that have begun of two queues' launches, the first of which has all that there is room
/// for. Of the second one more than a group begins where each has a GPU for itself (`alone`).
fn two_launches(rig: &Rig, alone: bool) -> [u32; 2] {
    let counters = [DATA, DATA + 4096];
    let mut first = rig.queue(QueueKind::Aql);
    waiting(&mut first, 0, counters[0]);
    until("the first launch fills the GPU", || rig.read_u32(counters[0]) == UNITS);
    let mut second = rig.queue_at(QueueKind::Aql, 0x60000);
    waiting(&mut second, 1, counters[1]);
    until("the second one begins", || rig.read_u32(counters[1]) > u32::from(alone));
    if !alone {
        // Time in which more would begin.
        std::thread::sleep(Duration::from_millis(200));
    }
    let begun = counters.map(|counter| rig.read_u32(counter));
    first.remove();
    if begun[1] == 1 {
        until("the second one has the room of the first", || rig.read_u32(counters[1]) == UNITS);
    }
    second.remove();
    begun
}

#[test]
fn queues_share_the_registers_and_lds_of_one_gpu() {
    for threads in [1, 3] {
        assert_eq!(two_launches(&rig(threads, false), false), [UNITS, 1]);
    }
}

#[test]
fn launches_that_do_not_share_hold_a_gpu_each() {
    let rig = rig(1, false);
    rig.gpu.sabotage().turn(Switch::LoneLaunches, true);
    let [first, second] = two_launches(&rig, true);
    assert_eq!(first, UNITS);
    assert!(second > 1, "{second}");
}

/// Kernel objects that are known after a launch, and after the end of its address space.
fn objects(broken: bool) -> [usize; 2] {
    let rig = Rig::new();
    if broken {
        rig.gpu.sabotage().turn(Switch::KeptObjects, true);
    }
    load(&rig);
    let mut queue = rig.queue(QueueKind::Aql);
    let [low, high] = split(VA + DATA);
    Dispatch::new(Kernel::Count, 64, 64).run(&mut queue, &[low, high]);
    let known = rig.gpu.profile().objects();
    queue.remove();
    rig.gpu.set_root(VMID, None, false);
    [known, rig.gpu.profile().objects()]
}

#[test]
fn kernel_objects_go_with_their_address_space() {
    assert_eq!(objects(false), [1, 0]);
    assert_eq!(objects(true), [1, 1]);
}
