// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ways in which lanes lie beside each other in memory.

/// How the active lanes lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// All at one address.
    Same,
    /// Side by side: lane n is n times the size of an access behind the place of lane 0, active or
    /// not.
    Line,
    /// All lanes, those of each [`run`] side by side and with the same high half.
    Runs,
    Anyhow,
}

/// Lanes that fill whole lines of 64 bytes if they lie side by side.
pub(super) const fn run(bytes: u32) -> usize {
    if bytes % 8 == 0 {
        8
    } else {
        16
    }
}
