// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scalar memory: loads, stores and atomic operations of scalar registers, and the clocks.
//!
//! Addresses are of dwords: the two low bits of an address do not count. A buffer's size is in
//! bytes, or in elements if it has a stride; what is beyond it reads as zero and is not written.

use super::atomic::memory;
use super::descriptor::Buffer;
use super::kind::AtomicOp;
use super::plan::{lost, pieces, read, write, Place};
use super::{scalar, scalar_pair, unsupported, REGISTER};
use crate::exit::Exit;
use crate::few::Few;
use crate::wave::Wave;
use crate::world::{Access, Reach, Touch, World};
use vkfd_isa::{Inst, Op, Operand};

/// The lane of these accesses.
const SCALAR: usize = Reach::SCALAR as usize;

/// How an address is formed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Base {
    Plain,
    Buffer,
    Scratch,
}

enum What {
    Load(u8),
    Store(u8),
    Atomic(AtomicOp, bool),
}

fn what(op: Op) -> Option<(Base, What)> {
    use AtomicOp::{Add, And, Cmpswap, Dec, Inc, Smax, Smin, Sub, Swap, Umax, Umin, Xor};
    use Base::{Buffer, Plain, Scratch};
    let atomic = |base, op, wide| Some((base, What::Atomic(op, wide)));
    Some(match op {
        Op::SLoadDword => (Plain, What::Load(1)),
        Op::SLoadDwordx2 => (Plain, What::Load(2)),
        Op::SLoadDwordx4 => (Plain, What::Load(4)),
        Op::SLoadDwordx8 => (Plain, What::Load(8)),
        Op::SLoadDwordx16 => (Plain, What::Load(16)),
        Op::SBufferLoadDword => (Buffer, What::Load(1)),
        Op::SBufferLoadDwordx2 => (Buffer, What::Load(2)),
        Op::SBufferLoadDwordx4 => (Buffer, What::Load(4)),
        Op::SBufferLoadDwordx8 => (Buffer, What::Load(8)),
        Op::SBufferLoadDwordx16 => (Buffer, What::Load(16)),
        Op::SScratchLoadDword => (Scratch, What::Load(1)),
        Op::SScratchLoadDwordx2 => (Scratch, What::Load(2)),
        Op::SScratchLoadDwordx4 => (Scratch, What::Load(4)),
        Op::SStoreDword => (Plain, What::Store(1)),
        Op::SStoreDwordx2 => (Plain, What::Store(2)),
        Op::SStoreDwordx4 => (Plain, What::Store(4)),
        Op::SBufferStoreDword => (Buffer, What::Store(1)),
        Op::SBufferStoreDwordx2 => (Buffer, What::Store(2)),
        Op::SBufferStoreDwordx4 => (Buffer, What::Store(4)),
        Op::SScratchStoreDword => (Scratch, What::Store(1)),
        Op::SScratchStoreDwordx2 => (Scratch, What::Store(2)),
        Op::SScratchStoreDwordx4 => (Scratch, What::Store(4)),
        Op::SAtomicSwap => return atomic(Plain, Swap, false),
        Op::SAtomicSwapX2 => return atomic(Plain, Swap, true),
        Op::SAtomicCmpswap => return atomic(Plain, Cmpswap, false),
        Op::SAtomicCmpswapX2 => return atomic(Plain, Cmpswap, true),
        Op::SAtomicAdd => return atomic(Plain, Add, false),
        Op::SAtomicAddX2 => return atomic(Plain, Add, true),
        Op::SAtomicSub => return atomic(Plain, Sub, false),
        Op::SAtomicSubX2 => return atomic(Plain, Sub, true),
        Op::SAtomicSmin => return atomic(Plain, Smin, false),
        Op::SAtomicSminX2 => return atomic(Plain, Smin, true),
        Op::SAtomicUmin => return atomic(Plain, Umin, false),
        Op::SAtomicUminX2 => return atomic(Plain, Umin, true),
        Op::SAtomicSmax => return atomic(Plain, Smax, false),
        Op::SAtomicSmaxX2 => return atomic(Plain, Smax, true),
        Op::SAtomicUmax => return atomic(Plain, Umax, false),
        Op::SAtomicUmaxX2 => return atomic(Plain, Umax, true),
        Op::SAtomicAnd => return atomic(Plain, And, false),
        Op::SAtomicAndX2 => return atomic(Plain, And, true),
        Op::SAtomicOr => return atomic(Plain, AtomicOp::Or, false),
        Op::SAtomicOrX2 => return atomic(Plain, AtomicOp::Or, true),
        Op::SAtomicXor => return atomic(Plain, Xor, false),
        Op::SAtomicXorX2 => return atomic(Plain, Xor, true),
        Op::SAtomicInc => return atomic(Plain, Inc, false),
        Op::SAtomicIncX2 => return atomic(Plain, Inc, true),
        Op::SAtomicDec => return atomic(Plain, Dec, false),
        Op::SAtomicDecX2 => return atomic(Plain, Dec, true),
        Op::SBufferAtomicSwap => return atomic(Buffer, Swap, false),
        Op::SBufferAtomicSwapX2 => return atomic(Buffer, Swap, true),
        Op::SBufferAtomicCmpswap => return atomic(Buffer, Cmpswap, false),
        Op::SBufferAtomicCmpswapX2 => return atomic(Buffer, Cmpswap, true),
        Op::SBufferAtomicAdd => return atomic(Buffer, Add, false),
        Op::SBufferAtomicAddX2 => return atomic(Buffer, Add, true),
        Op::SBufferAtomicSub => return atomic(Buffer, Sub, false),
        Op::SBufferAtomicSubX2 => return atomic(Buffer, Sub, true),
        Op::SBufferAtomicSmin => return atomic(Buffer, Smin, false),
        Op::SBufferAtomicSminX2 => return atomic(Buffer, Smin, true),
        Op::SBufferAtomicUmin => return atomic(Buffer, Umin, false),
        Op::SBufferAtomicUminX2 => return atomic(Buffer, Umin, true),
        Op::SBufferAtomicSmax => return atomic(Buffer, Smax, false),
        Op::SBufferAtomicSmaxX2 => return atomic(Buffer, Smax, true),
        Op::SBufferAtomicUmax => return atomic(Buffer, Umax, false),
        Op::SBufferAtomicUmaxX2 => return atomic(Buffer, Umax, true),
        Op::SBufferAtomicAnd => return atomic(Buffer, And, false),
        Op::SBufferAtomicAndX2 => return atomic(Buffer, And, true),
        Op::SBufferAtomicOr => return atomic(Buffer, AtomicOp::Or, false),
        Op::SBufferAtomicOrX2 => return atomic(Buffer, AtomicOp::Or, true),
        Op::SBufferAtomicXor => return atomic(Buffer, Xor, false),
        Op::SBufferAtomicXorX2 => return atomic(Buffer, Xor, true),
        Op::SBufferAtomicInc => return atomic(Buffer, Inc, false),
        Op::SBufferAtomicIncX2 => return atomic(Buffer, Inc, true),
        Op::SBufferAtomicDec => return atomic(Buffer, Dec, false),
        Op::SBufferAtomicDecX2 => return atomic(Buffer, Dec, true),
        _ => return None,
    })
}

/// What keeps caches right, of which there are none.
fn does_nothing(op: Op) -> bool {
    matches!(
        op,
        Op::SDcacheInv
            | Op::SDcacheInvVol
            | Op::SDcacheWb
            | Op::SDcacheWbVol
            | Op::SDcacheDiscard
            | Op::SDcacheDiscardX2
            | Op::SAtcProbe
            | Op::SAtcProbeBuffer
            | Op::SGl1Inv
    )
}

/// Whether the operation is one of these.
pub(super) fn knows(op: Op) -> bool {
    what(op).is_some() || does_nothing(op) || matches!(op, Op::SMemtime | Op::SMemrealtime)
}

/// Executes a scalar memory instruction.
pub(super) fn execute<W: World>(inst: &Inst, wave: &mut Wave, world: &mut W) -> Result<(), Exit> {
    match inst.op {
        Op::SMemtime | Op::SMemrealtime => {
            let ticks = if inst.op == Op::SMemtime { world.cycles() } else { world.clock() };
            return set(wave, inst.dst, &[ticks as u32, (ticks >> 32) as u32]);
        }
        op if does_nothing(op) => return Ok(()),
        _ => {}
    }
    let (base, what) = what(inst.op).ok_or_else(|| unsupported(inst))?;
    let offset = scalar(wave, inst.memory.soffset)?;
    // The register's offset is unsigned, the instruction's is not.
    let offset = match base {
        Base::Scratch => u64::from(offset) * 64,
        _ => u64::from(offset),
    };
    let offset = offset.wrapping_add(i64::from(inst.memory.offset) as u64);
    let (va, limit) = match base {
        Base::Plain | Base::Scratch => (scalar_pair(wave, inst.memory.base)?.wrapping_add(offset) & !3, u64::MAX),
        Base::Buffer => {
            let buffer = Buffer::load(wave, inst.memory.base).ok_or(REGISTER)?;
            let offset = offset & !3;
            (buffer.base.wrapping_add(offset) & !3, buffer.scalar_size().saturating_sub(offset))
        }
    };
    match what {
        What::Load(count) => {
            let count = usize::from(count);
            check(wave, inst.dst, count)?;
            let inside = count.min(usize::try_from(limit / 4).unwrap_or(usize::MAX));
            Place::Memory(va).reached(world, SCALAR, (0, inside * 4), Touch::Read);
            let mut bytes = [0; 64];
            let mut parts: Few<_> = Few::new();
            pieces(world, va, inside * 4, Access::Read, |at, va, ptr, len| parts.push((at, va, ptr, len)))?;
            for &(at, va, ptr, len) in parts.iter() {
                let slot = bytes.get_mut(at..at + len).unwrap_or_default();
                read(ptr, slot).map_err(|_| lost(va, Access::Read))?;
            }
            let mut words = [0; 16];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            set(wave, inst.dst, words.get(..count).unwrap_or_default())
        }
        What::Store(count) => {
            let inside = usize::from(count).min(usize::try_from(limit / 4).unwrap_or(usize::MAX));
            Place::Memory(va).reached(world, SCALAR, (0, inside * 4), Touch::Write);
            let mut bytes: Few<u8> = Few::new();
            for index in 0..count {
                source(wave, inst, index)?.to_le_bytes().into_iter().for_each(|byte| bytes.push(byte));
            }
            let mut parts: Few<_> = Few::new();
            pieces(world, va, inside * 4, Access::Write, |at, va, ptr, len| parts.push((at, va, ptr, len)))?;
            for &(at, va, ptr, len) in parts.iter() {
                write(ptr, bytes.get(at..at + len).unwrap_or_default()).map_err(|_| lost(va, Access::Write))?;
            }
            Ok(())
        }
        What::Atomic(op, wide) => {
            let size = if wide { 2 } else { 1 };
            let operand = |from: u8| -> Result<u64, Exit> {
                let low = u64::from(source(wave, inst, from)?);
                Ok(if wide { low | u64::from(source(wave, inst, from + 1)?) << 32 } else { low })
            };
            let a = operand(0)?;
            let b = if op.has_second() { operand(size)? } else { 0 };
            let dst = if inst.dst == Operand::None { inst.memory.data } else { inst.dst };
            if inst.memory.glc {
                check(wave, dst, size.into())?;
            }
            let va = if wide { va & !7 } else { va };
            let old = if limit < u64::from(size) * 4 {
                0
            } else {
                Place::Memory(va).reached(world, SCALAR, (0, 4 * usize::from(size)), Touch::Atomic);
                let ptr = world.translate(va, Access::Write).map_err(Exit::Miss)?.ptr;
                memory(wave.target, (op, wide), ptr, va, [a, b])?
            };
            if inst.memory.glc {
                let words = [old as u32, (old >> 32) as u32];
                set(wave, dst, words.get(..size.into()).unwrap_or_default())?;
            }
            Ok(())
        }
    }
}

/// A register of the data that are stored.
fn source(wave: &Wave, inst: &Inst, plus: u8) -> Result<u32, Exit> {
    match inst.memory.data {
        Operand::Scalar(index) => scalar(wave, Operand::Scalar(index.saturating_add(plus))),
        _ => Err(REGISTER),
    }
}

fn check(wave: &Wave, dst: Operand, count: usize) -> Result<(), Exit> {
    match dst {
        Operand::Scalar(index) if usize::from(index) + count <= wave.scalar.len() => Ok(()),
        _ => Err(REGISTER),
    }
}

/// Sets scalar registers. NULL stays zero.
fn set(wave: &mut Wave, dst: Operand, words: &[u32]) -> Result<(), Exit> {
    check(wave, dst, words.len())?;
    if let Operand::Scalar(index) = dst {
        if index != Operand::NULL {
            for (slot, word) in wave.scalar.iter_mut().skip(index.into()).zip(words) {
                *slot = *word;
            }
        }
    }
    Ok(())
}
