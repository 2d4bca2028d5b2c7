// SPDX-License-Identifier: GPL-2.0 OR MIT
//! vhost-user: the device for a VMM that connects to a socket.
//!
//! Mechanism: rust-vmm's crates speak vhost-user and walk the rings; a thread of theirs hands over
//! each command of the control queue, copied out of guest memory first. The window is the device's
//! shared memory region 1: one file, which the VMM is asked to map once, before the first command
//! is done. That must not happen while the VMM waits for an answer of ours, so it is done by the
//! thread of the queues.
//!
//! One VMM at a time. When it goes, all that its guest had goes; the next one finds a new device.
//!
//! Locks: `device` is held while a command is done, never while an answer is given to a ring that
//! another thread may hold. The guest's memory has its own lock, so that the VMM can change it
//! while a command runs.
//!
//! Limits: split rings; no migration. The window needs protocol feature SHMEM under the number that
//! vhost 0.18 has for it, which is QEMU 11.1's.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use vhost::vhost_user::message::{
    VhostUserMMap, VhostUserMMapFlags, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Backend, Listener, VhostUserFrontendReqHandler};
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringMutex, VringT};
use virtio_queue::{DescriptorChain, QueueOwnedT};
use vkfd_host::{HostError, Listening};
use vkfd_remote::protocol::control::{HEADER_BYTES, MAX_COMMAND_BYTES};
use vm_memory::{
    Address, Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend, GuestMemoryLoadGuard,
    GuestMemoryMmap, GuestMemoryRegion,
};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{new_event_consumer_and_notifier, EventConsumer, EventFlag, EventNotifier};

use crate::device::ram::{Part, RamTable};
use crate::device::window::Window;
use crate::device::{Device, Options};

/// `VIRTIO_GPU_F_VIRGL`: it has contexts.
const F_VIRGL: u64 = 1 << 0;
/// `..RESOURCE_BLOB`.
const F_RESOURCE_BLOB: u64 = 1 << 3;
/// `..CONTEXT_INIT`: contexts have kinds, and rings.
const F_CONTEXT_INIT: u64 = 1 << 4;
/// `VIRTIO_F_RING_INDIRECT_DESC`.
const F_INDIRECT: u64 = 1 << 28;
/// `VIRTIO_F_VERSION_1`.
const F_VERSION_1: u64 = 1 << 32;

/// `VIRTIO_GPU_SHM_ID_HOST_VISIBLE`.
const WINDOW_REGION: u8 = 1;
/// Control and cursor.
const QUEUES: usize = 2;
const QUEUE_SIZE: usize = 1024;
/// Virtio's number of the control queue.
const CONTROL: u16 = 0;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type Ring = VringMutex<Memory>;

/// Why the device is not there.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The machine cannot be made.
    #[error("the machine cannot be made: {0}")]
    Machine(#[from] HostError),
    /// The socket cannot be used.
    #[error("vhost-user: {0}")]
    Socket(String),
}

/// The device between a VMM and [`Device`].
struct Backing {
    device: Mutex<Device>,
    ram: Arc<RamTable>,
    window: Arc<Window>,
    memory: Mutex<Option<Memory>>,
    frontend: Mutex<Frontend>,
    exit: Mutex<Vec<(EventConsumer, EventNotifier)>>,
}

/// The way to ask the VMM for something.
#[derive(Default)]
struct Frontend {
    channel: Option<Backend>,
    window_is_mapped: bool,
}

impl Backing {
    fn new(device: Device) -> Self {
        Self {
            ram: device.ram().clone(),
            window: device.window().clone(),
            device: Mutex::new(device),
            memory: Mutex::default(),
            frontend: Mutex::default(),
            exit: Mutex::default(),
        }
    }

    /// Has the VMM map the window, once.
    fn show_window(&self) {
        let mut frontend = self.frontend.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(channel) = frontend.channel.clone().filter(|_| !frontend.window_is_mapped) else { return };
        let request = VhostUserMMap {
            shmid: WINDOW_REGION,
            fd_offset: 0,
            shm_offset: 0,
            len: self.window.bytes(),
            flags: VhostUserMMapFlags::WRITABLE.bits(),
            ..VhostUserMMap::default()
        };
        match channel.shmem_map(&request, self.window.file()) {
            Ok(_) => tracing::info!(bytes = self.window.bytes(), "the VMM has mapped the window"),
            Err(error) => tracing::error!(%error, "the VMM does not map the window: what the guest maps is not there"),
        }
        frontend.window_is_mapped = true;
    }

    /// Does what is in the control queue.
    fn control(&self, ring: &Ring) -> io::Result<()> {
        loop {
            ring.disable_notification().map_err(io::Error::other)?;
            while let Some(chain) = self.next(ring)? {
                self.command(ring, chain);
            }
            if !ring.enable_notification().map_err(io::Error::other)? {
                return Ok(());
            }
        }
    }

    #[allow(clippy::type_complexity)]
    fn next(&self, ring: &Ring) -> io::Result<Option<DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>>> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(memory) = memory.as_ref().map(GuestAddressSpace::memory) else { return Ok(None) };
        let mut state = ring.get_mut();
        let mut chains = state.get_queue_mut().iter(memory).map_err(io::Error::other)?;
        Ok(chains.next())
    }

    fn command(&self, ring: &Ring, chain: DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>) {
        let head = chain.head_index();
        let memory = chain.memory().clone();
        let (mut command, mut room) = (Vec::new(), Vec::new());
        let mut whole = true;
        for part in chain {
            let length = part.len() as usize;
            if part.is_write_only() {
                room.push((part.addr(), length));
                continue;
            }
            let start = command.len();
            if start + length > MAX_COMMAND_BYTES {
                whole = false;
                continue;
            }
            command.resize(start + length, 0);
            // Copied before it is looked at: the guest may change it at any time.
            whole &= memory.read_slice(&mut command[start..], part.addr()).is_ok();
        }
        if !whole {
            // Answered as a header without a command.
            tracing::warn!("a command is too long, or not in the guest's memory");
            command.truncate(HEADER_BYTES);
        }
        let ring = ring.clone();
        let reply = Box::new(move |answer: &[u8]| {
            let written = scatter(&memory, &room, answer);
            if let Err(error) = ring.add_used(head, written) {
                tracing::warn!(%error, "an answer cannot be given");
            } else if let Err(error) = ring.signal_used_queue() {
                tracing::warn!(%error, "the guest cannot be interrupted");
            }
        });
        self.device.lock().unwrap_or_else(PoisonError::into_inner).execute(&command, reply);
    }
}

/// Writes an answer to the guest's address for it. Bytes that had room.
fn scatter(memory: &GuestMemoryMmap, room: &[(GuestAddress, usize)], mut answer: &[u8]) -> u32 {
    let mut written = 0_u32;
    for (at, length) in room {
        let (part, rest) = answer.split_at(answer.len().min(*length));
        if memory.write_slice(part, *at).is_err() {
            break;
        }
        written = written.saturating_add(u32::try_from(part.len()).unwrap_or(u32::MAX));
        answer = rest;
    }
    written
}

impl VhostUserBackend for Backing {
    type Bitmap = ();
    type Vring = Ring;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        let gpu = F_VIRGL | F_RESOURCE_BLOB | F_CONTEXT_INIT;
        gpu | F_INDIRECT | F_VERSION_1 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::BACKEND_SEND_FD
            | VhostUserProtocolFeatures::SHMEM
    }

    fn acked_features(&self, features: u64) {
        for (bit, name) in [(F_RESOURCE_BLOB, "blobs"), (F_CONTEXT_INIT, "kinds of context")] {
            if features & bit == 0 {
                tracing::warn!("the guest's driver does not use {name}: there is no native context for it");
            }
        }
    }

    fn reset_device(&self) {
        self.device.lock().unwrap_or_else(PoisonError::into_inner).reset();
    }

    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        // Events read and clear, displays, capability sets, blob alignment.
        let sets = u32::try_from(vkfd_remote::protocol::capset::ALL.len()).unwrap_or(0);
        let config: Vec<u8> = [0, 0, 0, sets, 0].into_iter().flat_map(u32::to_le_bytes).collect();
        let (start, size) = (offset as usize, size as usize);
        let mut part: Vec<u8> = config.into_iter().skip(start).take(size).collect();
        part.resize(size, 0);
        part
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        let table = memory.memory();
        let mut parts = Vec::new();
        for region in table.iter() {
            let file = region.file_offset().ok_or(io::ErrorKind::InvalidInput)?;
            parts.push(Part {
                address: region.start_addr().raw_value(),
                bytes: region.len(),
                file: file.file(),
                offset: file.start(),
            });
        }
        self.ram.replace(&parts, self.window.file())?;
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(memory);
        Ok(())
    }

    fn set_backend_req_fd(&self, channel: Backend) {
        *self.frontend.lock().unwrap_or_else(PoisonError::into_inner) =
            Frontend { channel: Some(channel), window_is_mapped: false };
    }

    fn exit_event(&self, _thread_index: usize) -> Option<(EventConsumer, EventNotifier)> {
        self.exit.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn get_shmem_config(&self) -> io::Result<VhostUserShMemConfig> {
        let mut sizes = [0; 2];
        sizes[usize::from(WINDOW_REGION)] = self.window.bytes();
        Ok(VhostUserShMemConfig::new(1, &sizes))
    }

    fn handle_event(&self, event: u16, events: EventSet, rings: &[Ring], _thread: usize) -> io::Result<()> {
        if events != EventSet::IN {
            return Ok(());
        }
        self.show_window();
        let Some(ring) = rings.get(usize::from(event)) else { return Ok(()) };
        if event == CONTROL {
            return self.control(ring);
        }
        // Cursors are for displays: taken and given back.
        while let Some(chain) = self.next(ring)? {
            ring.add_used(chain.head_index(), 0).map_err(io::Error::other)?;
        }
        ring.signal_used_queue()
    }
}

/// Serves one VMM after the other at `socket`. With `once` it ends with the first.
///
/// # Errors
/// [`ServeError`]: the machine or the socket cannot be made. A VMM that breaks off is none.
pub fn serve(socket: &Path, options: Options, once: bool) -> Result<(), ServeError> {
    let failed = |error: &dyn std::fmt::Display| ServeError::Socket(error.to_string());
    // Its file goes with it at the end.
    let socket = Listening::at(socket).map_err(|e| failed(&e))?;
    let mut listener = Listener::from(socket.try_clone().map_err(|e| failed(&e))?);
    loop {
        let backing = Arc::new(Backing::new(Device::new(options)?));
        let exit = new_event_consumer_and_notifier(EventFlag::NONBLOCK).map_err(|e| failed(&e))?;
        backing.exit.lock().unwrap_or_else(PoisonError::into_inner).push(exit);
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let mut daemon =
            VhostUserDaemon::new("vkfd-virtio-gpu".into(), backing.clone(), memory).map_err(|e| failed(&e))?;
        daemon.start(&mut listener).map_err(|e| failed(&e))?;
        tracing::info!("a VMM has connected");
        if let Err(error) = daemon.wait() {
            tracing::info!(%error, "the VMM has gone");
        }
        for handler in daemon.get_epoll_handlers() {
            handler.send_exit_event();
        }
        drop(daemon);
        let mut device = backing.device.lock().unwrap_or_else(PoisonError::into_inner);
        device.reset();
        match device.left() {
            0 => tracing::info!("nothing of the guest is left"),
            left => tracing::error!(left, "processes or places of the guest are left"),
        }
        drop(device);
        if once {
            return Ok(());
        }
    }
}
