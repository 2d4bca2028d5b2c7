// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One watched interval, as the tree of watches holds it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use vkfd_driver::base::addr::CpuSpan;
use vkfd_driver::base::errno::Result;
use vkfd_driver::os;
use vkfd_driver::seams::address_space::Invalidate;

/// What an invalidation is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goes {
    /// Pages change; the mapping stays.
    Pages,
    /// The mapping goes, or has gone: what is there later is other memory.
    Memory,
}

struct State {
    span: CpuSpan,
    client: Arc<dyn Invalidate>,
    /// Invalidations of the interval that have begun.
    begun: AtomicU64,
    /// Some of the interval may not be registered for events.
    unregistered: AtomicBool,
    /// How often some of the interval may have been mapped after it was registered, and up to which
    /// of these doubts it was found to be registered. A new watch has none: for memory that a
    /// program maps while it registers it, the driver has [`super::Mm::listen`].
    doubts: AtomicU64,
    cleared: AtomicU64,
}

/// A watch as the tree of watches holds it: equal only to itself.
#[derive(Clone)]
pub(crate) struct Told(Arc<State>);

impl PartialEq for Told {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Told {
    /// A watch of `span` for `client`.
    pub(crate) fn new(span: CpuSpan, client: Arc<dyn Invalidate>) -> Result<Self> {
        let state = State {
            span,
            client,
            begun: AtomicU64::new(0),
            unregistered: AtomicBool::new(true),
            doubts: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
        };
        Ok(Self(os::arc(state)?))
    }

    /// How many invalidations of the interval have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::SeqCst)
    }

    pub(crate) fn span(&self) -> CpuSpan {
        self.0.span
    }

    /// The part of `span` that is watched.
    pub(crate) fn cut(&self, span: CpuSpan) -> CpuSpan {
        let own = self.0.span;
        CpuSpan::between(own.start().max(span.start()), own.end().min(span.end()))
    }

    /// Notifies the driver of the watched parts of `span`. A large span may hit many watches of one
    /// client, and each must not make it look at all of the span. User-space invalidations may
    /// always block, so they are never refused.
    pub(crate) fn tell(&self, span: CpuSpan, goes: Goes) {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        match goes {
            Goes::Pages => self.0.client.invalidate(self.cut(span), true),
            Goes::Memory => self.0.client.unmapped(self.cut(span), true),
        };
    }

    pub(crate) fn mark_unregistered(&self) {
        self.0.doubts.fetch_add(1, Ordering::SeqCst);
        self.0.unregistered.store(true, Ordering::SeqCst);
    }

    pub(crate) fn mark_registered(&self) {
        self.0.unregistered.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_unregistered(&self) -> bool {
        self.0.unregistered.load(Ordering::SeqCst)
    }

    /// The last doubt whether pages of the interval lie in memory that is registered. `None` when
    /// it was cleared.
    pub(crate) fn doubt(&self) -> Option<u64> {
        let last = self.0.doubts.load(Ordering::SeqCst);
        (self.0.cleared.load(Ordering::SeqCst) < last).then_some(last)
    }

    /// All of the interval was found to be registered after `doubt`.
    pub(crate) fn clear(&self, doubt: u64) {
        self.0.cleared.fetch_max(doubt, Ordering::SeqCst);
    }
}
