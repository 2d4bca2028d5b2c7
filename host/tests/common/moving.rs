// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the migration tests share: a GPU's memory to move to, and the owner of each page of
//! it.
#![allow(dead_code, missing_docs)] // each test file uses a part

use super::common::{Area, Counter};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, FabricAddr, VramOffset, PAGE};
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Page, Watch};
use vkfd_driver::seams::device_memory::DeviceMemory;
use vkfd_driver::seams::gpu::Gpu;
use vkfd_host::address_space::ProcessMemory;
use vkfd_host::mm::Mm;
use vkfd_host::{HostError, Machine, MachineOptions, Source};

/// The driver's side of a GPU's memory: which pages the host has.
pub struct Ram {
    gpu_id: u32,
    coherent: bool,
    pub pages: u64,
    /// Pages that are free, and pages that the host has.
    state: Mutex<(BTreeSet<u64>, BTreeSet<u64>)>,
}

impl DeviceMemory for Ram {
    fn gpu_id(&self) -> u32 {
        self.gpu_id
    }

    fn coherent(&self) -> bool {
        self.coherent
    }

    fn released(&self, at: VramOffset, pages: u64) {
        let mut state = self.state.lock().unwrap();
        for page in at.0 / PAGE..at.0 / PAGE + pages {
            assert!(state.1.remove(&page), "page {page} was released, and the host did not have it");
            assert!(state.0.insert(page));
        }
    }
}

/// A machine with a GPU, its memory, and the process's.
pub struct Rig {
    pub mm: &'static Mm,
    pub machine: Machine,
    pub memory: ProcessMemory,
    pub ram: Arc<Ram>,
    device: Arc<dyn DeviceMemory>,
}

/// `None`, said aloud, where pages cannot be moved.
pub fn rig(coherent: bool, vram: u64) -> Option<Rig> {
    rig_of(coherent, vram, 1).map(|mut all| all.remove(0))
}

/// One for each GPU of a machine.
pub fn rig_of(coherent: bool, vram: u64, gpus: u32) -> Option<Vec<Rig>> {
    rig_on(coherent, &MachineOptions { gpus, vram_bytes: vram, ..MachineOptions::default() })
}

/// As [`rig_of`], each on a machine like this.
pub fn rig_on(coherent: bool, options: &MachineOptions) -> Option<Vec<Rig>> {
    let options = MachineOptions { source: Source::Userfaultfd, ..options.clone() };
    let rigs = (0..options.gpus).map(|i| {
        let machine = match Machine::new(&options) {
            Ok(machine) => machine,
            Err(HostError::Source { wanted, why }) => {
                eprintln!("SKIPPED: {wanted}: {why}");
                return None;
            }
            Err(other) => panic!("{other}"),
        };
        let mm = machine.memory();
        let why = vkfd_host::migrate::why_not_moved(mm);
        if !why.is_empty() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let memory = ProcessMemory::with_gpus(mm, machine.gpus());
        let gpu = machine.gpus()[index(u64::from(i))].properties();
        let pages = gpu.vram_bytes / PAGE;
        let free = (0..pages).collect();
        let state = Mutex::new((free, BTreeSet::new()));
        let ram = Arc::new(Ram { gpu_id: gpu.gpu_id, coherent, pages, state });
        let device: Arc<dyn DeviceMemory> = ram.clone();
        Some(Rig { mm, machine, memory, ram, device })
    });
    rigs.collect()
}

/// Memory of a GPU that no machine has.
pub fn stranger() -> Arc<dyn DeviceMemory> {
    Arc::new(Ram { gpu_id: 1, coherent: true, pages: 0, state: Mutex::default() })
}

impl Rig {
    /// Pages that the host has.
    pub fn held(&self) -> usize {
        self.ram.state.lock().unwrap().1.len()
    }

    /// Waits until the host has `pages` pages.
    pub fn wait_held(&self, pages: usize) {
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while self.held() != pages {
            let (held, moved) = (self.held(), self.mm.moved());
            assert!(std::time::Instant::now() < patience, "the host has {held} pages, not {pages}; moved: {moved:?}");
            self.mm.settle();
            std::thread::yield_now();
        }
    }

    /// Moves what it can of `span`. How many pages.
    pub fn go(&self, span: CpuSpan) -> u64 {
        self.try_go(span).unwrap()
    }

    pub fn try_go(&self, span: CpuSpan) -> Result<u64, i32> {
        self.offer(span, None)
    }

    /// As [`Rig::go`], with no place for page `without`.
    pub fn go_without(&self, span: CpuSpan, without: usize) -> u64 {
        self.offer(span, Some(without)).unwrap()
    }

    fn offer(&self, span: CpuSpan, without: Option<usize>) -> Result<u64, i32> {
        let offered: Vec<u64> = {
            let mut state = self.ram.state.lock().unwrap();
            // The first run that is long enough, for few mappings.
            let free: Vec<u64> = state.0.iter().copied().collect();
            let want = index(span.pages());
            let run = free.windows(want).find(|w| w[want - 1] - w[0] == want as u64 - 1).map(<[u64]>::to_vec);
            let offered = run.unwrap_or_else(|| free[..want].to_vec());
            for page in &offered {
                state.0.remove(page);
                state.1.insert(*page);
            }
            offered
        };
        let mut places: Vec<_> = offered.iter().map(|page| Some(VramOffset(page * PAGE))).collect();
        if let Some(place) = without.and_then(|without| places[without].take()) {
            let mut state = self.ram.state.lock().unwrap();
            state.1.remove(&(place.0 / PAGE));
            state.0.insert(place.0 / PAGE);
        }
        let moved = self.memory.migrate_to_device(span, &self.device, &mut places).map_err(|e| e.errno.0);
        let mut state = self.ram.state.lock().unwrap();
        for place in places.into_iter().flatten() {
            assert!(state.1.remove(&(place.0 / PAGE)));
            state.0.insert(place.0 / PAGE);
        }
        moved
    }

    /// What a GPU that is none of the machine answers.
    pub fn memory_unknown(&self) -> i32 {
        let stranger = stranger();
        let area = Area::new(1);
        let refused = self.memory.migrate_to_device(area.all(), &stranger, &mut [Some(VramOffset(0))]);
        refused.unwrap_err().errno.0
    }

    pub fn back(&self, span: CpuSpan) -> u64 {
        self.memory.migrate_to_system(span).unwrap()
    }

    /// Evicts what is at pages `places` of the GPU's memory, wherever the process has it.
    pub fn evict(&self, places: std::ops::Range<u64>) -> u64 {
        let places: Vec<_> = places.map(|page| VramOffset(page * PAGE)).collect();
        self.memory.evict_places(&*self.device, &places).unwrap()
    }

    /// Where the pages of `span` are, faulted with a watch of their own; `None` in system memory.
    pub fn places(&self, span: CpuSpan) -> Vec<Option<FabricAddr>> {
        let (faulted, pages) = self.fault(span, Access::Read);
        assert_eq!(faulted, Faulted { spans: 1, error: None });
        pages
            .iter()
            .map(|page| match page.target() {
                vkfd_driver::base::pte::Target::Vram(at) => Some(at),
                vkfd_driver::base::pte::Target::System(_) => None,
            })
            .collect()
    }

    pub fn fault(&self, span: CpuSpan, access: Access) -> (Faulted, Vec<Page>) {
        let watch: Arc<dyn Watch> = self.memory.watch(span, Counter::new()).unwrap();
        let mut pages = vec![Page::default(); index(span.pages())];
        let seq = watch.read_begin();
        (self.memory.fault(&*watch, seq, &[span], access, &mut pages), pages)
    }

    /// A word of VRAM, as the GPUs have it.
    pub fn vram_word(&self, at: FabricAddr) -> u64 {
        let gpu = self.machine.gpus().iter().find(|g| g.properties().gpu_id == self.ram.gpu_id).unwrap();
        gpu.software().vram().read_u64(at.0 - gpu.properties().vram_base.0).unwrap()
    }

    pub fn set_vram_word(&self, at: FabricAddr, value: u64) {
        let gpu = self.machine.gpus().iter().find(|g| g.properties().gpu_id == self.ram.gpu_id).unwrap();
        gpu.software().vram().write_u64(at.0 - gpu.properties().vram_base.0, value).unwrap();
    }
}

/// The first word of page `page`.
pub fn word(area: &Area, page: u64) -> *mut u64 {
    area.byte(page * PAGE).cast()
}

/// Writes a number of its own to each page.
pub fn fill(area: &Area, seed: u64) {
    for page in 0..area.bytes / PAGE {
        unsafe { word(area, page).write_volatile(seed + page) };
    }
}

/// Checks what [`fill`] wrote in pages `first..first + count`.
pub fn check(area: &Area, seed: u64, first: u64, count: u64) {
    for page in first..first + count {
        let found = unsafe { word(area, page).read_volatile() };
        assert_eq!(found, seed + page, "page {page}");
    }
}

/// An area of this many pages that begins at a multiple of 2 MiB.
pub fn aligned(pages: u64) -> Area {
    let area = Area::new(pages);
    assert_eq!(area.at % (2 << 20), 0);
    area
}

pub fn at(area: &Area, page: u64) -> CpuVa {
    CpuVa(area.at + page * PAGE)
}

/// How much of `area`, which is in mappings of its own, is in huge pages.
pub fn huge_kib(area: &Area) -> u64 {
    let (mut inside, mut kib) = (false, 0);
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("AnonHugePages:"), Some(size)) if inside => kib += size.parse::<u64>().unwrap(),
            (Some(span), _) if span.contains('-') => {
                let start = u64::from_str_radix(span.split('-').next().unwrap(), 16).unwrap();
                inside = area.all().contains(CpuVa(start));
            }
            _ => {}
        }
    }
    kib
}
