// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Replacing a mapping of the client by another.
//!
//! The replacement is made and registered elsewhere, and mremap moves it over the client's. So at
//! its final place it is never unregistered: no change of it goes unseen and no access finds it
//! early. Nothing here touches the heap.

use super::descriptor::Mode;
use super::device_ram::Window;
use super::Mover;
use crate::sabotage;
use crate::sys;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, VramOffset, HUGE, PAGE};
use vkfd_sabotage::Switch;

/// A mapping that will replace a mapping of the client.
#[derive(Debug)]
pub(super) struct Staged {
    span: CpuSpan,
    /// It stays where it is for the next time, and a copy of it replaces the client's: of which one
    /// event less tells.
    stands: bool,
}

/// The protection of a standing mapping.
const STANDING: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl Mover {
    /// A mapping of VRAM, sealed.
    pub(super) fn stage_vram(&self, window: &Window, at: VramOffset, bytes: u64, prot: i32) -> Result<Staged, i32> {
        if let Some(sealed) = window.sealed.filter(|_| prot == STANDING) {
            let at = CpuVa(sealed.0 + at.0);
            return Ok(Staged { span: CpuSpan::between(at, CpuVa(at.0 + bytes)), stands: true });
        }
        let offset = i64::try_from(window.in_file(at)).map_err(|_| libc::EINVAL)?;
        self.stage(bytes, prot, libc::MAP_SHARED | libc::MAP_NORESERVE, window.fd, offset, Mode::Sealed)
    }

    /// All of VRAM, sealed, to be staged from as long as it is mapped.
    pub(super) fn stand_vram(&self, window: &Window) -> Option<CpuSpan> {
        let staged = self.stage_vram(window, VramOffset(0), window.bytes, STANDING).ok()?;
        let span = staged.span;
        if !self.own.add(span) {
            unstage(staged);
            return None;
        }
        Some(span)
    }

    /// An empty mapping: a thread that touches it waits.
    pub(super) fn stage_empty(&self, bytes: u64, prot: i32) -> Result<Staged, i32> {
        if prot == STANDING && bytes <= self.empty.bytes() {
            let at = self.empty.start();
            return Ok(Staged { span: CpuSpan::between(at, CpuVa(at.0 + bytes)), stands: true });
        }
        self.stage(bytes, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0, Mode::Missing)
    }

    fn stage(&self, bytes: u64, prot: i32, flags: i32, fd: i32, offset: i64, mode: Mode) -> Result<Staged, i32> {
        // SAFETY: a mapping at a place of the kernel's choice touches nothing that exists.
        let at = unsafe { sys::mmap(0, bytes, prot, flags, fd, offset) }.map_err(|e| errno(&e))?;
        let staged = Staged { span: CpuSpan::between(CpuVa(at), CpuVa(at + bytes)), stands: false };
        match self.descriptor.register(staged.span, mode) {
            Ok(()) => Ok(staged),
            Err(errno) => {
                unstage(staged);
                Err(errno)
            }
        }
    }

    /// Replaces `span` by `staged`, which is as long and as protected, unless something has changed
    /// there since ring position `since`.
    ///
    /// # Errors
    /// The errno (EBUSY for a change); nothing was replaced.
    pub(super) fn replace(&self, staged: Staged, span: CpuSpan, prot: i32, since: u64) -> Result<(), i32> {
        let done = {
            let _interposed_calls_wait = self.replacing();
            self.quiesce();
            // mprotect raises no event.
            let same = self.mappings.uniform(span, |_| true) == Some(prot);
            if !same || self.ring.pending(since, span).next().is_some() {
                Err(libc::EBUSY)
            } else {
                sabotage::wait_if(Switch::ReplaceSlowly);
                let stands = if staged.stands { libc::MREMAP_DONTUNMAP } else { 0 };
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | stands;
                // SAFETY: the client's mapping is emptied or about to be filled from its copy, and
                // no one but the client refers to it.
                let moved =
                    unsafe { sys::mremap(staged.span.start().0, span.bytes(), span.bytes(), flags, span.start().0) };
                moved.map(drop).map_err(|e| errno(&e))
            }
        };
        match done {
            Ok(()) => {
                self.quiesce();
                self.ring.strike_own(since, staged.span, span);
            }
            Err(_) => unstage(staged),
        }
        done
    }

    /// Unmaps `span`, the worker's mapping at a place without the client's, if `is_there` finds it
    /// still there.
    pub(super) fn take_back(&self, span: CpuSpan, is_there: impl FnOnce() -> bool) {
        let _interposed_calls_wait = self.replacing();
        self.quiesce();
        if is_there() {
            unstage(Staged { span, stands: false });
        }
    }

    /// Takes the pages of `part`, of one mapping, out to the stash at `to`, where none are, as many
    /// from its start as can be. How many bytes, and whether all of them were there.
    pub(super) fn take_part(&self, part: CpuSpan, to: CpuVa) -> (u64, bool) {
        let (mut at, mut full) = (0, true);
        while at < part.bytes() {
            let rest = CpuSpan::between(CpuVa(part.start().0 + at), part.end());
            let done = self
                .descriptor
                .move_pages(CpuSpan::between(CpuVa(to.0 + at), CpuVa(to.0 + part.bytes())), rest.start());
            at += done.bytes;
            match done.errno {
                None => {}
                // Nobody else brings pages to the stash: it was moved, but not counted.
                Some(libc::EEXIST) => at += PAGE,
                Some(libc::ENOENT) => {
                    full = false;
                    // Without one it is not the page that is missing but the mapping.
                    let Some(end) = self.mappings.hole_end(CpuVa(part.start().0 + at), part.end()) else { break };
                    at = end.0 - part.start().0;
                }
                Some(_) => break,
            }
        }
        (at, full)
    }

    /// Gives pages of the stash at `from` to `to`, where they are missing. How far it came, and
    /// what stopped it.
    pub(super) fn give(&self, to: CpuSpan, from: CpuVa) -> (u64, Option<i32>) {
        let mut at = 0;
        while at < to.bytes() {
            let rest = CpuSpan::between(CpuVa(to.start().0 + at), to.end());
            let source = CpuVa(from.0 + at);
            let mut done = self.descriptor.move_pages(rest, source);
            if done.bytes == 0 && matches!(done.errno, Some(libc::EINVAL | libc::EBUSY)) {
                // Not writable, or in use by the kernel at the moment: a copy, in which holes are
                // zeros.
                done = self.descriptor.copy(rest, source);
            }
            at += done.bytes;
            match done.errno {
                None => {}
                // There is something already.
                Some(libc::EEXIST) => at += PAGE,
                Some(libc::ENOENT) => {
                    // As above.
                    match self.mappings.hole_end(CpuVa(from.0 + at), CpuVa(from.0 + to.bytes())) {
                        Some(end) => at = end.0 - from.0,
                        None => return (at, done.errno),
                    }
                }
                errno => return (at, errno),
            }
        }
        (to.bytes(), None)
    }
}

/// Memory for [`Mover::stage_empty`], which nobody touches. Pages without access around it make it
/// a separate mapping. It is aligned like a huge page and shares its page table with no other
/// memory. Its copies have no page table either, and huge pages can come there.
pub(super) fn map_empty() -> std::io::Result<CpuSpan> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping at a place of the kernel's choice touches nothing that exists.
    let around = unsafe { sys::mmap(0, 3 * HUGE, libc::PROT_NONE, flags, -1, 0) }?;
    let at = (around / HUGE + 1) * HUGE;
    // SAFETY: in the mapping just made.
    unsafe { sys::mprotect(at, HUGE, STANDING) }?;
    Ok(CpuSpan::between(CpuVa(at), CpuVa(at + HUGE)))
}

fn unstage(staged: Staged) {
    let Staged { span, stands } = staged;
    if stands {
        return;
    }
    // SAFETY: the mapping was made here, or put in a place where the client has none; nobody refers
    // to it.
    unsafe { sys::unmap(span.start().0, span.bytes()) };
}
