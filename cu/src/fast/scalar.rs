// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scalar operations and branches.
//!
//! Sources are found as rows are, in the scalar registers or at a constant of 64 bits. The last
//! step of a block jumps.

use super::builder::Builder;
use super::step::{Cx, Flow, Place, Run, Step};
use vkfd_isa::{first_literal, Inst, Op, Operand};

/// Widths of an operation, for the check of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Registers of the destination; 0: there is none.
    pub(super) dst: u8,
    /// Registers of the sources; 0: there is none.
    pub(super) src: [u8; 2],
    /// The second source is the instruction's immediate.
    pub(super) immediate: bool,
    /// The destination is a source, too.
    pub(super) tied: bool,
}

/// A source of 32 bits.
#[inline(always)]
unsafe fn read32(step: &Step, cx: &Cx, index: usize) -> u32 {
    // SAFETY: the step's registers exist.
    unsafe { scalar_source(step, cx, index).read_unaligned() }
}

/// A source of 64 bits.
#[inline(always)]
unsafe fn read64(step: &Step, cx: &Cx, index: usize) -> u64 {
    // SAFETY: the step's registers exist.
    unsafe { scalar_source(step, cx, index).cast::<u64>().read_unaligned() }
}

#[inline(always)]
fn scalar_source(step: &Step, cx: &Cx, index: usize) -> *const u32 {
    step.src[index].pointer(cx.scalars.cast())
}

#[inline(always)]
unsafe fn write32(step: &Step, cx: &mut Cx, value: u32) {
    // SAFETY: the step's register exists.
    unsafe { cx.scalars.add(step.dst).write(value) };
}

#[inline(always)]
unsafe fn write64(step: &Step, cx: &mut Cx, value: u64) {
    // SAFETY: the step's registers exist.
    unsafe { cx.scalars.add(step.dst).cast::<u64>().write_unaligned(value) };
}

/// Operations: how they read and write, and what they do. `scc` is the old SCC, and the value after
/// it is the new one.
macro_rules! operations {
    ($(
        $dst:tt $src:tt $immediate:literal $tied:literal { $($op:ident => |$a:ident, $b:ident, $scc:ident| $body:expr;)* }
    )*) => {
        #[allow(unused_variables, clippy::too_many_lines, reason = "not every operation uses all; a table")]
        fn plain(op: Op) -> Option<(Shape, Run)> {
            Some(match op {
                $($(Op::$op => {
                    unsafe fn run(step: &Step, cx: &mut Cx) -> Flow {
                        // SAFETY: the step's registers exist.
                        unsafe {
                            let $a = operations!(@ read $src 0 step cx);
                            let $b = operations!(@ read $src 1 step cx);
                            let $scc = cx.wave.scc;
                            let (value, scc) = $body;
                            operations!(@ write $dst step cx value);
                            cx.wave.scc = scc;
                            step.go_on(cx)
                        }
                    }
                    (Shape { dst: $dst, src: $src, immediate: $immediate, tied: $tied }, run as Run)
                })*)*
                _ => return None,
            })
        }
    };
    (@ read [1, $x:tt] 0 $step:ident $cx:ident) => { read32($step, $cx, 0) };
    (@ read [2, $x:tt] 0 $step:ident $cx:ident) => { read64($step, $cx, 0) };
    (@ read [$x:tt, 0] 1 $step:ident $cx:ident) => { 0u32 };
    (@ read [$x:tt, 1] 1 $step:ident $cx:ident) => { read32($step, $cx, 1) };
    (@ read [$x:tt, 2] 1 $step:ident $cx:ident) => { read64($step, $cx, 1) };
    (@ write 0 $step:ident $cx:ident $value:ident) => {{
        let () = $value;
    }};
    (@ write 1 $step:ident $cx:ident $value:ident) => { write32($step, $cx, $value) };
    (@ write 2 $step:ident $cx:ident $value:ident) => { write64($step, $cx, $value) };
}

#[inline(always)]
fn logic(value: u32) -> (u32, bool) {
    (value, value != 0)
}

#[inline(always)]
fn logic64(value: u64) -> (u64, bool) {
    (value, value != 0)
}

#[inline(always)]
fn signed((value, overflow): (i32, bool)) -> (u32, bool) {
    (value as u32, overflow)
}

/// A bit field, by the control word of `s_bfe`.
#[inline(always)]
fn field(value: u32, control: u32) -> u32 {
    let (from, count) = (control & 31, control >> 16 & 127);
    let moved = value >> from;
    if count >= 32 {
        moved
    } else {
        moved & ((1 << count) - 1)
    }
}

/// The same, sign-extended.
#[inline(always)]
fn signed_field(value: u32, control: u32) -> u32 {
    let (from, count) = (control & 31, control >> 16 & 127);
    let moved = (value as i32) >> from;
    match count {
        0 => 0,
        1..=31 => (moved << (32 - count) >> (32 - count)) as u32,
        _ => moved as u32,
    }
}

/// The same of 64 bits.
#[inline(always)]
fn field64(value: u64, control: u32) -> u64 {
    let (from, count) = (control & 63, control >> 16 & 127);
    let moved = value >> from;
    if count >= 64 {
        moved
    } else {
        moved & ((1 << count) - 1)
    }
}

#[inline(always)]
fn signed_field64(value: u64, control: u32) -> u64 {
    let (from, count) = (control & 63, control >> 16 & 127);
    let moved = (value as i64) >> from;
    match count {
        0 => 0,
        1..=63 => (moved << (64 - count) >> (64 - count)) as u64,
        _ => moved as u64,
    }
}

/// Where the least bit that is set is, or all ones.
#[inline(always)]
fn first(bits: u32) -> u32 {
    if bits == 0 {
        u32::MAX
    } else {
        bits.trailing_zeros()
    }
}

#[inline(always)]
fn leading(bits: u32) -> u32 {
    if bits == 0 {
        u32::MAX
    } else {
        bits.leading_zeros()
    }
}

/// A bit for each four that are not all zero.
#[inline(always)]
fn quads(bits: u64) -> u64 {
    (0..16).fold(0, |all, n| all | u64::from(bits >> (4 * n) & 15 != 0) << n)
}

/// The same, four times over.
#[inline(always)]
fn whole_quads(bits: u64) -> u64 {
    (0..16).fold(0, |all, n| if bits >> (4 * n) & 15 != 0 { all | 15 << (4 * n) } else { all })
}

operations! {
    1 [1, 0] false false {
        SMovB32 => |a, b, scc| (a, scc);
        SNotB32 => |a, b, scc| logic(!a);
        SBrevB32 => |a, b, scc| (a.reverse_bits(), scc);
        SBcnt1I32B32 => |a, b, scc| logic(a.count_ones());
        SBcnt0I32B32 => |a, b, scc| logic(a.count_zeros());
        SFf1I32B32 => |a, b, scc| (if a == 0 { u32::MAX } else { a.trailing_zeros() }, scc);
        SFlbitI32B32 => |a, b, scc| (if a == 0 { u32::MAX } else { a.leading_zeros() }, scc);
        SSextI32I8 => |a, b, scc| (a as u8 as i8 as u32, scc);
        SSextI32I16 => |a, b, scc| (a as u16 as i16 as u32, scc);
        SAbsI32 => |a, b, scc| logic((a as i32).unsigned_abs());
    }
    1 [1, 0] false false {
        SFf0I32B32 => |a, b, scc| (first(!a), scc);
        SFlbitI32 => |a, b, scc| (if a as i32 >= 0 { leading(a) } else { leading(!a) }, scc);
        SQuadmaskB32 => |a, b, scc| logic(quads(a.into()) as u32);
        SWqmB32 => |a, b, scc| logic(whole_quads(a.into()) as u32);
    }
    1 [1, 1] false true {
        SCmovB32 => |a, b, scc| (if scc { a } else { b }, scc);
        SBitset0B32 => |a, b, scc| (b & !(1 << (a & 31)), scc);
        SBitset1B32 => |a, b, scc| (b | 1 << (a & 31), scc);
    }
    2 [1, 2] false true {
        SBitset0B64 => |a, b, scc| (b & !(1 << (a & 63)), scc);
        SBitset1B64 => |a, b, scc| (b | 1 << (a & 63), scc);
    }
    2 [2, 2] false true {
        SCmovB64 => |a, b, scc| (if scc { a } else { b }, scc);
    }
    2 [1, 0] false false {
        SBitreplicateB64B32 => |a, b, scc| ((0..32).fold(0, |all, n| all | (u64::from(a >> n & 1) * 3) << (2 * n)), scc);
    }
    2 [1, 1] false false {
        SBfmB64 => |a, b, scc| (((1u64 << (a & 63)) - 1) << (b & 63), scc);
    }
    1 [2, 0] false false {
        SBcnt0I32B64 => |a, b, scc| logic(a.count_zeros());
        SFf0I32B64 => |a, b, scc| (if a == u64::MAX { u32::MAX } else { (!a).trailing_zeros() }, scc);
        SFlbitI32I64 => |a, b, scc| {
            let from_sign = if a as i64 >= 0 { a } else { !a };
            (if from_sign == 0 { u32::MAX } else { from_sign.leading_zeros() }, scc)
        };
        SBcnt1I32B64 => |a, b, scc| logic(a.count_ones());
        SFf1I32B64 => |a, b, scc| (if a == 0 { u32::MAX } else { a.trailing_zeros() }, scc);
        SFlbitI32B64 => |a, b, scc| (if a == 0 { u32::MAX } else { a.leading_zeros() }, scc);
    }
    2 [2, 0] false false {
        SMovB64 => |a, b, scc| (a, scc);
        SNotB64 => |a, b, scc| logic64(!a);
        SBrevB64 => |a, b, scc| (a.reverse_bits(), scc);
        SQuadmaskB64 => |a, b, scc| logic64(quads(a));
        SWqmB64 => |a, b, scc| logic64(whole_quads(a));
    }
    1 [1, 1] false false {
        SAddU32 => |a, b, scc| a.overflowing_add(b);
        SSubU32 => |a, b, scc| a.overflowing_sub(b);
        SAddI32 => |a, b, scc| signed((a as i32).overflowing_add(b as i32));
        SSubI32 => |a, b, scc| signed((a as i32).overflowing_sub(b as i32));
        SAddcU32 => |a, b, scc| {
            let sum = u64::from(a) + u64::from(b) + u64::from(scc);
            (sum as u32, sum >> 32 != 0)
        };
        SSubbU32 => |a, b, scc| {
            let difference = u64::from(a).wrapping_sub(u64::from(b)).wrapping_sub(scc.into());
            (difference as u32, difference >> 32 != 0)
        };
        SMinI32 => |a, b, scc| ((a as i32).min(b as i32) as u32, (a as i32) < b as i32);
        SMinU32 => |a, b, scc| (a.min(b), a < b);
        SMaxI32 => |a, b, scc| ((a as i32).max(b as i32) as u32, a as i32 >= b as i32);
        SMaxU32 => |a, b, scc| (a.max(b), a >= b);
        SCselectB32 => |a, b, scc| (if scc { a } else { b }, scc);
        SAndB32 => |a, b, scc| logic(a & b);
        SOrB32 => |a, b, scc| logic(a | b);
        SXorB32 => |a, b, scc| logic(a ^ b);
        SAndn2B32 => |a, b, scc| logic(a & !b);
        SOrn2B32 => |a, b, scc| logic(a | !b);
        SNandB32 => |a, b, scc| logic(!(a & b));
        SNorB32 => |a, b, scc| logic(!(a | b));
        SXnorB32 => |a, b, scc| logic(!(a ^ b));
        SLshlB32 => |a, b, scc| logic(a << (b & 31));
        SLshrB32 => |a, b, scc| logic(a >> (b & 31));
        SAshrI32 => |a, b, scc| logic((a as i32 >> (b & 31)) as u32);
        SBfmB32 => |a, b, scc| (((1u32 << (a & 31)) - 1) << (b & 31), scc);
        SMulI32 => |a, b, scc| (a.wrapping_mul(b), scc);
        SMulHiU32 => |a, b, scc| (((u64::from(a) * u64::from(b)) >> 32) as u32, scc);
        SMulHiI32 => |a, b, scc| (((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32, scc);
        SBfeU32 => |a, b, scc| logic(field(a, b));
        SBfeI32 => |a, b, scc| logic(signed_field(a, b));
        SLshl1AddU32 => |a, b, scc| shifted(a, 1, b);
        SLshl2AddU32 => |a, b, scc| shifted(a, 2, b);
        SLshl3AddU32 => |a, b, scc| shifted(a, 3, b);
        SLshl4AddU32 => |a, b, scc| shifted(a, 4, b);
        SPackLlB32B16 => |a, b, scc| (a & 0xffff | b << 16, scc);
        SPackLhB32B16 => |a, b, scc| (a & 0xffff | b & 0xffff_0000, scc);
        SPackHlB32B16 => |a, b, scc| (a >> 16 | b << 16, scc);
        SPackHhB32B16 => |a, b, scc| (a >> 16 | b & 0xffff_0000, scc);
        SAbsdiffI32 => |a, b, scc| logic((a.wrapping_sub(b) as i32).unsigned_abs());
    }
    2 [2, 2] false false {
        SCselectB64 => |a, b, scc| (if scc { a } else { b }, scc);
        SAndB64 => |a, b, scc| logic64(a & b);
        SOrB64 => |a, b, scc| logic64(a | b);
        SXorB64 => |a, b, scc| logic64(a ^ b);
        SAndn2B64 => |a, b, scc| logic64(a & !b);
        SOrn2B64 => |a, b, scc| logic64(a | !b);
        SNandB64 => |a, b, scc| logic64(!(a & b));
        SNorB64 => |a, b, scc| logic64(!(a | b));
        SXnorB64 => |a, b, scc| logic64(!(a ^ b));
    }
    2 [2, 1] false false {
        SLshlB64 => |a, b, scc| logic64(a << (b & 63));
        SLshrB64 => |a, b, scc| logic64(a >> (b & 63));
        SAshrI64 => |a, b, scc| logic64((a as i64 >> (b & 63)) as u64);
        SBfeU64 => |a, b, scc| logic64(field64(a, b));
        SBfeI64 => |a, b, scc| logic64(signed_field64(a, b));
    }
    1 [1, 1] true true {
        SMovkI32 => |a, b, scc| (b, scc);
        SCmovkI32 => |a, b, scc| (if scc { b } else { a }, scc);
        SAddkI32 => |a, b, scc| signed((a as i32).overflowing_add(b as i32));
        SMulkI32 => |a, b, scc| (a.wrapping_mul(b), scc);
    }
    0 [1, 1] false false {
        SCmpEqI32 => |a, b, scc| ((), a == b);
        SCmpEqU32 => |a, b, scc| ((), a == b);
        SCmpLgI32 => |a, b, scc| ((), a != b);
        SCmpLgU32 => |a, b, scc| ((), a != b);
        SCmpGtI32 => |a, b, scc| ((), a as i32 > b as i32);
        SCmpGeI32 => |a, b, scc| ((), a as i32 >= b as i32);
        SCmpLtI32 => |a, b, scc| ((), (a as i32) < b as i32);
        SCmpLeI32 => |a, b, scc| ((), a as i32 <= b as i32);
        SCmpGtU32 => |a, b, scc| ((), a > b);
        SCmpGeU32 => |a, b, scc| ((), a >= b);
        SCmpLtU32 => |a, b, scc| ((), a < b);
        SCmpLeU32 => |a, b, scc| ((), a <= b);
        SBitcmp0B32 => |a, b, scc| ((), a >> (b & 31) & 1 == 0);
        SBitcmp1B32 => |a, b, scc| ((), a >> (b & 31) & 1 == 1);
    }
    0 [2, 1] false false {
        SBitcmp0B64 => |a, b, scc| ((), a >> (b & 63) & 1 == 0);
        SBitcmp1B64 => |a, b, scc| ((), a >> (b & 63) & 1 == 1);
    }
    0 [2, 2] false false {
        SCmpEqU64 => |a, b, scc| ((), a == b);
        SCmpLgU64 => |a, b, scc| ((), a != b);
    }
    0 [1, 1] true true {
        SCmpkEqI32 => |a, b, scc| ((), a == b);
        SCmpkLgI32 => |a, b, scc| ((), a != b);
        SCmpkGtI32 => |a, b, scc| ((), a as i32 > b as i32);
        SCmpkGeI32 => |a, b, scc| ((), a as i32 >= b as i32);
        SCmpkLtI32 => |a, b, scc| ((), (a as i32) < b as i32);
        SCmpkLeI32 => |a, b, scc| ((), a as i32 <= b as i32);
        SCmpkEqU32 => |a, b, scc| ((), a == b & 0xffff);
        SCmpkLgU32 => |a, b, scc| ((), a != b & 0xffff);
        SCmpkGtU32 => |a, b, scc| ((), a > b & 0xffff);
        SCmpkGeU32 => |a, b, scc| ((), a >= b & 0xffff);
        SCmpkLtU32 => |a, b, scc| ((), a < b & 0xffff);
        SCmpkLeU32 => |a, b, scc| ((), a <= b & 0xffff);
    }
}

#[inline(always)]
fn shifted(a: u32, by: u32, b: u32) -> (u32, bool) {
    let sum = (u64::from(a) << by) + u64::from(b);
    (sum as u32, sum >> 32 != 0)
}

/// EXEC is saved and combined with the source; SCC: whether the new one is not zero. With the
/// registers of each.
fn save(op: Op) -> Option<(u8, Run)> {
    macro_rules! by {
        ($words:tt $written:literal |$a:ident, $exec:ident| $new:expr) => {{
            unsafe fn run(step: &Step, cx: &mut Cx) -> Flow {
                // SAFETY: EXEC's registers exist, and the step's.
                unsafe {
                    let ($a, $exec) = by!(@ read $words step cx);
                    let new = $new;
                    by!(@ write $words cx new);
                    // Last, also where it is EXEC itself.
                    by!(@ save $words step cx if $written { new } else { $exec });
                    cx.wave.scc = new != 0;
                    step.go_on(cx)
                }
            }
            ($words, run as Run)
        }};
        (@ read 1 $step:ident $cx:ident) => { (read32($step, $cx, 0), $cx.scalar(Operand::EXEC)) };
        (@ read 2 $step:ident $cx:ident) => { (read64($step, $cx, 0), $cx.pair(Operand::EXEC)) };
        (@ write 1 $cx:ident $new:ident) => { $cx.scalars.add(Operand::EXEC.into()).write($new) };
        (@ write 2 $cx:ident $new:ident) => { $cx.set_pair(Operand::EXEC, $new) };
        (@ save 1 $step:ident $cx:ident $value:expr) => { write32($step, $cx, $value) };
        (@ save 2 $step:ident $cx:ident $value:expr) => { write64($step, $cx, $value) };
    }
    Some(match op {
        Op::SAndSaveexecB32 => by!(1 false |a, exec| a & exec),
        Op::SOrSaveexecB32 => by!(1 false |a, exec| a | exec),
        Op::SXorSaveexecB32 => by!(1 false |a, exec| a ^ exec),
        Op::SAndn2SaveexecB32 => by!(1 false |a, exec| a & !exec),
        Op::SOrn2SaveexecB32 => by!(1 false |a, exec| a | !exec),
        Op::SNandSaveexecB32 => by!(1 false |a, exec| !(a & exec)),
        Op::SNorSaveexecB32 => by!(1 false |a, exec| !(a | exec)),
        Op::SXnorSaveexecB32 => by!(1 false |a, exec| !(a ^ exec)),
        Op::SAndn1SaveexecB32 => by!(1 false |a, exec| !a & exec),
        Op::SOrn1SaveexecB32 => by!(1 false |a, exec| !a | exec),
        Op::SAndn1WrexecB32 => by!(1 true |a, exec| !a & exec),
        Op::SAndn2WrexecB32 => by!(1 true |a, exec| a & !exec),
        Op::SAndSaveexecB64 => by!(2 false |a, exec| a & exec),
        Op::SOrSaveexecB64 => by!(2 false |a, exec| a | exec),
        Op::SXorSaveexecB64 => by!(2 false |a, exec| a ^ exec),
        Op::SAndn2SaveexecB64 => by!(2 false |a, exec| a & !exec),
        Op::SOrn2SaveexecB64 => by!(2 false |a, exec| a | !exec),
        Op::SNandSaveexecB64 => by!(2 false |a, exec| !(a & exec)),
        Op::SNorSaveexecB64 => by!(2 false |a, exec| !(a | exec)),
        Op::SXnorSaveexecB64 => by!(2 false |a, exec| !(a ^ exec)),
        Op::SAndn1SaveexecB64 => by!(2 false |a, exec| !a & exec),
        Op::SOrn1SaveexecB64 => by!(2 false |a, exec| !a | exec),
        Op::SAndn1WrexecB64 => by!(2 true |a, exec| !a & exec),
        Op::SAndn2WrexecB64 => by!(2 true |a, exec| a & !exec),
        _ => return None,
    })
}

/// The shape and handler of a scalar operation.
pub(super) fn handler(op: Op) -> Option<(Shape, Run)> {
    let shape = |words| Shape { dst: words, src: [words, 0], immediate: false, tied: false };
    save(op).map(|(words, run)| (shape(words), run)).or_else(|| plain(op)).or_else(|| counter(op))
}

/// The handler of operations on the program counter; the first one ends no block. All have scalar
/// registers alone.
pub(super) fn counter(op: Op) -> Option<(Shape, Run)> {
    unsafe fn get(step: &Step, cx: &mut Cx) -> Flow {
        // SAFETY: the step's registers exist.
        unsafe {
            let following = cx.pc.wrapping_add((step.offset + step.bytes).into());
            write64(step, cx, following);
            step.go_on(cx)
        }
    }
    unsafe fn set(step: &Step, cx: &mut Cx) -> Flow {
        // SAFETY: the step's registers exist.
        cx.next = unsafe { read64(step, cx, 0) };
        Flow::Jump
    }
    unsafe fn swap(step: &Step, cx: &mut Cx) -> Flow {
        // SAFETY: the step's registers exist.
        unsafe {
            cx.next = read64(step, cx, 0);
            let following = cx.pc.wrapping_add((step.offset + step.bytes).into());
            write64(step, cx, following);
        }
        Flow::Jump
    }
    unsafe fn call(step: &Step, cx: &mut Cx) -> Flow {
        cx.next = cx.pc.wrapping_add(step.imm as u64);
        // SAFETY: the step's registers exist.
        unsafe { write64(step, cx, cx.pc.wrapping_add((step.offset + step.bytes).into())) };
        Flow::Jump
    }
    let shape = |dst, src| Shape { dst, src: [src, 0], immediate: false, tied: false };
    Some(match op {
        Op::SGetpcB64 => (shape(2, 0), get),
        Op::SSetpcB64 => (shape(0, 2), set),
        Op::SSwappcB64 => (shape(2, 2), swap),
        Op::SCallB64 => (shape(2, 0), call),
        _ => return None,
    })
}

/// The handlers of a branch, at the end of a block and in the middle of a superblock. That goes on
/// if the branch is taken as the step's `kind` says. `imm` is the target's offset in the block.
pub(super) fn branch(op: Op) -> Option<[Run; 2]> {
    macro_rules! when {
        (|$cx:ident| $taken:expr) => {{
            #[inline(always)]
            fn lead(step: &Step, $cx: &mut Cx) -> bool {
                let taken = $taken;
                let offset = if taken { step.imm as u64 } else { u64::from(step.offset + step.bytes) };
                $cx.next = $cx.pc.wrapping_add(offset);
                taken
            }
            unsafe fn end(step: &Step, cx: &mut Cx) -> Flow {
                lead(step, cx);
                Flow::Jump
            }
            unsafe fn middle(step: &Step, cx: &mut Cx) -> Flow {
                if lead(step, cx) == (step.kind != 0) {
                    // SAFETY: the caller's; a superblock goes on behind its branch.
                    return unsafe { step.go_on(cx) };
                }
                cx.at = step;
                Flow::SideExit
            }
            [end as Run, middle as Run]
        }};
    }
    Some(match op {
        Op::SBranch => when!(|cx| true),
        Op::SCbranchScc0 => when!(|cx| !cx.wave.scc),
        Op::SCbranchScc1 => when!(|cx| cx.wave.scc),
        Op::SCbranchVccz => when!(|cx| cx.wave.vcc() & cx.all == 0),
        Op::SCbranchVccnz => when!(|cx| cx.wave.vcc() & cx.all != 0),
        Op::SCbranchExecz => when!(|cx| cx.exec() == 0),
        Op::SCbranchExecnz => when!(|cx| cx.exec() != 0),
        _ => return None,
    })
}

/// `s_endpgm` and `s_barrier`.
pub(super) fn leave(op: Op) -> Option<Run> {
    unsafe fn end(step: &Step, cx: &mut Cx) -> Flow {
        cx.at = step;
        Flow::Ended
    }
    unsafe fn barrier(step: &Step, cx: &mut Cx) -> Flow {
        cx.at = step;
        Flow::Barrier
    }
    match op {
        Op::SEndpgm => Some(end),
        Op::SBarrier => Some(barrier),
        _ => None,
    }
}

/// On to the instruction after the block.
pub(super) unsafe fn fall(step: &Step, cx: &mut Cx) -> Flow {
    cx.next = cx.pc.wrapping_add(step.offset.into());
    Flow::Jump
}

/// What leaves everything to the reference engine.
pub(super) unsafe fn slow(step: &Step, cx: &mut Cx) -> Flow {
    step.slow(cx)
}

/// Instructions of the scalar unit.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let (shape, run) = handler(inst.op)?;
    let mut step = place.step(run);
    if shape.dst != 0 {
        step.dst = builder.layout.scalar(inst.dst, shape.dst)?.into();
    }
    if shape.immediate {
        let tied = if shape.dst == 0 { inst.src[0] } else { inst.dst };
        // Comparisons with an immediate have their register where the destination would be.
        let register = [tied, inst.dst, inst.src[0]].into_iter().find(|operand| *operand != Operand::None)?;
        step.src[0] = builder.scalar_source(register, 1)?;
        step.src[1] = builder.constants.word64(i64::from(inst.imm) as u64);
    } else {
        for (index, words) in shape.src.into_iter().enumerate().filter(|(_, words)| *words != 0) {
            let operand = if shape.tied && index == 1 { inst.dst } else { inst.src[index] };
            step.src[index] = match operand {
                Operand::Literal(value) if index == 0 => builder.constants.word64(first_literal(inst.op, value)),
                operand => builder.scalar_source(operand, words)?,
            };
        }
        if inst.op == Op::SCallB64 {
            step.imm = i64::from(place.offset) + 4 + i64::from(inst.imm) * 4;
        }
    }
    steps.push(step);
    Some(())
}
