// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The system calls of Linux's virtio-gpu, as in `virtgpu_drm.h`: numbers, arguments and constants,
//! without a call.

/// `DRM_IOWR` of DRM's letter.
const fn read_write<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | 0x64 << 8 | number
}

/// The handle of an object (u32 at 8, or in the upper half of the second word), for the offset at
/// which it is mapped.
pub const MAP: u64 = read_write::<[u64; 2]>(0x41);
/// [`Exec`].
pub const EXECBUFFER: u64 = read_write::<Exec>(0x42);
/// A parameter, and where its value goes.
pub const GETPARAM: u64 = read_write::<[u64; 2]>(0x43);
/// The handle of an object, for its resource, size and memory.
pub const RESOURCE_INFO: u64 = read_write::<[u32; 4]>(0x45);
/// A capability set and its version, where it goes, and how much of it.
pub const GET_CAPS: u64 = read_write::<[u64; 3]>(0x49);
/// [`Blob`].
pub const CREATE_BLOB: u64 = read_write::<Blob>(0x4a);
/// [`UserptrBlob`].
pub const CREATE_USERPTR_BLOB: u64 = read_write::<UserptrBlob>(0x4a);
/// The number of parameters, and where they are.
pub const CONTEXT_INIT: u64 = read_write::<[u64; 2]>(0x4b);
/// `DRM_IOCTL_GEM_CLOSE`: a handle and nothing.
pub const GEM_CLOSE: u64 = 1 << 30 | 8 << 16 | 0x64 << 8 | 0x09;

/// `VIRTGPU_PARAM_SUPPORTED_CAPSET_IDs`: a bit for each set.
pub const PARAM_CAPSETS: u64 = 7;
/// `VIRTGPU_CONTEXT_PARAM_CAPSET_ID`.
pub const CONTEXT_CAPSET: u64 = 1;
/// `VIRTGPU_CONTEXT_PARAM_NUM_RINGS`.
pub const CONTEXT_RINGS: u64 = 2;
/// `VIRTGPU_EXECBUF_FENCE_FD_OUT`.
pub const EXEC_FENCE_OUT: u32 = 2;
/// `VIRTGPU_EXECBUF_RING_IDX`.
pub const EXEC_RING: u32 = 4;
/// The flag of AMD's patch series for memory of the program's own; no kernel of Linux has it.
pub const FLAG_USERPTR: u32 = 8;

/// `drm_virtgpu_resource_create_blob`, without the hints that Linux 7.3 adds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Blob {
    /// Kind of memory: `protocol::blob::MEM_HOST3D` and others.
    pub memory: u32,
    /// `protocol::blob::FLAG_MAPPABLE` and others.
    pub flags: u32,
    /// Answer: the object's handle.
    pub handle: u32,
    /// Answer: the host's number.
    pub resource: u32,
    pub size: u64,
    /// Not used.
    pub pad: u32,
    /// Bytes of a command that makes the object.
    pub command_size: u32,
    /// Where it is.
    pub command: u64,
    /// The context's number of the object.
    pub id: u64,
}

/// The same over a program's own memory, with the tree's patch (`vm/virtio-gpu-userptr.patch`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UserptrBlob {
    /// As ever.
    pub blob: Blob,
    /// Since Linux 7.3, and what follows it; zero.
    pub hints: u64,
    /// The program's memory.
    pub pointer: u64,
}

/// The same as the posted series has it, where Linux 7.3 has the hints.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SeriesUserptrBlob {
    /// As ever.
    pub blob: Blob,
    /// The program's memory.
    pub pointer: u64,
    /// Answer: how far the memory begins in its first page.
    pub offset: i64,
}

/// `drm_virtgpu_execbuffer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Exec {
    /// [`EXEC_FENCE_OUT`], [`EXEC_RING`].
    pub flags: u32,
    /// Bytes of the command.
    pub size: u32,
    /// Where it is.
    pub command: u64,
    /// Objects that it uses.
    pub handles: u64,
    /// How many.
    pub handle_count: u32,
    /// A fence's descriptor.
    pub fence: i32,
    /// The ring.
    pub ring: u32,
    /// Of the next two.
    pub stride: u32,
    /// How many objects of synchronisation go in and out.
    pub syncobjs: [u32; 2],
    /// Where they are.
    pub syncobj_arrays: [u64; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a C compiler has them from Linux 7.3's header.
    #[test]
    fn numbers_are_the_headers() {
        assert_eq!([MAP, EXECBUFFER, GETPARAM], [0xc010_6441, 0xc040_6442, 0xc010_6443]);
        assert_eq!([RESOURCE_INFO, GET_CAPS, CREATE_BLOB], [0xc010_6445, 0xc018_6449, 0xc030_644a]);
        assert_eq!([CREATE_USERPTR_BLOB, CONTEXT_INIT, GEM_CLOSE], [0xc040_644a, 0xc010_644b, 0x4008_6409]);
    }
}
