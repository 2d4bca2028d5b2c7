// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What libdrm asks a render node: who drives it, and what the device is. Rendering, and DRM's own memory objects, are not offered: EOPNOTSUPP.
//!
//! The structures are those of `drm.h` and `amdgpu_drm.h`, written by their offsets: most of their fields say nothing about a GPU without
//! graphics and are 0.

use libc::c_void;
use vkfd_driver::addr::CpuVa;
use vkfd_driver::address_space::AddressSpace;
use vkfd_driver::topology::Model;
use vkfd_host::watch::ProcessMemory;
use vkfd_host::Machine;
use vkfd_uapi::ioctl::Command;

const TYPE: u8 = b'd';
const VERSION: u8 = 0x00;
const GET_CLIENT: u8 = 0x05;
const GET_CAP: u8 = 0x0c;
const AMDGPU_INFO: u8 = 0x45;

const INFO_ACCEL_WORKING: u32 = 0x00;
const INFO_FW_VERSION: u32 = 0x0e;
const INFO_VRAM_USAGE: u32 = 0x10;
const INFO_GTT_USAGE: u32 = 0x11;
const INFO_VRAM_GTT: u32 = 0x14;
const INFO_READ_MMR_REG: u32 = 0x15;
const INFO_DEV_INFO: u32 = 0x16;
const INFO_VIS_VRAM_USAGE: u32 = 0x17;
const INFO_MEMORY: u32 = 0x19;

const NAME: &[u8] = b"amdgpu\0";
const DATE: &[u8] = b"20150101\0";
const ABOUT: &[u8] = b"vkfd, a virtual AMD GPU\0";
/// The interface of Linux 6.1's amdgpu.
const INTERFACE: [u32; 3] = [3, 49, 0];

/// The caller's memory: what cannot be accessed is EFAULT.
struct Caller(ProcessMemory);

impl Caller {
    fn read<const N: usize>(&self, at: u64) -> Result<[u8; N], i32> {
        let mut bytes = [0; N];
        self.0.read(CpuVa(at), &mut bytes).map_err(|e| e.errno.0)?;
        Ok(bytes)
    }

    fn read_u32(&self, at: u64) -> Result<u32, i32> {
        self.read(at).map(u32::from_ne_bytes)
    }

    fn read_u64(&self, at: u64) -> Result<u64, i32> {
        self.read(at).map(u64::from_ne_bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), i32> {
        self.0.write(CpuVa(at), bytes).map_err(|e| e.errno.0)
    }

    /// A length and a pointer to as many bytes: as much of `text` as fits goes there, and its whole length is the answer.
    fn text(&self, length: u64, text: &[u8]) -> Result<(), i32> {
        let text = text.strip_suffix(&[0]).unwrap_or(text);
        let (room, to) = (self.read_u64(length)?, self.read_u64(length + 8)?);
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(text.len());
        if to != 0 && fits != 0 {
            self.write(to, &text[..fits])?;
        }
        self.write(length, &(text.len() as u64).to_ne_bytes())
    }
}

/// A structure by its offsets.
struct Fields(Vec<u8>);

impl Fields {
    fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }
}

/// An ioctl on the render node of GPU number `index`.
pub(crate) fn ioctl(machine: &Machine, index: u32, command: u32, argument: *mut c_void) -> Result<(), i32> {
    let command = Command(command);
    if command.kind() != TYPE {
        return Err(libc::ENOTTY);
    }
    let caller = Caller(ProcessMemory::new(machine.memory()));
    let at = argument.expose_provenance() as u64;
    match command.number() {
        VERSION => {
            for (offset, value) in (0..).step_by(4).zip(INTERFACE) {
                caller.write(at + offset, &value.to_ne_bytes())?;
            }
            [NAME, DATE, ABOUT]
                .into_iter()
                .zip((16..).step_by(16))
                .try_for_each(|(text, length)| caller.text(at + length, text))
        }
        // Index 0 is the caller: authenticated, as everyone is on a render node.
        GET_CLIENT if caller.read_u32(at)? == 0 => caller.write(at + 4, &1_u32.to_ne_bytes()),
        GET_CLIENT => Err(libc::EINVAL),
        // No capability is there.
        GET_CAP => caller.write(at + 8, &0_u64.to_ne_bytes()),
        AMDGPU_INFO => info(machine, index, &caller, at),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// AMDGPU_INFO: `{return_pointer: u64, return_size: u32, query: u32, ...}`.
fn info(machine: &Machine, index: u32, caller: &Caller, at: u64) -> Result<(), i32> {
    let (to, size, query) = (caller.read_u64(at)?, caller.read_u32(at + 8)?, caller.read_u32(at + 12)?);
    let answer = answer(machine, index, query)?;
    let fits = answer.len().min(size as usize);
    caller.write(to, &answer[..fits])
}

fn answer(machine: &Machine, index: u32, query: u32) -> Result<Vec<u8>, i32> {
    let device = machine.driver().devices().get(index as usize).ok_or(libc::ENODEV)?;
    let properties = device.properties();
    let model = Model::of(properties.gfx_target_version);
    let (vram, left) = (properties.vram_bytes, device.vram().available());
    let limit = machine.driver().limit();
    let used = limit.used();
    let system = used.saturating_add(limit.available());
    Ok(match query {
        INFO_ACCEL_WORKING => Fields::new(4).u32(0, 1),
        INFO_FW_VERSION => Fields::new(8).u32(0, model.firmware),
        // Registers of tiling and render backends: there is no graphics.
        INFO_READ_MMR_REG => Fields::new(4),
        INFO_DEV_INFO => device_information(model),
        INFO_VRAM_USAGE | INFO_VIS_VRAM_USAGE => Fields::new(8).u64(0, vram - left),
        INFO_GTT_USAGE => Fields::new(8).u64(0, used),
        INFO_VRAM_GTT => Fields::new(24).u64(0, vram).u64(8, vram).u64(16, system),
        // Three heaps (VRAM, the part that the CPU sees, GTT) of {size, usable, used, largest allocation}.
        INFO_MEMORY => {
            let heaps = [(vram, vram - left), (vram, vram - left), (system, used)];
            (0..).step_by(32).zip(heaps).fold(Fields::new(96), |all, (at, (total, used))| {
                all.u64(at, total).u64(at + 8, total).u64(at + 16, used).u64(at + 24, total)
            })
        }
        _ => return Err(libc::EINVAL),
    }
    .0)
}

/// `struct drm_amdgpu_info_device`.
fn device_information(model: &Model) -> Fields {
    Fields::new(384)
        .u32(0, model.device_id)
        .u32(8, model.external_revision)
        .u32(12, model.revision)
        .u32(16, model.family)
        .u32(20, 1)
        .u32(24, 1)
        .u32(28, 100_000)
        .u64(32, u64::from(model.clock_mhz) * 1000)
        .u64(40, u64::from(model.memory_mhz) * 1000)
        .u32(48, model.units)
        .u32(56, (1 << model.units) - 1)
        // Where DRM's own objects may be: below what the driver gives out to KFD's clients.
        .u64(144, 1 << 21)
        .u64(152, 1 << 47)
        .u32(160, 4096)
        .u32(164, 1 << 21)
        .u32(168, 4096)
        .u32(180, model.memory_bits)
        .u32(240, model.wave_size)
        .u32(248, model.units)
}
