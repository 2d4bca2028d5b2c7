// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The part of this process's memory that a client elsewhere may have: a guest's or a joined
//! program's. Everything else here (heap, stacks, code, other clients' memory) is not there for it.
//!
//! Mechanism: the code that maps memory for such a client grants it as long as it is mapped
//! ([`Grants::grant`]). The driver's view of a client's process ([`GrantedMemory`]) faults in
//! granted memory and nothing else, whatever call asks. It has no SVM memory and no migration: both
//! find memory that no call names. So the rule holds for calls that front ends forward later, too.
//!
//! A front end's own arguments of calls, with the arrays that they point to, are memory of this
//! process. [`AddressSpace::read`] and [`AddressSpace::write`] reach all of it: the pointers are
//! the front end's, never a client's.
//!
//! Registered memory is charged to an account of the client's own ([`Grants::registered`]). The
//! account is as large as the granted memory, and counts as KFD does: per byte asked for, also when
//! ranges overlap. So the client's memory bounds the driver's tables of registrations, and the
//! machine's limit is left for memory that the host gives (GTT).
//!
//! Lock: `spans` guards the granted spans; a leaf, held for a lookup alone.

use crate::address_space::ProcessMemory;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use vkfd_driver::base::addr::{CpuSpan, CpuVa};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::device::limit::Limit;
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Invalidate, Page, Seq, Watch};

/// The memory that is granted to one client's processes. As many entries as there are mappings for
/// it: the window, files of memory, lists that were made one range.
pub struct Grants {
    /// First address, end. They do not overlap.
    spans: RwLock<BTreeMap<u64, u64>>,
    registered: Arc<Limit>,
}

impl Default for Grants {
    fn default() -> Self {
        Self { spans: RwLock::default(), registered: Arc::new(Limit::new(0)) }
    }
}

impl fmt::Debug for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Grants").field(&self.spans).finish()
    }
}

/// Memory is granted as long as this lives. It ends before the memory is unmapped, because later
/// mappings at that address are the process's own.
#[derive(Debug)]
pub struct Grant {
    grants: Arc<Grants>,
    start: u64,
    /// The bytes that the account has for it.
    counted: u64,
    ended: bool,
}

impl Grants {
    /// Grants `bytes` from `start` on, which the caller has mapped. They may be registered once in
    /// all.
    pub fn grant(self: &Arc<Self>, start: u64, bytes: u64) -> Grant {
        self.enter(start, bytes, bytes)
    }

    /// Grants memory that is granted already at another address as well.
    pub fn grant_again(self: &Arc<Self>, start: u64, bytes: u64) -> Grant {
        self.enter(start, bytes, 0)
    }

    fn enter(self: &Arc<Self>, start: u64, bytes: u64, counted: u64) -> Grant {
        let mut spans = self.spans.write().unwrap_or_else(PoisonError::into_inner);
        spans.insert(start, start.saturating_add(bytes));
        self.registered.resize(self.registered.bytes().saturating_add(counted));
        Grant { grants: self.clone(), start, counted, ended: false }
    }

    /// The account of the memory that its processes register.
    pub const fn registered(&self) -> &Arc<Limit> {
        &self.registered
    }

    /// How many of the first spans are granted wholly. O(spans log grants).
    fn leading(&self, spans: &[CpuSpan]) -> usize {
        let granted = self.spans.read().unwrap_or_else(PoisonError::into_inner);
        let inside = |span: &&CpuSpan| {
            let mut end = granted.range(..=span.start().0).next_back().map(|(_, end)| *end);
            // Mappings that touch are one memory to the driver.
            while let Some(here) = end.filter(|here| *here < span.end().0) {
                end = granted.get(&here).copied();
            }
            end.is_some()
        };
        spans.iter().take_while(inside).count()
    }
}

impl Grant {
    /// Ends it. Again does nothing.
    pub fn end(&mut self) {
        let grants = &self.grants;
        let mut spans = grants.spans.write().unwrap_or_else(PoisonError::into_inner);
        let counted = std::mem::take(&mut self.counted);
        grants.registered.resize(grants.registered.bytes().saturating_sub(counted));
        // The address may be another grant's by now.
        if !std::mem::replace(&mut self.ended, true) {
            spans.remove(&self.start);
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a process's first thread is called; nothing where that cannot be seen.
fn name_of(pid: u32) -> [u8; 16] {
    let mut name = [0; 16];
    let read = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    for (to, from) in name[..15].iter_mut().zip(read.iter().take_while(|byte| **byte != b'\n')) {
        *to = *from;
    }
    name
}

/// The view of a client's process: see the module.
pub(crate) struct GrantedMemory {
    memory: ProcessMemory,
    grants: Arc<Grants>,
    identity: Option<(u32, [u8; 16])>,
}

impl GrantedMemory {
    /// Of the process of this system with this number; 0: the client is elsewhere.
    pub(crate) fn new(memory: ProcessMemory, grants: Arc<Grants>, pid: u32) -> Self {
        Self { memory, grants, identity: (pid != 0).then(|| (pid, name_of(pid))) }
    }
}

impl AddressSpace for GrantedMemory {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        self.memory.read(from, to)
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        self.memory.write(to, from)
    }

    // A watch shows no contents of memory, and one watch may span ranges that are apart.
    fn watch(&self, span: CpuSpan, client: Arc<dyn Invalidate>) -> Result<Arc<dyn Watch>> {
        self.memory.watch(span, client)
    }

    fn fault(&self, watch: &dyn Watch, seq: Seq, spans: &[CpuSpan], access: Access, pages: &mut [Page]) -> Faulted {
        let count = self.grants.leading(spans);
        if count == spans.len() {
            return self.memory.fault(watch, seq, spans, access, pages);
        }
        let (granted, _) = spans.split_at(count);
        let wanted = granted.iter().try_fold(0_usize, |sum, span| sum.checked_add(usize::try_from(span.pages()).ok()?));
        let refused = Faulted { spans: count, error: Some(Errno::EFAULT) };
        match wanted.and_then(|wanted| pages.get_mut(..wanted)) {
            Some(_) if count == 0 => refused,
            Some(pages) => match self.memory.fault(watch, seq, granted, access, pages) {
                Faulted { error: None, .. } => refused,
                earlier => earlier,
            },
            None => Faulted { spans: 0, error: Some(Errno::EINVAL) },
        }
    }

    fn settle(&self) {
        self.memory.settle();
    }

    fn mapped(&self, _span: CpuSpan) -> bool {
        false
    }

    fn first_mapped(&self, _span: CpuSpan) -> Option<CpuSpan> {
        None
    }

    fn has_svm(&self) -> bool {
        false
    }

    fn user(&self) -> u32 {
        self.memory.user()
    }

    fn identity(&self) -> Option<(u32, [u8; 16])> {
        self.identity
    }

    fn is_current(&self) -> bool {
        self.memory.is_current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_granted_wholly_is_not_granted() {
        let grants = Arc::new(Grants::default());
        let span = |start: u64, end: u64| CpuSpan::between(CpuVa(start << 12), CpuVa(end << 12));
        let mut first = grants.grant(16 << 12, 16 << 12);
        let second = grants.grant(64 << 12, 1 << 12);
        let touching = grants.grant_again(65 << 12, 3 << 12);
        assert_eq!(grants.leading(&[span(64, 68), span(66, 67), span(64, 69)]), 2);
        drop(touching);
        assert_eq!(grants.leading(&[span(16, 32), span(20, 21), span(64, 65), span(15, 17), span(16, 17)]), 3);
        for outside in [span(15, 16), span(32, 33), span(31, 33), span(16, 65), span(63, 65), span(64, 66)] {
            assert_eq!(grants.leading(&[outside]), 0, "{outside:?}");
        }
        let account = grants.registered();
        assert_eq!(account.bytes(), 17 << 12, "what is granted again does not count");
        first.end();
        assert_eq!(account.bytes(), 1 << 12);
        first.end();
        assert_eq!(grants.leading(&[span(16, 17)]), 0);
        assert_eq!(grants.leading(&[span(64, 65)]), 1);
        drop(second);
        assert_eq!(grants.leading(&[span(64, 65)]), 0);
    }
}
