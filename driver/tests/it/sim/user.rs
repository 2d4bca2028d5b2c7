// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The same memory as another user's.

use super::Mm;
use std::sync::Arc;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, VramOffset};
use vkfd_driver::base::errno::Result;
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Invalidate, Mapping, Page, Seq, Watch};
use vkfd_driver::seams::device_memory::{DeviceMemory, Migration};

/// Memory, and the number of the user whose it is.
pub struct OfUser(pub Mm, pub u32);

impl AddressSpace for OfUser {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        self.0.read(from, to)
    }
    fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        self.0.write(to, from)
    }
    fn watch(&self, span: CpuSpan, client: Arc<dyn Invalidate>) -> Result<Arc<dyn Watch>> {
        self.0.watch(span, client)
    }
    fn fault(&self, watch: &dyn Watch, seq: Seq, spans: &[CpuSpan], access: Access, pages: &mut [Page]) -> Faulted {
        self.0.fault(watch, seq, spans, access, pages)
    }
    fn migration(&self) -> Migration {
        self.0.migration()
    }
    fn migrate_to_device(
        &self,
        span: CpuSpan,
        device: &Arc<dyn DeviceMemory>,
        places: &mut [Option<VramOffset>],
    ) -> Result<u64> {
        self.0.migrate_to_device(span, device, places)
    }
    fn migrate_to_system(&self, span: CpuSpan) -> Result<u64> {
        self.0.migrate_to_system(span)
    }
    fn evict_places(&self, device: &dyn DeviceMemory, places: &[VramOffset]) -> Result<u64> {
        self.0.evict_places(device, places)
    }
    fn mapped(&self, span: CpuSpan) -> bool {
        self.0.mapped(span)
    }
    fn mapping(&self, at: CpuVa, span: CpuSpan) -> Option<Mapping> {
        self.0.mapping(at, span)
    }
    fn out_of_reach(&self, span: CpuSpan, access: Access) -> u64 {
        self.0.out_of_reach(span, access)
    }
    fn user(&self) -> u32 {
        self.1
    }
    fn is_current(&self) -> bool {
        true
    }
}
