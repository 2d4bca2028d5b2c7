// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a process can map of its device files, by offset.
//!
//! A kernel calls with the address space's lock held, which the driver's calls take under the locks
//! of a process and of an object. So what can be mapped is in a table with a lock of its own (rank
//! `Offset`).

use crate::base::errno::Result;
use crate::base::lock_rank::Rank;
use crate::buffers::bo::Bo;
use crate::buffers::gem_object::GemObject;
use crate::collections::interval::IntervalMap;
use crate::os::{self, Arc, Mutex};
use crate::seams::gpu::DmaMemory;

/// Client mmap offsets of VRAM and GTT objects begin here, as DRM's do.
const FIRST_OFFSET: u64 = 4 << 30;

/// What is at an offset.
#[derive(Clone)]
pub enum Shown {
    /// A VRAM or GTT object.
    Object(Arc<Bo>),
    /// A VM's doorbells, or its registers.
    Page(Arc<dyn DmaMemory>),
    /// A render file's object.
    Gem(Arc<GemObject>),
}

impl PartialEq for Shown {
    /// Whether both are the same memory.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(a), Self::Object(b)) => Arc::ptr_eq(a, b),
            (Self::Gem(a), Self::Gem(b)) => Arc::ptr_eq(a, b),
            (Self::Page(a), Self::Page(b)) => core::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b)),
            _ => false,
        }
    }
}

struct Table {
    shown: IntervalMap<Shown>,
    next: u64,
}

/// What a process can map.
pub struct Offsets(Mutex<Table>);

impl Offsets {
    pub fn new() -> Result<Self> {
        Self::beginning_at(FIRST_OFFSET)
    }

    /// Nothing, with offsets of its own from `first` on.
    pub(crate) fn beginning_at(first: u64) -> Result<Self> {
        let shown = IntervalMap::seeded(os::random());
        Ok(Self(Mutex::new(Rank::Offset, Table { shown, next: first })?))
    }

    /// An offset for an object of `bytes` that nothing else had.
    pub fn take(&self, bytes: u64) -> u64 {
        let mut table = self.0.lock();
        let offset = table.next;
        table.next = offset.saturating_add(bytes);
        offset
    }

    /// Makes something mappable. ENOMEM shows nothing.
    pub fn show(&self, offset: u64, bytes: u64, what: Shown) -> Result {
        self.0.lock().shown.insert(offset, offset.saturating_add(bytes), what)
    }

    /// The opposite. Nothing if it is not there.
    pub fn hide(&self, offset: u64, bytes: u64, what: &Shown) {
        self.0.lock().shown.remove(offset, offset.saturating_add(bytes), what);
    }

    /// Hides everything.
    pub fn clear(&self) {
        let mut shown = IntervalMap::new();
        core::mem::swap(&mut self.0.lock().shown, &mut shown);
        drop(shown); // without the lock
    }

    /// What has all of `bytes` from `offset` on, and where that begins in it.
    pub(crate) fn find(&self, offset: u64, bytes: u64) -> Option<(Shown, u64)> {
        let end = offset.checked_add(bytes)?;
        let (start, last, what) = self.0.lock().shown.first_overlap(offset, end)?;
        let from = offset.checked_sub(start)?;
        (end <= last).then_some((what, from))
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        self.0.lock().shown.memory()
    }
}
