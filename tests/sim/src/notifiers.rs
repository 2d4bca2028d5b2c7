// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Interval notifiers: calls before memory changes, and waits until it has changed.
//!
//! A change notes its spans as under way, calls the watches that overlap, does its work, and takes
//! the note away. `read_begin` waits while a span that overlaps the watch is noted. Each watch has
//! its own sequence number, which a notification raises before the first call.
//!
//! A watch that ends leaves the list first, and then waits while a call to it is noted. The caller
//! of the receiver drops its reference before that note. So the receiver is freed by the thread
//! that ended the watch, and never in a notification.

use crate::lock;
use crate::patience::{pause, turn};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vkfd_driver::base::addr::CpuSpan;
use vkfd_driver::seams::address_space::{Invalidate, Seq, Watch};

/// What is about to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The pages.
    Pages,
    /// In which memory they are.
    Place,
    /// Whether they are mapped.
    Mapping,
}

impl Change {
    fn tell(self, client: &dyn Invalidate, span: CpuSpan, blockable: bool) -> bool {
        match self {
            Self::Pages => client.invalidate(span, blockable),
            Self::Place => client.migrating(span, blockable),
            Self::Mapping => client.unmapped(span, blockable),
        }
    }
}

struct Watched {
    id: u64,
    span: CpuSpan,
    sequence: Arc<AtomicU64>,
    client: Arc<dyn Invalidate>,
}

#[derive(Default)]
struct State {
    next: u64,
    watches: Vec<Watched>,
    /// Spans that change just now.
    under_way: Vec<CpuSpan>,
    /// Watches whose receivers are called, or about to be.
    calls: Vec<u64>,
}

fn forget<T: PartialEq>(list: &mut Vec<T>, entry: &T) {
    if let Some(at) = list.iter().position(|other| other == entry) {
        list.swap_remove(at);
    }
}

/// The notifiers of one memory.
#[derive(Default)]
pub(crate) struct Notifiers(Mutex<State>);

impl Notifiers {
    pub(crate) fn watch(self: &Arc<Self>, span: CpuSpan, client: Arc<dyn Invalidate>) -> Arc<dyn Watch> {
        let sequence = Arc::new(AtomicU64::new(0));
        let mut state = lock(&self.0);
        state.next += 1;
        let id = state.next;
        state.watches.push(Watched { id, span, sequence: sequence.clone(), client });
        Arc::new(SimWatch { id, span, sequence, notifiers: self.clone() })
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.0).watches.len()
    }

    /// Calls the watches of `span`, up to the first that refuses. Whether none did.
    pub(crate) fn notify(&self, what: Change, span: CpuSpan, blockable: bool) -> bool {
        let calls: Vec<_> = {
            let mut state = lock(&self.0);
            let State { watches, calls, .. } = &mut *state;
            let hit = watches.iter().filter(|watch| watch.span.overlaps(span));
            hit.map(|watch| {
                watch.sequence.fetch_add(1, Ordering::SeqCst);
                calls.push(watch.id);
                let (start, end) = (watch.span.start().max(span.start()), watch.span.end().min(span.end()));
                (watch.id, CpuSpan::between(start, end), watch.client.clone())
            })
            .collect()
        };
        let mut agreed = true;
        for (id, part, client) in calls {
            agreed = agreed && what.tell(&*client, part, blockable);
            drop(client);
            forget(&mut lock(&self.0).calls, &id);
        }
        agreed
    }

    /// Changes memory in `spans` by `f`, each notified as its `Change`.
    pub(crate) fn change(&self, spans: &[(Change, CpuSpan)], f: impl FnOnce()) {
        turn();
        lock(&self.0).under_way.extend(spans.iter().map(|(_, span)| *span));
        for (what, span) in spans {
            self.notify(*what, *span, true);
        }
        turn();
        f();
        let mut state = lock(&self.0);
        for (_, span) in spans {
            forget(&mut state.under_way, span);
        }
    }
}

struct SimWatch {
    id: u64,
    span: CpuSpan,
    sequence: Arc<AtomicU64>,
    notifiers: Arc<Notifiers>,
}

impl Watch for SimWatch {
    fn span(&self) -> CpuSpan {
        self.span
    }

    fn read_begin(&self) -> Seq {
        loop {
            let state = lock(&self.notifiers.0);
            if !state.under_way.iter().any(|span| span.overlaps(self.span)) {
                return Seq(self.sequence.load(Ordering::SeqCst));
            }
            drop(state);
            pause();
        }
    }

    fn read_retry(&self, seq: Seq) -> bool {
        Seq(self.sequence.load(Ordering::SeqCst)) != seq
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for SimWatch {
    fn drop(&mut self) {
        let ended = {
            let watches = &mut lock(&self.notifiers.0).watches;
            watches.iter().position(|watch| watch.id == self.id).map(|at| watches.remove(at))
        };
        while lock(&self.notifiers.0).calls.contains(&self.id) {
            pause();
        }
        drop(ended);
    }
}
