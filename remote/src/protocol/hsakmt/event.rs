// SPDX-License-Identifier: GPL-2.0 OR MIT
//! EVENT: 104 bytes, the type at 80.
//!
//! The library of 2025 names an event by the host's name for it. A later one names it by
//! libhsakmt's own event structure, whose first word is the id. This host's name for an event is
//! its id, and both libraries name it by the low 32 bits at 16. No value from a guest is ever taken
//! for an address.
//!
//! Limits: the library does not send waits. This host takes them as the header declares them, with
//! libhsakmt's event structures as payload.

use super::super::{index, put32, put64, u32_at, u64_at, Malformed};

/// Bytes of a request without a list.
pub const BYTES: usize = 104;
/// Bytes of an answer's body.
pub const BODY_BYTES: usize = 72;
/// Bytes of libhsakmt's event.
pub const EVENT_BYTES: usize = 48;
/// Most events of a wait.
pub const MAX_EVENTS: u32 = 256;

const UNION: usize = 16;
const TYPE: usize = 80;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Makes one.
    Create {
        /// KFD's and libhsakmt's number of its kind.
        kind: u32,
        /// Its node.
        node: u32,
        /// Waits do not reset it.
        manual: bool,
        /// It begins signalled.
        signalled: bool,
        /// The blob that it lives as long as.
        blob: u64,
    },
    /// Ends one.
    Destroy(u32),
    /// Signals one.
    Set(u32),
    /// Resets one.
    Reset(u32),
    /// Whether one is signalled; takes the signal.
    QueryState(u32),
    Wait {
        /// For these.
        events: Vec<u32>,
        /// For all of them.
        all: bool,
        /// Not longer.
        milliseconds: u32,
    },
    /// Sets a trap handler.
    SetTrap {
        /// Of this node.
        node: u32,
        code: u64,
        /// Its bytes.
        code_bytes: u64,
        buffer: u64,
        /// Its bytes.
        buffer_bytes: u64,
    },
}

impl Event {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < BYTES {
            return Err(Malformed::Short);
        }
        let first = u32_at(bytes, UNION)?;
        Ok(match u32_at(bytes, TYPE)? {
            0 => {
                let [manual, signalled, ..] = u32_at(bytes, UNION + 20)?.to_le_bytes();
                Self::Create {
                    kind: first,
                    node: u32_at(bytes, UNION + 4)?,
                    manual: manual != 0,
                    signalled: signalled != 0,
                    blob: u64_at(bytes, 88)?,
                }
            }
            1 => Self::Destroy(first),
            2 => Self::Set(first),
            3 => Self::Reset(first),
            4 => Self::QueryState(first),
            5 => {
                if first == 0 || first > MAX_EVENTS {
                    return Err(Malformed::TooMuch);
                }
                let event = |place| u32_at(bytes, BYTES + EVENT_BYTES * place);
                let events = (0..index(first)).map(event).collect::<Result<_, _>>()?;
                let [all, ..] = u32_at(bytes, UNION + 8)?.to_le_bytes();
                Self::Wait { events, all: all != 0, milliseconds: u32_at(bytes, UNION + 4)? }
            }
            6 => Self::SetTrap {
                code: u64_at(bytes, UNION)?,
                code_bytes: u64_at(bytes, UNION + 8)?,
                buffer: u64_at(bytes, UNION + 16)?,
                buffer_bytes: u64_at(bytes, UNION + 24)?,
                node: u32_at(bytes, UNION + 32)?,
            },
            _ => return Err(Malformed::Unknown),
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        let kind = match self {
            Self::Create { kind, node, manual, signalled, blob } => {
                put32(&mut bytes, UNION, *kind);
                put32(&mut bytes, UNION + 4, *node);
                put32(&mut bytes, UNION + 20, u32::from(*manual) | u32::from(*signalled) << 8);
                put64(&mut bytes, 88, *blob);
                0
            }
            Self::Destroy(id) | Self::Set(id) | Self::Reset(id) | Self::QueryState(id) => {
                put32(&mut bytes, UNION, *id);
                match self {
                    Self::Destroy(_) => 1,
                    Self::Set(_) => 2,
                    Self::Reset(_) => 3,
                    _ => 4,
                }
            }
            Self::Wait { events, all, milliseconds } => {
                put32(&mut bytes, UNION, u32::try_from(events.len()).unwrap_or(u32::MAX));
                put32(&mut bytes, UNION + 4, *milliseconds);
                put32(&mut bytes, UNION + 8, u32::from(*all));
                for (place, event) in events.iter().enumerate() {
                    bytes.resize(BYTES + EVENT_BYTES * (place + 1), 0);
                    put32(&mut bytes, BYTES + EVENT_BYTES * place, *event);
                }
                5
            }
            Self::SetTrap { node, code, code_bytes, buffer, buffer_bytes } => {
                for (place, word) in [*code, *code_bytes, *buffer, *buffer_bytes].into_iter().enumerate() {
                    put64(&mut bytes, UNION + 8 * place, word);
                }
                put32(&mut bytes, UNION + 32, *node);
                6
            }
        };
        put32(&mut bytes, TYPE, kind);
        bytes
    }
}
