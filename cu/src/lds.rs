// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A work-group's local data share.
//!
//! Its first byte begins a line of the host's cache. Programs put what lanes access together at
//! multiples of 64 bytes, and an access of the host to two lines costs as much as two accesses.

use std::ops::{Deref, DerefMut};

/// Bytes of a line of the host's cache.
const LINE: usize = 64;

/// Local data share: the bytes that the dispatch packet asks for, and what hardware gives more.
pub struct Lds {
    /// The bytes, and room to begin at a line.
    bytes: Vec<u8>,
    first: usize,
    len: usize,
}

impl Lds {
    /// So many bytes of zeros.
    pub fn new(len: usize) -> Lds {
        if len == 0 {
            // Most work-groups have none, and an empty launch is to allocate nothing.
            return Lds { bytes: Vec::new(), first: 0, len };
        }
        let bytes = vec![0; len + LINE - 1];
        let first = bytes.as_ptr().align_offset(LINE).min(LINE - 1);
        Lds { bytes, first, len }
    }
}

impl From<&[u8]> for Lds {
    fn from(bytes: &[u8]) -> Lds {
        let mut lds = Lds::new(bytes.len());
        lds.copy_from_slice(bytes);
        lds
    }
}

impl Clone for Lds {
    fn clone(&self) -> Lds {
        Lds::from(&**self)
    }
}

impl Deref for Lds {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.first..self.first + self.len]
    }
}

impl DerefMut for Lds {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.first..self.first + self.len]
    }
}

impl PartialEq for Lds {
    fn eq(&self, other: &Lds) -> bool {
        **self == **other
    }
}

impl std::fmt::Debug for Lds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lds").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Lds, LINE};

    #[test]
    fn copies_begin_a_line_too() {
        for len in [0, 1, 64, 1000, 65_536] {
            let mut lds = Lds::new(len);
            lds.iter_mut().zip((1..=255).cycle()).for_each(|(byte, n)| *byte = n);
            let all: Vec<Lds> = (0..5).map(|_| lds.clone()).collect();
            for copy in &all {
                assert_eq!(copy.len(), len);
                assert!(len == 0 || copy.as_ptr().addr() % LINE == 0);
                assert_eq!(*copy, lds);
            }
        }
    }
}
