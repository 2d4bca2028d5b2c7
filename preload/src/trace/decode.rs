// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The arguments of calls in words, from the layouts of the ABI.

use super::line::Value;
use crate::redirect::Device;
use libc::c_void;
use vkfd_uapi::batch::{AllocMemoryOfGpuBatchArgs, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_uapi::command as c;
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::pod::{Field, Pod};
use vkfd_uapi::{event, memory, process, queue, svm, vkfd};

/// A call's name.
pub(super) fn name(device: Device, command: u32) -> String {
    let number = Command(command).number();
    match device {
        Device::Kfd if Command(command) == ALLOC_MEMORY_OF_GPU_BATCH => "ALLOC_MEMORY_OF_GPU_BATCH".into(),
        Device::Kfd => {
            let known = c::name(Command(command)).or_else(|| vkfd::name(Command(command)));
            known.map_or_else(|| format!("KFD_{number:#x}"), Into::into)
        }
        Device::Render(_) | Device::Card(_) => match number {
            0x00 => "DRM_VERSION".into(),
            0x05 => "DRM_GET_CLIENT".into(),
            0x09 => "DRM_GEM_CLOSE".into(),
            0x0c => "DRM_GET_CAP".into(),
            0x2d => "DRM_PRIME_HANDLE_TO_FD".into(),
            0x2e => "DRM_PRIME_FD_TO_HANDLE".into(),
            0x40 => "AMDGPU_GEM_CREATE".into(),
            0x41 => "AMDGPU_GEM_MMAP".into(),
            0x45 => "AMDGPU_INFO".into(),
            0x46 => "AMDGPU_GEM_METADATA".into(),
            0x47 => "AMDGPU_GEM_WAIT_IDLE".into(),
            0x48 => "AMDGPU_GEM_VA".into(),
            0x50 => "AMDGPU_GEM_OP".into(),
            _ => format!("DRM_{number:#x}"),
        },
    }
}

const fn field(name: &'static str, offset: usize, size: usize) -> Field {
    Field { name, offset, size }
}

/// What libdrm's calls on a render node begin with (`drm.h`, `amdgpu_drm.h`).
const DRM: &[(u32, &[Field])] = &[
    (0x09, &[field("handle", 0, 4)]),
    (0x0c, &[field("capability", 0, 8), field("value", 8, 8)]),
    (0x2d, &[field("handle", 0, 4), field("fd", 8, 4)]),
    (0x2e, &[field("handle", 0, 4), field("fd", 8, 4)]),
    (0x40, &[field("size", 0, 8), field("domains", 16, 8), field("create", 24, 8)]),
    (0x41, &[field("mmap_offset", 0, 8)]),
    (0x45, &[field("size", 8, 4), field("query", 12, 4)]),
    (0x46, &[field("handle", 0, 4), field("op", 4, 4)]),
    (
        0x48,
        &[
            field("handle", 0, 4),
            field("op", 8, 4),
            field("access", 12, 4),
            field("va_addr", 16, 8),
            field("bo_offset", 24, 8),
            field("size", 32, 8),
        ],
    ),
    (0x50, &[field("handle", 0, 4), field("op", 4, 4)]),
];

/// The fields of a call's argument.
fn fields(command: Command) -> &'static [Field] {
    if command.kind() == b'd' {
        let known = DRM.iter().find(|(number, _)| *number == u32::from(command.number()));
        return known.map_or(&[], |(_, fields)| fields);
    }
    if command == ALLOC_MEMORY_OF_GPU_BATCH {
        return AllocMemoryOfGpuBatchArgs::FIELDS;
    }
    let known: &[(Command, &'static [Field])] = &[
        (c::GET_VERSION, process::GetVersionArgs::FIELDS),
        (c::CREATE_QUEUE, queue::CreateQueueArgs::FIELDS),
        (c::DESTROY_QUEUE, queue::DestroyQueueArgs::FIELDS),
        (c::SET_MEMORY_POLICY, process::SetMemoryPolicyArgs::FIELDS),
        (c::GET_CLOCK_COUNTERS, process::GetClockCountersArgs::FIELDS),
        (c::UPDATE_QUEUE, queue::UpdateQueueArgs::FIELDS),
        (c::CREATE_EVENT, event::CreateEventArgs::FIELDS),
        (c::DESTROY_EVENT, event::DestroyEventArgs::FIELDS),
        (c::SET_EVENT, event::SetEventArgs::FIELDS),
        (c::RESET_EVENT, event::ResetEventArgs::FIELDS),
        (c::WAIT_EVENTS, event::WaitEventsArgs::FIELDS),
        (c::SET_SCRATCH_BACKING_VA, process::SetScratchBackingVaArgs::FIELDS),
        (c::GET_TILE_CONFIG, process::GetTileConfigArgs::FIELDS),
        (c::SET_TRAP_HANDLER, process::SetTrapHandlerArgs::FIELDS),
        (c::GET_PROCESS_APERTURES_NEW, process::GetProcessAperturesNewArgs::FIELDS),
        (c::ACQUIRE_VM, process::AcquireVmArgs::FIELDS),
        (c::ALLOC_MEMORY_OF_GPU, memory::AllocMemoryOfGpuArgs::FIELDS),
        (c::FREE_MEMORY_OF_GPU, memory::FreeMemoryOfGpuArgs::FIELDS),
        (c::MAP_MEMORY_TO_GPU, memory::MapMemoryToGpuArgs::FIELDS),
        (c::UNMAP_MEMORY_FROM_GPU, memory::UnmapMemoryFromGpuArgs::FIELDS),
        (c::SET_CU_MASK, queue::SetCuMaskArgs::FIELDS),
        (c::GET_QUEUE_WAVE_STATE, queue::GetQueueWaveStateArgs::FIELDS),
        (c::GET_DMABUF_INFO, memory::GetDmabufInfoArgs::FIELDS),
        (c::IMPORT_DMABUF, memory::ImportDmabufArgs::FIELDS),
        (c::EXPORT_DMABUF, memory::ExportDmabufArgs::FIELDS),
        (c::ALLOC_QUEUE_GWS, queue::AllocQueueGwsArgs::FIELDS),
        (c::SVM, svm::SvmArgs::FIELDS),
        (c::SET_XNACK_MODE, process::SetXnackModeArgs::FIELDS),
        (c::AVAILABLE_MEMORY, memory::GetAvailableMemoryArgs::FIELDS),
        (c::RUNTIME_ENABLE, process::RuntimeEnableArgs::FIELDS),
    ];
    known.iter().find(|(known, _)| known.same_call(command)).map_or(&[], |(_, fields)| fields)
}

/// A copy of a call's argument.
pub(super) struct Arguments(Vec<u8>);

impl Arguments {
    /// `None` if it cannot be read, or says nothing.
    pub(super) fn read(command: u32, argument: *mut c_void) -> Option<Self> {
        let command = Command(command);
        if fields(command).is_empty() {
            return None;
        }
        let mut bytes = vec![0; command.size()];
        crate::machine::get().ok()?.read(argument, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    fn field(&self, field: &Field) -> Option<u64> {
        let bytes = self.0.get(field.offset..field.offset + field.size)?;
        match field.size {
            4 => Some(u32::from_ne_bytes(bytes.try_into().ok()?).into()),
            8 => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
            _ => None,
        }
    }

    /// All fields but padding.
    pub(super) fn values(&self, command: u32) -> Vec<(&'static str, Value)> {
        let fields = fields(Command(command)).iter().filter(|field| field.name != "pad");
        fields.filter_map(|field| Some((field.name, value(field, self.field(field)?)))).collect()
    }

    /// The fields that are different now.
    pub(super) fn changed(&self, command: u32, argument: *mut c_void) -> Vec<(&'static str, Value)> {
        let Some(after) = Self::read(command, argument) else { return vec![] };
        let changed = fields(Command(command)).iter().filter(|field| after.field(field) != self.field(field));
        changed.filter_map(|field| Some((field.name, value(field, after.field(field)?)))).collect()
    }
}

fn value(field: &Field, value: u64) -> Value {
    match field.name {
        "flags" => Value::Words(flags(value)),
        "queue_type" => Value::Words(queue_type(value)),
        // -1 asks for the mode.
        "xnack_enabled" if value == u64::from(u32::MAX) => Value::Words("-1".into()),
        name if name == "gpu_id" || name == "handle" => Value::Address(value),
        name if ["address", "addr", "offset", "ptr", "base", "limit"].iter().any(|word| name.ends_with(word)) => {
            Value::Address(value)
        }
        _ => Value::Number(value),
    }
}

/// `ALLOC_MEM_FLAGS_*`.
fn flags(value: u64) -> String {
    const NAMES: [(u32, &str); 15] = [
        (memory::ALLOC_MEM_FLAGS_VRAM, "VRAM"),
        (memory::ALLOC_MEM_FLAGS_GTT, "GTT"),
        (memory::ALLOC_MEM_FLAGS_USERPTR, "USERPTR"),
        (memory::ALLOC_MEM_FLAGS_DOORBELL, "DOORBELL"),
        (memory::ALLOC_MEM_FLAGS_MMIO_REMAP, "MMIO_REMAP"),
        (memory::ALLOC_MEM_FLAGS_USERPTR_BATCH, "USERPTR_BATCH"),
        (memory::ALLOC_MEM_FLAGS_CONTIGUOUS, "CONTIGUOUS"),
        (memory::ALLOC_MEM_FLAGS_EXT_COHERENT, "EXT_COHERENT"),
        (memory::ALLOC_MEM_FLAGS_UNCACHED, "UNCACHED"),
        (memory::ALLOC_MEM_FLAGS_COHERENT, "COHERENT"),
        (memory::ALLOC_MEM_FLAGS_AQL_QUEUE_MEM, "AQL_QUEUE_MEM"),
        (memory::ALLOC_MEM_FLAGS_NO_SUBSTITUTE, "NO_SUBSTITUTE"),
        (memory::ALLOC_MEM_FLAGS_PUBLIC, "PUBLIC"),
        (memory::ALLOC_MEM_FLAGS_EXECUTABLE, "EXECUTABLE"),
        (memory::ALLOC_MEM_FLAGS_WRITABLE, "WRITABLE"),
    ];
    let known = NAMES.iter().fold(0, |all, (flag, _)| all | u64::from(*flag));
    let mut words: Vec<String> =
        NAMES.iter().filter(|(flag, _)| value & u64::from(*flag) != 0).map(|(_, name)| (*name).to_owned()).collect();
    if value & !known != 0 || words.is_empty() {
        words.push(format!("{:#x}", value & !known));
    }
    words.join("|")
}

fn queue_type(value: u64) -> String {
    let kinds = [
        (queue::QUEUE_TYPE_COMPUTE, "COMPUTE"),
        (queue::QUEUE_TYPE_SDMA, "SDMA"),
        (queue::QUEUE_TYPE_COMPUTE_AQL, "COMPUTE_AQL"),
        (queue::QUEUE_TYPE_SDMA_XGMI, "SDMA_XGMI"),
        (queue::QUEUE_TYPE_SDMA_BY_ENG_ID, "SDMA_BY_ENG_ID"),
    ];
    let known = kinds.iter().find(|(kind, _)| u64::from(*kind) == value);
    known.map_or_else(|| value.to_string(), |(_, name)| (*name).to_owned())
}
