// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a guest can do to the device that AMD's driver binds to: registers, doorbells, and words
//! in its own memory, where rings, descriptors and run lists are. Rings may halt, nothing more. One
//! device for all inputs, with a KIQ and a ring of a copy engine; a reset follows each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use vkfd_asic::pci::bar;
use vkfd_asic::registers::hub::{gfxhub, mmhub};
use vkfd_asic::registers::system::osssys;
use vkfd_asic::registers::{gc, sdma};
use vkfd_asic::{Asic, Host, Shape};
use vkfd_gpu::memory::pte::{Entry, EntryFlags, Target};
use vkfd_gpu::{raw, Bus, BusError, Config, HostSpan, PhysAddr, Units, Vram};
use vkfd_sim::patience::PATIENCE;

use super::RUN;

const MEMORY: usize = 256 << 10;
const VRAM_BYTES: u64 = 2 << 20;
/// Where the GART's table is in VRAM, and its first address.
const TABLE: u64 = 0x10_0000;
const GART: u64 = 0x10_0000_0000;
/// Rings in memory, and their words.
const KIQ: u64 = 0x1000;
const COPY: u64 = 0x2000;
const RING_WORDS: u64 = 1024;
const INTERRUPTS: u32 = 0x3000;
const COPY_DOORBELL: u32 = 0x200;
/// Bytes of a step: what, where, value.
const STEP: usize = 9;

struct Machine(Vec<AtomicU64>);

impl Machine {
    fn ptr(&self, at: u64) -> *mut u8 {
        let word = &self.0[usize::try_from(at / 8).unwrap_or(0)];
        word.as_ptr().cast::<u8>().wrapping_add(usize::try_from(at % 8).unwrap_or(0))
    }

    fn set(&self, at: u64, value: u32) {
        Host::write(self, PhysAddr(at), &value.to_le_bytes());
    }
}

impl Bus for Machine {
    fn resolve(&self, pa: PhysAddr, max: usize, _: bool) -> Result<HostSpan, BusError> {
        let left = (MEMORY as u64).checked_sub(pa.0).filter(|left| *left != 0).ok_or(BusError::NoMemory)?;
        Ok(HostSpan { ptr: self.ptr(pa.0), len: max.min(usize::try_from(left).unwrap_or(MEMORY)) })
    }

    fn lost(&self, _: PhysAddr, _: bool) {}
}

impl Host for Machine {
    fn write(&self, pa: PhysAddr, bytes: &[u8]) -> bool {
        if pa.0.checked_add(bytes.len() as u64).is_none_or(|end| end > MEMORY as u64) {
            return false;
        }
        // SAFETY: within the memory, which nothing has a reference to; the device may write, too.
        unsafe { raw::copy(self.ptr(pa.0), bytes.as_ptr(), bytes.len()) }.is_ok()
    }

    fn interrupt(&self) {}
}

fn device() -> &'static (Asic, Arc<Machine>) {
    static DEVICE: OnceLock<(Asic, Arc<Machine>)> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let machine = Arc::new(Machine((0..MEMORY / 8).map(|_| AtomicU64::new(0)).collect()));
        let shape = Shape::of(vkfd_driver::targets::Target::Gfx90a.model()).expect("a PCI device");
        let shape = Shape { units: Units { count: 8, ..shape.units }, ..shape };
        let config = Config { threads: 1, target: None, ..Config::default() };
        let vram = Vram::create(VRAM_BYTES).expect("VRAM");
        let asic = Asic::new(shape, config, vram, machine.clone(), machine.clone()).expect("a device");
        (asic, machine)
    })
}

fn set(asic: &Asic, at: u32, value: u32) {
    asic.write(bar::REGISTERS, u64::from(at) * 4, &value.to_le_bytes());
}

fn set_wide(asic: &Asic, at: u32, value: u64) {
    asic.write(bar::REGISTERS, u64::from(at) * 4, &value.to_le_bytes());
}

/// Translation, interrupts and two rings, as a driver brings them up.
fn bring_up(asic: &Asic, machine: &Machine) {
    for word in &machine.0 {
        word.store(0, Ordering::Relaxed);
    }
    let flags = EntryFlags::READABLE | EntryFlags::WRITEABLE;
    for page in (0..MEMORY as u64).step_by(4096) {
        let entry = Entry::page(Target::System(PhysAddr(page)), flags, 0);
        asic.gpu().vram().write_u64(TABLE + page / 4096 * 8, entry.0).expect("the GART's table");
    }
    for (base, start, end) in [
        (gfxhub::VM_CONTEXT_BASE_LO, gfxhub::VM_CONTEXT_START_LO, gfxhub::VM_CONTEXT_END_LO),
        (mmhub::VM_CONTEXT_BASE_LO, mmhub::VM_CONTEXT_START_LO, mmhub::VM_CONTEXT_END_LO),
    ] {
        set_wide(asic, base, TABLE | 1);
        set_wide(asic, start, GART >> 12);
        set_wide(asic, end, (GART + MEMORY as u64 - 1) >> 12);
    }
    set(asic, osssys::IH_RB_BASE, INTERRUPTS >> 8);
    set(asic, osssys::IH_RB_CNTL, 1 << 17 | 10 << 1 | 1);
    set(asic, gc::GRBM_GFX_CNTL, 2 << 2 | 1);
    set_wide(asic, gc::CP_HQD_PQ_BASE, (GART + KIQ) >> 8);
    set(asic, gc::CP_HQD_PQ_CONTROL, 9);
    set(asic, gc::CP_HQD_ACTIVE, 1);
    set(asic, gc::GRBM_GFX_CNTL, 0);
    let engine = sdma::ENGINES[0];
    set_wide(asic, engine + sdma::GFX_RB_BASE, (GART + COPY) >> 8);
    set(asic, engine + sdma::GFX_DOORBELL, 1 << 28);
    set(asic, engine + sdma::GFX_DOORBELL_OFFSET, COPY_DOORBELL << 2);
    set(asic, engine + sdma::GFX_RB_CNTL, 10 << 1 | 1);
}

/// Accesses of any kind, in the order of the bytes.
pub fn asic_accesses(data: &[u8]) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (asic, machine) = device();
    bring_up(asic, machine);
    let (mut kiq, mut copy) = (0, 0);
    for step in data.chunks_exact(STEP) {
        let word = |at: usize| step.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes);
        let (at, value) = (word(1), word(5));
        match step.first().copied().unwrap_or(0) % 7 {
            0 => set(asic, at % 0x2_0000, value),
            1 => asic.read(bar::REGISTERS, u64::from(at % 0x2_0000) * 4, &mut [0; 4]),
            2 => asic.write(bar::DOORBELLS, u64::from(at % 0x400) * 4, &u64::from(value).to_le_bytes()),
            3 => machine.set(u64::from(at) % (MEMORY as u64 - 4), value),
            4 => {
                machine.set(KIQ + 4 * (kiq % RING_WORDS), value);
                kiq += 1;
            }
            5 => {
                machine.set(COPY + 4 * (copy % RING_WORDS), value);
                copy += 1;
            }
            _ => {
                // What was written so far is submitted.
                asic.write(bar::DOORBELLS, 0, &u64::to_le_bytes(kiq));
                asic.write(bar::DOORBELLS, u64::from(COPY_DOORBELL) * 4, &u64::to_le_bytes(copy * 4));
            }
        }
    }
    asic.settle(RUN);
    asic.reset();
    assert!(asic.settle(PATIENCE), "firmware does not come to rest after a reset");
}
