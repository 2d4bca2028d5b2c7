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
    /// All lanes, each run of so many side by side and with the same high half. They fill whole
    /// lines of 64 bytes.
    Runs(usize),
    Anyhow,
}

/// The fewest lanes that fill whole lines if they lie side by side.
pub(super) const fn line(bytes: u32) -> usize {
    match bytes {
        16 => 4,
        8 => 8,
        _ => 16,
    }
}
