// SPDX-License-Identifier: GPL-2.0 OR MIT
//! FMAs one after another, which the fast engine executes by one handler, against the reference
//! engine. Cases are sources in scalar registers, results that are NaN in the middle, inactive
//! lanes, waves of 32 and of 64.
#![allow(clippy::cast_possible_truncation, reason = "registers are bit patterns")]

use crate::support;

use support::random::REGISTERS;
use support::{group, wave, waves, Numbers, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Wave};
use vkfd_isa::{decode, Op, Operand, Target};
use vkfd_sabotage::Switch;

/// `v_fma_f32` of the target's third vector encoding, without its operands.
fn fma(target: Target) -> u32 {
    match target {
        Target::Gfx1030 => 0xd54b_0000,
        Target::Gfx1100 => 0xd613_0000,
        _ => 0xd1cb_0000,
    }
}

/// A few FMAs, now and then one with a modifier between them, and the end.
fn program(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    let mut code = Vec::new();
    // Which source is in a scalar register; most often the same for the whole program.
    let mut kind = numbers.below(4);
    for _ in 0..2 + numbers.below(16) {
        if numbers.below(6) == 0 {
            kind = numbers.below(4);
        }
        let mut source = |n: u64| numbers.below(REGISTERS) as u32 + if kind == n { 0 } else { 256 };
        let sources = source(1) | source(2) << 9 | source(3) << 18;
        let sign = if numbers.below(10) == 0 { 1 << 29 } else { 0 };
        code.extend([fma(target) | numbers.below(REGISTERS) as u32, sources | sign]);
    }
    code.push(if target == Target::Gfx1100 { 0xbfb0_0000 } else { 0xbf81_0000 });
    code
}

fn start(target: Target, lanes: u8, numbers: &mut Numbers) -> Wave {
    let mut wave = wave(target);
    wave.lanes = lanes;
    wave.pc = BASE;
    let odd = numbers.below(4) == 0;
    let value = |numbers: &mut Numbers| match numbers.below(if odd { 200 } else { u64::MAX }) {
        0 => 0x7fc0_0000 | numbers.word() & 0x8000_ffff,
        1 => 0x7f80_0000 | numbers.word() & 0x8000_0000,
        2 => numbers.word() & 0x807f_ffff,
        _ => numbers.word() & 0x83ff_ffff | 0x3c00_0000,
    };
    for row in wave.rows.iter_mut().take(REGISTERS as usize) {
        row.0 = std::array::from_fn(|_| value(numbers));
    }
    for word in wave.scalar.iter_mut().take(REGISTERS as usize) {
        *word = value(numbers);
    }
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
        assert_eq!(decode(target, &code).map(|inst| inst.op), Ok(Op::VFmaF32), "{target}");
        world.write_words(BASE, &code);
        engine.invalidate();
        for _ in 0..3 {
            let mut expected = start(target, lanes, &mut numbers);
            let mut fast = expected.clone();
            let exits = [
                reference::run(&mut expected, &mut group(64), &mut world, 100),
                engine.run(&mut fast, &mut group(64), &mut world, 100),
            ];
            assert_eq!(exits[0], Exit::End, "{target}");
            if exits[0] != exits[1] || expected != fast {
                return Err(format!("{target}, {lanes} lanes: program {index} {code:#x?} {exits:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn chains_are_the_reference_s() {
    for (target, lanes) in waves() {
        for (mut engine, count) in [(Engine::new(target), 300), (Engine::portable(target), 60)] {
            compare(&mut engine, target, lanes, count, 21).unwrap();
        }
    }
}

#[test]
fn a_wrong_link_is_noticed() {
    for (target, lanes) in waves() {
        for mut engine in [Engine::new(target), Engine::portable(target)] {
            engine.sabotage(Switch::Chain.into());
            assert!(
                compare(&mut engine, target, lanes, 60, 21).is_err(),
                "{target}: chains are broken, and it was not noticed"
            );
        }
    }
}

/// The fast engine computes a NaN in a chain itself, and the rest of the chain, too.
#[test]
fn a_nan_in_a_chain_is_handed_on() {
    let target = Target::Gfx900;
    let mut engine = Engine::new(target);
    let mut world = Flat::new(BASE, 1);
    // v_fma_f32 vN, v0, v1, v2 for N from 4 to 9; v6's third source is v3.
    let mut code: Vec<u32> =
        (4..10).flat_map(|n| [0xd1cb_0000 | n, if n == 6 { 0x040e_0300 } else { 0x040a_0300 }]).collect();
    code.push(0xbf81_0000);
    world.write_words(BASE, &code);
    let mut one = wave(target);
    one.pc = BASE;
    for row in &mut one.rows {
        row.0 = [1.5f32.to_bits(); 64];
    }
    one.rows[3].0[17] = 0x7fc0_0000;
    assert_eq!(engine.run(&mut one, &mut group(0), &mut world, 100), Exit::End);
    assert_eq!(engine.slow().get(&Op::VFmaF32), None);
    assert_eq!((one.rows[6].0[17], one.rows[9].0[17]), (0x7fc0_0000, 3.75f32.to_bits()));
}
