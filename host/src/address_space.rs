// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The driver's view of this process ([`ProcessMemory`]), and its watches.

use crate::device::HostGpu;
use crate::migrate::{self, Mover};
use crate::mm::told::Told;
use crate::mm::Mm;
use crate::sys;
use std::any::Any;
use std::sync::Arc;
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, VramOffset, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Invalidate, Mapping, Page, Seq, Watch};
use vkfd_driver::seams::device_memory::{DeviceMemory, Migration};

/// The host's [`Watch`].
pub struct UserWatch {
    mm: &'static Mm,
    told: Told,
}

impl UserWatch {
    pub(crate) fn told(&self) -> &Told {
        &self.told
    }
}

impl Watch for UserWatch {
    fn span(&self) -> CpuSpan {
        self.told.span()
    }

    fn read_begin(&self) -> Seq {
        self.mm.wait_landed(self.told.span());
        Seq(self.told.begun())
    }

    fn read_retry(&self, seq: Seq) -> bool {
        self.told.begun() != seq.0
    }

    fn listen(&self, span: CpuSpan) -> Result {
        Ok(self.mm.listen(&self.told, span)?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for UserWatch {
    fn drop(&mut self) {
        // In a forked child the locks may be held by threads that are not there.
        if self.mm.is_current() {
            self.mm.remove_watch(&self.told);
        }
    }
}

/// This process's memory, as the driver sees it.
#[derive(Clone)]
pub struct ProcessMemory {
    mm: &'static Mm,
    /// Whose memory its pages can move to.
    gpus: Arc<[Arc<HostGpu>]>,
}

impl ProcessMemory {
    /// The view of a process without GPUs.
    pub fn new(mm: &'static Mm) -> Self {
        Self { mm, gpus: Arc::default() }
    }

    /// The view of a process whose pages can move to these GPUs' memory.
    pub fn with_gpus(mm: &'static Mm, gpus: &[Arc<HostGpu>]) -> Self {
        Self { mm, gpus: gpus.into() }
    }
}

/// Whether `bytes` from `at` lie in the user's half.
fn is_user(at: CpuVa, bytes: usize) -> bool {
    at.checked_add(bytes as u64).is_some_and(|end| end.0 <= 1 << 47)
}

impl AddressSpace for ProcessMemory {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        if !is_user(from, to.len()) {
            return Err(Errno::EFAULT.into());
        }
        let source = std::ptr::with_exposed_provenance(index(from.0));
        // SAFETY: `to` is ours exclusively; the source may be anything, a fault is an error. A
        // caller that passes a pointer into memory it has references to has them shared with the
        // driver, as with any system call.
        unsafe { vkfd_gpu::raw::copy(to.as_mut_ptr(), source, to.len()) }.map_err(|_| Errno::EFAULT.into())
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        if !is_user(to, from.len()) {
            return Err(Errno::EFAULT.into());
        }
        let target = std::ptr::with_exposed_provenance_mut(index(to.0));
        // SAFETY: as in `read`; by the ABI the driver may write to the caller's buffer until the
        // call returns.
        unsafe { vkfd_gpu::raw::copy(target, from.as_ptr(), from.len()) }.map_err(|_| Errno::EFAULT.into())
    }

    fn watch(&self, span: CpuSpan, client: Arc<dyn Invalidate>) -> Result<Arc<dyn Watch>> {
        if !span.is_whole_pages() {
            return Err(Errno::EINVAL.into());
        }
        if !self.mm.is_current() {
            return Err(Errno::ESRCH.into());
        }
        let told = Told::new(span, client)?;
        self.mm.add_watch(&told)?;
        Ok(Arc::new(UserWatch { mm: self.mm, told }))
    }

    fn fault(&self, watch: &dyn Watch, seq: Seq, spans: &[CpuSpan], access: Access, pages: &mut [Page]) -> Faulted {
        let fail = |errno| Faulted { spans: 0, error: Some(errno) };
        let Some(watch) = watch.as_any().downcast_ref::<UserWatch>() else {
            return fail(Errno::EINVAL);
        };
        if !self.mm.is_current() {
            return fail(Errno::ESRCH);
        }
        let wanted: u64 = spans.iter().map(|s| s.pages()).sum();
        if wanted != pages.len() as u64 || !spans.iter().all(|s| s.is_whole_pages()) {
            return fail(Errno::EINVAL);
        }
        // The driver notices an invalidation since `seq` by its generations. They show which ranges
        // it hit, and EBUSY would discard all ranges.
        let _ = seq;
        self.mm.fault(watch.told(), spans, access, pages)
    }

    fn migration(&self) -> Migration {
        let can = !self.gpus.is_empty() && Mover::started(self.mm).is_ok();
        Migration { coherent: can, private: can }
    }

    fn migrate_to_device(
        &self,
        span: CpuSpan,
        device: &Arc<dyn DeviceMemory>,
        places: &mut [Option<VramOffset>],
    ) -> Result<u64> {
        if !self.mm.is_current() {
            return Err(Errno::ESRCH.into());
        }
        let mover = Mover::started(self.mm).map_err(|_| Errno::EOPNOTSUPP)?;
        if !span.is_whole_pages() || span.pages() != places.len() as u64 {
            return Err(Errno::EINVAL.into());
        }
        let ram = migrate::device_ram(&self.gpus, device).map_err(|_| Errno::ENOMEM)?.ok_or(Errno::ENODEV)?;
        if !places.iter().flatten().all(|place| ram.has(*place, PAGE)) {
            return Err(Errno::EINVAL.into());
        }
        Ok(mover.to_device(span, ram, places)?)
    }

    fn migrate_to_system(&self, span: CpuSpan) -> Result<u64> {
        if !self.mm.is_current() {
            return Err(Errno::ESRCH.into());
        }
        Ok(Mover::of(self.mm).map_or(0, |mover| mover.to_system(span)))
    }

    fn evict_places(&self, device: &dyn DeviceMemory, places: &[VramOffset]) -> Result<u64> {
        if !self.mm.is_current() {
            return Err(Errno::ESRCH.into());
        }
        Ok(Mover::of(self.mm).map_or(0, |mover| mover.evict(device, places)))
    }

    fn settle(&self) {
        self.mm.settle();
        if let Some(mover) = Mover::of(self.mm) {
            mover.settle_released();
        }
    }

    fn mapped(&self, span: CpuSpan) -> bool {
        sys::is_mapped(span.start().0, span.bytes())
    }

    fn out_of_reach(&self, span: CpuSpan, access: Access) -> u64 {
        self.mm.out_of_reach(span, access)
    }

    fn mapping(&self, at: CpuVa, span: CpuSpan) -> Option<Mapping> {
        match Mover::of(self.mm) {
            Some(mover) => mover.mapping(at, span),
            None => Mapping::without_holes(at, span, |page| self.mapped(page)),
        }
    }

    fn is_current(&self) -> bool {
        self.mm.is_current()
    }
}
