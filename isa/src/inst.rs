// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Decoded instructions.

use crate::operand::Operand;
use crate::Op;

/// The encoding that an instruction has, its extension words aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the encodings' own names, from AMD's manuals")]
pub enum Format {
    Sop1,
    Sop2,
    Sopk,
    Sopc,
    Sopp,
    Smem,
    Vop1,
    Vop2,
    Vopc,
    Vop3,
    Vop3p,
    /// Both halves of a dual-issue instruction (gfx11).
    Vopd,
    Vintrp,
    Ldsdir,
    Ds,
    Flat,
    Global,
    Scratch,
    Mubuf,
    Mtbuf,
    Mimg,
    Exp,
}

/// What takes the place of the first source and says more about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extension {
    #[default]
    None,
    /// Sub-dword addressing (gfx9, gfx10).
    Sdwa(Sdwa),
    /// Data-parallel primitives.
    Dpp(Dpp),
}

/// Part of a register that SDWA selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the assembler's names")]
pub enum SdwaSelect {
    Byte0,
    Byte1,
    Byte2,
    Byte3,
    Word0,
    Word1,
    #[default]
    Dword,
}

/// What SDWA does with the rest of the destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SdwaUnused {
    #[default]
    Pad,
    /// The sign of the part written, above it; zeros below.
    Sext,
    /// It stays.
    Preserve,
}

/// Sub-dword addressing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sdwa {
    /// Part of the destination that is written.
    pub dst: SdwaSelect,
    /// What becomes of its rest.
    pub unused: SdwaUnused,
    /// Parts of the first two sources.
    pub src: [SdwaSelect; 2],
    /// Whether they are sign-extended (integers).
    pub sext: [bool; 2],
}

/// How lanes exchange the first source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DppKind {
    /// DPP16: the nine bits of `dpp_ctrl`.
    Ctrl(u16),
    /// DPP8: eight selectors of three bits.
    Lanes8(u32),
}

/// Data-parallel primitives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dpp {
    /// The permutation.
    pub kind: DppKind,
    /// Rows (of 16 lanes) that are written.
    pub row_mask: u8,
    /// Banks (of 4 lanes in each row) that are written.
    pub bank_mask: u8,
    /// Lanes without a source read zero instead of being left out.
    pub bound_ctrl: bool,
    /// Inactive lanes are read, too (gfx10 and later).
    pub fetch_inactive: bool,
}

/// Modifiers of vector operations. Bit `n` of a mask is for source `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mods {
    /// Negate; for packed operations, in the low half.
    pub neg: u8,
    /// Absolute value, before negation.
    pub abs: u8,
    /// Negate the high half (packed operations).
    pub neg_hi: u8,
    /// The high half of the source is used (for the low result, if packed); bit 3: the high half of
    /// the destination.
    pub op_sel: u8,
    /// The high half of the source is used for the high result (packed operations).
    pub op_sel_hi: u8,
    /// Clamp the result.
    pub clamp: bool,
    /// Output multiplier: 0 none, 1 times two, 2 times four, 3 half.
    pub omod: u8,
    /// MFMA: broadcast size.
    pub cbsz: u8,
    /// MFMA: broadcast block.
    pub abid: u8,
    /// MFMA: permutation of B, or negation (f64).
    pub blgp: u8,
}

/// Fields of memory instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Vector address (FLAT, GLOBAL, SCRATCH, buffers, DS, images).
    pub vaddr: Operand,
    /// First register of the data that are stored, combined or compared (DS: data0).
    pub data: Operand,
    /// DS: data1.
    pub data2: Operand,
    /// Scalar base: `saddr` of GLOBAL and SCRATCH, `sbase` of SMEM, the buffer descriptor
    /// (`srsrc`).
    pub base: Operand,
    /// Scalar offset: `soffset` of buffers and SMEM.
    pub soffset: Operand,
    /// Immediate offset in bytes, extended as the encoding says. For DS with two offsets, both are
    /// in `offsets`.
    pub offset: i32,
    /// DS with two addresses: their offsets as encoded (not yet multiplied).
    pub offsets: [u8; 2],
    /// GLC, or SC0. Atomics: return the old value.
    pub glc: bool,
    /// SLC, or NT.
    pub slc: bool,
    /// DLC (gfx10 and later), or SC1 (gfx942).
    pub dlc: bool,
    /// Buffers: the address has an offset register.
    pub offen: bool,
    /// Buffers: the address has an index register.
    pub idxen: bool,
    /// The data go to LDS.
    pub lds: bool,
    pub tfe: bool,
    /// DS: GDS instead of LDS.
    pub gds: bool,
    /// MTBUF: the data format as encoded (gfx9: `dfmt | nfmt << 4`; later: the unified format).
    pub format: u8,
    /// Images: channels.
    pub dmask: u8,
}

/// A decoded instruction.
///
/// Which fields are used follows from the format. An operation's implicit operands (VCC, SCC, EXEC,
/// M0) are not listed, unless the encoding could name something else. VOP2's VCC of a carry is in
/// `sdst` and `src[2]`, VOPC's VCC in `dst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inst {
    /// The operation.
    pub op: Op,
    /// The encoding.
    pub format: Format,
    /// SDWA or DPP.
    pub extension: Extension,
    /// Length in bytes, with literal and extension: 4 to 20.
    pub bytes: u8,
    /// Index of the table's entry, for the disassembler.
    pub entry: u16,
    /// Destination: vector or scalar; of loads and of atomics that return, where the value goes.
    pub dst: Operand,
    /// Second destination: the carry or scale flag, an SGPR pair.
    pub sdst: Operand,
    pub src: [Operand; 3],
    /// The 16-bit immediate of SOPK and SOPP, sign-extended (branches: in words).
    pub imm: i32,
    /// Modifiers of vector operations.
    pub mods: Mods,
    /// Fields of memory operations.
    pub memory: Memory,
    /// The second half of a VOPD.
    pub pair: Option<Half>,
}

/// The second half of a dual instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// The operation.
    pub op: Op,
    pub dst: Operand,
    pub src: [Operand; 3],
}

impl Inst {
    /// The second half of a dual instruction, as an instruction by itself.
    #[must_use]
    pub fn second(&self) -> Option<Inst> {
        let Half { op, dst, src } = self.pair?;
        let (mods, memory) = (Mods::default(), Memory::default());
        Some(Inst { op, dst, src, sdst: Operand::None, imm: 0, mods, memory, pair: None, ..*self })
    }
}
