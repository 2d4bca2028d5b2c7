// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Superblocks against the reference engine. Side exits are at any place, parts are jumped over,
//! loads miss, waves are suspended, and code changes.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

use crate::rings::{compares, differences, engine, engine_with, RESTORE, SAVE};
use crate::support::{Numbers, BASE};
use crate::translated::{body, compare, listing, local, programs, start, widths, Case, DATA, END};
use vkfd_cu::fast::native::{Accesses, Width};
use vkfd_cu::{reference, Exit, Flat};
use vkfd_isa::Target;
use vkfd_sabotage::{Switch, Switches};

/// s_branch over one word, and that word: no lane does it.
const JUMP: [u32; 2] = [0xbf82_0001, 0xbf80_0000];

/// s20 rounds of parts, with branches by SCC, VCC and EXEC between them.
fn parts(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    let some = |numbers: &mut Numbers| {
        let length = numbers.below(7) as usize;
        body(target, numbers, length, (true, true, true))
    };
    let mut code = some(numbers);
    for _ in 0..1 + numbers.below(4) {
        let part = some(numbers);
        let behind = part.len() as u32;
        let kind = numbers.below(5) as u32;
        match kind {
            0 => code.extend(JUMP),
            // s_cmp_lt_u32 s20, s4; s_cbranch_scc0 or scc1
            1 => code.extend([0xbf0a_0414, 0xbf84_0000 | (numbers.below(2) as u32) << 16 | behind]),
            // s_cbranch_vccz or vccnz
            2 => code.extend([compares(numbers), 0xbf86_0000 | (numbers.below(2) as u32) << 16 | behind]),
            // s_and_saveexec_b64; s_cbranch_execz or execnz
            _ => code.extend([compares(numbers), SAVE, 0xbf88_0000 | (kind & 1) << 16 | behind]),
        }
        code.extend(part);
        if kind > 2 {
            code.push(RESTORE);
        }
    }
    code.extend(some(numbers));
    // s_sub_u32 s20, s20, 1; s_cmp_lg_u32 s20, 0; s_cbranch_scc1
    code.extend([0x8094_8114, 0xbf07_8014]);
    code.push(0xbf85_0000 | (code.len() as u32 + 1).wrapping_neg() & 0xffff);
    code.push(END);
    code
}

const SUPERBLOCK: Case =
    Case { target: Target::Gfx900, lanes: 64, count: 0, seed: 41, budget: 1 << 20, program: parts };

#[test]
fn superblocks_are_the_reference_s() {
    for width in widths() {
        for (target, seed, budget) in [
            (Target::Gfx900, 41, 1 << 20),
            (Target::Gfx90a, 42, 1 << 20),
            (Target::Gfx900, 43, 64),
            (Target::Gfx900, 44, 300),
        ] {
            let mut engine = engine(target, width, false);
            let count = programs(150);
            match compare(&mut engine, Case { target, seed, budget, count, ..SUPERBLOCK }) {
                Ok(report) => assert!(report.superblocks > count, "of {count}: {report:?}"),
                Err(text) => panic!("{target} {width:?}: {text}"),
            }
        }
    }
}

#[test]
fn a_superblock_that_is_not_left_in_its_middle_is_noticed() {
    for width in widths() {
        let mut engine = engine(Target::Gfx900, width, false);
        engine.sabotage(Switches::NONE.with(Switch::ClosedSuperblock));
        // It ends with the first program that shows it.
        assert!(compare(&mut engine, Case { count: 1000, ..SUPERBLOCK }).is_err(), "{width:?}");
    }
}

#[test]
fn checks_look_at_the_branches_of_paths() {
    let cases: Vec<Case> = (0..20).map(|seed| Case { count: 10, seed, ..SUPERBLOCK }).collect();
    let (checked, wrong) = differences(&cases, Switches::NONE);
    assert!(checked > 100 && wrong == 0, "{checked} {wrong}");
    assert_ne!(differences(&cases, Switches::NONE.with(Switch::ClosedSuperblock)).1, 0);
}

/// The first lane of v0 behind code whose second block adds `by`, which another program has changed
/// after eight waves.
fn patched(width: Width, sabotage: Switches) -> [u32; 2] {
    // v_mov_b32 v0, 0; s_cmp_eq_u32 s20, 0; s_cbranch_scc1; v_add_u32 v0, by, v0
    let code = |by: u32| [0x7e00_0280, 0xbf06_8014, 0xbf85_0001, 0x6800_0080 | by, END];
    let mut world = Flat::new(BASE, 4);
    world.write(DATA, &[0; 64]);
    let mut engine = engine(Target::Gfx900, width, false);
    engine.sabotage(sabotage);
    let results = [1, 2].map(|by| {
        world.write_words(BASE, &code(by));
        engine.invalidate();
        let mut result = 0;
        for _ in 0..8 {
            let mut wave = start(Target::Gfx900, &mut Numbers(3), 64);
            wave.scalar[20] = 1;
            wave.set_pair(vkfd_isa::Operand::EXEC, u64::MAX);
            let mut expected = wave.clone();
            let exit = engine.run(&mut wave, &mut local(), &mut world, 1 << 20);
            assert_eq!(exit, Exit::End, "{}", listing(Target::Gfx900, &code(by)));
            assert_eq!(reference::run(&mut expected, &mut local(), &mut world, 1 << 20), Exit::End);
            assert_eq!(expected.rows[0].0[0], by);
            result = wave.rows[0].0[0];
        }
        result
    });
    assert_ne!(engine.translated().superblocks, 0);
    results
}

#[test]
fn code_that_has_changed_drops_its_path() {
    for width in widths() {
        assert_eq!(patched(width, Switches::NONE), [1, 2]);
        assert_ne!(patched(width, Switches::NONE.with(Switch::KeptSuperblock)), [1, 2], "{width:?}");
    }
}

/// The word that a wave stores behind a side exit, where the waves before it have ended.
fn stored(width: Width, sabotage: Switches) -> u32 {
    // v_mov_b32 v0, 1; v_add_u32 v0, 2, v0, four times; s_cmp_eq_u32 s20, 0; s_cbranch_scc1 over
    // the end; global_store_dword v[2:3], v0, off
    let mut code = vec![0x7e00_0281];
    code.extend([0x6800_0082; 4]);
    code.extend([0xbf06_8014, 0xbf85_0001, END, 0xdc70_8000, 0x007f_0002, END]);
    let mut world = Flat::new(BASE, 4);
    world.write(DATA, &[0; 64]);
    world.write_words(BASE, &code);
    // Rows of waves that end are not kept.
    let mut engine = engine_with(Target::Gfx900, width, Accesses::Last, false);
    engine.sabotage(sabotage);
    for rounds in [1; 8].into_iter().chain([0]) {
        let mut wave = start(Target::Gfx900, &mut Numbers(3), 64);
        (wave.scalar[20], wave.mode) = (rounds, vkfd_cu::Mode::DEFAULT);
        (wave.rows[2].0, wave.rows[3].0) = ([DATA as u32; 64], [(DATA >> 32) as u32; 64]);
        wave.set_pair(vkfd_isa::Operand::EXEC, u64::MAX);
        let exit = engine.run(&mut wave, &mut local(), &mut world, 1 << 20);
        assert_eq!(exit, Exit::End, "{}", listing(Target::Gfx900, &code));
    }
    assert_ne!(engine.translated().superblocks, 0);
    u32::from_le_bytes(world.read(DATA, 4).try_into().unwrap())
}

#[test]
fn rows_are_kept_for_a_side_exit_before_the_end() {
    for width in widths() {
        assert_eq!(stored(width, Switches::NONE), 9, "{width:?}");
        assert_eq!(stored(width, Switches::NONE.with(Switch::ClosedSuperblock)), 0, "{width:?}");
    }
}
