// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Orders of waves. A kernel adds two lists into the first one, a wave's width further on. So each
//! wave reads the results of the wave before it, and all results tell in which order waves ran.

use crate::kernels::{load, Dispatch, Kernel};
use crate::rig::*;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

const ITEMS: u32 = 16 * 256;
const WAVE_BYTES: u64 = 4 * 64;

/// What the lists are after the kernel ran on one thread.
fn ran(schedule: Schedule, broken: bool) -> Vec<u8> {
    let rig = Rig::with(Config { schedule, threads: 1, ..Config::default() }, false);
    rig.gpu.sabotage().turn(Switch::UsualOrder, broken);
    load(&rig);
    let mut queue = rig.queue(QueueKind::Aql);
    let bytes = 4 * ITEMS as usize;
    rig.write(DATA, &vec![0; bytes + 256]);
    let ones: Vec<u8> = (0..ITEMS).flat_map(|_| 1u32.to_le_bytes()).collect();
    rig.write(DATA + 0x10000, &ones);
    let lists = [DATA, DATA + 0x10000, DATA + WAVE_BYTES];
    let arguments: Vec<u32> = lists.iter().flat_map(|at| split(VA + at)).chain([ITEMS, 256]).collect();
    Dispatch::new(Kernel::Add, ITEMS, 256).run(&mut queue, &arguments);
    queue.remove();
    rig.read(DATA, bytes)
}

#[test]
fn a_number_chooses_an_order_of_its_own() {
    let usual = ran(Schedule::Usual, false);
    let chain: Vec<u8> = (0..ITEMS).flat_map(|item| (item / 64).to_le_bytes()).collect();
    assert_eq!(usual, chain, "each wave in turn");
    let orders: Vec<_> = (0..4).map(|seed| ran(Schedule::Random(seed), false)).collect();
    for (seed, order) in (0..).zip(&orders) {
        assert_ne!(*order, usual);
        assert_eq!(*order, ran(Schedule::Random(seed), false));
        assert_eq!(orders.iter().filter(|other| *other == order).count(), 1, "{seed}");
    }
}

#[test]
fn the_usual_order_instead_is_noticed() {
    let usual = ran(Schedule::Usual, false);
    assert_eq!(ran(Schedule::Random(1), true), usual);
}
