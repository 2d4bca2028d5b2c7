// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The form of the generated tables.
//!
//! A [`Record`] is one encoding of an operation: the bits that it fixes and what it is. Records
//! share a [`Shape`]: the operands' places, and the assembler's template.

use crate::inst::Format;
use crate::tables::records::RECORDS;
use crate::tables::shapes::SHAPES;
use crate::Op;

/// One encoding of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Bits that are fixed in the first two words.
    pub mask: u64,
    /// Their values.
    pub value: u64,
    /// The same for the third word of 12-byte encodings.
    pub mask_high: u32,
    pub value_high: u32,
    /// Bit `n`: target `n` of [`Target::ALL`](crate::Target::ALL) has it.
    pub targets: u8,
    pub op: Op,
    /// Index of its shape.
    pub shape: u16,
    /// What the assembler calls it.
    pub mnemonic: &'static str,
    /// The second half of a VOPD: its operation and what the assembler calls it.
    pub pair: Option<(Op, &'static str)>,
}

/// What many records share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub format: Format,
    /// Bytes without a literal.
    pub bytes: u8,
    /// Of [`flags`].
    pub flags: u32,
    /// How many of the three sources there are, tied ones among them.
    pub sources: u8,
    /// The assembler's template, after the mnemonic: `$` starts an operand's name; the second
    /// mnemonic of a VOPD belongs after its `::`.
    pub template: &'static str,
    pub slots: &'static [Slot],
    /// Of images.
    pub image: Option<Image>,
}

/// What decides how many registers an image instruction has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image {
    pub extra: u8,
    pub coordinates: bool,
    /// A level of detail, its limit, or a mip level.
    pub lod: bool,
    pub gradients: bool,
    pub short_gradients: bool,
    /// Four texels, whatever the mask says.
    pub gather: bool,
    /// Registers that the record has, and a bit for each number that the operation can have.
    pub data: u8,
    pub data_sizes: u8,
    pub addresses: u8,
    pub address_sizes: u16,
    /// Each address is in a register of its own.
    pub scattered: bool,
}

/// What a shape implies beyond its slots.
pub(crate) mod flags {
    /// VOPC: VCC is the destination.
    pub const DST_VCC: u32 = 1 << 0;
    /// VOPC of gfx10 and later: EXEC is the destination.
    pub const DST_EXEC: u32 = 1 << 1;
    /// VCC is the second destination.
    pub const SDST_VCC: u32 = 1 << 2;
    /// VCC is the third source.
    pub const SRC2_VCC: u32 = 1 << 3;
    /// The destination is the third source.
    pub const SRC2_DST: u32 = 1 << 4;
    /// An atomic that returns the old value.
    pub const RETURNS: u32 = 1 << 5;
    /// Destination and data are the same registers.
    pub const DATA_DST: u32 = 1 << 6;
    pub const OFFEN: u32 = 1 << 7;
    pub const IDXEN: u32 = 1 << 8;
    pub const LDS: u32 = 1 << 9;
    pub const TFE: u32 = 1 << 10;
    pub const GDS: u32 = 1 << 11;
    pub const SDWA: u32 = 1 << 12;
    pub const DPP16: u32 = 1 << 13;
    pub const DPP8: u32 = 1 << 14;
    /// The second half of a VOPD accumulates.
    pub const PAIR_SRC2_DST: u32 = 1 << 15;
    /// `op_sel` has a bit for the destination.
    pub const OPSEL_DST: u32 = 1 << 16;
    /// Sources are pairs, whose second half is by default the high one.
    pub const PACKED: u32 = 1 << 17;
    pub const WMMA: u32 = 1 << 18;
}

/// An operand of an encoding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub field: Field,
    pub kind: Kind,
    /// Registers, 0 if none are meant.
    pub dwords: u8,
    pub number: Number,
    pub parts: &'static [Part],
}

/// Bits of an operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Word of the instruction.
    pub word: u8,
    /// Lowest bit in it.
    pub bit: u8,
    pub width: u8,
    /// Lowest bit in the operand.
    pub to: u8,
}

/// What an immediate in a source's place is taken as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "types of numbers")]
pub(crate) enum Number {
    None,
    Int16,
    Fp16,
    Bf16,
    Int32,
    Fp32,
    Int64,
    Fp64,
    V2Int16,
    V2Fp16,
    V2Bf16,
    V2Int32,
    V2Fp32,
}

/// How an operand's bits are to be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "immediates: the assembler's names")]
pub enum Kind {
    /// A vector register's number.
    Vgpr,
    /// One of the first 128, the eighth bit an error.
    VgprLow,
    /// One of the first 128: bit 7 is the half. Shown as the number that it is.
    LowOrHigh,
    /// An accumulation register's number.
    Agpr,
    /// A vector register's number; bit 9: an accumulation register.
    VgprOrAgpr,
    /// A scalar register.
    Sgpr,
    /// A scalar register, of two dwords in wave64.
    Bool,
    /// Nine bits: any source.
    Src,
    /// The same with vector registers as in `LowOrHigh`.
    SrcLow,
    /// The same where vector registers are accumulation registers.
    SrcAgpr,
    /// The same with the literal elsewhere in the encoding.
    SrcDeferred,
    /// Half of a vector register: bit 7 is the half.
    Half,
    /// Nine bits: any source, of which vector registers are halves.
    SrcHalf,
    /// SDWA: vector register, or with bit 8 a scalar source.
    SdwaSrc,
    /// SDWA: VCC, or with bit 7 a scalar register.
    SdwaDst,
    /// VOPD: a vector register whose lowest bit is not the first destination's.
    VopdDst,
    /// A literal in the encoding.
    Literal,
    /// Modifiers of a floating-point source: negate, absolute value, op_sel.
    FloatMods,
    /// Modifiers of an integer source: sign extension.
    IntMods,
    /// Modifiers of a packed source: negate low and high, op_sel low and high.
    PackedMods,
    /// Modifiers of a source without negation: op_sel.
    SelectMods,
    /// A plain number.
    Imm,
    /// A signed number of 21 bits.
    SmemOffset,
    /// The same beside an offset register.
    SmemOffsetMod,
    /// An offset of FLAT (unsigned).
    FlatOffset,
    /// An offset of GLOBAL or SCRATCH, sign-extended.
    SignedOffset,
    /// A signed 16-bit number of words relative to the next instruction.
    Branch,
    /// 16-bit immediates that the assembler shows in different ways.
    Simm16,
    Decimal16,
    Hwreg,
    Message,
    GprIndexMode,
    Endpgm,
    Waitcnt,
    Version,
    DepCtr,
    DelayAlu,
    Swizzle,
    Fi8,
}

/// Which operand it is: LLVM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "LLVM's names")]
pub enum Field {
    Vdst,
    Sdst,
    Src0,
    Src1,
    Src2,
    Src3,
    Src0Modifiers,
    Src1Modifiers,
    Src2Modifiers,
    Clamp,
    Omod,
    Simm16,
    Imm,
    Offset,
    Offset0,
    Offset1,
    Cpol,
    Addr,
    Data0,
    Data1,
    Gds,
    Vaddr,
    Vdata,
    Saddr,
    Srsrc,
    Ssamp,
    Soffset,
    Sbase,
    Sdata,
    Tfe,
    Format,
    Dmask,
    Unorm,
    R128,
    Lwe,
    Da,
    Dim,
    A16,
    D16,
    Vaddr0,
    Vaddr1,
    Vaddr2,
    Vaddr3,
    Vaddr4,
    Vaddr5,
    Vaddr6,
    Vaddr7,
    Vaddr8,
    Vaddr9,
    Vaddr10,
    Vaddr11,
    DppCtrl,
    RowMask,
    BankMask,
    BoundCtrl,
    Fi,
    Dpp8,
    DstSel,
    DstUnused,
    Src0Sel,
    Src1Sel,
    Cbsz,
    Abid,
    Blgp,
    Attr,
    Attrchan,
    Vsrc,
    High,
    En,
    Tgt,
    Vm,
    Compr,
    Waitexp,
    Waitvdst,
    VdstX,
    Src0X,
    Vsrc1X,
    VdstY,
    Src0Y,
    Vsrc1Y,
    Idx,
}

/// The record `entry` and its shape.
#[inline]
pub(crate) fn at(entry: u16) -> (&'static Record, &'static Shape) {
    #[cfg(debug_assertions)]
    if let Some(planted) = crate::sabotage::planted(entry) {
        return planted;
    }
    let record = &RECORDS[usize::from(entry)];
    (record, &SHAPES[usize::from(record.shape)])
}

/// The value of inline constant `code` in a source of type `number`.
pub(crate) fn float(number: Number, code: u8) -> u64 {
    let n = usize::from(code.clamp(240, 248) - 240);
    let half = [0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000, 0xc000, 0x4400, 0xc400, 0x3118];
    let brain = [0x3f00, 0xbf00, 0x3f80, 0xbf80, 0x4000, 0xc000, 0x4080, 0xc080, 0x3e22];
    let values = [0.5f32, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0];
    match number {
        Number::Int16 | Number::Fp16 | Number::V2Fp16 => half[n],
        Number::Bf16 | Number::V2Bf16 => brain[n],
        Number::Int64 | Number::Fp64 => values.get(n).map_or(0x3fc4_5f30_6dc9_c882, |v| f64::from(*v).to_bits()),
        _ => values.get(n).map_or(0x3e22_f983, |v| u64::from(v.to_bits())),
    }
}
