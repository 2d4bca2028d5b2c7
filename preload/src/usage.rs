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
use crate::{device, machine, made_file, own_stack};
use libc::c_int;
use vkfd_driver::drm::usage::{Fact, FILES};
use vkfd_host::sabotage;
use vkfd_sabotage::Switch;

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
        if !made_file::is_read(flags) || sabotage::has(Switch::UsageAtStart) {
            return None;
        }
        let number = own_stack::if_needed(|| self.ask())?;
        made_file::open(format!("{number}\n").as_bytes(), flags)
    }

    fn ask(self) -> Option<u64> {
        let (machine, gpu) = (machine::get().ok()?, usize::try_from(self.gpu).ok()?);
        let (query, sensor, bytes) =
            if self.fact == Fact::Busy { (SENSOR, GPU_LOAD, 4) } else { (MEMORY, 0, WORDS * 8) };
        let mut answer = device::ask_machine(machine, gpu, query, [sensor, 0, 0, 0], bytes)?;
        answer.resize(WORDS * 8, 0);
        let mut words = [0_u64; WORDS];
        for (word, bytes) in words.iter_mut().zip(answer.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
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
