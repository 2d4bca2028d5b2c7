// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loads of tiles of a matrix: runs of lanes side by side, each run anywhere. Runs go on in the
//! next page, which lies elsewhere on the host, and offsets of 32 bits begin anew within a run.

#![allow(clippy::cast_possible_truncation, reason = "registers are bit patterns")]

use crate::support;

use support::{group, wave, Numbers, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Wave};
use vkfd_isa::{Operand, Target};
use vkfd_sabotage::{Switch, Switches};

const DATA: u64 = BASE + 4096;
const PAGES: u64 = 12;
/// Where offsets count from: in the middle of a page.
const BEGIN: u64 = 0x420;
const LOADED: usize = 4;

/// Loads of one, two and four words, by s[4:7] or s[2:3], to v[4:7], and an end.
fn programs(target: Target) -> Vec<[u32; 3]> {
    let (buffer, global) = if target.is_gfx9() {
        ([0xe050_1000, 0xe054_1000, 0xe05c_1000], [0xdc50_8000, 0xdc54_8000, 0xdc5c_8000])
    } else {
        ([0xe030_1000, 0xe034_1000, 0xe038_1000], [0xdc30_8000, 0xdc34_8000, 0xdc38_8000])
    };
    let buffers = buffer.map(|word| [word, 0x8001_0400, 0xbf81_0000]);
    let globals = global.map(|word| [word, 0x0402_0000, 0xbf81_0000]);
    buffers.into_iter().chain(globals).collect()
}

/// From here to the end of 32 bits.
const WRAPS: u32 = 0x8000;

/// Where each lane's words are, from `far` on.
fn offsets(numbers: &mut Numbers, bytes: u32, far: u32) -> [u32; 64] {
    let run = [4, 8, 16, 64][numbers.below(4) as usize];
    let grain = [4, 16, 64, 256][numbers.below(4) as usize];
    // Few runs, but some, go on beyond 32 bits.
    let room = if far == 0 { PAGES * 4096 - BEGIN - u64::from(64 * bytes) } else { WRAPS.into() };
    let mut start = 0;
    std::array::from_fn(|lane| {
        if lane % run == 0 {
            start = (numbers.below(room / grain) * grain) as u32;
        }
        far.wrapping_add(start).wrapping_add(bytes * (lane % run) as u32)
    })
}

/// Loads random tiles on both engines: how many, and whether the engines agree on all.
fn compare(target: Target, lanes: u8, sabotage: Switches) -> (u32, bool) {
    let mut numbers = Numbers(3);
    let mut world = Flat::new(BASE, 1 + PAGES as usize);
    world.scatter();
    world.write(DATA, &numbers.bytes(4096 * PAGES as usize));
    let mut engine = Engine::new(target);
    engine.sabotage(sabotage);
    let (mut loaded, mut agree) = (0, true);
    for (number, program) in programs(target).into_iter().enumerate() {
        world.write_words(BASE, &program);
        engine.invalidate();
        for _ in 0..1000 {
            let far = if numbers.below(3) == 0 { WRAPS.wrapping_neg() } else { 0 };
            let base = (DATA + BEGIN).wrapping_sub(far.into());
            let mut start: Wave = wave(target);
            (start.pc, start.lanes) = (BASE, lanes);
            start.set_pair(Operand::EXEC, u64::MAX);
            start.set_pair(2, base);
            start.set_pair(4, base);
            start.set_pair(6, u32::MAX.into());
            start.rows[0].0 = offsets(&mut numbers, 4 << (number % 3), far);
            let (mut expected, mut found) = (start.clone(), start);
            let exit = reference::run(&mut expected, &mut group(0), &mut world, 100);
            let same = engine.run(&mut found, &mut group(0), &mut world, 100) == exit;
            let of =
                |wave: &Wave| wave.rows[LOADED..2 * LOADED].iter().map(|row| row.0[..lanes.into()].to_vec()).collect();
            let [expected, found]: [Vec<Vec<u32>>; 2] = [of(&expected), of(&found)];
            agree &= same && expected == found;
            loaded += u32::from(exit == Exit::End);
        }
    }
    (loaded, agree)
}

#[test]
fn tiles_are_the_reference_s() {
    for (target, lanes) in [(Target::Gfx900, 64), (Target::Gfx1030, 32), (Target::Gfx1030, 64)] {
        let (loaded, agree) = compare(target, lanes, Switches::NONE);
        assert!(agree, "{target}: {lanes} lanes");
        assert!(loaded > 4000, "{target}: {loaded} loads did not miss");
    }
}

#[test]
fn tiles_that_are_taken_for_lines_are_noticed() {
    assert!(!compare(Target::Gfx900, 64, Switches::NONE.with(Switch::GuessedShape)).1);
}
