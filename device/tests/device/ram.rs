// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest's RAM: a file, in two parts around the hole below 4 GiB, given out page by page from
//! both in turn.

use crate::machine::VRAM;
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tempfile::NamedTempFile;
use vkfd_device::ram::{BelowFourGib, GuestRam};
use vkfd_driver::base::addr::{index, PhysAddr, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::seams::gpu::DmaMemory;
use vkfd_gpu::raw;

pub const BELOW: u64 = 32 << 20;
pub const BYTES: u64 = 160 << 20;
/// Where VRAM is if it is in RAM: at its end, which is given to nobody else.
pub const VRAM_IN_RAM: u64 = ABOVE_4G + BYTES - BELOW - VRAM;
const ABOVE_4G: u64 = 4 << 30;

pub struct Ram {
    file: NamedTempFile,
    map: GuestRam,
    below: AtomicU64,
    above: AtomicU64,
    turn: AtomicU64,
    /// Pages of memory that the driver has given back.
    free: Mutex<Vec<PhysAddr>>,
}

impl Ram {
    pub fn new() -> Arc<Self> {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES).unwrap();
        let map = GuestRam::new(file.path().into(), BelowFourGib::Bytes(BELOW));
        map.open().unwrap();
        // Address 0 is nobody's.
        let (below, above) = (AtomicU64::new(1 << 20), AtomicU64::new(ABOVE_4G));
        Arc::new(Self { file, map, below, above, turn: AtomicU64::new(0), free: Mutex::default() })
    }

    pub fn path(&self) -> &std::path::Path {
        self.file.path()
    }

    /// Contiguous zeroed pages, from below and above 4 GiB in turn.
    pub fn pages(&self, pages: u64) -> PhysAddr {
        let above = self.turn.fetch_add(1, SeqCst) % 2 == 0;
        let (next, end) = if above { (&self.above, VRAM_IN_RAM) } else { (&self.below, BELOW) };
        let at = next.fetch_add(pages * PAGE, SeqCst);
        assert!(at + pages * PAGE <= end, "test out of RAM");
        PhysAddr(at)
    }

    pub fn ptr(&self, pa: PhysAddr, bytes: usize) -> *mut u8 {
        let span = self.map.span(vkfd_gpu::PhysAddr(pa.0), bytes).unwrap();
        assert_eq!(span.len, bytes);
        span.ptr
    }

    pub fn write(&self, pa: PhysAddr, bytes: &[u8]) {
        // SAFETY: inside the mapping; raw, as the GPU may look.
        unsafe { raw::copy(self.ptr(pa, bytes.len()), bytes.as_ptr(), bytes.len()) }.unwrap();
    }

    pub fn read(&self, pa: PhysAddr, bytes: u64) -> Vec<u8> {
        let mut to = vec![0; index(bytes)];
        // SAFETY: inside the mapping; raw, as the GPU may write.
        unsafe { raw::copy(to.as_mut_ptr(), self.ptr(pa, to.len()), to.len()) }.unwrap();
        to
    }

    pub fn store(&self, pa: PhysAddr, value: u64) {
        // SAFETY: inside the mapping; aligned, or the processor would say so.
        unsafe { raw::store_u64(self.ptr(pa, 8).cast(), value) }.unwrap();
    }

    pub fn load(&self, pa: PhysAddr) -> u64 {
        // SAFETY: as in `store`.
        unsafe { raw::load_u64(self.ptr(pa, 8).cast()) }.unwrap()
    }
}

/// Memory of the driver in the guest's RAM.
pub struct Dma {
    ram: Arc<Ram>,
    pages: Vec<PhysAddr>,
}

impl Dma {
    pub fn new(ram: &Arc<Ram>, bytes: u64) -> Result<Self> {
        let count = Some(bytes.div_ceil(PAGE)).filter(|count| *count != 0).ok_or(Errno::EINVAL)?;
        // One by one, so that they are not contiguous.
        let page = || {
            let used = ram.free.lock().unwrap().pop();
            used.inspect(|at| ram.write(*at, &[0; 4096])).unwrap_or_else(|| ram.pages(1))
        };
        Ok(Self { ram: ram.clone(), pages: (0..count).map(|_| page()).collect() })
    }

    fn at(&self, at: u64) -> PhysAddr {
        PhysAddr(self.page(at / PAGE).0 + at % PAGE)
    }
}

impl Drop for Dma {
    fn drop(&mut self) {
        self.ram.free.lock().unwrap().append(&mut self.pages);
    }
}

impl DmaMemory for Dma {
    fn bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }
    fn page(&self, page: u64) -> PhysAddr {
        self.pages[index(page)]
    }
    fn write_u64(&self, at: u64, value: u64) {
        self.ram.store(self.at(at), value);
    }
    fn read_u64(&self, at: u64) -> u64 {
        self.ram.load(self.at(at))
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
