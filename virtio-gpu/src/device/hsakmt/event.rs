// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events and waits.
//!
//! A signal event has a slot in a page that the GPU writes; the page is the driver's memory at an
//! address of the context. The guest knows an event by KFD's own number, which KFD checks. A wait
//! goes on in slices on a thread of its own, so that the context's end is noticed.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vkfd_remote::protocol::hsakmt::event::{Event, BODY_BYTES, EVENT_BYTES};
use vkfd_remote::protocol::hsakmt::status;
use vkfd_remote::protocol::{put32, put64, u64_at};
use vkfd_uapi::event::{CreateEventArgs, EventData, EVENT_SIGNAL, SIGNAL_EVENT_LIMIT};
use vkfd_uapi::memory::{
    ALLOC_MEM_FLAGS_COHERENT, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_NO_SUBSTITUTE, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_uapi::pod::Pod;

use super::super::kfd::Kfd;
use super::{Answer, Done, Hsakmt, Object};

/// Bytes of a slot.
const SLOT_BYTES: u64 = 8;
/// Most waits of a context at the same time.
const MAX_WAITS: usize = 16;
/// How long a wait may not look at whether the context has ended.
const SLICE: u32 = 50;

/// An event.
pub struct EventObject {
    id: u32,
}

/// What events of a context share.
#[derive(Default)]
pub struct Page {
    /// Address of the slots, once there are any.
    slots: Option<u64>,
    ids: HashSet<u32>,
    cancelled: Arc<AtomicBool>,
    waits: Arc<AtomicUsize>,
}

impl Page {
    /// Lets all waits end.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }
}

/// A wait that has not begun.
pub struct Wait {
    kfd: Kfd,
    events: Vec<u32>,
    all: bool,
    milliseconds: u32,
    cancelled: Arc<AtomicBool>,
    waits: Arc<AtomicUsize>,
}

impl Wait {
    /// Waits. The answer has libhsakmt's event structures, as the request had them.
    pub fn run(self) -> Answer {
        let mut data: Vec<EventData> =
            self.events.iter().map(|&event_id| EventData { event_id, ..EventData::zeroed() }).collect();
        let limit = Instant::now() + Duration::from_millis(self.milliseconds.into());
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            let slice = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).min(SLICE);
            match self.kfd.wait_events(&mut data, self.all, slice) {
                Ok(true) => break,
                Ok(false) if left.is_zero() || self.cancelled.load(Ordering::Acquire) => {
                    return Answer::status(status::WAIT_TIMEOUT);
                }
                Ok(false) => {}
                Err(errno) => return errno.into(),
            }
        }
        let mut body = vec![0; BODY_BYTES + EVENT_BYTES * data.len()];
        for (place, event) in data.iter().enumerate() {
            put32(&mut body, BODY_BYTES + EVENT_BYTES * place, event.event_id);
        }
        Answer::body(body)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Hsakmt {
    pub(super) fn event(&mut self, request: Event) -> Result<Done, Answer> {
        let ok = |answer| Ok(Done::Now(answer));
        let known = |context: &Self, id: u32| match context.events.ids.contains(&id) {
            true => Ok(id),
            false => Err(Answer::status(status::INVALID_HANDLE)),
        };
        match request {
            Event::Create { kind, node, manual, signalled, blob } => {
                self.create_event(kind, node, manual, signalled, blob).map(Done::Now)
            }
            Event::Destroy(id) => {
                known(self, id)?;
                // Its blob stays, as a name for nothing.
                self.end_event(EventObject { id });
                ok(Answer::status(status::SUCCESS))
            }
            Event::Set(id) => {
                self.kfd.set_event(known(self, id)?)?;
                ok(Answer::status(status::SUCCESS))
            }
            Event::Reset(id) => {
                self.kfd.reset_event(known(self, id)?)?;
                ok(Answer::status(status::SUCCESS))
            }
            Event::QueryState(id) => {
                let mut data = [EventData { event_id: known(self, id)?, ..EventData::zeroed() }];
                match self.kfd.wait_events(&mut data, false, 0)? {
                    true => ok(Answer::status(status::SUCCESS)),
                    false => ok(Answer::status(status::WAIT_TIMEOUT)),
                }
            }
            Event::Wait { events, all, milliseconds } => {
                for &id in &events {
                    known(self, id)?;
                }
                let waits = self.events.waits.clone();
                if waits.fetch_add(1, Ordering::AcqRel) >= MAX_WAITS {
                    waits.fetch_sub(1, Ordering::AcqRel);
                    return Err(Answer::status(status::OUT_OF_RESOURCES));
                }
                let cancelled = self.events.cancelled.clone();
                Ok(Done::Wait(Wait { kfd: self.kfd.clone(), events, all, milliseconds, cancelled, waits }))
            }
            // There are no waves that could trap.
            Event::SetTrap { .. } => Err(Answer::status(status::NOT_SUPPORTED)),
        }
    }

    fn create_event(
        &mut self,
        kind: u32,
        node: u32,
        manual: bool,
        signalled: bool,
        blob: u64,
    ) -> Result<Answer, Answer> {
        let mut args = CreateEventArgs {
            event_type: kind,
            auto_reset: u32::from(!manual),
            node_id: node,
            ..CreateEventArgs::zeroed()
        };
        let slots = match self.events.slots {
            Some(slots) => slots,
            None => {
                let (address, handle) = self.slots()?;
                args.event_page_offset = handle;
                self.events.slots = Some(address);
                address
            }
        };
        self.kfd.create_event(&mut args)?;
        let id = args.event_id;
        if signalled {
            self.kfd.set_event(id)?;
        }
        let mut body = vec![0; BODY_BYTES];
        put32(&mut body, 0, id);
        put32(&mut body, 4, kind);
        if kind == EVENT_SIGNAL {
            put64(&mut body, 36, slots + SLOT_BYTES * u64::from(args.event_slot_index));
            put32(&mut body, 44, args.event_trigger_data);
        }
        put64(&mut body, 48, id.into());
        debug_assert_eq!(u64_at(&body, 48), Ok(u64::from(id)));
        self.events.ids.insert(id);
        self.announce(blob, Object::Event(EventObject { id }))?;
        Ok(Answer::body(body))
    }

    /// The page of slots: the driver's own memory, kept as long as the process.
    fn slots(&mut self) -> Result<(u64, u64), Answer> {
        let bytes = SLOT_BYTES * u64::from(SIGNAL_EVENT_LIMIT);
        let gpus = self.gpus();
        let first = *gpus.first().ok_or(Answer::status(status::INVALID_NODE))?;
        let address = self.space.take(bytes, 0, 0).ok_or(Answer::status(status::NO_MEMORY))?;
        let flags =
            ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_COHERENT | ALLOC_MEM_FLAGS_NO_SUBSTITUTE;
        let handle = self.kfd.alloc(first, address, bytes, flags).inspect_err(|_| self.space.give(address))?;
        self.kfd.map(handle, &gpus)?;
        Ok((address, handle))
    }

    pub(super) fn end_event(&mut self, event: EventObject) {
        if self.events.ids.remove(&event.id) {
            if let Err(errno) = self.kfd.destroy_event(event.id) {
                tracing::warn!("DESTROY_EVENT {}: {errno}", event.id);
            }
        }
    }
}
