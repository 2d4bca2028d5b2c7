// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Atomic operations: what they make of the old value, and doing them on the host's bytes.
//!
//! The host's locked instructions serve where there is one; the rest compare and exchange. On LDS,
//! which one thread has for itself while it runs the workgroup, they are plain.
//!
//! In memory, 32-bit sums flush denormals and others keep them, whatever MODE says; LDS follows
//! MODE. Minimum and maximum take the data only if it compares so, which a NaN does not.

use super::kind::AtomicOp;
use super::plan::{lost, Lane, Place};
use super::small::{add32, add64, add_bfloat, add_half, flush};
use super::{double, rows, set_word, word};
use crate::exit::{Exit, Refusal};
use crate::few::Few;
use crate::group::Group;
use crate::wave::Wave;
use crate::world::{Access, Touch, World};
use vkfd_isa::{Inst, Operand, Target};
use vkfd_raw as raw;
use vkfd_sabotage::{process, Switch};

/// The new value of a 32-bit word. `denormals`: of floating-point sums they are kept.
pub(crate) fn combine32(op: AtomicOp, old: u32, a: u32, b: u32, denormals: bool) -> u32 {
    let float = f32::from_bits;
    let halves = |add: fn(u16, u16) -> u16| {
        u32::from(add(old as u16, a as u16)) | u32::from(add((old >> 16) as u16, (a >> 16) as u16)) << 16
    };
    match op {
        AtomicOp::Swap => a,
        AtomicOp::Cmpswap if old == b => a,
        AtomicOp::Fcmpswap if float(old) == float(b) => a,
        AtomicOp::Cmpswap | AtomicOp::Fcmpswap => old,
        AtomicOp::Add => old.wrapping_add(a),
        AtomicOp::Sub => old.wrapping_sub(a),
        AtomicOp::Rsub => a.wrapping_sub(old),
        AtomicOp::Csub => old.saturating_sub(a),
        AtomicOp::Smin => (old as i32).min(a as i32) as u32,
        AtomicOp::Umin => old.min(a),
        AtomicOp::Smax => (old as i32).max(a as i32) as u32,
        AtomicOp::Umax => old.max(a),
        AtomicOp::And => old & a,
        AtomicOp::Or => old | a,
        AtomicOp::Xor => old ^ a,
        AtomicOp::Inc if old >= a => 0,
        AtomicOp::Inc => old + 1,
        AtomicOp::Dec if old == 0 || old > a => a,
        AtomicOp::Dec => old - 1,
        AtomicOp::Fadd if denormals => add32(float(old), float(a)).to_bits(),
        AtomicOp::Fadd => flush(add32(float(flush(old)), float(flush(a))).to_bits()),
        AtomicOp::Fmin if float(a) < float(old) => a,
        AtomicOp::Fmax if float(a) > float(old) => a,
        AtomicOp::Fmin | AtomicOp::Fmax => old,
        AtomicOp::PkAddF16 => halves(add_half),
        AtomicOp::PkAddBf16 => halves(add_bfloat),
        AtomicOp::Mskor => old & !a | b,
        AtomicOp::Wrap if old >= a => old - a,
        AtomicOp::Wrap => old.wrapping_add(b),
        AtomicOp::Condxchg if a >> 31 != 0 => a & 0x7fff_ffff,
        AtomicOp::Condxchg => old,
    }
}

/// The new value of a 64-bit word.
pub(crate) fn combine64(op: AtomicOp, old: u64, a: u64, b: u64) -> u64 {
    let float = f64::from_bits;
    match op {
        AtomicOp::Swap => a,
        AtomicOp::Cmpswap if old == b => a,
        AtomicOp::Fcmpswap if float(old) == float(b) => a,
        AtomicOp::Cmpswap | AtomicOp::Fcmpswap => old,
        AtomicOp::Add => old.wrapping_add(a),
        AtomicOp::Sub => old.wrapping_sub(a),
        AtomicOp::Rsub => a.wrapping_sub(old),
        AtomicOp::Csub => old.saturating_sub(a),
        AtomicOp::Smin => (old as i64).min(a as i64) as u64,
        AtomicOp::Umin => old.min(a),
        AtomicOp::Smax => (old as i64).max(a as i64) as u64,
        AtomicOp::Umax => old.max(a),
        AtomicOp::And => old & a,
        AtomicOp::Or => old | a,
        AtomicOp::Xor => old ^ a,
        AtomicOp::Inc if old >= a => 0,
        AtomicOp::Inc => old + 1,
        AtomicOp::Dec if old == 0 || old > a => a,
        AtomicOp::Dec => old - 1,
        AtomicOp::Fadd => add64(float(old), float(a)).to_bits(),
        AtomicOp::Fmin if float(a) < float(old) => a,
        AtomicOp::Fmax if float(a) > float(old) => a,
        AtomicOp::Fmin | AtomicOp::Fmax => old,
        AtomicOp::Mskor => old & !a | b,
        AtomicOp::Wrap if old >= a => old - a,
        AtomicOp::Wrap => old.wrapping_add(b),
        AtomicOp::PkAddF16 | AtomicOp::PkAddBf16 | AtomicOp::Condxchg => {
            let half =
                |shift: u32| u64::from(combine32(op, (old >> shift) as u32, (a >> shift) as u32, 0, true)) << shift;
            half(0) | half(32)
        }
    }
}

/// A 32-bit atomic operation on the host's word; the old value.
fn memory32(op: AtomicOp, ptr: *mut u32, a: u32, b: u32, denormals: bool) -> Result<u32, raw::Faulted> {
    // SAFETY: an aligned word of a span while the gate is held; no reference to it exists (World).
    unsafe {
        match op {
            AtomicOp::Swap => raw::atomic_swap_u32(ptr, a),
            AtomicOp::Cmpswap => raw::compare_exchange_u32(ptr, b, a),
            AtomicOp::Add => raw::atomic_add_u32(ptr, a),
            AtomicOp::Sub => raw::atomic_add_u32(ptr, a.wrapping_neg()),
            _ => raw::atomic_update_u32(ptr, |old| combine32(op, old, a, b, denormals)),
        }
    }
}

/// A 64-bit atomic operation on the host's word; the old value.
fn memory64(op: AtomicOp, ptr: *mut u64, a: u64, b: u64) -> Result<u64, raw::Faulted> {
    // SAFETY: as in `memory32`.
    unsafe {
        match op {
            AtomicOp::Swap => raw::atomic_swap_u64(ptr, a),
            AtomicOp::Cmpswap => raw::compare_exchange_u64(ptr, b, a),
            AtomicOp::Add => raw::atomic_add_u64(ptr, a),
            AtomicOp::Sub => raw::atomic_add_u64(ptr, a.wrapping_neg()),
            _ => raw::atomic_update_u64(ptr, |old| combine64(op, old, a, b)),
        }
    }
}

/// Whether sums of singles in memory keep denormals: from gfx940 on, and LLVM relies on it; it
/// makes a loop of the others' where they matter.
fn keeps_denormals(target: Target) -> bool {
    // NEW TARGET: whether atomic sums keep denormals
    target == Target::Gfx942 && !process().has(Switch::FlushedSums)
}

/// An atomic operation of a target on the host's bytes, on 64 bits if `wide`; the old value. The
/// miss has the address `va`.
pub(crate) fn memory(
    target: Target,
    (op, wide): (AtomicOp, bool),
    ptr: *mut u8,
    va: u64,
    [a, b]: [u64; 2],
) -> Result<u64, Exit> {
    let old = if wide {
        memory64(op, ptr.cast(), a, b)
    } else {
        memory32(op, ptr.cast(), a as u32, b as u32, keeps_denormals(target)).map(u64::from)
    };
    old.map_err(|_| lost(va, Access::Write))
}

/// Whether an operation has left another value than it has found.
pub(crate) fn changes(op: AtomicOp, wide: bool, old: u64, [a, b]: [u64; 2]) -> bool {
    if wide {
        combine64(op, old, a, b) != old
    } else {
        combine32(op, old as u32, a as u32, b as u32, true) != old as u32
    }
}

/// An atomic operation on LDS; the old value. Beyond its end nothing is done, and zero returned.
pub(super) fn local(op: AtomicOp, wide: bool, group: &mut Group, at: u32, a: u64, b: u64, denormals: bool) -> u64 {
    let at = at as usize;
    if wide {
        let Some(slot) = group.lds.get_mut(at..at.saturating_add(8)) else { return 0 };
        let old = slot.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        slot.copy_from_slice(&combine64(op, old, a, b).to_le_bytes());
        old
    } else {
        let Some(slot) = group.lds.get_mut(at..at.saturating_add(4)) else { return 0 };
        let old = slot.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        slot.copy_from_slice(&combine32(op, old, a as u32, b as u32, denormals).to_le_bytes());
        old.into()
    }
}

/// Where an atomic operation's operands are.
pub(super) struct Registers {
    /// The data.
    pub(super) a: usize,
    /// What it compares with.
    pub(super) b: Option<usize>,
    /// Where the old value goes.
    pub(super) dst: Option<usize>,
    pub(super) wide: bool,
}

impl Registers {
    fn operand(&self, wave: &Wave, row: usize, lane: usize) -> u64 {
        if self.wide {
            double(wave, row, lane)
        } else {
            word(wave, row, lane).into()
        }
    }

    /// Both operands of a lane.
    pub(super) fn operands(&self, wave: &Wave, lane: usize) -> (u64, u64) {
        (self.operand(wave, self.a, lane), self.b.map_or(0, |row| self.operand(wave, row, lane)))
    }

    /// Gives a lane the old value.
    pub(super) fn give(&self, wave: &mut Wave, lane: usize, old: u64) {
        if let Some(row) = self.dst {
            set_word(wave, row, lane, old as u32);
            if self.wide {
                set_word(wave, row + 1, lane, (old >> 32) as u32);
            }
        }
    }
}

/// Where an atomic operation of FLAT or a buffer finds its data: the second operand follows the
/// first.
pub(super) fn registers(inst: &Inst, wave: &Wave, op: AtomicOp, wide: bool) -> Result<Registers, Exit> {
    let size = if wide { 2 } else { 1 };
    let a = rows(wave, inst.memory.data, if op.has_second() { 2 * size } else { size })?;
    let b = op.has_second().then_some(a + size);
    let dst = match inst.dst {
        _ if !inst.memory.glc => None,
        Operand::None => Some(rows(wave, inst.memory.data, size)?),
        dst => Some(rows(wave, dst, size)?),
    };
    Ok(Registers { a, b, dst, wide })
}

/// An atomic operation of FLAT or a buffer at each lane's place.
pub(super) fn execute<W: World>(
    inst: &Inst,
    wave: &mut Wave,
    group: &mut Group,
    world: &mut W,
    lanes: &[Lane],
    (op, wide): (AtomicOp, bool),
) -> Result<(), Exit> {
    let registers = registers(inst, wave, op, wide)?;
    let mask = if wide { 7 } else { 3 };
    let mut hosts: Few<_> = Few::new();
    for lane in lanes.iter().filter(|lane| wave.done >> lane.lane & 1 == 0) {
        let place = lane.places[0];
        place.reached(world, lane.lane, (0, if wide { 8 } else { 4 }), Touch::Atomic);
        let ptr = match place {
            Place::Memory(va) if va & mask != 0 => return Err(Exit::Refused(Refusal::Aperture { va })),
            Place::Lds(at) if u64::from(at) & mask != 0 => {
                return Err(Exit::Refused(Refusal::Aperture {
                    va: u64::from(group.apertures.shared) << 32 | u64::from(at),
                }));
            }
            Place::Memory(va) => {
                let ptr = world.translate(va, Access::Write).map_err(Exit::Miss)?.ptr;
                if op.is_float() && world.strict() && world.is_host(va) {
                    return Err(Exit::Refused(Refusal::HostAtomic { op: inst.op, va }));
                }
                ptr
            }
            Place::Lds(_) | Place::Nowhere => std::ptr::null_mut(),
        };
        hosts.push((lane.lane, place, ptr));
    }
    world.moved(hosts.len() as u64 * if wide { 8 } else { 4 });
    for &(lane, place, ptr) in hosts.iter() {
        let (a, b) = registers.operands(wave, lane);
        let old = match place {
            Place::Memory(va) => {
                let old = memory(wave.target, (op, wide), ptr, va, [a, b])?;
                if changes(op, wide, old, [a, b]) {
                    world.wrote();
                }
                old
            }
            Place::Lds(at) => {
                let denormals = wave.mode.denorm32_in() && wave.mode.denorm32_out();
                local(op, wide, group, at, a, b, denormals)
            }
            Place::Nowhere => 0,
        };
        registers.give(wave, lane, old);
        wave.done |= 1 << lane;
    }
    wave.done = 0;
    Ok(())
}
