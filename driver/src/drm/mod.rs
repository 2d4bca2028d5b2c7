// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An open render node: libdrm's questions about driver and device, and DRM's memory objects
//! (`gem`, `object`). Rendering is not offered: EOPNOTSUPP.
//!
//! The structures are those of `drm.h` and `amdgpu_drm.h`, written by their offsets: most of their
//! fields say nothing about a GPU without graphics and are 0.

pub mod binding;
mod fdinfo;
mod gem;
pub mod processes;
pub mod usage;

use self::gem::Objects;
use self::usage::Usage;
use crate::base::addr::CpuVa;
use crate::base::errno::{Errno, Result};
use crate::calls::mmap::Mapped;
use crate::machine::kfd::Kfd;
use crate::machine::listing::Client;
use crate::os::{self, Arc};
use crate::process::Process;
use crate::topology::Model;
use vkfd_uapi::drm::{Call, INFO_FDINFO, INFO_PROCESSES, TYPE};
use vkfd_uapi::ioctl::Command;

/// `DRM_CAP_PRIME`: buffers become files, and files buffers.
const CAP_PRIME: u64 = 5;

const INFO_ACCEL_WORKING: u32 = 0x00;
const INFO_HW_IP_INFO: u32 = 0x02;
const INFO_HW_IP_COUNT: u32 = 0x03;
const INFO_FW_VERSION: u32 = 0x0e;
const INFO_VRAM_USAGE: u32 = 0x10;
const INFO_GTT_USAGE: u32 = 0x11;
const INFO_VRAM_GTT: u32 = 0x14;
const INFO_READ_MMR_REG: u32 = 0x15;
const INFO_DEV_INFO: u32 = 0x16;
const INFO_VIS_VRAM_USAGE: u32 = 0x17;
const INFO_MEMORY: u32 = 0x19;
const INFO_SENSOR: u32 = 0x1d;

/// The sensor of the share of time in which the GPU works, in percent.
const SENSOR_GPU_LOAD: u32 = 0x4;
/// The register of the blocks that work, by its number among words, and its bit for any of them.
const GRBM_STATUS: u32 = 0x2004;
const GUI_ACTIVE: u32 = 1 << 31;

const NAME: &[u8] = b"amdgpu";
const DATE: &[u8] = b"20150101";
const ABOUT: &[u8] = b"vkfd, a virtual AMD GPU";
/// The interface of Linux 6.1's amdgpu.
const INTERFACE: [u32; 3] = [3, 49, 0];

/// The longest structure: `struct drm_amdgpu_info_device`.
const MOST: usize = 384;

/// The caller's memory, with EFAULT for addresses that cannot be accessed.
pub trait Caller {
    /// Reads what is at `from`.
    ///
    /// # Errors
    /// EFAULT.
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result;

    /// Writes to `to`.
    ///
    /// # Errors
    /// EFAULT.
    fn write(&self, to: CpuVa, from: &[u8]) -> Result;

    /// Whether it may ask for the lines of other processes' render nodes. A kernel has files of
    /// them, and rights for those.
    fn sees_others(&self) -> bool {
        true
    }
}

/// A structure of the caller.
struct Argument<'a> {
    caller: &'a dyn Caller,
    at: u64,
}

impl Argument<'_> {
    fn get<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.caller.read(CpuVa(self.at.wrapping_add(offset)), &mut bytes)?;
        Ok(bytes)
    }

    fn u32(&self, offset: u64) -> Result<u32> {
        self.get(offset).map(u32::from_ne_bytes)
    }

    fn u64(&self, offset: u64) -> Result<u64> {
        self.get(offset).map(u64::from_ne_bytes)
    }

    fn put_u32(&self, offset: u64, value: u32) -> Result {
        self.put(offset, &value.to_ne_bytes())
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> Result {
        self.caller.write(CpuVa(self.at.wrapping_add(offset)), bytes)
    }

    /// A length and a pointer to as many bytes: as much of `text` as fits goes there, and its whole
    /// length is the answer.
    fn text(&self, length: u64, text: &[u8]) -> Result {
        let (room, to) = (self.u64(length)?, self.u64(length.saturating_add(8))?);
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(text.len());
        if to != 0 && fits != 0 {
            self.caller.write(CpuVa(to), text.get(..fits).unwrap_or_default())?;
        }
        self.put(length, &(text.len() as u64).to_ne_bytes())
    }
}

/// A structure by its offsets, so many bytes long.
struct Fields([u8; MOST], usize);

impl Fields {
    fn new(bytes: usize) -> Self {
        Self([0; MOST], bytes)
    }

    fn put(mut self, at: usize, value: &[u8]) -> Self {
        for (to, from) in self.0.iter_mut().skip(at).zip(value) {
            *to = *from;
        }
        self
    }

    fn u32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    fn u64(self, at: usize, value: u64) -> Self {
        self.put(at, &value.to_ne_bytes())
    }
}

/// The file.
pub struct RenderFile {
    kfd: Arc<Kfd>,
    index: usize,
    objects: Objects,
    client: Client,
}

impl Drop for RenderFile {
    fn drop(&mut self) {
        self.kfd.listing().close(self.client);
    }
}

impl RenderFile {
    /// Of GPU number `index`.
    ///
    /// # Errors
    /// ENODEV where there is none, ENOMEM.
    pub fn new(kfd: &Arc<Kfd>, index: usize) -> Result<Self> {
        Self::of(kfd, index, os::process().0)
    }

    /// The same, opened by the process with this PID; 0 for one that is none of this system.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn of(kfd: &Arc<Kfd>, index: usize, pid: u32) -> Result<Self> {
        let device = kfd.devices().get(index).ok_or(Errno::ENODEV)?;
        let (kfd, objects) = (kfd.clone(), Objects::new(kfd, device)?);
        let client = kfd.listing().open(pid, index)?;
        Ok(Self { kfd, index, objects, client })
    }

    /// What `bytes` at `offset` show, if they are an object's; otherwise they may be the process's
    /// that the file is bound to.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn mmap(&self, offset: u64, bytes: u64) -> Option<Result<Mapped>> {
        self.objects.mmap(offset, bytes)
    }

    /// An ioctl. `bound` is the process that the file was bound to.
    ///
    /// # Errors
    /// ENOTTY for a command that is not DRM's, EOPNOTSUPP for one that is not offered, EINVAL for
    /// an unknown question, ENOENT for an unknown object, EFAULT.
    pub fn ioctl(&self, caller: &dyn Caller, bound: Option<&Arc<Process>>, command: u32, argument: CpuVa) -> Result {
        let command = Command(command);
        if command.kind() != TYPE {
            return Err(Errno::ENOTTY.into());
        }
        let argument = Argument { caller, at: argument.0 };
        let Some(call) = Call::of_number(command.number()) else { return Err(Errno::EOPNOTSUPP.into()) };
        match call {
            Call::VERSION => {
                for (offset, value) in (0..).step_by(4).zip(INTERFACE) {
                    argument.put(offset, &value.to_ne_bytes())?;
                }
                let mut texts = [NAME, DATE, ABOUT].into_iter().zip((16..).step_by(16));
                texts.try_for_each(|(text, length)| argument.text(length, text))
            }
            // Index 0 is the caller: authenticated, as everyone is on a render node.
            Call::GET_CLIENT if argument.u32(0)? == 0 => argument.put(4, &1_u32.to_ne_bytes()),
            Call::GET_CLIENT => Err(Errno::EINVAL.into()),
            Call::GET_CAP => {
                let value = if argument.u64(0)? == CAP_PRIME { 3_u64 } else { 0 };
                argument.put(8, &value.to_ne_bytes())
            }
            // `{return_pointer: u64, return_size: u32, query: u32, ...}`
            Call::INFO => {
                let (to, size, query) = (argument.u64(0)?, argument.u32(8)?, argument.u32(12)?);
                match query {
                    INFO_PROCESSES => return processes::answer(&self.kfd, &argument, to, size),
                    INFO_FDINFO => return self.answer_fdinfo(caller, to, size, argument.u32(16)?, bound),
                    _ => {}
                }
                let Fields(bytes, length) = match query {
                    INFO_HW_IP_COUNT | INFO_HW_IP_INFO => engine(&self.kfd, self.index, query, argument.u32(16)?)?,
                    INFO_SENSOR => sensor(&self.kfd, self.index, argument.u32(16)?)?,
                    INFO_READ_MMR_REG => register(&self.kfd, self.index, argument.u32(16)?)?,
                    _ => answer(&self.kfd, self.index, query)?,
                };
                let fits = length.min(usize::try_from(size).unwrap_or(length));
                caller.write(CpuVa(to), bytes.get(..fits).unwrap_or_default())
            }
            Call::GEM_CLOSE => self.objects.close(argument.u32(0)?),
            Call::PRIME_HANDLE_TO_FD => self.objects.export(&argument),
            Call::PRIME_FD_TO_HANDLE => self.objects.import(&argument),
            Call::GEM_CREATE => self.objects.create(&argument),
            Call::GEM_MMAP => self.objects.offset(&argument),
            Call::GEM_METADATA => self.objects.metadata(&argument),
            Call::GEM_WAIT_IDLE => self.objects.wait_idle(&argument),
            Call::GEM_VA => self.objects.address(&argument, bound),
            Call::GEM_OP => self.objects.operation(&argument),
        }
    }
}

/// An engine, by its kind. Graphics (0), compute (1) and copies (2) exist once each, as a block of
/// the GPU without a ring for render nodes. Video (3 to 8) does not exist.
fn engine(kfd: &Kfd, index: usize, query: u32, kind: u32) -> Result<Fields> {
    let device = kfd.devices().get(index).ok_or(Errno::ENODEV)?;
    let there = match kind {
        0..=2 => true,
        3..=8 => false,
        _ => return Err(Errno::EINVAL.into()),
    };
    let version = device.properties().gfx_target_version;
    Ok(match query {
        INFO_HW_IP_COUNT => Fields::new(4).u32(0, u32::from(there)),
        // `{major, minor, capabilities: u64, two alignments, rings, discovery}`
        _ if there => Fields::new(32).u32(0, version / 10_000).u32(4, version / 100 % 100).u32(16, 32).u32(20, 32),
        _ => Fields::new(32),
    })
}

/// A sensor. Those of silicon do not exist.
fn sensor(kfd: &Kfd, index: usize, which: u32) -> Result<Fields> {
    let device = kfd.devices().get(index).ok_or(Errno::ENODEV)?;
    match which {
        SENSOR_GPU_LOAD => Ok(Fields::new(4).u32(0, device.busy_percent())),
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}

/// A register. Those of tiling and render backends are 0: there is no graphics.
fn register(kfd: &Kfd, index: usize, which: u32) -> Result<Fields> {
    let device = kfd.devices().get(index).ok_or(Errno::ENODEV)?;
    let works = which == GRBM_STATUS && device.gpu().work().now;
    Ok(Fields::new(4).u32(0, if works { GUI_ACTIVE } else { 0 }))
}

fn answer(kfd: &Kfd, index: usize, query: u32) -> Result<Fields> {
    let device = kfd.devices().get(index).ok_or(Errno::ENODEV)?;
    let model = &device.properties().model;
    Ok(match query {
        INFO_ACCEL_WORKING => Fields::new(4).u32(0, 1),
        INFO_FW_VERSION => Fields::new(8).u32(0, model.firmware),
        INFO_DEV_INFO => device_information(model),
        INFO_VRAM_USAGE | INFO_VIS_VRAM_USAGE | INFO_GTT_USAGE | INFO_VRAM_GTT | INFO_MEMORY => {
            memory(query, Usage::of(kfd, index)?)
        }
        _ => return Err(Errno::EINVAL.into()),
    })
}

/// The answer to a question about memory.
fn memory(query: u32, usage: Usage) -> Fields {
    let Usage { vram, vram_used, gtt, gtt_used } = usage;
    match query {
        INFO_GTT_USAGE => Fields::new(8).u64(0, gtt_used),
        INFO_VRAM_GTT => Fields::new(24).u64(0, vram).u64(8, vram).u64(16, gtt),
        // Three heaps (VRAM, the part that the CPU sees, GTT) of {size, usable, used, largest
        // allocation}.
        INFO_MEMORY => {
            let heaps = [(vram, vram_used), (vram, vram_used), (gtt, gtt_used)];
            let words = heaps.iter().flat_map(|(total, used)| [total, total, used, total]);
            (0..).step_by(8).zip(words).fold(Fields::new(96), |all, (at, word)| all.u64(at, *word))
        }
        _ => Fields::new(8).u64(0, vram_used),
    }
}

/// `struct drm_amdgpu_info_device`.
fn device_information(model: &Model) -> Fields {
    // A word of `cu_bitmap` for each array; engines from the fourth on follow the arrays of the
    // first.
    let arrays = (0..model.engines).flat_map(|engine| (0..model.arrays).map(move |array| (engine, array)));
    let words = arrays.map(|(engine, array)| {
        let column = array.saturating_add((engine / 4).saturating_mul(model.arrays));
        let at = (engine % 4).saturating_mul(16).saturating_add(column.saturating_mul(4)).saturating_add(56);
        (at, u32::MAX.checked_shr(u32::BITS.saturating_sub(model.units_of(engine, array))).unwrap_or(0))
    });
    words
        .fold(Fields::new(MOST), |fields, (at, word)| fields.u32(usize::try_from(at).unwrap_or(MOST), word))
        .u32(0, model.device_id)
        .u32(8, model.external_revision)
        .u32(12, model.revision)
        .u32(16, model.family)
        .u32(20, model.engines)
        .u32(24, model.arrays)
        .u32(28, 100_000)
        .u64(32, u64::from(model.clock_mhz) * 1000)
        .u64(40, u64::from(model.memory_mhz) * 1000)
        .u32(48, model.units)
        // Where DRM's own objects may be: below what the driver gives out to KFD's clients.
        .u64(144, 1 << 21)
        .u64(152, 1 << 47)
        .u32(160, 4096)
        .u32(164, 1 << 21)
        .u32(168, 4096)
        .u32(180, model.memory_bits)
        .u32(240, model.wave_size)
        .u32(248, model.array_units())
}
