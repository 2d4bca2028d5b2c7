// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which calls there are, and where their arguments point.
//!
//! The list has the offered calls. Both sides refuse a call that is not in it, so no guest pointer
//! ever reaches the host's driver. Sizes and places of KFD's structures come from the crate
//! `vkfd-uapi`; DRM's structures are described by their numbers in `drm.h` and `amdgpu_drm.h`.

use std::mem::{offset_of, size_of};

use vkfd_uapi::batch::{AllocMemoryOfGpuBatchArgs, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_uapi::event::{EventData, WaitEventsArgs};
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::memory::{MapMemoryToGpuArgs, UnmapMemoryFromGpuArgs};
use vkfd_uapi::process::{GetProcessAperturesNewArgs, GetTileConfigArgs, ProcessDeviceApertures};
use vkfd_uapi::queue::SetCuMaskArgs;
use vkfd_uapi::{command as c, vkfd};

use super::{File, MAX_ARGUMENT_BYTES, MAX_ARRAY_BYTES};
use crate::protocol::{u32_at, u64_at};

/// A call that is not done, and the errno that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub i32);

impl Refused {
    /// No such call, or none that is forwarded (ENOTTY).
    pub const NO_CALL: Self = Self(25);
    /// No such call on a render node, or none that is forwarded (EOPNOTSUPP).
    pub const NO_RENDER_CALL: Self = Self(95);
    /// An argument makes no sense (EINVAL).
    pub const VALUE: Self = Self(22);
    /// More than a message has room for (ENOMEM).
    pub const TOO_MUCH: Self = Self(12);
}

/// Which way an array goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The call reads it.
    In,
    /// The call writes it.
    Out,
    Both,
}

impl Way {
    /// Whether its contents go with the request.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Self::Out
    }

    /// Whether its contents come with the answer.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::In
    }
}

/// An array that an argument points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Where in the argument its pointer is.
    pub pointer: usize,
    pub bytes: usize,
    /// Which way it goes.
    pub way: Way,
}

/// How many elements an array has.
#[derive(Clone, Copy)]
pub(super) enum Count {
    /// As the 32 bits there say.
    Word(usize),
    /// As the 64 bits there say.
    Long(usize),
    /// The 32 bits there are a number of bits.
    Bits(usize),
}

/// A pointer to an array: its place, the count's, bytes of an element, the way.
pub(super) type Pointer = (usize, Count, usize, Way);

pub(super) struct Shape {
    pub(super) command: Command,
    pub(super) pointers: &'static [Pointer],
}

pub(super) const fn plain(command: Command) -> Shape {
    Shape { command, pointers: &[] }
}

/// Calls on `/dev/kfd`.
const KFD: &[Shape] = &[
    plain(c::GET_VERSION),
    plain(c::CREATE_QUEUE),
    plain(c::DESTROY_QUEUE),
    plain(c::SET_MEMORY_POLICY),
    plain(c::GET_CLOCK_COUNTERS),
    plain(c::GET_PROCESS_APERTURES),
    plain(c::UPDATE_QUEUE),
    plain(c::CREATE_EVENT),
    plain(c::DESTROY_EVENT),
    plain(c::SET_EVENT),
    plain(c::RESET_EVENT),
    Shape {
        command: c::WAIT_EVENTS,
        pointers: &[(
            offset_of!(WaitEventsArgs, events_ptr),
            Count::Word(offset_of!(WaitEventsArgs, num_events)),
            size_of::<EventData>(),
            Way::Both,
        )],
    },
    plain(c::SET_SCRATCH_BACKING_VA),
    Shape {
        command: c::GET_TILE_CONFIG,
        pointers: &[
            (
                offset_of!(GetTileConfigArgs, tile_config_ptr),
                Count::Word(offset_of!(GetTileConfigArgs, num_tile_configs)),
                4,
                Way::Out,
            ),
            (
                offset_of!(GetTileConfigArgs, macro_tile_config_ptr),
                Count::Word(offset_of!(GetTileConfigArgs, num_macro_tile_configs)),
                4,
                Way::Out,
            ),
        ],
    },
    // Addresses of the GPU, which the driver does not read.
    plain(c::SET_TRAP_HANDLER),
    Shape {
        command: c::GET_PROCESS_APERTURES_NEW,
        pointers: &[(
            offset_of!(GetProcessAperturesNewArgs, kfd_process_device_apertures_ptr),
            Count::Word(offset_of!(GetProcessAperturesNewArgs, num_of_nodes)),
            size_of::<ProcessDeviceApertures>(),
            Way::Out,
        )],
    },
    plain(c::ACQUIRE_VM),
    // Their memory comes as pieces.
    plain(c::ALLOC_MEMORY_OF_GPU),
    plain(ALLOC_MEMORY_OF_GPU_BATCH),
    plain(c::FREE_MEMORY_OF_GPU),
    Shape {
        command: c::MAP_MEMORY_TO_GPU,
        pointers: &[(
            offset_of!(MapMemoryToGpuArgs, device_ids_array_ptr),
            Count::Word(offset_of!(MapMemoryToGpuArgs, n_devices)),
            4,
            Way::In,
        )],
    },
    Shape {
        command: c::UNMAP_MEMORY_FROM_GPU,
        pointers: &[(
            offset_of!(UnmapMemoryFromGpuArgs, device_ids_array_ptr),
            Count::Word(offset_of!(UnmapMemoryFromGpuArgs, n_devices)),
            4,
            Way::In,
        )],
    },
    Shape {
        command: c::SET_CU_MASK,
        pointers: &[(
            offset_of!(SetCuMaskArgs, cu_mask_ptr),
            Count::Bits(offset_of!(SetCuMaskArgs, num_cu_mask)),
            1,
            Way::In,
        )],
    },
    plain(c::ALLOC_QUEUE_GWS),
    plain(c::SET_XNACK_MODE),
    plain(c::AVAILABLE_MEMORY),
    // The address of the debugger's structure, which only a debugger reads.
    plain(c::RUNTIME_ENABLE),
    plain(vkfd::QUERY_CAPS),
    plain(vkfd::LAST_ERROR),
    plain(vkfd::RINGED),
];

/// `DRM_IOCTL_VERSION`.
const DRM_VERSION: Command = Command::iowr::<[u64; 8]>(b'd', 0x00);
/// `DRM_IOCTL_GET_CLIENT`.
const DRM_GET_CLIENT: Command = Command::iowr::<[u64; 5]>(b'd', 0x05);
/// `DRM_IOCTL_GET_CAP`.
const DRM_GET_CAP: Command = Command::iowr::<[u64; 2]>(b'd', 0x0c);
/// `DRM_IOCTL_AMDGPU_INFO`.
const AMDGPU_INFO: Command = Command::iow::<[u64; 4]>(b'd', 0x45);

/// Calls on a render node.
const RENDER: &[Shape] = &[
    Shape {
        command: DRM_VERSION,
        pointers: &[
            (24, Count::Long(16), 1, Way::Out),
            (40, Count::Long(32), 1, Way::Out),
            (56, Count::Long(48), 1, Way::Out),
        ],
    },
    plain(DRM_GET_CLIENT),
    plain(DRM_GET_CAP),
    Shape { command: AMDGPU_INFO, pointers: &[(0, Count::Word(8), 1, Way::Out)] },
];

fn shape(file: File, command: Command) -> Result<&'static Shape, Refused> {
    let (all, refused) = match file {
        File::Kfd => (KFD, Refused::NO_CALL),
        File::Render(_) => (RENDER, Refused::NO_RENDER_CALL),
        File::Joined => (super::joined::CALLS, Refused::NO_CALL),
    };
    // The batch allocation's number is also the profiler's: there the whole word counts.
    let batch = ALLOC_MEMORY_OF_GPU_BATCH;
    let is = |shape: &&Shape| match shape.command == batch || command.number() == batch.number() {
        true => file == File::Kfd && shape.command == command,
        false => shape.command.kind() == command.kind() && shape.command.number() == command.number(),
    };
    all.iter().find(is).ok_or(refused)
}

/// Bytes of a call's argument as the driver knows it.
///
/// # Errors
/// [`Refused`] for a call that is not offered, or whose argument is said to be larger than any is.
pub fn size(file: File, command: Command) -> Result<usize, Refused> {
    let known = shape(file, command)?.command.size();
    if command.size() > MAX_ARGUMENT_BYTES {
        return Err(Refused::VALUE);
    }
    Ok(known)
}

/// The arrays of an argument, those that are there: a null pointer and a count of 0 have none.
///
/// # Errors
/// [`Refused`] for a call that is not offered, or an array that is too long for a message.
pub fn arrays(file: File, command: Command, argument: &[u8]) -> Result<Vec<Array>, Refused> {
    let mut arrays = Vec::new();
    for (pointer, count, each, way) in shape(file, command)?.pointers.iter().copied() {
        let value = |result: Result<u64, _>| result.map_err(|_| Refused::VALUE);
        if value(u64_at(argument, pointer))? == 0 {
            continue;
        }
        let word = |at| value(u32_at(argument, at).map(u64::from));
        let count = match count {
            Count::Word(at) => word(at)?,
            Count::Long(at) => value(u64_at(argument, at))?,
            Count::Bits(at) => word(at)?.div_ceil(8),
        };
        let bytes = count.checked_mul(each as u64).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.filter(|bytes| *bytes <= MAX_ARRAY_BYTES).ok_or(Refused::TOO_MUCH)?;
        if bytes > 0 {
            arrays.push(Array { pointer, bytes, way });
        }
    }
    Ok(arrays)
}

/// The places of all pointers in a call's argument, of arrays that are there or not.
///
/// # Errors
/// [`Refused`] for a call that is not offered.
pub fn pointers(file: File, command: Command) -> Result<impl Iterator<Item = usize>, Refused> {
    Ok(shape(file, command)?.pointers.iter().map(|(pointer, ..)| *pointer))
}

const _: () = assert!(size_of::<AllocMemoryOfGpuBatchArgs>() <= MAX_ARGUMENT_BYTES);
