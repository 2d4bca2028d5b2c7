// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Interval notifiers: being told before the mappings of an interval of a process's memory change.
//!
//! A device that has copied page-table entries of a process must stop using them before the kernel
//! changes them. An [`IntervalNotifier`] calls [`Operations::invalidate`] at that moment, for every
//! change that overlaps its interval. Copying entries is a collision-retry scheme:
//!
//! 1. [`read_begin`](IntervalNotifier::read_begin), which waits for invalidations under way,
//! 2. look the entries up, for instance with [`crate::hmm::fault`],
//! 3. under the lock that `invalidate` takes, check [`read_retry`](IntervalNotifier::read_retry),
//!    and use the entries or begin again.
//!
//! For that, `invalidate` says that it has seen the change with [`Invalidation::note`], under that
//! lock or before it takes it. A client may have another way to find its stale entries (a
//! generation of each). It need not ask `read_retry`, but still must `note`: `read_begin` waits
//! only for noted invalidations.
//!
//! Nothing here depends on the rest of this module's crate.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use core::ops::Range;
use kernel::bindings;
use kernel::error::to_result;
use kernel::mm::{Mm, MmWithUser};
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::types::Opaque;

unsafe extern "C" {
    fn vkfd_interval_set_seq(notifier: *mut bindings::mmu_interval_notifier, seq: c_ulong);
    fn vkfd_interval_read_retry(notifier: *mut bindings::mmu_interval_notifier, seq: c_ulong) -> bool;
}

/// The receiver of invalidations.
pub(crate) trait Operations: Send + Sync {
    /// Mappings that overlap the notifier's interval are about to change. When this returns true,
    /// nobody may use what was looked up in [`Invalidation::range`] before.
    ///
    /// May run in memory reclaim: must not allocate, nor wait for anyone who does. When the
    /// invalidation is not [blockable](Invalidation::blockable), must not sleep either; if it had
    /// to, it does nothing and returns false, and the change is given up.
    fn invalidate(&self, invalidation: &Invalidation<'_>) -> bool;
}

/// A change that is about to happen.
pub(crate) struct Invalidation<'a> {
    notifier: *mut bindings::mmu_interval_notifier,
    range: &'a bindings::mmu_notifier_range,
    seq: c_ulong,
}

impl Invalidation<'_> {
    /// The addresses that change; may reach beyond the notifier's interval.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.start..self.range.end
    }

    /// Whether the mappings themselves go: unmapped, moved to other addresses, or the whole address
    /// space ends.
    pub(crate) fn unmaps(&self) -> bool {
        use bindings::{mmu_notifier_event_MMU_NOTIFY_RELEASE, mmu_notifier_event_MMU_NOTIFY_UNMAP};
        [mmu_notifier_event_MMU_NOTIFY_UNMAP, mmu_notifier_event_MMU_NOTIFY_RELEASE].contains(&self.range.event)
    }

    /// Whether pages move between ordinary memory and a device's.
    pub(crate) fn migrates(&self) -> bool {
        self.range.event == bindings::mmu_notifier_event_MMU_NOTIFY_MIGRATE
    }

    /// Whether the callback may sleep.
    pub(crate) fn blockable(&self) -> bool {
        self.range.flags & bindings::MMU_NOTIFIER_RANGE_BLOCKABLE != 0
    }

    /// Says that the change was seen: a lookup that began before fails its `read_retry`, one that
    /// begins from now on waits until the change is over.
    pub(crate) fn note(&self) {
        // SAFETY: valid during the callback, whose sequence number this is.
        unsafe { vkfd_interval_set_seq(self.notifier, self.seq) };
    }
}

/// A sequence number, from [`IntervalNotifier::read_begin`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sequence(pub(crate) c_ulong);

/// A registered interval notifier, with the data its callback works on.
///
/// Dropping it waits for callbacks under way. It must not be dropped in a callback, nor with a lock
/// held that a callback takes.
///
/// # Invariants
///
/// `inner` is registered, with [`Self::OPS`], on `mm`, as long as the value exists.
#[pin_data(PinnedDrop)]
pub(crate) struct IntervalNotifier<T: Operations> {
    data: T,
    mm: ARef<Mm>,
    #[pin]
    inner: Opaque<bindings::mmu_interval_notifier>,
}

// SAFETY: the C object may be used and removed by any thread; `T` and `ARef<Mm>` may be sent.
unsafe impl<T: Operations> Send for IntervalNotifier<T> {}
// SAFETY: `read_begin` and `read_retry` are made for being called in parallel; `T` and `ARef<Mm>`
// may be shared.
unsafe impl<T: Operations> Sync for IntervalNotifier<T> {}

impl<T: Operations> IntervalNotifier<T> {
    const OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: Some(Self::invalidate),
        invalidate_start: None,
        invalidate_finish: None,
    };

    /// Registers a notifier for `range` of `mm`. Whether there are mappings does not matter.
    pub(crate) fn new<'a>(mm: &'a MmWithUser, range: Range<usize>, data: T) -> impl PinInit<Self, Error> + use<'a, T> {
        let (start, length) = (range.start, range.end.saturating_sub(range.start));
        let raw = mm.as_raw();
        // Callbacks may come as soon as `inner` is registered, so it is the last field.
        try_pin_init!(Self {
            data,
            mm: ARef::from(&**mm),
            inner <- Opaque::try_ffi_init(move |slot: *mut bindings::mmu_interval_notifier| {
                // SAFETY: `slot` stays where it is until the value is dropped, which removes it.
                // `mm` has users. The operations are constants.
                to_result(unsafe {
                    slot.write_bytes(0, 1);
                    bindings::mmu_interval_notifier_insert(slot, raw, start, length, &Self::OPS)
                })
            }),
        })
    }

    /// Whose memory it is about.
    pub(crate) fn mm(&self) -> &Mm {
        &self.mm
    }

    /// What the callback works on.
    pub(crate) fn data(&self) -> &T {
        &self.data
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::mmu_interval_notifier {
        self.inner.get()
    }

    /// Waits until no noted invalidation is under way. May sleep.
    pub(crate) fn read_begin(&self) -> Sequence {
        // SAFETY: registered, by the invariants.
        Sequence(unsafe { bindings::mmu_interval_read_begin(self.inner.get()) })
    }

    /// Whether an invalidation was noted since `read_begin` returned `sequence`. The caller holds
    /// the lock that the callback takes.
    pub(crate) fn read_retry(&self, sequence: Sequence) -> bool {
        // SAFETY: registered, by the invariants.
        unsafe { vkfd_interval_read_retry(self.inner.get(), sequence.0) }
    }

    unsafe extern "C" fn invalidate(
        notifier: *mut bindings::mmu_interval_notifier,
        range: *const bindings::mmu_notifier_range,
        seq: c_ulong,
    ) -> bool {
        // SAFETY: `OPS` is registered only for notifiers that are the `inner` of a `Self`, which is
        // there until it was removed; all fields but `inner` were initialised before. The range is
        // valid during the callback.
        let (this, range) = unsafe {
            let inner: *mut Opaque<bindings::mmu_interval_notifier> = notifier.cast();
            (&(*kernel::container_of!(inner, Self, inner)).data, &*range)
        };
        this.invalidate(&Invalidation { notifier, range, seq })
    }
}

#[pinned_drop]
impl<T: Operations> PinnedDrop for IntervalNotifier<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: registered, by the invariants.
        unsafe { bindings::mmu_interval_notifier_remove(self.inner.get()) };
    }
}
