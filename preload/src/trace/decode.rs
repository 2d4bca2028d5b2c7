// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The arguments of calls in words, from the layouts of the ABI.

use super::line::Value;
use crate::redirect::Device;
use libc::c_void;
use vkfd_uapi::call::Known;
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::pod::Field;
use vkfd_uapi::{batch, command as c, drm, memory, queue, vkfd};

/// The row of a call.
fn known(command: Command) -> Option<&'static Known> {
    match command.kind() {
        _ if command == batch::ALLOC_MEMORY_OF_GPU_BATCH => Some(&batch::KNOWN),
        drm::TYPE => drm::ALL.iter().find(|known| known.command.number() == command.number()),
        _ => Known::find(command, c::ALL).or_else(|| Known::find(command, vkfd::ALL)),
    }
}

/// A call's name.
pub(super) fn name(device: Device, command: u32) -> String {
    let command = Command(command);
    let (letter, prefix) = match device {
        Device::Kfd => (c::TYPE, "KFD"),
        Device::Render(_) | Device::Card(_) => (drm::TYPE, "DRM"),
    };
    let known = known(command).filter(|known| known.command.kind() == letter);
    known.map_or_else(|| format!("{prefix}_{:#x}", command.number()), |known| known.name.into())
}

/// The fields of a call's argument.
fn fields(command: Command) -> &'static [Field] {
    known(command).map_or(&[], |known| known.fields)
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
