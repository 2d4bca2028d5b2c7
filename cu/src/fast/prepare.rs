// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What encodings do to operands: steps before and behind an operation's own.
//!
//! Before it, a source that does not suit the handler becomes a temporary row. It may be a part of
//! a register (SDWA, halves), another lane's (DPP), its absolute value, the negative one, the
//! halves of a packed operation. Behind it, a result is clamped, or put where it belongs in its
//! register. DPP leaves lanes out: EXEC is without them until the operation is done. [`Cx::saved`]
//! has the program's EXEC, also for the reference engine if a handler gives up.

use super::operation::{low_nan, vectors};
use super::simd::Simd;
use super::step::{Cx, Flow, Place, Step};
use vkfd_isa::Operand;

/// A part of a source, and modifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// First bit and width.
    pub(super) from: u8,
    pub(super) width: u8,
    /// Extended by its sign, to 32 bits.
    pub(super) signed: bool,
    /// Bits that are kept of that, then those that are turned.
    pub(super) keep: u32,
    pub(super) turn: u32,
}

impl Part {
    /// All of it, as it is.
    pub(super) const ALL: Part = Part { from: 0, width: 32, signed: false, keep: u32::MAX, turn: 0 };

    /// The part of a word.
    pub(super) fn of(self, word: u32) -> u32 {
        let up = 32 - u32::from(self.width);
        let word = word >> self.from << up;
        let word = if self.signed { (word as i32 >> up) as u32 } else { word >> up };
        word & self.keep ^ self.turn
    }
}

/// Halves of a packed operation's source: bit 0, the low result has the high half; bit 1, the high
/// result has.
pub(super) const SWAP: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

/// A handler with and without AVX2, which need not have a frame of its own.
macro_rules! light {
    ($name:ident, $body:ident) => {
        /// The handler, compiled for the processor.
        pub(super) fn $name(avx2: bool) -> super::step::Run {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn wide(step: &Step, cx: &mut Cx) -> Flow {
                    // SAFETY: the caller's.
                    unsafe { $body::<super::avx2::Avx2>(step, cx) }
                }
                if avx2 {
                    return wide;
                }
            }
            let _ = avx2;
            unsafe fn narrow(step: &Step, cx: &mut Cx) -> Flow {
                // SAFETY: the caller's.
                unsafe { $body::<super::simd::Portable>(step, cx) }
            }
            narrow
        }
    };
}

pub(super) use light;

light!(part, part_body);
light!(halves, halves_body);
light!(permute, permute_body);
light!(widen, widen_body);
light!(keep, keep_body);
light!(place, place_body);

/// Makes the temporary row at `dst` of parts of a row, or of the scalar register `scalar[0]` if
/// `scalar[1]`. `scalar[2]`: first bit; `scalar[3]`: width, and 128 if signed; `imm`: what is kept,
/// and above that what is turned.
#[inline(always)]
unsafe fn part_body<S: Simd>(step: &Step, cx: &mut Cx) -> Flow {
    let to = std::ptr::with_exposed_provenance_mut::<u32>(step.dst);
    let (keep, turn) = (step.imm as u32, (step.imm >> 32) as u32);
    let up = 32 - u32::from(step.scalar[3] & 0x7f);
    // SAFETY: the destination is a temporary row, which outlives the step; the source exists.
    unsafe {
        if step.scalar[1] != 0 {
            let width = step.scalar[3] & 0x7f;
            let part = Part { from: step.scalar[2], width, signed: step.scalar[3] & 128 != 0, keep, turn };
            let value = S::splat(part.of(cx.scalar(step.scalar[0])));
            for group in 0..vectors(cx.all) {
                S::store(to.add(8 * group), value);
            }
            return step.go_on(cx);
        }
        let from = cx.row(step.src[0]);
        let (keep, turn) = (S::splat(keep), S::splat(turn));
        if up == 0 {
            for group in 0..vectors(cx.all) {
                let value = S::load(from.add(8 * group));
                S::store(to.add(8 * group), S::xor(S::and(value, keep), turn));
            }
            return step.go_on(cx);
        }
        let (down, up) = (S::splat(step.scalar[2].into()), S::splat(up));
        for group in 0..vectors(cx.all) {
            let value = S::shl(S::shr(S::load(from.add(8 * group)), down), up);
            let value = if step.scalar[3] & 128 != 0 { S::sar(value, up) } else { S::shr(value, up) };
            S::store(to.add(8 * group), S::xor(S::and(value, keep), turn));
        }
        step.go_on(cx)
    }
}

/// Makes the temporary row at `dst` of halves of a row, or of the scalar register `scalar[0]` if
/// `scalar[1]`; `scalar[2]`: which ([`SWAP`]); `imm`: bits that are turned.
#[inline(always)]
unsafe fn halves_body<S: Simd>(step: &Step, cx: &mut Cx) -> Flow {
    let to = std::ptr::with_exposed_provenance_mut::<u32>(step.dst);
    let [low, high] = SWAP[usize::from(step.scalar[2] & 3)];
    // SAFETY: the destination is a temporary row, which outlives the step; the source exists.
    unsafe {
        let scalar = S::splat(if step.scalar[1] != 0 { cx.scalar(step.scalar[0]) } else { 0 });
        let from = cx.row(step.src[0]);
        let (turn, half) = (S::splat(step.imm as u32), S::splat(16));
        for group in 0..vectors(cx.all) {
            let value = if step.scalar[1] != 0 { scalar } else { S::load(from.add(8 * group)) };
            let below = if low { S::shr(value, half) } else { S::and(value, S::splat(0xffff)) };
            let above = if high { S::and(value, S::splat(0xffff_0000)) } else { S::shl(value, half) };
            S::store(to.add(8 * group), S::xor(S::or(below, above), turn));
        }
        step.go_on(cx)
    }
}

/// Makes singles of the halves in the low bits of the row `src[0]`, in the temporary row at `dst`.
#[inline(always)]
unsafe fn widen_body<S: Simd>(step: &Step, cx: &mut Cx) -> Flow {
    let to = std::ptr::with_exposed_provenance_mut::<u32>(step.dst);
    // SAFETY: the destination is a temporary row, which outlives the step; the source exists.
    unsafe {
        let from = cx.row(step.src[0]);
        for group in 0..vectors(cx.all) {
            S::store(to.add(8 * group), S::widen(S::load(from.add(8 * group))));
        }
        step.go_on(cx)
    }
}

/// Lanes' sources by DPP.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    /// The lane that is read.
    pub(super) from: [u8; 64],
    /// Lanes that read one at all.
    pub(super) valid: u64,
    /// Lanes that may be written.
    pub(super) open: u64,
    /// Lanes without a source read zero, and are written.
    pub(super) zero: bool,
    /// Inactive lanes are read, too.
    pub(super) inactive: bool,
}

/// Makes the temporary row at `dst` of other lanes of a row, as [`Lanes`] at `src[1]` says, and
/// leaves lanes out.
#[inline(always)]
unsafe fn permute_body<S: Simd>(step: &Step, cx: &mut Cx) -> Flow {
    let to = std::ptr::with_exposed_provenance_mut::<u32>(step.dst);
    let exec = cx.exec();
    // SAFETY: the destination is a temporary row and the table a constant, which outlive the step;
    // the source exists, and is no temporary row.
    unsafe {
        let lanes = &*cx.row(step.src[1]).cast::<Lanes>();
        let from = cx.row(step.src[0]);
        let mut readable = lanes.valid;
        if exec != cx.all && !lanes.inactive {
            let mut active = 0;
            for lane in 0..64 {
                active |= (exec >> (lanes.from[lane] & 63) & 1) << lane;
            }
            readable &= active;
        }
        for lane in 0..8 * vectors(cx.all) {
            to.add(lane).write(from.add((lanes.from[lane] & 63).into()).read());
        }
        if readable != u64::MAX {
            for group in 0..vectors(cx.all) {
                let mask = S::lanes((readable >> (8 * group)) as u8);
                S::store(to.add(8 * group), S::and(S::load(to.add(8 * group)), mask));
            }
        }
        let write = lanes.open & if lanes.zero { u64::MAX } else { readable };
        if exec & !write != 0 {
            cx.saved = Some(cx.pair(Operand::EXEC));
            cx.set_pair(Operand::EXEC, exec & write);
        }
        step.go_on(cx)
    }
}

/// EXEC is as the program has it.
pub(super) unsafe fn restore(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: EXEC's registers exist.
    unsafe {
        if let Some(exec) = cx.saved.take() {
            cx.set_pair(Operand::EXEC, exec);
        }
        step.go_on(cx)
    }
}

/// Keeps a destination as it was: copies the row `src[0]` to the temporary row at `dst`.
#[inline(always)]
unsafe fn keep_body<S: Simd>(step: &Step, cx: &mut Cx) -> Flow {
    let to = std::ptr::with_exposed_provenance_mut::<u32>(step.dst);
    // SAFETY: the destination is a temporary row, which outlives the step; the source exists.
    unsafe {
        let from = cx.row(step.src[0]);
        for group in 0..vectors(cx.all) {
            S::store(to.add(8 * group), S::load(from.add(8 * group)));
        }
        step.go_on(cx)
    }
}

/// What is done to a result: `scalar[0]`.
pub(super) const CLAMP32: u8 = 1;
pub(super) const CLAMP16: u8 = 2;
/// How the rest of its register is made: `scalar[3]`.
pub(super) const PAD: u8 = 0;
pub(super) const SEXT: u8 = 1;
pub(super) const PRESERVE: u8 = 2;

/// A step that clamps the singles in a row, which begins so many bytes from the first one.
pub(super) fn clamped(at: Place, avx2: bool, row: usize) -> Step {
    let mut step = at.step(place(avx2));
    step.dst = row;
    step.scalar = [CLAMP32, 0, 32, PAD];
    step
}

/// Puts the results in the row `dst` where they belong: clamped, `scalar[2]` bits from bit
/// `scalar[1]` on, and the rest by `scalar[3]`, with the old values in the row `src[0]`.
#[inline(always)]
unsafe fn place_body<S: Simd>(step: &Step, cx: &mut Cx) -> Flow {
    let [clamp, from, width, rest] = step.scalar;
    let exec = cx.exec();
    let mask = (u64::MAX >> (64 - u32::from(width)) << from) as u32;
    // SAFETY: the rows exist.
    unsafe {
        let to = cx.row_mut(step.dst);
        let old = cx.row(step.src[0]);
        let keep = S::splat(if cx.wave.mode.dx10_clamp() { 0 } else { u32::MAX });
        let (from, up) = (S::splat(from.into()), S::splat(32 - u32::from(from) - u32::from(width)));
        for group in 0..vectors(cx.all) {
            let here = S::load(to.add(8 * group));
            let mut value = here;
            if clamp == CLAMP32 {
                // Negative numbers are zero, whatever is above one is one; of NaNs MODE says which.
                let nan = S::and(S::unordered(value, value), keep);
                let positive = S::xor(S::sar(value, S::splat(31)), S::splat(u32::MAX));
                let positive = S::xor(S::and(S::unordered(value, value), positive), positive);
                value = S::or(S::and(value, nan), S::min_u(S::and(value, positive), S::splat(0x3f80_0000)));
            } else if clamp == CLAMP16 {
                let negative = S::sar(S::shl(value, S::splat(16)), S::splat(31));
                let nan = low_nan::<S>(value);
                let positive = S::xor(S::or(negative, nan), S::splat(u32::MAX));
                let clamped = S::min_u(S::and(S::and(value, positive), S::splat(0xffff)), S::splat(0x3c00));
                value = S::or(S::and(S::and(value, S::splat(0xffff)), S::and(nan, keep)), clamped);
            }
            value = S::and(S::shl(value, from), S::splat(mask));
            if rest == SEXT {
                value = S::sar(S::shl(value, up), up);
            } else if rest == PRESERVE {
                value = S::or(value, S::and(S::load(old.add(8 * group)), S::splat(!mask)));
            }
            if exec != cx.all {
                value = S::select(S::lanes((exec >> (8 * group)) as u8), here, value);
            }
            S::store(to.add(8 * group), value);
        }
        step.go_on(cx)
    }
}
