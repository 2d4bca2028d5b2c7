// SPDX-License-Identifier: GPL-2.0 OR MIT
//! QUEUE: 136 bytes, the type at 124. The answer has libhsakmt's queue resource and where the
//! doorbell and the pointers are.

use super::super::{put32, put64, u32_at, u64_at, Malformed};

/// Bytes of a request.
pub const BYTES: usize = 136;
/// Bytes of an answer's body.
pub const BODY_BYTES: usize = 88;

/// libhsakmt's numbers of queue types.
pub mod kind {
    /// Compute, PM4 packets.
    pub const COMPUTE: u32 = 1;
    pub const SDMA: u32 = 2;
    /// Copies between GPUs.
    pub const SDMA_XGMI: u32 = 5;
    /// Copies, on the engine that is named.
    pub const SDMA_BY_ENGINE: u32 = 7;
    /// Compute, AQL packets.
    pub const COMPUTE_AQL: u32 = 21;
}

/// Where the fields of an answer's body are.
pub mod answer {
    /// libhsakmt's id of the queue.
    pub const QUEUE_ID: usize = 0;
    /// The address of its doorbell in the guest.
    pub const DOORBELL: usize = 40;
    /// Where in the doorbell page that is.
    pub const DOORBELL_OFFSET: usize = 48;
    /// Where in its page the write pointer is.
    pub const WRITE_OFFSET: usize = 56;
    /// Where in its page the read pointer is.
    pub const READ_OFFSET: usize = 64;
    /// The host's address of that page.
    pub const POINTERS: usize = 72;
    /// What the host calls the queue.
    pub const HANDLE: usize = 80;
}

const UNION: usize = 16;

/// A new queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// On this node.
    pub node: u32,
    /// [`kind`].
    pub kind: u32,
    /// Share of the GPU.
    pub percentage: u32,
    /// libhsakmt's, -3 to 3.
    pub priority: i32,
    /// For [`kind::SDMA_BY_ENGINE`].
    pub engine: u32,
    /// The ring.
    pub ring: u64,
    /// Its bytes.
    pub ring_bytes: u64,
    /// Where an AQL queue's write pointer is.
    pub write_pointer: u64,
    /// And its read pointer.
    pub read_pointer: u64,
    /// The blob that the queue lives as long as.
    pub blob: u64,
    /// The blob of the page with the pointers, for other queues.
    pub pointers_blob: u64,
    /// The blob of the doorbell page; 0 when the guest has it.
    pub doorbell_blob: u64,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Makes one.
    Create(Create),
    /// Ends one.
    Destroy {
        /// The host's number of it.
        queue: u64,
        /// Its blob's resource, or 0.
        resource: u32,
    },
    /// One that is known and not offered: update, information, masks, global wave sync.
    NotOffered(u32),
}

impl Queue {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < BYTES {
            return Err(Malformed::Short);
        }
        let word = |place: usize| u32_at(bytes, UNION + 4 * place);
        let long = |at: usize| u64_at(bytes, at);
        Ok(match u32_at(bytes, 124)? {
            0 => Self::Create(Create {
                node: word(0)?,
                kind: word(1)?,
                percentage: word(2)?,
                priority: i32::from_le_bytes(word(4)?.to_le_bytes()),
                engine: word(6)?,
                ring: long(48)?,
                ring_bytes: long(56)?,
                write_pointer: long(80)?,
                read_pointer: long(88)?,
                blob: long(96)?,
                pointers_blob: long(104)?,
                doorbell_blob: long(112)?,
            }),
            1 => Self::Destroy { queue: long(UNION)?, resource: u32_at(bytes, 120)? },
            other @ 2..=5 => Self::NotOffered(other),
            _ => return Err(Malformed::Unknown),
        })
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        let kind = match self {
            Self::Create(create) => {
                for (place, word) in [(0, create.node), (1, create.kind), (2, create.percentage), (6, create.engine)] {
                    put32(&mut bytes, UNION + 4 * place, word);
                }
                super::super::put(&mut bytes, UNION + 16, &create.priority.to_le_bytes());
                for (at, long) in [
                    (48, create.ring),
                    (56, create.ring_bytes),
                    (80, create.write_pointer),
                    (88, create.read_pointer),
                    (96, create.blob),
                    (104, create.pointers_blob),
                    (112, create.doorbell_blob),
                ] {
                    put64(&mut bytes, at, long);
                }
                0
            }
            Self::Destroy { queue, resource } => {
                put64(&mut bytes, UNION, queue);
                put32(&mut bytes, 120, resource);
                1
            }
            Self::NotOffered(kind) => kind,
        };
        put32(&mut bytes, 124, kind);
        bytes
    }
}
