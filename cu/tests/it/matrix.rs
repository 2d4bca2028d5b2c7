// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations against the published models of their sums, computed with the host's floating
//! point, and against the published places of their elements.

#![allow(
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    reason = "a test"
)]

use crate::support;

use support::{group, wave, Numbers, BASE};
use vkfd_cu::{reference, Flat, Wave};
use vkfd_isa::{Format, Inst, Mods, Op, Operand, Target};

/// Registers of A, B, and C and D.
const A: u16 = 0;
const B: u16 = 8;
const C: u16 = 16;

fn inst(op: Op, mods: Mods) -> Inst {
    Inst { mods, ..support::inst(op, Format::Vop3p, C, [A, B, C]) }
}

/// How an operation lays its matrices out, and how its elements are read.
#[derive(Clone, Copy)]
struct Layout {
    op: Op,
    target: Target,
    m: usize,
    k: usize,
    blocks: usize,
    bits: usize,
}

impl Layout {
    /// Elements in a lane.
    fn in_lane(self) -> usize {
        self.m * self.k * self.blocks / 64
    }

    /// Lane and number of element `k` of row `i`.
    fn a(self, i: usize, k: usize, block: usize) -> (usize, usize) {
        let rest = k / self.in_lane();
        ((rest * self.blocks + block) * self.m + i, k % self.in_lane())
    }

    /// Lane and register of D: the formulas of AMD's calculator, solved for both.
    fn d(self, i: usize, j: usize, block: usize) -> (usize, usize) {
        match (self.m, self.bits) {
            (16, 64) => (16 * (i % 4) + j, i / 4),
            (4, 64) => (16 * i + 4 * block + j, 0),
            (32, _) => ((32 * (i / 4)) % 64 + j, 16 * block + 4 * (i / 8) + i % 4),
            (16, _) => (16 * (i / 4) + j, 4 * block + i % 4),
            _ => (4 * block + j, i),
        }
    }
}

fn element(wave: &Wave, first: u16, lane: usize, n: usize, bits: usize) -> u64 {
    let row = |at: usize| u64::from(wave.rows[usize::from(first) + at].0[lane]);
    if bits == 64 {
        row(2 * n) | row(2 * n + 1) << 32
    } else {
        row(n * bits / 32) >> (n * bits % 32) & ((1 << bits) - 1)
    }
}

/// Fills A, B and C, executes, and compares every element of D with `sum` of its products and C.
fn compare(layout: Layout, mut fill: impl FnMut(usize) -> u32, sum: impl Fn(&[(u64, u64)], u64) -> u64) -> usize {
    let mut wave = wave(layout.target);
    for (at, row) in wave.rows.iter_mut().enumerate().take(64) {
        for word in &mut row.0 {
            *word = fill(at);
        }
    }
    // EXEC has no part.
    wave.set_pair(Operand::EXEC, 0x5555);
    let before = wave.clone();
    let mut world = Flat::new(BASE, 1);
    reference::execute(&inst(layout.op, Mods::default()), &mut wave, &mut group(0), &mut world).expect("executes");
    let wide = if layout.bits == 64 { 64 } else { 32 };
    let mut compared = 0;
    for block in 0..layout.blocks {
        for i in 0..layout.m {
            for j in 0..layout.m {
                let terms: Vec<(u64, u64)> = (0..layout.k)
                    .map(|k| {
                        let ((a, n), (b, o)) = (layout.a(i, k, block), layout.a(j, k, block));
                        (element(&before, A, a, n, layout.bits), element(&before, B, b, o, layout.bits))
                    })
                    .collect();
                let (lane, at) = layout.d(i, j, block);
                let expected = sum(&terms, element(&before, C, lane, at, wide));
                let got = element(&wave, C, lane, at, wide);
                let nan = |bits: u64| {
                    if wide == 64 {
                        f64::from_bits(bits).is_nan()
                    } else {
                        f32::from_bits(bits as u32).is_nan()
                    }
                };
                assert!(
                    got == expected || layout.bits > 8 && nan(got) && nan(expected),
                    "{:?} on {}: [{i}][{j}] of block {block}: {got:#x}, the model gives {expected:#x}",
                    layout.op,
                    layout.target
                );
                compared += 1;
            }
        }
    }
    compared
}

fn half(bits: u64) -> f32 {
    let sign = if bits >> 15 & 1 == 1 { -1.0 } else { 1.0 };
    let (field, stored) = ((bits >> 10 & 31) as i32, (bits & 0x3ff) as f32);
    match field {
        0 => sign * stored * 2f32.powi(-24),
        31 if stored == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1024.0 + stored) * 2f32.powi(field - 25),
    }
}

fn brain(bits: u64) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Denormal sums are zeros that keep their sign.
fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE {
        x * 0.0
    } else {
        x
    }
}

fn tree(terms: &[(f32, f32)]) -> f32 {
    match terms {
        [(a, b)] => flush(a.mul_add(*b, 0.0)),
        _ => {
            let (left, right) = terms.split_at(terms.len() / 2);
            flush(tree(left) + tree(right))
        }
    }
}

/// CDNA2's sum: groups as trees, each step rounded, denormals flushed.
fn cdna2(terms: &[(u64, u64)], c: u64, group: usize, wide: fn(u64) -> f32, least: f32) -> u64 {
    let flushed = |x: f32, least: f32| if x.abs() < least { 0.0 } else { x };
    let terms: Vec<(f32, f32)> =
        terms.iter().map(|&(a, b)| (flushed(wide(a), least), flushed(wide(b), least))).collect();
    let first = flushed(f32::from_bits(c as u32), f32::MIN_POSITIVE);
    terms.chunks(group).fold(first, |sum, group| flush(sum + tree(group))).to_bits().into()
}

/// Random words; of four, one is an edge.
fn random(seed: u64) -> impl FnMut(usize) -> u32 {
    let mut numbers = Numbers(seed);
    move |_| match numbers.next() % 8 {
        0 => [0, 0x8000_0001, 0x0001_0001, 0x3c00_3c00, 0x7bff_fbff, 0x3f80_0000, 0x0080_0000, 0x03ff_8400]
            [numbers.word() as usize % 8],
        1 => numbers.word() & 0xf800_f800,
        _ => {
            // Halves, bfloat16 and single precision of moderate size alike.
            let bits = numbers.word();
            bits & 0x83ff_83ff | 0x3800_3800 | (bits >> 3 & 0x0400_0400)
        }
    }
}

#[test]
fn chains_of_fused_operations() {
    let f32s = [
        (Op::VMfmaF32_32x32x1f32, 32, 1, 2),
        (Op::VMfmaF32_16x16x1f32, 16, 1, 4),
        (Op::VMfmaF32_4x4x1f32, 4, 1, 16),
        (Op::VMfmaF32_32x32x2f32, 32, 2, 1),
        (Op::VMfmaF32_16x16x4f32, 16, 4, 1),
    ];
    for target in [Target::Gfx90a, Target::Gfx942] {
        for (seed, (op, m, k, blocks)) in f32s.into_iter().enumerate() {
            let layout = Layout { op, target, m, k, blocks, bits: 32 };
            compare(layout, random(seed as u64), |terms, c| {
                let single = |bits: u64| f32::from_bits(bits as u32);
                terms.iter().fold(single(c), |sum, &(a, b)| single(a).mul_add(single(b), sum)).to_bits().into()
            });
        }
        for (op, m, blocks) in [(Op::VMfmaF64_16x16x4f64, 16, 1), (Op::VMfmaF64_4x4x4f64, 4, 4)] {
            let layout = Layout { op, target, m, k: 4, blocks, bits: 64 };
            compare(layout, random(9), |terms, c| {
                let sum = |sum: f64, &(a, b): &(u64, u64)| f64::from_bits(a).mul_add(f64::from_bits(b), sum);
                terms.iter().fold(f64::from_bits(c), sum).to_bits()
            });
        }
    }
}

#[test]
fn cdna2_adds_groups_as_trees_without_denormals() {
    let target = Target::Gfx90a;
    for (seed, (op, m, k, blocks)) in [
        (Op::VMfmaF32_32x32x4f16, 32, 4, 2),
        (Op::VMfmaF32_16x16x4f16, 16, 4, 4),
        (Op::VMfmaF32_4x4x4f16, 4, 4, 16),
        (Op::VMfmaF32_32x32x8f16, 32, 8, 1),
        (Op::VMfmaF32_16x16x16f16, 16, 16, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let layout = Layout { op, target, m, k, blocks, bits: 16 };
        compare(layout, random(20 + seed as u64), |terms, c| cdna2(terms, c, 4, half, 2f32.powi(-14)));
    }
    for (seed, (op, m, k, blocks, group)) in [
        (Op::VMfmaF32_32x32x2bf16, 32, 2, 2, 2),
        (Op::VMfmaF32_16x16x2bf16, 16, 2, 4, 2),
        (Op::VMfmaF32_4x4x2bf16, 4, 2, 16, 2),
        (Op::VMfmaF32_32x32x4bf16, 32, 4, 1, 2),
        (Op::VMfmaF32_16x16x8bf16, 16, 8, 1, 2),
        (Op::VMfmaF32_32x32x4bf16_1k, 32, 4, 2, 4),
        (Op::VMfmaF32_16x16x4bf16_1k, 16, 4, 4, 4),
        (Op::VMfmaF32_4x4x4bf16_1k, 4, 4, 16, 4),
        (Op::VMfmaF32_32x32x8bf16_1k, 32, 8, 1, 4),
        (Op::VMfmaF32_16x16x16bf16_1k, 16, 16, 1, 4),
    ]
    .into_iter()
    .enumerate()
    {
        let layout = Layout { op, target, m, k, blocks, bits: 16 };
        compare(layout, random(40 + seed as u64), |terms, c| cdna2(terms, c, group, brain, f32::MIN_POSITIVE));
    }
}

/// Significand with one digit before the point, and exponent; denormals have the least exponent.
fn parts(x: f64, least: i32) -> (f64, i32) {
    if x == 0.0 {
        return (0.0, -999);
    }
    let exponent = ((x.abs().to_bits() >> 52) as i32 - 1023).max(least);
    (x / 2f64.powi(exponent), exponent)
}

/// CDNA3's sum of a group: terms cut off at 24 bits under the largest exponent, then both sums
/// downwards.
fn cdna3(terms: &[(u64, u64)], c: u64, wide: fn(u64) -> f32, least: i32) -> u64 {
    let sum = |sum: f64, group: &[(u64, u64)]| -> f64 {
        let factors: Vec<(f64, f64)> = group.iter().map(|&(a, b)| (wide(a).into(), wide(b).into())).collect();
        let plain = factors.iter().map(|(a, b)| a * b).sum::<f64>() + sum;
        if !plain.is_finite() {
            return plain;
        }
        let products: Vec<(f64, i32)> = factors
            .iter()
            .map(|&(a, b)| {
                let ((s, e), (t, f)) = (parts(a, least), parts(b, least));
                (s * t, e + f)
            })
            .collect();
        let top = products.iter().map(|(_, e)| *e).max().unwrap_or(0);
        let total: f64 =
            products.iter().map(|(s, e)| (s * 2f64.powi((24 + e - top).max(-1000))).trunc() / 2f64.powi(24)).sum();
        let (s, e) = parts(sum, -126);
        let most = top.max(e);
        let floor = |x: f64, bits: i32, e: i32| (x * 2f64.powi((bits + e - most).max(-1000))).floor() / 2f64.powi(bits);
        let result = (floor(total, 31, top) + floor(s, 24, e)) * 2f64.powi(most);
        f64::from(result as f32)
    };
    let result = terms.chunks(8).fold(f64::from(f32::from_bits(c as u32)), sum);
    (result as f32).to_bits().into()
}

#[test]
fn cdna3_aligns_and_cuts_off() {
    let target = Target::Gfx942;
    let mut different = 0;
    for (seed, (op, m, k, blocks)) in [
        (Op::VMfmaF32_32x32x4f16, 32, 4, 2),
        (Op::VMfmaF32_16x16x4f16, 16, 4, 4),
        (Op::VMfmaF32_32x32x8f16, 32, 8, 1),
        (Op::VMfmaF32_16x16x16f16, 16, 16, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let layout = Layout { op, target, m, k, blocks, bits: 16 };
        compare(layout, random(60 + seed as u64), |terms, c| cdna3(terms, c, half, -14));
        different += usize::from(k == 16);
    }
    let layout = Layout { op: Op::VMfmaF32_16x16x16bf16_1k, target, m: 16, k: 16, blocks: 1, bits: 16 };
    compare(layout, random(70), |terms, c| cdna3(terms, c, brain, -126));
    assert_eq!(different, 1);
}

#[test]
#[should_panic(expected = "the model gives")]
fn another_order_is_noticed() {
    let layout = Layout { op: Op::VMfmaF32_16x16x16f16, target: Target::Gfx90a, m: 16, k: 16, blocks: 1, bits: 16 };
    compare(layout, random(1), |terms, c| cdna2(terms, c, 2, half, 2f32.powi(-14)));
}

#[test]
fn integers_wrap() {
    for (op, target, m, k, blocks) in [
        (Op::VMfmaI32_32x32x4i8, Target::Gfx90a, 32, 4, 2),
        (Op::VMfmaI32_16x16x4i8, Target::Gfx90a, 16, 4, 4),
        (Op::VMfmaI32_4x4x4i8, Target::Gfx90a, 4, 4, 16),
        (Op::VMfmaI32_32x32x8i8, Target::Gfx90a, 32, 8, 1),
        (Op::VMfmaI32_16x16x16i8, Target::Gfx90a, 16, 16, 1),
        (Op::VMfmaI32_32x32x16I8, Target::Gfx942, 32, 16, 1),
        (Op::VMfmaI32_16x16x32I8, Target::Gfx942, 16, 32, 1),
    ] {
        let mut numbers = Numbers(3);
        let layout = Layout { op, target, m, k, blocks, bits: 8 };
        compare(
            layout,
            |_| numbers.word(),
            |terms, c| {
                let byte = |bits: u64| i32::from(bits as u8 as i8);
                let sum = |sum: i32, &(a, b): &(u64, u64)| sum.wrapping_add(byte(a) * byte(b));
                u64::from(terms.iter().fold(c as i32, sum) as u32)
            },
        );
    }
}

/// gfx11: rows and columns are in every sixteen lanes alike; results alternate between the halves
/// of a wave.
#[test]
fn wmma_multiplies_sixteen_by_sixteen() {
    for lanes in [32usize, 64] {
        let mut numbers = Numbers(lanes as u64);
        let mut wave = wave(Target::Gfx1100);
        wave.lanes = lanes as u8;
        let a: [[i32; 16]; 16] = std::array::from_fn(|_| std::array::from_fn(|_| (numbers.word() % 17) as i32 - 8));
        let b: [[i32; 16]; 16] = std::array::from_fn(|_| std::array::from_fn(|_| (numbers.word() % 17) as i32 - 8));
        // Small integers as halves: 8 + n is exact, and so are its sums.
        let encode = |n: i32| -> u32 {
            let magnitude = n.unsigned_abs();
            if magnitude == 0 {
                return 0;
            }
            let top = 31 - magnitude.leading_zeros();
            let bits = (15 + top) << 10 | (magnitude << (10 - top) & 0x3ff);
            bits | u32::from(n < 0) << 15
        };
        for lane in 0..lanes {
            for k in 0..16 {
                let by = 16 * (k % 2);
                wave.rows[usize::from(A) + k / 2].0[lane] |= encode(a[lane % 16][k]) << by;
                wave.rows[usize::from(B) + k / 2].0[lane] |= encode(b[k][lane % 16]) << by;
            }
        }
        let results = 256 / lanes;
        for n in 0..results {
            wave.rows[usize::from(C) + n].0 = [1.0f32.to_bits(); 64];
        }
        let mut world = Flat::new(BASE, 1);
        let inst = inst(Op::VWmmaF32_16x16x16F16, Mods::default());
        reference::execute(&inst, &mut wave, &mut group(0), &mut world).expect("executes");
        for (i, row) in a.iter().enumerate() {
            for j in 0..16 {
                let expected: i32 = 1 + row.iter().zip(&b).map(|(a, b)| a * b[j]).sum::<i32>();
                let (n, lane) = (i / (lanes / 16), i % (lanes / 16) * 16 + j);
                let got = f32::from_bits(wave.rows[usize::from(C) + n].0[lane]);
                assert_eq!(got, expected as f32, "wave of {lanes}: [{i}][{j}]");
            }
        }
    }
}
