// SPDX-License-Identifier: GPL-2.0 OR MIT
//! For how long a GPU has worked, and for how many waves.

use crate::kernels::{rig, Dispatch, Kernel};
use crate::rig::*;
use std::time::Instant;
use vkfd_gpu::*;
use vkfd_sabotage::{Switch, Switches};

#[test]
fn a_gpu_works_as_long_as_a_kernel_is_on_it() {
    let rig = rig(2, false);
    assert_eq!(rig.gpu.work(), Work::default());
    let mut queue = rig.queue(QueueKind::Aql);
    rig.write_u64(DATA, 0);
    let [low, high] = split(VA + DATA);
    Dispatch::new(Kernel::Count, 64, 64).run(&mut queue, &[low, high]);
    let first = rig.gpu.work();
    assert!(!first.now && first.nanoseconds > 0, "{first:?}");
    Dispatch::new(Kernel::Forever, 64, 64).submit(&mut queue, &[]);
    let begun = Instant::now();
    while !rig.gpu.work().now {
        assert!(begun.elapsed() < HANG);
        std::thread::yield_now();
    }
    // It counts while the kernel runs.
    let before = rig.gpu.work();
    while rig.gpu.work().nanoseconds == before.nanoseconds {
        assert!(begun.elapsed() < HANG);
    }
    queue.remove();
    let ended = rig.gpu.work();
    assert!(!ended.now && ended.nanoseconds > first.nanoseconds, "{ended:?}");
    assert_eq!(rig.gpu.work(), ended);
}

/// For how long kernels ran, for the address space that has them and for another.
fn kernels_of_both(rig: &Rig) -> [u64; 2] {
    let mut queue = rig.queue(QueueKind::Aql);
    rig.write_u64(DATA, 0);
    let [low, high] = split(VA + DATA);
    Dispatch::new(Kernel::Count, 64, 64).run(&mut queue, &[low, high]);
    [VMID, Vmid(VMID.0 + 1)].map(|vmid| rig.gpu.work_of(vmid).0.nanoseconds)
}

#[test]
fn each_address_space_has_the_time_of_its_own_kernels() {
    let rig = rig(2, false);
    let [own, other] = kernels_of_both(&rig);
    assert!(own > 0 && other == 0, "{own} {other}");
    assert!(rig.gpu.work().nanoseconds >= own, "the GPU's is that of all");
    // The control.
    rig.gpu.sabotage().set(Switches::from(Switch::WorkOfAll));
    let [own, other] = kernels_of_both(&rig);
    assert_eq!(own, other);
}

#[test]
fn the_time_of_copies_is_that_of_sdma_queues() {
    let rig = Rig::new();
    let copies = |vmid: Vmid| rig.gpu.work_of(vmid).1;
    assert_eq!(copies(VMID), 0);
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + DATA, VA + DATA + 0x1000, 4096));
    queue.wait();
    assert!(copies(VMID) > 0);
    assert_eq!((copies(Vmid(VMID.0 + 1)), rig.gpu.work_of(VMID).0), (0, Work::default()));
}

/// Waves of a kernel that does not end, for the address space that has it and for another.
fn waves_of_both(rig: &Rig) -> [u64; 2] {
    let waves = || [VMID, Vmid(VMID.0 + 1)].map(|vmid| rig.gpu.waves_of(vmid));
    let mut queue = rig.queue(QueueKind::Aql);
    // Three groups of two waves.
    Dispatch::new(Kernel::Forever, 3 * 128, 128).submit(&mut queue, &[]);
    let begun = Instant::now();
    while waves()[0] < 6 {
        assert!(begun.elapsed() < HANG, "{:?}", waves());
        std::thread::yield_now();
    }
    let now = waves();
    queue.remove();
    assert_eq!(waves(), [0, 0], "none is left of a queue that was removed");
    now
}

#[test]
fn each_address_space_has_its_own_waves() {
    let rig = rig(2, false);
    assert_eq!(rig.gpu.waves_of(VMID), 0);
    assert_eq!(waves_of_both(&rig), [6, 0]);
    // The control.
    rig.gpu.sabotage().set(Switches::from(Switch::WorkOfAll));
    assert_eq!(waves_of_both(&rig), [6, 6]);
}
