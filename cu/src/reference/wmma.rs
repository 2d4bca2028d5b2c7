// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of gfx11: D = A * B + C of 16 by 16, whatever EXEC says.
//!
//! Lane `l` holds row `l % 16` of A and column `l % 16` of B, the same in every 16 lanes. C and D:
//! element `n` of lane `l` is in row `n * lanes / 16 + l / 16` of column `l % 16`; 16-bit elements
//! take a half of a register each.
//!
//! The order of the sums is not published: here it is a chain of fused operations of single
//! precision over k. A 16-bit result is rounded once, at the end.

use super::float::{Format, Fpu, BF16, F16, F32};
use super::kind::{low32, sign_extend, Kind};
use super::operand::{self, row, whole};
use crate::exit::Exit;
use crate::few::Few;
use crate::group::Group;
use crate::wave::{Row, Wave};
use vkfd_isa::{Inst, Op, Operand};

/// What the matrices are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    Float(Format),
    Int(u32),
}

/// Elements of A and B, and of C and D.
fn shape(op: Op) -> Option<(Element, Element)> {
    Some(match op {
        Op::VWmmaF32_16x16x16F16 => (Element::Float(F16), Element::Float(F32)),
        Op::VWmmaF32_16x16x16Bf16 => (Element::Float(BF16), Element::Float(F32)),
        Op::VWmmaF16_16x16x16F16 => (Element::Float(F16), Element::Float(F16)),
        Op::VWmmaBf16_16x16x16Bf16 => (Element::Float(BF16), Element::Float(BF16)),
        Op::VWmmaI32_16x16x16Iu8 => (Element::Int(8), Element::Int(32)),
        Op::VWmmaI32_16x16x16Iu4 => (Element::Int(4), Element::Int(32)),
        _ => return None,
    })
}

/// Whether the operation is one of these.
pub(crate) fn knows(op: Op) -> bool {
    shape(op).is_some()
}

/// Executes one of these; nothing if the operation is none.
pub(crate) fn execute(inst: &Inst, wave: &mut Wave, group: &Group) -> Option<Result<(), Exit>> {
    shape(inst.op).map(|(factor, sum)| run(factor, sum, inst, wave, group))
}

fn read(wave: &Wave, group: &Group, src: Operand, words: usize) -> Result<Few<Row>, Exit> {
    if matches!(src, Operand::Vgpr(_)) {
        let first = row(wave, src, u16::try_from(words).unwrap_or(u16::MAX))?;
        return Ok((first..first + words).map(|at| whole(wave, at)).collect());
    }
    let value = low32(operand::uniform(wave, group, src, Kind::F32)?);
    Ok(Few::filled(Row([value; 64]), words))
}

fn word(rows: &[Row], n: usize, lane: usize) -> u64 {
    rows.get(n).and_then(|row| row.0.get(lane)).copied().unwrap_or(0).into()
}

/// Element `k` of the row or column that a lane holds.
fn element(rows: &[Row], lane: usize, k: usize, bits: usize) -> u64 {
    let in_word = 32 / bits;
    word(rows, k / in_word, lane) >> (k % in_word * bits) & ((1 << bits) - 1)
}

fn run(factor: Element, sum: Element, inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let [a, b, c] = inst.src;
    let lanes = usize::from(wave.lanes).clamp(32, 64);
    let bits = match factor {
        Element::Float(_) => 16,
        Element::Int(8) => 8,
        Element::Int(_) => 4,
    };
    let results = 256 / lanes;
    let a = read(wave, group, a, bits / 2)?;
    let b = read(wave, group, b, bits / 2)?;
    let c = read(wave, group, c, results)?;
    let dst = row(wave, inst.dst, u16::try_from(results).unwrap_or(u16::MAX))?;
    let mods = inst.mods;
    // 16-bit results are in the half that the instruction names; the other half stays.
    let high = mods.op_sel & 4 != 0;
    let mut out: Few<Row> = (dst..dst + results).map(|at| whole(wave, at)).collect();
    for lane in 0..lanes {
        for (n, to) in out.iter_mut().enumerate() {
            let (i, j) = (n * lanes / 16 + lane / 16, lane % 16);
            let at = word(&c, n, lane);
            let Some(slot) = to.0.get_mut(lane) else { continue };
            match (factor, sum) {
                (Element::Int(width), _) => {
                    let signed = |source: u8, bits: u64| {
                        i64::try_from(bits).map_or(0, |bits| {
                            if mods.neg >> source & 1 == 1 {
                                sign_extend(bits as u64, width)
                            } else {
                                bits
                            }
                        })
                    };
                    let products: i64 =
                        (0..16).map(|k| signed(0, element(&a, i, k, bits)) * signed(1, element(&b, j, k, bits))).sum();
                    let total = i128::from(products) + Kind::I32.integer(at);
                    *slot = low32(Kind::I32.wrap(total, mods.clamp));
                }
                (Element::Float(format), Element::Float(result)) => {
                    let single = Fpu::exact(F32);
                    let narrow = result != F32;
                    let c = if narrow { at >> if high { 16 } else { 0 } & 0xffff } else { at };
                    let c = if mods.neg_hi & 4 != 0 { result.magnitude(c) } else { c };
                    let c = if mods.neg & 4 != 0 { c ^ result.sign_bit() } else { c };
                    let c = if narrow { single.convert(Fpu::exact(result), c) } else { c };
                    let wide = |rows: &[Row], lane: usize, k: usize, source: u8| {
                        let negate = if k % 2 == 0 { mods.neg } else { mods.neg_hi };
                        let bits = element(rows, lane, k, bits);
                        let bits = if negate >> source & 1 == 1 { bits ^ format.sign_bit() } else { bits };
                        single.convert(Fpu::exact(format), bits)
                    };
                    let total = (0..16).fold(c, |sum, k| single.fma(wide(&a, i, k, 0), wide(&b, j, k, 1), sum));
                    *slot = if narrow {
                        let half = low32(Fpu::exact(result).convert(single, total));
                        if high {
                            *slot & 0xffff | half << 16
                        } else {
                            *slot & 0xffff_0000 | half
                        }
                    } else {
                        low32(total)
                    };
                }
                (Element::Float(_), Element::Int(_)) => {}
            }
        }
    }
    for (n, &row) in out.iter().enumerate() {
        if let Some(slot) = wave.rows.get_mut(dst + n) {
            *slot = row;
        }
    }
    Ok(())
}
