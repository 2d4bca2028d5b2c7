// SPDX-License-Identifier: GPL-2.0 OR MIT
//! RDMA verbs without a library: as much as it takes to have a soft-RoCE device read, write and add
//! to this process's memory.
//!
//! Mechanism: requests are written to the verbs device, with the address for the answer in them
//! (`rdma/ib_user_verbs.h`); work and completions go through rings shared with the kernel
//! (`rdma/rdma_user_rxe.h`). Two queue pairs are connected to each other, so that the device talks
//! to itself. Everything goes with the open file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use vkfd_client::UserptrRange;

use super::rdma_link::Link;
use crate::verdict::Stop;

const GET_CONTEXT: u32 = 0;
const ALLOC_PD: u32 = 3;
const REG_MR: u32 = 9;
const DEREG_MR: u32 = 13;
const CREATE_CQ: u32 = 18;
const CREATE_QP: u32 = 24;
const MODIFY_QP: u32 = 26;
const POST_SEND: u32 = 28;

const LOCAL_WRITE: u32 = 1 << 0;
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;
const ON_DEMAND: u32 = 1 << 6;
const ALL_ACCESS: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

const RELIABLE: u8 = 2;
const MTU_4096: u8 = 5;
const SIGNALED: u32 = 2;

const PATIENCE: Duration = Duration::from_secs(120);
/// Longest answer, in bytes.
const ANSWER: usize = 128;

/// A request or a structure in a ring, put together field by field.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn u8(mut self, values: &[u8]) -> Self {
        self.0.extend(values);
        self
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32(mut self, values: &[u32]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
        self
    }

    fn u64(mut self, values: &[u64]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
        self
    }
}

/// An answer.
struct Answer([u8; ANSWER]);

impl Answer {
    fn u32(&self, at: usize) -> u32 {
        self.0[at..at + 4].try_into().map_or(0, u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> u64 {
        self.0[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
    }
}

/// A ring shared with the kernel.
///
/// # Invariants
///
/// `start` is a mapping of `bytes` bytes that lasts as long as this value, with the header and
/// `mask + 1` elements of `element` bytes.
struct Ring {
    start: NonNull<u8>,
    bytes: usize,
    element: usize,
    mask: u32,
}

impl Ring {
    const PRODUCER: usize = 128;
    const CONSUMER: usize = 256;
    const DATA: usize = 384;

    /// The one that an answer describes at `at`.
    fn map(device: &File, answer: &Answer, at: usize) -> Result<Self, Stop> {
        let (offset, bytes) = (answer.u64(at), usize::try_from(answer.u32(at + 8))?);
        let (prot, offset) = (libc::PROT_READ | libc::PROT_WRITE, libc::off_t::try_from(offset)?);
        // SAFETY: a new mapping.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, libc::MAP_SHARED, device.as_raw_fd(), offset) };
        if start == libc::MAP_FAILED {
            bail!("map a ring of {bytes} bytes: {}", io::Error::last_os_error());
        }
        let Some(start) = NonNull::new(start.cast::<u8>()) else { bail!("a ring at address 0") };
        // Its numbers are the kernel's, written before it could be mapped.
        let mut ring = Self { start, bytes, element: 0, mask: 0 };
        ensure!(bytes > Self::DATA, "a ring of {bytes} bytes");
        (ring.element, ring.mask) = (1 << ring.index(0).load(Ordering::Relaxed), ring.index(4).load(Ordering::Relaxed));
        let elements = usize::try_from(ring.mask)? + 1;
        ensure!(Self::DATA + elements * ring.element <= bytes, "{elements} elements in a ring of {bytes} bytes");
        Ok(ring)
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: in the header, aligned, in memory that everyone accesses atomically.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    fn slot(&self, index: u32) -> *mut u8 {
        let slot = usize::try_from(index & self.mask).unwrap_or(0);
        self.start.as_ptr().wrapping_add(Self::DATA + slot * self.element)
    }

    /// Puts an element in; there is room.
    fn push(&self, element: &[u8]) {
        assert!(element.len() <= self.element);
        let producer = self.index(Self::PRODUCER).load(Ordering::Relaxed);
        // SAFETY: inside the mapping, by the invariants; the kernel does not look at it before the
        // index says so.
        unsafe { std::ptr::copy_nonoverlapping(element.as_ptr(), self.slot(producer), element.len()) };
        self.index(Self::PRODUCER).store(producer.wrapping_add(1) & self.mask, Ordering::Release);
    }

    /// Takes the first 16 bytes of an element out.
    fn pop(&self) -> Option<[u8; 16]> {
        let consumer = self.index(Self::CONSUMER).load(Ordering::Relaxed);
        if self.index(Self::PRODUCER).load(Ordering::Acquire) == consumer {
            return None;
        }
        // SAFETY: inside the mapping, by the invariants; the kernel has written it and does not
        // touch it until the index says so.
        let element = unsafe { self.slot(consumer).cast::<[u8; 16]>().read() };
        self.index(Self::CONSUMER).store(consumer.wrapping_add(1) & self.mask, Ordering::Release);
        Some(element)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, and nobody has a reference.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory that the device may access.
pub(super) struct Region {
    handle: u32,
    lkey: u32,
    rkey: u32,
}

/// What the device is to do with memory, remote memory first.
pub(super) enum Work<'a> {
    /// Reads it into a local range.
    Read(&'a Region, UserptrRange),
    /// Writes a local range to it.
    Write(&'a Region, UserptrRange),
    /// Adds to 64 bits of it; the old value goes to a local range of 8 bytes.
    Add(&'a Region, UserptrRange, u64),
}

/// A device with a queue pair that is connected to another one of its own.
pub(super) struct Verbs {
    completions: Ring,
    sends: Ring,
    device: File,
    pd: u32,
    queue: u32,
}

impl Verbs {
    /// Opens the device and connects.
    pub(super) fn new(link: &Link) -> Result<Self, Stop> {
        let mut device = OpenOptions::new().read(true).write(true).open(&link.device)?;
        let context = call(&mut device, GET_CONTEXT, Fields::default(), 8)?;
        // Nobody needs the asynchronous events.
        // SAFETY: a new descriptor, which is this function's.
        unsafe { libc::close(i32::try_from(context.u32(0))?) };
        let pd = call(&mut device, ALLOC_PD, Fields::default(), 4)?.u32(0);
        let cq = Fields::default().u64(&[0]).u32(&[64, 0, u32::MAX, 0]);
        let cq = call(&mut device, CREATE_CQ, cq, 8 + 16)?;
        let completions = Ring::map(&device, &cq, 8)?;
        let mut queues = Vec::new();
        for _ in 0..2 {
            let qp = Fields::default().u64(&[0]).u32(&[pd, cq.u32(0), cq.u32(0), 0, 16, 16, 1, 1, 0]);
            queues.push(call(&mut device, CREATE_QP, qp.u8(&[0, RELIABLE, 0, 0]), 32 + 32)?);
        }
        let [first, second] = &queues[..] else { bail!("two queue pairs") };
        let sends = Ring::map(&device, first, 32 + 16)?;
        for (one, other) in [(first, second), (second, first)] {
            connect(&mut device, link, one.u32(0), other.u32(4))?;
        }
        let queue = first.u32(0);
        Ok(Self { completions, sends, device, pd, queue })
    }

    /// Lets the device access memory: on demand, so that it faults on pages like a processor; or
    /// pinned.
    pub(super) fn register(&mut self, memory: UserptrRange, on_demand: bool) -> Result<Region, Stop> {
        let access = if on_demand { ALL_ACCESS | ON_DEMAND } else { ALL_ACCESS };
        let request = Fields::default().u64(&[memory.start, memory.size, memory.start]).u32(&[self.pd, access]);
        let answer = call(&mut self.device, REG_MR, request, 12)?;
        Ok(Region { handle: answer.u32(0), lkey: answer.u32(4), rkey: answer.u32(8) })
    }

    /// Ends it.
    pub(super) fn unregister(&mut self, region: Region) -> Result<(), Stop> {
        send(&mut self.device, DEREG_MR, &Fields::default().u32(&[region.handle]).0, 0)
    }

    /// Does `work` at `remote`, with `local` for the other end, and waits for it.
    pub(super) fn run(&mut self, remote: u64, local: &Region, work: &Work<'_>) -> Result<(), Stop> {
        let (opcode, region, range, add) = match work {
            Work::Write(region, range) => (0, region, range, None),
            Work::Read(region, range) => (4, region, range, None),
            Work::Add(region, range, value) => (6, region, range, Some(*value)),
        };
        let request = Fields::default().u64(&[1]).u32(&[0, opcode, SIGNALED, 0]).u64(&[remote]);
        let request = match add {
            None => request.u32(&[region.rkey, 0]),
            Some(value) => request.u64(&[value, 0]).u32(&[region.rkey, 0]),
        };
        let length = u32::try_from(range.size)?;
        let mut element = request.0;
        // The rest of the union; then status and state, the remote address, and what is the
        // kernel's.
        element.resize(144, 0);
        let tail = Fields::default().u32(&[0, 0]).u64(&[remote]).u32(&[0; 6]);
        let tail = tail.u32(&[length, length, 0, 1, 0, 0]).u64(&[range.start]).u32(&[length, local.lkey]);
        element.extend(tail.0);
        self.sends.push(&element);
        let bell = Fields::default().u32(&[self.queue, 0, 0, 56]);
        call(&mut self.device, POST_SEND, bell, 4)?;
        let start = Instant::now();
        loop {
            if let Some(done) = self.completions.pop() {
                let status = done[8..12].try_into().map_or(u32::MAX, u32::from_ne_bytes);
                ensure_eq!(status, 0, "the device's status (IB_WC_*) for {range:?} and {remote:#x}");
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "the device does not finish");
            std::thread::yield_now();
        }
    }
}

/// Sends a request that has an answer of `bytes` bytes.
fn call(device: &mut File, command: u32, request: Fields, bytes: usize) -> Result<Answer, Stop> {
    let mut answer = Answer([0; ANSWER]);
    assert!(bytes <= ANSWER);
    let to = (&raw mut answer.0).expose_provenance() as u64;
    let request = [&to.to_ne_bytes()[..], &request.0[..]].concat();
    send(device, command, &request, bytes)?;
    // The kernel has written to it.
    // SAFETY: initialised.
    answer.0 = unsafe { (&raw const answer.0).read_volatile() };
    Ok(answer)
}

fn send(device: &mut File, command: u32, request: &[u8], bytes: usize) -> Result<(), Stop> {
    let words = |bytes: usize| u16::try_from(bytes / 4);
    let header = Fields::default().u32(&[command]).u16(words(8 + request.len())?).u16(words(bytes)?);
    let message = [&header.0[..], request].concat();
    // One call: a request is not to be split.
    let written = device.write(&message).map_err(|error| anyhow::anyhow!("verbs command {command}: {error}"))?;
    ensure_eq!(written, message.len());
    Ok(())
}

/// Brings a queue pair through its states, to the other one's number.
fn connect(device: &mut File, link: &Link, queue: u32, peer: u32) -> Result<(), Stop> {
    // State, key index, port, access.
    const INIT: u32 = 1 | 1 << 4 | 1 << 5 | 1 << 3;
    // State, address, MTU, peer, its first number, reads at once, pause.
    const TO_RECEIVE: u32 = 1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15;
    // State, first number, timeout, retries, reads at once.
    const TO_SEND: u32 = 1 | 1 << 16 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13;
    const PORT: u8 = 1;
    for (state, mask) in [(1_u8, INIT), (2, TO_RECEIVE), (3, TO_SEND)] {
        let address = Fields::default().u8(&link.gid).u32(&[0, 0]).u8(&[link.gid_index, 64, 0, 0, 0, 0, 1, PORT]);
        let request = address.u8(&[0; 32]).u32(&[queue, mask, 0, 0, 0, peer, ALL_ACCESS]).u16(0).u16(0);
        // One read at a time, again after 4 s, up to 7 times.
        let request = request.u8(&[state, 0, MTU_4096, 0, 0, 1, 1, 12]).u8(&[PORT, 20, 7, 7, 0, 0, 0, 0]);
        assert_eq!(request.0.len(), 112);
        send(device, MODIFY_QP, &request.0, 0)?;
    }
    Ok(())
}
