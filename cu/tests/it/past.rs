// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Stores that go past the host's caches, by a kernel that fills much memory. The memory has the
//! reference engine's results. Only first writes of a page bypass the caches, and none if the
//! program orders its stores. Translated code does the same.
#![allow(clippy::cast_possible_truncation, reason = "registers are bit patterns")]

use crate::support;

use support::{group, wave, BASE};
#[cfg(target_arch = "x86_64")]
use vkfd_cu::fast::native::{Accesses, Translation, Width};
use vkfd_cu::fast::Engine;
use vkfd_cu::{Exit, Flat, Rights, World};
use vkfd_isa::{Operand, Target};

const DATA: u64 = BASE + 4096;
/// Four times as much as is written before stores go past the caches.
const PAGES: usize = 8192;
/// v_add_u32 v5, 1, v5
const ADD: u32 = 0x680a_0a81;
const WAITCNT: u32 = 0xbf8c_0f70;
const NOP: u32 = 0xbf80_0000;

/// A loop that stores four words of each lane, and goes on by a page. `between` is in it.
/// The sums behind the store do nothing for it, but make a region of the loop.
fn program(between: u32) -> [u32; 17] {
    [
        // global_store_dwordx4 v4, v[0:3], s[4:5]
        0xdc7c_8000,
        0x0004_0004,
        between,
        // s_add_u32 s4, s4, s6; s_addc_u32 s5, s5, 0
        0x8004_0604,
        0x8205_8005,
        // s_sub_u32 s0, s0, 1; s_cmp_lg_u32 s0, 0; s_cbranch_scc1 back; s_endpgm
        0x8080_8100,
        ADD,
        ADD,
        ADD,
        ADD,
        ADD,
        ADD,
        ADD,
        ADD,
        0xbf07_8000,
        0xbf85_fff0,
        0xbf81_0000,
    ]
}

/// Fills the first `bytes` of each page with `value`.
fn fill(engine: &mut Engine, world: &mut Flat, value: u32, bytes: u32) -> Exit {
    let mut one = wave(Target::Gfx900);
    one.pc = BASE;
    one.scalar[0] = PAGES as u32;
    one.set_pair(4, DATA);
    one.scalar[6] = 4096;
    one.set_pair(Operand::EXEC, u64::MAX);
    for part in 0..4 {
        one.rows[part].0 = std::array::from_fn(|lane| value + (4 * lane + part) as u32);
    }
    one.rows[4].0 = std::array::from_fn(|lane| bytes + 16 * lane as u32);
    loop {
        match engine.run(&mut one, &mut group(0), world, u32::MAX) {
            Exit::Miss(miss) => world.settle(&miss).unwrap(),
            exit => return exit,
        }
    }
}

fn check(world: &Flat, value: u32, at: u64) {
    let expected: Vec<u32> = (0..256).map(|word| value + word).collect();
    for page in (0..PAGES as u64).step_by(7).chain([PAGES as u64 - 1]) {
        assert_eq!(world.read_words(DATA + 4096 * page + at, 256), expected, "page {page}");
    }
}

/// What runs the program: the interpreter, and translated code of both widths.
fn engines() -> Vec<(Engine, bool)> {
    #[allow(unused_mut, reason = "other processors translate nothing")]
    let mut engines = vec![(Engine::new(Target::Gfx900), false)];
    #[cfg(target_arch = "x86_64")]
    for width in [Width::Avx2, Width::Avx512].into_iter().filter(|width| width.is_there()) {
        let mut engine = Engine::new(Target::Gfx900);
        let (accesses, is_checked, perf_map) = (Accesses::All, false, false);
        if engine.translate(Translation { width, after: 3, accesses, is_checked, perf_map }) {
            engines.push((engine, true));
        }
    }
    engines
}

fn machine(engine: &mut Engine, between: u32) -> Flat {
    let mut world = Flat::new(BASE, 1 + PAGES);
    world.write_words(BASE, &program(between));
    engine.invalidate();
    world
}

#[test]
fn what_is_written_first_goes_past_the_caches() {
    engines().into_iter().for_each(is_passed);
}

fn is_passed((mut engine, is_translated): (Engine, bool)) {
    let mut world = machine(&mut engine, NOP);
    world.protect(DATA + 4096 * 6000, Rights::Absent);
    assert_eq!(fill(&mut engine, &mut world, 100, 0), Exit::End);
    check(&world, 100, 0);
    #[cfg(target_arch = "x86_64")]
    assert!(!is_translated || engine.translated().translated > 0);
    let passed = engine.passed();
    let most = 1024 * (PAGES as u64 - 1024);
    // Without AVX nothing does.
    if passed == 0 {
        return;
    }
    assert!(passed > most / 2 && passed <= most, "{passed} of {most} bytes");
    // The same pages again in the same launch: they may still be in the caches. The first ones were
    // not noted then.
    assert_eq!(fill(&mut engine, &mut world, 5000, 1024), Exit::End);
    check(&world, 100, 0);
    check(&world, 5000, 1024);
    let again = engine.passed() - passed;
    assert!(again <= 1024 * 2048, "{again} bytes");
    // In another launch.
    engine.invalidate();
    assert_eq!(fill(&mut engine, &mut world, 7000, 0), Exit::End);
    check(&world, 7000, 0);
    assert!(engine.passed() - passed - again > most / 2);
}

#[test]
fn what_is_ordered_does_not() {
    for (mut engine, _) in engines() {
        let mut world = machine(&mut engine, WAITCNT);
        assert_eq!(fill(&mut engine, &mut world, 100, 0), Exit::End);
        check(&world, 100, 0);
        assert_eq!(engine.passed(), 0);
    }
}

#[test]
fn nor_what_fills_no_line() {
    for (mut engine, _) in engines() {
        let mut world = machine(&mut engine, NOP);
        assert_eq!(fill(&mut engine, &mut world, 100, 16), Exit::End);
        check(&world, 100, 16);
        assert_eq!(engine.passed(), 0);
    }
}
