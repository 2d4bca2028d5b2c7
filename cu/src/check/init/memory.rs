// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Addresses, loads and stores.

use super::super::bits::Bits;
use super::super::map::Map;
use super::super::note::{Notes, Rule};
use super::super::seen::Seen;
use super::Shadow;
use crate::reference::memory::{ds_kind, ds_two, kind as memory_kind, Extend, Kind as Move};
use crate::reference::operand;
use crate::wave::{Wave, LANES};
use crate::world::{Access, Reach, Spot, Touch, World};
use vkfd_isa::{Format, Inst, Op, Operand};

/// Bytes that count as written together by a processor.
const TOGETHER: u64 = 16;

/// Whether instructions of a format reach memory.
pub(super) fn reaches(format: Format) -> bool {
    matches!(
        format,
        Format::Smem | Format::Ds | Format::Flat | Format::Global | Format::Scratch | Format::Mubuf | Format::Mtbuf
    )
}

/// Addresses of bits that nothing wrote.
pub(super) fn before(shadow: &mut Shadow, seen: &Seen<'_>, inst: &Inst, wave: &Wave, notes: &mut Notes) {
    if !reaches(inst.format) || inst.op == Op::DsNop {
        return;
    }
    let memory = &inst.memory;
    let mut bad = None;
    let buffer = matches!(inst.format, Format::Mubuf | Format::Mtbuf);
    let words = match inst.format {
        _ if matches!(memory.base, Operand::None | Operand::Scalar(Operand::NULL)) => 0,
        Format::Mubuf | Format::Mtbuf => 4,
        Format::Scratch => 1,
        _ if is_scalar_buffer(inst.op) => 4,
        Format::Smem if is_clock(inst.op) => 0,
        _ => 2,
    };
    for (operand, words) in [(memory.base, words), (memory.soffset, 1)] {
        let Operand::Scalar(n) = operand else { continue };
        let bits = shadow.scalar.iter().skip(n.into()).take(words).fold(0, |all, word| all | word);
        if bits != 0 && n != Operand::NULL {
            shadow.define_scalar(operand, words);
            bad = bad.or(Some(None));
        }
    }
    let rows = match inst.format {
        Format::Smem => 0,
        Format::Flat => 2,
        Format::Global if matches!(memory.base, Operand::None | Operand::Scalar(Operand::NULL)) => 2,
        _ if buffer => usize::from(memory.idxen) + usize::from(memory.offen),
        _ if memory.vaddr == Operand::None => 0,
        _ => 1,
    };
    if let Ok(row) = operand::row(wave, memory.vaddr, 1) {
        for row in row..row + rows {
            let lanes = shadow.dirty.get(row).copied().unwrap_or(0) & wave.exec();
            for lane in (0..LANES).filter(|lane| lanes >> lane & 1 == 1) {
                bad = bad.or(Some(u8::try_from(lane).ok()));
                shadow.define(row, lane);
            }
        }
    }
    if let Some(lane) = bad {
        notes.add_at(seen, Rule::Address, (lane, None), None);
    }
}

fn is_clock(op: Op) -> bool {
    matches!(op, Op::SMemtime | Op::SMemrealtime | Op::SDcacheInv | Op::SDcacheWb | Op::SGl1Inv | Op::SDcacheInvVol)
}

fn is_scalar_buffer(op: Op) -> bool {
    op.name().starts_with("s_buffer")
}

/// A piece of a list of bits.
fn at(bits: &[u64], from: u64, len: u8) -> u16 {
    let word = |n: u64| usize::try_from(n).ok().and_then(|n| bits.get(n)).copied().unwrap_or(0);
    let both = u128::from(word(from / 64)) | u128::from(word(from / 64 + 1)) << 64;
    let mask = (1u128 << len.min(16)) - 1;
    u16::try_from(both >> (from % 64) & mask).unwrap_or(0)
}

fn set(bits: &mut [u64], from: u64, len: u8, undefined: u16) {
    for byte in 0..u64::from(len) {
        let at = from + byte;
        if let Some(word) = usize::try_from(at / 64).ok().and_then(|word| bits.get_mut(word)) {
            *word = *word & !(1 << (at % 64)) | u64::from(undefined >> byte & 1) << (at % 64);
        }
    }
}

/// Whether a processor has written to device memory that was filled with garbage. The bytes count
/// as written then.
fn changed<W: World>(world: &mut W, bits: &Bits, va: u64, offset: u64) -> bool {
    let start = offset - offset % TOGETHER;
    let mut found = false;
    for half in [start, start + 8] {
        let Ok(span) = world.translate(va.wrapping_sub(offset).wrapping_add(half), Access::Read) else { continue };
        let mut bytes = [0; 8];
        let len = bytes.len().min(span.len).min(usize::try_from(bits.bytes().saturating_sub(half)).unwrap_or(8));
        // SAFETY: the span is the world's, good until the gate is left, and may vanish; the
        // destination is this frame's.
        if unsafe { vkfd_raw::copy(bytes.as_mut_ptr(), span.ptr, len) }.is_ok() {
            let garbage = Bits::garbage(half).to_le_bytes();
            found |= bytes.iter().zip(garbage).take(len).any(|(byte, garbage)| *byte != garbage);
        }
    }
    if found {
        bits.define(start, TOGETHER);
    }
    found
}

/// Bytes of memory that nothing wrote.
fn load<W: World>(
    shadow: &Shadow,
    lds: &[u64],
    seen: &Seen<'_>,
    world: &mut W,
    map: &Map,
    reach: &Reach,
    from: u8,
) -> u16 {
    let len = reach.len.saturating_sub(from).min(16);
    let va = match reach.spot {
        Spot::Lds(start) => return at(lds, u64::from(start) + u64::from(from), len),
        Spot::Memory(va) => va.wrapping_add(from.into()),
    };
    if let Some(scratch) = seen.group.scratch.as_ref().filter(|scratch| scratch.contains(va)) {
        return scratch.offset(seen.wave, va).map_or(0, |offset| at(&shadow.scratch, offset, len));
    }
    let Some((bits, offset)) = map.bits(va) else { return 0 };
    (0..u64::from(len)).fold(0, |all, byte| {
        let at = offset + byte;
        let unwritten = !(bits.is_written(at) || bits.has_garbage() && changed(world, bits, va.wrapping_add(byte), at));
        all | u16::from(unwritten) << byte
    })
}

/// Bytes have been stored, of which `undefined` nothing wrote. Whether that is kept.
fn store(shadow: &mut Shadow, lds: &mut [u64], seen: &Seen<'_>, map: &Map, reach: &Reach, undefined: u16) -> bool {
    let va = match reach.spot {
        Spot::Lds(start) => {
            set(lds, start.into(), reach.len, undefined);
            return true;
        }
        Spot::Memory(va) => va,
    };
    if let Some(scratch) = seen.group.scratch.as_ref().filter(|scratch| scratch.contains(va)) {
        if let Some(offset) = scratch.offset(seen.wave, va) {
            set(&mut shadow.scratch, offset, reach.len, undefined);
        }
        return true;
    }
    let Some((bits, offset)) = map.bits(va) else { return map.is_device(va) };
    if undefined == 0 {
        bits.define(offset, reach.len.into());
        return true;
    }
    for byte in 0..u64::from(reach.len) {
        // Garbage that was copied is garbage no more, to the eye.
        if undefined >> byte & 1 == 1 && !bits.has_garbage() {
            bits.forget(offset + byte, 1);
        } else {
            bits.define(offset + byte, 1);
        }
    }
    true
}

/// Bytes of a word of bits of which nothing was written.
fn bytes(word: u32) -> u16 {
    (0..4).fold(0, |all, byte| all | u16::from(word >> (8 * byte) & 0xff == 0xff) << byte)
}

/// The rows of the data, each for so many bytes.
struct Rows {
    first: Option<usize>,
    /// DS with two addresses: from this byte on.
    second: Option<(usize, usize)>,
    high: bool,
}

impl Rows {
    fn of(wave: &Wave, inst: &Inst) -> Rows {
        let row = |operand| operand::row(wave, operand, 1).ok();
        let pair = if inst.format == Format::Ds { ds_two(inst.op) } else { None };
        let high = matches!(
            if inst.format == Format::Ds { ds_kind(inst.op) } else { memory_kind(inst.op) },
            Some(Move::Store { high: true, .. })
        );
        let second = pair.and_then(|(bytes, _)| Some((usize::from(bytes), row(inst.memory.data2)?)));
        Rows { first: row(inst.memory.data), second, high }
    }

    /// Whether lanes have no unwritten bits in the data, of four words at most.
    fn are_written(&self, shadow: &Shadow, lanes: u64) -> bool {
        let second = self.second.map(|(_, row)| row);
        self.first.is_some() && [self.first, second].into_iter().flatten().all(|row| shadow.is_written(row, 4, lanes))
    }

    /// The row of a byte, and the byte in its word.
    fn place(&self, byte: usize) -> Option<(usize, usize)> {
        let byte = byte + if self.high { 2 } else { 0 };
        match self.second {
            Some((from, row)) if byte >= from => Some((row + (byte - from) / 4, byte % 4)),
            _ => Some((self.first? + byte / 4, byte % 4)),
        }
    }
}

/// The instruction has run.
pub(super) fn after<W: World>(
    shadow: &mut Shadow,
    lds: &mut [u64],
    seen: &Seen<'_>,
    inst: &Inst,
    (wave, world): (&Wave, &mut W),
    reaches: &[Reach],
    (map, notes): (&Map, &mut Notes),
) {
    if inst.format == Format::Smem {
        return scalars(shadow, lds, seen, inst, world, reaches, map);
    }
    let moves = if inst.format == Format::Ds { ds_kind(inst.op) } else { memory_kind(inst.op) };
    let rows = Rows::of(wave, inst);
    let (size, extend) = match moves {
        Some(Move::Load { bytes, extend }) if !inst.memory.lds => (bytes, extend),
        _ => (ds_two(inst.op).filter(|_| inst.format == Format::Ds).map_or(0, |(bytes, _)| 2 * bytes), Extend::Zero),
    };
    let dst = operand::row(wave, inst.dst, 1).ok().filter(|_| inst.dst != Operand::None);
    let mut lanes_left = wave.exec();
    if let Some(dst) = dst {
        // Loads give what memory has; all others count as written.
        let words = usize::from(size).div_ceil(4).max(if matches!(moves, Some(Move::Format { .. })) { 4 } else { 1 });
        let mut lanes = [0u128; LANES];
        let mut all_written = size != 0;
        for reach in reaches.iter().filter(|reach| reach.touch == Touch::Read) {
            let Some(lane) = lanes.get_mut(usize::from(reach.lane)) else { continue };
            let undefined = load(shadow, lds, seen, world, map, reach, 0);
            all_written &= undefined == 0;
            for byte in (0..reach.len).filter(|byte| undefined >> byte & 1 == 1) {
                *lane |= 0xff << (8 * u32::from(reach.at + byte).min(15));
            }
        }
        let kept = crate::reference::memory::kept(wave.target);
        let exec = wave.exec();
        if all_written && shadow.is_written(dst, words, exec) {
            shadow.computed.iter_mut().skip(dst).take(words).for_each(|lanes| *lanes &= !exec);
            lanes_left = 0;
        }
        for (lane, bits) in lanes.iter().enumerate().filter(|(lane, _)| lanes_left >> lane & 1 == 1) {
            for word in 0..words {
                let bits = u32::try_from(bits >> (32 * word) & u128::from(u32::MAX)).unwrap_or(0);
                let bits = if size == 0 { 0 } else { extend.apply(bits, size, kept & shadow.word(dst + word, lane)) };
                shadow.load(dst + word, lane, bits);
            }
        }
    }
    let is_written = rows.are_written(shadow, wave.exec());
    for reach in reaches.iter().filter(|reach| reach.touch != Touch::Read) {
        if is_written && reach.touch == Touch::Write && usize::from(reach.lane) < LANES {
            store(shadow, lds, seen, map, reach, 0);
            continue;
        }
        let lane = usize::from(reach.lane);
        let plain = reach.touch == Touch::Write && lane < LANES;
        let formatted = matches!(moves, Some(Move::Format { .. } | Move::FromLds));
        let (mut undefined, mut is_computed) = (0, false);
        if plain && !formatted {
            for byte in 0..usize::from(reach.len) {
                let Some((row, part)) = rows.place(usize::from(reach.at) + byte) else { continue };
                let is_bad = bytes(shadow.word(row, lane)) >> part & 1 == 1;
                undefined |= u16::from(is_bad) << byte;
                is_computed |= is_bad && shadow.computed.get(row).is_some_and(|lanes| lanes >> lane & 1 == 1);
            }
        }
        if reach.touch == Touch::Atomic && load(shadow, lds, seen, world, map, reach, 0) != 0 {
            // The sum of garbage and something is garbage.
            continue;
        }
        let outside = matches!(reach.spot, Spot::Memory(va)
            if !seen.group.scratch.as_ref().is_some_and(|scratch| scratch.contains(va)));
        let all = undefined.count_ones() == u32::from(reach.len);
        let host = matches!(reach.spot, Spot::Memory(va) if !map.is_device(va));
        let reported = outside && all && (is_computed || host && !seen.group.moves_only);
        if reported {
            notes.add_at(seen, Rule::Store, (u8::try_from(lane).ok(), None), None);
        }
        store(shadow, lds, seen, map, reach, if reported { 0 } else { undefined });
    }
}

impl Shadow {
    /// Whether lanes have no unwritten bits in some rows.
    fn is_written(&self, row: usize, count: usize, lanes: u64) -> bool {
        self.dirty.iter().skip(row).take(count).all(|dirty| dirty & lanes == 0)
    }

    /// A loaded word.
    fn load(&mut self, row: usize, lane: usize, bits: u32) {
        self.define(row, lane);
        if let Some(computed) = self.computed.get_mut(row) {
            *computed &= !(1 << lane);
        }
        if bits != 0 {
            if let (Some(words), Some(dirty)) = (self.rows.get_mut(row), self.dirty.get_mut(row)) {
                words[lane] = bits;
                *dirty |= 1 << lane;
            }
        }
    }
}

/// Scalar loads and stores.
fn scalars<W: World>(
    shadow: &mut Shadow,
    lds: &mut [u64],
    seen: &Seen<'_>,
    inst: &Inst,
    world: &mut W,
    reaches: &[Reach],
    map: &Map,
) {
    let Operand::Scalar(first) = inst.dst else { return };
    let words = inst.op.name().rsplit_once("dwordx").and_then(|(_, count)| count.parse().ok()).unwrap_or(2);
    let words = if inst.op.name().ends_with("dword") { 1 } else { words };
    if first != Operand::NULL && !is_clock(inst.op) || matches!(inst.op, Op::SMemtime | Op::SMemrealtime) {
        shadow.define_scalar(inst.dst, words);
    }
    for reach in reaches {
        if reach.touch != Touch::Read {
            store(shadow, lds, seen, map, reach, 0);
            continue;
        }
        for word in 0..reach.len / 4 {
            let part = Reach { len: 4 * (word + 1), ..*reach };
            let undefined = load(shadow, lds, seen, world, map, &part, 4 * word);
            let bits = (0..4).fold(0u32, |all, byte| all | (u32::from(undefined >> byte & 1) * 0xff) << (8 * byte));
            if let Some(slot) = shadow.scalar.get_mut(usize::from(first) + usize::from(word)) {
                *slot = bits;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_cross_words() {
        let mut bits = vec![u64::MAX; 2];
        set(&mut bits, 62, 4, 0b0101);
        assert_eq!(at(&bits, 60, 8), 0b1101_0111);
        assert_eq!(bytes(0xff00_7fff), 0b1001);
    }
}
