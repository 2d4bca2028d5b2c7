// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The memory as the driver has it. Each call that can fail in a host passes a failpoint.

use crate::lock;
use crate::memory::{pages, SimMm};
use crate::patience::turn;
use crate::table::CpuPage;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, FabricAddr, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::os;
use vkfd_driver::sabotage::FailPoint;
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Invalidate, Mapping, Page, Seq, Watch};
use vkfd_driver::seams::device_memory::{DeviceMemory, Kind, Migration};

impl SimMm {
    fn fault_page(&self, page: u64, access: Access) -> std::result::Result<Page, Errno> {
        if let Some(errno) = self.failure(page) {
            return Err(errno);
        }
        self.allows(page, access)?;
        let writable = access == Access::Write;
        let table = lock(&self.table);
        let found = table.pages.get(&page).ok_or(Errno::EFAULT)?;
        Ok(match found.device {
            Some(_) => Page::device(FabricAddr(found.frame * PAGE), writable),
            None => Page::new(PhysAddr(found.frame * PAGE), writable),
        })
    }
}

impl AddressSpace for SimMm {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        self.caller.read(from, to)
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        self.caller.write(to, from)
    }

    fn watch(&self, span: CpuSpan, client: Arc<dyn Invalidate>) -> Result<Arc<dyn Watch>> {
        os::failpoint(FailPoint::Watch)?;
        self.hooks.before_watch.run(self);
        Ok(self.notifiers.watch(span, client))
    }

    fn fault(&self, watch: &dyn Watch, _: Seq, spans: &[CpuSpan], access: Access, out: &mut [Page]) -> Faulted {
        self.fault_calls.fetch_add(1, Ordering::SeqCst);
        let mut done = Faulted { spans: 0, error: None };
        let mut filled = 0;
        'spans: for span in spans {
            let inside = watch.span().start() <= span.start() && span.end() <= watch.span().end();
            assert!(inside, "{span:?} is outside of the watch of {:?}", watch.span());
            for page in pages(*span) {
                match self.fault_page(page, access) {
                    Ok(found) => out[filled] = found,
                    Err(errno) => {
                        done.error = Some(errno);
                        break 'spans;
                    }
                }
                filled += 1;
            }
            done.spans += 1;
        }
        self.pages_faulted.fetch_add(filled as u64, Ordering::SeqCst);
        turn();
        if let Some(hook) = self.hooks.after_fault.get() {
            hook(self, spans);
        }
        done
    }

    fn migration(&self) -> Migration {
        let kind = *lock(&self.kind);
        Migration { coherent: kind == Some(Kind::Coherent), private: kind == Some(Kind::Private) }
    }

    fn migrate_to_device(
        &self,
        span: CpuSpan,
        device: &Arc<dyn DeviceMemory>,
        places: &mut [Option<VramOffset>],
    ) -> Result<u64> {
        os::failpoint(FailPoint::Migrate)?;
        let moved = self.move_in(span, device, places);
        lock(&self.move_error).take().map_or(Ok(moved), |error| Err(error.into()))
    }

    fn migrate_to_system(&self, span: CpuSpan) -> Result<u64> {
        os::failpoint(FailPoint::Migrate)?;
        let moved = self.move_out(span);
        self.hooks.after_move_out.run(self);
        Ok(moved)
    }

    fn evict_places(&self, device: &dyn DeviceMemory, places: &[VramOffset]) -> Result<u64> {
        Ok(self.move_out_places(device, places))
    }

    fn settle(&self) {
        self.hooks.at_settle.run(self);
    }

    fn mapped(&self, span: CpuSpan) -> bool {
        self.mapped_calls.fetch_add(1, Ordering::SeqCst);
        let mapped = {
            let table = lock(&self.table);
            pages(span).all(|page| table.pages.contains_key(&page))
        };
        if let Some(hook) = self.hooks.after_look.get() {
            hook(self, span, mapped);
        }
        mapped
    }

    fn mapping(&self, at: CpuVa, span: CpuSpan) -> Option<Mapping> {
        let page = at.0 / PAGE;
        let (start, end) = {
            let cuts = lock(&self.cuts);
            let start = cuts.range(..=page).next_back().map_or(0, |cut| cut * PAGE);
            let end = cuts.range(page + 1..).next().map_or(u64::MAX, |cut| cut * PAGE);
            (CpuVa(start), CpuVa(end))
        };
        let span = CpuSpan::between(span.start().max(start), span.end().min(end));
        let found = Mapping::without_holes(at, span, |page| self.mapped(page))?;
        Some(Mapping { heap_or_stack: lock(&self.heap).contains(&page), ..found })
    }

    fn out_of_reach(&self, span: CpuSpan, access: Access) -> u64 {
        let table = lock(&self.table);
        let failures = lock(&self.failures);
        let forbidden = |page: u64| failures.get(&page).is_some_and(|failure| failure.errno == Errno::EPERM);
        let reached = |(page, p): &(&u64, &CpuPage)| (p.writable || access == Access::Read) && !forbidden(**page);
        let first = table.pages.range(span.start().0 / PAGE..span.end().0 / PAGE).find(reached);
        first.map_or(span.bytes(), |(page, _)| page * PAGE - span.start().0)
    }

    fn user(&self) -> u32 {
        self.user
    }

    fn is_current(&self) -> bool {
        true
    }
}
