// SPDX-License-Identifier: GPL-2.0 OR MIT
//! QUERY_INFO: 128 bytes, of which the type is at 48 and what it is about at 56. The answer has 416
//! bytes, then lists.

use super::super::{put32, put64, u32_at, u64_at, Malformed};

/// Bytes of a request.
pub const BYTES: usize = 128;
/// Bytes of an answer's body before the list.
pub const BODY_BYTES: usize = 416;

/// Bytes of a node's properties: those of 2025, and behind them the fields of 2026.
pub const NODE_BYTES: usize = 396;
/// Bytes of a memory bank's properties.
pub const BANK_BYTES: usize = 32;
/// Bytes of a cache's properties.
pub const CACHE_BYTES: usize = 1056;
/// Bytes of a link's properties.
pub const LINK_BYTES: usize = 52;
/// Most entries of a list.
pub const MAX_LIST: u32 = 512;

const TYPE: usize = 48;
const ABOUT: usize = 56;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// The graphics driver's idea of a GPU.
    GpuInfo,
    /// Opens KFD, and tells the guest which addresses the host gives out.
    OpenKfd {
        /// Where the guest's heap is.
        heap: u64,
    },
    /// KFD's version.
    Version,
    /// The end of looking at the topology.
    ReleaseSystem,
    /// How many nodes.
    System,
    /// A node.
    Node(u32),
    /// Whether page faults are retried.
    Xnack,
    /// A debugger may come.
    RuntimeEnable,
    /// None comes any more.
    RuntimeDisable,
    /// A node's memory banks.
    Banks(u32, u32),
    /// A node's caches.
    Caches(u32, u32),
    /// A node's links.
    Links(u32, u32),
    /// A node's clocks.
    Clocks(u32),
    /// What is at an address.
    Pointer(u64),
    /// Tilings of a node's memory.
    Tile(u32),
    /// The host's clock.
    NanoTime,
    /// What the runtime can do.
    Capabilities,
    /// Switches retries.
    SetXnack(u32),
    /// One that is known and not offered: device handles and commands on file descriptors of the
    /// host.
    NotOffered(u32),
}

impl Query {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < BYTES {
            return Err(Malformed::Short);
        }
        let node = u32_at(bytes, ABOUT)?;
        let pair = || u32_at(bytes, ABOUT + 4);
        Ok(match u32_at(bytes, TYPE)? {
            0 => Self::GpuInfo,
            1 => Self::OpenKfd { heap: u64_at(bytes, ABOUT)? },
            2 => Self::Version,
            3 => Self::ReleaseSystem,
            4 => Self::System,
            5 => Self::Node(node),
            6 => Self::Xnack,
            7 => Self::RuntimeEnable,
            8 => Self::RuntimeDisable,
            9 => Self::Banks(node, pair()?),
            10 => Self::Caches(node, u32_at(bytes, ABOUT + 8)?),
            11 => Self::Links(node, pair()?),
            12 => Self::Clocks(node),
            13 => Self::Pointer(u64_at(bytes, ABOUT)?),
            14 => Self::Tile(u32_at(bytes, ABOUT + 64)?),
            15 => Self::NanoTime,
            16 => Self::Capabilities,
            19 => Self::SetXnack(node),
            other @ (17 | 18 | 20..=22) => Self::NotOffered(other),
            _ => return Err(Malformed::Unknown),
        })
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        let mut about = |words: &[u32]| {
            for (place, word) in words.iter().enumerate() {
                put32(&mut bytes, ABOUT + 4 * place, *word);
            }
        };
        let number = match self {
            Self::GpuInfo => 0,
            Self::OpenKfd { heap } => {
                put64(&mut bytes, ABOUT, heap);
                1
            }
            Self::Version => 2,
            Self::ReleaseSystem => 3,
            Self::System => 4,
            Self::Node(node) => {
                about(&[node]);
                5
            }
            Self::Xnack => 6,
            Self::RuntimeEnable => 7,
            Self::RuntimeDisable => 8,
            Self::Banks(node, count) => {
                about(&[node, count]);
                9
            }
            Self::Caches(node, count) => {
                about(&[node, 0, count]);
                10
            }
            Self::Links(node, count) => {
                about(&[node, count]);
                11
            }
            Self::Clocks(node) => {
                about(&[node]);
                12
            }
            Self::Pointer(address) => {
                put64(&mut bytes, ABOUT, address);
                13
            }
            Self::Tile(node) => {
                put32(&mut bytes, ABOUT + 64, node);
                14
            }
            Self::NanoTime => 15,
            Self::Capabilities => 16,
            Self::SetXnack(on) => {
                about(&[on]);
                19
            }
            Self::NotOffered(number) => number,
        };
        put32(&mut bytes, TYPE, number);
        bytes
    }
}
