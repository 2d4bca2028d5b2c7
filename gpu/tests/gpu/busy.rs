// SPDX-License-Identifier: GPL-2.0 OR MIT
//! For how long a GPU has worked.

use crate::kernels::{rig, Dispatch, Kernel};
use crate::rig::*;
use std::time::Instant;
use vkfd_gpu::*;

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
