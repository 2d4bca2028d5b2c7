// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The wire formats, without any input or output: bytes in, values out, and back.
//!
//! | module | what |
//! | --- | --- |
//! | [`control`] | virtio-gpu's control queue: commands, answers, fences |
//! | [`blob`] | the scatter list of a blob that is guest memory |
//! | [`capset`] | what the device says of its contexts |
//! | [`hsakmt`] | the protocol inside of a context of capset 8 (AMD's libhsakmt) |
//! | [`forward`] | the protocol inside of a context of vkfd's own capset: KFD's ioctls |
//!
//! All numbers are little-endian. A decoder gets a private copy of the guest's bytes, so nothing
//! changes while it reads. For any bytes it returns a value or an error, and never reads past the
//! copy.

pub mod blob;
pub mod capset;
pub mod control;
pub mod forward;
pub mod hsakmt;

/// Bytes of a page, in guest and host.
pub const PAGE: u64 = 4096;

/// The bytes are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// They end before the message does.
    Short,
    /// There is no such command.
    Unknown,
    /// A field has a value that it cannot have.
    Value,
    /// A count or size is more than the device takes.
    TooMuch,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Short => "the message ends too early",
            Self::Unknown => "no such command",
            Self::Value => "a field's value makes no sense",
            Self::TooMuch => "more than the device takes",
        })
    }
}

impl std::error::Error for Malformed {}

/// `N` bytes at `at`.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Malformed> {
    let end = at.checked_add(N).ok_or(Malformed::Short)?;
    bytes.get(at..end).and_then(|part| part.try_into().ok()).ok_or(Malformed::Short)
}

pub fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    array(bytes, at).map(u32::from_le_bytes)
}

pub fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Malformed> {
    array(bytes, at).map(u64::from_le_bytes)
}

/// Writes `value` at `at` of a message under construction, which is long enough.
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    debug_assert!(at + value.len() <= bytes.len());
    if let Some(room) = bytes.get_mut(at..at + value.len()) {
        room.copy_from_slice(value);
    }
}

pub fn put32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, &value.to_le_bytes());
}

pub fn put64(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, &value.to_le_bytes());
}

/// A number that is known to fit.
pub fn index(value: u32) -> usize {
    value as usize
}
