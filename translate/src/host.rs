// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether the host's vectors give the bits that the table of operations relies on.
//!
//! Of two operands that are NaN the host hands one on, and makers of processors need not agree on
//! which. The first engine that translates has regions of sums, products and fused operations
//! compute all combinations of special values, and compares them with a plain model. If one
//! differs, the process translates nothing.

use crate::{translate, Accesses, Accessing, Context, Mending, Registers, Translator, Width};
use std::ffi::c_void;
use std::sync::OnceLock;
use vkfd_isa::{Extension, Format, Inst, Memory, Mods, Op, Operand};
use vkfd_sabotage::Switches;

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

const ROWS: usize = 8;

struct Waves;

impl Registers for Waves {
    fn lanes(&self) -> u8 {
        64
    }

    fn row(&self, operand: Operand) -> Option<u16> {
        match operand {
            Operand::Vgpr(n) if usize::from(n) < ROWS => Some(n),
            _ => None,
        }
    }

    fn scalar(&self, _: Operand, _: u8) -> Option<u8> {
        None
    }

    fn clears_half(&self, _: Op) -> bool {
        true
    }

    fn mask(&self, _: Operand) -> Option<u8> {
        None
    }
}

unsafe extern "sysv64" fn mend(_: *mut c_void, _: *mut Mending) {}

unsafe extern "sysv64" fn access(_: *mut c_void, _: *mut Accessing) -> u32 {
    0
}

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

fn model(op: Op, [a, b, c]: [u32; 3]) -> u32 {
    let f = f32::from_bits;
    match op {
        Op::VFmaF32 => handed_on(&[a, b, c], f(a).mul_add(f(b), f(c))),
        Op::VAddF32 => handed_on(&[a, b], f(a) + f(b)),
        Op::VSubF32 => handed_on(&[a, b], f(a) - f(b)),
        _ => handed_on(&[a, b], f(a) * f(b)),
    }
}

const OPS: [Op; 4] = [Op::VFmaF32, Op::VAddF32, Op::VSubF32, Op::VMulF32];

fn instruction(op: Op, dst: u16) -> Inst {
    Inst {
        op,
        format: Format::Vop3,
        extension: Extension::None,
        bytes: 8,
        entry: 0,
        dst: Operand::Vgpr(dst),
        sdst: Operand::None,
        src: [0, 1, 2].map(Operand::Vgpr),
        imm: 0,
        mods: Mods::default(),
        memory: Memory::default(),
        pair: None,
    }
}

/// Whether all results are the model's.
fn compare(width: Width, sabotage: &Switches) -> bool {
    let mut translator = Translator::default();
    let mut context = Context::new(mend, access);
    let insts: Vec<Inst> = OPS.iter().zip(3..).map(|(&op, dst)| instruction(op, dst)).collect();
    let regions = translate(&insts, &Waves, (width, Accesses::None), &mut translator, sabotage, |_, _| {});
    let [region] = &regions[..] else { return false };
    (0..64u32).all(|group| {
        let case = |lane: u32| {
            let number = (group * 64 + lane) as usize;
            [number, number >> 4, number >> 8].map(|number| SPECIAL[number & 15])
        };
        let mut rows = [[0u32; 64]; ROWS];
        for lane in 0..64 {
            for (row, word) in rows.iter_mut().zip(case(lane)) {
                row[lane as usize] = word;
            }
        }
        let mut scalars = [u32::MAX; 128];
        // SAFETY: as many rows and scalars as `Waves` has.
        unsafe { region.run(&mut context, rows.as_mut_ptr().cast(), scalars.as_mut_ptr(), 1) };
        OPS.iter().zip(&rows[3..]).all(|(&op, row)| (0..64).all(|lane| row[lane as usize] == model(op, case(lane))))
    })
}

/// Whether the processor has these vectors, and they give the bits that regions rely on.
#[must_use]
pub fn is_exact(width: Width) -> bool {
    static ANSWERS: [OnceLock<bool>; 2] = [OnceLock::new(), OnceLock::new()];
    width.is_there() && *ANSWERS[usize::from(width.is_wide())].get_or_init(|| compare(width, &Switches::NONE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_sabotage::Switch;

    #[test]
    fn another_order_of_operands_is_noticed() {
        for width in [Width::Avx2, Width::Avx512].into_iter().filter(|width| width.is_there()) {
            assert!(is_exact(width), "{width:?}");
            assert!(!compare(width, &Switches::NONE.with(Switch::SwappedSources)), "{width:?}");
        }
    }
}
