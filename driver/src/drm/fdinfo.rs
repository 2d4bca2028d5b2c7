// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The lines that `/proc/PID/fdinfo` has of an open render node, as Linux's `drm_file.c` and
//! `amdgpu_fdinfo.c` write them: the client's number, its memory, and its time on the GPU.
//!
//! Memory is that of the file's objects, and of the process that ACQUIRE_VM has bound the file to.
//! Of another process, a file is the first that it has open, and the process the one with its PID.
//!
//! Time is that of the process's kernels (`drm-engine-compute`) and of its SDMA queues' packets
//! (`drm-engine-dma`). AMD's driver counts only work that was submitted through render nodes, which
//! do not take any here.
//!
//! Limits: there are no lines about shared and purgeable memory: nothing is purgeable, and it is
//! not known how many have an object. GDS, GWS, OA, doorbells and registers have no lines.

use super::{Caller, RenderFile};
use crate::base::addr::CpuVa;
use crate::base::errno::{Errno, Result};
use crate::machine::listing::{Client, OnGpu};
use crate::os::Arc;
use crate::process::Process;
use crate::topology::location;
use core::fmt::{self, Write};

/// A number of bytes as DRM writes it: in the largest unit of which it is a multiple.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "0"),
            bytes if bytes % (1 << 20) == 0 => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes % 1024 == 0 => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes}"),
        }
    }
}

/// The caller's room for a text; what has none is counted alone.
struct Text<'a> {
    caller: &'a dyn Caller,
    at: u64,
    left: usize,
    length: u32,
    failed: Result,
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = self.left.min(text.len());
        let to = CpuVa(self.at.wrapping_add(self.length.into()));
        if fits != 0 {
            self.failed = self.caller.write(to, text.as_bytes().get(..fits).unwrap_or_default());
        }
        self.left = self.left.saturating_sub(fits);
        self.length = self.length.saturating_add(u32::try_from(text.len()).unwrap_or(0));
        self.failed.map_err(|_| fmt::Error)
    }
}

impl RenderFile {
    /// Writes the file's lines. `bound` is the process that it was bound to.
    ///
    /// # Errors
    /// The writer's.
    pub fn fdinfo(&self, bound: Option<&Arc<Process>>, to: &mut dyn Write) -> fmt::Result {
        let facts = bound.map_or(OnGpu::default(), |process| process.on_gpu(self.index));
        lines(self.client, self.objects.held(), &facts, to)
    }

    /// The answer to [`INFO_FDINFO`](vkfd_uapi::drm::INFO_FDINFO). ENOENT for a process that has no
    /// node of this GPU open, and for one that the caller may not ask for.
    pub(super) fn answer_fdinfo(
        &self,
        caller: &dyn Caller,
        to: u64,
        size: u32,
        pid: u32,
        bound: Option<&Arc<Process>>,
    ) -> Result {
        let left = (size as usize).checked_sub(4).ok_or(Errno::EINVAL)?;
        let mut text = Text { caller, at: to.wrapping_add(4), left, length: 0, failed: Ok(()) };
        let listing = self.kfd.listing();
        let written = if pid == 0 {
            self.fdinfo(bound, &mut text)
        } else if !caller.sees_others() {
            return Err(Errno::ENOENT.into());
        } else {
            let client = listing.client(pid, self.index)?;
            let facts = listing.of_pid(pid, 0).map_or(OnGpu::default(), |process| process.on_gpu(self.index));
            // Another process's objects are not looked at: on a machine that programs share there
            // are none.
            lines(client, [0; 3], &facts, &mut text)
        };
        text.failed?;
        written.map_err(|_| Errno::EINVAL)?;
        caller.write(CpuVa(to), &text.length.to_ne_bytes())
    }
}

fn lines(client: Client, held: [u64; 3], facts: &OnGpu, to: &mut dyn Write) -> fmt::Result {
    let [held_vram, held_gtt, elsewhere] = held;
    let sum = |parts: &[u64]| parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
    let vram = sum(&[held_vram, facts.vram, facts.imported_vram, facts.tables]);
    let gtt = sum(&[held_gtt, facts.gtt]);
    let at = location(u32::try_from(client.gpu).unwrap_or(0));
    writeln!(to, "drm-driver:\tamdgpu")?;
    writeln!(to, "drm-client-id:\t{}", client.id)?;
    writeln!(to, "drm-pdev:\t0000:{:02x}:{:02x}.{}", at >> 8, at >> 3 & 31, at & 7)?;
    // The number of the file's address space.
    writeln!(to, "pasid:\t{}", client.id)?;
    for (region, bytes) in [("cpu", facts.cpu), ("gtt", gtt), ("vram", vram)] {
        // Objects that found VRAM full are in system memory; all others have their place.
        let moved = if region == "vram" { elsewhere } else { 0 };
        writeln!(to, "drm-total-{region}:\t{}", Size(bytes.saturating_add(moved)))?;
        writeln!(to, "drm-resident-{region}:\t{}", Size(bytes))?;
    }
    writeln!(to, "drm-memory-vram:\t{} KiB", vram / 1024)?;
    writeln!(to, "drm-memory-gtt: \t{} KiB", gtt / 1024)?;
    writeln!(to, "drm-memory-cpu: \t{} KiB", facts.cpu / 1024)?;
    writeln!(to, "amd-evicted-vram:\t{} KiB", elsewhere / 1024)?;
    writeln!(to, "amd-requested-vram:\t{} KiB", vram.saturating_add(elsewhere) / 1024)?;
    writeln!(to, "amd-requested-gtt:\t{} KiB", gtt.saturating_sub(elsewhere) / 1024)?;
    let Some(work) = facts.work else { return Ok(()) };
    // As AMD's driver does, an engine that was not used has no line.
    for (engine, nanoseconds) in [("compute", work.kernels), ("dma", work.copies)] {
        if nanoseconds != 0 {
            writeln!(to, "drm-engine-{engine}:\t{nanoseconds} ns")?;
        }
    }
    Ok(())
}
