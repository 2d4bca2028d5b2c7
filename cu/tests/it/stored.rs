// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Translated code that stores, and loops that end when no lane is active any more, against the
//! reference engine: registers, memory and LDS. Loads and stores overlap.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

use crate::support::random::REGISTERS;
use crate::support::{Numbers, BASE};
use crate::translated::{body, difference, engine, listing, local, programs, start, widths, DATA, END, GLOBAL, LOCAL};
use vkfd_cu::fast::native::Report;
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Wave};
use vkfd_isa::Target;
use vkfd_sabotage::{Switch, Switches};

/// The row that counts rounds, which random code does not write.
const COUNT: u32 = REGISTERS as u32 + 3;
const BYTES: usize = 0x2000;

/// A store to LDS or memory, as gfx9 has it.
fn store(numbers: &mut Numbers) -> Vec<u32> {
    let data = |numbers: &mut Numbers| numbers.below(REGISTERS - 4) as u32;
    let first = data(numbers);
    if numbers.below(2) == 0 {
        // global_store_dword, dwordx2, dwordx3, dwordx4
        let op = 0x1c + numbers.below(4) as u32;
        let offset = numbers.below(16) as u32 * 4;
        return vec![0xdc00_8000 | op << 18 | offset, 0x7f << 16 | first << 8 | GLOBAL];
    }
    // ds_write_b32, write2, write2st64, b64, write2_b64, b96, b128
    let op = [0x0d, 0x0e, 0x0f, 0x4d, 0x4e, 0xde, 0xdf][numbers.below(7) as usize];
    let offsets = match op {
        0x0d | 0x4d | 0xde | 0xdf => numbers.below(64) as u32 * 4,
        0x0f => (numbers.below(3) as u32) << 8 | numbers.below(3) as u32,
        _ => (numbers.below(64) as u32) << 8 | numbers.below(64) as u32,
    };
    vec![0xd800_0000 | op << 17 | offsets, data(numbers) << 16 | first << 8 | LOCAL]
}

/// Vector code, then stores.
fn part(numbers: &mut Numbers, length: usize, pure: bool) -> Vec<u32> {
    let accesses = numbers.below(2) == 0;
    let mut code = body(Target::Gfx900, numbers, length, (pure, false, accesses));
    for _ in 0..numbers.below(4) {
        code.extend(store(numbers));
    }
    code
}

fn straight(numbers: &mut Numbers) -> Vec<u32> {
    let mut code = part(numbers, 16, false);
    // s_or_b64 s[12:13], vcc, s[12:13]: a mask that strips have made.
    code.push(0x878c_0c6a);
    code.extend(part(numbers, 8, false));
    code.push(END);
    code
}

fn back(code: &mut Vec<u32>, branch: u32) {
    let back = -(code.len() as i16 + 1);
    code.extend([branch | u32::from(back as u16), END]);
}

/// Addresses move on.
fn move_on(numbers: &mut Numbers, code: &mut Vec<u32>) {
    // v_add_u32 of 0, 4, 16 or 64.
    let by = [128, 132, 144, 192][numbers.below(4) as usize];
    code.push(0x34 << 25 | GLOBAL << 17 | GLOBAL << 9 | by);
}

/// A loop of s20 rounds.
fn counted(numbers: &mut Numbers) -> Vec<u32> {
    let length = 10 + numbers.below(8) as usize;
    let mut code = body(Target::Gfx900, numbers, length, (true, false, false));
    move_on(numbers, &mut code);
    code.extend(part(numbers, 4, true));
    // s_sub_u32 s20, s20, 1; s_cmp_lg_u32 s20, 0; s_cbranch_scc1
    code.extend([0x8094_8114, 0xbf07_8014]);
    back(&mut code, 0xbf85_0000);
    code
}

/// A loop that lanes leave one after the other.
fn leaving(numbers: &mut Numbers) -> Vec<u32> {
    let length = 10 + numbers.below(8) as usize;
    let mut code = body(Target::Gfx900, numbers, length, (true, false, false));
    move_on(numbers, &mut code);
    // v_add_u32 COUNT, 1, COUNT; v_cmp_gt_u32 vcc, 8, COUNT; s_or_b64 s[12:13], vcc, s[12:13]
    code.extend([0x34 << 25 | COUNT << 17 | COUNT << 9 | 129, 0x3e << 25 | 0xcc << 17 | COUNT << 9 | 136]);
    code.push(0x878c_0c6a);
    for _ in 0..numbers.below(3) {
        // v_add_u32 v0, v0, v1 behind it.
        code.push(0x34 << 25 | 1 << 9 | 256);
    }
    for _ in 0..numbers.below(3) {
        code.extend(store(numbers));
    }
    // s_and_b64 exec, exec, vcc; s_cbranch_execnz
    code.push(0x86fe_6a7e);
    back(&mut code, 0xbf89_0000);
    code
}

/// Runs programs on both engines; the first difference as text.
fn compare(
    engine: &mut Engine,
    program: fn(&mut Numbers) -> Vec<u32>,
    (count, seed, budget): (u64, u64, u32),
) -> Result<Report, String> {
    let target = Target::Gfx900;
    let mut numbers = Numbers(seed);
    let mut world = Flat::new(BASE, 4);
    let data = Numbers(5).bytes(BYTES);
    let mut report = Report::default();
    for index in 0..count {
        let code = program(&mut numbers);
        world.write_words(BASE, &code);
        engine.invalidate();
        for _ in 0..4 {
            let mut expected: Wave = start(target, &mut numbers, 64);
            expected.rows[COUNT as usize].0.fill_with(|| numbers.below(12) as u32);
            let mut wave = expected.clone();
            let (mut right, mut group) = (local(), local());
            world.write(DATA, &data);
            let exit = reference::run(&mut expected, &mut right, &mut world, 1 << 20);
            let memory = world.read(DATA, BYTES);
            world.write(DATA, &data);
            let mut runs = 0;
            let translated = loop {
                runs += 1;
                match engine.run(&mut wave, &mut group, &mut world, budget) {
                    Exit::Yield if runs < 1 << 20 => {}
                    exit => break exit,
                }
            };
            let differs = difference(&expected, &wave);
            // Of a store that faults, some lanes may be done.
            let same_memory = matches!(exit, Exit::Miss(_)) || world.read(DATA, BYTES) == memory;
            if exit != translated || differs.is_some() || !same_memory || right.lds != group.lds {
                return Err(format!(
                    "program {index}: {exit:?} {translated:?} memory {same_memory} LDS {}\n{}{}",
                    right.lds == group.lds,
                    listing(target, &code),
                    differs.unwrap_or_default()
                ));
            }
        }
        report.add(&engine.translated());
    }
    Ok(report)
}

fn check(program: fn(&mut Numbers) -> Vec<u32>, how: (u64, u64, u32), share: u64) {
    for width in widths() {
        let mut engine = engine(Target::Gfx900, width, false);
        let report = compare(&mut engine, program, how).unwrap_or_else(|text| panic!("{width:?}: {text}"));
        println!("{width:?}: {report:?}");
        assert!(100 * report.translated >= share * report.instructions, "too little was translated: {report:?}");
    }
}

#[test]
fn stores_are_the_reference_s() {
    check(straight, (programs(300), 31, 1000), 40);
    check(counted, (programs(200), 32, 1 << 20), 30);
    check(counted, (programs(60), 33, 1), 30);
}

#[test]
fn loops_that_lanes_leave_are_the_reference_s() {
    check(leaving, (programs(200), 34, 1 << 20), 30);
    check(leaving, (programs(60), 35, 1), 30);
}

#[test]
fn faults_in_stores_are_noticed() {
    for width in widths() {
        for switch in [Switch::SwappedStores, Switch::OpenLanes, Switch::GuessedShape, Switch::LeftEarly] {
            let noticed = [straight, counted, leaving].into_iter().any(|program: fn(&mut Numbers) -> Vec<u32>| {
                let mut engine = engine(Target::Gfx900, width, false);
                engine.sabotage(Switches::NONE.with(switch));
                compare(&mut engine, program, (100, 36, 1 << 20)).is_err()
            });
            assert!(noticed, "{width:?}: {switch:?} was not noticed");
        }
    }
}
