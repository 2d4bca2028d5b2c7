// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A context of vkfd's own capability set: a process of the guest, which makes `/dev/kfd`'s calls
//! here, and a KFD process of its own.
//!
//! | module | what |
//! | --- | --- |
//! | `call` | a call with the guest's argument |
//! | `memory` | allocations: the guest's memory, the window's, KFD's |
//! | `wait` | WAIT_EVENTS |
//!
//! Only calls that [`calls`](vkfd_remote::protocol::forward::calls) lists are made. Of those, some
//! are not passed on as they are:
//!
//! | call | what is different |
//! | --- | --- |
//! | ALLOC, FREE, MAP, UNMAP | handles are the context's; memory comes as pieces of resources |
//! | CREATE_EVENT | the memory for slots becomes KFD's own |
//! | CREATE_QUEUE, DESTROY_QUEUE | the queue's doorbell is relayed |
//! | WAIT_EVENTS | done by a thread of its own |
//! | ACQUIRE_VM | the guest has checked which render node it is |
//!
//! The process that calls are made in has the memory that the device granted it, and no other of
//! this process's ([`vkfd_host::grants`]). KFD therefore refuses SVM and XNACK by itself.
//!
//! A process of the guest that ends takes all of it along.

mod call;
mod memory;
mod sharing;
mod wait;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use vkfd_client::{ClientError, Embedded, Transport};
use vkfd_driver::seams::gpu::Gpu;
use vkfd_host::RenderFile;
use vkfd_remote::protocol::control::ErrorCode;
use vkfd_remote::protocol::forward::{self, BlobKind, File, Head, Request, Unfit, ANSWER_HEAD_BYTES};
use vkfd_remote::protocol::{index, Malformed, PAGE};
use vkfd_uapi::batch::ALLOC_MEMORY_OF_GPU_BATCH;
use vkfd_uapi::command as c;
use vkfd_uapi::event::CreateEventArgs;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::AcquireVmArgs;
use vkfd_uapi::queue::{CreateQueueArgs, DestroyQueueArgs};

use self::call::Call;
use self::memory::Bo;
use self::wait::Waits;
use super::kfd::{Doorbell, DOORBELL_BYTES};
use super::ram::GuestMemory;
use super::relay::{Door, Relay, EMPTY};
use super::window::Place;
use super::{Context, Shared, Submitted};

/// Most bytes of the response memory.
const MAX_RESPONSES: u64 = 16 << 20;

/// A resource.
enum Object {
    Responses,
    /// Memory for allocations, once it is in the window.
    Memory(Option<Arc<Place>>),
    Doorbells(u32),
    /// A page of no consequence.
    Page(#[allow(dead_code)] Option<Place>),
    Guest(Arc<GuestMemory>),
}

/// See the module.
pub struct Forward {
    objects: HashMap<u32, Object>,
    bos: HashMap<u64, Bo>,
    next_handle: u64,
    queues: Vec<u32>,
    /// By `gpu_id`.
    doorbells: HashMap<u32, Arc<Place>>,
    relay: Relay,
    responses: Option<Arc<Place>>,
    waits: Waits,
    renders: HashMap<u32, RenderFile>,
    file: Arc<Embedded>,
    /// It is shown to monitors.
    listed: bool,
    /// What KFD would not free. Its memory goes after the process.
    stuck: Vec<Bo>,
    shared: Arc<Shared>,
}

/// What comes of a request.
enum Done {
    Now(Result<(), i32>),
    Wait(wait::Waiting),
}

impl Forward {
    pub fn new(shared: Arc<Shared>) -> Result<Self, ClientError> {
        let file = shared.open()?;
        Ok(Self {
            objects: HashMap::new(),
            bos: HashMap::new(),
            stuck: Vec::new(),
            // 0 is no handle.
            next_handle: 1,
            queues: Vec::new(),
            doorbells: HashMap::new(),
            relay: Relay::new(file.clone()),
            responses: None,
            waits: Waits::default(),
            renders: HashMap::new(),
            file,
            listed: false,
            shared,
        })
    }

    fn perform(&mut self, call: &mut Call) -> Done {
        let head = call.request().head;
        let command = head.command;
        let is =
            |known: vkfd_uapi::ioctl::Command| command.kind() == known.kind() && command.number() == known.number();
        // Only allocations have any.
        if !call.request().pieces.is_empty() && !is(c::ALLOC_MEMORY_OF_GPU) {
            return Done::Now(Err(libc::EINVAL));
        }
        // Its program has opened `/dev/kfd`, and not only render nodes.
        if head.file == File::Kfd && !std::mem::replace(&mut self.listed, true) {
            if let Err(errno) = self.file.file().list() {
                tracing::warn!("a process is not in the list of processes: {errno}");
            }
        }
        Done::Now(match head.file {
            File::Render(number) => self.render(number, call),
            File::Sharing => self.sharing(call),
            // The guest's side makes one kind of allocation of both.
            File::Kfd if command == ALLOC_MEMORY_OF_GPU_BATCH => Err(libc::EINVAL),
            File::Kfd if is(c::ALLOC_MEMORY_OF_GPU) => self.alloc(call),
            File::Kfd if is(c::FREE_MEMORY_OF_GPU) => self.free(call),
            File::Kfd if is(c::MAP_MEMORY_TO_GPU) => self.map(call, true),
            File::Kfd if is(c::UNMAP_MEMORY_FROM_GPU) => self.map(call, false),
            File::Kfd if is(c::AVAILABLE_MEMORY) => self.available(call),
            File::Kfd if is(c::CREATE_EVENT) => self.create_event(call),
            File::Kfd if is(c::CREATE_QUEUE) => self.create_queue(call),
            File::Kfd if is(c::DESTROY_QUEUE) => self.destroy_queue(call),
            File::Kfd if is(c::WAIT_EVENTS) => {
                return self.waits.enter().map_or(Done::Now(Err(libc::ENOMEM)), Done::Wait);
            }
            File::Kfd => {
                if is(c::ACQUIRE_VM) {
                    call.change(|args: &mut AcquireVmArgs| args.drm_fd = 0);
                }
                self.pass_on(call)
            }
        })
    }

    fn pass_on(&self, call: &mut Call) -> Result<(), i32> {
        // SAFETY: `make` gives an argument whose pointers are to arrays of the sizes that it says.
        call.make(|command, argument| unsafe { self.file.ioctl(command, argument) }.map_err(|errno| errno.0))
    }

    fn render(&mut self, number: u32, call: &mut Call) -> Result<(), i32> {
        let file = match self.renders.entry(number) {
            std::collections::hash_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(self.shared.machine.open_render(index(number))?)
            }
        };
        let bound = Some(self.file.file());
        // SAFETY: as in `pass_on`.
        call.make(|command, argument| unsafe { file.ioctl(bound, command, argument) })
    }

    fn create_event(&mut self, call: &mut Call) -> Result<(), i32> {
        let asked: CreateEventArgs = call.argument();
        if asked.event_page_offset != 0 {
            let handle = self.replace_by_own(asked.event_page_offset)?;
            call.change(|args: &mut CreateEventArgs| args.event_page_offset = handle);
        }
        self.pass_on(call)
    }

    fn create_queue(&mut self, call: &mut Call) -> Result<(), i32> {
        self.pass_on(call)?;
        let made: CreateQueueArgs = call.argument();
        if self.shared.sharing.is_some() {
            // It has the doorbells themselves.
            self.queues.push(made.queue_id);
            return Ok(());
        }
        let opened = Doorbell::map(&self.file, made.doorbell_offset).map_err(|errno| errno.0).and_then(|bell| {
            let at = vkfd_uapi::mmap::position(made.doorbell_offset) & (DOORBELL_BYTES - 1);
            let page = self.doorbells.get(&made.gpu_id).cloned();
            if let Some(word) = page.as_ref().and_then(|page| page.word(at)) {
                word.store(EMPTY, Ordering::Release);
            }
            let door = Door { page, at, last: EMPTY, bell, pointers: None, node: made.gpu_id };
            self.relay.add(made.queue_id, door).map_err(|_| libc::ENOMEM)
        });
        if opened.is_err() {
            self.end_queue(made.queue_id);
            return opened;
        }
        self.queues.push(made.queue_id);
        Ok(())
    }

    fn destroy_queue(&mut self, call: &mut Call) -> Result<(), i32> {
        let DestroyQueueArgs { queue_id, .. } = call.argument();
        self.pass_on(call)?;
        self.queues.retain(|queue| *queue != queue_id);
        self.relay.with(|doors| doors.remove(&queue_id));
        Ok(())
    }

    fn end_queue(&self, queue_id: u32) {
        let mut args = DestroyQueueArgs { queue_id, ..DestroyQueueArgs::zeroed() };
        // SAFETY: the argument is the command's own.
        let ended = unsafe { self.file.ioctl(c::DESTROY_QUEUE.0, (&raw mut args).cast()) };
        if let Err(errno) = ended {
            tracing::warn!("DESTROY_QUEUE {queue_id}: {errno}");
        }
    }

    fn bind_doorbells(&mut self, gpu: u32, place: Place) {
        let place = Arc::new(place);
        for at in (0..DOORBELL_BYTES).step_by(8) {
            if let Some(word) = place.word(at) {
                word.store(EMPTY, Ordering::Relaxed);
            }
        }
        self.relay.with(|doors| {
            for door in doors.values_mut().filter(|door| door.node == gpu) {
                (door.page, door.last) = (Some(place.clone()), EMPTY);
            }
        });
        self.doorbells.insert(gpu, place);
    }

    /// What was in the window is not any more.
    fn unbind_object(&mut self, resource: u32) {
        match self.objects.get_mut(&resource) {
            Some(Object::Responses) => self.responses = None,
            Some(Object::Doorbells(gpu)) => {
                let gpu = *gpu;
                self.relay
                    .with(|doors| doors.values_mut().filter(|door| door.node == gpu).for_each(|door| door.page = None));
                self.doorbells.remove(&gpu);
            }
            Some(Object::Page(place)) => *place = None,
            Some(Object::Memory(place)) => {
                let place = place.take();
                self.end_users(resource);
                drop(place);
            }
            Some(Object::Guest(_)) | None => {}
        }
    }
}

/// Writes an answer, its sequence number last. One that has no room is not given; the guest sees
/// that its number does not come.
fn respond(responses: Option<&Place>, head: &Head, answer: &[u8]) {
    let Some(place) = responses else { return };
    let at = u64::from(head.answer);
    let room = u64::from(head.room).min(place.bytes().saturating_sub(at));
    let short;
    let answer = if answer.len() as u64 <= room {
        answer
    } else {
        short = forward::refusal(libc::ENOMEM);
        &short
    };
    if answer.len() as u64 > room || at % 8 != 0 {
        tracing::debug!("an answer has no room");
        return;
    }
    place.write(at + 8, &answer[8..]);
    if let Some(word) = place.word(at) {
        word.store(head.sequence, Ordering::Release);
    }
}

const _: () = assert!(ANSWER_HEAD_BYTES >= 16);

impl Context for Forward {
    fn claim(&mut self, resource: u32, id: u64, size: u64) -> Result<(), ErrorCode> {
        let object = match BlobKind::of(id).ok_or(ErrorCode::InvalidParameter)? {
            BlobKind::Responses => {
                if size > MAX_RESPONSES || self.objects.values().any(|object| matches!(object, Object::Responses)) {
                    return Err(ErrorCode::InvalidParameter);
                }
                Object::Responses
            }
            BlobKind::Memory => Object::Memory(None),
            BlobKind::Doorbells(gpu) if size == DOORBELL_BYTES => {
                let ids = self.shared.machine.gpus().iter().map(|gpu| gpu.properties().gpu_id);
                // KFD's offsets carry no more of it.
                let mut named = ids.filter(|id| id & 0xffff == gpu);
                let gpu = named.next().ok_or(ErrorCode::InvalidParameter)?;
                let is_one = |object: &Object| matches!(object, Object::Doorbells(of) if *of == gpu);
                if self.objects.values().any(is_one) {
                    return Err(ErrorCode::InvalidParameter);
                }
                Object::Doorbells(gpu)
            }
            BlobKind::Page if size == PAGE => Object::Page(None),
            BlobKind::Doorbells(_) | BlobKind::Page => return Err(ErrorCode::InvalidParameter),
        };
        self.objects.insert(resource, object);
        Ok(())
    }

    fn adopt(&mut self, resource: u32, mut memory: GuestMemory) -> Result<(), ErrorCode> {
        super::register::break_list(&mut memory, &self.shared.options.sabotage);
        self.objects.insert(resource, Object::Guest(Arc::new(memory)));
        Ok(())
    }

    fn bind(&mut self, resource: u32, place: Place) -> Result<(), ErrorCode> {
        match self.objects.get_mut(&resource) {
            Some(Object::Responses) => self.responses = Some(Arc::new(place)),
            Some(Object::Memory(there)) => *there = Some(Arc::new(place)),
            Some(Object::Page(there)) => *there = Some(place),
            Some(Object::Doorbells(gpu)) => {
                let gpu = *gpu;
                self.bind_doorbells(gpu, place);
            }
            Some(Object::Guest(_)) | None => return Err(ErrorCode::InvalidParameter),
        }
        Ok(())
    }

    fn unbind(&mut self, resource: u32) {
        self.unbind_object(resource);
    }

    fn release(&mut self, resource: u32) {
        self.unbind_object(resource);
        self.end_users(resource);
        self.objects.remove(&resource);
    }

    fn submit(&mut self, payload: &[u8]) -> Submitted {
        let Ok(head) = Head::decode(payload) else { return Submitted::Refused(ErrorCode::InvalidParameter) };
        let responses = self.responses.clone();
        let mut call = match Request::decode(head, payload) {
            Ok(request) => Call::new(request),
            Err(unfit) => {
                tracing::debug!(?unfit, command = %head.command, "a call is refused");
                let errno = match unfit {
                    Unfit::Refused(refused) => refused.0,
                    Unfit::Malformed(Malformed::TooMuch) => libc::ENOMEM,
                    Unfit::Malformed(_) => libc::EINVAL,
                };
                respond(responses.as_deref(), &head, &forward::refusal(errno));
                return Submitted::Done;
            }
        };
        match self.perform(&mut call) {
            Done::Now(done) => {
                tracing::trace!(command = %head.command, ?done, "call");
                respond(responses.as_deref(), &head, &call.answer(done));
                Submitted::Done
            }
            Done::Wait(waiting) => {
                let file = self.file.clone();
                Submitted::Waiting(Box::new(move || {
                    let done = waiting.run(&file, &mut call);
                    respond(responses.as_deref(), &head, &call.answer(done));
                }))
            }
        }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.waits.cancel();
        // Queues first: what they use is free then.
        for queue in std::mem::take(&mut self.queues) {
            self.relay.with(|doors| doors.remove(&queue));
            self.end_queue(queue);
        }
        // KFD's own memory goes with the process.
        for (_, bo) in std::mem::take(&mut self.bos).into_iter().filter(|(_, bo)| bo.is_brought()) {
            if let Err(bo) = bo.end(&self.file) {
                self.stuck.push(bo);
            }
        }
    }
}
