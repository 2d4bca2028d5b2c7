// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is said inside of a context of capset 8: libhsakmt's calls, as messages.
//!
//! A submission is a row of requests. Each has a head of 16 bytes: the request's kind, its length,
//! its sequence number, and the answer's place in the context's response memory. That memory is a
//! blob that guest and host share ([`shared`]); the guest writes the room it has into an answer's
//! first word before it asks.
//!
//! Two layouts exist (July 2025 and 2026) and nothing negotiates them. MEMORY requests tell them
//! apart by their length ([`memory::Layout`]); in the others new fields are in places where old
//! ones were padding or after the end.

pub mod event;
pub mod memory;
pub mod query;
pub mod queue;
pub mod shared;
pub mod status;

use super::{index, put32, u32_at, Malformed};

/// Bytes of a request's head.
pub const HEAD_BYTES: usize = 16;
/// Most bytes of one request.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

const NOP: u32 = 1;
const QUERY: u32 = 2;
const EVENT: u32 = 3;
const MEMORY: u32 = 4;
const QUEUE: u32 = 5;
const GRAPHICS: u32 = 6;

/// A request's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub command: u32,
    /// Bytes, head included.
    pub length: u32,
    /// Counts up; the shared memory shows how far the host is.
    pub sequence: u32,
    /// Where the answer goes, from the beginning of the response area on.
    pub answer: u32,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Nothing, but the sequence number counts.
    Nop,
    /// About the machine.
    Query(query::Query),
    /// About events.
    Event(event::Event),
    /// About memory.
    Memory(memory::Memory, memory::Layout),
    /// About queues.
    Queue(queue::Queue),
    /// Memory of the graphics side, which this host has not.
    Graphics,
}

impl Head {
    /// The head at the beginning of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`] when it is cut off, or its length is not that of a request.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let head = Self {
            command: u32_at(bytes, 0)?,
            length: u32_at(bytes, 4)?,
            sequence: u32_at(bytes, 8)?,
            answer: u32_at(bytes, 12)?,
        };
        let length = index(head.length);
        match length {
            _ if length < HEAD_BYTES => Err(Malformed::Value),
            _ if length > MAX_REQUEST_BYTES => Err(Malformed::TooMuch),
            _ if length > bytes.len() => Err(Malformed::Short),
            _ => Ok(head),
        }
    }
}

/// The requests of a submission, each with its head. Ends after the first that is malformed.
pub fn requests(payload: &[u8]) -> impl Iterator<Item = Result<(Head, &[u8]), Malformed>> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        Some(match Head::decode(rest) {
            Ok(head) => {
                let (request, after) = rest.split_at(index(head.length));
                rest = after;
                Ok((head, request))
            }
            Err(error) => {
                rest = &[];
                Err(error)
            }
        })
    })
}

impl Request {
    /// A request whose head is `head`; `bytes` has all of it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(head: &Head, bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(match head.command {
            NOP => Self::Nop,
            QUERY => Self::Query(query::Query::decode(bytes)?),
            EVENT => Self::Event(event::Event::decode(bytes)?),
            MEMORY => {
                let layout = memory::Layout::of(bytes.len())?;
                Self::Memory(memory::Memory::decode(bytes, layout)?, layout)
            }
            QUEUE => Self::Queue(queue::Queue::decode(bytes)?),
            GRAPHICS => Self::Graphics,
            _ => return Err(Malformed::Unknown),
        })
    }

    /// The bytes of a request, as the library in the guest sends them.
    #[must_use]
    pub fn encode(&self, sequence: u32, answer: u32) -> Vec<u8> {
        let (command, mut bytes) = match self {
            Self::Nop => (NOP, vec![0; HEAD_BYTES]),
            Self::Query(query) => (QUERY, query.encode()),
            Self::Event(event) => (EVENT, event.encode()),
            Self::Memory(memory, layout) => (MEMORY, memory.encode(*layout)),
            Self::Queue(queue) => (QUEUE, queue.encode()),
            Self::Graphics => (GRAPHICS, vec![0; 48]),
        };
        // A request ends on 8 bytes.
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        for (place, word) in [command, length, sequence, answer].into_iter().enumerate() {
            put32(&mut bytes, 4 * place, word);
        }
        bytes
    }
}

#[cfg(test)]
mod tests;
