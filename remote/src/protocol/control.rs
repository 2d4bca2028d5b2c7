// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The control queue: a header of 24 bytes, then the command.
//!
//! Only what a guest's kernel sends to a device without displays is known; everything else is
//! [`Malformed::Unknown`], which the device answers with an error that the kernel understands.
//! Source: section 5.7 of the virtio specification 1.3.

use super::{blob, put32, put64, u32_at, u64_at, Malformed};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;
/// Most bytes of a command, blobs' lists included.
pub const MAX_COMMAND_BYTES: usize = 2 << 20;
/// Rings of a context.
pub const RINGS: u8 = 64;

/// The answer comes when the work is done.
pub const FLAG_FENCE: u32 = 1;
/// The fence is the ring's that the header names.
pub const FLAG_RING: u32 = 2;

const RESOURCE_UNREF: u32 = 0x102;
const GET_CAPSET_INFO: u32 = 0x108;
const GET_CAPSET: u32 = 0x109;
const RESOURCE_CREATE_BLOB: u32 = 0x10c;
const CTX_CREATE: u32 = 0x200;
const CTX_DESTROY: u32 = 0x201;
const CTX_ATTACH_RESOURCE: u32 = 0x202;
const CTX_DETACH_RESOURCE: u32 = 0x203;
const SUBMIT_3D: u32 = 0x207;
const RESOURCE_MAP_BLOB: u32 = 0x208;
const RESOURCE_UNMAP_BLOB: u32 = 0x209;

const OK_NODATA: u32 = 0x1100;
const OK_CAPSET_INFO: u32 = 0x1102;
const OK_CAPSET: u32 = 0x1103;
const OK_MAP_INFO: u32 = 0x1106;

/// Mapped memory is cached (`VIRTIO_GPU_MAP_CACHE_CACHED`).
const MAP_CACHED: u32 = 1;

/// What an answer's error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// For any other reason.
    Unspecified = 0x1200,
    /// No memory, or a bound of the device.
    OutOfMemory = 0x1201,
    /// No such display.
    InvalidScanout = 0x1202,
    /// No such resource, or one that is there already.
    InvalidResource = 0x1203,
    /// No such context.
    InvalidContext = 0x1204,
    /// A parameter makes no sense.
    InvalidParameter = 0x1205,
}

/// A command's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Which command.
    pub kind: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// What the guest knows the fence by.
    pub fence: u64,
    /// The context.
    pub context: u32,
    /// The ring of the context.
    pub ring: u8,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Frees a resource.
    Unref { resource: u32 },
    /// Asks for the number of a capability set.
    CapsetInfo {
        /// Its index.
        index: u32,
    },
    /// Asks for a capability set.
    Capset {
        /// Its number.
        id: u32,
    },
    /// Makes a resource.
    CreateBlob {
        /// The number that it gets.
        resource: u32,
        /// `blob::MEM_*`.
        memory: u32,
        /// `blob::FLAG_*`.
        flags: u32,
        /// By which the context knows it.
        id: u64,
        size: u64,
        /// Guest memory that it is made of.
        runs: Vec<blob::Run>,
    },
    /// Makes a context, with the number in the header.
    CreateContext {
        /// The number of its capability set.
        capset: u32,
    },
    /// Ends a context.
    DestroyContext,
    /// Lets the context use a resource.
    Attach { resource: u32 },
    /// Takes it from the context.
    Detach { resource: u32 },
    /// For the context.
    Submit {
        /// What it makes of it.
        payload: &'a [u8],
    },
    /// Puts a resource into the host-visible window.
    Map { resource: u32, offset: u64 },
    /// Takes it out again.
    Unmap { resource: u32 },
}

impl Header {
    /// The header of a message.
    ///
    /// # Errors
    /// [`Malformed::Short`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let ring = u32_at(bytes, 20)?.to_le_bytes()[0];
        Ok(Self {
            kind: u32_at(bytes, 0)?,
            flags: u32_at(bytes, 4)?,
            fence: u64_at(bytes, 8)?,
            context: u32_at(bytes, 16)?,
            ring,
        })
    }

    fn encode(&self, kind: u32, bytes: &mut [u8]) {
        put32(bytes, 0, kind);
        put32(bytes, 4, self.flags);
        put64(bytes, 8, self.fence);
        put32(bytes, 16, self.context);
        put32(bytes, 20, self.ring.into());
    }
}

impl<'a> Command<'a> {
    /// The command of a message whose header is `header`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(header: &Header, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let body = bytes.get(HEADER_BYTES..).ok_or(Malformed::Short)?;
        let first = || u32_at(body, 0);
        Ok(match header.kind {
            RESOURCE_UNREF => Self::Unref { resource: first()? },
            GET_CAPSET_INFO => Self::CapsetInfo { index: first()? },
            GET_CAPSET => Self::Capset { id: first()? },
            RESOURCE_CREATE_BLOB => {
                let (count, size) = (u32_at(body, 12)?, u64_at(body, 24)?);
                let (memory, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
                let runs = match memory {
                    blob::MEM_HOST3D if count == 0 => Vec::new(),
                    blob::MEM_GUEST | blob::MEM_HOST3D_GUEST if count > 0 => blob::decode(&body[32..], count, size)?,
                    _ => return Err(Malformed::Value),
                };
                Self::CreateBlob { resource: first()?, memory, flags, id: u64_at(body, 16)?, size, runs }
            }
            CTX_CREATE => {
                // The name is for humans; a length that is too long is the kernel's fault and
                // changes nothing.
                let [capset, ..] = u32_at(body, 4)?.to_le_bytes();
                Self::CreateContext { capset: capset.into() }
            }
            CTX_DESTROY => Self::DestroyContext,
            CTX_ATTACH_RESOURCE => Self::Attach { resource: first()? },
            CTX_DETACH_RESOURCE => Self::Detach { resource: first()? },
            SUBMIT_3D => {
                let size = super::index(first()?);
                let payload = body.get(8..).ok_or(Malformed::Short)?;
                Self::Submit { payload: payload.get(..size).ok_or(Malformed::Short)? }
            }
            RESOURCE_MAP_BLOB => Self::Map { resource: first()?, offset: u64_at(body, 8)? },
            RESOURCE_UNMAP_BLOB => Self::Unmap { resource: first()? },
            _ => return Err(Malformed::Unknown),
        })
    }

    /// The bytes of a message, for tests and fuzzing: what a guest's kernel would send.
    #[must_use]
    pub fn encode(&self, header: &Header) -> Vec<u8> {
        let mut body = vec![0; 8];
        let resource_of = |body: &mut Vec<u8>, resource: u32| put32(body, 0, resource);
        let kind = match self {
            Self::Unref { resource } => {
                resource_of(&mut body, *resource);
                RESOURCE_UNREF
            }
            Self::CapsetInfo { index } => {
                resource_of(&mut body, *index);
                GET_CAPSET_INFO
            }
            Self::Capset { id } => {
                resource_of(&mut body, *id);
                GET_CAPSET
            }
            Self::CreateBlob { resource, memory, flags, id, size, runs } => {
                body.resize(32, 0);
                for (place, word) in [*resource, *memory, *flags].into_iter().enumerate() {
                    put32(&mut body, 4 * place, word);
                }
                put32(&mut body, 12, u32::try_from(runs.len()).unwrap_or(u32::MAX));
                put64(&mut body, 16, *id);
                put64(&mut body, 24, *size);
                body.extend(blob::encode(runs));
                RESOURCE_CREATE_BLOB
            }
            Self::CreateContext { capset } => {
                body.resize(72, 0);
                put32(&mut body, 4, *capset);
                CTX_CREATE
            }
            Self::DestroyContext => CTX_DESTROY,
            Self::Attach { resource } => {
                resource_of(&mut body, *resource);
                CTX_ATTACH_RESOURCE
            }
            Self::Detach { resource } => {
                resource_of(&mut body, *resource);
                CTX_DETACH_RESOURCE
            }
            Self::Submit { payload } => {
                put32(&mut body, 0, u32::try_from(payload.len()).unwrap_or(u32::MAX));
                body.extend_from_slice(payload);
                SUBMIT_3D
            }
            Self::Map { resource, offset } => {
                body.resize(16, 0);
                resource_of(&mut body, *resource);
                put64(&mut body, 8, *offset);
                RESOURCE_MAP_BLOB
            }
            Self::Unmap { resource } => {
                resource_of(&mut body, *resource);
                RESOURCE_UNMAP_BLOB
            }
        };
        let mut bytes = vec![0; HEADER_BYTES];
        header.encode(kind, &mut bytes);
        bytes.extend(body);
        bytes
    }
}

/// What the device answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// A capability set's number, largest version and size.
    CapsetInfo {
        id: u32,
        /// Largest version.
        version: u32,
        size: u32,
    },
    /// A capability set.
    Capset(Vec<u8>),
    Mapped,
    Error(ErrorCode),
}

impl Answer {
    /// Its bytes: an answer repeats what the command's header says of fence, context and ring.
    #[must_use]
    pub fn encode(&self, header: &Header) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        let kind = match self {
            Self::Done => OK_NODATA,
            Self::CapsetInfo { .. } => OK_CAPSET_INFO,
            Self::Capset(_) => OK_CAPSET,
            Self::Mapped => OK_MAP_INFO,
            Self::Error(code) => *code as u32,
        };
        header.encode(kind, &mut bytes);
        match self {
            Self::CapsetInfo { id, version, size } => {
                for word in [*id, *version, *size, 0] {
                    bytes.extend(word.to_le_bytes());
                }
            }
            Self::Capset(data) => bytes.extend_from_slice(data),
            Self::Mapped => bytes.extend([MAP_CACHED, 0].map(u32::to_le_bytes).as_flattened()),
            Self::Done | Self::Error(_) => {}
        }
        bytes
    }
}

#[cfg(test)]
mod tests;
