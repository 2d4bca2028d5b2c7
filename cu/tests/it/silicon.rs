// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What hardware does and AMD's text does not say, from reports of it: each on the reference engine
//! and on both forms of the fast one.
//!
//! llvm-mc has made the words beside each text.
#![allow(clippy::cast_possible_truncation, reason = "registers are bit patterns")]

use crate::support;

use support::{alone, group, set_pair, wave, APERTURES, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Group, Miss, Mode, Wave};
use vkfd_isa::Target;
use vkfd_sabotage::{process, Switch};

/// MODE.IEEE.
const IEEE: u32 = 1 << 9;
const END: u32 = 0xbf81_0000;
const END_GFX11: u32 = 0xbfb0_0000;
const SCRATCH: u64 = BASE + 8192;

/// Runs one instruction on every engine, with `set` to prepare the wave and `read` to look at the
/// result. All engines have to give the same.
fn run<R: PartialEq + std::fmt::Debug>(
    target: Target,
    words: &[u32],
    set: impl Fn(&mut Wave, &mut Group, &mut Flat),
    read: impl Fn(&Wave, &Group, &Flat) -> R,
) -> (Exit, R) {
    let mut seen = Vec::new();
    for engine in 0..3 {
        let mut world = Flat::new(BASE, 4);
        let end = if target == Target::Gfx1100 { END_GFX11 } else { END };
        world.write_words(BASE, &[words, &[end]].concat());
        let mut one = wave(target);
        one.pc = BASE;
        let mut group = group(256);
        set(&mut one, &mut group, &mut world);
        let exit = match engine {
            0 => reference::run(&mut one, &mut group, &mut world, 10),
            1 => Engine::new(target).run(&mut one, &mut group, &mut world, 10),
            _ => Engine::portable(target).run(&mut one, &mut group, &mut world, 10),
        };
        seen.push((exit, read(&one, &group, &world)));
    }
    let first = seen.remove(0);
    assert!(seen.iter().all(|other| *other == first), "{target}: {first:?} {seen:?}");
    first
}

/// Lane 7 of v8 and v9 after one instruction on v2 to v4, the same in all lanes.
fn vector(target: Target, words: &[u32], mode: u32, sources: [u32; 3]) -> u64 {
    let set = |wave: &mut Wave, _: &mut Group, _: &mut Flat| {
        wave.mode = Mode(mode);
        for (row, value) in wave.rows[2..5].iter_mut().zip(sources) {
            row.0 = [value; 64];
        }
    };
    let read = |wave: &Wave, _: &Group, _: &Flat| u64::from(wave.rows[8].0[7]) | u64::from(wave.rows[9].0[7]) << 32;
    let (exit, result) = run(target, words, set, read);
    assert_eq!(exit, Exit::End);
    result
}

/// Before gfx12 only IEEE mode makes quiet NaNs of signalling ones.
#[test]
fn signalling_nans_stay_without_ieee_mode() {
    let (signalling, quiet, one) = (0x7f80_0001, 0x7fc0_0001, 0x3f80_0000);
    for (text, words) in [
        ("v_max_f32 v8, v2, v2", &[0x1610_0502][..]),
        ("v_mul_f32 v8, v4, v2", &[0x0a10_0504]),
        ("v_add_f32 v8, v2, v4", &[0x0210_0902]),
        ("v_fma_f32 v8, v2, v4, v4", &[0xd1cb_0008, 0x0412_0902]),
        ("v_mad_f32 v8, v2, v4, v4", &[0xd1c1_0008, 0x0412_0902]),
        ("v_rcp_f32 v8, v2", &[0x7e10_4502]),
        ("v_rsq_f32 v8, v2", &[0x7e10_4902]),
        ("v_sqrt_f32 v8, v2", &[0x7e10_4f02]),
        ("v_ceil_f32 v8, v2", &[0x7e10_3b02]),
        ("v_fract_f32 v8, v2", &[0x7e10_3702]),
        ("v_ldexp_f32 v8, v2, 0", &[0xd288_0008, 0x0001_0102]),
        ("v_frexp_mant_f32 v8, v2", &[0x7e10_6902]),
        ("v_exp_f32 v8, v2", &[0x7e10_4102]),
        ("v_log_f32 v8, v2", &[0x7e10_4302]),
        ("v_sin_f32 v8, v2", &[0x7e10_5302]),
        ("v_div_fixup_f32 v8, v4, v4, v2", &[0xd1de_0008, 0x040a_0904]),
    ] {
        for denormals in [0, 0xf0] {
            let result = |ieee| vector(Target::Gfx900, words, ieee | denormals, [signalling, 0, one]) as u32;
            assert_eq!((result(IEEE), result(0)), (quiet, signalling), "{text}");
        }
    }
    // Half precision: both halves, packed. Double precision, and from single to it.
    let halves = |ieee| vector(Target::Gfx900, &[0xd390_4008, 0x1802_0902], ieee | 0xf0, [0x7c01_7c02, 0, 0x3c00_3c00]);
    assert_eq!((halves(IEEE), halves(0)), (0x7e01_7e02, 0x7c01_7c02));
    let doubles = |ieee| vector(Target::Gfx900, &[0xd280_0008, 0x0002_0902], ieee | 0xf0, [1, 0x7ff0_0000, 0]);
    assert_eq!((doubles(IEEE), doubles(0)), (0x7ff8_0000_0000_0001, 0x7ff0_0000_0000_0001));
    let widened = |ieee| vector(Target::Gfx900, &[0x7e10_2102], ieee | 0xf0, [signalling, 0, 0]);
    assert_eq!((widened(IEEE), widened(0)), (0x7ff8_0000_2000_0000, 0x7ff0_0000_2000_0000));
    // To half precision a NaN is quiet in any mode: little of its payload has room.
    for mode in [0, IEEE] {
        assert_eq!(vector(Target::Gfx900, &[0x7e10_1502], mode | 0xf0, [signalling, 0, 0]) as u32 & 0xffff, 0x7e00);
    }
}

/// The unfused operations of mixed precision lose denormal halves, sources and results, in any
/// mode; the fused ones, which took their place, do not.
#[test]
fn unfused_operations_of_mixed_precision_flush_denormal_halves() {
    let one = 0x3f80_0000;
    for (words, sources, kept) in [
        (&[0xd3a0_0008, 0x0c12_0702], [0x0001, one, 0], 0x3380_0000),
        (&[0xd3a1_0008, 0x0412_0702], [0x3380_0000, one, 0], 0x0001),
        (&[0xd3a2_0008, 0x0412_0702], [0x3800_0000, one, 0], 0x0200_0000),
        (&[0xd3a1_4008, 0x1c12_0702], [0x0001, 0x7800, 0], 0x1800),
    ] {
        assert_eq!(vector(Target::Gfx900, words, 0xf0, sources) as u32, 0, "{words:x?}");
        assert_eq!(vector(Target::Gfx90a, words, 0xf0, sources) as u32, kept, "{words:x?}");
    }
    // What is not denormal is computed.
    assert_eq!(vector(Target::Gfx900, &[0xd3a0_0008, 0x0c12_0702], 0xf0, [0x0400, one, 0]) as u32, 0x3880_0000);
}

/// A word of memory after a lane has added to it.
fn added(target: Target, words: &[u32], old: u32, value: u32) -> u32 {
    let at = BASE + 4096;
    let set = |wave: &mut Wave, _: &mut Group, world: &mut Flat| {
        world.write_words(at, &[old]);
        set_pair(wave, 2, 0, at);
        wave.rows[4].0[0] = value;
        wave.set_pair(vkfd_isa::Operand::EXEC, 1);
    };
    let (exit, word) = run(target, words, set, |_, _, world| u32::from_le_bytes(world.read(at, 4).try_into().unwrap()));
    assert_eq!(exit, Exit::End);
    word
}

#[test]
fn sums_in_memory_keep_denormals_on_gfx942_alone() {
    let global = &[0xdd34_8000, 0x007f_0402][..];
    assert_eq!(added(Target::Gfx942, global, 1, 2), 3);
    assert_eq!(added(Target::Gfx942, &[0xdd34_0000, 0x0000_0402], 1, 2), 3);
    assert_eq!(added(Target::Gfx90a, global, 1, 2), 0);
    assert_eq!(added(Target::Gfx1100, &[0xdd5a_0000, 0x007c_0402], 1, 2), 0);
    for target in [Target::Gfx942, Target::Gfx90a] {
        assert_eq!(added(target, global, 0x3f80_0000, 0x4000_0000), 0x4040_0000);
    }
}

/// FLAT: the address register alone says whether an access is one of LDS or of scratch.
#[test]
fn apertures_are_told_without_the_offset() {
    let shared = u64::from(APERTURES.shared) << 32;
    let private = u64::from(APERTURES.private) << 32;
    let loads = [&[0xdc50_0004, 0x0800_0002][..], &[0xdc5c_0004, 0x0800_0002]];
    let access = |words: &[u32], exec: u64, address: u64| {
        let set = move |wave: &mut Wave, group: &mut Group, world: &mut Flat| {
            for (index, byte) in group.lds.iter_mut().enumerate() {
                *byte = index as u8;
            }
            wave.set_pair(vkfd_isa::Operand::FLAT_SCRATCH, SCRATCH);
            world.write_words(SCRATCH, &(0..1024).collect::<Vec<u32>>());
            wave.rows[4].0 = [0xdead_beef; 64];
            wave.set_pair(vkfd_isa::Operand::EXEC, exec);
            for lane in 0..64 {
                set_pair(wave, 2, lane, address);
            }
        };
        let read = |wave: &Wave, group: &Group, _: &Flat| {
            (wave.rows[8].0[0], u32::from_le_bytes(group.lds[..4].try_into().unwrap()))
        };
        run(Target::Gfx900, words, set, read)
    };
    for exec in [1, u64::MAX] {
        for words in loads {
            assert_eq!(access(words, exec, shared), (Exit::End, (0x0706_0504, 0x0302_0100)));
            assert_eq!(access(words, exec, private), (Exit::End, (64, 0x0302_0100)));
            // Four bytes below an aperture, and four further on: nothing is there.
            for below in [shared - 4, private - 4] {
                let (exit, _) = access(words, exec, below);
                assert!(matches!(exit, Exit::Miss(Miss { va, .. }) if va == below + 4), "{exit:?}");
            }
            // Behind an aperture's end, its offset begins anew.
            let (exit, (value, _)) = access(words, exec, shared + 0xffff_fffc);
            assert_eq!((exit, value), (Exit::End, 0x0302_0100), "{words:x?}");
        }
        for words in [[0xdc70_0004, 0x0000_0402], [0xdd08_0004, 0x0000_0402]] {
            let (exit, (_, lds)) = access(&words, exec, shared - 4);
            assert!(matches!(exit, Exit::Miss(Miss { va, .. }) if va == shared), "{exit:?}");
            assert_eq!(lds, 0x0302_0100, "nothing was written");
        }
    }
}

/// Each rule broken in the reference engine.
#[test]
fn broken_rules_are_noticed() {
    let rules: [(Switch, fn()); 4] = [
        (Switch::QuietedNans, signalling_nans_stay_without_ieee_mode),
        (Switch::KeptHalves, unfused_operations_of_mixed_precision_flush_denormal_halves),
        (Switch::FlushedSums, sums_in_memory_keep_denormals_on_gfx942_alone),
        (Switch::ApertureOfSum, apertures_are_told_without_the_offset),
    ];
    alone("silicon::broken_rules_are_noticed", || {
        for (broken, _) in rules {
            process().set(broken.into());
            let failing = rules.map(|(rule, test)| (rule, std::panic::catch_unwind(test).is_err()));
            assert_eq!(failing, rules.map(|(rule, _)| (rule, rule == broken)), "{}", broken.name());
        }
    });
}
