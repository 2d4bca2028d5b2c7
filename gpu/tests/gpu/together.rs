// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Groups that end soon have successors within one access.

use crate::kernels::{load, Dispatch, Kernel, CODE, SLOT};
use crate::rig::*;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

/// Each work-group stores its number, counted from one, at its place in the list that is the
/// argument.
const STORE_NUMBER: [u32; 10] = [
    // s_load_dwordx2 s[4:5], s[0:1], 0x0
    0xc006_0100,
    0,
    // s_add_u32 s6, s2, 1
    0x8006_8102,
    // s_lshl_b32 s3, s2, 2; v_mov_b32 v1, s6; v_mov_b32 v2, s3; s_waitcnt lgkmcnt(0)
    0x8e03_8202,
    0x7e02_0206,
    0x7e04_0203,
    0xbf8c_c07f,
    // global_store_dword v2, v1, s[4:5]; s_endpgm
    0xdc70_8000,
    0x0004_0102,
    0xbf81_0000,
];
const GROUPS: u32 = 900;

/// How many groups have not stored their numbers. The last one has fewer waves than the others.
fn missing(threads: usize, broken: bool) -> usize {
    let rig = Rig::with(Config { threads, ..Config::default() }, false);
    rig.gpu.sabotage().turn(Switch::LostGroups, broken);
    load(&rig);
    let bytes: Vec<u8> = STORE_NUMBER.iter().flat_map(|word| word.to_le_bytes()).collect();
    rig.write(CODE + Kernel::Count as u64 * SLOT, &bytes);
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
