// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A whole hostile guest: contexts of both kinds with queues that run, on a machine whose GPU can
//! retry faults, and then any commands and packets with any addresses.
//!
//! The process has pages that the guest was not given, filled with a secret ([`Canaries`]). Their
//! addresses are among those that the guest names: in requests, in copies and other packets, as
//! arguments of kernels. Whatever the guest does,
//!
//! - no canary changes: nothing writes to the host's memory;
//! - the secret is neither in the guest's memory nor in the window: nothing reads it;
//! - afterwards nothing of the guest is left.
//!
//! Reads that end elsewhere (in VRAM, in an answer) are not seen.

use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use vkfd_kernels::Kernel;
use vkfd_remote::protocol::forward::{BlobKind, Piece};
use vkfd_remote::protocol::hsakmt::memory::Layout;
use vkfd_remote::protocol::hsakmt::query::Query;
use vkfd_remote::protocol::hsakmt::Request;
use vkfd_sabotage::Switches;
use vkfd_uapi::command as c;
use vkfd_uapi::memory::{
    AllocMemoryOfGpuArgs, MapMemoryToGpuArgs, ALLOC_MEM_FLAGS_EXECUTABLE, ALLOC_MEM_FLAGS_USERPTR,
    ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::{AcquireVmArgs, SetXnackModeArgs};
use vkfd_uapi::queue::{CreateQueueArgs, QUEUE_TYPE_SDMA};

use super::{forward, Input, STEPS};
use crate::device::Options;
use crate::simulated_guest::{Brought, Copies, Forwarded, Guest, Kernels, Library, PAGE};

const RAM_BYTES: u64 = 1 << 20;
const WINDOW_BYTES: u64 = 4 << 20;
/// Pages of the host's own that the guest is after.
const CANARIES: u64 = 3;
const WORDS: u64 = CANARIES * PAGE / 8;
#[allow(clippy::cast_possible_truncation)] // some pages
const BYTES: usize = (CANARIES * PAGE) as usize;
/// The canaries' bytes, with unmapped memory before and after them.
const AROUND: usize = BYTES + (4 << 20);
/// Their contents, with the word's number in the lowest bits.
const SECRET: u64 = 0x5ec2_e75e_c2e7_0000;
/// The page of a ring and its pointers in a forwarded context, on the GPU.
const RING_VA: u64 = 0x6000_0000_0000;
/// How long a GPU may take for its last command.
const MOMENT: Duration = Duration::from_millis(2);

/// Memory of the process, as a heap or a stack is. No page beside it is mapped, so that a guest
/// which a broken device lets in hits nothing else.
struct Canaries(NonNull<u64>);

impl Canaries {
    fn plant() -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let around = unsafe { libc::mmap(std::ptr::null_mut(), AROUND, libc::PROT_NONE, flags, -1, 0) };
        let around = NonNull::new(around).filter(|at| at.as_ptr() != libc::MAP_FAILED)?;
        let planted = Self(NonNull::new(around.as_ptr().wrapping_byte_add((AROUND - BYTES) / 2).cast())?);
        // SAFETY: a part of the new mapping.
        let opened = unsafe { libc::mprotect(planted.0.as_ptr().cast(), BYTES, libc::PROT_READ | libc::PROT_WRITE) };
        if opened != 0 {
            return None;
        }
        planted.fill();
        Some(planted)
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    fn words(&self) -> impl Iterator<Item = (*mut u64, u64)> + '_ {
        let start = self.0.as_ptr();
        (0..).zip(0..WORDS).map(move |(n, secret)| (start.wrapping_add(n), SECRET ^ secret))
    }

    fn fill(&self) {
        for (word, secret) in self.words() {
            // SAFETY: a word of the mapping, of which no reference exists.
            unsafe { word.write_volatile(secret) };
        }
    }

    /// Panics where something was written.
    fn check(&self) {
        for (word, secret) in self.words() {
            // SAFETY: as in `fill`.
            let there = unsafe { word.read_volatile() };
            if there != secret {
                self.fill();
                panic!("a guest has written {there:#x} to the host's memory");
            }
        }
    }
}

impl Drop for Canaries {
    fn drop(&mut self) {
        let around = self.0.as_ptr().wrapping_byte_sub((AROUND - BYTES) / 2);
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(around.cast(), AROUND) };
    }
}

/// Whether a part of a canary is among these bytes.
fn has_secret(bytes: &[u8]) -> bool {
    let mut words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_le_bytes);
    words.any(|word| (word ^ SECRET) < WORDS)
}

struct Rig {
    guest: Guest,
    canaries: Canaries,
    sabotage: Switches,
}

thread_local! {
    static RIG: RefCell<Option<Rig>> = const { RefCell::new(None) };
}

fn rig(sabotage: Switches) -> Option<Rig> {
    let mut options = Options { window: WINDOW_BYTES, sabotage, ..Options::default() };
    options.machine.vram = 16 << 20;
    options.machine.xnack = true;
    options.machine.threads = 1;
    Some(Rig { guest: Guest::with_ram(options, RAM_BYTES), canaries: Canaries::plant()?, sabotage })
}

/// A hostile guest's commands and packets. Panics when it has reached the host's memory, or when
/// something of it is left.
pub fn hostile(bytes: &[u8]) {
    hostile_to(bytes, Switches::NONE);
}

/// The same with a device that is broken, to see that it is noticed.
pub fn hostile_to(bytes: &[u8], sabotage: Switches) {
    RIG.with_borrow_mut(|slot| {
        let Some(rig) = slot.take().filter(|rig| rig.sabotage == sabotage).or_else(|| rig(sabotage)) else { return };
        let Rig { guest, canaries, .. } = slot.insert(rig);
        let mut run = Run { ring: None, copies: None, kernels: None, at: canaries.address() };
        let mut input = Input(bytes);
        run.begin(&mut input, guest);
        for _ in 0..STEPS {
            if input.0.is_empty() {
                break;
            }
            match input.byte() % 4 {
                0 => input.step(&mut guest.device),
                1 => forward::step(&mut input, &mut guest.device),
                _ => run.packets(&mut input, guest),
            }
            canaries.check();
        }
        std::thread::sleep(MOMENT);
        canaries.check();
        run.look(guest);
        guest.restart();
        canaries.check();
        let began = Instant::now();
        while guest.device.left() != 0 && began.elapsed().as_secs() < 5 {
            std::thread::yield_now();
        }
        assert_eq!(guest.device.left(), 0, "something of the guest is left");
    });
}

/// A ring of copies in a forwarded context, by the places of its parts in the window.
struct Ring {
    ring: u64,
    pointers: u64,
    doorbell: u64,
    written: u64,
}

struct Run {
    ring: Option<Ring>,
    copies: Option<Copies>,
    kernels: Option<Kernels>,
    /// The canaries' address.
    at: u64,
}

impl Run {
    /// Both contexts, with queues of each kind, and XNACK asked for in every way there is.
    fn begin(&mut self, input: &mut Input<'_>, guest: &mut Guest) {
        let choice = input.byte();
        if choice & 1 == 0 {
            let mut library = Library::open(guest, 1, Layout::Y2026);
            let _ = library.ask(guest, &Request::Query(Query::SetXnack(1)));
            self.copies = Some(library.copies(guest));
            if choice & 2 == 0 {
                self.kernels = library.kernels(guest);
            }
        }
        if choice & 5 != 4 {
            self.ring = ring(guest);
        }
    }

    /// An address that the guest has, that the host has, or any.
    fn address(&self, input: &mut Input<'_>) -> u64 {
        let offset = u64::from(input.byte()) * 8;
        match input.byte() % 8 {
            0..=2 => self.at + u64::from(input.byte() % 3) * PAGE + offset,
            3 | 4 => RING_VA + offset * 16,
            5 | 6 => 0x7000_0000_0000 + u64::from(input.byte()) * PAGE + offset,
            _ => (0..8).fold(0, |address, _| address << 8 | u64::from(input.byte())),
        }
    }

    fn packets(&mut self, input: &mut Input<'_>, guest: &Guest) {
        if let Some(kernels) = self.kernels.as_mut().filter(|_| input.byte() % 8 == 0) {
            let (mut a, mut b) = (0, 0);
            for address in [&mut a, &mut b] {
                *address = match input.byte() % 2 {
                    0 => self.at + u64::from(input.byte()) * 8,
                    _ => 0x7000_0000_0000 + u64::from(input.byte()) * PAGE,
                };
            }
            let count = u64::from(input.byte() % 64) + 1;
            let kernel = match input.byte() % 3 {
                0 => Kernel::Copy64 { dst: a, src: b, count },
                1 => Kernel::Fill64 { dst: a, count, value: 1 },
                _ => Kernel::Sum64 { src: a, count, out: b },
            };
            let _ = kernels.run(guest, &kernel, MOMENT);
            return;
        }
        let halves = |address: u64| [address & 0xffff_ffff, address >> 32].map(|half| u32::try_from(half).unwrap_or(0));
        let mut words = Vec::new();
        for _ in 0..=input.byte() % 4 {
            let [to, from] = [self.address(input), self.address(input)].map(halves);
            let bytes = u32::from(input.byte()) * 16;
            match input.byte() % 8 {
                // Copy, fill, fence, atomic, indirect buffer.
                0..=3 => words.extend([1, bytes, 0, from[0], from[1], to[0], to[1]]),
                4 => words.extend([11, to[0], to[1], bytes, bytes]),
                5 => words.extend([5, to[0], to[1], bytes]),
                6 => words.extend([10 | 47 << 25, to[0], to[1], 1, 0, 0, 0, 0]),
                _ => words.extend([4, to[0], to[1], bytes, 0, 0]),
            }
            if input.byte() % 16 == 0 {
                words.push(u32::from(input.byte()) << 24 | u32::from(input.byte()));
            }
        }
        let forwarded = input.byte() % 2 == 0;
        match (&mut self.copies, &mut self.ring) {
            (_, Some(ring)) if forwarded => ring.send(guest, &words),
            (Some(copies), _) => copies.send(guest, &words),
            (None, Some(ring)) => ring.send(guest, &words),
            (None, None) => {}
        }
        if input.byte() % 8 == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Panics when the guest has some of the secret.
    fn look(&self, guest: &Guest) {
        let files = [(&guest.file, RAM_BYTES), (guest.device.window().file(), WINDOW_BYTES)];
        let mut part = vec![0; 1 << 20];
        for (file, bytes) in files {
            for offset in (0..bytes).step_by(part.len()) {
                // Reading a hole takes no memory, as an access to a mapping would.
                let read = file.read_at(&mut part, offset).unwrap_or(0);
                assert!(!has_secret(&part[..read]), "a guest has read the host's memory");
            }
        }
    }
}

impl Ring {
    fn send(&mut self, guest: &Guest, words: &[u32]) {
        use std::sync::atomic::Ordering;
        for word in words {
            guest.window.half(self.ring + self.written % PAGE).store(*word, Ordering::Relaxed);
            self.written += 4;
        }
        guest.window.word(self.pointers).store(self.written, Ordering::Release);
        guest.window.word(self.doorbell).store(self.written, Ordering::Release);
    }
}

/// A forwarded context with a queue of copies: a page for the ring, one for the pointers.
fn ring(guest: &mut Guest) -> Option<Ring> {
    let gpu_id = guest.device.machine().driver().devices().first()?.id();
    let mut caller = Forwarded::open(guest, 2);
    let acquire = AcquireVmArgs { drm_fd: 0, gpu_id };
    let _ = caller.call(guest, c::ACQUIRE_VM, acquire.as_bytes(), Brought::default());
    let _ = caller.call(guest, c::SET_XNACK_MODE, SetXnackModeArgs { xnack_enabled: 1 }.as_bytes(), Brought::default());
    let (resource, ring) = guest.host_blob(2, BlobKind::Memory.id(), 2 * PAGE, true);
    let flags = ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_EXECUTABLE;
    let asked = AllocMemoryOfGpuArgs { va_addr: RING_VA, size: 2 * PAGE, handle: 0, mmap_offset: 0, gpu_id, flags };
    let pieces = vec![Piece { resource, offset: 0, bytes: 2 * PAGE }];
    let (_, made) = caller.call(guest, c::ALLOC_MEMORY_OF_GPU, asked.as_bytes(), pieces);
    let handle = u64::from_ne_bytes(made.get(16..24)?.try_into().ok()?);
    let map = MapMemoryToGpuArgs { handle, device_ids_array_ptr: 1, n_devices: 1, n_success: 0 };
    let arrays = Brought { arrays: vec![gpu_id.to_le_bytes().to_vec()], pieces: vec![] };
    let _ = caller.call(guest, c::MAP_MEMORY_TO_GPU, map.as_bytes(), arrays);
    let (_, doorbells) = guest.host_blob(2, BlobKind::Doorbells(gpu_id & 0xffff).id(), 2 * PAGE, true);
    let create = CreateQueueArgs {
        ring_base_address: RING_VA,
        write_pointer_address: RING_VA + PAGE,
        read_pointer_address: RING_VA + PAGE + 8,
        ring_size: 4096,
        gpu_id,
        queue_type: QUEUE_TYPE_SDMA,
        queue_percentage: 100,
        queue_priority: 7,
        ..CreateQueueArgs::zeroed()
    };
    let (errno, made) = caller.call(guest, c::CREATE_QUEUE, create.as_bytes(), Brought::default());
    let offset = u64::from_ne_bytes(made.get(24..32)?.try_into().ok()?);
    let at = vkfd_uapi::mmap::position(offset) & (2 * PAGE - 1);
    (errno == 0).then_some(Ring { ring, pointers: ring + PAGE, doorbell: doorbells + at, written: 0 })
}
