// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Exchanges between lanes ([`Exchange`]). They are a tail's, as stores are: a lane takes what
//! another strip has made.

use crate::{Registers, Why};
use vkfd_isa::{Inst, Op};

/// `ds_bpermute_b32`: each lane takes from the lane that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    /// The rows of the results, of the lanes' names, and the one that lanes take from.
    pub(crate) to: u16,
    pub(crate) name: u16,
    pub(crate) from: u16,
    /// What is added to the names.
    pub(crate) offset: i32,
    /// A lane's name and its own are of the same so many lanes.
    pub(crate) within: u8,
}

impl Exchange {
    pub(super) fn is_one(op: Op) -> bool {
        op == Op::DsBpermuteB32
    }

    pub(super) fn of(inst: &Inst, registers: &dyn Registers) -> Result<Exchange, Why> {
        if inst.memory.gds {
            return Err(Why::Form);
        }
        let row = |operand| registers.row(operand).ok_or(Why::Form);
        Ok(Exchange {
            to: row(inst.dst)?,
            name: row(inst.memory.vaddr)?,
            from: row(inst.memory.data)?,
            offset: inst.memory.offset,
            within: registers.exchange_lanes().min(registers.lanes()),
        })
    }
}
