// SPDX-License-Identifier: GPL-2.0 OR MIT
//! MEMORY: the requests of both layouts.
//!
//! The union of arguments is at 16 in both. The offset behind it differs by the union's size: 48
//! bytes in July 2025, 280 in 2026, when it got a buffer's metadata. An allocation's alignment came
//! with the latter.

use super::super::{put32, put64, u32_at, u64_at, Malformed};

/// Which of the two layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// July 2025.
    Y2025,
    /// 2026.
    Y2026,
}

/// Most nodes of a list.
pub const MAX_NODES: u64 = 32;

const UNION: usize = 16;

impl Layout {
    /// By the bytes of a request; node lists are shorter than the difference.
    pub(super) fn of(length: usize) -> Result<Self, Malformed> {
        match length {
            _ if length >= Self::Y2026.bytes() => Ok(Self::Y2026),
            _ if length >= Self::Y2025.bytes() => Ok(Self::Y2025),
            _ => Err(Malformed::Short),
        }
    }

    /// Bytes of a request without a list.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.after() + 16
    }

    /// Bytes of an answer's body.
    #[must_use]
    pub const fn body_bytes(self) -> usize {
        match self {
            Self::Y2025 => 16,
            Self::Y2026 => 312,
        }
    }

    const fn after(self) -> usize {
        match self {
            Self::Y2025 => UNION + 48,
            Self::Y2026 => UNION + 280,
        }
    }
}

/// Bits of libhsakmt's memory flags that matter here.
pub mod flags {
    /// The GPU only reads.
    pub const READ_ONLY: u32 = 1 << 3;
    /// The CPU can reach it.
    pub const HOST_ACCESS: u32 = 1 << 6;
    /// Room for a kernel's private memory.
    pub const SCRATCH: u32 = 1 << 9;
    /// The GPU may execute from it.
    pub const EXECUTE: u32 = 1 << 12;
    /// Coherent at the end of kernels only.
    pub const COARSE_GRAIN: u32 = 1 << 13;
    /// At the address that the request names.
    pub const FIXED_ADDRESS: u32 = 1 << 15;
    /// Not cached.
    pub const UNCACHED: u32 = 1 << 17;
    /// Memory without an address.
    pub const NO_ADDRESS: u32 = 1 << 18;
    /// An address without memory.
    pub const ONLY_ADDRESS: u32 = 1 << 19;
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Allocates; the object is blob `blob` of the context from then on.
    Alloc {
        /// Where: node 0 is the processors'.
        node: u32,
        /// [`flags`].
        flags: u32,
        bytes: u64,
        /// Where it should be, with [`flags::FIXED_ADDRESS`].
        address: u64,
        /// What the address should be a multiple of; 0 for pages.
        alignment: u64,
        /// The blob's number.
        blob: u64,
    },
    /// Maps on nodes.
    MapToNodes {
        /// The host's address of the memory.
        address: u64,
        bytes: u64,
        /// The resource, where the library knows it.
        resource: u32,
        /// The nodes.
        nodes: Vec<u32>,
    },
    Free {
        address: u64,
    },
    /// Unmaps from all nodes.
    Unmap {
        address: u64,
    },
    /// How much a node has left.
    Available {
        node: u32,
    },
    /// Maps on all nodes.
    Map {
        address: u64,
        bytes: u64,
        /// Scratch memory, for which an object is to be made.
        scratch: bool,
    },
    /// Registers the guest's memory.
    Register {
        /// What [`Memory::MapUserptr`] returned.
        address: u64,
        bytes: u64,
        /// [`flags`].
        flags: u32,
        /// The blob with its scatter list; 0 from a library of 2025.
        resource: u32,
    },
    /// The end of that.
    Deregister {
        address: u64,
        /// The resource, or 0.
        resource: u32,
    },
    /// Gives a blob of guest memory addresses.
    MapUserptr {
        /// The blob.
        resource: u32,
    },
    /// One that is known and not offered: sharing, graphics objects, SVM.
    NotOffered(u32),
}

impl Memory {
    pub(super) fn decode(bytes: &[u8], layout: Layout) -> Result<Self, Malformed> {
        let after = layout.after();
        let (blob, kind, resource) = (u64_at(bytes, after)?, u32_at(bytes, after + 8)?, u32_at(bytes, after + 12)?);
        let address = u64_at(bytes, UNION)?;
        let second = u64_at(bytes, UNION + 8)?;
        Ok(match kind {
            0 => Self::Alloc {
                node: u32_at(bytes, UNION)?,
                flags: u32_at(bytes, UNION + 4)?,
                bytes: second,
                address: u64_at(bytes, UNION + 16)?,
                alignment: if layout == Layout::Y2026 { u64_at(bytes, UNION + 24)? } else { 0 },
                blob,
            },
            1 => {
                let count = u64_at(bytes, UNION + 32)?;
                if count > MAX_NODES {
                    return Err(Malformed::TooMuch);
                }
                let count = usize::try_from(count).map_err(|_| Malformed::TooMuch)?;
                let nodes =
                    (0..count).map(|place| u32_at(bytes, layout.bytes() + 4 * place)).collect::<Result<_, _>>()?;
                Self::MapToNodes { address, bytes: second, resource, nodes }
            }
            2 => Self::Free { address },
            3 => Self::Unmap { address },
            4 => Self::Available { node: u32_at(bytes, UNION)? },
            5 => Self::Map { address, bytes: second, scratch: u32_at(bytes, UNION + 16)? & 0xff != 0 },
            6 => Self::Register { address, bytes: second, flags: u32_at(bytes, UNION + 16)?, resource },
            7 => Self::Deregister { address, resource },
            8 => Self::MapUserptr { resource },
            other @ 9..=20 => Self::NotOffered(other),
            _ => return Err(Malformed::Unknown),
        })
    }

    pub(super) fn encode(&self, layout: Layout) -> Vec<u8> {
        let mut bytes = vec![0; layout.bytes()];
        let after = layout.after();
        let (mut blob, mut res) = (0, 0);
        let put_pair = |bytes: &mut Vec<u8>, address: u64, size: u64| {
            put64(bytes, UNION, address);
            put64(bytes, UNION + 8, size);
        };
        let kind = match self {
            Self::Alloc { node, flags, bytes: size, address, alignment, blob: number } => {
                put32(&mut bytes, UNION, *node);
                put32(&mut bytes, UNION + 4, *flags);
                put64(&mut bytes, UNION + 8, *size);
                put64(&mut bytes, UNION + 16, *address);
                if layout == Layout::Y2026 {
                    put64(&mut bytes, UNION + 24, *alignment);
                }
                blob = *number;
                0
            }
            Self::MapToNodes { address, bytes: size, resource, nodes } => {
                put_pair(&mut bytes, *address, *size);
                put64(&mut bytes, UNION + 32, nodes.len() as u64);
                bytes.extend(nodes.iter().flat_map(|node| node.to_le_bytes()));
                res = *resource;
                1
            }
            Self::Free { address } => {
                put64(&mut bytes, UNION, *address);
                2
            }
            Self::Unmap { address } => {
                put64(&mut bytes, UNION, *address);
                3
            }
            Self::Available { node } => {
                put32(&mut bytes, UNION, *node);
                4
            }
            Self::Map { address, bytes: size, scratch } => {
                put_pair(&mut bytes, *address, *size);
                put32(&mut bytes, UNION + 16, u32::from(*scratch));
                5
            }
            Self::Register { address, bytes: size, flags, resource } => {
                put_pair(&mut bytes, *address, *size);
                put32(&mut bytes, UNION + 16, *flags);
                res = *resource;
                6
            }
            Self::Deregister { address, resource } => {
                put64(&mut bytes, UNION, *address);
                res = *resource;
                7
            }
            Self::MapUserptr { resource } => {
                res = *resource;
                8
            }
            Self::NotOffered(kind) => *kind,
        };
        put64(&mut bytes, after, blob);
        put32(&mut bytes, after + 8, kind);
        put32(&mut bytes, after + 12, res);
        bytes
    }
}
