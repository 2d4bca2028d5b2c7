// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is said inside of a context of vkfd's own capability set: `/dev/kfd`'s ioctls, as messages.
//!
//! A submission is one request. It has a head of 40 bytes, the ioctl's argument, and the arrays
//! that the call reads through the argument's pointers ([`calls`]). For allocations the [`Piece`]s
//! of the guest's memory follow. The answer goes into the context's response memory, a blob that
//! guest and host share. It has a head of 16 bytes, the argument as the call left it, and the
//! arrays that it has written. Every part begins at a multiple of 8 bytes. The sequence number is
//! written last, and the fence comes after it.
//!
//! Pointers in an argument are the guest's and mean nothing here: each is replaced by the array
//! that came with it, or by null.

pub mod calls;
pub mod sharing;

use vkfd_uapi::ioctl::Command;

use self::calls::{Array, Refused};
use super::{index, put, put32, put64, u32_at, u64_at, Malformed};

/// Bytes of a request's head.
pub const HEAD_BYTES: usize = 40;
/// Bytes of an answer's head.
pub const ANSWER_HEAD_BYTES: usize = 16;
/// Most bytes of an argument.
pub const MAX_ARGUMENT_BYTES: usize = 512;
/// Most bytes of one array.
pub const MAX_ARRAY_BYTES: usize = 12 << 10;
/// Most pieces of an allocation.
pub const MAX_PIECES: usize = 65_536;
/// Bytes of an answer at most: a slot of the response memory.
pub const SLOT_BYTES: usize = 16 << 10;
/// Slots of the response memory, as many as a context has rings: a call has a slot and the ring of
/// that number to itself.
pub const SLOTS: usize = 64;

const PIECE_BYTES: usize = 24;

/// What a blob of the host's memory is: the lower half of its `blob_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobKind {
    /// The response memory.
    Responses,
    /// Memory for an allocation, from its MAP_BLOB on.
    Memory,
    /// A GPU's doorbells; the upper half is the lower 16 bits of its `gpu_id`, as in KFD's offsets.
    Doorbells(u32),
    /// A page that nothing follows from: registers whose writes flush caches that there are not.
    Page,
}

impl BlobKind {
    /// What a `blob_id` says.
    #[must_use]
    pub fn of(id: u64) -> Option<Self> {
        let [kind, gpu] = [id & 0xffff_ffff, id >> 32];
        match (kind, u32::try_from(gpu).ok()?) {
            (0, 0) => Some(Self::Responses),
            (1, 0) => Some(Self::Memory),
            (2, gpu) => Some(Self::Doorbells(gpu)),
            (3, 0) => Some(Self::Page),
            _ => None,
        }
    }

    /// Its `blob_id`.
    #[must_use]
    pub fn id(self) -> u64 {
        match self {
            Self::Responses => 0,
            Self::Memory => 1,
            Self::Doorbells(gpu) => 2 | u64::from(gpu) << 32,
            Self::Page => 3,
        }
    }
}

/// The file that a call is made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `/dev/kfd`.
    Kfd,
    /// The render node of the GPU with this number.
    Render(u32),
    /// `/dev/kfd`, by a process that shares its machine with others: the calls of [`sharing`].
    Sharing,
}

/// A part of a resource, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The resource.
    pub resource: u32,
    /// Where in it.
    pub offset: u64,
    pub bytes: u64,
}

/// A request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Comes back in the answer.
    pub sequence: u64,
    /// Where in the response memory the answer goes, a multiple of 8.
    pub answer: u32,
    /// Bytes that there are for it.
    pub room: u32,
    /// On which file.
    pub file: File,
    /// The ioctl.
    pub command: Command,
    pieces: u32,
    length: u32,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its head.
    pub head: Head,
    /// The argument, with the guest's pointers.
    pub argument: Vec<u8>,
    /// Where the argument points.
    pub arrays: Vec<Array>,
    /// Contents of the arrays that the call reads, zeroes for the others.
    pub contents: Vec<Vec<u8>>,
    /// The memory that the guest brings.
    pub pieces: Vec<Piece>,
}

/// Why a request is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The bytes are no request.
    Malformed(Malformed),
    /// It is one, of a call that is answered with this errno.
    Refused(Refused),
}

impl From<Malformed> for Unfit {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<Refused> for Unfit {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

impl Head {
    /// The head at the beginning of a submission.
    ///
    /// # Errors
    /// [`Malformed`] when it is cut off or is not as long as it says.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let length = u32_at(bytes, 4)?;
        if u32_at(bytes, 0)? != CALL {
            return Err(Malformed::Unknown);
        }
        let file = match u32_at(bytes, 24)? {
            0 => File::Kfd,
            u32::MAX => File::Sharing,
            number => File::Render(number - 1),
        };
        let head = Self {
            sequence: u64_at(bytes, 8)?,
            answer: u32_at(bytes, 16)?,
            room: u32_at(bytes, 20)?,
            file,
            command: Command(u32_at(bytes, 28)?),
            pieces: u32_at(bytes, 32)?,
            length,
        };
        if u32_at(bytes, 36)? != 0 || index(length) < HEAD_BYTES {
            return Err(Malformed::Value);
        }
        if index(length) != bytes.len() {
            return Err(Malformed::Short);
        }
        Ok(head)
    }
}

/// The one operation.
const CALL: u32 = 1;

/// Takes parts from the beginning of a message.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (part, rest) = self.0.split_at_checked(padded(bytes)).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(&part[..bytes])
    }
}

impl Request {
    /// The request of a submission whose head is `head`.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn decode(head: Head, bytes: &[u8]) -> Result<Self, Unfit> {
        let mut parts = Parts(bytes.get(HEAD_BYTES..).ok_or(Malformed::Short)?);
        let size = calls::size(head.file, head.command)?;
        let mut argument = parts.take(head.command.size())?.to_vec();
        // As the driver does: a shorter argument is filled up, a longer one is cut.
        argument.resize(size, 0);
        let arrays = calls::arrays(head.file, head.command, &argument)?;
        let mut contents = Vec::with_capacity(arrays.len());
        for array in &arrays {
            contents.push(if array.way.reads() { parts.take(array.bytes)?.to_vec() } else { vec![0; array.bytes] });
        }
        if index(head.pieces) > MAX_PIECES {
            return Err(Malformed::TooMuch.into());
        }
        let mut pieces = Vec::with_capacity(index(head.pieces));
        for _ in 0..head.pieces {
            let bytes = parts.take(PIECE_BYTES)?;
            if u32_at(bytes, 4)? != 0 {
                return Err(Malformed::Value.into());
            }
            pieces.push(Piece { resource: u32_at(bytes, 0)?, offset: u64_at(bytes, 8)?, bytes: u64_at(bytes, 16)? });
        }
        if !parts.0.is_empty() {
            return Err(Malformed::Value.into());
        }
        Ok(Self { head, argument, arrays, contents, pieces })
    }

    /// A call, for [`encode`](Self::encode); `contents` are of all arrays of [`calls::arrays`].
    ///
    /// # Errors
    /// [`Refused`].
    pub fn new(
        file: File,
        command: Command,
        mut argument: Vec<u8>,
        contents: Vec<Vec<u8>>,
        pieces: Vec<Piece>,
    ) -> Result<Self, Refused> {
        argument.resize(calls::size(file, command)?, 0);
        let arrays = calls::arrays(file, command, &argument)?;
        if pieces.len() > MAX_PIECES {
            return Err(Refused::TOO_MUCH);
        }
        // Below the bound.
        let count = u32::try_from(pieces.len()).unwrap_or(0);
        let head = Head { sequence: 0, answer: 0, room: 0, file, command, pieces: count, length: 0 };
        Ok(Self { head, argument, arrays, contents, pieces })
    }

    /// Its bytes, with an answer of `room` bytes at `answer`.
    #[must_use]
    pub fn encode(&self, sequence: u64, answer: u32, room: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        let mut part = |content: &[u8], size: usize| {
            let start = bytes.len();
            bytes.resize(start + padded(size), 0);
            put(&mut bytes, start, &content[..content.len().min(size)]);
        };
        part(&self.argument, self.head.command.size());
        for (array, content) in self.arrays.iter().zip(&self.contents).filter(|(array, _)| array.way.reads()) {
            part(content, array.bytes);
        }
        for piece in &self.pieces {
            let mut entry = [0; PIECE_BYTES];
            put32(&mut entry, 0, piece.resource);
            put64(&mut entry, 8, piece.offset);
            put64(&mut entry, 16, piece.bytes);
            part(&entry, PIECE_BYTES);
        }
        let file = match self.head.file {
            File::Kfd => 0,
            File::Render(number) => number.saturating_add(1).min(u32::MAX - 1),
            File::Sharing => u32::MAX,
        };
        put32(&mut bytes, 0, CALL);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        put32(&mut bytes, 4, length);
        put64(&mut bytes, 8, sequence);
        for (place, word) in [answer, room, file, self.head.command.0, self.head.pieces].into_iter().enumerate() {
            put32(&mut bytes, 16 + 4 * place, word);
        }
        bytes
    }

    /// Bytes of the answer.
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        let written = self.arrays.iter().filter(|array| array.way.writes());
        ANSWER_HEAD_BYTES + padded(self.argument.len()) + written.map(|array| padded(array.bytes)).sum::<usize>()
    }

    /// The answer without its sequence number, which is to be written last: `errno`, the argument
    /// and the arrays as they are now.
    #[must_use]
    pub fn answer(&self, errno: i32) -> Vec<u8> {
        let mut bytes = vec![0; ANSWER_HEAD_BYTES];
        put32(&mut bytes, 8, u32::from_le_bytes(errno.to_le_bytes()));
        put32(&mut bytes, 12, u32::try_from(self.answer_bytes()).unwrap_or(u32::MAX));
        bytes.extend_from_slice(&self.argument);
        bytes.resize(padded(bytes.len()), 0);
        for (_, content) in self.arrays.iter().zip(&self.contents).filter(|(array, _)| array.way.writes()) {
            bytes.extend_from_slice(content);
            bytes.resize(padded(bytes.len()), 0);
        }
        bytes
    }

    /// Takes the answer's argument and arrays over. The errno, 0 for none.
    ///
    /// # Errors
    /// [`Malformed`] for bytes that are no answer to this request.
    pub fn take_answer(&mut self, bytes: &[u8]) -> Result<i32, Malformed> {
        let errno = i32::from_le_bytes(u32_at(bytes, 8)?.to_le_bytes());
        // A refusal has no more than a head.
        if errno != 0 && index(u32_at(bytes, 12)?) == ANSWER_HEAD_BYTES {
            return Ok(errno);
        }
        if index(u32_at(bytes, 12)?) != self.answer_bytes() {
            return Err(Malformed::Value);
        }
        let mut parts = Parts(bytes.get(ANSWER_HEAD_BYTES..).ok_or(Malformed::Short)?);
        self.argument = parts.take(self.argument.len())?.to_vec();
        for (array, content) in self.arrays.iter().zip(&mut self.contents).filter(|(array, _)| array.way.writes()) {
            *content = parts.take(array.bytes)?.to_vec();
        }
        Ok(errno)
    }
}

/// An answer that is an errno alone, without its sequence number.
#[must_use]
pub fn refusal(errno: i32) -> Vec<u8> {
    let mut bytes = vec![0; ANSWER_HEAD_BYTES];
    put32(&mut bytes, 8, u32::from_le_bytes(errno.to_le_bytes()));
    put32(&mut bytes, 12, u32::try_from(ANSWER_HEAD_BYTES).unwrap_or(0));
    bytes
}

#[cfg(test)]
mod tests;
