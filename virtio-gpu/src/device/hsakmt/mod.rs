// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A context of capset 8: one process of the guest, and one KFD process of its own here.
//!
//! | module | what |
//! | --- | --- |
//! | `query` | answers about the machine |
//! | `memory` | allocations, and the guest's memory |
//! | `event` | events and waits |
//! | `queue` | queues |
//!
//! What a guest allocates is an object under the blob number that it chose, until it makes a
//! resource of it; the resource then keeps it. All objects die with the context. Addresses are
//! looked up among the context's own objects and are nothing but keys: a guest that names another
//! address is refused, whatever is there in this process.

mod event;
mod memory;
mod query;
mod queue;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use vkfd_client::{ClientError, Errno, GpuId};
use vkfd_remote::protocol::control::ErrorCode;
use vkfd_remote::protocol::hsakmt::{requests, shared, status, Head, Request};

use self::event::EventObject;
use self::memory::{GuestObject, MemoryObject};
use self::queue::{DoorbellPage, PointersPage, QueueObject};
use super::kfd::Kfd;
use super::ram::GuestMemory;
use super::relay::Relay;
use super::space::Space;
use super::window::Place;
use super::{Context, Shared, Submitted};

/// Most objects that wait for their resources.
const MAX_UNCLAIMED: usize = 1024;

/// What a request answers: a status, and a body.
struct Answer {
    status: i32,
    body: Vec<u8>,
}

impl Answer {
    fn status(status: i32) -> Self {
        Self { status, body: Vec::new() }
    }

    fn refused(errno: i32) -> Self {
        Self::status(-errno)
    }

    fn body(body: Vec<u8>) -> Self {
        Self { status: status::SUCCESS, body }
    }

    fn value(value: u64) -> Self {
        Self::body(value.to_le_bytes().into())
    }
}

impl From<Errno> for Answer {
    fn from(errno: Errno) -> Self {
        Self::status(status::of_errno(errno.0))
    }
}

impl From<&ClientError> for Answer {
    fn from(error: &ClientError) -> Self {
        tracing::debug!(%error, "KFD refuses");
        Self::status(error.errno().map_or(status::ERROR, |errno| status::of_errno(errno.0)))
    }
}

/// What comes of a request that is understood.
enum Done {
    Now(Answer),
    /// Later, by a thread that may wait.
    Wait(event::Wait),
}

/// An object of the context.
enum Object {
    /// The response memory.
    Responses,
    Memory(MemoryObject),
    Doorbells(u32),
    Pointers(Arc<PointersPage>),
    Queue(QueueObject),
    Event(EventObject),
    /// The guest's memory.
    Guest(GuestObject),
}

/// See the module.
pub struct Hsakmt {
    // Queues go before what they use: objects are dropped by `Drop`, in an order.
    objects: HashMap<u32, Object>,
    unclaimed: HashMap<u64, Object>,
    /// Which resource an address belongs to: first address, resource.
    addresses: BTreeMap<u64, u32>,
    doorbells: HashMap<u32, DoorbellPage>,
    relay: Relay,
    responses: Option<Arc<Place>>,
    events: event::Page,
    space: Space,
    kfd: Kfd,
    shared: Arc<Shared>,
}

impl Hsakmt {
    pub fn new(shared: Arc<Shared>) -> Result<Self, ClientError> {
        let kfd = Kfd::new(shared.open()?)?;
        Ok(Self {
            objects: HashMap::new(),
            unclaimed: HashMap::new(),
            addresses: BTreeMap::new(),
            doorbells: HashMap::new(),
            relay: Relay::new(kfd.file().clone()),
            responses: None,
            events: event::Page::default(),
            space: Space::default(),
            kfd,
            shared,
        })
    }

    fn gpus(&self) -> Vec<GpuId> {
        self.kfd.client().gpus().iter().map(|gpu| gpu.id).collect()
    }

    /// A node's GPU; `None` for the processors' node and for none.
    fn gpu(&self, node: u32) -> Option<GpuId> {
        self.shared.topology.gpu_id(node).filter(|id| *id != 0).map(GpuId)
    }

    /// Keeps an object until the guest makes a resource of it.
    fn announce(&mut self, blob: u64, object: Object) -> Result<(), Answer> {
        if blob == shared::BLOB || self.unclaimed.contains_key(&blob) || self.unclaimed.len() >= MAX_UNCLAIMED {
            self.end(object);
            return Err(Answer::refused(libc::EINVAL));
        }
        self.unclaimed.insert(blob, object);
        Ok(())
    }

    fn perform(&mut self, request: Request) -> Done {
        let answer = match request {
            Request::Nop => Answer::status(status::SUCCESS),
            Request::Query(query) => self.query(query),
            Request::Memory(memory, _) => self.memory(memory).unwrap_or_else(|refused| refused),
            Request::Event(event) => match self.event(event) {
                Ok(done) => return done,
                Err(refused) => refused,
            },
            Request::Queue(queue) => self.queue(queue).unwrap_or_else(|refused| refused),
            Request::Graphics => Answer::status(status::NOT_SUPPORTED),
        };
        Done::Now(answer)
    }

    /// Ends an object.
    fn end(&mut self, object: Object) {
        match object {
            Object::Responses => {}
            Object::Memory(memory) => self.end_memory(memory),
            Object::Guest(guest) => self.end_guest(guest),
            Object::Doorbells(node) => self.end_doorbells(node),
            Object::Pointers(page) => page.unbind(&self.relay),
            Object::Queue(queue) => self.end_queue(queue),
            Object::Event(event) => self.end_event(event),
        }
    }
}

/// Writes an answer where the guest wants it, and says that the request is done.
fn respond(responses: Option<&Place>, head: &Head, answer: &Answer) {
    let Some(place) = responses else { return };
    let at = u64::from(shared::AREA) + u64::from(head.answer);
    // An answer lies on 8 bytes, inside of the area, and is at least a head.
    let room = place
        .half(at + shared::ANSWER_ROOM)
        .filter(|_| head.answer % 8 == 0)
        .map_or(0, |room| room.load(Ordering::Relaxed));
    let end = at.checked_add(room.into()).filter(|end| room >= 8 && *end <= place.bytes());
    let (result, error) = (place.half(at + shared::ANSWER_RESULT), place.half(shared::ASYNC_ERROR));
    match (end, result) {
        (Some(_), Some(result)) => {
            let body = answer.body.len().min(room as usize - 8);
            place.write(at + shared::ANSWER_BODY, &answer.body[..body]);
            result.store(u32::from_le_bytes(answer.status.to_le_bytes()), Ordering::Release);
        }
        _ => {
            if let Some(error) = error {
                error.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    if let Some(sequence) = place.half(shared::SEQUENCE) {
        // A wait ends beside later requests of other rings: a thread that looks for those must not
        // see the number go back.
        let later = |old: u32| old == 0 || head.sequence.wrapping_sub(old) < 1 << 31;
        let _ = sequence.fetch_update(Ordering::Release, Ordering::Relaxed, |old| later(old).then_some(head.sequence));
    }
}

impl Context for Hsakmt {
    fn claim(&mut self, resource: u32, id: u64, size: u64) -> Result<(), ErrorCode> {
        if id == shared::BLOB {
            let taken = self.objects.values().any(|object| matches!(object, Object::Responses));
            if taken || size < u64::from(shared::AREA) + 8 || size > shared::MAX_BYTES {
                return Err(ErrorCode::InvalidParameter);
            }
            self.objects.insert(resource, Object::Responses);
            return Ok(());
        }
        let object = self.unclaimed.get(&id).ok_or(ErrorCode::InvalidParameter)?;
        let fits = match object {
            Object::Memory(memory) => size == memory.bytes(),
            Object::Doorbells(_) => size == queue::DOORBELL_BYTES,
            Object::Pointers(_) => size == vkfd_remote::protocol::PAGE,
            _ => true,
        };
        if !fits {
            return Err(ErrorCode::InvalidParameter);
        }
        if let Some(object) = self.unclaimed.remove(&id) {
            if let Object::Memory(memory) = &object {
                self.addresses.insert(memory.address(), resource);
            }
            self.objects.insert(resource, object);
        }
        Ok(())
    }

    fn adopt(&mut self, resource: u32, memory: GuestMemory) -> Result<(), ErrorCode> {
        self.objects.insert(resource, Object::Guest(GuestObject::new(memory)));
        Ok(())
    }

    fn bind(&mut self, resource: u32, place: Place) -> Result<(), ErrorCode> {
        let kfd = self.kfd.clone();
        match self.objects.get_mut(&resource) {
            Some(Object::Responses) => {
                if let Some(offset) = place.half(shared::AREA_OFFSET) {
                    offset.store(shared::AREA, Ordering::Release);
                }
                self.responses = Some(Arc::new(place));
            }
            Some(Object::Memory(memory)) => memory.bind(&kfd, place).map_err(|error| {
                tracing::warn!(%error, "memory that the guest has mapped cannot be registered");
                ErrorCode::OutOfMemory
            })?,
            Some(Object::Doorbells(node)) => {
                let node = *node;
                self.bind_doorbells(node, place);
            }
            Some(Object::Pointers(page)) => {
                let page = page.clone();
                page.bind(place);
                self.bind_pointers(&page);
            }
            Some(Object::Queue(_) | Object::Event(_) | Object::Guest(_)) | None => {
                return Err(ErrorCode::InvalidParameter)
            }
        }
        Ok(())
    }

    fn unbind(&mut self, resource: u32) {
        match self.objects.get_mut(&resource) {
            Some(Object::Responses) => self.responses = None,
            Some(Object::Memory(memory)) => memory.unbind(),
            Some(Object::Doorbells(node)) => {
                let node = *node;
                self.unbind_doorbells(node);
            }
            Some(Object::Pointers(page)) => page.unbind(&self.relay),
            Some(Object::Queue(_) | Object::Event(_) | Object::Guest(_)) | None => {}
        }
    }

    fn release(&mut self, resource: u32) {
        if let Some(object) = self.objects.remove(&resource) {
            self.end(object);
        }
    }

    fn submit(&mut self, payload: &[u8]) -> Submitted {
        let mut all = requests(payload).peekable();
        while let Some(next) = all.next() {
            let Ok((head, bytes)) = next else { return Submitted::Refused(ErrorCode::InvalidParameter) };
            let done = match Request::decode(&head, bytes) {
                Ok(request) => self.perform(request),
                Err(error) => {
                    tracing::debug!(%error, command = head.command, "a request makes no sense");
                    Done::Now(Answer::refused(libc::EINVAL))
                }
            };
            let responses = self.responses.clone();
            match done {
                Done::Now(answer) => respond(responses.as_deref(), &head, &answer),
                // What comes after it would be done before it.
                Done::Wait(_) if all.peek().is_some() => {
                    respond(responses.as_deref(), &head, &Answer::refused(libc::EINVAL));
                }
                Done::Wait(wait) => {
                    return Submitted::Waiting(Box::new(move || respond(responses.as_deref(), &head, &wait.run())));
                }
            }
        }
        Submitted::Done
    }
}

impl Drop for Hsakmt {
    fn drop(&mut self) {
        self.events.cancel();
        let all =
            std::mem::take(&mut self.objects).into_values().chain(std::mem::take(&mut self.unclaimed).into_values());
        // Queues first: what they use is free then.
        let (queues, rest): (Vec<_>, Vec<_>) = all.partition(|object| matches!(object, Object::Queue(_)));
        for object in queues.into_iter().chain(rest) {
            self.end(object);
        }
    }
}
