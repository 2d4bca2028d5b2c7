// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What code expects of a wave's MODE, and when the host is to lose denormals for it.
//!
//! MODE may have singles lose their denormals, and unfused products and sums always lose them. The
//! host does the same with two bits of its MXCSR. Denormal sources are zeros then, and so are
//! results that are tiny after rounding, as the reference engine has it. These bits concern
//! doubles, too, so code with doubles never has them. A few operations on singles hand a source on,
//! and a host may hand on a denormal. Such operations are only for a MODE that keeps denormals.

use crate::ops::Needs;

/// A wave's MODE, as far as code differs by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It rounds to nearest, keeps denormals and quiets NaNs.
    Usual,
    /// The same, but singles lose their denormals.
    Flushing,
    /// The same, but singles lose those of sources or those of results.
    Mixed,
    Other,
}

/// Which kinds of operations code has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arithmetic {
    /// On singles, and those of them that need their denormals.
    singles: bool,
    kept: bool,
    /// On singles without denormals, whatever MODE says.
    flushed: bool,
    doubles: bool,
    /// With results that are rounded, and no denormal singles.
    rounded: bool,
}

impl Arithmetic {
    pub(crate) fn add(&mut self, needs: Needs) {
        match needs {
            Needs::Any => {}
            Needs::Singles => self.singles = true,
            Needs::Kept => self.kept = true,
            Needs::Flushed => self.flushed = true,
            Needs::Rounded | Needs::Halves => self.rounded = true,
            Needs::Doubles => self.doubles = true,
            Needs::Converted => (self.kept, self.doubles) = (true, true),
        }
    }

    /// Those of both.
    #[must_use]
    pub fn and(self, other: Arithmetic) -> Arithmetic {
        Arithmetic {
            singles: self.singles || other.singles,
            kept: self.kept || other.kept,
            flushed: self.flushed || other.flushed,
            doubles: self.doubles || other.doubles,
            rounded: self.rounded || other.rounded,
        }
    }

    /// Whether the code may ever run without denormals.
    pub(crate) fn may_flush(self) -> bool {
        (self.singles || self.flushed) && !self.kept && !self.doubles
    }

    /// Whether the host is to lose denormals while the code runs; `None` if it may not run.
    #[must_use]
    pub fn flushes(self, mode: Mode) -> Option<bool> {
        let flushes = match mode {
            _ if self == Arithmetic::default() => false,
            Mode::Usual if self.flushed && self.singles => return None,
            Mode::Usual => self.flushed,
            Mode::Flushing if self.kept => return None,
            Mode::Flushing => self.flushed || self.singles,
            Mode::Mixed if self.singles || self.kept => return None,
            Mode::Mixed => self.flushed,
            Mode::Other => return None,
        };
        (!flushes || self.may_flush()).then_some(flushes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(needs: &[Needs]) -> Arithmetic {
        let mut all = Arithmetic::default();
        needs.iter().for_each(|needs| all.add(*needs));
        all
    }

    #[test]
    fn code_runs_where_all_of_its_operations_do() {
        let flushes = |needs: &[Needs]| {
            [Mode::Usual, Mode::Flushing, Mode::Mixed, Mode::Other].map(|mode| of(needs).flushes(mode))
        };
        assert_eq!(flushes(&[Needs::Any]), [Some(false); 4]);
        assert_eq!(flushes(&[Needs::Singles]), [Some(false), Some(true), None, None]);
        assert_eq!(flushes(&[Needs::Kept]), [Some(false), None, None, None]);
        assert_eq!(flushes(&[Needs::Flushed]), [Some(true), Some(true), Some(true), None]);
        assert_eq!(flushes(&[Needs::Flushed, Needs::Singles]), [None, Some(true), None, None]);
        assert_eq!(flushes(&[Needs::Flushed, Needs::Kept]), [None; 4]);
        assert_eq!(flushes(&[Needs::Doubles, Needs::Rounded]), [Some(false), Some(false), Some(false), None]);
        assert_eq!(flushes(&[Needs::Doubles, Needs::Singles]), [Some(false), None, None, None]);
        assert_eq!(flushes(&[Needs::Doubles, Needs::Flushed]), [None; 4]);
        assert_eq!(flushes(&[Needs::Converted]), [Some(false), None, None, None]);
        assert_eq!(flushes(&[Needs::Converted, Needs::Flushed]), [None; 4]);
    }
}
