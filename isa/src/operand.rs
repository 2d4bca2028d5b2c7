// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operands of instructions.

use crate::Op;

/// One operand. Registers are the first of as many as the operation needs; how many is in
/// [`Inst`](crate::Inst) where it is not the operation's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The instruction has no such operand, or it is `off`.
    #[default]
    None,
    /// A scalar register by its number, in one numbering for all targets. 0 to 105 are SGPRs; gfx9
    /// has FLAT_SCRATCH at 102 and XNACK_MASK at 104. [`Operand`]'s associated constants are the
    /// numbers above them.
    Scalar(u8),
    /// A vector register.
    Vgpr(u16),
    /// An accumulation register (CDNA).
    Agpr(u16),
    /// An inline integer constant, -16 to 64.
    Int(i8),
    /// An inline floating-point constant, by its encoding: 240 (0.5), 241 (-0.5), 242 (1.0), 243
    /// (-1.0), 244 (2.0), 245 (-2.0), 246 (4.0), 247 (-4.0), 248 (1/(2 pi)).
    Float(u8),
    /// A literal that follows the instruction.
    Literal(u32),
    /// A value that the hardware supplies.
    Special(Special),
}

impl Operand {
    /// FLAT_SCRATCH_LO on gfx9.
    pub const FLAT_SCRATCH: u8 = 102;
    /// XNACK_MASK_LO on gfx9.
    pub const XNACK_MASK: u8 = 104;
    /// VCC_LO; VCC_HI follows.
    pub const VCC: u8 = 106;
    /// TTMP0, of sixteen.
    pub const TTMP: u8 = 108;
    /// M0 (whose encoding gfx11 has exchanged with NULL's).
    pub const M0: u8 = 124;
    /// NULL: reads as zero, writes are dropped. Targets before gfx10 do not have it; its
    /// encoding is reserved there, and decoded all the same.
    pub const NULL: u8 = 125;
    /// EXEC_LO; EXEC_HI follows.
    pub const EXEC: u8 = 126;
}

/// What a literal becomes that is the first source of a scalar operation and has fewer bits than
/// it: its sign goes above it, or zeros. Source: "Literal Constants" in AMD's RDNA3 instruction set
/// architecture; the operations are those whose first source is an I64.
#[must_use]
pub fn first_literal(op: Op, literal: u32) -> u64 {
    let is_signed = matches!(op, Op::SAshrI64 | Op::SBfeI64 | Op::SFlbitI32I64);
    let above = if is_signed && literal >> 31 != 0 { u64::from(u32::MAX) << 32 } else { 0 };
    above | u64::from(literal)
}

/// What the hardware supplies as a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// SRC_SHARED_BASE.
    SharedBase,
    /// SRC_SHARED_LIMIT.
    SharedLimit,
    /// SRC_PRIVATE_BASE.
    PrivateBase,
    /// SRC_PRIVATE_LIMIT.
    PrivateLimit,
    /// SRC_POPS_EXITING_WAVE_ID.
    PopsExitingWaveId,
    /// Whether VCC is zero.
    Vccz,
    /// Whether EXEC is zero.
    Execz,
    Scc,
    /// LDS_DIRECT.
    LdsDirect,
}
