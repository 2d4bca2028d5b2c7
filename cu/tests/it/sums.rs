// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sums of 64 bits, which the fast engine executes by one handler for two instructions, against the
//! reference engine. Cases are sources in scalar registers, masks that are VCC or not or differ,
//! results that are sources, inactive lanes, waves of 32 and of 64.
#![allow(clippy::cast_possible_truncation, reason = "registers are bit patterns")]

use crate::support;

use support::{group, wave, waves, Numbers, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Wave};
use vkfd_isa::{decode, Op, Operand, Target};
use vkfd_sabotage::Switch;

/// Registers of each kind that are used: few, so that results are sources.
const REGISTERS: u64 = 6;
const VCC: u32 = 106;

/// `v_add_co_u32` and `v_addc_co_u32` of the target's third vector encoding, without operands.
fn adds(target: Target) -> [u32; 2] {
    match target {
        Target::Gfx1030 => [0xd70f_0000, 0xd528_0000],
        Target::Gfx1100 => [0xd700_0000, 0xd520_0000],
        _ => [0xd119_0000, 0xd11c_0000],
    }
}

/// A few sums, most of them of both halves, and the end.
fn program(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    let mut code = Vec::new();
    let [low, high] = adds(target);
    for _ in 0..1 + numbers.below(6) {
        // A mask in an even register, often VCC.
        let mut mask = if numbers.below(2) == 0 { VCC } else { 2 * numbers.below(3) as u32 };
        for (index, word) in [low, high].into_iter().enumerate() {
            if numbers.below(8) == 0 {
                continue;
            }
            let (scalar, which) = (numbers.below(3), numbers.below(2));
            let mut source = |n: u64| {
                let register = numbers.below(REGISTERS) as u32;
                match scalar == 0 && which == n {
                    // Now and then half of the mask.
                    true if numbers.below(6) == 0 => VCC + register % 2,
                    true => register,
                    false => 256 + register,
                }
            };
            let sources = source(0) | source(1) << 9;
            let carry = mask << 18;
            if index == 1 && numbers.below(6) == 0 {
                mask = if mask == VCC { 2 } else { VCC };
            }
            code.push(word | mask << 8 | numbers.below(REGISTERS) as u32);
            code.push(sources | if index == 1 { carry } else { 0 });
        }
    }
    code.push(if target == Target::Gfx1100 { 0xbfb0_0000 } else { 0xbf81_0000 });
    code
}

fn start(target: Target, lanes: u8, numbers: &mut Numbers) -> Wave {
    let mut wave = wave(target);
    wave.lanes = lanes;
    wave.pc = BASE;
    let value = |numbers: &mut Numbers| match numbers.below(4) {
        0 => 0u32.wrapping_sub(numbers.below(3) as u32),
        1 => numbers.below(3) as u32,
        _ => numbers.word(),
    };
    for row in wave.rows.iter_mut().take(REGISTERS as usize) {
        row.0 = std::array::from_fn(|_| value(numbers));
    }
    for word in wave.scalar.iter_mut().take(REGISTERS as usize) {
        *word = value(numbers);
    }
    wave.set_pair(Operand::VCC, numbers.next());
    let exec = match numbers.below(4) {
        0 => numbers.next(),
        _ => u64::MAX,
    };
    wave.set_pair(Operand::EXEC, exec);
    wave
}

/// Runs programs on both engines; the first difference as text.
fn compare(engine: &mut Engine, target: Target, lanes: u8, count: u64, seed: u64) -> Result<(), String> {
    let mut numbers = Numbers(seed);
    let mut world = Flat::new(BASE, 1);
    for index in 0..count {
        let code = program(target, &mut numbers);
        world.write_words(BASE, &code);
        engine.invalidate();
        for _ in 0..3 {
            let mut expected = start(target, lanes, &mut numbers);
            let mut fast = expected.clone();
            let exits = [
                reference::run(&mut expected, &mut group(64), &mut world, 100),
                engine.run(&mut fast, &mut group(64), &mut world, 100),
            ];
            assert_eq!(exits[0], Exit::End, "{target}: {code:#x?}");
            if exits[0] != exits[1] || expected != fast {
                return Err(format!("{target}, {lanes} lanes: program {index} {code:#x?} {exits:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn the_encodings_are_sums() {
    for (target, _) in waves() {
        let [low, high] = adds(target).map(|word| word | VCC << 8);
        let op = |words: [u32; 2]| decode(target, &words).map(|inst| inst.op);
        // v0 and v1, and the carry.
        let found = [op([low, 0x0002_0300]), op([high, 0x0002_0300 | VCC << 18])];
        assert_eq!(found, [Ok(Op::VAddCoU32), Ok(Op::VAddcCoU32)], "{target}");
    }
}

#[test]
fn sums_are_the_reference_s() {
    for (target, lanes) in waves() {
        for (mut engine, count) in [(Engine::new(target), 3000), (Engine::portable(target), 300)] {
            compare(&mut engine, target, lanes, count, 22).unwrap();
            assert!(lanes == 32 || engine.slow().is_empty(), "{target}: {:?}", engine.slow());
        }
    }
}

#[test]
fn a_wrong_sum_is_noticed() {
    for (target, lanes) in waves().filter(|(_, lanes)| *lanes == 64) {
        for mut engine in [Engine::new(target), Engine::portable(target)] {
            engine.sabotage(Switch::Chain.into());
            let found = compare(&mut engine, target, lanes, 60, 22);
            assert!(found.is_err(), "{target}: sums are broken, and it was not noticed");
        }
    }
}
