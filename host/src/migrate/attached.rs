// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The mover of a process's memory, which starts with the first page that moves, and the memory's
//! requests to it.

use super::Mover;
use crate::mm::elsewhere::{EachPart, Elsewhere};
use crate::mm::Mm;
use crate::source::Source;
use std::any::Any;
use vkfd_driver::base::addr::CpuSpan;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::Access;

impl Mover {
    /// What moves a memory's pages to GPUs, if anything has moved yet.
    pub(crate) fn of(mm: &Mm) -> Option<&'static Self> {
        mm.elsewhere()?.as_any().downcast_ref()
    }

    /// What moves a memory's pages to GPUs, started if need be.
    ///
    /// # Errors
    /// Why nothing can be moved here, for people.
    pub(crate) fn started(mm: &'static Mm) -> Result<&'static Self, &'static str> {
        let started = mm.elsewhere_or(|| match mm.source() {
            Source::Userfaultfd => Self::start(mm).map(|mover| mover as _).map_err(|e| e.to_string()),
            _ => Err("userfaultfd is not available: have the kernel built with it (CONFIG_USERFAULTFD), and the \
                      sandbox, if there is one, allow it (in a container, its seccomp profile)"
                .to_owned()),
        });
        started.and_then(|mover| mover.as_any().downcast_ref().ok_or("another mover has this memory"))
    }
}

/// Why a memory's pages cannot be moved to GPUs, for people; empty when they can.
pub fn why_not_moved(mm: &'static Mm) -> &'static str {
    Mover::started(mm).err().unwrap_or("")
}

impl Elsewhere for Mover {
    fn settle(&self) {
        self.settle();
    }

    fn settle_told(&self) {
        self.settle_told();
    }

    fn resident(&self) -> (u64, usize) {
        self.resident()
    }

    fn epoch(&self) -> u64 {
        self.epoch()
    }

    fn holds(&self, span: CpuSpan) -> bool {
        self.holds(span)
    }

    fn each_part(&self, span: CpuSpan, f: &mut EachPart<'_>) -> Result<(), Errno> {
        self.each_part(span, f)
    }

    fn each_unmoved(&self, span: CpuSpan, f: &mut dyn FnMut(CpuSpan)) {
        self.each_unmoved(span, f);
    }

    fn each_hole(&self, span: CpuSpan, f: &mut dyn FnMut(CpuSpan)) {
        self.mappings.each_hole(span, f);
    }

    fn refusal(&self, span: CpuSpan, access: Access) -> Option<Errno> {
        self.refusal(span, access)
    }

    fn expect_discard(&self, span: CpuSpan) {
        self.late.expect(span);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
