// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a thread knows of its address space from one access to the next.
//!
//! A VMID counts its changes ([`super::vmid`]). Accesses that begin with the same VMID and the same
//! count find the same host memory, and have the same number here. Another VMID, a change, and a
//! miss that was settled make a new number.

/// The memory that a thread's accesses find.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    /// The VMID and its changes.
    seen: Option<(u32, u64)>,
    number: u64,
}

impl Opening {
    /// An access begins with a VMID that has changed so often.
    pub(crate) fn find(&mut self, seen: (u32, u64)) {
        if self.seen.replace(seen) != Some(seen) {
            self.number += 1;
        }
    }

    /// A miss was settled: its memory may be elsewhere.
    pub(crate) fn forget(&mut self) {
        self.seen = None;
    }

    /// A number of the access under way.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_lasts_as_long_as_nothing_changes() {
        let mut opening = Opening::default();
        let mut numbers = Vec::new();
        for seen in [(1, 0), (1, 0), (1, 1), (1, 1), (2, 1), (1, 1)] {
            opening.find(seen);
            numbers.push(opening.number());
        }
        opening.forget();
        opening.find((1, 1));
        numbers.push(opening.number());
        assert_eq!(numbers, [1, 1, 2, 2, 3, 4, 5]);
    }
}
