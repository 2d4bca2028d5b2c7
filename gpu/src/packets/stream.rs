// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A run of packets: the submitted part of a ring, which wraps, or an indirect buffer, which does
//! not.

use crate::base::queue_error::{QueueError, Stop};
use crate::state::access::Port;

/// 32-bit words fetched at once: more than the longest packet, data apart.
pub(crate) const WINDOW: usize = 16;

/// A run of packets.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// First byte of the ring or the indirect buffer.
    pub(crate) va: u64,
    /// Position of the packet, in bytes.
    pub(crate) pos: u64,
    /// End of the submitted packets, in bytes.
    pub(crate) end: u64,
    /// Size of the ring, at which positions wrap; `None` in an indirect buffer.
    pub(crate) wrap: Option<u64>,
    /// Offset in the ring to name in errors.
    pub(crate) offset: u64,
}

impl Stream {
    /// An indirect buffer that the packet at `offset` of the ring calls.
    pub(crate) fn indirect(va: u64, bytes: u64, offset: u64) -> Stream {
        Stream { va, pos: 0, end: bytes, wrap: None, offset }
    }

    pub(crate) fn left(&self) -> u64 {
        self.end.wrapping_sub(self.pos)
    }

    /// The longest piece of at most `len` bytes from `pos + skip` on that does not wrap: its
    /// address and length.
    pub(crate) fn piece(&self, skip: u64, len: u64) -> (u64, u64) {
        let pos = self.pos.wrapping_add(skip);
        match self.wrap {
            Some(bytes) => {
                let at = pos & (bytes - 1);
                (self.va.wrapping_add(at), len.min(bytes - at))
            }
            None => (self.va.wrapping_add(pos), len),
        }
    }

    pub(crate) fn bad(&self, message: String) -> Stop {
        QueueError::BadPacket { offset: self.offset, message }.into()
    }

    /// Whether a packet of `words` is there. False: not yet, the ring does not have all of it. An
    /// error: it will never be.
    pub(crate) fn holds(&self, what: &str, words: u64) -> Result<bool, Stop> {
        if words * 4 <= self.left() {
            return Ok(true);
        }
        match self.wrap {
            Some(bytes) if words * 4 <= bytes => Ok(false),
            Some(_) => Err(self.bad(format!("{what} of {words} words is longer than the ring"))),
            None => Err(self.bad(format!("{what} of {words} words leaves its indirect buffer"))),
        }
    }

    /// Reads the words from `skip` bytes behind the position on, as many as there are.
    pub(crate) fn fetch(&self, port: &mut Port, skip: u64) -> Result<Words, Stop> {
        let mut bytes = [0u8; WINDOW * 4];
        let len = self.left().saturating_sub(skip).min(bytes.len() as u64);
        let mut done = 0;
        while done < len {
            let (va, piece) = self.piece(skip + done, len - done);
            let range = usize::try_from(done).unwrap_or(0)..usize::try_from(done + piece).unwrap_or(0);
            port.read(va, bytes.get_mut(range).unwrap_or_default())?;
            done += piece;
        }
        let mut words = [0; WINDOW];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        }
        Ok(Words(words))
    }

    /// Copies `len` bytes of packet data, from `skip` bytes behind the position on, to `dst`.
    pub(crate) fn copy_out(&self, port: &mut Port, skip: u64, dst: u64, len: u64) -> Result<(), Stop> {
        let mut done = 0;
        while done < len {
            let (va, piece) = self.piece(skip + done, len - done);
            port.copy(dst.wrapping_add(done), va, piece)?;
            done += piece;
        }
        Ok(())
    }
}

/// The words of a packet that could be fetched; the rest reads as 0.
pub(crate) struct Words([u32; WINDOW]);

impl Words {
    pub(crate) fn get(&self, index: usize) -> u32 {
        self.0.get(index).copied().unwrap_or(0)
    }

    /// The 64-bit value whose low half is word `index`.
    pub(crate) fn wide(&self, index: usize) -> u64 {
        u64::from(self.get(index)) | u64::from(self.get(index + 1)) << 32
    }
}
