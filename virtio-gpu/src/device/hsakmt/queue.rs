// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queues: rings in memory of the guest, driven by the driver's own queue.
//!
//! The guest's library puts packets into the ring and writes a doorbell; nothing of a submission
//! comes through the device. Where the guest keeps the pointers (AQL), the GPU uses them where they
//! are. Otherwise the guest maps a page for them only after the queue was made, so the driver has a
//! page of its own and the [relay](super::super::relay) keeps the two alike.
//!
//! Numbers of queues and places of doorbells are the context's own: a guest never sees the
//! driver's.

use std::sync::{Arc, Mutex, PoisonError};

use vkfd_client::{AllocOptions, Buffer, GpuId, GpuSet};
use vkfd_remote::protocol::hsakmt::queue::{answer, kind, Create, Queue, BODY_BYTES};
use vkfd_remote::protocol::hsakmt::status;
use vkfd_remote::protocol::{put64, PAGE};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::queue::{
    CreateQueueArgs, MAX_QUEUE_PERCENTAGE, QUEUE_TYPE_COMPUTE, QUEUE_TYPE_COMPUTE_AQL, QUEUE_TYPE_SDMA,
    QUEUE_TYPE_SDMA_XGMI,
};

use super::super::relay::{Door, Pointers, Relay, EMPTY, READ_POINTER, WRITE_POINTER};
use super::super::window::Place;
use super::{Answer, Hsakmt, Object};

/// Bytes of a node's doorbell page.
pub const DOORBELL_BYTES: u64 = 8192;
/// Doorbells of a node.
const DOORBELLS: usize = 1024;
/// Bytes of an AQL queue's end-of-pipe buffer.
const EOP_BYTES: u64 = 4096;

/// A node's doorbells.
pub struct DoorbellPage {
    address: u64,
    place: Option<Arc<Place>>,
    used: Vec<bool>,
}

/// The page with a queue's pointers.
pub struct PointersPage {
    address: u64,
    place: Mutex<Option<Arc<Place>>>,
    queue: u32,
}

impl PointersPage {
    /// The guest has mapped it. The relay sees it from the next look on.
    pub fn bind(&self, place: Place) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(place));
    }

    pub fn unbind(&self, relay: &Relay) {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        relay.with(|doors| {
            if let Some(pointers) = doors.get_mut(&self.queue).and_then(|door| door.pointers.as_mut()) {
                pointers.guest = None;
            }
        });
        drop(place);
    }

    fn place(&self) -> Option<Arc<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A queue.
pub struct QueueObject {
    number: u32,
    id: u32,
    node: u32,
    bell: usize,
    pointers: Option<u64>,
    /// What the driver's queue uses of this process.
    _memory: Vec<Arc<Buffer>>,
}

impl Hsakmt {
    pub(super) fn queue(&mut self, request: Queue) -> Result<Answer, Answer> {
        match request {
            Queue::Create(create) => self.create_queue(&create),
            Queue::Destroy { queue, resource } => {
                let is_it = |object: &Object| matches!(object, Object::Queue(q) if u64::from(q.number) == queue || resource != 0);
                let found = match resource {
                    0 => self.objects.iter().find(|(_, object)| is_it(object)).map(|(resource, _)| *resource),
                    given => self.objects.get(&given).filter(|object| is_it(object)).map(|_| given),
                };
                let resource = found.ok_or(Answer::status(status::INVALID_HANDLE))?;
                if let Some(object) = self.objects.remove(&resource) {
                    self.end(object);
                }
                Ok(Answer::status(status::SUCCESS))
            }
            Queue::NotOffered(_) => Err(Answer::status(status::NOT_SUPPORTED)),
        }
    }

    fn create_queue(&mut self, create: &Create) -> Result<Answer, Answer> {
        let gpu = self.gpu(create.node).ok_or(Answer::status(status::INVALID_NODE))?;
        let queue_type = match create.kind {
            kind::COMPUTE => QUEUE_TYPE_COMPUTE,
            kind::SDMA | kind::SDMA_BY_ENGINE => QUEUE_TYPE_SDMA,
            kind::SDMA_XGMI => QUEUE_TYPE_SDMA_XGMI,
            kind::COMPUTE_AQL => QUEUE_TYPE_COMPUTE_AQL,
            _ => return Err(Answer::status(status::INVALID_PARAMETER)),
        };
        let own_pointers = queue_type == QUEUE_TYPE_COMPUTE_AQL;
        let blobs = [create.blob, create.pointers_blob, create.doorbell_blob];
        // 0 is the response memory, and no blob here; what is named must be new.
        let new = |blob: &u64| *blob != 0 && !self.unclaimed.contains_key(blob);
        let distinct = blobs[0] != blobs[1] && blobs[0] != blobs[2] && (blobs[1] != blobs[2] || blobs[1] == 0);
        let right = new(&blobs[0]) && (own_pointers || new(&blobs[1])) && (blobs[2] == 0 || new(&blobs[2])) && distinct;
        if !right || create.percentage > MAX_QUEUE_PERCENTAGE {
            return Err(Answer::refused(libc::EINVAL));
        }
        let ring_size = u32::try_from(create.ring_bytes).map_err(|_| Answer::refused(libc::EINVAL))?;
        let mut memory = Vec::new();
        let mut args = CreateQueueArgs {
            ring_base_address: create.ring,
            ring_size,
            write_pointer_address: create.write_pointer,
            read_pointer_address: create.read_pointer,
            gpu_id: gpu.0,
            queue_type,
            queue_percentage: create.percentage,
            // -3 to 3 in libhsakmt, 0 to 15 in KFD.
            queue_priority: u32::try_from(7 + 2 * create.priority.clamp(-3, 3)).unwrap_or(7),
            ..CreateQueueArgs::zeroed()
        };
        self.queue_memory(gpu, &mut args, own_pointers, &mut memory)?;
        let bell = self.reserve_bell(create.node)?;
        let made = self.drive_queue(create, &mut args, bell, own_pointers, memory);
        if made.is_err() {
            self.free_bell(create.node, bell);
        }
        let (queue, pointers) = made?;
        let number = queue.number;
        let doorbells = self.doorbells.get(&create.node).map_or(0, |page| page.address);
        let mut body = vec![0; BODY_BYTES];
        put64(&mut body, answer::QUEUE_ID, number.into());
        put64(&mut body, answer::DOORBELL, doorbells + 8 * bell as u64);
        put64(&mut body, answer::DOORBELL_OFFSET, 8 * bell as u64);
        put64(&mut body, answer::WRITE_OFFSET, WRITE_POINTER);
        put64(&mut body, answer::READ_OFFSET, READ_POINTER);
        put64(&mut body, answer::HANDLE, number.into());
        if let Some(page) = pointers {
            put64(&mut body, answer::POINTERS, page.address);
            self.announce(create.pointers_blob, Object::Pointers(page))?;
        }
        self.announce(create.blob, Object::Queue(queue))?;
        if create.doorbell_blob != 0 {
            self.announce(create.doorbell_blob, Object::Doorbells(create.node))?;
        }
        Ok(Answer::body(body))
    }

    /// What the driver's queue needs besides the ring.
    fn queue_memory(
        &self,
        gpu: GpuId,
        args: &mut CreateQueueArgs,
        own_pointers: bool,
        memory: &mut Vec<Arc<Buffer>>,
    ) -> Result<(), Answer> {
        let client = self.kfd.client();
        let system = |bytes| AllocOptions { gpus: GpuSet::from(gpu), ..AllocOptions::gtt(bytes) };
        let alloc = |options: &AllocOptions| client.alloc(options).map(Arc::new).map_err(|error| Answer::from(&error));
        if !own_pointers {
            let page = alloc(&system(PAGE))?;
            args.write_pointer_address = page.gpu_va().offset(WRITE_POINTER).0;
            args.read_pointer_address = page.gpu_va().offset(READ_POINTER).0;
            memory.push(page);
            return Ok(());
        }
        let eop = alloc(&AllocOptions { cpu_map: false, ..AllocOptions::vram(gpu, EOP_BYTES) })?;
        (args.eop_buffer_address, args.eop_buffer_size) = (eop.gpu_va().0, EOP_BYTES);
        memory.push(eop);
        let info = client.gpu(gpu).map_err(|error| Answer::from(&error))?;
        if info.cwsr_bytes > 0 {
            let bytes = u64::from(info.cwsr_bytes) * u64::from(info.xcc) + u64::from(info.debug_bytes);
            let area = alloc(&system(bytes.next_multiple_of(PAGE)))?;
            args.ctx_save_restore_address = area.gpu_va().0;
            (args.ctx_save_restore_size, args.ctl_stack_size) = (info.cwsr_bytes, info.ctl_stack_bytes);
            memory.push(area);
        }
        Ok(())
    }

    /// The driver's queue, and the relay's part of it.
    fn drive_queue(
        &mut self,
        create: &Create,
        args: &mut CreateQueueArgs,
        bell: usize,
        own_pointers: bool,
        memory: Vec<Arc<Buffer>>,
    ) -> Result<(QueueObject, Option<Arc<PointersPage>>), Answer> {
        self.kfd.create_queue(args)?;
        let id = args.queue_id;
        let undo = |context: &Self, answer: Answer| {
            let _ = context.kfd.destroy_queue(id);
            answer
        };
        let doorbell = self.kfd.doorbell(args.doorbell_offset).map_err(|errno| undo(self, errno.into()))?;
        // The driver's numbers begin anew in each process; from 1 on, because 0 is no queue to the
        // guest.
        let number = id.wrapping_add(1);
        let pointers = match own_pointers {
            true => None,
            false => {
                let address = self.space.take(PAGE, 0, 0).ok_or(Answer::status(status::NO_MEMORY));
                let address = address.map_err(|answer| undo(self, answer))?;
                Some(Arc::new(PointersPage { address, place: Mutex::default(), queue: number }))
            }
        };
        let page = self.doorbells.get(&create.node).and_then(|page| page.place.clone());
        let at = 8 * bell as u64;
        if let Some(word) = page.as_ref().and_then(|page| page.word(at)) {
            word.store(EMPTY, std::sync::atomic::Ordering::Release);
        }
        let door = Door {
            page,
            at,
            last: EMPTY,
            bell: doorbell,
            pointers: memory.first().filter(|_| !own_pointers).map(|host| Pointers {
                guest: None,
                host: host.clone(),
                shown: 0,
            }),
            node: create.node,
        };
        self.relay.add(number, door).map_err(|_| undo(self, Answer::status(status::OUT_OF_RESOURCES)))?;
        let pointers_at = pointers.as_ref().map(|page| page.address);
        let node = create.node;
        Ok((QueueObject { number, id, node, bell, pointers: pointers_at, _memory: memory }, pointers))
    }

    fn reserve_bell(&mut self, node: u32) -> Result<usize, Answer> {
        if !self.doorbells.contains_key(&node) {
            let address =
                self.space.take(DOORBELL_BYTES, DOORBELL_BYTES, 0).ok_or(Answer::status(status::NO_MEMORY))?;
            self.doorbells.insert(node, DoorbellPage { address, place: None, used: vec![false; DOORBELLS] });
        }
        let page = self.doorbells.get_mut(&node).ok_or(Answer::status(status::NO_MEMORY))?;
        let free = page.used.iter().position(|used| !used).ok_or(Answer::status(status::OUT_OF_RESOURCES))?;
        page.used[free] = true;
        Ok(free)
    }

    fn free_bell(&mut self, node: u32, bell: usize) {
        if let Some(used) = self.doorbells.get_mut(&node).and_then(|page| page.used.get_mut(bell)) {
            *used = false;
        }
    }

    /// The guest has mapped a node's doorbells: none is written yet.
    pub(super) fn bind_doorbells(&mut self, node: u32, place: Place) {
        let place = Arc::new(place);
        for at in (0..DOORBELL_BYTES).step_by(8) {
            if let Some(word) = place.word(at) {
                word.store(EMPTY, std::sync::atomic::Ordering::Relaxed);
            }
        }
        self.relay.with(|doors| {
            for door in doors.values_mut().filter(|door| door.node == node) {
                (door.page, door.last) = (Some(place.clone()), EMPTY);
            }
        });
        if let Some(page) = self.doorbells.get_mut(&node) {
            page.place = Some(place);
        }
    }

    pub(super) fn unbind_doorbells(&mut self, node: u32) {
        self.relay.with(|doors| doors.values_mut().filter(|door| door.node == node).for_each(|door| door.page = None));
        if let Some(page) = self.doorbells.get_mut(&node) {
            page.place = None;
        }
    }

    /// The guest has given its mapping of the page up; queues that are left ring no more until it
    /// maps one again.
    pub(super) fn end_doorbells(&mut self, node: u32) {
        self.unbind_doorbells(node);
    }

    /// The guest has mapped the pointers of a queue.
    pub(super) fn bind_pointers(&self, page: &PointersPage) {
        let place = page.place();
        self.relay.with(|doors| {
            if let Some(pointers) = doors.get_mut(&page.queue).and_then(|door| door.pointers.as_mut()) {
                pointers.guest = place;
            }
        });
    }

    pub(super) fn end_queue(&mut self, queue: QueueObject) {
        self.relay.with(|doors| doors.remove(&queue.number));
        if let Err(errno) = self.kfd.destroy_queue(queue.id) {
            tracing::warn!("DESTROY_QUEUE {}: {errno}", queue.id);
        }
        self.free_bell(queue.node, queue.bell);
        if let Some(address) = queue.pointers {
            self.space.give(address);
        }
    }
}
