// SPDX-License-Identifier: GPL-2.0 OR MIT
//! From words to an [`Inst`].
//!
//! Mechanism: a tree per target, built at the first use, finds the records that fixed bits leave
//! possible (mostly one). The first record with matching bits and operands is the instruction. Its
//! shape gives the operands' places. A literal follows the record's words.
//!
//! Limits: which operands the hardware would reject beyond the assembler's rules is not known here.

use std::sync::LazyLock;

use crate::inst::{Dpp, DppKind, Extension, Format, Half, Inst, Memory, Mods, Sdwa, SdwaSelect, SdwaUnused};
use crate::operand::{Operand, Special};
use crate::table::{self, flags, Field, Kind, Part, Record, Shape, Slot};
use crate::tables::records::{RECORDS, TARGETS};
use crate::tables::shapes::SHAPES;
use crate::tree::Tree;
use crate::{Op, Target};

/// The most words that an instruction has.
pub const MAX_WORDS: usize = 5;

/// Words that are no instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No encoding of the target has these bits, or an operand is not possible.
    #[error("{0:#010x} starts no instruction of {1}")]
    Unknown(u32, Target),
    /// The words end inside of the instruction.
    #[error("the code ends inside of the instruction that {0:#010x} starts")]
    Truncated(u32),
}

const _: () = assert!(TARGETS == Target::ALL.len(), "`cargo xtask isa --llvm DIR --write` makes the tables");

static TREES: LazyLock<[Tree; TARGETS]> = LazyLock::new(|| std::array::from_fn(Tree::new));

/// Decodes the instruction at the start of `words`, of which [`MAX_WORDS`] are looked at.
///
/// # Errors
///
/// If the words are no instruction of the target.
#[inline]
pub fn decode(target: Target, words: &[u32]) -> Result<Inst, DecodeError> {
    let mut padded = [0; MAX_WORDS];
    let count = words.len().min(MAX_WORDS);
    padded[..count].copy_from_slice(&words[..count]);
    let Some(&first) = words.first() else { return Err(DecodeError::Truncated(0)) };
    let low = u64::from(padded[0]) | u64::from(padded[1]) << 32;
    let mut short = false;
    let mut impossible = None;
    for &entry in TREES[target as usize].candidates(low) {
        let (record, shape) = table::at(entry);
        if low & record.mask != record.value || padded[2] & record.mask_high != record.value_high {
            continue;
        }
        // An access whose operands are impossible is not another form of it.
        let accesses = matches!(shape.format, Format::Flat | Format::Global | Format::Scratch);
        if accesses && impossible == Some(record.op) {
            continue;
        }
        let mut operands = Decoder { target, words: &padded, bytes: shape.bytes, literal: None, encoded: false };
        let Some(mut inst) = operands.inst(record, shape, entry) else {
            impossible = Some(record.op);
            continue;
        };
        inst.bytes = operands.bytes;
        if usize::from(operands.bytes) > count * 4 {
            short = true;
            continue;
        }
        return Ok(inst);
    }
    // Fixed bits may lie in a word that is not there.
    let short = short || count < MAX_WORDS && begins(target, low, count);
    Err(if short { DecodeError::Truncated(first) } else { DecodeError::Unknown(first, target) })
}

/// Whether an instruction that is longer than `count` words may begin with these.
fn begins(target: Target, low: u64, count: usize) -> bool {
    let known = if count < 2 { 0xffff_ffff } else { u64::MAX };
    RECORDS.iter().any(|record| {
        let longer = usize::from(SHAPES[usize::from(record.shape)].bytes) > 4 * count;
        longer && record.targets >> target as usize & 1 == 1 && (low ^ record.value) & record.mask & known == 0
    })
}

impl Part {
    #[inline]
    fn of(&self, words: &[u32; MAX_WORDS]) -> u32 {
        let mask = u32::MAX >> (32 - u32::from(self.width));
        ((words[usize::from(self.word)] >> self.bit) & mask) << self.to
    }
}

impl Slot {
    /// The operand's bits.
    #[inline]
    pub(crate) fn raw(&self, words: &[u32; MAX_WORDS]) -> u32 {
        self.parts.iter().fold(0, |value, part| value | part.of(words))
    }

    fn width(&self) -> u32 {
        self.parts.iter().map(|part| u32::from(part.to + part.width)).max().unwrap_or(0)
    }
}

/// `value`, a number of `width` bits, with its sign extended.
pub(crate) fn sign_extend(value: u32, width: u32) -> i32 {
    let shift = 32 - width;
    signed(value << shift) >> shift
}

impl Slot {
    /// The scalar registers that the operand has.
    pub(crate) fn scalars(&self, target: Target) -> u8 {
        match self.kind {
            Kind::Bool | Kind::SdwaDst => 1 + u8::from(target.is_gfx9()),
            _ => self.dwords,
        }
    }
}

/// The last SGPR; what follows are registers with names of their own.
pub(crate) fn last_sgpr(target: Target) -> u8 {
    if target.is_gfx9() {
        101
    } else {
        105
    }
}

struct Decoder<'a> {
    target: Target,
    words: &'a [u32; MAX_WORDS],
    bytes: u8,
    literal: Option<u32>,
    /// The literal is in the encoding, for sources that only refer to it.
    encoded: bool,
}

impl Decoder<'_> {
    fn inst(&mut self, record: &Record, shape: &Shape, entry: u16) -> Option<Inst> {
        let mut inst = Inst {
            op: record.op,
            format: format(shape.format, record.value),
            extension: Extension::None,
            bytes: shape.bytes,
            entry,
            dst: Operand::None,
            sdst: Operand::None,
            src: [Operand::None; 3],
            imm: 0,
            mods: Mods::default(),
            memory: Memory::default(),
            pair: None,
        };
        if shape.flags & flags::SDWA != 0 {
            inst.extension = Extension::Sdwa(Sdwa::default());
        } else if shape.flags & (flags::DPP16 | flags::DPP8) != 0 {
            inst.extension = Extension::Dpp(Dpp {
                kind: DppKind::Ctrl(0),
                row_mask: 15,
                bank_mask: 15,
                bound_ctrl: false,
                fetch_inactive: false,
            });
        }
        if let Some((op, _)) = record.pair {
            inst.pair = Some(Half { op, dst: Operand::None, src: [Operand::None; 3] });
        }
        for slot in shape.slots {
            self.slot(&mut inst, slot)?;
        }
        if let (Some(literal), true) = (self.literal, self.encoded) {
            let literal = Operand::Literal(literal);
            let dual = inst.format == Format::Vopd;
            place_literal(inst.op, &mut inst.src, dual, literal);
            if let Some(pair) = &mut inst.pair {
                place_literal(pair.op, &mut pair.src, dual, literal);
            }
        }
        if shape.flags != 0 {
            imply(&mut inst, shape.flags);
        }
        Some(inst)
    }

    fn slot(&mut self, inst: &mut Inst, slot: &Slot) -> Option<()> {
        let raw = slot.raw(self.words);
        match slot.field {
            Field::Vdst | Field::VdstX => {
                inst.dst = self.operand(slot, raw)?;
                if slot.kind == Kind::Half && raw & 0x80 != 0 {
                    inst.mods.op_sel |= 8;
                }
            }
            Field::Sdst => {
                let operand = self.operand(slot, raw)?;
                if matches!(inst.format, Format::Vop1 | Format::Vop2 | Format::Vop3 | Format::Vop3p)
                    && inst.dst != Operand::None
                {
                    inst.sdst = operand;
                } else {
                    inst.dst = operand;
                }
            }
            Field::Src0 | Field::Src0X | Field::Vsrc => self.source(inst, slot, raw, 0)?,
            Field::Src1 | Field::Vsrc1X => self.source(inst, slot, raw, 1)?,
            // The index of a sparse matrix takes the place of the accumulator, which is the
            // destination.
            Field::Src2 | Field::Idx => self.source(inst, slot, raw, 2)?,
            Field::VdstY => {
                let value = raw & !1 | !self.words[1] >> 24 & 1;
                inst.pair.as_mut()?.dst = Operand::Vgpr(narrow(value));
            }
            Field::Src0Y => {
                let operand = self.operand(slot, raw)?;
                inst.pair.as_mut()?.src[0] = operand;
            }
            Field::Vsrc1Y => {
                let operand = self.operand(slot, raw)?;
                inst.pair.as_mut()?.src[1] = operand;
            }
            Field::Src0Modifiers => modifiers(inst, slot.kind, raw, 0),
            Field::Src1Modifiers => modifiers(inst, slot.kind, raw, 1),
            Field::Src2Modifiers => modifiers(inst, slot.kind, raw, 2),
            Field::Clamp => inst.mods.clamp = raw != 0,
            Field::Omod => inst.mods.omod = byte(raw),
            Field::Cbsz => inst.mods.cbsz = byte(raw),
            Field::Abid => inst.mods.abid = byte(raw),
            Field::Blgp => inst.mods.blgp = byte(raw),
            Field::Simm16 => inst.imm = sign_extend(raw, 16),
            Field::Imm => self.literal_in_encoding(inst, raw)?,
            Field::Addr | Field::Vaddr | Field::Vaddr0 => inst.memory.vaddr = self.operand(slot, raw)?,
            // One bit says for destination and data where they are.
            Field::Data0 | Field::Vdata => {
                inst.memory.data = like(self.operand(slot, raw)?, inst.dst, slot);
            }
            Field::Data1 => inst.memory.data2 = like(self.operand(slot, raw)?, inst.memory.data, slot),
            Field::Sdata if slot.kind == Kind::Imm => inst.imm = signed(raw),
            Field::Sdata => inst.memory.data = self.operand(slot, raw)?,
            Field::Saddr | Field::Srsrc | Field::Sbase => inst.memory.base = self.operand(slot, raw)?,
            Field::Soffset => inst.memory.soffset = self.operand(slot, raw)?,
            Field::Offset => {
                inst.memory.offset = match slot.kind {
                    Kind::SmemOffset | Kind::SmemOffsetMod => sign_extend(raw, 21),
                    Kind::SignedOffset => sign_extend(raw, slot.width()),
                    _ => signed(raw),
                }
            }
            Field::Offset0 => inst.memory.offsets[0] = byte(raw),
            Field::Offset1 => inst.memory.offsets[1] = byte(raw),
            Field::Cpol => {
                inst.memory.glc = raw & 1 != 0;
                inst.memory.slc = raw & 2 != 0;
                inst.memory.dlc = match self.target {
                    Target::Gfx900 => false,
                    Target::Gfx90a | Target::Gfx942 => raw & 16 != 0,
                    Target::Gfx1030 | Target::Gfx1100 => raw & 4 != 0,
                };
            }
            // The bit has no meaning without GDS.
            Field::Gds => inst.memory.gds = raw != 0 && !self.target.is_cdna(),
            Field::Tfe => inst.memory.tfe = raw != 0,
            Field::Format => inst.memory.format = byte(raw),
            Field::Dmask => inst.memory.dmask = byte(raw),
            Field::DppCtrl | Field::RowMask | Field::BankMask | Field::BoundCtrl | Field::Fi | Field::Dpp8 => {
                dpp(inst, slot, raw)?
            }
            Field::DstSel | Field::DstUnused | Field::Src0Sel | Field::Src1Sel => sdwa(inst, slot.field, raw)?,
            // Not executed, but it has to be possible.
            Field::Ssamp => {
                self.operand(slot, raw)?;
            }
            _ => {}
        }
        Some(())
    }

    fn source(&mut self, inst: &mut Inst, slot: &Slot, raw: u32, index: usize) -> Option<()> {
        if matches!(slot.kind, Kind::GprIndexMode | Kind::Message | Kind::Imm) {
            inst.imm = signed(raw);
        } else {
            inst.src[index] = self.operand(slot, raw)?;
            let half = match slot.kind {
                Kind::Half | Kind::LowOrHigh => true,
                Kind::SrcHalf | Kind::SrcLow => raw & 0x100 != 0,
                _ => false,
            };
            if half && raw & 0x80 != 0 {
                inst.mods.op_sel |= 1 << index;
            }
        }
        Some(())
    }

    fn literal_in_encoding(&mut self, inst: &mut Inst, raw: u32) -> Option<()> {
        if inst.format == Format::Vopd && self.literal.is_some_and(|other| other != raw) {
            return None;
        }
        self.literal = Some(raw);
        if inst.format != Format::Vopd {
            // FMAMK's literal is its second source, FMAAK's its third: the slots are in that order.
            let free = inst.src.iter().position(|source| *source == Operand::None)?;
            inst.src[free] = Operand::Literal(raw);
        }
        self.encoded = true;
        Some(())
    }

    fn operand(&mut self, slot: &Slot, raw: u32) -> Option<Operand> {
        Some(match slot.kind {
            Kind::Vgpr => Operand::Vgpr(narrow(self.vector(raw & 0xff, slot.dwords)?)),
            Kind::VgprLow if raw >= 128 => return None,
            Kind::VgprLow | Kind::LowOrHigh => Operand::Vgpr(narrow(raw & 0x7f)),
            Kind::Agpr => Operand::Agpr(narrow(self.vector(raw & 0xff, slot.dwords)?)),
            Kind::VgprOrAgpr => {
                let register = narrow(self.vector(raw & 0xff, slot.dwords)?);
                if raw & 0x200 != 0 && self.target.is_cdna() {
                    Operand::Agpr(register)
                } else {
                    Operand::Vgpr(register)
                }
            }
            Kind::Sgpr => self.scalar(raw, slot)?,
            Kind::Bool | Kind::Src | Kind::SrcLow | Kind::SrcAgpr | Kind::SrcDeferred => {
                if raw & 0x100 != 0 {
                    let register = narrow(self.vector(raw & 0xff, slot.scalars(self.target))?);
                    if slot.kind == Kind::SrcLow {
                        return Some(Operand::Vgpr(register & 0x7f));
                    }
                    if slot.kind == Kind::SrcAgpr || raw & 0x200 != 0 {
                        Operand::Agpr(register)
                    } else {
                        Operand::Vgpr(register)
                    }
                } else {
                    self.scalar(raw & 0xff, slot)?
                }
            }
            Kind::Half => Operand::Vgpr(narrow(raw & 0x7f)),
            Kind::SrcHalf => {
                if raw & 0x100 != 0 {
                    Operand::Vgpr(narrow(raw & 0x7f))
                } else {
                    self.scalar(raw & 0xff, slot)?
                }
            }
            Kind::SdwaSrc => {
                if raw & 0x100 == 0 {
                    Operand::Vgpr(narrow(raw))
                } else if raw & 0xff == 0xff {
                    return None;
                } else {
                    self.scalar(raw & 0xff, slot)?
                }
            }
            Kind::SdwaDst => {
                if raw & 0x80 == 0 {
                    Operand::Scalar(Operand::VCC)
                } else {
                    self.scalar(raw & 0x7f, slot)?
                }
            }
            _ => Operand::None,
        })
    }

    /// `first` if that many registers exist from there on.
    fn vector(&self, first: u32, dwords: u8) -> Option<u32> {
        (first + u32::from(dwords.max(1)) <= 256).then_some(first)
    }

    /// A source that is no vector register: `code` has eight bits.
    fn scalar(&mut self, code: u32, slot: &Slot) -> Option<Operand> {
        let dwords = slot.scalars(self.target);
        let code = byte(code);
        let align = match dwords {
            0 | 1 => 1,
            2 => 2,
            _ => 4,
        };
        Some(match code {
            // Groups start at multiples of their alignment: the low bits are not looked at.
            0..=105 if code <= last_sgpr(self.target) => {
                let first = code / align * align;
                if dwords > 16 || first + dwords.max(1) - 1 > 105 {
                    return None;
                }
                Operand::Scalar(first)
            }
            108..=123 => {
                let first = (code - 108) / align * align;
                if first + dwords.max(1) - 1 > 15 {
                    return None;
                }
                Operand::Scalar(Operand::TTMP + first)
            }
            102..=107 | 126 | 127 => {
                if dwords > 2 || (dwords == 2 && code % 2 != 0) {
                    return None;
                }
                Operand::Scalar(code)
            }
            124 | 125 => {
                // NEW TARGET: which of the codes 124 and 125 is NULL
                let null = (code == 124) == (self.target == Target::Gfx1100);
                if dwords > 2 || (dwords == 2 && !null) {
                    return None;
                }
                Operand::Scalar(if null { Operand::NULL } else { Operand::M0 })
            }
            128..=192 => Operand::Int(i8::from_ne_bytes([code - 128])),
            193..=208 => Operand::Int(-i8::from_ne_bytes([code - 192])),
            240..=248 => Operand::Float(code),
            255 => self.literal(slot)?,
            _ if dwords > 2 => return None,
            235 => Operand::Special(Special::SharedBase),
            236 => Operand::Special(Special::SharedLimit),
            237 => Operand::Special(Special::PrivateBase),
            238 => Operand::Special(Special::PrivateLimit),
            239 => Operand::Special(Special::PopsExitingWaveId),
            251 => Operand::Special(Special::Vccz),
            252 => Operand::Special(Special::Execz),
            253 => Operand::Special(Special::Scc),
            254 if dwords < 2 => Operand::Special(Special::LdsDirect),
            _ => return None,
        })
    }

    /// The literal, which all sources of an instruction share.
    fn literal(&mut self, slot: &Slot) -> Option<Operand> {
        if slot.kind == Kind::SrcDeferred {
            return Some(Operand::Literal(DEFERRED));
        }
        if let Some(literal) = self.literal {
            return Some(Operand::Literal(literal));
        }
        if self.target.is_gfx9() && self.bytes >= 8 {
            return None;
        }
        let literal = *self.words.get(usize::from(self.bytes / 4))?;
        self.bytes += 4;
        self.literal = Some(literal);
        Some(Operand::Literal(literal))
    }
}

/// The encoding: some packed operations are described as if they were in the plain one, but their
/// prefix is another.
fn format(described: Format, value: u64) -> Format {
    let word = value & 0xffff_ffff;
    match described {
        Format::Vop3 if word >> 24 == 0xcc || word >> 23 == 0x1a7 => Format::Vop3p,
        other => other,
    }
}

/// Stands for a literal that comes later in the encoding.
const DEFERRED: u32 = 0x5af0_5af0;

/// Puts the literal that an encoding has where sources refer to it, and where a VOPD's halves have
/// it.
fn place_literal(op: Op, src: &mut [Operand; 3], dual: bool, literal: Operand) {
    for source in &mut *src {
        if *source == Operand::Literal(DEFERRED) {
            *source = literal;
        }
    }
    if dual {
        match op {
            Op::VFmaakF32 => src[2] = literal,
            Op::VFmamkF32 => {
                src[2] = src[1];
                src[1] = literal;
            }
            _ => {}
        }
    }
}

/// `operand`, an accumulation register if `first` is one.
fn like(operand: Operand, first: Operand, slot: &Slot) -> Operand {
    match (operand, first) {
        (Operand::Vgpr(n), Operand::Agpr(_)) if slot.kind == Kind::VgprOrAgpr => Operand::Agpr(n),
        _ => operand,
    }
}

fn signed(value: u32) -> i32 {
    i32::from_ne_bytes(value.to_ne_bytes())
}

fn byte(value: u32) -> u8 {
    value.to_le_bytes()[0]
}

fn narrow(value: u32) -> u16 {
    let bytes = value.to_le_bytes();
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn modifiers(inst: &mut Inst, kind: Kind, raw: u32, source: u8) {
    let bit = |n: u32| if raw >> n & 1 != 0 { 1u8 << source } else { 0 };
    let packed = inst.format == Format::Vop3p;
    match kind {
        Kind::IntMods => {
            if let Extension::Sdwa(sdwa) = &mut inst.extension {
                sdwa.sext[usize::from(source)] = raw & 1 != 0;
            }
        }
        Kind::PackedMods if packed => {
            inst.mods.neg |= bit(0);
            inst.mods.neg_hi |= bit(1);
        }
        Kind::PackedMods | Kind::FloatMods => {
            inst.mods.neg |= bit(0);
            inst.mods.abs |= bit(1);
        }
        _ => {}
    }
    inst.mods.op_sel |= bit(2);
    if packed {
        inst.mods.op_sel_hi |= bit(3);
    } else if source == 0 && raw & 8 != 0 {
        inst.mods.op_sel |= 8;
    }
}

fn dpp(inst: &mut Inst, slot: &Slot, raw: u32) -> Option<()> {
    let Extension::Dpp(dpp) = &mut inst.extension else { return None };
    match slot.field {
        Field::DppCtrl => dpp.kind = DppKind::Ctrl(narrow(raw)),
        Field::Dpp8 => dpp.kind = DppKind::Lanes8(raw),
        Field::RowMask => dpp.row_mask = byte(raw),
        Field::BankMask => dpp.bank_mask = byte(raw),
        Field::BoundCtrl => dpp.bound_ctrl = raw != 0,
        _ if slot.kind == Kind::Fi8 => {
            // DPP8's source code says whether inactive lanes are read.
            dpp.fetch_inactive = match raw {
                0xe9 => false,
                0xea => true,
                _ => return None,
            }
        }
        _ => dpp.fetch_inactive = raw != 0,
    }
    Some(())
}

fn sdwa(inst: &mut Inst, field: Field, raw: u32) -> Option<()> {
    let Extension::Sdwa(sdwa) = &mut inst.extension else { return None };
    let select = || {
        Some(match raw {
            0 => SdwaSelect::Byte0,
            1 => SdwaSelect::Byte1,
            2 => SdwaSelect::Byte2,
            3 => SdwaSelect::Byte3,
            4 => SdwaSelect::Word0,
            5 => SdwaSelect::Word1,
            6 => SdwaSelect::Dword,
            _ => return None,
        })
    };
    match field {
        Field::DstSel => sdwa.dst = select()?,
        Field::Src0Sel => sdwa.src[0] = select()?,
        Field::Src1Sel => sdwa.src[1] = select()?,
        _ => {
            sdwa.unused = match raw {
                0 => SdwaUnused::Pad,
                1 => SdwaUnused::Sext,
                2 => SdwaUnused::Preserve,
                _ => return None,
            }
        }
    }
    Some(())
}

/// Sets what the encoding implies.
fn imply(inst: &mut Inst, set: u32) {
    let has = |flag: u32| set & flag != 0;
    if has(flags::DST_VCC) {
        inst.dst = Operand::Scalar(Operand::VCC);
    }
    if has(flags::DST_EXEC) {
        inst.dst = Operand::Scalar(Operand::EXEC);
    }
    if has(flags::SDST_VCC) {
        inst.sdst = Operand::Scalar(Operand::VCC);
    }
    if has(flags::SRC2_VCC) {
        inst.src[2] = Operand::Scalar(Operand::VCC);
    }
    if has(flags::SRC2_DST) {
        inst.src[2] = inst.dst;
    }
    if has(flags::PAIR_SRC2_DST) {
        if let Some(pair) = &mut inst.pair {
            pair.src[2] = pair.dst;
        }
    }
    let memory = &mut inst.memory;
    memory.glc |= has(flags::RETURNS);
    if has(flags::DATA_DST) {
        if inst.dst == Operand::None {
            inst.dst = memory.data;
        } else {
            memory.data = inst.dst;
        }
    }
    memory.offen = has(flags::OFFEN);
    memory.idxen = has(flags::IDXEN);
    memory.lds |= has(flags::LDS);
    memory.tfe |= has(flags::TFE);
    memory.gds |= has(flags::GDS);
}
