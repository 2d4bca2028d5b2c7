// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The words for two strips abreast: one writer's code goes on as another's, whose rows are those
//! of both strips.

use super::*;

/// A row of the second strip has its number and this one: more than there are rows.
pub(crate) const SECOND: u16 = 512;

impl Emit {
    /// Whether a round of this segment reads the row, of either strip, from the one before it.
    pub(crate) fn hands_on(&self, row: u16) -> bool {
        self.plan.is_live(row % SECOND)
    }

    /// The writer of both strips' code from here on.
    pub(crate) fn abreast(&mut self, plan: Plan) -> Emit {
        let mut both = Emit::new(self.host, plan, self.needs.abreast());
        std::mem::swap(&mut both.asm, &mut self.asm);
        std::mem::swap(&mut both.pool, &mut self.pool);
        (both.loses_rows, both.mends_all, both.may_flush) = (self.loses_rows, self.mends_all, self.may_flush);
        both
    }

    /// Goes on behind the other one's code.
    pub(crate) fn rejoin(&mut self, both: Emit) {
        self.needs.learn(&both.needs);
        (self.asm, self.pool) = (both.asm, both.pool);
    }

    /// Where a row is in memory.
    pub(super) fn row(&self, row: u16) -> MemoryOperand {
        let strip = i64::from(row / SECOND) * 4 * i64::from(self.width.lanes());
        at(Register::RDI, 256 * i64::from(row % SECOND) + strip)
    }
}
