// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Machine code of one instruction with random operands, from the decoder's own tables, so that no
//! encoding of any target is forgotten.
//!
//! Operands are in registers that `start` has set: vectors in the first registers, addresses in
//! v[0:1], v2, v3, v12, v13, s[2:3] and s[8:11].

use super::support::random::{source, REGISTERS};
use super::support::Numbers;
use vkfd_isa::{decode, BitField, Encoding, Field, FieldKind, Format, Inst, Target};

fn register(numbers: &mut Numbers, dwords: u8) -> u32 {
    let any = numbers.below(REGISTERS) as u32;
    match dwords {
        // Sums of matrices: at the begin, or where nothing else is.
        5.. => 16 * numbers.below(2) as u32,
        2..=4 => any & !1,
        _ => any,
    }
}

fn scalar(numbers: &mut Numbers, dwords: u8) -> u32 {
    match numbers.below(8) {
        0 => 106,
        // EXEC, which some operations write by themselves, too.
        1 => 126,
        _ => register(numbers, dwords),
    }
}

/// A source, of which 0x100 is the first vector register.
fn any_source(numbers: &mut Numbers, dwords: u8) -> u32 {
    if numbers.below(16) == 0 {
        return 255;
    }
    let source = source(numbers);
    if dwords < 2 || (128..256).contains(&source) || source == 106 {
        source
    } else if source >= 256 {
        256 + register(numbers, dwords)
    } else {
        source & !1
    }
}

/// One in so many times a random value, otherwise `usual`.
fn rarely(numbers: &mut Numbers, one_in: u64, usual: u32) -> u32 {
    let other = numbers.word();
    if numbers.below(one_in) == 0 {
        other
    } else {
        usual
    }
}

fn dpp_control(target: Target, numbers: &mut Numbers) -> u32 {
    const GFX9: [u32; 6] = [0x130, 0x134, 0x138, 0x13c, 0x142, 0x143];
    match numbers.below(5) {
        0 => numbers.below(256) as u32,
        1 => 0x101 + numbers.below(15) as u32,
        2 => 0x111 + numbers.below(15) as u32,
        3 => [0x121 + numbers.below(15) as u32, 0x140, 0x141][numbers.below(3) as usize],
        _ if target.is_gfx9() => GFX9[numbers.below(6) as usize],
        _ => 0x150 + numbers.below(32) as u32,
    }
}

/// A memory instruction's operand, which is at its own place.
fn in_memory(format: Format, field: &BitField, with_base: bool, numbers: &mut Numbers) -> Option<u32> {
    let data = |numbers: &mut Numbers| {
        if numbers.below(3) == 0 {
            0
        } else {
            4 + (numbers.below(3) as u32) * 2
        }
    };
    Some(match (format, field.field) {
        (Format::Ds, Field::Addr) => 3,
        (Format::Flat, Field::Vaddr) => 0,
        (Format::Global, Field::Vaddr) => 2 * u32::from(with_base),
        (Format::Scratch, Field::Vaddr | Field::Saddr) => 2,
        (Format::Global, Field::Saddr) => 2,
        (Format::Mubuf, Field::Vaddr) => 12,
        // Some targets' tables leave the low bits of a scalar register's number out.
        (Format::Mubuf, Field::Srsrc) => 8 >> (7 - field.width()),
        (Format::Mubuf, Field::Soffset) if numbers.below(2) == 0 => 128 + numbers.below(9) as u32,
        (Format::Mubuf | Format::Smem, Field::Soffset) => 1,
        // An address in s[2:3], or a buffer's descriptor in s[8:11].
        (Format::Smem, Field::Sbase) => (if field.dwords > 2 { 8 } else { 2 }) >> (7 - field.width()),
        (Format::Smem, Field::Sdata) if field.kind == FieldKind::Sgpr => 16 + 16 * numbers.below(2) as u32,
        (_, Field::Data0 | Field::Data1 | Field::Vdata) => data(numbers),
        (_, Field::Vdst) if numbers.below(2) == 0 => 0,
        (_, Field::Vdst) => 4 + 2 * numbers.below(4) as u32,
        (_, Field::Offset0 | Field::Offset1) => numbers.below(8) as u32,
        (Format::Ds, Field::Offset) => (numbers.below(8) << 3) as u32,
        (Format::Flat, Field::Offset) => numbers.below(64) as u32 & !7,
        (Format::Global, Field::Offset) => numbers.below(128).wrapping_sub(64) as u32 & !7,
        (Format::Scratch, Field::Offset) => numbers.below(8) as u32 * 4,
        (Format::Mubuf, Field::Offset) => numbers.below(16) as u32 * 4,
        (Format::Smem, Field::Offset) => numbers.below(512) as u32,
        (_, Field::Cpol) => rarely(numbers, 4, 0),
        _ => return None,
    })
}

fn value(target: Target, encoding: &Encoding, field: &BitField, with_base: bool, numbers: &mut Numbers) -> u32 {
    let memory = matches!(
        encoding.format,
        Format::Ds | Format::Flat | Format::Global | Format::Scratch | Format::Mubuf | Format::Smem
    );
    if memory {
        let Some(value) = in_memory(encoding.format, field, with_base, numbers) else { return 0 };
        // Accumulation registers hold data as well.
        let other = field.kind == FieldKind::VgprOrAgpr && numbers.below(4) == 0;
        return value | u32::from(other) << 9;
    }
    let half = |numbers: &mut Numbers| (numbers.below(2) as u32) << 7;
    match (field.kind, field.field) {
        (FieldKind::Vgpr | FieldKind::Agpr | FieldKind::VgprLow | FieldKind::VopdDst, _) => {
            register(numbers, field.dwords)
        }
        (FieldKind::LowOrHigh | FieldKind::Half, _) => register(numbers, field.dwords) | half(numbers),
        (FieldKind::VgprOrAgpr, _) => register(numbers, field.dwords) | (numbers.below(2) as u32) << 9,
        (FieldKind::Sgpr | FieldKind::Bool, _) => scalar(numbers, field.dwords),
        (FieldKind::SrcHalf | FieldKind::SrcLow, _) => {
            let source = any_source(numbers, field.dwords);
            source | if source >= 256 { half(numbers) } else { 0 }
        }
        (FieldKind::SrcAgpr | FieldKind::Src, _) if field.dwords > 4 && numbers.below(2) == 0 => {
            256 + register(numbers, field.dwords)
        }
        // Matrix operations take vectors, and constants for the sum.
        (FieldKind::Src | FieldKind::SrcDeferred | FieldKind::SrcAgpr, _) => any_source(numbers, field.dwords),
        (FieldKind::SdwaSrc, _) if numbers.below(6) == 0 => 256 | source(numbers) & 0x7f,
        (FieldKind::SdwaSrc, _) => register(numbers, 1),
        (FieldKind::SdwaDst, _) if numbers.below(2) == 0 => 0,
        (FieldKind::SdwaDst, _) => 1 << 7 | register(numbers, 2),
        (FieldKind::Fi8, _) => 233 + numbers.below(2) as u32,
        (FieldKind::PackedMods, _) => rarely(numbers, 2, 8),
        (FieldKind::FloatMods | FieldKind::IntMods | FieldKind::SelectMods, _) => rarely(numbers, 3, 0),
        (_, Field::Clamp) => u32::from(numbers.below(6) == 0),
        (_, Field::Omod) => rarely(numbers, 6, 0),
        (_, Field::Cbsz | Field::Abid | Field::Blgp) => rarely(numbers, 8, 0),
        (_, Field::DppCtrl) => dpp_control(target, numbers),
        (_, Field::RowMask | Field::BankMask) => rarely(numbers, 2, 0xf),
        (_, Field::DstSel | Field::Src0Sel | Field::Src1Sel) => numbers.below(7) as u32,
        (_, Field::DstUnused) => numbers.below(3) as u32,
        _ => numbers.word(),
    }
}

/// An instruction of an encoding, and its words. Not every attempt makes one.
pub fn instruction(target: Target, encoding: &Encoding, numbers: &mut Numbers) -> Option<(Inst, Vec<u32>)> {
    let mut words = encoding.value;
    let with_base = encoding.fields.iter().any(|field| field.field == Field::Saddr);
    for field in &encoding.fields {
        let value = value(target, encoding, field, with_base, numbers);
        field.set(&mut words, value);
    }
    if encoding.words < words.len() && encoding.mask[encoding.words] == 0 {
        // A literal, if the instruction has one.
        words[encoding.words] = numbers.word();
    }
    let inst = decode(target, &words).ok().filter(|inst| inst.op == encoding.op && inst.entry == encoding.entry)?;
    let words = &words[..usize::from(inst.bytes) / 4];
    // Of a v_nop with DPP or SDWA the first word is one by itself, as llvm-mc has it, too; and code
    // is read word by word.
    let whole = (1..words.len()).all(|count| decode(target, &words[..count]).is_err());
    whole.then(|| (inst, words.to_vec()))
}
