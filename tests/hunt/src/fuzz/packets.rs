// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rings of fuzz bytes: a queue may halt, nothing more. One GPU for all inputs, with a megabyte of
//! system memory mapped at [`VA`], of which the ring is the first part.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use vkfd_gpu::memory::pte::{Entry, EntryFlags, Level, Target};
use vkfd_gpu::{
    raw, Bus, BusError, Config, DoorbellPtr, Fabric, FabricAddr, Gpu, HostSpan, Interrupts, PageFault, PhysAddr,
    QueueConfig, QueueError, QueueId, QueueKind, Vmid,
};

use vkfd_kernels::Image;

use super::RUN;

const VMID: Vmid = Vmid(1);
const VRAM_BYTES: u64 = 2 << 20;
const MEMORY: usize = 1 << 20;
const PA: u64 = 0x2_0000_0000;
/// GPU address of the memory.
const VA: u64 = 0x4000_0000;
const RING_BYTES: u64 = 0x1000;
const RPTR: u64 = 0x2000;
const WPTR: u64 = 0x2008;
/// Code of real kernels.
const KERNELS: u64 = 0x8_0000;

/// Kernels of gfx900, laid out once.
fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let code = vkfd_kernels::code(90_000).expect("gfx900's kernels");
        Image::new(code).expect("a code object")
    })
}

struct Host {
    words: Vec<AtomicU64>,
    halted: AtomicBool,
}

impl Host {
    fn ptr(&self, offset: u64) -> *mut u8 {
        let word = &self.words[usize::try_from(offset / 8).unwrap_or(0)];
        word.as_ptr().cast()
    }
}

impl Bus for Host {
    fn resolve(&self, pa: PhysAddr, max: usize, _: bool) -> Result<HostSpan, BusError> {
        let offset = pa.0.checked_sub(PA).filter(|offset| *offset < MEMORY as u64).ok_or(BusError::NoMemory)?;
        let left = MEMORY - usize::try_from(offset).unwrap_or(MEMORY);
        let within = usize::try_from(offset % 8).unwrap_or(0);
        Ok(HostSpan { ptr: self.ptr(offset).wrapping_add(within), len: max.min(left) })
    }
    fn lost(&self, _: PhysAddr, _: bool) {}
}

impl Interrupts for Host {
    fn page_fault(&self, _: PageFault) {
        self.halted.store(true, Ordering::SeqCst);
    }
    fn signal_event(&self, _: Vmid, _: u32) {}
    fn queue_error(&self, _: Vmid, _: QueueId, _: QueueError) {
        self.halted.store(true, Ordering::SeqCst);
    }
}

struct Bench {
    gpu: Arc<Gpu>,
    host: Arc<Host>,
}

impl Bench {
    fn get() -> &'static Mutex<Bench> {
        static BENCH: OnceLock<Mutex<Bench>> = OnceLock::new();
        BENCH.get_or_init(|| Mutex::new(Bench::new()))
    }

    fn new() -> Self {
        let words = (0..MEMORY / 8).map(|_| AtomicU64::new(0)).collect();
        let host = Arc::new(Host { words, halted: AtomicBool::new(false) });
        let fabric = Fabric::new(&[VRAM_BYTES]).expect("VRAM");
        let config = Config { vram_bytes: VRAM_BYTES, ..Config::default() };
        let gpu = Gpu::new(config, 0, fabric, host.clone(), host.clone()).expect("a GPU");
        let base = gpu.fabric().base(0).0;
        let write = |at: u64, entry: Entry| gpu.vram().write_u64(at, entry.0).expect("inside VRAM");
        // One table a level, one after the other.
        for (table, level) in [Level::Pdb2, Level::Pdb1, Level::Pdb0].into_iter().enumerate() {
            let table = table as u64 * 4096;
            write(table + level.index(VA) * 8, Entry::table(FabricAddr(base + table + 4096)));
        }
        let flags = EntryFlags::READABLE | EntryFlags::WRITEABLE | EntryFlags::EXECUTABLE;
        for page in 0..MEMORY as u64 / 4096 {
            let target = Target::System(PhysAddr(PA + page * 4096));
            write(3 * 4096 + Level::Ptb.index(VA + page * 4096) * 8, Entry::page(target, flags, 0));
        }
        gpu.set_root(VMID, Some(FabricAddr(base)), false);
        Self { gpu, host }
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: callers write within the memory; raw, as the GPU may look.
        let copied = unsafe { raw::copy(self.host.ptr(offset), bytes.as_ptr(), bytes.len()) };
        copied.expect("memory of this program");
    }

    fn run(&self, kind: QueueKind, ring: &[u8], submitted: u64) {
        self.host.halted.store(false, Ordering::SeqCst);
        self.put(0, &[0; 0x4000]);
        self.put(0, ring);
        self.put(KERNELS, &image().at(VA + KERNELS));
        let doorbell = Arc::new(AtomicU64::new(0));
        let ptr = NonNull::new(doorbell.as_ptr()).expect("an address");
        // SAFETY: the Arc keeps the doorbell in place.
        let pointer = unsafe { DoorbellPtr::new(ptr, doorbell.clone()) };
        let config = QueueConfig {
            vmid: VMID,
            kind,
            ring_va: VA,
            ring_bytes: RING_BYTES,
            rptr_va: VA + RPTR,
            wptr_va: VA + WPTR,
            doorbell: pointer,
            enabled: true,
        };
        let queue = self.gpu.add_queue(config).expect("a queue");
        self.put(WPTR, &submitted.to_le_bytes());
        doorbell.store(if kind == QueueKind::Aql { submitted.wrapping_sub(1) } else { submitted }, Ordering::SeqCst);
        self.gpu.ring();
        let start = Instant::now();
        let read = |offset: u64| self.host.words[usize::try_from(offset / 8).unwrap_or(0)].load(Ordering::SeqCst);
        while read(RPTR) != submitted && !self.host.halted.load(Ordering::SeqCst) && start.elapsed() < RUN {
            std::thread::yield_now();
        }
        // In the middle of whatever it does.
        self.gpu.suspend(VMID);
        self.gpu.flush_tlb(VMID);
        self.gpu.resume(VMID);
        self.gpu.remove_queue(queue).expect("the queue is there until now");
    }
}

fn run(kind: QueueKind, ring: &[u8], submitted: u64) {
    let bench = Bench::get().lock().unwrap_or_else(PoisonError::into_inner);
    bench.run(kind, ring, submitted);
}

fn ring(data: &[u8]) -> &[u8] {
    &data[..data.len().min(0x1000)]
}

/// A ring of SDMA packets. The first byte: whether operations are made plausible, and addresses.
pub fn sdma_packets(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else { return };
    let mut words = ring(data).to_vec();
    if mode % 2 == 0 {
        for word in words.chunks_exact_mut(4) {
            // Small numbers stay; high halves of addresses become 0, low halves land in memory.
            if word[3] >= 0x80 {
                word[3] = 0x40;
                word[2] %= 0x11;
            }
        }
    }
    run(QueueKind::Sdma, &words, words.len() as u64 / 4 * 4);
}

/// A ring of PM4 packets. The first byte: whether headers are made plausible, and addresses.
pub fn pm4_packets(data: &[u8]) {
    const OPS: [u8; 13] = [0x10, 0x15, 0x16, 0x37, 0x3c, 0x3f, 0x40, 0x42, 0x46, 0x49, 0x58, 0x76, 0x79];
    let Some((mode, data)) = data.split_first() else { return };
    let mut words = ring(data).to_vec();
    if mode % 2 == 0 {
        for word in words.chunks_exact_mut(4) {
            // A type-3 header with a short body, or the low half of an address in memory.
            if word[3] >= 0x80 {
                let op = OPS[usize::from(word[1]) % OPS.len()];
                word.copy_from_slice(&[0, op, word[2] % 9, 0xc0]);
            } else if word[3] >= 0x40 {
                word[3] = 0x40;
                word[2] %= 0x11;
            }
        }
    }
    run(QueueKind::Pm4, &words, words.len() as u64 / 4);
}

/// A ring of AQL packets. The first byte: whether kernels and arguments are made plausible.
pub fn aql_packets(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else { return };
    let mut packets = ring(data).to_vec();
    packets.truncate(packets.len() / 64 * 64);
    for packet in packets.chunks_exact_mut(64).filter(|_| mode % 2 == 0) {
        packet[0] %= 6;
        let kernels = image().kernels();
        let kernel = VA + KERNELS + kernels[usize::from(packet[2]) % kernels.len()].descriptor;
        packet[32..40].copy_from_slice(&kernel.to_le_bytes());
        let arguments = VA + u64::from(packet[3]) * 0x400;
        packet[40..48].copy_from_slice(&arguments.to_le_bytes());
        // A grid that ends.
        for at in [14, 15, 18, 19, 22, 23] {
            packet[at] = 0;
        }
    }
    run(QueueKind::Aql, &packets, packets.len() as u64 / 64);
}
