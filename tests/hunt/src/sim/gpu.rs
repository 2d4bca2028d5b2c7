// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU: VRAM, the roots of its VMIDs, and a TLB that keeps what it has seen until it is flushed.
//! It runs no queues.
//!
//! One lock guards roots, TLB and which VMIDs are suspended, so that an access is before or after a
//! flush or a suspend, never across.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vkfd_driver::base::addr::{FabricAddr, GpuVa, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::errno::Result;
use vkfd_driver::os;
use vkfd_driver::sabotage::FailPoint;
use vkfd_driver::seams::gpu::{DmaMemory, Gpu, GpuProperties, HwQueue, QueueSpec, Vmid};

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
    roots: HashMap<u32, u64>,
    suspended: BTreeSet<u32>,
    tlb: HashMap<(u32, u64), u64>,
    answers: Vec<(u64, bool)>,
}

/// The GPU.
pub struct SimGpu {
    properties: GpuProperties,
    vram: Vec<AtomicU64>,
    next_dma: AtomicU64,
    state: Mutex<State>,
}

impl SimGpu {
    /// A GPU.
    #[must_use]
    pub fn new(gpu_id: u32, vram_pages: u64) -> Arc<Self> {
        Arc::new(Self {
            properties: GpuProperties {
                gpu_id,
                vram_bytes: vram_pages * PAGE,
                vram_base: FabricAddr(u64::from(gpu_id) << 30),
                vmids: 8,
                gfx_target_version: 90_000,
                model: *vkfd_driver::targets::Target::Gfx900.model(),
                xnack_capable: true,
                clock_hz: 1_000_000_000,
            },
            vram: (0..vram_pages * (PAGE / 8)).map(|_| AtomicU64::new(0)).collect(),
            next_dma: AtomicU64::new(0x7000_0000_0000),
            state: Mutex::default(),
        })
    }

    /// Its `gpu_id`.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.properties.gpu_id
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a VMID's queues are stopped.
    #[must_use]
    pub fn is_suspended(&self, vmid: u32) -> bool {
        self.lock().suspended.contains(&vmid)
    }

    /// The oldest answer to a fault: its address, and whether it was served.
    pub fn take_answer(&self) -> Option<(u64, bool)> {
        let mut state = self.lock();
        (!state.answers.is_empty()).then(|| state.answers.remove(0))
    }

    /// Accesses a page as a queue of the first VMID would.
    #[must_use]
    pub fn access(&self, va: u64) -> Seen {
        let (vmid, page) = (1, va / PAGE);
        let mut state = self.lock();
        if state.suspended.contains(&vmid) {
            return Seen::Suspended;
        }
        let cached = state.tlb.get(&(vmid, page)).copied();
        let entry = match cached {
            Some(entry) => entry,
            None => {
                let Some(root) = state.roots.get(&vmid).copied() else { return Seen::Nothing };
                let Some(entry) = self.walk(root, va) else { return Seen::Nothing };
                state.tlb.insert((vmid, page), entry);
                entry
            }
        };
        Seen::Memory { frame: (entry & 0xffff_ffff_f000) >> 12, system: entry & 2 != 0, writable: entry & 0x40 != 0 }
    }

    /// The entry for an address, by a reading of the format of its own.
    fn walk(&self, root: u64, va: u64) -> Option<u64> {
        let mut table = root;
        for shift in [39, 30, 21, 12] {
            let at =
                table.checked_sub(self.properties.vram_base.0).expect("a table in VRAM") / 8 + ((va >> shift) & 511);
            let entry = self.word(VramOffset(at * 8)).load(Ordering::SeqCst);
            if entry & 1 == 0 {
                return None;
            }
            if shift == 12 {
                return Some(entry);
            }
            if entry >> 54 & 1 != 0 {
                return Some(entry + ((va >> 12) & 511) * PAGE);
            }
            table = entry & 0xffff_ffff_f000;
        }
        None
    }

    fn word(&self, at: VramOffset) -> &AtomicU64 {
        &self.vram[usize::try_from(at.0 / 8).expect("an index")]
    }
}

/// The GPU as the driver holds it.
pub struct Device(pub Arc<SimGpu>);

impl Gpu for Device {
    fn properties(&self) -> &GpuProperties {
        &self.0.properties
    }
    fn read_entry(&self, at: VramOffset) -> u64 {
        self.0.word(at).load(Ordering::SeqCst)
    }
    fn write_entries(&self, at: VramOffset, first: u64, step: u64, count: u64) {
        for i in 0..count {
            self.0.word(VramOffset(at.0 + i * 8)).store(first + step * i, Ordering::SeqCst);
        }
    }
    fn clear(&self, at: VramOffset, bytes: u64) {
        self.write_entries(at, 0, 0, bytes / 8);
    }
    fn set_root(&self, vmid: Vmid, root: Option<FabricAddr>, _: bool) {
        let mut state = self.0.lock();
        match root {
            Some(root) => state.roots.insert(vmid.0, root.0),
            None => state.roots.remove(&vmid.0),
        };
    }
    fn flush_tlb(&self, vmid: Vmid) {
        self.0.lock().tlb.retain(|key, _| key.0 != vmid.0);
    }
    fn suspend(&self, vmid: Vmid) {
        self.0.lock().suspended.insert(vmid.0);
    }
    fn resume(&self, vmid: Vmid) {
        self.0.lock().suspended.remove(&vmid.0);
    }
    fn fault_done(&self, _: Vmid, va: GpuVa, served: bool) {
        self.0.lock().answers.push((va.0, served));
    }
    fn add_queue(&self, _: &QueueSpec) -> Result<HwQueue> {
        os::failpoint(FailPoint::Queue)?;
        Ok(HwQueue(1))
    }
    fn update_queue(&self, _: HwQueue, _: GpuVa, _: u64, _: bool) -> Result {
        Ok(())
    }
    fn remove_queue(&self, _: HwQueue) {}
    fn ring(&self) {}
    fn clock(&self) -> u64 {
        os::now().0
    }
    fn alloc_dma(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>> {
        os::failpoint(FailPoint::Dma)?;
        let first = self.0.next_dma.fetch_add(bytes, Ordering::SeqCst);
        Ok(Arc::new(SimDma { bytes, words: Mutex::default(), first }))
    }
}

/// Memory of the driver: only what was written takes room.
struct SimDma {
    bytes: u64,
    words: Mutex<HashMap<u64, u64>>,
    first: u64,
}

impl DmaMemory for SimDma {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn page(&self, index: u64) -> PhysAddr {
        PhysAddr(self.first + index * PAGE)
    }
    fn write_u64(&self, at: u64, value: u64) {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).insert(at, value);
    }
    fn read_u64(&self, at: u64) -> u64 {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).get(&at).copied().unwrap_or(0)
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
