// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loads and stores whose lanes are in a page each, in a loop. The engine keeps the pages of an
//! access's lanes, and lanes go on to other pages one after the other.

#![allow(clippy::cast_possible_truncation, reason = "numbers below 251")]

use crate::support;

use support::{group, wave, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Group, Wave};
use vkfd_isa::{Operand, Target};
use vkfd_sabotage::{Switch, Switches};

const DATA: u64 = BASE + 4096;
/// Half of them are read, the others are written.
const PAGES: usize = 256;
const ROUNDS: u32 = 300;

/// The loop has too little beside its accesses to be translated.
const PROGRAM: [u32; 13] = [
    // global_load_dword v2, v0, s[2:3]; s_waitcnt vmcnt(0); v_mad_u32_u24 v3, v3, 3, v2
    0xdc50_8000,
    0x0202_0000,
    0xbf8c_0f70,
    0xd1c3_0003,
    0x0409_0703,
    // global_store_dword v1, v3, s[2:3]
    0xdc70_8000,
    0x0002_0301,
    // v_add_u32 v0, 52, v0; v_add_u32 v1, 44, v1
    0x6800_00b4,
    0x6802_02ac,
    // s_sub_u32 s4, s4, 1; s_cmp_lg_u32 s4, 0; s_cbranch_scc1 back; s_endpgm
    0x8084_8104,
    0xbf07_8004,
    0xbf85_fff4,
    0xbf81_0000,
];

/// Runs the loop: the memory behind it.
fn run(execute: impl FnOnce(&mut Wave, &mut Group, &mut Flat) -> Exit) -> Vec<u8> {
    let mut world = Flat::new(BASE, 1 + PAGES);
    world.scatter();
    let numbers: Vec<u8> = (0..4096 * PAGES).map(|n| (n % 251) as u8).collect();
    world.write(DATA, &numbers);
    world.write_words(BASE, &PROGRAM);
    let mut wave = wave(Target::Gfx900);
    wave.pc = BASE;
    wave.set_pair(2, DATA);
    wave.scalar[4] = ROUNDS;
    wave.set_pair(Operand::EXEC, u64::MAX);
    for lane in 0..64u32 {
        let own = lane as usize;
        wave.rows[0].0[own] = lane * 4096 + lane % 17 * 4;
        wave.rows[1].0[own] = (PAGES as u32 / 2 + lane) * 4096 + lane % 13 * 8;
    }
    assert_eq!(execute(&mut wave, &mut group(0), &mut world), Exit::End);
    world.read(DATA, 4096 * PAGES)
}

fn run_fast(sabotage: Switches) -> Vec<u8> {
    let mut engine = Engine::new(Target::Gfx900);
    engine.sabotage(sabotage);
    run(|wave, group, world| engine.run(wave, group, world, 1 << 20))
}

#[test]
fn lanes_that_go_on_to_other_pages_are_the_reference_s() {
    let expected = run(|wave, group, world| reference::run(wave, group, world, 1 << 20));
    assert!(run_fast(Switches::NONE) == expected);
}

#[test]
fn lanes_in_the_pages_of_the_time_before_are_noticed() {
    assert!(run_fast(Switches::NONE.with(Switch::KeptLanes)) != run_fast(Switches::NONE));
}
