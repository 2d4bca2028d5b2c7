// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Inputs with NaNs, infinities and denormals stay with the fast engine: of 10,000 vector
//! instructions the reference engine executes at most one. What counts are instructions, not times.

use super::start::start;
use super::support::{group, Numbers, BASE};
use super::words::instruction;
use super::{end, handlers, is_matrix};
use std::collections::BTreeMap;
use vkfd_cu::fast::Engine;
use vkfd_cu::{Exit, Flat, Mode};
use vkfd_isa::{Format, Op, Target};

/// Of 20 words one: a NaN, an infinity or a denormal, of either size.
fn special(numbers: &mut Numbers) -> Option<u32> {
    const VALUES: [u32; 10] = [
        0x7fc0_0000,
        0xffc0_1234,
        0x7f80_0001,
        0x7f80_0000,
        0xff80_0000,
        1,
        0x807f_ffff,
        0x0000_7e00,
        0x7c00_fc00,
        0x0001_8001,
    ];
    (numbers.below(20) == 0).then(|| VALUES[numbers.below(VALUES.len() as u64) as usize])
}

/// Operations on numbers.
fn is_float(op: Op) -> bool {
    let name = op.name();
    name.starts_with("v_") && ["_f16", "_f32", "_f64"].iter().any(|kind| name.contains(kind)) && !is_matrix(op)
}

/// How many instructions were executed, and how many of each operation by the reference engine.
fn run(target: Target, mode: Mode, seed: u64) -> (u64, BTreeMap<&'static str, u64>) {
    let mut engine = Engine::new(target);
    let mut numbers = Numbers(seed);
    let all = handlers(target, &mut engine);
    let vector = [Format::Vop1, Format::Vop2, Format::Vopc, Format::Vop3, Format::Vop3p];
    let mut world = Flat::new(BASE, 1);
    let end = end(target);
    let (mut executed, mut by_reference) = (0, BTreeMap::new());
    for handler in
        all.iter().filter(|handler| vector.contains(&handler.encoding.format) && is_float(handler.encoding.op))
    {
        for _ in 0..8 {
            let Some((inst, words)) = instruction(target, &handler.encoding, &mut numbers) else { continue };
            let mut wave = start(target, handler.lanes, &inst, &mut numbers, BASE);
            if !engine.handles(&wave, &inst) {
                continue;
            }
            world.write_words(BASE, &[words.as_slice(), &[end]].concat());
            engine.invalidate();
            wave.mode = mode;
            let words = wave.rows.iter_mut().flat_map(|row| &mut row.0).chain(wave.scalar.iter_mut().take(16));
            for word in words {
                *word = special(&mut numbers).unwrap_or(*word & 0x87ff_87ff | 0x3800_3800);
            }
            let before = engine.slow().values().sum::<u64>();
            assert_eq!(engine.run(&mut wave, &mut group(0), &mut world, 10), Exit::End, "{inst:?}");
            executed += 1;
            if engine.slow().values().sum::<u64>() != before {
                *by_reference.entry(inst.op.name()).or_insert(0) += 1;
            }
        }
    }
    (executed, by_reference)
}

fn check(mode: Mode) {
    let (mut executed, mut by_reference) = (0, BTreeMap::new());
    for (index, target) in Target::ALL.into_iter().enumerate() {
        let (count, more) = run(target, mode, index as u64);
        executed += count;
        for (op, times) in more {
            *by_reference.entry(op).or_insert(0) += times;
        }
    }
    let slow: u64 = by_reference.values().sum();
    println!("{slow} of {executed}: {by_reference:?}");
    assert!(executed > 5_000, "only {executed} were executed");
    assert!(slow * 10_000 <= executed, "{slow} of {executed} by the reference engine: {by_reference:?}");
}

#[test]
fn special_values_stay_with_the_fast_engine() {
    check(Mode::DEFAULT);
}

/// As rocBLAS's assembly kernels and `-fgpu-flush-denormals-to-zero` have it.
#[test]
fn special_values_stay_with_the_fast_engine_where_denormals_are_lost() {
    check(Mode(Mode::DEFAULT.0 & !0x30));
}
