// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs of the HSA runtime's: copies and a fill, in phases that follow each other.
//!
//! A phase is what a loop of the program does: most of the work in wide accesses, then the rest. Each begins where the one before has ended,
//! which is checked; then the phases together are one copy or fill.

use super::{arguments, bad, fill};
use crate::access::{Port, Stop};

const UNORDERED: &str = "the phases of a copy or fill do not follow each other";

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Copies whole words, in four phases: words a lane, then the rest.
    CopyAligned,
    /// Copies bytes, in two phases.
    CopyMisaligned,
    /// Fills whole words, in two phases.
    Fill,
}

impl Program {
    pub(super) fn run(self, port: &mut Port, kernarg: u64) -> Result<(), Stop> {
        match self {
            Program::CopyAligned => copy::<10>(port, kernarg),
            Program::CopyMisaligned => copy::<6>(port, kernarg),
            Program::Fill => {
                let [start, second, end, value] = arguments(port, kernarg)?;
                if start > second || second > end || (end - start) % 4 != 0 {
                    return Err(bad(kernarg, UNORDERED));
                }
                let [a, b, c, d, ..] = value.to_le_bytes();
                fill(port, start, end - start, &[a, b, c, d])
            }
        }
    }
}

/// The arguments are pairs of source and destination: where each phase begins, and where the last ends.
fn copy<const N: usize>(port: &mut Port, kernarg: u64) -> Result<(), Stop> {
    let (src, dst, length) = whole(&arguments::<N>(port, kernarg)?).ok_or_else(|| bad(kernarg, UNORDERED))?;
    port.copy(dst, src, length)
}

/// Source, destination and length of a copy whose phases begin and end at `pairs`. `None` if these do not go up together.
fn whole(pairs: &[u64]) -> Option<(u64, u64, u64)> {
    let ([src, dst], mut length) = (*pairs.first_chunk::<2>()?, 0);
    for pair in pairs.chunks_exact(2) {
        let (from, to) = (pair[0].checked_sub(src)?, pair[1].checked_sub(dst)?);
        if from != to || from < length {
            return None;
        }
        length = from;
    }
    Some((src, dst, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other() {
        assert_eq!(whole(&[100, 500, 140, 540, 140, 540, 141, 541]), Some((100, 500, 41)));
        assert_eq!(whole(&[100, 500]), Some((100, 500, 0)));
        for wrong in [&[100, 500, 140, 541][..], &[100, 500, 140, 540, 130, 530], &[100, 500, 99, 499], &[]] {
            assert_eq!(whole(wrong), None, "{wrong:?}");
        }
    }
}
