// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whole little programs: registers named through M0, skipped vector instructions, hardware
//! registers, calls, forks.

#![allow(missing_docs, clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "a test")]

use crate::support;

use support::{group, wave, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Miss, Refusal, Rights, Wave};
use vkfd_isa::{Operand, Target};

#[rustfmt::skip]
const STATE: &[u32] = &[
    0xbe80_0082, // s_mov_b32 s0, 2
    0xbf11_0100, // s_set_gpr_idx_on s0, gpr_idx(SRC0)
    0x7e0a_0300, // v_mov_b32_e32 v5, v0
    0xbf9d_0008, // s_set_gpr_idx_mode gpr_idx(DST)
    0x7e0c_0301, // v_mov_b32_e32 v6, v1
    0xbf9c_0000, // s_set_gpr_idx_off
    0xbefc_0083, // s_mov_b32 m0, 3
    0xbe94_2a01, // s_movrels_b32 s20, s1
    0xbe95_2c00, // s_movreld_b32 s21, s0
    0xbe82_0081, // s_mov_b32 s2, 1
    0xbf10_8002, // s_setvskip s2, 0
    0x7e00_0287, // v_mov_b32_e32 v0, 7
    0xbf10_8102, // s_setvskip s2, 1
    0x7e02_0289, // v_mov_b32_e32 v1, 9
    0xb89e_1901, // s_getreg_b32 s30, hwreg(HW_REG_MODE, 4, 4)
    0xba00_0801, 0x0000_0003, // s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 3
    0xb89f_4801, // s_getreg_b32 s31, hwreg(HW_REG_MODE, 0, 10)
    0xbea2_1c00, // s_getpc_b64 s[34:35]
    0x8022_9022, // s_add_u32 s34, s34, 16
    0x8223_8023, // s_addc_u32 s35, s35, 0
    0xbea4_1e22, // s_swappc_b64 s[36:37], s[34:35]
    0xbf81_0000, // s_endpgm
    0xbea8_0081, // s_mov_b32 s40, 1
    0xbaa6_0001, // s_call_b64 s[38:39], 1
    0xbf81_0000, // s_endpgm
    0xbea9_0081, // s_mov_b32 s41, 1
    0xbe80_1d24, // s_setpc_b64 s[36:37]
];

#[rustfmt::skip]
const FORK: &[u32] = &[
    0x7d98_0094, // v_cmp_gt_u32_e32 vcc, 20, v0
    0xbe8a_016a, // s_mov_b64 s[10:11], vcc
    0xbe8c_1c00, // s_getpc_b64 s[12:13]
    0x800c_a00c, // s_add_u32 s12, s12, 32
    0x820d_800d, // s_addc_u32 s13, s13, 0
    0xbe88_0080, // s_mov_b32 s8, 0
    0x9480_0c0a, // s_cbranch_g_fork s[10:11], s[12:13]
    0x7e02_02ff, 0x0000_0064, // v_mov_b32_e32 v1, 0x64
    0xbf82_0004, // s_branch 4
    0xbf80_0000, // s_nop 0
    0xbf80_0000, // s_nop 0
    0x7e02_02ff, 0x0000_00c8, // v_mov_b32_e32 v1, 0xc8
    0xbe80_2e08, // s_cbranch_join s8
    0x6802_0281, // v_add_u32_e32 v1, 1, v1
    0xbf81_0000, // s_endpgm
];

#[rustfmt::skip]
const CLOCKS: &[u32] = &[
    0xf490_0100, 0, // s_memtime s[4:5]
    0xf494_0180, 0, // s_memrealtime s[6:7]
    0xb908_981d, // s_getreg_b32 s8, hwreg(HW_REG_SHADER_CYCLES, 0, 20)
    0xbf81_0000, // s_endpgm
];

fn run(words: &[u32], mut wave: Wave) -> (Wave, Exit) {
    let mut world = Flat::new(BASE, 1);
    world.write_words(BASE, words);
    wave.pc = BASE;
    let exit = reference::run(&mut wave, &mut group(0), &mut world, 1000);
    (wave, exit)
}

/// On both engines: of a program that ends.
fn run_on_both(words: &[u32], start: Wave) -> (Wave, Exit) {
    let mut wave = Wave { pc: BASE, ..start.clone() };
    let mut world = Flat::new(BASE, 1);
    world.write_words(BASE, words);
    let exit = Engine::new(wave.target).run(&mut wave, &mut group(0), &mut world, 1000);
    let expected = run(words, start);
    assert_eq!((&wave, exit), (&expected.0, expected.1), "the fast engine's and the reference's");
    expected
}

#[test]
fn registers_through_m0_hardware_registers_and_calls() {
    let mut start = wave(Target::Gfx900);
    for (n, row) in start.rows.iter_mut().enumerate() {
        row.0 = [100 + n as u32; 64];
    }
    start.scalar[4] = 44;
    let (wave, exit) = run_on_both(STATE, start);
    assert_eq!(exit, Exit::End);
    let lane = |row: usize| wave.rows[row].0[63];
    assert_eq!(lane(5), 102, "the source is two further on");
    assert_eq!((lane(6), lane(8)), (106, 101), "the destination is");
    assert_eq!(wave.scalar[20], 44, "s1, three further on");
    assert_eq!(wave.scalar[24], 2, "s21, three further on");
    assert_eq!((lane(0), lane(1)), (100, 9), "one move was skipped, the other was not");
    assert_eq!(wave.scalar[30], 0xf, "denormals, as MODE has them");
    assert_eq!((wave.scalar[31], wave.mode.0 & 0x3ff), (0x3f3, 0x3f3));
    assert_eq!((wave.scalar[40], wave.scalar[41]), (1, 1), "both calls");
    assert_eq!(wave.pair(36), BASE + 4 * 22, "where the first call came from");
}

#[test]
fn the_shaders_clock_is_not_the_gpus() {
    let (wave, exit) = run_on_both(CLOCKS, wave(Target::Gfx1030));
    assert_eq!((exit, wave.pair(4), wave.pair(6), wave.scalar[8]), (Exit::End, 1600, 100, 1600));
}

#[test]
fn a_short_run_ends_at_a_wait_for_memory() {
    // s_mov_b32 s0, 1; s_waitcnt vmcnt(0); s_mov_b32 s1, 1; s_endpgm.
    for (target, words) in [
        (Target::Gfx900, [0xbe80_0081, 0xbf8c_0f70, 0xbe81_0081, 0xbf81_0000]),
        (Target::Gfx1030, [0xbe80_0381, 0xbf8c_3f70, 0xbe81_0381, 0xbf81_0000]),
        (Target::Gfx1100, [0xbe80_0081, 0xbf89_03f7, 0xbe81_0081, 0xbfb0_0000]),
    ] {
        let mut world = Flat::new(BASE, 1);
        world.write_words(BASE, &words);
        let mut engine = Engine::new(target);
        let mut run = |budget| {
            let mut wave = Wave { pc: BASE, ..wave(target) };
            wave.scalar[1] = 0;
            let exit = engine.run(&mut wave, &mut group(0), &mut world, budget);
            (exit, wave.pc - BASE, wave.scalar[1])
        };
        // By turns: an engine keeps both kinds of blocks.
        for _ in 0..2 {
            assert_eq!(run(1), (Exit::Yield, 8, 0), "{target}");
            assert_eq!(run(1000), (Exit::End, 16, 1), "{target}");
        }
    }
}

#[test]
fn a_fork_runs_the_smaller_part_first_and_joins() {
    let mut start = wave(Target::Gfx900);
    start.rows[0].0 = std::array::from_fn(|lane| lane as u32);
    let (wave, exit) = run_on_both(FORK, start);
    assert_eq!(exit, Exit::End);
    for (lane, &value) in wave.rows[1].0.iter().enumerate() {
        // After the join the part that came last goes on.
        assert_eq!(value, if lane < 20 { 200 } else { 101 }, "lane {lane}");
    }
    assert_eq!(wave.pair(Operand::EXEC), u64::MAX << 20);
}

#[test]
fn what_cannot_be_fetched_or_is_no_instruction_leaves_the_wave_where_it_is() {
    let mut world = Flat::new(BASE, 2);
    // s_nop at the end of a page, then a page that is not there.
    world.write_words(BASE + 4092, &[0xbf80_0000, 0xbf81_0000]);
    world.protect(BASE + 4096, Rights::Absent);
    let mut wave = wave(Target::Gfx900);
    wave.pc = BASE + 4092;
    let exit = reference::run(&mut wave, &mut group(0), &mut world, 10);
    assert!(matches!(exit, Exit::Miss(Miss { va, .. }) if va == BASE + 4096), "{exit:?}");
    assert_eq!(wave.pc, BASE + 4096);
    // An instruction of two words across the border misses on the second.
    world.write_words(BASE + 4092, &[0xd2c9_0000, 0]);
    wave.pc = BASE + 4092;
    let exit = reference::run(&mut wave, &mut group(0), &mut world, 10);
    assert!(matches!(exit, Exit::Miss(Miss { va, .. }) if va == BASE + 4096), "{exit:?}");
    assert_eq!(wave.pc, BASE + 4092);
    world.protect(BASE + 4096, Rights::All);
    world.write_words(BASE, &[0xffff_ffff]);
    wave.pc = BASE;
    let exit = reference::run(&mut wave, &mut group(0), &mut world, 10);
    assert_eq!(exit, Exit::Refused(Refusal::Illegal { word: 0xffff_ffff }));
    assert_eq!(wave.pc, BASE);
}

#[test]
fn no_registers_beyond_the_waves() {
    let mut small = wave(Target::Gfx900);
    small.rows.truncate(4);
    // v_mov_b32 v3, v3; v_mov_b32 v4, v0; and the other way round.
    for (word, fits) in [(0x7e06_0303, true), (0x7e08_0300, false), (0x7e00_0304, false)] {
        let (_, exit) = run(&[word, 0xbf81_0000], small.clone());
        let expected = if fits { Exit::End } else { Exit::Refused(Refusal::Register) };
        assert_eq!(exit, expected, "{word:#x}");
    }
    // s_mov_b32 s40, 0 with 40 registers.
    small.sgprs = 40;
    let (_, exit) = run(&[0xbea8_0080, 0xbf81_0000], small);
    assert_eq!(exit, Exit::Refused(Refusal::Register));
}

/// Whatever the words, nothing panics, and a wave that is refused is as it was.
#[test]
fn any_code_is_executed_or_refused() {
    let mut numbers = support::Numbers(77);
    let mut executed = 0;
    for target in Target::ALL {
        for _ in 0..1500 {
            let mut start = wave(target);
            start.lanes = if target.is_rdna() && numbers.next() % 2 == 0 { 32 } else { 64 };
            start.scalar.iter_mut().for_each(|word| *word = numbers.word());
            start.rows.iter_mut().for_each(|row| row.0[5] = numbers.word());
            start.mode.0 = numbers.word();
            let mut words: Vec<u32> = (0..8).map(|_| numbers.word()).collect();
            // Half of them begin as vector operations do.
            if numbers.next() % 2 == 0 {
                words[0] = words[0] & 0x03ff_ffff
                    | [0xd000_0000, 0xd400_0000, 0xcc00_0000, 0x7c00_0000][numbers.word() as usize % 4];
            }
            let before = start.clone();
            let (after, exit) = run(&words, start);
            executed += u32::from(after.pc != BASE);
            if after.pc == BASE && matches!(exit, Exit::Refused(_)) {
                let as_before = Wave { pc: before.pc, ..after.clone() } == before;
                assert!(as_before, "{target} {words:x?} was refused half way: {exit:?}");
            }
        }
    }
    assert!(executed > 700, "only {executed} programs began");
}
