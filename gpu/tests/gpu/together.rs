// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Groups that end soon have successors within one access.

use crate::kernels::{load, replace, storing, Dispatch, Kernel};
use crate::rig::*;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

/// Each work-group stores its number, counted from one, at its place in the list that is the
/// argument.
// s_add_u32 s6, s2, 1
const STORE_NUMBER: [u32; 10] = storing(0x8006_8102);
const GROUPS: u32 = 900;

/// How many groups have not stored their numbers. The last one has fewer waves than the others.
fn missing(threads: usize, broken: bool) -> usize {
    let rig = Rig::with(Config { threads, ..Config::default() }, false);
    rig.gpu.sabotage().turn(Switch::LostGroups, broken);
    load(&rig);
    replace(&rig, Kernel::Count, &STORE_NUMBER);
    rig.write(DATA, &vec![0; 4 * GROUPS as usize]);
    let mut queue = rig.queue(QueueKind::Aql);
    let count = Dispatch::new(Kernel::Count, 256 * GROUPS - 150, 256);
    count.submit(&mut queue, &split(VA + DATA));
    count.wait(queue.rig);
    (0..GROUPS).filter(|group| rig.read_u32(DATA + 4 * u64::from(*group)) != group + 1).count()
}

#[test]
fn each_of_many_short_groups_runs() {
    for threads in [1, 2, 4] {
        assert_eq!(missing(threads, false), 0, "{threads} threads");
    }
}

#[test]
fn groups_that_are_left_out_are_noticed() {
    assert_ne!(missing(1, true), 0);
}
