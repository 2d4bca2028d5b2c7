// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU on a bench: system memory in one mapping, page tables built by hand, interrupts in a
//! channel.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, Ordering::SeqCst};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use vkfd_gpu::memory::pte::{Entry, EntryFlags, Level, Target, HUGE_BYTES, PAGE_BYTES};
use vkfd_gpu::*;

/// Longer than anything takes; a test that waits this long has failed.
pub const HANG: Duration = Duration::from_secs(30);

pub const VMID: Vmid = Vmid(3);
pub const RW: EntryFlags = EntryFlags::READABLE.union(EntryFlags::WRITEABLE);
pub const RWX: EntryFlags = RW.union(EntryFlags::EXECUTABLE);
/// Physical address of the first byte of system memory.
pub const PA: u64 = 0x2_0000_0000;
/// GPU address at which all of system memory is mapped.
pub const VA: u64 = 0x7f00_0000_0000;
pub const MEMORY: usize = 16 << 20;
/// Offsets in system memory.
pub const RPTR: u64 = 0x20000;
pub const WPTR: u64 = 0x20008;
pub const SCRATCH: u64 = 0x30000;
pub const DATA: u64 = 1 << 20;
pub const RING_BYTES: u64 = 0x10000;

#[derive(Debug, PartialEq)]
pub enum Event {
    Fault(PageFault),
    Signal(u32),
    Error(QueueError),
    Lost(u64, bool),
}

type Hook<T> = Mutex<Option<Box<dyn Fn(T) + Send>>>;

/// System memory and interrupt sink.
pub struct Host {
    base: usize,
    pub stale: Mutex<HashSet<u64>>,
    pub on_lost: Hook<u64>,
    pub on_fault: Hook<PageFault>,
    /// What queues were about to stop on.
    stops: Mutex<Vec<QueueError>>,
    events: Mutex<Sender<Event>>,
}

impl Host {
    fn new(events: Sender<Event>) -> Host {
        // Far below what the kernel places itself, so that no other test's mapping lands in a hole
        // made by `set_backed`.
        static NEXT: AtomicUsize = AtomicUsize::new(0x1000_0000_0000);
        let hint = std::ptr::without_provenance_mut(NEXT.fetch_add(2 * MEMORY, Ordering::Relaxed));
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(hint, MEMORY, protection, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        Host {
            base: base.addr(),
            stale: Mutex::default(),
            on_lost: Mutex::default(),
            on_fault: Mutex::default(),
            stops: Mutex::default(),
            events: Mutex::new(events),
        }
    }

    pub fn ptr(&self, offset: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base + usize::try_from(offset).unwrap())
    }

    /// Takes one page's memory away, or brings zeroes back.
    pub fn set_backed(&self, offset: u64, backed: bool) {
        let (page, protection) = (4096, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: replaces a page of this mapping, to which no reference exists.
        unsafe {
            let ptr = self.ptr(offset).cast();
            if backed {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                assert_ne!(libc::mmap(ptr, page, protection, flags, -1, 0), libc::MAP_FAILED);
            } else {
                assert_eq!(libc::munmap(ptr, page), 0);
            }
        }
    }

    fn send(&self, event: Event) {
        // The receiver may be gone at the end of a test.
        let _ = self.events.lock().unwrap().send(event);
    }
}

impl Bus for Host {
    fn resolve(&self, pa: PhysAddr, max: usize, _write: bool) -> Result<HostSpan, BusError> {
        let offset = pa.0.checked_sub(PA).filter(|&offset| offset < MEMORY as u64).ok_or(BusError::NoMemory)?;
        if self.stale.lock().unwrap().contains(&(offset & !(PAGE_BYTES - 1))) {
            return Err(BusError::Stale);
        }
        let len = max.min(MEMORY - usize::try_from(offset).unwrap());
        Ok(HostSpan { ptr: self.ptr(offset), len })
    }

    fn lost(&self, pa: PhysAddr, write: bool) {
        self.send(Event::Lost(pa.0 - PA, write));
        if let Some(hook) = &*self.on_lost.lock().unwrap() {
            hook(pa.0 - PA);
        }
    }
}

fn is_of(error: &QueueError, fault: &PageFault) -> bool {
    match error {
        QueueError::Fault(of) | QueueError::Kernel { cause: KernelError::Fault(of), .. } => of == fault,
        _ => false,
    }
}

impl Interrupts for Host {
    fn queue_stops(&self, vmid: Vmid, _queue: QueueId, error: &QueueError) {
        assert_eq!(vmid, VMID);
        self.stops.lock().unwrap().push(error.clone());
    }

    fn page_fault(&self, fault: PageFault) {
        // A client that this wakes may end the process.
        assert!(
            fault.retry || self.stops.lock().unwrap().iter().any(|stop| is_of(stop, &fault)),
            "{fault:?}: unannounced"
        );
        if let Some(hook) = &*self.on_fault.lock().unwrap() {
            hook(fault);
        }
        self.send(Event::Fault(fault));
    }

    fn signal_event(&self, vmid: Vmid, event_id: u32) {
        assert_eq!(vmid, VMID);
        self.send(Event::Signal(event_id));
    }

    fn queue_error(&self, vmid: Vmid, _queue: QueueId, error: QueueError) {
        assert_eq!(vmid, VMID);
        assert!(self.stops.lock().unwrap().contains(&error), "{error}: unannounced");
        self.send(Event::Error(error));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: the GPU is gone, and with it the last user.
        unsafe { libc::munmap(self.ptr(0).cast(), MEMORY) };
    }
}

pub struct Rig {
    pub gpu: Arc<Gpu>,
    pub host: Arc<Host>,
    pub events: Receiver<Event>,
    root: u64,
    next_table: AtomicU64,
}

pub fn sys(offset: u64) -> Target {
    Target::System(PhysAddr(PA + offset))
}

impl Rig {
    /// A GPU with all of system memory mapped at [`VA`], 4 KiB pages, read, write and execute.
    pub fn new() -> Rig {
        Rig::with(Config::default(), false)
    }

    pub fn with(config: Config, retry_faults: bool) -> Rig {
        let (sender, events) = channel();
        let host = Arc::new(Host::new(sender));
        let fabric = Fabric::new(&[64 << 20, config.vram_bytes]).unwrap();
        let gpu = Gpu::new(config, 1, fabric, host.clone(), host.clone()).unwrap();
        let rig = Rig { gpu, host, events, root: 0, next_table: AtomicU64::new(4096) };
        rig.gpu.set_root(VMID, Some(rig.fabric(0)), retry_faults);
        for offset in (0..MEMORY as u64).step_by(4096) {
            rig.map(VA + offset, sys(offset), RWX, 0);
        }
        rig
    }

    pub fn weak(&self) -> Weak<Gpu> {
        Arc::downgrade(&self.gpu)
    }

    /// Fabric address of an offset in the GPU's own VRAM.
    pub fn fabric(&self, offset: u64) -> FabricAddr {
        FabricAddr(self.gpu.fabric().base(1).0 + offset)
    }

    fn table(&self, va: u64, last: Level) -> u64 {
        let (mut table, mut level) = (self.root, Level::Pdb2);
        while level != last {
            let slot = table + level.index(va) * 8;
            let entry = Entry(self.gpu.vram().read_u64(slot).unwrap());
            table = if entry.is_valid() {
                entry.table_addr().unwrap().0 - self.gpu.fabric().base(1).0
            } else {
                let new = self.next_table.fetch_add(4096, SeqCst);
                self.gpu.vram().write_u64(slot, Entry::table(self.fabric(new)).0).unwrap();
                new
            };
            level = level.next().unwrap();
        }
        table
    }

    /// Where in VRAM the entry of `va` at `level` is.
    pub fn slot(&self, va: u64, level: Level) -> u64 {
        self.table(va, level) + level.index(va) * 8
    }

    pub fn set_entry(&self, va: u64, level: Level, entry: Entry) {
        self.gpu.vram().write_u64(self.slot(va, level), entry.0).unwrap();
    }

    pub fn map(&self, va: u64, target: Target, flags: EntryFlags, fragment: u8) {
        self.set_entry(va, Level::Ptb, Entry::page(target, flags, fragment));
    }

    pub fn map_huge(&self, va: u64, target: Target, flags: EntryFlags) {
        assert_eq!(va % HUGE_BYTES, 0);
        self.set_entry(va, Level::Pdb0, Entry::huge_page(target, flags));
    }

    pub fn unmap(&self, va: u64) {
        self.set_entry(va, Level::Ptb, Entry(0));
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: within system memory; raw, as the GPU may look.
        unsafe { raw::copy(self.host.ptr(offset), bytes.as_ptr(), bytes.len()) }.unwrap();
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: within system memory; raw, as the GPU may write.
        unsafe { raw::copy(bytes.as_mut_ptr(), self.host.ptr(offset), len) }.unwrap();
        bytes
    }

    pub fn write_u64(&self, offset: u64, value: u64) {
        // SAFETY: aligned and within system memory.
        unsafe { raw::store_u64(self.host.ptr(offset).cast(), value) }.unwrap();
    }

    pub fn read_u64(&self, offset: u64) -> u64 {
        // SAFETY: aligned and within system memory.
        unsafe { raw::load_u64(self.host.ptr(offset).cast()) }.unwrap()
    }

    pub fn read_u32(&self, offset: u64) -> u32 {
        u32::from_le_bytes(self.read(offset, 4).try_into().unwrap())
    }

    pub fn event(&self) -> Event {
        self.events.recv_timeout(HANG).expect("no interrupt")
    }

    pub fn queue(&self, kind: QueueKind) -> TestQueue<'_> {
        self.queue_at(kind, 0)
    }

    /// A queue whose ring is at `offset`.
    pub fn queue_at(&self, kind: QueueKind, offset: u64) -> TestQueue<'_> {
        self.queue_with_pointers(kind, offset, RPTR + offset, WPTR + offset)
    }

    /// A queue whose ring is at `offset` and whose pointers are at `rptr` and `wptr`.
    pub fn queue_with_pointers(&self, kind: QueueKind, offset: u64, rptr: u64, wptr: u64) -> TestQueue<'_> {
        self.queue_in(VMID, kind, offset, rptr, wptr)
    }

    /// The same, in any address space.
    pub fn queue_in(&self, vmid: Vmid, kind: QueueKind, offset: u64, rptr: u64, wptr: u64) -> TestQueue<'_> {
        let slot = Arc::new(AtomicU64::new(77));
        let ptr = NonNull::new(slot.as_ptr()).unwrap();
        // SAFETY: the Arc keeps the slot in place.
        let doorbell = unsafe { DoorbellPtr::new(ptr, slot.clone()) };
        self.write_u64(rptr, 0);
        let config = QueueConfig {
            vmid,
            kind,
            ring_va: VA + offset,
            ring_bytes: RING_BYTES,
            rptr_va: VA + rptr,
            wptr_va: VA + wptr,
            doorbell,
            enabled: true,
        };
        let id = self.gpu.add_queue(config).unwrap();
        TestQueue { rig: self, id, slot, offset, unit: if kind == QueueKind::Pm4 { 4 } else { 1 }, wptr: 0 }
    }
}

pub struct TestQueue<'a> {
    pub rig: &'a Rig,
    pub id: QueueId,
    pub slot: Arc<AtomicU64>,
    offset: u64,
    /// Bytes that the pointers count in, of SDMA and PM4.
    unit: u64,
    pub wptr: u64,
}

impl TestQueue<'_> {
    /// Submits words of SDMA or PM4.
    pub fn submit(&mut self, words: &[u32]) {
        for word in words {
            self.rig.write(self.offset + self.wptr * self.unit % RING_BYTES, &word.to_le_bytes());
            self.wptr += 4 / self.unit;
        }
        self.slot.store(self.wptr, SeqCst);
        self.rig.gpu.ring();
    }

    /// Submits an AQL packet; the header is written last.
    pub fn dispatch(&mut self, packet: &[u8; 64]) {
        let at = self.offset + self.wptr * 64 % RING_BYTES;
        self.rig.write(at + 2, &packet[2..]);
        self.rig.write(at, &packet[..2]);
        self.wptr += 1;
        self.rig.write_u64(self.offset + WPTR, self.wptr);
        self.slot.store(self.wptr - 1, SeqCst);
        self.rig.gpu.ring();
    }

    pub fn rptr(&self) -> u64 {
        self.rig.read_u64(self.offset + RPTR)
    }

    /// Waits until all that was submitted has been processed.
    pub fn wait(&self) {
        let start = Instant::now();
        // PM4 reports the place in the ring.
        let end = if self.unit == 4 { self.wptr % (RING_BYTES / 4) } else { self.wptr };
        while self.rptr() != end {
            if let Ok(event) = self.rig.events.try_recv() {
                panic!("unexpected {event:?} at {:#x} of {:#x}", self.rptr(), self.wptr);
            }
            assert!(start.elapsed() < HANG, "queue stuck at {:#x} of {:#x}", self.rptr(), self.wptr);
            std::thread::yield_now();
        }
    }

    pub fn remove(self) {
        self.rig.gpu.remove_queue(self.id).unwrap();
    }
}

/// Waits for a condition that another thread brings about.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never: {what}");
        std::thread::yield_now();
    }
}

pub fn split(value: u64) -> [u32; 2] {
    [(value & 0xffff_ffff).try_into().unwrap(), (value >> 32).try_into().unwrap()]
}

pub fn copy_packet(dst: u64, src: u64, len: u32) -> [u32; 7] {
    let ([d0, d1], [s0, s1]) = (split(dst), split(src));
    [1, len - 1, 0, s0, s1, d0, d1]
}

/// Random bytes, the same every time.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}
