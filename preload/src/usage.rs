// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files of sysfs that say how much of a GPU's memory is in use, and how much it works
//! ([`vkfd_driver::drm::usage::FILES`]). The private directory has them, and their text is made
//! when they are opened.
//!
//! Mechanism: the number is the answer of the GPU's render node. It is written to a memory file,
//! which the program gets instead of the private one. A program that has opened no device has a
//! machine made for it here: on one that several programs share, a monitor sees the others' memory.
//!
//! Limits: a file that is opened relative to its directory is the private one, which is empty
//! unless its number never changes.

use crate::redirect::gpu_of;
use crate::{machine, own_stack};
use libc::c_int;
use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use vkfd_driver::drm::usage::{Fact, FILES};
use vkfd_gpu::raw::memory_file;
use vkfd_host::sabotage;
use vkfd_sabotage::Switch;
use vkfd_uapi::drm::{Info, INFO};
use vkfd_uapi::pod::Pod;

/// A file, and the GPU that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Usage {
    gpu: u32,
    fact: Fact,
}

/// `AMDGPU_INFO_MEMORY`, and the words of its answer: three heaps of size, usable, used, largest.
const MEMORY: u32 = 0x19;
const WORDS: usize = 12;
/// `AMDGPU_INFO_SENSOR`, and the one of the share of time in which the GPU works.
const SENSOR: u32 = 0x1d;
const GPU_LOAD: u32 = 4;

/// The file that a tidy path names, if it is one of these.
pub(crate) fn of(path: &[u8]) -> Option<Usage> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    let (directory, name) = (&path[..slash], &path[slash + 1..]);
    let (_, fact) = FILES.iter().find(|(file, _)| file.to_bytes() == name)?;
    Some(Usage { gpu: gpu_of(directory)?, fact: *fact })
}

impl Usage {
    /// A descriptor of the text. None for a caller that wants to write, and where no machine
    /// answers: the private file is opened then.
    pub(crate) fn open(self, flags: c_int) -> Option<c_int> {
        let reads = flags & libc::O_ACCMODE == libc::O_RDONLY && flags & (libc::O_DIRECTORY | libc::O_PATH) == 0;
        if !reads || sabotage::has(Switch::UsageAtStart) {
            return None;
        }
        let number = own_stack::if_needed(|| self.ask())?;
        write(number, flags & libc::O_CLOEXEC != 0).ok().map(IntoRawFd::into_raw_fd)
    }

    fn ask(self) -> Option<u64> {
        let render = machine::get().ok()?.open_render(usize::try_from(self.gpu).ok()?).ok()?;
        let mut words = [0_u64; WORDS];
        let mut info = Info::zeroed();
        info.return_ptr = words.as_mut_ptr().expose_provenance() as u64;
        info.return_size = u32::try_from(size_of_val(&words)).ok()?;
        info.query = MEMORY;
        if self.fact == Fact::Busy {
            (info.query, info.arguments[0], info.return_size) = (SENSOR, GPU_LOAD, 4);
        }
        // SAFETY: the structure and the room for the answer are this function's own.
        let asked = unsafe { render.ioctl(None, INFO.0, (&raw mut info).cast()) };
        asked.ok()?;
        let [vram, _, vram_used, _, _, _, _, _, gtt, _, gtt_used, _] = words;
        Some(match self.fact {
            Fact::Vram => vram,
            Fact::VramUsed => vram_used,
            Fact::Gtt => gtt,
            Fact::GttUsed => gtt_used,
            // Of the first word, the lower half.
            Fact::Busy => vram,
        })
    }
}

/// A memory file with the number as sysfs writes it.
fn write(number: u64, close: bool) -> io::Result<File> {
    let text = format!("{number}\n");
    let make = if close { memory_file::sealed } else { memory_file::sealed_inherited };
    let file = make(c"sysfs", text.len() as u64)?;
    file.write_all_at(text.as_bytes(), 0)?;
    Ok(file)
}
