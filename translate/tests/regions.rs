// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Regions by themselves: special values in all combinations against a plain model, both widths
//! against each other, and masks and lanes that are not active.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

mod support;

use std::ffi::c_void;
use support::Waves;
use vkfd_isa::{Extension, Format, Inst, Memory, Mods, Op, Operand};
use vkfd_sabotage::{Switch, Switches};
use vkfd_translate::{has, translate, Accesses, Accessing, Context, Left, Mending, Translator, Width};

/// The mark of [`mend`].
const MENDED: u32 = 0x1234_5678;

/// Marks the lanes that it is asked for.
unsafe extern "sysv64" fn mend(_: *mut c_void, mending: *mut Mending) {
    // SAFETY: the context's.
    let mending = unsafe { &mut *mending };
    for lane in (0..16).filter(|lane| mending.lanes >> lane & 1 != 0) {
        mending.result[lane] = MENDED;
    }
}

unsafe extern "sysv64" fn access(_: *mut c_void, _: *mut Accessing) -> u32 {
    0
}

fn inst(op: Op, format: Format, dst: u16, src: [Operand; 3]) -> Inst {
    Inst {
        op,
        format,
        extension: Extension::None,
        bytes: 8,
        entry: 0,
        dst: Operand::Vgpr(dst),
        sdst: Operand::None,
        src,
        imm: 0,
        mods: Mods::default(),
        memory: Memory::default(),
        pair: None,
    }
}

fn rows(numbers: [u16; 3]) -> [Operand; 3] {
    numbers.map(Operand::Vgpr)
}

#[repr(align(64))]
struct State {
    rows: [[u32; 64]; 64],
    scalars: [u32; 128],
}

fn state() -> Box<State> {
    let mut state = Box::new(State { rows: [[0; 64]; 64], scalars: [0; 128] });
    (state.scalars[126], state.scalars[127]) = (u32::MAX, u32::MAX);
    state
}

fn widths() -> impl Iterator<Item = Width> {
    [Width::Avx2, Width::Avx512].into_iter().filter(|width| width.is_there())
}

fn run(insts: &[Inst], width: Width, state: &mut State) {
    run_with(insts, width, state, Switches::NONE);
}

fn run_with(insts: &[Inst], width: Width, state: &mut State, sabotage: Switches) {
    let mut translator = Translator::default();
    let mut context = Context::new(mend, access);
    let regions = translate(insts, &Waves::<64>, (width, Accesses::All), &mut translator, &sabotage, |op, why| {
        panic!("{op:?}: {why:?}")
    });
    assert_eq!(regions.iter().map(|region| region.insts.len()).sum::<usize>(), insts.len());
    for region in regions {
        let (rows, scalars) = (state.rows.as_mut_ptr().cast(), state.scalars.as_mut_ptr());
        // SAFETY: as many rows and scalars as `Waves` has.
        let left = unsafe { region.run(&mut context, rows, scalars, 1) };
        assert_eq!(left, Left::Done { rounds: 1, again: false });
    }
}

/// NaNs of both kinds and signs, infinities, zeros, denormals, extremes.
const SPECIAL: [u32; 16] = [
    0,
    0x8000_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_1234,
    0xffc0_abcd,
    0x7f80_0001,
    0xffbf_ffff,
    1,
    0x807f_ffff,
    0x3f80_0000,
    0xbf80_0001,
    0x7f7f_ffff,
    0x0080_0000,
    0x3380_0000,
    0xdead_beef,
];

fn is_nan(a: u32) -> bool {
    a & 0x7fff_ffff > 0x7f80_0000
}

/// The first source that is NaN, quieted; the negative quiet one of an invalid operation.
fn handed_on(sources: &[u32], value: f32) -> u32 {
    match sources.iter().find(|&&source| is_nan(source)) {
        Some(nan) => nan | 1 << 22,
        None if value.is_nan() => 0xffc0_0000,
        None => value.to_bits(),
    }
}

#[test]
fn nans_are_handed_on_in_the_order_of_the_sources() {
    let f = f32::from_bits;
    // Four each, so that each has a region of its own; the last has its destination as a source.
    let ops = [Op::VFmaF32, Op::VAddF32, Op::VSubF32, Op::VMulF32].map(|op| [0, 1, 2].map(|own| (op, own)));
    for width in widths() {
        for (op, own) in ops.into_iter().flatten() {
            let format = if op == Op::VFmaF32 { Format::Vop3 } else { Format::Vop2 };
            let insts = [10, 11, 12, own].map(|dst| inst(op, format, dst, rows([0, 1, 2])));
            for group in 0..64u32 {
                let mut state = state();
                let case = |lane: u32| {
                    let number = (group * 64 + lane) as usize;
                    [SPECIAL[number & 15], SPECIAL[number >> 4 & 15], SPECIAL[number >> 8 & 15]]
                };
                for lane in 0..64u32 {
                    for (row, word) in case(lane).into_iter().enumerate() {
                        state.rows[row][lane as usize] = word;
                    }
                }
                run(&insts, width, &mut state);
                for lane in 0..64u32 {
                    let [a, b, c] = case(lane);
                    let expected = match op {
                        Op::VFmaF32 => handed_on(&[a, b, c], f(a).mul_add(f(b), f(c))),
                        Op::VAddF32 => handed_on(&[a, b], f(a) + f(b)),
                        Op::VSubF32 => handed_on(&[a, b], f(a) - f(b)),
                        _ => handed_on(&[a, b], f(a) * f(b)),
                    };
                    for row in [10, 11, 12, usize::from(own)] {
                        let found = state.rows[row][lane as usize];
                        assert_eq!(found, expected, "{width:?} {op:?} v{row} {a:#x} {b:#x} {c:#x}: {found:#x}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_mask_is_made_and_used_and_inactive_lanes_stay() {
    for width in widths() {
        let vcc = Operand::Scalar(Operand::VCC);
        let choose = |dst| inst(Op::VCndmaskB32, Format::Vop3, dst, [Operand::Vgpr(0), Operand::Vgpr(1), vcc]);
        let mut compare = inst(Op::VCmpLtU32, Format::Vop3, 0, rows([0, 1, 0]));
        compare.dst = vcc;
        let mut sum = inst(Op::VAddCoU32, Format::Vop2, 5, rows([0, 1, 0]));
        sum.sdst = Operand::Scalar(8);
        let insts = [compare, choose(3), choose(4), sum, choose(6)];
        let mut state = state();
        let exec = 0xff00_00f0_1234_0000_u64;
        state.scalars[126] = exec as u32;
        state.scalars[127] = (exec >> 32) as u32;
        (state.scalars[106], state.scalars[107]) = (u32::MAX, u32::MAX);
        for lane in 0..64 {
            state.rows[0][lane] = if lane % 3 == 0 { u32::MAX - 5 } else { 7 };
            state.rows[1][lane] = lane as u32;
            for row in 3..7 {
                state.rows[row][lane] = 99;
            }
        }
        run(&insts, width, &mut state);
        let pair = |state: &State, n: usize| u64::from(state.scalars[n]) | u64::from(state.scalars[n + 1]) << 32;
        for lane in 0..64 {
            let (a, b) = (state.rows[0][lane], state.rows[1][lane]);
            let active = exec >> lane & 1 != 0;
            let expected = if !active { [99, 99] } else { [if a < b { b } else { a }, a.wrapping_add(b)] };
            assert_eq!([state.rows[3][lane], state.rows[5][lane]], expected, "{width:?} lane {lane}");
            assert_eq!(pair(&state, 106) >> lane & 1 != 0, active && a < b, "{width:?} lane {lane}");
            assert_eq!(pair(&state, 8) >> lane & 1 != 0, active && a.checked_add(b).is_none(), "{width:?} lane {lane}");
        }
    }
}

#[test]
fn what_double_precision_does_not_decide_is_mended() {
    for width in widths() {
        let insts = [3, 4, 5, 6].map(|dst| inst(Op::VRsqF32, Format::Vop1, dst, rows([0, 0, 0])));
        let mut state = state();
        // The values that are representable exactly and near them: no result is near the middle.
        for lane in 0..64 {
            state.rows[0][lane] = (1.0 + lane as f32).to_bits();
        }
        run(&insts, width, &mut state);
        for lane in 0..64 {
            let expected = (1.0 / (1.0 + lane as f64).sqrt()) as f32;
            assert_eq!(state.rows[6][lane], expected.to_bits(), "{width:?} lane {lane}");
        }
        state.scalars[127] = 0;
        run_with(&insts, width, &mut state, Switches::NONE.with(Switch::MendAll));
        let (mended, kept) = state.rows[6].split_at(32);
        assert!(mended.iter().all(|word| *word == MENDED) && kept.iter().all(|word| *word != MENDED));
    }
}

/// Of all numbers from one to four: the factor of other ones is a power of two. Double precision
/// decides, or it does not and says it.
#[test]
fn reciprocal_roots_of_all_numbers_are_rounded_once() {
    for width in widths() {
        let insts = [0, 1, 2, 3].map(|row| inst(Op::VRsqF32, Format::Vop1, 8 + row, rows([row, 0, 0])));
        let mut translator = Translator::default();
        let mut context = Context::new(mend, access);
        let how = (width, Accesses::All);
        let regions =
            translate(&insts, &Waves::<64>, how, &mut translator, &Switches::NONE, |op, why| panic!("{op:?}: {why:?}"));
        let mut state = state();
        let mut open = 0;
        for first in (1f32.to_bits()..4f32.to_bits()).step_by(4 * 64) {
            for (number, word) in (first..).zip(state.rows[..4].iter_mut().flatten()) {
                *word = number;
            }
            for region in &regions {
                // SAFETY: as many rows and scalars as `Waves` has.
                let left =
                    unsafe { region.run(&mut context, state.rows.as_mut_ptr().cast(), state.scalars.as_mut_ptr(), 1) };
                assert_eq!(left, Left::Done { rounds: 1, again: false });
            }
            for (number, found) in (first..first + 256).zip(state.rows[8..12].iter().flatten()) {
                let exact = 1.0 / f64::from(f32::from_bits(number)).sqrt();
                if *found == MENDED {
                    open += 1;
                    let from_middle = (exact.to_bits() & 0x1fff_ffff).abs_diff(1 << 28);
                    assert!(from_middle <= 16, "{width:?} {number:#x}: {exact}");
                } else {
                    assert_eq!(*found, (exact as f32).to_bits(), "{width:?} {number:#x}");
                }
            }
        }
        assert!(open < 100, "{width:?}: {open}");
    }
}

#[test]
fn code_that_no_region_has_is_reported() {
    let mut translator = Translator::default();
    let sine = inst(Op::VSinF32, Format::Vop1, 1, rows([0, 0, 0]));
    for width in widths() {
        let mut refused = Vec::new();
        let add = inst(Op::VAddF32, Format::Vop2, 1, rows([0, 1, 0]));
        let insts = [add, add, add, sine, add, add, add, add];
        let regions =
            translate(&insts, &Waves::<64>, (width, Accesses::All), &mut translator, &Switches::NONE, |op, why| {
                refused.push((op, why.name()))
            });
        assert_eq!(regions.iter().map(|region| region.insts.clone()).collect::<Vec<_>>(), vec![4..8]);
        assert_eq!(refused, [(Op::VSinF32, "operation")]);
    }
}

/// Every operation of the table in both widths, on random and special values: the same bits.
#[test]
fn both_widths_give_the_same() {
    if widths().count() < 2 {
        return;
    }
    let mut numbers = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        numbers ^= numbers << 13;
        numbers ^= numbers >> 7;
        numbers ^= numbers << 17;
        (numbers >> 16) as u32
    };
    let mut count = 0;
    for &op in Op::ALL.iter().filter(|op| op.name().starts_with("v_") && has(**op)) {
        let is_mask = op.name().starts_with("v_cmp");
        let pair = Operand::Scalar(8);
        let insts = [10, 12, 14, 16].map(|dst| {
            let mut one = inst(op, Format::Vop3, dst, rows([0, 2, 4]));
            (one.sdst, one.mods.op_sel_hi) = (pair, 7);
            if matches!(op, Op::VCndmaskB32 | Op::VAddcCoU32 | Op::VSubbCoU32 | Op::VSubbrevCoU32) {
                one.src[2] = Operand::Scalar(10);
            }
            if matches!(op, Op::VLshlrevB64 | Op::VLshrrevB64 | Op::VAshrrevI64) {
                one.src[0] = Operand::Int(7);
            }
            if is_mask {
                one.dst = pair;
            }
            one
        });
        for _ in 0..8 {
            let mut begin = state();
            begin.rows.iter_mut().flatten().for_each(|word| {
                *word = match next() % 4 {
                    0 => SPECIAL[next() as usize % 16],
                    1 => next() & 0x87ff_ffff | 0x3c00_0000,
                    2 => next() % 40,
                    _ => next(),
                }
            });
            begin.scalars[..120].iter_mut().for_each(|word| *word = next());
            let found: Vec<Box<State>> = widths()
                .map(|width| {
                    let mut state = Box::new(State { rows: begin.rows, scalars: begin.scalars });
                    run(&insts, width, &mut state);
                    state
                })
                .collect();
            let [one, two] = &found[..] else { return };
            for (index, (a, b)) in one.rows.iter().zip(&two.rows).enumerate() {
                let lane = a.iter().zip(b).position(|(a, b)| a != b);
                let inputs = lane.map(|lane| [0, 2, 4].map(|row| begin.rows[row][lane]));
                assert!(
                    lane.is_none(),
                    "{op:?} v{index} lane {lane:?} {:x?}: {:x?}",
                    inputs,
                    lane.map(|n| (a[n], b[n]))
                );
            }
            assert_eq!(one.scalars, two.scalars, "{op:?}");
        }
        count += 1;
    }
    assert!(count > 100, "{count}");
}

/// Conversions to integers, also of numbers that are out of range.
#[test]
fn conversions_are_the_language_s() {
    for width in widths() {
        for (op, model) in [
            (Op::VCvtI32F32, (|a| f32::from_bits(a) as i32 as u32) as fn(u32) -> u32),
            (Op::VCvtU32F32, |a| f32::from_bits(a) as u32),
        ] {
            let insts = [3, 4, 5, 6].map(|dst| inst(op, Format::Vop1, dst, rows([0, 0, 0])));
            let mut state = state();
            for lane in 0..64 {
                let numbers = [2147483648f32, 4294967296.0, 4294967040.0, -1.0, -0.5, 2147483520.0, -2147483648.0, 3e9];
                state.rows[0][lane] = if lane < 16 { SPECIAL[lane] } else { numbers[lane % 8].to_bits() };
            }
            run(&insts, width, &mut state);
            for lane in 0..64 {
                let from = state.rows[0][lane];
                assert_eq!(state.rows[6][lane], model(from), "{width:?} {op:?} {from:#x}");
            }
        }
    }
}

/// The first source that is NaN, quieted; the negative quiet one of an invalid operation.
fn handed_on64(sources: &[f64], value: f64) -> u64 {
    match sources.iter().find(|source| source.is_nan()) {
        Some(nan) => nan.to_bits() | 1 << 51,
        None if value.is_nan() => 0xfff8 << 48,
        None => value.to_bits(),
    }
}

/// Sums, products and fused operations in double precision, of special values in all combinations,
/// with sources of each kind.
#[test]
fn doubles_are_the_host_s() {
    let special: Vec<f64> = SPECIAL
        .iter()
        .map(|&word| f64::from_bits(u64::from(word & 0x8000_0000) << 32 | u64::from(word & 0x7fff_ffff) << 29 | 3))
        .map(|value| if value.is_nan() { value } else { f64::from_bits(value.to_bits() & !3) })
        .collect();
    let put = |state: &mut State, row: usize, lane: usize, value: f64| {
        let bits = value.to_bits();
        (state.rows[row][lane], state.rows[row + 1][lane]) = (bits as u32, (bits >> 32) as u32);
    };
    for width in widths() {
        for op in [Op::VFmaF64, Op::VAddF64, Op::VMulF64, Op::VFmacF64] {
            let tied = op == Op::VFmacF64;
            let make = |dst, src| inst(op, if tied { Format::Vop2 } else { Format::Vop3 }, dst, src);
            let mut negative = make(14, rows([0, 2, 4]));
            (negative.mods.neg, negative.mods.abs) = (1, 2);
            let scalar = make(16, [Operand::Scalar(8), Operand::Vgpr(2), Operand::Float(247)]);
            // The last has its destination as a source.
            let insts = [make(10, rows([0, 2, 4])), negative, scalar, make(2, rows([0, 2, 4]))];
            let insts = if tied { [make(10, insts[0].src), make(14, insts[0].src), insts[2], insts[3]] } else { insts };
            for group in 0..64usize {
                let mut state = state();
                let case = |lane: usize| {
                    let number = group * 64 + lane;
                    [number, number >> 4, number >> 8].map(|number| special[number & 15])
                };
                for lane in 0..64 {
                    for (row, value) in [0, 2, 4].into_iter().zip(case(lane)) {
                        put(&mut state, row, lane, value);
                    }
                    for row in [10, 14, 16] {
                        put(&mut state, row, lane, case(lane)[2]);
                    }
                }
                let number = special[group & 15].to_bits();
                (state.scalars[8], state.scalars[9]) = (number as u32, (number >> 32) as u32);
                (state.scalars[126], state.scalars[127]) = (0xffff_00ff, 0x7fff_ffff);
                run(&insts, width, &mut state);
                let active = 0x7fff_ffff_ffff_00ff_u64;
                let value = |[a, b, c]: [f64; 3]| match op {
                    Op::VAddF64 => handed_on64(&[a, b], a + b),
                    Op::VMulF64 => handed_on64(&[a, b], a * b),
                    _ => handed_on64(&[a, b, c], a.mul_add(b, c)),
                };
                // On gfx9 and here, what ends in a row is its third source, too, if it is tied.
                for lane in 0..64 {
                    let [a, b, c] = case(lane);
                    let second = |lane: usize| f64::from_bits(case(lane)[1].to_bits() & !(1 << 63));
                    let first = f64::from_bits(a.to_bits() ^ 1 << 63);
                    let expected = [
                        (10, value([a, b, c])),
                        (14, if tied { value([a, b, c]) } else { value([first, second(lane), c]) }),
                        (16, value([f64::from_bits(number), b, if tied { c } else { -4.0 }])),
                        (2, value([a, b, if tied { b } else { c }])),
                    ];
                    for (row, expected) in expected {
                        let before = if row == 2 { b } else { c }.to_bits();
                        let expected = if active >> lane & 1 != 0 { expected } else { before };
                        let found = u64::from(state.rows[row][lane]) | u64::from(state.rows[row + 1][lane]) << 32;
                        assert_eq!(found, expected, "{width:?} {op:?} v{row} {a:e} {b:e} {c:e}: {found:#x}");
                    }
                }
            }
        }
    }
}

/// Conversions between singles, integers and doubles, of special values and of those near the
/// middle between two singles.
#[test]
fn conversions_are_the_host_s() {
    let of_single = |word: u32| match f32::from_bits(word) {
        value if value.is_nan() => {
            let payload = u64::from(word & 0x7f_ffff) << 29;
            u64::from(word & 1 << 31) << 32 | 0x7ff8 << 48 | payload
        }
        value => f64::from(value).to_bits(),
    };
    let of_double = |bits: u64| match f64::from_bits(bits) {
        value if value.is_nan() => ((bits >> 32) as u32 & 1 << 31) | 0x7fc0_0000 | (bits >> 29) as u32 & 0x7f_ffff,
        value => (value as f32).to_bits(),
    };
    // Beside a single's bits: just below, at and just above the middle to the next.
    let below = [0, 1, 0x0fff_ffff, 0x1000_0000, 0x1000_0001, 0x1fff_ffff];
    for width in widths() {
        for group in 0..64_u32 {
            let mut state = state();
            let single = |lane: usize| match lane % 4 {
                0 => SPECIAL[(lane / 4 + group as usize) % SPECIAL.len()],
                _ => (group * 64 + lane as u32).wrapping_mul(0x9e37_79b9),
            };
            let double = |lane: usize| match lane % 3 {
                0 => of_single(single(lane)) | below[lane / 3 % 6],
                // Tiny singles, and what is none any more.
                1 => f64::to_bits(f64::from(f32::from_bits(single(lane) & 0x80ff_ffff)) * 1e-6),
                _ => u64::from(single(lane)) << 32 | u64::from(single(lane ^ 1)),
            };
            for lane in 0..64 {
                let bits = double(lane);
                state.rows[0][lane] = single(lane);
                (state.rows[2][lane], state.rows[3][lane]) = (bits as u32, (bits >> 32) as u32);
                state.rows[4][lane] = single(lane);
            }
            let number = double(group as usize);
            (state.scalars[8], state.scalars[9]) = (number as u32, (number >> 32) as u32);
            (state.scalars[126], state.scalars[127]) = (0xffff_00ff, 0x7fff_ffff);
            let vop1 = |op, dst, source| inst(op, Format::Vop1, dst, [source, Operand::None, Operand::None]);
            let mut negative = inst(Op::VCvtF32F64, Format::Vop3, 18, [Operand::Vgpr(2), Operand::None, Operand::None]);
            (negative.mods.neg, negative.mods.abs) = (1, 1);
            let insts = [
                vop1(Op::VCvtF64F32, 10, Operand::Vgpr(0)),
                vop1(Op::VCvtF64I32, 12, Operand::Vgpr(0)),
                vop1(Op::VCvtF32F64, 14, Operand::Vgpr(2)),
                vop1(Op::VCvtF32F64, 15, Operand::Scalar(8)),
                vop1(Op::VCvtF32F64, 16, Operand::Float(247)),
                vop1(Op::VCvtF64F32, 20, Operand::Scalar(8)),
                negative,
                // Over the source.
                vop1(Op::VCvtF32F64, 2, Operand::Vgpr(2)),
                vop1(Op::VCvtF64F32, 4, Operand::Vgpr(4)),
            ];
            let rows = state.rows;
            let before = |row: usize, lane: usize| rows[row][lane];
            run(&insts, width, &mut state);
            let active = 0x7fff_ffff_ffff_00ff_u64;
            for lane in 0..64 {
                let pairs = [
                    (10, of_single(single(lane))),
                    (12, f64::to_bits(f64::from(single(lane) as i32))),
                    (20, of_single(number as u32)),
                    (4, of_single(single(lane))),
                ];
                let words = [
                    (14, of_double(double(lane))),
                    (15, of_double(number)),
                    (16, (-4f32).to_bits()),
                    (18, of_double(double(lane) | 1 << 63)),
                    (2, of_double(double(lane))),
                ];
                let pairs =
                    pairs.into_iter().flat_map(|(row, bits)| [(row, bits as u32), (row + 1, (bits >> 32) as u32)]);
                for (row, expected) in pairs.chain(words) {
                    let expected = if active >> lane & 1 != 0 { expected } else { before(row, lane) };
                    let found = state.rows[row][lane];
                    assert_eq!(found, expected, "{width:?} v{row} of {:#x}, {:#x}", single(lane), double(lane));
                }
            }
        }
    }
}
