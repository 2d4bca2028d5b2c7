// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HW_ID names a compute unit to each wave: one of those that the GPU has.

use crate::kernels::{load, replace, storing, Dispatch, Kernel};
use crate::rig::*;
use std::collections::BTreeSet;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

/// Each work-group stores its HW_ID at its place in the list that is the argument.
// s_getreg_b32 s6, hwreg(HW_REG_HW_ID)
const STORE_HW_ID: [u32; 10] = storing(0xb886_f804);
const GROUPS: u32 = 256;

/// The units that so many groups were on: engine, array and unit of gfx900's HW_ID.
fn used(units: Units, broken: bool) -> BTreeSet<[u32; 3]> {
    let rig = Rig::with(Config { threads: 1, units, ..Config::default() }, false);
    rig.gpu.sabotage().turn(Switch::OtherUnits, broken);
    load(&rig);
    replace(&rig, Kernel::Count, &STORE_HW_ID);
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
