// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The seam to a process's CPU memory. The semantics are those of the kernel's interval notifiers
//! and HMM.
//!
//! A [`Watch`] is one interval notifier. The host calls [`Invalidate::invalidate`] **before** pages
//! of the interval change or go; once it has returned, no device may use what was faulted in
//! earlier. Between that call and the end of the change, [`Watch::read_begin`] of the same watch
//! waits. The driver therefore:
//!
//! 1. notes its ranges' generations, which its callback raises,
//! 2. `seq = watch.read_begin()` (may sleep): no invalidation whose callback ran before step 1
//!    still takes pages away,
//! 3. `fault(..)` without any lock that an invalidation takes,
//! 4. takes its notifier lock, compares the generations, and only then uses the pages.
//!
//! With steps 1 and 2 in the other order an invalidation whose callback runs between them would go
//! unnoticed.
#![expect(clippy::arithmetic_side_effects, reason = "ends of parts of a span are at most its own end")]

use crate::base::addr::{CpuSpan, CpuVa, FabricAddr, PhysAddr, VramOffset, PAGE};
use crate::base::errno::{Errno, Result};
use crate::base::pte::Target;
use crate::os::Arc;
use crate::seams::device_memory::{DeviceMemory, Migration};
use core::time::Duration;

/// What the device wants to do with the pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read only: does not break copy-on-write, works on read-only mappings.
    Read,
    /// Read and write.
    Write,
}

/// One faulted page: where it is, and whether the device may write to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Page(u64);

impl Page {
    const WRITABLE: u64 = 1;
    const DEVICE: u64 = 2;

    /// A page of system memory at `at` (page aligned).
    pub fn new(at: PhysAddr, writable: bool) -> Self {
        debug_assert!(at.is_page_aligned());
        Self(at.0 | if writable { Self::WRITABLE } else { 0 })
    }

    /// A page that is in a GPU's memory, at `at` (page aligned) of the fabric.
    pub fn device(at: FabricAddr, writable: bool) -> Self {
        debug_assert!(at.0 & (PAGE - 1) == 0);
        Self(at.0 | Self::DEVICE | if writable { Self::WRITABLE } else { 0 })
    }

    /// Where it is, as a page-table entry has it.
    pub const fn target(self) -> Target {
        if self.is_device() {
            Target::Vram(FabricAddr(self.0 & !(PAGE - 1)))
        } else {
            Target::System(self.phys())
        }
    }

    /// Where it is; of a page of system memory only.
    pub const fn phys(self) -> PhysAddr {
        debug_assert!(!self.is_device());
        PhysAddr(self.0 & !(PAGE - 1))
    }

    /// Whether it is in a GPU's memory.
    pub const fn is_device(self) -> bool {
        self.0 & Self::DEVICE != 0
    }

    /// Whether the device may write to it.
    pub const fn writable(self) -> bool {
        self.0 & Self::WRITABLE != 0
    }

    /// How many pages from the first on lie one after the other, in memory of one kind and equally
    /// writable.
    pub fn run(pages: &[Self]) -> u64 {
        let Some(first) = pages.first() else { return 0 };
        let follow = pages.iter().zip(0..).take_while(|(page, n): &(_, u64)| page.0 == first.0 + n * PAGE);
        follow.count() as u64
    }
}

/// How far [`AddressSpace::fault`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faulted {
    /// Leading spans whose pages were all filled in.
    pub spans: usize,
    /// Why `spans[self.spans]` could not be: EFAULT (no mapping, or not memory), EPERM (no
    /// permission), EBUSY (an invalidation came between: begin again), ENOMEM, ESRCH (the address
    /// space has gone). `None` when all were.
    pub error: Option<Errno>,
}

/// A mapping of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Where it is.
    pub span: CpuSpan,
    /// It is malloc's heap (brk) or the first thread's stack.
    pub heap_or_stack: bool,
}

impl Mapping {
    /// What is `mapped` around the page at `at`, within `span`.
    pub fn without_holes(at: CpuVa, span: CpuSpan, mapped: impl Fn(CpuSpan) -> bool) -> Option<Self> {
        let mapped = |at: u64| mapped(CpuSpan::between(CpuVa(at), CpuVa(at + PAGE)));
        if !span.contains(at) || !mapped(at.0) {
            return None;
        }
        let (mut start, mut end) = (at.0, at.0 + PAGE);
        while start > span.start().0 && mapped(start - PAGE) {
            start -= PAGE;
        }
        while end < span.end().0 && mapped(end) {
            end += PAGE;
        }
        Some(Self { span: CpuSpan::between(CpuVa(start), CpuVa(end)), heap_or_stack: false })
    }
}

/// A sequence number of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seq(pub u64);

/// One watched interval. Dropping it ends the watch and waits for callbacks under way, so it must
/// not be dropped with a lock held that the callback takes, nor from a callback.
pub trait Watch: Send + Sync {
    /// The interval.
    fn span(&self) -> CpuSpan;

    /// Waits until no invalidation that this watch was notified of is under way; then the current
    /// sequence.
    fn read_begin(&self) -> Seq;

    /// Whether an invalidation of the interval has begun since `seq` was read.
    fn read_retry(&self, seq: Seq) -> bool;

    /// What is mapped in `span`, a part of the interval, is of interest from now on, also what was
    /// mapped there after the watch was made: its changes are told. For hosts that are notified
    /// of changes mapping by mapping. O(mappings), sleeps. ENOMEM.
    fn listen(&self, _span: CpuSpan) -> Result {
        Ok(())
    }

    /// The host's own type, for its `fault`.
    fn as_any(&self) -> &dyn core::any::Any;
}

/// The receiver of invalidations.
pub trait Invalidate: Send + Sync {
    /// Pages of `span`, which lies within the watched interval, are about to change or go. May run
    /// in memory reclaim: no allocation, no freeing, no sleeping on anything but the notifier
    /// locks. If `blockable` is false, it does not sleep on these either. Then, if it would have to
    /// wait, it returns false without any change, and the host abandons the invalidation.
    fn invalidate(&self, span: CpuSpan, blockable: bool) -> bool;

    /// As [`invalidate`](Self::invalidate), where pages move between system memory and a GPU's. A
    /// host that cannot tell says only that pages change.
    fn migrating(&self, span: CpuSpan, blockable: bool) -> bool {
        self.invalidate(span, blockable)
    }

    /// As [`invalidate`](Self::invalidate), where the memory of `span` itself goes: unmapped, or
    /// moved to another address. What is mapped there later is other memory. A host that cannot
    /// tell says only that pages change.
    fn unmapped(&self, span: CpuSpan, blockable: bool) -> bool {
        self.invalidate(span, blockable)
    }
}

/// A process's CPU memory.
pub trait AddressSpace: Send + Sync {
    /// Copies caller memory in. EFAULT when some of it cannot be read.
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result;

    /// Copies to caller memory. EFAULT when some of it cannot be written.
    fn write(&self, to: CpuVa, from: &[u8]) -> Result;

    /// Watches `span` (whole pages, which need not be mapped). O(log w) in the number of watches.
    fn watch(&self, span: CpuSpan, client: Arc<dyn Invalidate>) -> Result<Arc<dyn Watch>>;

    /// Faults in the pages of `spans`, each within the interval of `watch`, and writes them to
    /// `pages` one span after the other. `pages` is as long as the spans together. Sleeps.
    fn fault(&self, watch: &dyn Watch, seq: Seq, spans: &[CpuSpan], access: Access, pages: &mut [Page]) -> Faulted;

    /// Pins the pages of `spans` for writing, as a driver without notifiers has to, and lets them
    /// go again: how long the pinning took. For comparison only; nothing else pins. EOPNOTSUPP
    /// where the host cannot, else as `fault`.
    fn measure_pin(&self, spans: &[CpuSpan]) -> Result<Duration> {
        let _ = spans;
        Err(Errno::EOPNOTSUPP.into())
    }

    /// Faults the pages of `spans` in for writing as the kernel's own call does, once per span, and
    /// does nothing else: how long it took. For comparison only. There is a watch of this address
    /// space. EOPNOTSUPP where there is no such call, else as `fault`.
    fn measure_fault_bare(&self, spans: &[CpuSpan]) -> Result<Duration> {
        let _ = spans;
        Err(Errno::EOPNOTSUPP.into())
    }

    /// What kinds of migration there are here. See [`crate::seams::device_memory`].
    fn migration(&self) -> Migration {
        Migration::default()
    }

    /// Moves pages of `span` from system memory into a GPU's memory: page `i` to `places[i]`. The
    /// page's contents replace the place's older contents, and the CPU then reaches the page there,
    /// too. Watches are notified as of any change. `places` is as long as the span; an entry is set
    /// to `None` when the page has moved there. From then on the host owns the place, until
    /// [`DeviceMemory::released`]. A place that is still `Some` belongs to the caller as before.
    /// Its page did not move: no memory there, of a kind that cannot move, pinned, on a device
    /// already, or changing just now. Returns the number of moved pages; EOPNOTSUPP where nothing
    /// can, ESRCH when the address space has gone. Sleeps; called without locks. O(pages).
    fn migrate_to_device(
        &self,
        span: CpuSpan,
        device: &Arc<dyn DeviceMemory>,
        places: &mut [Option<VramOffset>],
    ) -> Result<u64> {
        let _ = (span, device, places);
        Err(Errno::EOPNOTSUPP.into())
    }

    /// Moves the pages of `span` that are in any GPU's memory back into system memory. How many
    /// moved; other pages (no memory left, changing just now) stay in place, whole. Sleeps; called
    /// without locks. O(pages).
    fn migrate_to_system(&self, span: CpuSpan) -> Result<u64> {
        let _ = span;
        Ok(0)
    }

    /// Moves the pages at `places` of a GPU's memory back into system memory, for any owner and at
    /// any address: forked children, also when this address space has gone. Which places those are
    /// may have changed since the caller looked. How many pages moved; others stay. A host in which
    /// `migrate_to_system` finds everything has nothing to do. Sleeps; called without locks.
    /// O(places).
    fn evict_places(&self, device: &dyn DeviceMemory, places: &[VramOffset]) -> Result<u64> {
        let _ = (device, places);
        Ok(0)
    }

    /// Waits until the driver was told what all calls that have returned did, where it is told
    /// afterwards: invalidations, and which places of GPUs' memory have become free. Sleeps; called
    /// without locks.
    fn settle(&self) {}

    /// Whether every page of `span` has a mapping (whatever it permits). O(mappings in it).
    fn mapped(&self, span: CpuSpan) -> bool;

    /// The mapping that `at` (page aligned) is in, as far as it reaches within `span`. `None` where
    /// there is none, or none of memory. What the host itself has cut a mapping into are several.
    /// Here it is whatever is mapped without a hole, and one question a page.
    fn mapping(&self, at: CpuVa, span: CpuSpan) -> Option<Mapping> {
        Mapping::without_holes(at, span, |page| self.mapped(page))
    }

    /// The first part of `span` (whole pages) that has mappings, or the beginning of it. Here it
    /// takes as many questions as there are pages before it and a few more; a host that has its
    /// mappings in order does better.
    fn first_mapped(&self, span: CpuSpan) -> Option<CpuSpan> {
        let mapped = |start: u64, bytes: u64| self.mapped(CpuSpan::between(CpuVa(start), CpuVa(start + bytes)));
        if self.mapped(span) {
            return Some(span);
        }
        let last = span.end().0;
        let start = (span.start().0..last).step_by(crate::base::addr::index(PAGE)).find(|at| mapped(*at, PAGE))?;
        let (mut end, mut more) = (start + PAGE, PAGE);
        while end + more <= last && mapped(end, more) {
            end += more;
            more *= 2;
        }
        Some(CpuSpan::between(CpuVa(start), CpuVa(end)))
    }

    /// How many bytes from the beginning of `span` (whole pages) on no `access` can reach, because
    /// nothing is mapped there or all that is forbids it. 0 where some may be reached, and from a
    /// host that cannot tell without looking at each page. O(mappings in it).
    fn out_of_reach(&self, span: CpuSpan, access: Access) -> u64 {
        let _ = (span, access);
        0
    }

    /// Whether devices may use memory of it that no call has registered: SVM memory, and with it
    /// retry of page faults. If not, the driver refuses SVM calls and XNACK (EPERM), and serves no
    /// fault outside of buffer objects. Never changes.
    fn has_svm(&self) -> bool {
        true
    }

    /// Its user: scarce resources are shared between users ([`crate::device::share`]).
    fn user(&self) -> u32 {
        0
    }

    /// The number and the name of its process, which asks; `None` for a process of another system.
    /// Never changes.
    fn identity(&self) -> Option<(u32, [u8; 16])> {
        Some(crate::os::process())
    }

    /// Whether the caller of the current ioctl is the process that owns this address space (a
    /// forked child that inherited the file is not).
    fn is_current(&self) -> bool;
}
