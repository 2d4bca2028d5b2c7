// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pieces of code that only compute, for an engine that looks at all other instructions itself.
//!
//! A piece is a block of the grain [`Plain`](super::layout::Grain::Plain): vector and scalar
//! arithmetic up to the next access to memory, wait, barrier or message, or a branch. It says which
//! registers it reads and writes.

use vkfd_isa::{Extension, Format, Inst, Op, Operand};
use vkfd_lint::live::{Code, Registers};

use super::layout::Layout;

/// A piece's registers.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Its instructions.
    pub(crate) count: u32,
    pub(crate) reads: Registers,
    pub(crate) writes: Registers,
    /// Lanes see others' registers, or the lanes that run change before its last instruction.
    pub(crate) crosses: bool,
}

impl Piece {
    /// The piece that instructions make, whose words follow each other; none if one of them does
    /// more than compute.
    pub(super) fn of(layout: Layout, insts: &[Inst], words: &[u32]) -> Option<Piece> {
        let count = u32::try_from(insts.len()).ok()?;
        let mut piece = Piece { count, reads: Registers::NONE, writes: Registers::NONE, crosses: false };
        let mut at = 0;
        for (inst, n) in insts.iter().zip(1..) {
            if !is_plain(inst) {
                return None;
            }
            let code = Code::new(layout.target, layout.lanes, 0, words.get(at..)?, inst);
            at += usize::from(inst.bytes) / 4;
            code.add_to(&mut piece.reads, &mut piece.writes);
            let exec = [Operand::EXEC, Operand::EXEC + 1].into_iter().any(|n| code.results().has(n.into()));
            piece.crosses |= exec && n < count || crosses(inst);
        }
        Some(piece)
    }
}

/// Whether lanes see other lanes' registers.
fn crosses(inst: &Inst) -> bool {
    let name = inst.op.name();
    matches!(inst.extension, Extension::Dpp(_))
        || ["v_readlane", "v_readfirstlane", "v_writelane", "v_permlane", "v_mfma", "v_smfmac", "v_wmma"]
            .iter()
            .any(|begin| name.starts_with(begin))
}

/// Whether an instruction computes, and does nothing else.
pub(super) fn is_plain(inst: &Inst) -> bool {
    let special = inst.src.iter().any(|operand| matches!(operand, Operand::Special(_)));
    let name = inst.op.name();
    let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    !special
        && match inst.format {
            Format::Sopp => {
                matches!(inst.op, Op::SNop | Op::SBranch | Op::SClause | Op::SDelayAlu | Op::SSetprio)
                    || name.starts_with("s_cbranch_scc")
                    || name.starts_with("s_cbranch_vcc")
                    || name.starts_with("s_cbranch_exec")
            }
            Format::Sop1 | Format::Sop2 | Format::Sopk | Format::Sopc => !begins(&[
                "s_call",
                "s_cbranch",
                "s_getreg",
                "s_movrel",
                "s_rfe",
                "s_sendmsg",
                "s_set",
                "s_subvector",
                "s_swappc",
                "s_waitcnt",
                "s_version",
            ]),
            Format::Vop1 | Format::Vop2 | Format::Vopc | Format::Vop3 | Format::Vop3p | Format::Vopd => {
                !begins(&["v_interp", "v_movrel", "v_swaprel", "v_clrexcp", "v_pipeflush"])
            }
            _ => false,
        }
}
