// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loops of several blocks, translated as one, against the reference engine: parts that some lanes
//! leave out, lanes that leave one by one, and scalar branches in the middle.
#![cfg(target_arch = "x86_64")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "registers are bit patterns"
)]

use crate::support::random::REGISTERS;
use crate::support::{Numbers, BASE};
use crate::translated::{body, compare, listing, local, programs, start, widths, Case, DATA, END};
use vkfd_cu::fast::native::{Accesses, Translation, Width};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat};
use vkfd_isa::Target;
use vkfd_sabotage::{Switch, Switches};

/// s_and_saveexec_b64 s[12:13], vcc, and s_or_b64 exec, exec, s[12:13].
pub(crate) const SAVE: u32 = 0xbe8c_206a;
pub(crate) const RESTORE: u32 = 0x87fe_0c7e;

pub(crate) fn engine(target: Target, width: Width, is_checked: bool) -> Engine {
    engine_with(target, width, Accesses::All, is_checked)
}

pub(crate) fn engine_with(target: Target, width: Width, accesses: Accesses, is_checked: bool) -> Engine {
    let mut engine = Engine::new(target);
    // All blocks of a loop are known when the first one is hot.
    assert!(engine.translate(Translation { width, after: 3, accesses, is_checked, perf_map: false }));
    engine
}

/// v_cmp_lt_u32 vcc or its like.
pub(crate) fn compares(numbers: &mut Numbers) -> u32 {
    let register = |numbers: &mut Numbers| numbers.below(REGISTERS) as u32;
    0x3e << 25 | (0xc9 + numbers.below(6) as u32) << 17 | register(numbers) << 9 | (256 + register(numbers))
}

/// A loop of s20 rounds, in parts.
fn ring(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    let some = |numbers: &mut Numbers| {
        let length = numbers.below(5) as usize;
        body(target, numbers, length, (true, false, false))
    };
    let mut code = some(numbers);
    for _ in 0..1 + numbers.below(2) {
        let part = some(numbers);
        match numbers.below(3) {
            // s_cmp_lt_u32 s20, s4; s_cbranch_scc0
            0 => code.extend([0xbf0a_0414, 0xbf84_0000 | part.len() as u32]),
            _ => code.extend([compares(numbers), SAVE, 0xbf88_0000 | part.len() as u32]),
        }
        let is_masked = code[code.len() - 2] == SAVE;
        code.extend(part);
        if is_masked {
            code.push(RESTORE);
        }
        code.extend(some(numbers));
    }
    if numbers.below(2) == 0 {
        // Lanes leave: s_andn2_b64 exec, exec, vcc; s_cbranch_execz behind the loop.
        code.extend([compares(numbers), 0x89fe_6a7e, 0xbf88_0003]);
    }
    // s_sub_u32 s20, s20, 1; s_cmp_lg_u32 s20, 0; s_cbranch_scc1
    code.extend([0x8094_8114, 0xbf07_8014]);
    let back = -(code.len() as i16 + 1);
    code.push(0xbf85_0000 | u32::from(back as u16));
    code.push(END);
    code
}

const RING: Case = Case { target: Target::Gfx900, lanes: 64, count: 0, seed: 31, budget: 1 << 20, program: ring };

#[test]
fn loops_of_several_blocks_are_the_reference_s() {
    for width in widths() {
        for (target, seed, budget) in [
            (Target::Gfx900, 31, 1 << 20),
            (Target::Gfx90a, 32, 1 << 20),
            (Target::Gfx900, 33, 1),
            (Target::Gfx900, 34, 300),
        ] {
            let mut engine = engine(target, width, false);
            let count = programs(150);
            match compare(&mut engine, Case { target, seed, budget, count, ..RING }) {
                Ok(report) => assert!(12 * report.rings >= count, "of {count}: {report:?}"),
                Err(text) => panic!("{target} {width:?}: {text}"),
            }
        }
    }
}

#[test]
fn a_loop_that_is_not_left_in_its_middle_is_noticed() {
    for width in widths() {
        let mut engine = engine(Target::Gfx900, width, false);
        engine.sabotage(Switches::NONE.with(Switch::ClosedRing));
        // It ends with the first program that shows it.
        assert!(compare(&mut engine, Case { count: 1000, ..RING }).is_err(), "{width:?}");
    }
}

/// What checks find in programs: in how many comparisons, and how many differ. A case ends with the
/// first program whose results are others, whatever has broken it.
pub(crate) fn differences(cases: &[Case], sabotage: Switches) -> (u64, u64) {
    let (mut checked, mut wrong) = (0, 0);
    for width in widths() {
        for case in cases {
            let mut engine = engine(case.target, width, true);
            engine.sabotage(sabotage);
            let _ = compare(&mut engine, *case);
            let found = engine.differences();
            (checked, wrong) = (checked + found.checked, wrong + found.wrong);
        }
    }
    (checked, wrong)
}

#[test]
fn checks_look_at_loops_of_several_blocks() {
    let cases = [Case { count: 200, ..RING }];
    let (checked, wrong) = differences(&cases, Switches::NONE);
    assert!(checked > 100 && wrong == 0, "{checked} {wrong}");
    assert_ne!(differences(&cases, Switches::NONE.with(Switch::ClosedRing)).1, 0);
}

/// The first lane of v0 behind a loop whose second block adds `by`, which another program has
/// changed after the first wave.
fn patched(width: Width, sabotage: Switches) -> [u32; 2] {
    // v_add_u32 v1, 1, v1; v_cmp_ne_u32 vcc, 0, v2; s_and_saveexec; s_cbranch_execz; v_add_u32 v0,
    // by, v0; s_or; s_sub; s_cmp; s_cbranch_scc1
    let code = |by: u32| {
        [
            0x6802_0281,
            0x7d9a_0480,
            SAVE,
            0xbf88_0001,
            0x6800_0080 | by,
            RESTORE,
            0x8094_8114,
            0xbf07_8014,
            0xbf85_fff7,
            END,
        ]
    };
    let mut world = Flat::new(BASE, 4);
    world.write(DATA, &[0; 64]);
    let mut engine = engine(Target::Gfx900, width, false);
    engine.sabotage(sabotage);
    let results = [1, 2].map(|by| {
        world.write_words(BASE, &code(by));
        engine.invalidate();
        let mut wave = start(Target::Gfx900, &mut Numbers(3), 64);
        (wave.rows[0].0, wave.rows[2].0, wave.scalar[20]) = ([0; 64], [1; 64], 40);
        wave.set_pair(vkfd_isa::Operand::EXEC, u64::MAX);
        let mut expected = wave.clone();
        assert_eq!(
            engine.run(&mut wave, &mut local(), &mut world, 1 << 20),
            Exit::End,
            "{}",
            listing(Target::Gfx900, &code(by))
        );
        assert_eq!(reference::run(&mut expected, &mut local(), &mut world, 1 << 20), Exit::End);
        assert_eq!(expected.rows[0].0[0], 40 * by);
        wave.rows[0].0[0]
    });
    assert_ne!(engine.translated().rings, 0);
    results
}

#[test]
fn code_that_has_changed_drops_its_loop() {
    for width in widths() {
        assert_eq!(patched(width, Switches::NONE), [40, 80]);
        assert_ne!(patched(width, Switches::NONE.with(Switch::KeptRing)), [40, 80], "{width:?}");
    }
}
