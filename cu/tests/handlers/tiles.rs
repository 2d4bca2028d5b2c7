// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations with NaNs in some rows, and with D where C is, apart from it, over a part of
//! it, and over A and B. All registers are as the reference engine has them. Where D is C
//! or apart from all, the fast engine does not leave the instruction to it.

use super::support::{group, Numbers, BASE};
use super::{end, handlers, Handler};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Wave};
use vkfd_isa::{decode, Op, Target};
use vkfd_sabotage::{Switch, Switches};

/// The first registers of A, B, C and D. A and B have at most four, C and D at most 32; C is zero
/// if it has no register.
struct Places {
    a: u32,
    b: u32,
    c: Option<u32>,
    d: u32,
}

const IN_PLACE: Places = Places { a: 0, b: 8, c: Some(16), d: 16 };
const APART: Places = Places { a: 0, b: 8, c: None, d: 32 };
const PARTLY: Places = Places { a: 0, b: 8, c: Some(16), d: 20 };
const OVER_FACTORS: Places = Places { a: 16, b: 24, c: Some(20), d: 20 };

/// Machine code of the operation, with these registers.
fn words(handler: &Handler, places: &Places) -> [u32; 2] {
    let [first, second] = [handler.encoding.value[0], handler.encoding.value[1]];
    let c = places.c.map_or(128, |c| 256 + c);
    // Below the operation: D, and modifiers that are zero.
    let first = first & !0xffff | places.d;
    [first, second & 0xf800_0000 | (256 + places.a) | (256 + places.b) << 9 | c << 18]
}

/// Numbers, of 500 words one that is special.
fn number(numbers: &mut Numbers, op: Op) -> u32 {
    const SPECIAL: [u32; 6] = [0x7fc0_0000, 0x7f80_0001, 0xff80_0000, 0x7e00_7e00, 1, 0x8000_0000];
    match numbers.below(500) {
        0 => SPECIAL[numbers.below(6) as usize],
        _ if op.name().contains("i8") => numbers.word(),
        _ => numbers.word() & 0x83ff_83ff | 0x3800_3800,
    }
}

/// What came of all operations.
#[derive(Default)]
struct Seen {
    executed: u32,
    differ: u32,
    /// Instructions that the reference engine has executed, of blocks with more than four rows.
    left: u64,
    with_nans: u32,
}

/// Runs each matrix operation of a target on the engine and on the reference.
fn run(target: Target, engine: &mut Engine, places: &Places) -> Seen {
    let mut seen = Seen::default();
    let mut numbers = Numbers(11);
    let mut world = Flat::new(BASE, 1);
    let operations = handlers(target, engine);
    let is_wanted = |op: Op| op.name().starts_with("v_mfma") && !op.name().contains("f64");
    for handler in operations.iter().filter(|handler| is_wanted(handler.encoding.op)) {
        let words = words(handler, places);
        let inst = decode(target, &words).expect("an instruction");
        assert_eq!(inst.op, handler.encoding.op);
        for _ in 0..24 {
            let mut wave = super::wave(target);
            wave.pc = BASE;
            for word in wave.rows.iter_mut().take(64).flat_map(|row| &mut row.0) {
                *word = number(&mut numbers, inst.op);
            }
            let mut expected = wave.clone();
            reference::execute(&inst, &mut expected, &mut group(0), &mut world).expect("it executes");
            world.write_words(BASE, &[words[0], words[1], end(target)]);
            engine.invalidate();
            let before = engine.slow().values().sum::<u64>();
            assert_eq!(engine.run(&mut wave, &mut group(0), &mut world, 10), Exit::End, "{inst:?}");
            seen.executed += 1;
            // The blocks of four rows and columns have another handler.
            if !inst.op.name().contains("_4x4x") {
                seen.left += engine.slow().values().sum::<u64>() - before;
            }
            let results = |wave: &Wave| wave.rows[places.d as usize..][..32].to_vec();
            let is_nan = |word: &u32| f32::from_bits(*word).is_nan();
            seen.with_nans += u32::from(results(&expected).iter().flat_map(|row| &row.0).any(is_nan));
            seen.differ += u32::from(wave.rows != expected.rows);
        }
    }
    seen
}

/// Whether the processor has the handlers that do tiles by themselves.
fn has_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512dq");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[test]
fn rows_with_nans_are_the_reference_s_wherever_the_result_goes() {
    for (target, least) in [(Target::Gfx90a, 400), (Target::Gfx942, 100)] {
        for (name, places) in
            [("in place", IN_PLACE), ("apart", APART), ("partly", PARTLY), ("over factors", OVER_FACTORS)]
        {
            for mut engine in [Engine::new(target), Engine::narrow(target), Engine::portable(target)] {
                let Seen { executed, differ, with_nans, .. } = run(target, &mut engine, &places);
                assert_eq!(differ, 0, "{target}, {name}: of {executed}");
                // The portable engine has no handlers of these.
                assert!(executed == 0 || executed >= least && with_nans >= executed / 10, "{executed}, {with_nans}");
            }
        }
    }
}

#[test]
fn an_instruction_with_nans_is_not_left_as_a_whole() {
    if !has_tiles() {
        return;
    }
    for places in [IN_PLACE, APART] {
        let mut engine = Engine::new(Target::Gfx90a);
        let seen = run(Target::Gfx90a, &mut engine, &places);
        assert_eq!(seen.left, 0, "of {}", seen.executed);
    }
}

#[test]
fn rows_that_are_not_stored_are_noticed() {
    if !has_tiles() {
        return;
    }
    let mut engine = Engine::new(Target::Gfx90a);
    engine.sabotage(Switches::NONE.with(Switch::LostTile));
    assert!(run(Target::Gfx90a, &mut engine, &IN_PLACE).differ > 0);
}
