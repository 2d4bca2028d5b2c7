// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A device with memory around it, and the steps that a driver takes to bring its rings up.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;
use vkfd_asic::pci::bar;
use vkfd_asic::registers::hub::{gfxhub, mmhub};
use vkfd_asic::registers::{gc, sdma, system::osssys, Dword};
use vkfd_asic::{Asic, Host, Shape};
use vkfd_gpu::memory::pte::{Entry, EntryFlags, Level, Target};
use vkfd_gpu::{raw, Bus, BusError, Config, FabricAddr, HostSpan, PhysAddr, Vram};

/// Longer than anything takes.
pub const HANG: Duration = Duration::from_secs(30);
/// Bytes of system memory, from bus address 0 on.
pub const MEMORY: u64 = 8 << 20;
/// First address of the GART's range.
pub const GART: u64 = 0x7fff_0000_0000;
/// Where the GART's table is in VRAM.
const GART_TABLE: u64 = 0x10_0000;
/// Where a process's tables are in VRAM, and how many bytes each process has.
const TABLES: u64 = 0x20_0000;
const TABLES_BYTES: u64 = 0x1_0000;
/// Where processes see system memory.
pub const USER: u64 = 0x10_0000_0000;
pub const READ_WRITE: EntryFlags = EntryFlags::READABLE.union(EntryFlags::WRITEABLE);

/// Places in system memory; the GART shows them from `GART` on.
pub const IH_RING: u64 = 0x1_0000;
pub const IH_WPTR: u64 = 0x2_0000;
pub const KIQ_RING: u64 = 0x3_0000;
pub const RPTRS: u64 = 0x4_0000;
pub const COPY_RING: u64 = 0x5_0000;
pub const SCRATCH: u64 = 0x10_0000;

/// Doorbells, in words.
pub const KIQ_DOORBELL: Dword = 0;
pub const COPY_DOORBELL: Dword = 0x200;
pub const IH_DOORBELL: Dword = 0x2f0;

pub struct Machine {
    memory: Box<[u64]>,
    interrupts: AtomicU32,
}

impl Machine {
    fn ptr(&self, at: u64) -> *mut u8 {
        // Only ever accessed raw.
        self.memory.as_ptr().cast::<u8>().wrapping_add(usize::try_from(at).unwrap()).cast_mut()
    }
}

impl Bus for Machine {
    fn resolve(&self, pa: PhysAddr, max: usize, _: bool) -> Result<HostSpan, BusError> {
        let left = MEMORY.checked_sub(pa.0).filter(|left| *left != 0).ok_or(BusError::NoMemory)?;
        Ok(HostSpan { ptr: self.ptr(pa.0), len: max.min(usize::try_from(left).unwrap()) })
    }

    fn lost(&self, _: PhysAddr, _: bool) {}
}

impl Host for Machine {
    fn write(&self, pa: PhysAddr, bytes: &[u8]) -> bool {
        if pa.0.checked_add(bytes.len() as u64).is_none_or(|end| end > MEMORY) {
            return false;
        }
        // SAFETY: in the memory, to which no reference exists.
        unsafe { raw::copy(self.ptr(pa.0), bytes.as_ptr(), bytes.len()) }.is_ok()
    }

    fn interrupt(&self) {
        self.interrupts.fetch_add(1, SeqCst);
    }
}

pub struct Rig {
    pub asic: Asic,
    machine: Arc<Machine>,
}

pub fn halves(value: u64) -> [u32; 2] {
    [(value & 0xffff_ffff).try_into().unwrap(), (value >> 32).try_into().unwrap()]
}

pub fn mi210() -> Shape {
    Shape::of(vkfd_targets::Target::Gfx90a.model()).unwrap()
}

/// A packet's header.
pub fn pm4(op: u32, body: usize) -> u32 {
    3 << 30 | u32::try_from(body - 1).unwrap() << 16 | op << 8
}

impl Rig {
    pub fn new() -> Rig {
        let memory = vec![0; usize::try_from(MEMORY / 8).unwrap()].into_boxed_slice();
        let machine = Arc::new(Machine { memory, interrupts: AtomicU32::new(0) });
        let vram = Vram::create(64 << 20).unwrap();
        let config = Config { threads: 1, ..Config::default() };
        Rig { asic: Asic::new(mi210(), config, vram, machine.clone(), machine.clone()).unwrap(), machine }
    }

    /// With translation, interrupts and the KIQ, as after a driver's probe.
    pub fn up() -> Rig {
        let rig = Rig::new();
        for page in (0..MEMORY).step_by(4096) {
            let entry = Entry::page(Target::System(PhysAddr(page)), READ_WRITE, 0);
            rig.asic.gpu().vram().write_u64(GART_TABLE + page / 4096 * 8, entry.0).unwrap();
        }
        for (base, start, end) in [
            (gfxhub::VM_CONTEXT_BASE_LO, gfxhub::VM_CONTEXT_START_LO, gfxhub::VM_CONTEXT_END_LO),
            (mmhub::VM_CONTEXT_BASE_LO, mmhub::VM_CONTEXT_START_LO, mmhub::VM_CONTEXT_END_LO),
        ] {
            rig.set_wide(base, GART_TABLE | 1);
            rig.set_wide(start, GART >> 12);
            rig.set_wide(end, (GART + MEMORY - 1) >> 12);
        }
        rig.set(osssys::IH_RB_BASE, u32::try_from(IH_RING >> 8).unwrap());
        rig.set(osssys::IH_RB_WPTR_ADDR_LO, u32::try_from(IH_WPTR).unwrap());
        rig.set(osssys::IH_DOORBELL_RPTR, 1 << 28 | IH_DOORBELL);
        rig.set(osssys::IH_RB_CNTL, 1 << 17 | 10 << 1 | 1);
        // KIQ: micro engine 2, pipe 1, queue 0.
        rig.set(gc::GRBM_GFX_CNTL, 2 << 2 | 1);
        rig.set(gc::CP_HQD_PQ_BASE, halves((GART + KIQ_RING) >> 8)[0]);
        rig.set(gc::CP_HQD_PQ_BASE_HI, halves((GART + KIQ_RING) >> 8)[1]);
        rig.set(gc::CP_HQD_PQ_CONTROL, 9);
        rig.set(gc::CP_HQD_PQ_RPTR_REPORT_ADDR, halves(GART + RPTRS)[0]);
        rig.set(gc::CP_HQD_PQ_RPTR_REPORT_ADDR_HI, halves(GART + RPTRS)[1]);
        rig.set(gc::CP_HQD_PQ_DOORBELL_CONTROL, 1 << 30 | KIQ_DOORBELL << 2);
        rig.set(gc::CP_HQD_ACTIVE, 1);
        rig.set(gc::GRBM_GFX_CNTL, 0);
        rig
    }

    pub fn get(&self, at: Dword) -> u32 {
        let mut bytes = [0; 4];
        self.asic.read(bar::REGISTERS, u64::from(at) * 4, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub fn set(&self, at: Dword, value: u32) {
        self.asic.write(bar::REGISTERS, u64::from(at) * 4, &value.to_le_bytes());
    }

    pub fn set_wide(&self, at: Dword, value: u64) {
        self.set(at, halves(value)[0]);
        self.set(at + 1, halves(value)[1]);
    }

    pub fn doorbell(&self, at: Dword, value: u64) {
        self.asic.write(bar::DOORBELLS, u64::from(at) * 4, &value.to_le_bytes());
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        assert!(self.machine.write(PhysAddr(at), bytes));
    }

    pub fn write_words(&self, at: u64, words: &[u32]) {
        self.write(at, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: in the memory; raw, as the device may write.
        unsafe { raw::copy(bytes.as_mut_ptr(), self.machine.ptr(at), len) }.unwrap();
        bytes
    }

    pub fn word(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.read(at, 4).try_into().unwrap())
    }

    pub fn wide(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.read(at, 8).try_into().unwrap())
    }

    pub fn interrupts(&self) -> u32 {
        self.machine.interrupts.load(SeqCst)
    }

    /// Entry `index` of the interrupt ring.
    pub fn entry(&self, index: u64) -> [u32; 8] {
        std::array::from_fn(|word| self.word(IH_RING + 32 * index + 4 * word as u64))
    }

    /// Waits until firmware has done all that was asked for.
    pub fn settle(&self) {
        assert!(self.asic.settle(HANG), "firmware does not come to rest");
    }

    pub fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let start = std::time::Instant::now();
        while !condition() {
            assert!(start.elapsed() < HANG, "never: {what}");
            std::thread::yield_now();
        }
    }

    /// Submits words to the KIQ, after `before` words, and waits for them.
    pub fn kiq(&self, before: &mut u64, words: &[u32]) {
        self.write_words(KIQ_RING + 4 * *before, words);
        *before += words.len() as u64;
        self.doorbell(KIQ_DOORBELL, *before);
        self.settle();
    }

    /// Starts the driver's ring of copy engine 1.
    pub fn start_copy_ring(&self) {
        let base = sdma::ENGINES[1];
        self.set_wide(base + sdma::GFX_RB_BASE, (GART + COPY_RING) >> 8);
        self.set(base + sdma::GFX_RB_RPTR_ADDR_LO, halves(GART + RPTRS + 64)[0]);
        self.set(base + sdma::GFX_RB_RPTR_ADDR_HI, halves(GART + RPTRS + 64)[1]);
        self.set(base + sdma::GFX_DOORBELL, 1 << 28);
        self.set(base + sdma::GFX_DOORBELL_OFFSET, COPY_DOORBELL << 2);
        self.set(base + sdma::GFX_RB_CNTL, 1 << 12 | 12 << 1 | 1);
    }

    /// Submits words to the copy ring.
    pub fn copy_ring(&self, before: &mut u64, words: &[u32]) {
        self.write_words(COPY_RING + 4 * *before, words);
        *before += words.len() as u64;
        self.doorbell(COPY_DOORBELL, *before * 4);
    }

    /// The root of a process's tables, in the form that AMD's driver has: system memory at [`USER`]
    /// by tables of 4 KiB pages, and 2 MiB of VRAM after it.
    pub fn process_tables(&self, number: u64) -> u64 {
        let vram = self.asic.gpu().vram();
        let at = |table: u64| TABLES + number * TABLES_BYTES + table * 4096;
        let entry = |level: Level, va: u64| level.index(va) * 8;
        vram.write_u64(at(0) + entry(Level::Pdb2, USER), Entry::table(FabricAddr(at(1))).0).unwrap();
        vram.write_u64(at(1) + entry(Level::Pdb1, USER), Entry::block_table(FabricAddr(at(2)), 9).0).unwrap();
        let huge = MEMORY / (2 << 20);
        for table in 0..huge {
            let va = USER + table * (2 << 20);
            let further = Entry::table(FabricAddr(at(3 + table))).0 | EntryFlags::FURTHER.bits();
            vram.write_u64(at(2) + entry(Level::Pdb0, va), further).unwrap();
            for page in 0..512 {
                let target = Target::System(PhysAddr(table * (2 << 20) + page * 4096));
                vram.write_u64(at(3 + table) + page * 8, Entry::page(target, READ_WRITE, 0).0).unwrap();
            }
        }
        // Of memory that begins at any page, as the driver maps pinned memory.
        let block = Entry::page(Target::Vram(FabricAddr((32 << 20) + 0x3000)), READ_WRITE, 9);
        vram.write_u64(at(2) + entry(Level::Pdb0, USER + MEMORY), block.0).unwrap();
        at(0)
    }
}
