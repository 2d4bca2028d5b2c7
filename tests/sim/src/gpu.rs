// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU: VRAM, the roots of its VMIDs, a TLB that keeps each entry until it is flushed, and a
//! record of the driver's calls. It runs no queues: a test makes accesses, and reports faults.
//!
//! One lock guards roots, TLB and the suspended VMIDs. An access holds it, so that each is before
//! or after a flush or a suspend, never across.

use crate::dma::SimDma;
use crate::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vkfd_driver::base::addr::{FabricAddr, GpuVa, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::errno::Result;
use vkfd_driver::os;
use vkfd_driver::sabotage::FailPoint;
use vkfd_driver::seams::gpu::{DmaMemory, Gpu, GpuProperties, HwQueue, QueueSpec, Share, Vmid, Work};

const VALID: u64 = 1;
const SYSTEM: u64 = 2;
const WRITEABLE: u64 = 1 << 6;
/// A leaf above the last level.
const HUGE: u64 = 1 << 54;
/// VMIDs of a GPU, of which the first is the driver's.
const VMIDS: u32 = 8;
const ADDRESS: u64 = 0xffff_ffff_f000;

/// Where an access went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The queues are suspended: there was none.
    Suspended,
    /// A fault.
    Nothing,
    Memory {
        /// The frame, or the page of the fabric.
        frame: u64,
        /// System memory rather than VRAM.
        system: bool,
        /// Whether it may be written.
        writable: bool,
    },
}

#[derive(Default)]
struct State {
    roots: BTreeMap<u32, FabricAddr>,
    /// Bit by bit, by the VMID's number: a suspend must not allocate.
    suspended: u64,
    /// Frames and entries, by VMID and page.
    tlb: BTreeMap<(u32, u64), (u64, u64)>,
}

fn bit(vmid: Vmid) -> u64 {
    1 << vmid.number()
}

/// The GPU.
pub struct SimGpu {
    properties: GpuProperties,
    vram: Vec<AtomicU64>,
    next_dma: AtomicU64,
    next_queue: AtomicU32,
    state: Mutex<State>,
    answers: Mutex<Vec<(u64, bool)>>,
    /// What it says of its work.
    pub work: Mutex<Work>,
    /// What it says of its work for each VMID.
    pub share: Mutex<Share>,
    /// What it says of its waves for each VMID.
    pub waves: AtomicU64,
    pub suspends: AtomicU64,
    pub flushes: AtomicU64,
    pub entry_writes: AtomicU64,
}

impl SimGpu {
    pub fn new(gpu_id: u32, vram_pages: u64) -> Arc<Self> {
        Arc::new(Self {
            properties: GpuProperties {
                gpu_id,
                vram_bytes: vram_pages * PAGE,
                vram_base: FabricAddr(u64::from(gpu_id) << 30),
                vmids: VMIDS,
                gfx_target_version: 90_000,
                model: *vkfd_driver::targets::Target::Gfx900.model(),
                xnack_capable: true,
                clock_hz: 1_000_000_000,
            },
            vram: (0..vram_pages * (PAGE / 8)).map(|_| AtomicU64::new(0)).collect(),
            next_dma: AtomicU64::new(0x7000_0000_0000),
            next_queue: AtomicU32::new(1),
            state: Mutex::default(),
            answers: Mutex::default(),
            work: Mutex::default(),
            share: Mutex::default(),
            waves: AtomicU64::new(0),
            suspends: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            entry_writes: AtomicU64::new(0),
        })
    }

    /// Its `gpu_id`.
    pub fn id(&self) -> u32 {
        self.properties.gpu_id
    }

    /// Whether the queues of any VMID are stopped.
    pub fn is_suspended(&self) -> bool {
        lock(&self.state).suspended != 0
    }

    /// The driver's answers to faults that no one has taken, oldest first: an address, and whether
    /// the fault was served.
    pub fn answers(&self) -> Vec<(u64, bool)> {
        lock(&self.answers).clone()
    }

    /// Takes the oldest answer to a fault at an address.
    pub fn take_answer(&self, va: u64) -> Option<bool> {
        let mut answers = lock(&self.answers);
        let at = answers.iter().position(|(answered, _)| *answered == va)?;
        Some(answers.remove(at).1)
    }

    /// An access of a queue of the first process, through the TLB.
    pub fn access(&self, va: u64) -> Seen {
        self.seen(&mut lock(&self.state), va)
    }

    /// The same. `f` runs during it, with the frame that it reaches: flushes and suspends wait.
    pub fn access_with(&self, va: u64, f: impl FnOnce(Option<u64>)) {
        let mut state = lock(&self.state);
        match self.seen(&mut state, va) {
            Seen::Suspended => {}
            Seen::Nothing => f(None),
            Seen::Memory { frame, .. } => f(Some(frame)),
        }
    }

    fn seen(&self, state: &mut State, va: u64) -> Seen {
        let Some((vmid, root)) = state.roots.first_key_value().map(|(vmid, root)| (*vmid, *root)) else {
            return if state.suspended == 0 { Seen::Nothing } else { Seen::Suspended };
        };
        if state.suspended & bit(Vmid(vmid)) != 0 {
            return Seen::Suspended;
        }
        let page = (vmid, va / PAGE);
        let Some((frame, entry)) = state.tlb.get(&page).copied().or_else(|| self.translate(root, va)) else {
            return Seen::Nothing;
        };
        state.tlb.insert(page, (frame, entry));
        Seen::Memory { frame, system: entry & SYSTEM != 0, writable: entry & WRITEABLE != 0 }
    }

    /// The frame that the tables have for an address of the first process, past the TLB.
    pub fn walk(&self, va: u64) -> Option<u64> {
        self.entry(va).map(|(frame, _)| frame)
    }

    /// The frame, and its entry.
    pub fn entry(&self, va: u64) -> Option<(u64, u64)> {
        let root = *lock(&self.state).roots.values().next()?;
        self.translate(root, va)
    }

    /// Walks the tables, by a reading of the format of its own.
    fn translate(&self, root: FabricAddr, va: u64) -> Option<(u64, u64)> {
        let mut table = root.0;
        for shift in [39, 30, 21, 12] {
            let entry = self.slot(table, (va >> shift) & 511);
            if entry & VALID == 0 {
                return None;
            }
            let address = entry & ADDRESS;
            if shift == 12 {
                self.check_fragment(table, va, entry);
                return Some((address / PAGE, entry));
            }
            if entry & HUGE != 0 {
                return Some((address / PAGE + ((va >> 12) & 511), entry));
            }
            table = address;
        }
        None
    }

    /// A fragment says of all its entries what they are: each must say the same.
    fn check_fragment(&self, table: u64, va: u64, entry: u64) {
        let pages = 1u64 << (entry >> 7 & 31);
        let here = (va >> 12) & 511;
        let first = here & !(pages - 1);
        let base = entry.wrapping_sub((here - first) << 12);
        assert_eq!((base >> 12) & (pages - 1), 0, "fragments are aligned");
        for page in 0..pages {
            let other = self.slot(table, first + page);
            assert_eq!(other, base + (page << 12), "entry {page} of a fragment of {pages} pages at {va:#x}");
        }
    }

    fn slot(&self, table: u64, index: u64) -> u64 {
        let table = table.checked_sub(self.properties.vram_base.0).expect("a table in VRAM");
        self.read_entry(VramOffset(table + index * 8))
    }

    fn word(&self, at: VramOffset) -> &AtomicU64 {
        &self.vram[usize::try_from(at.0 / 8).expect("an index")]
    }
}

impl Gpu for SimGpu {
    fn properties(&self) -> &GpuProperties {
        &self.properties
    }
    fn read_entry(&self, at: VramOffset) -> u64 {
        self.word(at).load(Ordering::SeqCst)
    }
    fn write_entries(&self, at: VramOffset, first: u64, step: u64, count: u64) {
        self.entry_writes.fetch_add(count, Ordering::SeqCst);
        for i in 0..count {
            self.word(VramOffset(at.0 + i * 8)).store(first + step * i, Ordering::SeqCst);
        }
    }
    fn clear(&self, at: VramOffset, bytes: u64) {
        self.write_entries(at, 0, 0, bytes / 8);
    }
    fn set_root(&self, vmid: Vmid, root: Option<FabricAddr>, _: bool) {
        let roots = &mut lock(&self.state).roots;
        match root {
            Some(root) => roots.insert(vmid.0, root),
            None => roots.remove(&vmid.0),
        };
    }
    fn flush_tlb(&self, vmid: Vmid) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        lock(&self.state).tlb.retain(|(owner, _), _| *owner != vmid.0);
    }
    fn suspend(&self, vmid: Vmid) {
        self.suspends.fetch_add(1, Ordering::SeqCst);
        lock(&self.state).suspended |= bit(vmid);
    }
    fn resume(&self, vmid: Vmid) {
        lock(&self.state).suspended &= !bit(vmid);
    }
    fn fault_done(&self, _: Vmid, va: GpuVa, served: bool) {
        lock(&self.answers).push((va.0, served));
    }
    fn add_queue(&self, _: &QueueSpec) -> Result<HwQueue> {
        os::failpoint(FailPoint::Queue)?;
        Ok(HwQueue(self.next_queue.fetch_add(1, Ordering::SeqCst)))
    }
    fn update_queue(&self, _: HwQueue, _: GpuVa, _: u64, _: bool) -> Result {
        Ok(())
    }
    fn remove_queue(&self, _: HwQueue) {}
    fn ring(&self) {}
    fn clock(&self) -> u64 {
        os::now().0
    }
    fn work(&self) -> Work {
        *lock(&self.work)
    }
    fn work_of(&self, _: Vmid) -> Option<Share> {
        Some(*lock(&self.share))
    }
    fn waves_of(&self, _: Vmid) -> Option<u64> {
        Some(self.waves.load(Ordering::SeqCst))
    }
    fn alloc_dma(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>> {
        os::failpoint(FailPoint::Dma)?;
        let first = self.next_dma.fetch_add(bytes, Ordering::SeqCst);
        Ok(Arc::new(SimDma::new(bytes, PhysAddr(first))))
    }
}
