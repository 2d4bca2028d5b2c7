// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The steps of a division where MODE flushes denormals: a denormal denominator is zero to all of
//! them, as tinygrad's test of hardware (`test_div_scale_f32_denorm_denom`) has it.

#![allow(missing_docs, clippy::indexing_slicing, reason = "a test")]

use crate::support;

use support::{group, inst, wave, BASE};
use vkfd_cu::{reference, Flat, Mode};
use vkfd_isa::{Format, Inst, Op, Operand, Target};

/// Denormals of single precision are flushed, or kept.
const FLUSHES: u32 = 0xc0;
const KEEPS: u32 = 0xf0;

/// The result for three sources, and VCC.
fn run(op: Op, mode: u32, sources: [f32; 3]) -> (f32, u64) {
    let mut wave = wave(Target::Gfx1100);
    wave.mode = Mode(mode);
    for (row, source) in wave.rows.iter_mut().zip(sources) {
        row.0[0] = source.to_bits();
    }
    wave.set_pair(Operand::EXEC, 1);
    let vcc = Operand::Scalar(Operand::VCC);
    let sdst = if op == Op::VDivScaleF32 { vcc } else { Operand::None };
    let inst = Inst { sdst, ..inst(op, Format::Vop3, 8, [0, 1, 2]) };
    reference::execute(&inst, &mut wave, &mut group(0), &mut Flat::new(BASE, 1)).expect("executes");
    (f32::from_bits(wave.rows[8].0[0]), wave.vcc() & 1)
}

#[test]
fn a_denormal_denominator_is_zero_where_denormals_are_flushed() {
    let denormal = f32::from_bits(1);
    let (scaled, flag) = run(Op::VDivScaleF32, FLUSHES, [denormal, denormal, 1.0]);
    assert!(scaled.is_nan() && flag == 1, "{scaled} {flag}");
    // The last step makes the quotient of a case that the first step has given up.
    assert_eq!(run(Op::VDivFixupF32, FLUSHES, [f32::NAN, denormal, 1.0]).0, f32::INFINITY);

    let (scaled, flag) = run(Op::VDivScaleF32, KEEPS, [denormal, denormal, 1.0]);
    assert!(scaled > denormal && flag == 1, "it is scaled into range: {scaled} {flag}");
}
