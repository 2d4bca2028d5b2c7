// SPDX-License-Identifier: GPL-2.0 OR MIT
//! MODE: rounding and denormals of single precision apart from those of half and double precision,
//! clamp, output multiplier. What is expected is derived from exact results in double precision, or
//! from 128-bit integers.

#![allow(missing_docs, clippy::cast_possible_truncation, clippy::indexing_slicing, reason = "a test")]

use crate::support;

use support::{group, inst, wave, Numbers, BASE};
use vkfd_cu::{reference, Flat, Mode};
use vkfd_isa::{Format, Inst, Mods, Op, Operand, Target};

fn run(op: Op, target: Target, mode: u32, mods: Mods, sources: [u64; 3]) -> u64 {
    let mut wave = wave(target);
    wave.mode = Mode(mode);
    for (n, value) in sources.into_iter().enumerate() {
        wave.rows[2 * n].0[0] = value as u32;
        wave.rows[2 * n + 1].0[0] = (value >> 32) as u32;
    }
    wave.set_pair(Operand::EXEC, 1);
    let inst = Inst { mods, ..inst(op, Format::Vop3, 8, [0, 2, 4]) };
    reference::execute(&inst, &mut wave, &mut group(0), &mut Flat::new(BASE, 1)).expect("executes");
    u64::from(wave.rows[8].0[0]) | u64::from(wave.rows[9].0[0]) << 32
}

fn single(op: Op, mode: u32, a: f32, b: f32) -> f32 {
    let bits = run(op, Target::Gfx900, mode, Mods::default(), [a.to_bits().into(), b.to_bits().into(), 0]);
    f32::from_bits(bits as u32)
}

/// Denormals of everything, no clamp rules, no IEEE mode.
const DENORMALS: u32 = 0xf0;

/// The next number away from zero, or towards it; of a normal number.
fn beside(x: f32, away: bool) -> f32 {
    f32::from_bits(if away { x.to_bits() + 1 } else { x.to_bits() - 1 })
}

/// `exact` in single precision: 0 nearest, 1 up, 2 down, 3 towards zero.
fn rounded(exact: f64, round: u32) -> f32 {
    let nearest = exact as f32;
    let back = f64::from(nearest);
    let up = if back < exact { beside(nearest, nearest > 0.0) } else { nearest };
    let down = if back > exact { beside(nearest, nearest < 0.0) } else { nearest };
    match round {
        0 => nearest,
        1 => up,
        2 => down,
        _ if exact > 0.0 => down,
        _ => up,
    }
}

#[test]
fn every_rounding_of_single_precision() {
    let mut numbers = Numbers(5);
    let mut inexact = [0; 4];
    for n in 0..20_000u32 {
        // Products and sums that double precision has exactly.
        let number = |numbers: &mut Numbers| {
            let bits = numbers.word();
            f32::from_bits(bits & 0x807f_ffff | (0x7f - 12 + (bits >> 24 & 15)) << 23)
        };
        let (a, b) = (number(&mut numbers), number(&mut numbers));
        let round = n % 4;
        // The other field says something else.
        let mode = DENORMALS | round | (round ^ 1) << 2;
        let (a64, b64) = (f64::from(a), f64::from(b));
        for (op, exact) in [(Op::VMulF32, a64 * b64), (Op::VAddF32, a64 + b64), (Op::VSubF32, a64 - b64)] {
            let expected = rounded(exact, round);
            let got = single(op, mode, a, b);
            assert_eq!(got, expected, "{op:?} {a:e} {b:e} round {round}");
            inexact[round as usize] += usize::from(f64::from(expected) != exact);
        }
    }
    assert!(inexact.iter().all(|&count| count > 1000), "{inexact:?}");
}

#[test]
fn overflow_goes_where_the_rounding_says() {
    let max = f32::MAX;
    for (round, up, down) in
        [(0, f32::INFINITY, f32::NEG_INFINITY), (1, f32::INFINITY, -max), (2, max, f32::NEG_INFINITY), (3, max, -max)]
    {
        assert_eq!(single(Op::VMulF32, DENORMALS | round, max, 2.0), up);
        assert_eq!(single(Op::VMulF32, DENORMALS | round, -max, 2.0), down);
    }
}

#[test]
fn exact_zeros_have_the_roundings_sign() {
    for round in 0..4 {
        let zero = single(Op::VAddF32, DENORMALS | round, 1.5, -1.5);
        assert_eq!(zero.to_bits(), if round == 2 { 0x8000_0000 } else { 0 });
    }
}

#[test]
fn half_and_double_have_their_own_field() {
    // One third in halves: 0x3555 down, 0x3556 up; single precision's field must not matter.
    let third = u64::from((1.0f32 / 3.0).to_bits());
    for single_round in 0..4 {
        let convert = |round: u32| {
            run(Op::VCvtF16F32, Target::Gfx900, DENORMALS | single_round | round << 2, Mods::default(), [third, 0, 0])
        };
        assert_eq!([0, 1, 2, 3].map(convert), [0x3555, 0x3556, 0x3555, 0x3555]);
    }
    let (a, b) = (1.0f64.to_bits(), (2f64.powi(-60)).to_bits());
    let add = |round: u32| run(Op::VAddF64, Target::Gfx900, DENORMALS | round << 2, Mods::default(), [a, b, 0]);
    assert_eq!([0, 1, 2, 3].map(add), [a, a + 1, a, a]);
}

#[test]
fn denormals_in_and_out() {
    let (tiny, two) = (f32::from_bits(1 << 22), 2.0f32);
    // In, then out: a denormal source is zero unless bit 4 is set, a denormal result unless bit 5
    // is.
    for (mode, sum, product) in [
        (0x00, 0.0, 0.0),
        (0x10, f32::from_bits(1 << 23), 0.0),
        (0x20, 0.0, 0.0),
        (0x30, f32::from_bits(1 << 23), tiny),
    ] {
        assert_eq!(single(Op::VAddF32, mode, tiny, tiny), sum, "sum in mode {mode:#x}");
        assert_eq!(single(Op::VMulF32, mode, tiny, 1.0), product, "product in mode {mode:#x}");
    }
    // Sources that are normal, a result that is not: only bit 5 counts.
    assert_eq!(single(Op::VMulF32, 0x10, f32::MIN_POSITIVE, 0.5).to_bits(), 0);
    assert_eq!(single(Op::VMulF32, 0x20, -f32::MIN_POSITIVE, 0.5).to_bits(), 0x8040_0000);
    assert_eq!(single(Op::VMulF32, 0x10, -f32::MIN_POSITIVE, 0.5).to_bits(), 0x8000_0000);
    // Halves follow bits 6 and 7.
    for (mode, expected) in [(0x3f, 0), (0xc0, 2)] {
        assert_eq!(run(Op::VAddF16, Target::Gfx900, mode, Mods::default(), [1, 1, 0]), expected);
    }
    // The unfused operations and the reciprocals have none, whatever MODE says.
    let (bits, one) = (u64::from(tiny.to_bits()), u64::from(1.0f32.to_bits()));
    assert_eq!(run(Op::VMadF32, Target::Gfx900, DENORMALS, Mods::default(), [bits, one, 0]) as u32, 0);
    assert_eq!(single(Op::VRcpF32, DENORMALS, tiny, two), f32::INFINITY);
    assert_eq!(single(Op::VRcpF32, DENORMALS, f32::MAX, two), 0.0);
}

#[test]
fn overflowing_halves_can_stay_finite() {
    let max = 0x7bff;
    let double = |mode: u32| run(Op::VAddF16, Target::Gfx900, mode, Mods::default(), [max, max, 0]);
    assert_eq!(double(DENORMALS), 0x7c00);
    assert_eq!(double(DENORMALS | 1 << 23), max);
    let infinity = run(Op::VAddF16, Target::Gfx900, DENORMALS | 1 << 23, Mods::default(), [0x7c00, 0, 0]);
    assert_eq!(infinity, 0x7c00, "what was infinite stays so");
}

#[test]
fn clamp_and_output_multiplier() {
    let clamp = Mods { clamp: true, ..Mods::default() };
    let add = |mode: u32, mods: Mods, a: f32, b: f32| {
        f32::from_bits(run(Op::VAddF32, Target::Gfx900, mode, mods, [a.to_bits().into(), b.to_bits().into(), 0]) as u32)
    };
    assert_eq!(add(0x3f0, clamp, 1.0, 1.0), 1.0);
    assert_eq!(add(0x3f0, clamp, -1.0, 0.25).to_bits(), 0);
    assert_eq!(add(0x3f0, clamp, f32::NAN, 1.0), 0.0, "DX10_CLAMP");
    assert!(add(0x2f0, clamp, f32::NAN, 1.0).is_nan());
    for (omod, expected) in [(1, 6.0), (2, 12.0), (3, 1.5)] {
        let mods = Mods { omod, ..Mods::default() };
        assert_eq!(add(0, mods, 1.0, 2.0), expected);
        assert_eq!(add(0x20, mods, 1.0, 2.0), 3.0, "not with denormal results");
        assert_eq!(add(0x200, mods, 1.0, 2.0), 3.0, "not in IEEE mode");
    }
    // Integers saturate.
    let integer = |op, a: u64, b: u64| run(op, Target::Gfx900, 0x3f0, clamp, [a, b, 0]) as u32;
    assert_eq!(integer(Op::VAddU32, 0xffff_fff0, 0x20), u32::MAX);
    assert_eq!(integer(Op::VSubU32, 1, 2), 0);
    assert_eq!(integer(Op::VAddI32, 0x7fff_ffff, 1), 0x7fff_ffff);
    assert_eq!(integer(Op::VSubI32, 0x8000_0000, 1), 0x8000_0000);
    assert_eq!(integer(Op::VAddU16, 0xffff, 2), 0xffff);
}

#[test]
fn minimum_and_maximum_know_nans_by_ieee_mode() {
    let signalling = f32::from_bits(0x7f80_0001);
    let bits = |op, mode, a: f32, b: f32| single(op, mode, a, b).to_bits();
    for op in [Op::VMinF32, Op::VMaxF32] {
        assert_eq!(bits(op, 0x3f0, signalling, 1.0), 0x7fc0_0001, "quieted");
        assert_eq!(bits(op, 0x1f0, signalling, 1.0), 0x3f80_0000, "the other one");
        assert_eq!(bits(op, 0x3f0, f32::NAN, 1.0), 0x3f80_0000);
        assert_eq!(bits(op, 0x3f0, 1.0, f32::NAN), 0x3f80_0000);
    }
    assert_eq!(bits(Op::VMinF32, 0x3f0, 0.0, -0.0), 0x8000_0000);
    assert_eq!(bits(Op::VMaxF32, 0x3f0, -0.0, 0.0), 0);
}

/// Against the host's library, which is within one unit of its own precision: that is far less than
/// one of single precision.
#[test]
fn transcendental_functions_are_the_nearest_numbers() {
    let mut numbers = Numbers(8);
    let mut check = |op: Op, make: fn(u32) -> f32, function: fn(f64) -> f64| {
        let mut wrong = 0;
        for _ in 0..20_000 {
            let x = make(numbers.word());
            let expected = function(f64::from(x)) as f32;
            let got = single(op, 0x3f0, x, 0.0);
            if expected.is_normal() && got != expected {
                wrong += 1;
                let apart = i64::from(got.to_bits()) - i64::from(expected.to_bits());
                assert!(apart.abs() <= 1, "{op:?} of {x:e}: {got:e}, not {expected:e}");
            }
        }
        // Ties of the host's last place may go the other way.
        assert!(wrong <= 2, "{op:?}: {wrong} results are not the nearest");
    };
    // Denormal sources are zeros to some of them.
    let any = |bits: u32| f32::from_bits((bits & 0x7fff_ffff).max(f32::MIN_POSITIVE.to_bits()));
    let small = |bits: u32| (bits as i32 >> 8) as f32 / 65536.0;
    check(Op::VExpF32, small, f64::exp2);
    check(Op::VLogF32, any, f64::log2);
    check(Op::VSqrtF32, any, f64::sqrt);
    check(Op::VRcpF32, any, f64::recip);
    check(Op::VRsqF32, any, |x| 1.0 / x.sqrt());
    // In turns: exact arguments of the host's function, by reduction to a quarter of a turn.
    check(Op::VSinF32, |bits| (bits >> 8) as f32 / 67_108_864.0, |x| (x * std::f64::consts::TAU).sin());
    check(Op::VCosF32, |bits| (bits >> 9) as f32 / 67_108_864.0, |x| (x * std::f64::consts::TAU).cos());
}

#[test]
fn sine_and_cosine_at_quarters_and_beyond() {
    let of = |op, x: f32| single(op, 0x3f0, x, 0.0);
    for (x, sine, cosine) in [
        (0.0, 0.0, 1.0),
        (0.25, 1.0, 0.0),
        (0.5, 0.0, -1.0),
        (0.75, -1.0, 0.0),
        (-0.25, -1.0, 0.0),
        (200.25, 1.0, 0.0),
        (300.25, 0.0, 1.0),
    ] {
        assert_eq!((of(Op::VSinF32, x), of(Op::VCosF32, x)), (sine, cosine), "{x}");
    }
    assert!(of(Op::VSinF32, f32::INFINITY).is_nan());
}

/// A segment of 2/pi: together they are 2/pi, to as many bits as the host has.
#[test]
fn segments_of_two_over_pi() {
    let segment = |x: f64, n: u64| {
        f64::from_bits(run(Op::VTrigPreopF64, Target::Gfx900, 0x3f0, Mods::default(), [x.to_bits(), n, 0]))
    };
    let (first, second) = (segment(1.0, 0), segment(1.0, 1));
    let two_over_pi = std::f64::consts::FRAC_2_PI;
    assert!(first <= two_over_pi && two_over_pi - first < 2f64.powi(-52));
    // What is missing in the first is the second: 2/pi =
    // 0.636619772367581343075535053490057448137838582961825...
    assert!(second > 0.0 && second < 2f64.powi(-53));
    let rest = (two_over_pi - first) - second;
    assert!(rest.abs() < 2f64.powi(-53));
    // Large arguments take later bits: a multiple of the segments before is left out.
    let later = segment(2f64.powi(200), 0);
    assert!(later < 2f64.powi(-140), "{later:e}");
}
