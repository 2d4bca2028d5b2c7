// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A strict GPU ends a kernel where hardware would leave something undone.

use crate::kernels::{load, replace, Dispatch, Kernel};
use crate::rig::*;
use vkfd_gpu::isa::Target as Isa;
use vkfd_gpu::memory::pte::Target;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

/// Adds 1.0 at the first argument, from each work-item, in gfx90a's code.
const ADD_FLOAT: [u32; 8] = [
    // s_load_dwordx2 s[4:5], s[0:1], 0x0
    0xc006_0100,
    0,
    // v_mov_b32 v2, 0; v_mov_b32 v1, 1.0; s_waitcnt lgkmcnt(0)
    0x7e04_0280,
    0x7e02_02f2,
    0xbf8c_c07f,
    // global_atomic_add_f32 v2, v1, s[4:5]; s_endpgm
    0xdd34_8000,
    0x0004_0102,
    0xbf81_0000,
];
/// GPU address of a page of VRAM.
const LOCAL: u64 = 0x5000_0000_0000;

fn machine(strict: bool) -> Rig {
    let config = Config { threads: 1, strict, target: Some(Isa::Gfx90a), ..Config::default() };
    let rig = Rig::with(config, false);
    load(&rig);
    replace(&rig, Kernel::Count, &ADD_FLOAT);
    rig.map(LOCAL, Target::Vram(rig.fabric(32 << 20)), RWX, 0);
    rig
}

/// Launches it on the word at `va`.
fn add(queue: &mut TestQueue, va: u64, wait: bool) {
    let count = Dispatch::new(Kernel::Count, 64, 64);
    count.submit(queue, &split(va));
    if wait {
        count.wait(queue.rig);
    }
}

#[test]
fn sums_of_floats_in_host_memory_are_refused_by_name() {
    let rig = machine(true);
    let mut queue = rig.queue(QueueKind::Aql);
    add(&mut queue, LOCAL, true);
    assert_eq!(
        rig.gpu.vram().read_u64(32 << 20).unwrap(),
        u64::from(64f32.to_bits()),
        "its own memory is another matter"
    );
    rig.write_u64(DATA, 0);
    add(&mut queue, VA + DATA, false);
    let event = rig.event();
    let Event::Error(QueueError::Kernel { cause, at, .. }) = event else { panic!("{event:?}") };
    assert_eq!(cause, KernelError::HostAtomic { name: "global_atomic_add_f32".into(), va: VA + DATA });
    assert_eq!(at.offset, 20);
    assert_eq!(rig.read_u64(DATA), 0);
}

#[test]
fn other_gpus_and_broken_ones_do_them() {
    let broken = machine(true);
    broken.gpu.sabotage().turn(Switch::Lenient, true);
    for rig in [machine(false), broken] {
        adds(&rig);
    }
}

fn adds(rig: &Rig) {
    let mut queue = rig.queue(QueueKind::Aql);
    rig.write_u64(DATA, 0);
    add(&mut queue, VA + DATA, true);
    assert_eq!(rig.read_u64(DATA), u64::from(64f32.to_bits()));
}
