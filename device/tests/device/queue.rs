// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An address space whose tables the driver's code writes, and a queue of copies in it.

use crate::guest::{until, TestBar};
use crate::machine::Machine;
use crate::ram::Ram;
use std::sync::{Arc, Mutex};
use vkfd_driver::base::addr::{FabricAddr, GpuSpan, GpuVa, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::pte::{Target, READABLE, WRITEABLE};
use vkfd_driver::device::vram::{Contents, Vram};
use vkfd_driver::gpuvm::page_table::{Leaves, PageTable};
use vkfd_driver::seams::gpu::{DmaMemory, Gpu, HwQueue, QueueKind, QueueSpec, Vmid};
use vkfd_wire::{Bar, Remote};

pub const RW: u64 = READABLE | WRITEABLE;
pub const RING_BYTES: u64 = 0x4000;
/// Where rings are mapped; data goes elsewhere.
const RINGS: u64 = 0x7000_0000_0000;

/// An address space.
pub struct Space<B: Bar + 'static = TestBar> {
    pub remote: Arc<Remote<B>>,
    pub ram: Arc<Ram>,
    pub vmid: Vmid,
    pub vram: Arc<Vram>,
    table: Mutex<PageTable>,
}

impl Space {
    pub fn new(machine: &Machine, vmid: u32, retry: bool) -> Self {
        Self::of(machine.remote(), &machine.ram, vmid, retry)
    }

    /// Beside another one, with which it shares the VRAM.
    pub fn with_vram(machine: &Machine, vmid: u32, retry: bool, vram: Arc<Vram>) -> Self {
        Self::make(machine.remote().clone(), machine.ram.clone(), vmid, retry, vram)
    }
}

impl<B: Bar + 'static> Space<B> {
    /// On a GPU without a thread that takes its interrupts.
    pub fn of(remote: &Arc<Remote<B>>, ram: &Arc<Ram>, vmid: u32, retry: bool) -> Self {
        let vram = Arc::new(Vram::new(remote.properties().vram_bytes).unwrap());
        Self::make(remote.clone(), ram.clone(), vmid, retry, vram)
    }

    fn make(remote: Arc<Remote<B>>, ram: Arc<Ram>, vmid: u32, retry: bool, vram: Arc<Vram>) -> Self {
        let table = PageTable::new(remote.clone(), vram.clone()).unwrap();
        let root = FabricAddr(remote.properties().vram_base.0 + table.root().0);
        remote.set_root(Vmid(vmid), Some(root), retry);
        Self { remote, ram, vmid: Vmid(vmid), vram, table: Mutex::new(table) }
    }

    /// Where the root table is.
    pub fn root(&self) -> VramOffset {
        self.table.lock().unwrap().root()
    }

    /// Reserves `pages` at `va`.
    pub fn reserve(&self, va: u64, pages: u64) -> Leaves {
        let span = GpuSpan::new(GpuVa(va), pages * PAGE).unwrap();
        self.table.lock().unwrap().reserve(span).unwrap()
    }

    /// Maps `pages` at `va` to contiguous memory.
    pub fn map(&self, va: u64, pages: u64, target: Target, access: u64) -> Leaves {
        let leaves = self.reserve(va, pages);
        leaves.write(&*self.remote, 0, pages, |page| {
            let target = match target {
                Target::System(at) => Target::System(PhysAddr(at.0 + page * PAGE)),
                Target::Vram(at) => Target::Vram(FabricAddr(at.0 + page * PAGE)),
            };
            (target, access)
        });
        leaves
    }

    /// Fresh guest memory at `va`.
    pub fn map_ram(&self, va: u64, pages: u64) -> PhysAddr {
        let at = self.ram.pages(pages);
        self.map(va, pages, Target::System(at), RW);
        at
    }

    /// Fresh VRAM at `va`; `pages` is a power of two.
    pub fn map_vram(&self, va: u64, pages: u64) -> VramOffset {
        let at = self.vram.alloc(&*self.remote, pages, Contents::Zero).unwrap()[0].at;
        self.map(va, pages, Target::Vram(FabricAddr(self.remote.properties().vram_base.0 + at.0)), RW);
        at
    }

    /// A queue; `number` tells its place from other queues'.
    pub fn queue(&self, kind: QueueKind, number: u64) -> Queue<'_, B> {
        let at = RINGS + number * 0x10_0000;
        let pages = RING_BYTES / PAGE + 1;
        let ring = self.ram.pages(pages);
        self.map(at, pages, Target::System(ring), RW);
        self.queue_on(kind, at, ring).unwrap()
    }

    /// A queue on a ring that is there already, from its beginning.
    pub fn queue_on(&self, kind: QueueKind, at: u64, ring: PhysAddr) -> vkfd_driver::base::errno::Result<Queue<'_, B>> {
        let doorbells = self.remote.alloc_dma(2 * PAGE)?;
        let spec = QueueSpec {
            vmid: self.vmid,
            kind,
            ring: GpuVa(at),
            ring_bytes: RING_BYTES,
            rptr: GpuVa(at + RING_BYTES),
            wptr: GpuVa(at + RING_BYTES + 8),
            doorbells: doorbells.clone(),
            doorbell: PAGE + 16,
        };
        self.ram.store(PhysAddr(ring.0 + RING_BYTES), 0);
        let hw = self.remote.add_queue(&spec)?;
        Ok(Queue { space: self, hw, at, ring, doorbells, wptr: 0 })
    }
}

impl<B: Bar + 'static> Drop for Space<B> {
    fn drop(&mut self) {
        self.remote.set_root(self.vmid, None, false);
        self.remote.flush_tlb(self.vmid);
    }
}

/// A queue. It ends when it is dropped.
pub struct Queue<'a, B: Bar + 'static = TestBar> {
    pub space: &'a Space<B>,
    pub hw: HwQueue,
    pub at: u64,
    pub ring: PhysAddr,
    doorbells: Arc<dyn DmaMemory>,
    pub wptr: u64,
}

impl<B: Bar> Queue<'_, B> {
    /// Submits SDMA words. Rings the doorbell in memory, and nothing else.
    pub fn submit(&mut self, words: &[u32]) {
        until("room in the ring", || self.wptr - self.rptr() + words.len() as u64 * 4 < RING_BYTES);
        for word in words {
            self.space.ram.write(PhysAddr(self.ring.0 + self.wptr % RING_BYTES), &word.to_le_bytes());
            self.wptr += 4;
        }
        self.doorbells.write_u64(PAGE + 16, self.wptr);
    }

    pub fn copy(&mut self, dst: u64, src: u64, bytes: u64) {
        let ([d0, d1], [s0, s1]) = (split(dst), split(src));
        self.submit(&[1, u32::try_from(bytes - 1).unwrap(), 0, s0, s1, d0, d1]);
    }

    /// Writes a word at `dst`.
    pub fn fence(&mut self, dst: u64, value: u32) {
        let [low, high] = split(dst);
        self.submit(&[5, low, high, value]);
    }

    pub fn rptr(&self) -> u64 {
        self.space.ram.load(PhysAddr(self.ring.0 + RING_BYTES))
    }

    pub fn is_done(&self) -> bool {
        self.rptr() == self.wptr
    }

    #[track_caller]
    pub fn wait(&self) {
        until("the queue is done", || self.is_done());
    }
}

impl<B: Bar + 'static> Drop for Queue<'_, B> {
    fn drop(&mut self) {
        self.space.remote.remove_queue(self.hw);
    }
}

pub fn split(value: u64) -> [u32; 2] {
    [(value & 0xffff_ffff).try_into().unwrap(), (value >> 32).try_into().unwrap()]
}

/// Random bytes, the same every time.
pub fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..bytes).map(|_| next()).collect()
}
