// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A VM: one process's address space on one GPU: a VMID, page tables, a page of doorbells.
//!
//! The page-table tree is guarded by a lock of rank `Vm`; entries belong to the objects that
//! reserved them.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "where a table is in VRAM, of which the device was checked to say no nonsense"
)]

use crate::base::addr::{FabricAddr, GpuSpan, GpuVa, PAGE};
use crate::base::errno::Result;
use crate::base::lock_rank::Rank;
use crate::device::vmid_owner::VmidOwner;
use crate::device::Device;
use crate::gpuvm::page_table::{Leaves, PageTable};
use crate::os::{Arc, Mutex};
use crate::sabotage::{Switch, Switches};
use crate::seams::gpu::{DmaMemory, Gpu, Share, Vmid};
use core::sync::atomic::{AtomicU64, Ordering};
use vkfd_uapi::mmap;

/// Bytes of doorbells that a process has on a GPU: 1024 of 8 bytes, as on gfx9.
pub const DOORBELL_BYTES: u64 = 8192;

/// A VM.
pub struct Vm {
    device: Arc<Device>,
    vmid: Vmid,
    table: Mutex<PageTable>,
    doorbells: Arc<dyn DmaMemory>,
    /// The page that MMIO_REMAP maps (the HDP flush registers). Writes to it have no effect, and no
    /// other process sees them.
    mmio: Arc<dyn DmaMemory>,
    flushes: AtomicU64,
    skip_flush: bool,
    /// What the GPU had worked for the VMID before.
    before: Share,
}

/// An object's mapping in one VM: its entries there, until [`Vm::release`].
pub struct Mapping {
    /// The VM.
    pub vm: Arc<Vm>,
    /// The entries.
    pub leaves: Leaves,
}

impl Vm {
    /// An empty address space for `owner`; the GPU walks it from now on.
    pub fn new(owner: Arc<dyn VmidOwner>, device: &Arc<Device>, retry: bool, sabotage: &Switches) -> Result<Arc<Self>> {
        let gpu = device.gpu();
        let table = PageTable::new(gpu.clone(), device.vram().clone())?;
        let root = FabricAddr(gpu.properties().vram_base.0 + table.root().0);
        let table = Mutex::new(Rank::Vm, table)?;
        let doorbells = gpu.alloc_doorbells(DOORBELL_BYTES)?;
        let mmio = gpu.alloc_dma(PAGE)?;
        let vmid = device.take_vmid(owner)?;
        let skip_flush = sabotage.has(Switch::TlbFlush);
        let before = gpu.work_of(vmid).unwrap_or_default();
        let (device, flushes) = (device.clone(), AtomicU64::new(0));
        let this = Self { device, vmid, table, doorbells, mmio, flushes, skip_flush, before };
        let this = crate::os::arc(this)?;
        let gpu = this.gpu();
        gpu.set_root(vmid, Some(root), retry);
        Ok(this)
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        self.device.gpu()
    }

    /// The GPU as the driver keeps it.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The GPU's number on this machine.
    pub fn gpu_index(&self) -> usize {
        self.device.index()
    }

    /// The VMID.
    pub const fn vmid(&self) -> Vmid {
        self.vmid
    }

    /// How much the GPU has worked for it; `None` for a GPU that does not count that.
    pub fn work(&self) -> Option<Share> {
        let Share { kernels, copies } = self.gpu().work_of(self.vmid)?;
        let (kernels, copies) =
            (kernels.saturating_sub(self.before.kernels), copies.saturating_sub(self.before.copies));
        Some(Share { kernels, copies })
    }

    /// How many waves it has on the GPU; `None` for a GPU that does not count them.
    pub fn waves(&self) -> Option<u64> {
        self.gpu().waves_of(self.vmid)
    }

    /// The process's doorbells on this GPU.
    pub const fn doorbells(&self) -> &Arc<dyn DmaMemory> {
        &self.doorbells
    }

    /// Where clients map them.
    pub fn doorbells_mmap_offset(&self) -> u64 {
        let own = self.doorbells.mmap_offset();
        own.unwrap_or(mmap::encode(mmap::MMAP_TYPE_DOORBELL, self.device.id()))
    }

    /// The process's remapped registers on this GPU.
    pub const fn mmio(&self) -> &Arc<dyn DmaMemory> {
        &self.mmio
    }

    /// Where clients map them.
    pub fn mmio_mmap_offset(&self) -> u64 {
        self.mmio.mmap_offset().unwrap_or(mmap::encode(mmap::MMAP_TYPE_MMIO, self.device.id()))
    }

    /// Makes the page tables of a span. O(2 MiB blocks).
    pub fn reserve(&self, span: GpuSpan) -> Result<Leaves> {
        let mut table = self.table.lock();
        table.reserve(span).inspect_err(|_| {
            self.flush();
            table.reap();
        })
    }

    /// Takes a span's page tables away, once its entries are cleared and flushed. Costs a flush
    /// only where the tables were not shared with a neighbour's.
    pub fn release(&self, leaves: &Leaves) {
        let mut table = self.table.lock();
        if table.detach(leaves) {
            self.flush();
            table.reap();
        }
    }

    /// The leaf entry of an address as the GPU walks to it; 0 where there is none.
    pub fn entry_at(&self, va: GpuVa) -> u64 {
        self.table.lock().entry_at(va)
    }

    /// Calls `f` with the tree and the first address of each of its last-level tables, until it
    /// gives something. For tests.
    pub fn each_block<R>(&self, mut f: impl FnMut(&PageTable, GpuVa) -> Option<R>) -> Option<R> {
        let table = self.table.lock();
        let found = table.blocks().find_map(|at| f(&table, at));
        found
    }

    /// Drops cached translations; waits for accesses in flight.
    pub fn flush(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if !self.skip_flush {
            self.gpu().flush_tlb(self.vmid);
        }
    }

    /// How often it was flushed.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// VRAM that the page tables take.
    pub fn table_bytes(&self) -> u64 {
        self.table.lock().bytes()
    }

    /// Where the root table is, for walks.
    pub fn root(&self) -> crate::base::addr::VramOffset {
        self.table.lock().root()
    }

    /// Changes whether faults are retried.
    pub fn set_retry(&self, retry: bool) {
        let root = FabricAddr(self.gpu().properties().vram_base.0 + self.root().0);
        self.gpu().set_root(self.vmid, Some(root), retry);
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // All queues of the VM are gone. The GPU lets go of the tables before they are freed.
        self.gpu().set_root(self.vmid, None, false);
        self.gpu().flush_tlb(self.vmid);
        self.device.give_vmid(self.vmid);
    }
}
