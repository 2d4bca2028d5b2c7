// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HW_ID names a compute unit to each wave: one of those that the GPU has.

use crate::kernels::{load, Dispatch, Kernel, CODE, SLOT};
use crate::rig::*;
use std::collections::BTreeSet;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

/// Each work-group stores its HW_ID at its place in the list that is the argument.
const STORE_HW_ID: [u32; 10] = [
    // s_load_dwordx2 s[4:5], s[0:1], 0x0
    0xc006_0100,
    0,
    // s_getreg_b32 s6, hwreg(HW_REG_HW_ID)
    0xb886_f804,
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
const GROUPS: u32 = 256;

/// The units that so many groups were on: engine, array and unit of gfx900's HW_ID.
fn used(units: Units, broken: bool) -> BTreeSet<[u32; 3]> {
    let rig = Rig::with(Config { threads: 1, units, ..Config::default() }, false);
    rig.gpu.sabotage().turn(Switch::OtherUnits, broken);
    load(&rig);
    let bytes: Vec<u8> = STORE_HW_ID.iter().flat_map(|word| word.to_le_bytes()).collect();
    rig.write(CODE + Kernel::Count as u64 * SLOT, &bytes);
    let mut queue = rig.queue(QueueKind::Aql);
    let count = Dispatch::new(Kernel::Count, 64 * GROUPS, 64);
    count.submit(&mut queue, &split(VA + DATA));
    count.wait(queue.rig);
    let ids = (0..u64::from(GROUPS)).map(|group| rig.read_u32(DATA + 4 * group));
    ids.map(|id| [id >> 13 & 3, id >> 12 & 1, id >> 8 & 15]).collect()
}

#[test]
fn waves_are_on_the_units_that_the_gpu_has() {
    for units in [
        Units::VEGA10,
        Units { count: 8, ..Units::VEGA10 },
        Units { count: 6, engines: 3, arrays: 1, waves: 40 },
        Units { count: 1, engines: 1, arrays: 1, waves: 40 },
    ] {
        let places = (0..units.count).map(|number| units.place(number));
        let expected: BTreeSet<_> = places.map(|at| [at.engine, at.array, at.unit]).collect();
        assert_eq!(expected.len(), units.count as usize);
        assert_eq!(used(units, false), expected, "{units:?}");
    }
}

#[test]
fn waves_on_units_that_are_not_there_are_noticed() {
    let eight = Units { count: 8, ..Units::VEGA10 };
    assert_eq!(used(eight, true).len(), 64);
}
