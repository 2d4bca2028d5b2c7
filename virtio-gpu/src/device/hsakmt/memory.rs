// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that the host allocates for the guest, and the guest's own.
//!
//! Allocated memory that the guest can map is a part of the window. So to KFD it is this process's
//! memory, registered at the guest's address; it exists from MAP_BLOB on. Memory that the guest
//! cannot map is VRAM or system memory of KFD.

use std::sync::Arc;

use vkfd_client::{Buffer, ClientError, GpuId, GpuSet, GpuVa, RegisterOptions};
use vkfd_remote::protocol::hsakmt::memory::{flags, Memory};
use vkfd_remote::protocol::hsakmt::status;
use vkfd_remote::protocol::{put64, PAGE};
use vkfd_sabotage::Switch;
use vkfd_uapi::memory::{
    ALLOC_MEM_FLAGS_COHERENT, ALLOC_MEM_FLAGS_EXECUTABLE, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_NO_SUBSTITUTE,
    ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE,
};

use super::super::kfd::Kfd;
use super::super::ram::GuestMemory;
use super::super::register::{skew, Registration};
use super::super::window::Place;
use super::{Answer, Hsakmt, Object};

/// Largest allocation.
const MAX_BYTES: u64 = 1 << 37;

/// Allocated memory.
pub struct MemoryObject {
    address: u64,
    bytes: u64,
    flags: u32,
    backing: Backing,
}

enum Backing {
    /// Not mapped by the guest yet, or not any more.
    Nowhere,
    /// In the window. The driver lets go of it first.
    Window(Buffer, #[allow(dead_code)] Place),
    /// The driver's, with the GPUs that it is mapped on.
    Driver { handle: u64, mapped: Vec<GpuId> },
}

impl MemoryObject {
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Registers its part of the window.
    pub fn bind(&mut self, kfd: &Kfd, place: Place) -> Result<(), ClientError> {
        if !matches!(self.backing, Backing::Nowhere) {
            return Err(ClientError::Invalid("this memory is not the window's".into()));
        }
        let options = RegisterOptions {
            writable: self.flags & flags::READ_ONLY == 0,
            executable: self.flags & flags::EXECUTE != 0,
            coherent: self.flags & flags::COARSE_GRAIN == 0,
            map: false,
            at: Some(GpuVa(self.address)),
            ..RegisterOptions::default()
        };
        // SAFETY: the place is shared memory that this process accesses by atomic operations and
        // copies only, and outlives the buffer.
        let buffer = unsafe { kfd.client().register(place.start().as_ptr(), place.bytes(), &options)? };
        self.backing = Backing::Window(buffer, place);
        Ok(())
    }

    pub fn unbind(&mut self) {
        if matches!(self.backing, Backing::Window(..)) {
            self.backing = Backing::Nowhere;
        }
    }

    fn map(&mut self, kfd: &Kfd, gpus: &[GpuId]) -> Result<(), Answer> {
        match &mut self.backing {
            // The guest maps what it can map before it uses it.
            Backing::Nowhere => Err(Answer::refused(libc::EINVAL)),
            Backing::Window(buffer, _) => buffer.map(&GpuSet::Only(gpus.into())).map_err(|error| (&error).into()),
            Backing::Driver { handle, mapped } => {
                let new: Vec<GpuId> = gpus.iter().copied().filter(|gpu| !mapped.contains(gpu)).collect();
                if !new.is_empty() {
                    kfd.map(*handle, &new)?;
                    mapped.extend(new);
                }
                Ok(())
            }
        }
    }

    fn unmap(&mut self, kfd: &Kfd) -> Result<(), Answer> {
        match &mut self.backing {
            Backing::Nowhere => Ok(()),
            Backing::Window(buffer, _) => unmap_buffer(buffer),
            Backing::Driver { handle, mapped } => {
                kfd.unmap(*handle, mapped)?;
                mapped.clear();
                Ok(())
            }
        }
    }

    fn free(&mut self, kfd: &Kfd) {
        if let Backing::Driver { handle, mapped } = &self.backing {
            if let Err(errno) = kfd.unmap(*handle, mapped).and_then(|()| kfd.free(*handle)) {
                tracing::warn!("freeing memory of the driver: {errno}");
            }
        }
        self.backing = Backing::Nowhere;
    }
}

fn unmap_buffer(buffer: &Buffer) -> Result<(), Answer> {
    let gpus = buffer.mapped_on();
    match gpus.is_empty() {
        true => Ok(()),
        false => buffer.unmap(&GpuSet::Only(gpus)).map_err(|error| (&error).into()),
    }
}

/// A blob of guest memory.
pub struct GuestObject {
    memory: Arc<GuestMemory>,
    /// Its address here, once it was asked for.
    address: Option<u64>,
    registration: Option<Registration>,
}

impl GuestObject {
    pub fn new(memory: GuestMemory) -> Self {
        Self { memory: Arc::new(memory), address: None, registration: None }
    }
}

impl Hsakmt {
    pub(super) fn memory(&mut self, request: Memory) -> Result<Answer, Answer> {
        match request {
            Memory::Alloc { node, flags, bytes, address, alignment, blob } => {
                self.alloc(node, flags, bytes, address, alignment, blob)
            }
            Memory::MapToNodes { address, nodes, resource, .. } => {
                let gpus: Option<Vec<GpuId>> = nodes.iter().map(|node| self.gpu(*node)).collect();
                let gpus = gpus.filter(|gpus| !gpus.is_empty()).ok_or(Answer::status(status::INVALID_NODE))?;
                self.map(address, resource, &gpus)
            }
            Memory::Map { scratch: true, .. } => Err(Answer::status(status::NOT_SUPPORTED)),
            Memory::Map { address, .. } => self.map(address, 0, &self.gpus()),
            Memory::Unmap { address } => {
                let resource = self.resource_at(address)?;
                let kfd = self.kfd.clone();
                match self.objects.get_mut(&resource) {
                    Some(Object::Memory(memory)) => memory.unmap(&kfd)?,
                    Some(Object::Guest(GuestObject { registration: Some(registration), .. })) => {
                        unmap_buffer(registration.buffer())?;
                    }
                    _ => return Err(Answer::status(status::INVALID_HANDLE)),
                }
                Ok(Answer::status(status::SUCCESS))
            }
            Memory::Free { address } => {
                let resource = self.resource_at(address)?;
                let kfd = self.kfd.clone();
                let Some(Object::Memory(memory)) = self.objects.get_mut(&resource) else {
                    return Err(Answer::status(status::INVALID_HANDLE));
                };
                memory.free(&kfd);
                Ok(Answer::status(status::SUCCESS))
            }
            Memory::Available { node } => {
                let gpu = self.gpu(node).ok_or(Answer::status(status::INVALID_NODE))?;
                self.kfd.client().available_vram(gpu).map(Answer::value).map_err(|error| (&error).into())
            }
            Memory::MapUserptr { resource } => self.map_userptr(resource),
            Memory::Register { address, bytes, flags, resource } => self.register(address, bytes, flags, resource),
            Memory::Deregister { address, resource } => {
                let resource = self.guest_at(address, resource)?;
                if let Some(Object::Guest(guest)) = self.objects.get_mut(&resource) {
                    // Told apart from one that was not registered, which AMD's library takes for
                    // success.
                    guest.registration.take().ok_or(Answer::status(status::INVALID_HANDLE))?;
                }
                Ok(Answer::status(status::SUCCESS))
            }
            Memory::NotOffered(kind) => {
                tracing::debug!(kind, "a memory request that this host does not offer");
                Err(Answer::status(status::NOT_SUPPORTED))
            }
        }
    }

    fn alloc(
        &mut self,
        node: u32,
        flags: u32,
        bytes: u64,
        address: u64,
        alignment: u64,
        blob: u64,
    ) -> Result<Answer, Answer> {
        const NOT_HERE: u32 = flags::SCRATCH | flags::NO_ADDRESS | flags::ONLY_ADDRESS;
        let gpu = self.gpu(node);
        if gpu.is_none() && self.shared.topology.gpu_id(node).is_none() {
            return Err(Answer::status(status::INVALID_NODE));
        }
        if flags & NOT_HERE != 0 || (flags & flags::FIXED_ADDRESS != 0 && address != 0) {
            return Err(Answer::status(status::NOT_SUPPORTED));
        }
        let bytes = bytes.checked_next_multiple_of(PAGE).filter(|bytes| (1..=MAX_BYTES).contains(bytes));
        let bytes = bytes.ok_or(Answer::status(status::INVALID_PARAMETER))?;
        let address = self.space.take(bytes, alignment, 0).ok_or(Answer::status(status::NO_MEMORY))?;
        let mut memory = MemoryObject { address, bytes, flags, backing: Backing::Nowhere };
        if flags & flags::HOST_ACCESS == 0 {
            let bit = |flag: u32, then: u32| if flags & flag != 0 { then } else { 0 };
            let kind = if gpu.is_some() { ALLOC_MEM_FLAGS_VRAM } else { ALLOC_MEM_FLAGS_GTT };
            let coherent = ALLOC_MEM_FLAGS_COHERENT & !bit(flags::COARSE_GRAIN, ALLOC_MEM_FLAGS_COHERENT);
            let access = ALLOC_MEM_FLAGS_WRITABLE | bit(flags::EXECUTE, ALLOC_MEM_FLAGS_EXECUTABLE) | coherent;
            let of = gpu.or_else(|| self.gpus().first().copied()).ok_or(Answer::status(status::INVALID_NODE))?;
            match self.kfd.alloc(of, address, bytes, kind | access | ALLOC_MEM_FLAGS_NO_SUBSTITUTE) {
                Ok(handle) => memory.backing = Backing::Driver { handle, mapped: Vec::new() },
                Err(errno) => {
                    self.space.give(address);
                    return Err(errno.into());
                }
            }
        }
        self.announce(blob, Object::Memory(memory))?;
        Ok(Answer::value(address))
    }

    fn map(&mut self, address: u64, resource: u32, gpus: &[GpuId]) -> Result<Answer, Answer> {
        let (start, resource) = self.owner(address, resource)?;
        let kfd = self.kfd.clone();
        match self.objects.get_mut(&resource) {
            Some(Object::Memory(memory)) => memory.map(&kfd, gpus)?,
            Some(Object::Guest(GuestObject { registration: Some(registration), .. })) => {
                registration.buffer().map(&GpuSet::Only(gpus.into())).map_err(|error| Answer::from(&error))?;
            }
            _ => return Err(Answer::status(status::INVALID_HANDLE)),
        }
        if self.shared.options.sabotage.has(Switch::FreedEarly) {
            if let Some(Object::Guest(guest)) = self.objects.get_mut(&resource) {
                guest.registration = None;
            }
        }
        Ok(Answer::value(start + (address - start)))
    }

    fn map_userptr(&mut self, resource: u32) -> Result<Answer, Answer> {
        let Some(Object::Guest(guest)) = self.objects.get_mut(&resource) else {
            return Err(Answer::status(status::INVALID_HANDLE));
        };
        let address = match guest.address {
            Some(address) => address,
            None => {
                let (bytes, skew) = (guest.memory.bytes(), skew(guest.memory.ranges()));
                let alignment = if bytes >= 2 << 20 { 2 << 20 } else { 0 };
                let address = self.space.take(bytes, alignment, skew).ok_or(Answer::status(status::NO_MEMORY))?;
                guest.address = Some(address);
                self.addresses.insert(address, resource);
                address
            }
        };
        let pages = guest.memory.bytes() / PAGE;
        let mut body = vec![0; 16];
        put64(&mut body, 0, address);
        put64(&mut body, 8, pages);
        Ok(Answer::body(body))
    }

    fn register(&mut self, address: u64, bytes: u64, flags: u32, resource: u32) -> Result<Answer, Answer> {
        let resource = self.guest_at(address, resource)?;
        let method = self.shared.options.method;
        let Some(Object::Guest(guest)) = self.objects.get_mut(&resource) else {
            return Err(Answer::status(status::INVALID_HANDLE));
        };
        let start = guest.address.ok_or(Answer::status(status::INVALID_HANDLE))?;
        if bytes == 0 || (address - start).checked_add(bytes).is_none_or(|end| end > guest.memory.bytes()) {
            return Err(Answer::refused(libc::EFAULT));
        }
        if guest.registration.is_some() {
            return Ok(Answer::status(status::SUCCESS));
        }
        if let Some(memory) = Arc::get_mut(&mut guest.memory) {
            super::super::register::break_list(memory, &self.shared.options.sabotage);
        }
        let (writable, executable) = (flags & flags::READ_ONLY == 0, flags & flags::EXECUTE != 0);
        let coherent = flags & flags::COARSE_GRAIN == 0;
        let began = std::time::Instant::now();
        let client = self.kfd.client();
        let made = Registration::new(client, &guest.memory, GpuVa(start), writable, executable, coherent, method);
        guest.registration = Some(made.map_err(|error| {
            tracing::warn!(%error, "the guest's memory cannot be registered");
            Answer::from(&error)
        })?);
        tracing::info!(
            ranges = guest.memory.ranges().len(),
            bytes = guest.memory.bytes(),
            microseconds = began.elapsed().as_micros(),
            "registered"
        );
        Ok(Answer::status(status::SUCCESS))
    }

    /// The object that has an address, the first of which is the result's.
    fn owner(&self, address: u64, resource: u32) -> Result<(u64, u32), Answer> {
        let (start, owner) = self.addresses.range(..=address).next_back().ok_or(Answer::refused(libc::EFAULT))?;
        let bytes = match self.objects.get(owner) {
            Some(Object::Memory(memory)) => memory.bytes,
            Some(Object::Guest(guest)) => guest.memory.bytes(),
            _ => 0,
        };
        if address - start >= bytes || (resource != 0 && resource != *owner) {
            return Err(Answer::refused(libc::EFAULT));
        }
        Ok((*start, *owner))
    }

    fn resource_at(&self, address: u64) -> Result<u32, Answer> {
        self.owner(address, 0).map(|(_, resource)| resource)
    }

    /// The blob of guest memory at an address.
    fn guest_at(&self, address: u64, resource: u32) -> Result<u32, Answer> {
        let (_, owner) = self.owner(address, resource)?;
        match self.objects.get(&owner) {
            Some(Object::Guest(_)) => Ok(owner),
            _ => Err(Answer::refused(libc::EFAULT)),
        }
    }

    /// What is at an address: where it begins, its bytes, and whether it is the guest's own memory.
    pub(super) fn span(&self, address: u64) -> Option<(u64, u64, bool)> {
        let (start, owner) = self.owner(address, 0).ok()?;
        match self.objects.get(&owner)? {
            Object::Memory(memory) => Some((start, memory.bytes, false)),
            Object::Guest(guest) => Some((start, guest.memory.bytes(), true)),
            _ => None,
        }
    }

    pub(super) fn end_memory(&mut self, mut memory: MemoryObject) {
        memory.free(&self.kfd);
        self.addresses.remove(&memory.address);
        self.space.give(memory.address);
    }

    pub(super) fn end_guest(&mut self, guest: GuestObject) {
        let address = guest.address;
        drop(guest);
        if let Some(address) = address {
            self.addresses.remove(&address);
            self.space.give(address);
        }
    }
}
