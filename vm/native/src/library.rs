// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What AMD's library does for a program, in its order: opening, memory, registration, queues,
//! events.
//!
//! Registration of a program's own memory needs a kernel with the userptr patches. Other kernels
//! need a substitute. A blob of guest memory gets the contents and is mapped over the program's
//! range, and address and contents stay the same. The host gets the scatter list of the guest's
//! real pages.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use vkfd_remote::protocol::blob::{FLAG_MAPPABLE, MEM_HOST3D, MEM_HOST3D_GUEST};
use vkfd_remote::protocol::capset;
use vkfd_remote::protocol::hsakmt::event::{Event, EVENT_BYTES};
use vkfd_remote::protocol::hsakmt::memory::{flags, Layout, Memory};
use vkfd_remote::protocol::hsakmt::query::{Query, BODY_BYTES};
use vkfd_remote::protocol::hsakmt::queue::{self, answer, kind, Create, Queue};
use vkfd_remote::protocol::hsakmt::{shared, Request};

use crate::drm::{Gem, Node};

const PAGE: u64 = 4096;
/// Largest answer that is asked for.
const ANSWER_BYTES: u32 = 8192;

/// Mapped memory; unmapped when dropped.
pub struct Mapping {
    at: NonNull<c_void>,
    bytes: u64,
    /// Given back as reserved addresses, not as free ones.
    reserved: bool,
}

// SAFETY: memory that is accessed by raw copies and atomics only.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(crate) fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at % 8 == 0 && at + 8 <= self.bytes);
        // SAFETY: an aligned word of the mapping, which lives as long as `self`, accessed
        // atomically.
        unsafe { AtomicU64::from_ptr(self.at.byte_add(size(at)).cast().as_ptr()) }
    }

    pub(crate) fn half(&self, at: u64) -> &AtomicU32 {
        assert!(at % 4 == 0 && at + 4 <= self.bytes);
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.at.byte_add(size(at)).cast().as_ptr()) }
    }

    /// Copies in.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= self.bytes);
        // SAFETY: inside of the mapping, to which no reference exists.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.byte_add(size(at)).cast().as_ptr(), bytes.len())
        };
    }

    /// Copies out.
    pub fn read(&self, at: u64, bytes: &mut [u8]) {
        assert!(at + bytes.len() as u64 <= self.bytes);
        // SAFETY: inside of the mapping, to which no reference exists.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at.byte_add(size(at)).cast().as_ptr(), bytes.as_mut_ptr(), bytes.len())
        };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self.reserved {
            true => drop(reserve(Some(self.at.as_ptr().expose_provenance() as u64), self.bytes)),
            // SAFETY: the mapping is this object's own.
            false => drop(unsafe { libc::munmap(self.at.as_ptr(), size(self.bytes)) }),
        }
    }
}

fn size(bytes: u64) -> usize {
    #[allow(clippy::cast_possible_truncation)]
    let size = bytes as usize;
    size
}

/// Addresses without memory.
fn reserve(at: Option<u64>, bytes: u64) -> Result<NonNull<c_void>> {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    let hint = std::ptr::with_exposed_provenance_mut(size(at.unwrap_or(0)));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: the caller may replace the mapping at a fixed address.
    let mapped = unsafe { libc::mmap(hint, size(bytes), libc::PROT_NONE, flags, -1, 0) };
    ensure!(mapped != libc::MAP_FAILED, "reserve {bytes:#x} bytes: {}", std::io::Error::last_os_error());
    NonNull::new(mapped).context("mmap gave the null page")
}

/// An answer: status and body.
pub struct Answer {
    /// 0, a status of libhsakmt, or a negative error number.
    pub status: i32,
    /// What was asked for.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body of a request that must succeed.
    pub fn ok(self, what: &str) -> Result<Vec<u8>> {
        ensure!(self.status == 0, "{what}: the host answers {}", self.status);
        Ok(self.body)
    }

    fn long(body: &[u8], at: usize) -> Result<u64> {
        let bytes = body.get(at..at + 8).context("the answer is too short")?;
        Ok(u64::from_le_bytes(bytes.try_into()?))
    }

    fn word(body: &[u8], at: usize) -> Result<u32> {
        let bytes = body.get(at..at + 4).context("the answer is too short")?;
        Ok(u32::from_le_bytes(bytes.try_into()?))
    }
}

/// A process's use of the device.
pub struct Session {
    pub(crate) node: Node,
    _responses: Gem,
    page: Mapping,
    area: u64,
    next_answer: u32,
    sequence: u32,
    next_blob: u64,
    layout: Layout,
    /// Node numbers of the GPUs.
    pub gpus: Vec<u32>,
    /// Major version of the instruction set of the last GPU; all have the same.
    pub gfx: u32,
    /// All of it, as KFD writes it.
    pub target: u32,
    doorbells: Option<(Gem, Mapping)>,
    /// Whether registrations had to be stood in for.
    pub stand_in: bool,
}

impl Session {
    /// Opens the device, reserves the addresses that the host gives out, and looks at the machine.
    pub fn open(layout: Layout) -> Result<Self> {
        let (node, set) = Node::open(capset::HSAKMT)?;
        ensure!(set.len() == capset::HSAKMT_BYTES && set[0] == 1, "an unknown wire format: {set:?}");
        let responses = node.blob(MEM_HOST3D, FLAG_MAPPABLE, shared::BYTES, shared::BLOB).context("response memory")?;
        let at = node.map(&responses, None, shared::BYTES)?;
        let page = Mapping { at, bytes: shared::BYTES, reserved: false };
        let area = page.half(shared::AREA_OFFSET).load(Ordering::Acquire).into();
        ensure!((16..shared::BYTES).contains(&area), "the host's response area begins at {area}");
        let (sequence, next_answer, next_blob) = (0, 0, 1);
        let mut session = Self {
            node,
            _responses: responses,
            page,
            area,
            next_answer,
            sequence,
            next_blob,
            layout,
            gpus: Vec::new(),
            gfx: 0,
            target: 0,
            doorbells: None,
            stand_in: false,
        };
        let heap = std::ptr::from_ref(&session).expose_provenance() as u64;
        let body = session.query(Query::OpenKfd { heap })?;
        let (start, bytes) = (Answer::long(&body, 0)?, Answer::long(&body, 8)?);
        reserve(Some(start), bytes).context("the addresses that the host gives out")?;
        let version = session.query(Query::Version)?;
        ensure!(Answer::word(&version, 0)? == 1, "KFD {version:?}");
        let nodes = Answer::word(&session.query(Query::System)?, 0)?;
        for number in 0..nodes {
            let properties = session.query(Query::Node(number))?;
            // Cores of a GPU.
            if Answer::word(&properties, 4)? > 0 {
                session.gpus.push(number);
                let engine = Answer::word(&properties, 76)?;
                session.gfx = engine >> 10 & 0x3f;
                session.target = session.gfx * 10_000 + (engine >> 16 & 0xff) * 100 + (engine >> 24 & 0xff);
            }
            let banks = Answer::word(&properties, 12)?;
            ensure!(session.query(Query::Banks(number, banks))?.len() >= BODY_BYTES + 32 * size(banks.into()), "banks");
        }
        ensure!(!session.gpus.is_empty(), "the machine has no GPU");
        Ok(session)
    }

    fn query(&mut self, query: Query) -> Result<Vec<u8>> {
        self.send(&Request::Query(query))?.ok(&format!("{query:?}"))
    }

    /// Sends a request and waits: for the fence first, after which the answer must be there.
    pub fn send(&mut self, request: &Request) -> Result<Answer> {
        let (at, bytes) = self.prepare(request);
        self.node.execute(&bytes, 0)?;
        self.answer(at)
    }

    fn prepare(&mut self, request: &Request) -> (u32, Vec<u8>) {
        let room = u32::try_from(shared::BYTES - self.area).unwrap_or(0);
        if self.next_answer + ANSWER_BYTES > room {
            self.next_answer = 0;
        }
        let at = self.next_answer;
        self.next_answer += ANSWER_BYTES;
        self.sequence = self.sequence.wrapping_add(1);
        self.page.half(self.area + u64::from(at)).store(ANSWER_BYTES, Ordering::Release);
        (at, request.encode(self.sequence, at))
    }

    fn answer(&self, at: u32) -> Result<Answer> {
        let seen = self.page.half(shared::SEQUENCE).load(Ordering::Acquire);
        ensure!(seen == self.sequence, "the fence came before the work: request {} of {}", seen, self.sequence);
        let at = self.area + u64::from(at);
        let mut body = vec![0; size(u64::from(ANSWER_BYTES)) - 8];
        self.page.read(at + shared::ANSWER_BODY, &mut body);
        let status = self.page.half(at + shared::ANSWER_RESULT).load(Ordering::Acquire);
        Ok(Answer { status: i32::from_le_bytes(status.to_le_bytes()), body })
    }

    pub(crate) fn blob(&mut self) -> u64 {
        self.next_blob += 1;
        self.next_blob
    }

    /// A request about memory, which must succeed.
    pub fn memory(&mut self, memory: Memory) -> Result<Vec<u8>> {
        let what = format!("{memory:?}");
        self.send(&Request::Memory(memory, self.layout))?.ok(&what)
    }

    /// A request about memory that the host may refuse.
    pub fn try_memory(&mut self, memory: Memory) -> Result<i32> {
        Ok(self.send(&Request::Memory(memory, self.layout))?.status)
    }

    /// Allocates memory and maps it on all GPUs; for the CPU too if `host` says so.
    pub fn alloc(&mut self, node: u32, bytes: u64, host: bool) -> Result<Allocation> {
        let blob = self.blob();
        let bytes = bytes.next_multiple_of(PAGE);
        let flags = flags::EXECUTE | if host { flags::HOST_ACCESS } else { flags::COARSE_GRAIN };
        let request = Memory::Alloc { node, flags, bytes, address: 0, alignment: 0, blob };
        let address = Answer::long(&self.memory(request)?, 0)?;
        let gem = self.node.blob(MEM_HOST3D, u32::from(host), bytes, blob).context("blob of an allocation")?;
        let mapping = match host {
            true => Some(Mapping { at: self.node.map(&gem, Some(address), bytes)?, bytes, reserved: true }),
            false => None,
        };
        let mapped = self.map(address, bytes, gem.resource)?;
        ensure!(mapped == address, "allocated memory has another address on the GPU");
        Ok(Allocation { address, mapping, _gem: gem })
    }

    /// Maps on all GPUs. The address that they have it at.
    pub fn map(&mut self, address: u64, bytes: u64, resource: u32) -> Result<u64> {
        let nodes = self.gpus.clone();
        Answer::long(&self.memory(Memory::MapToNodes { address, bytes, resource, nodes })?, 0)
    }

    /// Registers memory of this program: afterwards its GPUs have it at the result's address.
    pub fn register(&mut self, at: NonNull<c_void>, bytes: u64) -> Result<Registered> {
        let registered = self.adopt(at, bytes)?;
        self.register_again(&registered)?;
        Ok(registered)
    }

    /// The blob of a registration, and its addresses, without the registration.
    pub fn adopt(&mut self, at: NonNull<c_void>, bytes: u64) -> Result<Registered> {
        let blob = self.blob();
        let gem = match self.node.userptr(at, bytes, blob) {
            Ok(gem) => gem,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.stand_in = true;
                let gem =
                    self.node.blob(MEM_HOST3D_GUEST, FLAG_MAPPABLE, bytes, blob).context("blob of guest memory")?;
                let there = Mapping { at: self.node.map(&gem, None, bytes)?, bytes, reserved: false };
                // SAFETY: both are mapped, of that size, and do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), there.at.as_ptr(), size(bytes)) };
                self.node.map(&gem, Some(at.as_ptr().expose_provenance() as u64), bytes)?;
                gem
            }
            Err(error) => return Err(error).context("userptr blob"),
        };
        let body = self.memory(Memory::MapUserptr { resource: gem.resource })?;
        let address = Answer::long(&body, 0)?;
        ensure!(address != 0 && Answer::word(&body, 8)? == u32::try_from(bytes / PAGE)?, "MAP_USERPTR: {body:?}");
        Ok(Registered { address, bytes, gem })
    }

    /// Registers a blob, unmapped.
    pub fn register_only(&mut self, registered: &Registered) -> Result<()> {
        let Registered { address, bytes, gem } = registered;
        // A library of 2025 names the address alone.
        let resource = if self.layout == Layout::Y2026 { gem.resource } else { 0 };
        self.memory(Memory::Register { address: *address, bytes: *bytes, flags: 0, resource }).map(drop)
    }

    /// Registers a blob and maps it.
    pub fn register_again(&mut self, registered: &Registered) -> Result<()> {
        self.register_only(registered)?;
        let Registered { address, bytes, .. } = *registered;
        let mapped = self.map(address, bytes, 0)?;
        ensure!(mapped == address, "registered memory has moved");
        Ok(())
    }

    /// Ends a registration, not the blob.
    pub fn deregister(&mut self, registered: &Registered) -> Result<()> {
        let address = registered.address;
        self.memory(Memory::Unmap { address })?;
        self.memory(Memory::Deregister { address, resource: 0 })?;
        Ok(())
    }

    /// Makes a signal event. Its number and where the GPU writes to signal it.
    pub fn event(&mut self) -> Result<(u32, u64)> {
        let blob = self.blob();
        let node = self.gpus[0];
        let create = Event::Create { kind: 0, node, manual: false, signalled: false, blob };
        let body = self.send(&Request::Event(create))?.ok("create an event")?;
        let gem = self.node.blob(MEM_HOST3D, 0, PAGE, blob).context("blob of an event")?;
        // The event lives as long as the context.
        std::mem::forget(gem);
        Ok((Answer::word(&body, 0)?, Answer::long(&body, 36)?))
    }

    /// Signals an event.
    pub fn set_event(&mut self, event: u32) -> Result<()> {
        self.send(&Request::Event(Event::Set(event)))?.ok("signal an event").map(drop)
    }

    /// Waits for events, on a ring of its own, so that nothing else waits. Whether they came in
    /// time.
    pub fn wait(&mut self, events: &[u32], milliseconds: u32) -> Result<bool> {
        let wait = Event::Wait { events: events.into(), all: false, milliseconds };
        let (at, bytes) = self.prepare(&Request::Event(wait));
        self.node.execute(&bytes, 1)?;
        let answer = self.answer(at)?;
        match answer.status {
            0 => ensure!(answer.body.len() >= EVENT_BYTES, "no events"),
            vkfd_remote::protocol::hsakmt::status::WAIT_TIMEOUT => return Ok(false),
            status => bail!("waiting: the host answers {status}"),
        }
        Ok(true)
    }

    /// Makes a queue of copies.
    pub fn copy_queue(&mut self) -> Result<CopyQueue> {
        let node = self.gpus[0];
        let ring = self.alloc(node, RING_BYTES, true)?;
        let fence = self.alloc(node, PAGE, true)?;
        let (blob, pointers_blob) = (self.blob(), self.blob());
        let create = self.create(node, kind::SDMA, &ring, blob);
        let (body, doorbell) = self.queue(Create { pointers_blob, ..create })?;
        let gem = self.node.blob(MEM_HOST3D, FLAG_MAPPABLE, PAGE, pointers_blob).context("blob of pointers")?;
        let pointers = Mapping { at: self.node.map(&gem, None, PAGE)?, bytes: PAGE, reserved: false };
        let object = self.node.blob(MEM_HOST3D, 0, RING_BYTES, blob).context("blob of a queue")?;
        Ok(CopyQueue {
            gfx: self.gfx,
            ring,
            fence,
            written: 0,
            number: 0,
            doorbell,
            pointers,
            write_offset: Answer::long(&body, answer::WRITE_OFFSET)?,
            read_offset: Answer::long(&body, answer::READ_OFFSET)?,
            _gems: [object, gem],
        })
    }

    pub(crate) fn create(&mut self, node: u32, kind: u32, ring: &Allocation, blob: u64) -> Create {
        let doorbell_blob = if self.doorbells.is_some() { 0 } else { self.blob() };
        Create {
            node,
            kind,
            percentage: 100,
            ring: ring.address,
            ring_bytes: RING_BYTES,
            blob,
            doorbell_blob,
            ..Create::default()
        }
    }

    /// Makes a queue, and maps the doorbells with the first. The answer, and the doorbell.
    pub(crate) fn queue(&mut self, create: Create) -> Result<(Vec<u8>, u64)> {
        let body = self.send(&Request::Queue(Queue::Create(create)))?.ok("create a queue")?;
        let (doorbell, offset) =
            (Answer::long(&body, answer::DOORBELL)?, Answer::long(&body, answer::DOORBELL_OFFSET)?);
        if create.doorbell_blob != 0 {
            const BYTES: u64 = 8192;
            let gem = self.node.blob(MEM_HOST3D, FLAG_MAPPABLE, BYTES, create.doorbell_blob).context("doorbells")?;
            let at = self.node.map(&gem, Some(doorbell - offset), BYTES)?;
            self.doorbells = Some((gem, Mapping { at, bytes: BYTES, reserved: true }));
        }
        ensure!(Answer::long(&body, queue::answer::QUEUE_ID)? != 0, "a queue without a number");
        Ok((body, doorbell))
    }
}

/// Memory of the host.
pub struct Allocation {
    /// For GPU and CPU.
    pub address: u64,
    /// Where the CPU can reach it.
    pub mapping: Option<Mapping>,
    _gem: Gem,
}

impl Allocation {
    /// As the CPU sees it.
    pub fn cpu(&self) -> Result<&Mapping> {
        self.mapping.as_ref().context("this memory is the GPU's alone")
    }
}

/// Registered memory of this program.
#[derive(Debug)]
pub struct Registered {
    /// For the GPU.
    pub address: u64,
    pub bytes: u64,
    /// The blob.
    pub gem: Gem,
}

pub(crate) const RING_BYTES: u64 = 64 << 10;
/// Most bytes of one copy packet.
const CHUNK: u64 = 2 << 20;
/// How long the GPU may take, in seconds.
pub static PATIENCE: AtomicU64 = AtomicU64::new(120);

pub(crate) fn halves(value: u64) -> [u32; 2] {
    let b = value.to_le_bytes();
    [u32::from_le_bytes([b[0], b[1], b[2], b[3]]), u32::from_le_bytes([b[4], b[5], b[6], b[7]])]
}

pub(crate) fn poll(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !done() {
        let patience = PATIENCE.load(Ordering::Relaxed);
        ensure!(began.elapsed() < Duration::from_secs(patience), "{what}: nothing after {patience} s");
        // The host may share this processor.
        std::thread::yield_now();
    }
    Ok(())
}

/// A ring of SDMA packets.
pub struct CopyQueue {
    gfx: u32,
    ring: Allocation,
    fence: Allocation,
    /// Words put into the ring.
    written: u64,
    number: u32,
    doorbell: u64,
    pointers: Mapping,
    write_offset: u64,
    read_offset: u64,
    _gems: [Gem; 2],
}

impl CopyQueue {
    fn put(&mut self, packet: &[u32]) -> Result<()> {
        let words = RING_BYTES / 4;
        let at = self.written % words;
        let padding = if at + packet.len() as u64 > words { words - at } else { 0 };
        let needed = padding + packet.len() as u64;
        let (written, pointers, read) = (self.written, &self.pointers, self.read_offset);
        if written + needed - pointers.word(read).load(Ordering::Acquire) / 4 >= words {
            self.publish()?;
            poll("room in the ring", || {
                self.written + needed - self.pointers.word(read).load(Ordering::Acquire) / 4 < words
            })?;
        }
        let ring = self.ring.cpu()?;
        for place in 0..padding {
            ring.half((self.written + place) % words * 4).store(0, Ordering::Relaxed);
        }
        self.written += padding;
        for word in packet {
            ring.half(self.written % words * 4).store(*word, Ordering::Relaxed);
            self.written += 1;
        }
        Ok(())
    }

    fn publish(&self) -> Result<()> {
        self.pointers.word(self.write_offset).store(self.written * 4, Ordering::Release);
        ring_doorbell(self.doorbell, self.written * 4);
        Ok(())
    }

    /// Copies and waits; `signal` is an event to signal at the end.
    pub fn copy(&mut self, to: u64, from: u64, bytes: u64, signal: Option<(u32, u64)>) -> Result<()> {
        for at in (0..bytes).step_by(size(CHUNK)) {
            let count = halves((bytes - at).min(CHUNK) - 1)[0];
            let [from, to] = [halves(from + at), halves(to + at)];
            self.put(&[1, count, 0, from[0], from[1], to[0], to[1]])?;
        }
        self.number += 1;
        let place = halves(self.fence.address);
        // From gfx10 on a fence names its kind of memory.
        let op = if self.gfx >= 10 { 5 | 3 << 16 } else { 5 };
        self.put(&[op, place[0], place[1], self.number])?;
        if let Some((event, slot)) = signal {
            let slot = halves(slot);
            self.put(&[op, slot[0], slot[1], event])?;
            self.put(&[6, event])?;
        }
        self.publish()?;
        let number = self.number;
        let fence = self.fence.cpu()?;
        poll("a copy", || fence.half(0).load(Ordering::Acquire) == number)
    }
}

pub(crate) fn ring_doorbell(at: u64, value: u64) {
    let word = std::ptr::with_exposed_provenance_mut::<u64>(size(at));
    // SAFETY: doorbells are in pages that the session has mapped and keeps; queues do not outlive
    // it in this program.
    unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
}
