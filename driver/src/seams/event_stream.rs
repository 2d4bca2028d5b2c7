// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The seam to files of events: see [`crate::buffers::files::Files::event_stream`].

/// A file that a client reads lines from, and to which it writes which lines it wants.
pub trait EventStream: Send + Sync {
    /// The 64-bit mask that the client wrote last; 0 before. Does not wait.
    fn mask(&self) -> u64;

    /// Appends a line if there is room; it is lost if not. Called in memory reclaim: neither
    /// allocates nor waits.
    fn write(&self, line: &[u8]);

    /// Whether the client has closed it.
    fn is_closed(&self) -> bool;
}
