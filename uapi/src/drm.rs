// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The calls of a render node that the driver serves.
//!
//! Mechanism: structures and rows as for KFD ([`super::call`]). Sources: `drm.h` and `amdgpu_drm.h`
//! of Linux 6.1. A structure and a field have the names that these headers have; a pointer's name
//! ends in `_ptr` here, and a union is shown as the caller passes it.
//!
//! Limits: calls for rendering have no rows.

use super::call::{calls, Count, Forward, Known, Pointer, Way};
use super::ioctl::Command;
use super::pod::{assert_layout, pod, Field, Pod};

/// The type letter of every DRM command.
pub const TYPE: u8 = b'd';

pod! {
    /// Argument of `VERSION`: `struct drm_version`.
    pub struct Version {
        /// Out: major version.
        pub version_major: i32,
        /// Out: minor version.
        pub version_minor: i32,
        /// Out: patch level.
        pub version_patchlevel: i32,
        /// Must be 0.
        pub pad: u32,
        /// In: room for the name. Out: its length.
        pub name_len: u64,
        /// In: user pointer to room for the name.
        pub name_ptr: u64,
        /// In: room for the date. Out: its length.
        pub date_len: u64,
        /// In: user pointer to room for the date.
        pub date_ptr: u64,
        /// In: room for the description. Out: its length.
        pub desc_len: u64,
        /// In: user pointer to room for the description.
        pub desc_ptr: u64,
    }
}

pod! {
    /// Argument of `GET_CLIENT`: `struct drm_client`.
    pub struct Client {
        /// In: which client; 0 is the caller.
        pub idx: u32,
        /// Out: whether it is authenticated.
        pub auth: u32,
        /// Out: its process.
        pub pid: u64,
        /// Out: its user.
        pub uid: u64,
        /// Out: its magic number.
        pub magic: u64,
        /// Out: the number of its calls.
        pub iocs: u64,
    }
}

pod! {
    /// Argument of `GEM_CLOSE`.
    pub struct GemClose {
        /// In: the object.
        pub handle: u32,
        /// Must be 0.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `GET_CAP`.
    pub struct GetCap {
        /// In: which capability.
        pub capability: u64,
        /// Out: its value.
        pub value: u64,
    }
}

pod! {
    /// Argument of `PRIME_HANDLE_TO_FD` and `PRIME_FD_TO_HANDLE`.
    pub struct PrimeHandle {
        /// The object.
        pub handle: u32,
        /// In: the file's flags.
        pub flags: u32,
        /// The file.
        pub fd: i32,
    }
}

pod! {
    /// Argument of `GEM_CREATE`; out: the handle, in the first four bytes.
    pub struct GemCreate {
        /// In: bytes.
        pub bo_size: u64,
        /// In: alignment in bytes.
        pub alignment: u64,
        /// In: `AMDGPU_GEM_DOMAIN_*`.
        pub domains: u64,
        /// In: `AMDGPU_GEM_CREATE_*`.
        pub domain_flags: u64,
    }
}

pod! {
    /// Argument of `GEM_MMAP`.
    pub struct GemMmap {
        /// In: the handle, in the first four bytes. Out: the mmap offset.
        pub addr: u64,
    }
}

pod! {
    /// Argument of `INFO`.
    pub struct Info {
        /// In: user pointer to room for the answer.
        pub return_ptr: u64,
        /// In: bytes of that room.
        pub return_size: u32,
        /// In: the question.
        pub query: u32,
        /// In: more of the question.
        pub arguments: [u32; 4],
    }
}

pod! {
    /// Argument of `GEM_METADATA`.
    pub struct GemMetadata {
        /// In: the object.
        pub handle: u32,
        /// In: set or get.
        pub op: u32,
        /// Flags for others that import the object.
        pub flags: u64,
        /// Its tiling.
        pub tiling_info: u64,
        /// Bytes of the data.
        pub data_size_bytes: u32,
        /// Data for others that import the object.
        pub data: [[u32; 32]; 2],
        /// Must be 0.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `GEM_WAIT_IDLE`; out: status and domain, in the first eight bytes.
    pub struct GemWaitIdle {
        /// In: the object.
        pub handle: u32,
        /// In: flags.
        pub flags: u32,
        /// In: the time at which the wait ends.
        pub timeout: u64,
    }
}

pod! {
    /// Argument of `GEM_VA`.
    pub struct GemVa {
        /// In: the object.
        pub handle: u32,
        /// Must be 0.
        pub pad: u32,
        /// In: map, unmap, clear, or replace.
        pub operation: u32,
        /// In: `AMDGPU_VM_PAGE_*`.
        pub flags: u32,
        /// In: GPU address.
        pub va_address: u64,
        /// In: offset in the object.
        pub offset_in_bo: u64,
        /// In: bytes.
        pub map_size: u64,
    }
}

pod! {
    /// Argument of `GEM_OP`.
    pub struct GemOp {
        /// In: the object.
        pub handle: u32,
        /// In: the question, or the change.
        pub op: u32,
        /// In: a value, or a user pointer.
        pub value: u64,
    }
}

/// A question of vkfd's own in `INFO`: the files of `/sys/class/kfd/kfd/proc`. Arguments: the
/// process to begin with, in two halves, and the entry of its to begin with. The answer is a
/// [`ListHead`] and entries. Each entry is a path and a text, both with a zero behind. The path of
/// a directory ends with a slash, and it has no text.
pub const INFO_PROCESSES: u32 = 0x766b_0001;
/// Another: the lines that `/proc/PID/fdinfo` has of a render node. Argument: a PID; 0 for the file
/// that is asked. The answer is the text's length in 32 bits, and as much of it as fits.
pub const INFO_FDINFO: u32 = 0x766b_0002;

pod! {
    /// The head of the answer to [`INFO_PROCESSES`].
    pub struct ListHead {
        /// The process to go on with; 0 at the end.
        pub process: u64,
        /// The entry of it.
        pub entry: u32,
        /// Bytes of entries behind this head.
        pub bytes: u32,
    }
}

assert_layout! {
    Version: 64 {
        version_minor: 4, version_patchlevel: 8, pad: 12, name_len: 16, name_ptr: 24, date_len: 32, date_ptr: 40, desc_len: 48, desc_ptr: 56,
    }
    Client: 40 { auth: 4, pid: 8, uid: 16, magic: 24, iocs: 32 }
    GemClose: 8 { pad: 4 }
    GetCap: 16 { value: 8 }
    PrimeHandle: 12 { flags: 4, fd: 8 }
    GemCreate: 32 { alignment: 8, domains: 16, domain_flags: 24 }
    GemMmap: 8 {}
    Info: 32 { return_size: 8, query: 12, arguments: 16 }
    GemMetadata: 288 { op: 4, flags: 8, tiling_info: 16, data_size_bytes: 24, data: 28, pad: 284 }
    GemWaitIdle: 16 { flags: 4, timeout: 8 }
    GemVa: 40 { pad: 4, operation: 8, flags: 12, va_address: 16, offset_in_bo: 24, map_size: 32 }
    GemOp: 16 { op: 4, value: 8 }
    ListHead: 16 { entry: 8, bytes: 12 }
}

calls! {
    type TYPE;

    /// The driver's name and version.
    VERSION "DRM_VERSION" = iowr<Version>(0x00), 0xc040_6400,
        since 1, forwarded [
            Out name_ptr: u8, Long name_len;
            Out date_ptr: u8, Long date_len;
            Out desc_ptr: u8, Long desc_len
        ];
    /// The client that has the device open.
    GET_CLIENT "DRM_GET_CLIENT" = iowr<Client>(0x05), 0xc028_6405, since 1, forwarded;
    /// Close an object.
    GEM_CLOSE "DRM_GEM_CLOSE" = iow<GemClose>(0x09), 0x4008_6409, since 1, local "its objects are local";
    /// A capability of the driver.
    GET_CAP "DRM_GET_CAP" = iowr<GetCap>(0x0c), 0xc010_640c, since 1, forwarded;
    /// Make a file of an object.
    PRIME_HANDLE_TO_FD "DRM_PRIME_HANDLE_TO_FD" = iowr<PrimeHandle>(0x2d), 0xc00c_642d, since 1, local "its objects are local";
    /// Make an object of a file.
    PRIME_FD_TO_HANDLE "DRM_PRIME_FD_TO_HANDLE" = iowr<PrimeHandle>(0x2e), 0xc00c_642e, since 1, local "its objects are local";
    /// Make an object.
    GEM_CREATE "AMDGPU_GEM_CREATE" = iowr<GemCreate>(0x40), 0xc020_6440, since 1, local "its objects are local";
    /// An object's mmap offset.
    GEM_MMAP "AMDGPU_GEM_MMAP" = iowr<GemMmap>(0x41), 0xc008_6441, since 1, local "its objects are local";
    /// A question about the device. An answer that is shorter than its room leaves the rest as it
    /// is, so the room goes both ways.
    INFO "AMDGPU_INFO" = iow<Info>(0x45), 0x4020_6445,
        since 1, forwarded [Both return_ptr: u8, Word return_size];
    /// Set or get an object's metadata.
    GEM_METADATA "AMDGPU_GEM_METADATA" = iowr<GemMetadata>(0x46), 0xc120_6446, since 1, local "its objects are local";
    /// Wait until an object is idle.
    GEM_WAIT_IDLE "AMDGPU_GEM_WAIT_IDLE" = iowr<GemWaitIdle>(0x47), 0xc010_6447, since 1, local "its objects are local";
    /// Map an object in the file's address space, or unmap it.
    GEM_VA "AMDGPU_GEM_VA" = iow<GemVa>(0x48), 0x4028_6448, since 1, local "its objects are local";
    /// Ask about an object, or change it.
    GEM_OP "AMDGPU_GEM_OP" = iowr<GemOp>(0x50), 0xc010_6450, since 1, local "its objects are local";
}

impl Call {
    /// The call of a number. Linear in [`ALL`].
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        let at = ALL.iter().position(|known| known.command.number() == number)?;
        Self::ALL.get(at).copied()
    }
}

/// The name of a call.
#[must_use]
pub fn name(command: Command) -> Option<&'static str> {
    Call::of_number(command.number()).and_then(|call| ALL.get(call as usize)).map(|known| known.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_of_drm_and_in_order() {
        assert!(ALL.iter().all(|known| known.command.kind() == TYPE));
        assert!(ALL.windows(2).all(|pair| pair[0].command.number() < pair[1].command.number()));
    }

    #[test]
    fn calls_are_found_by_their_numbers() {
        assert_eq!(Call::of_number(0x48), Some(Call::GEM_VA));
        assert_eq!(Call::of_number(0x44), None);
        assert_eq!(name(Command(0xc020_6445)), Some("AMDGPU_INFO"));
    }
}
