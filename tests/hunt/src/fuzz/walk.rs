// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Page tables made of fuzz bytes, walked by the GPU and by a second reading of the format.

use std::sync::{Arc, OnceLock};

use vkfd_gpu::{
    Bus, BusError, Config, Fabric, FabricAddr, Gpu, HostSpan, Interrupts, PageFault, PhysAddr, QueueError, QueueId,
    Vmid,
};

/// VRAM: what the tables lie in.
const VRAM_BYTES: u64 = 2 << 20;
const TABLE_BYTES: usize = 0x8000;

/// A machine without memory, whose interrupts nobody hears.
struct Nothing;

impl Bus for Nothing {
    fn resolve(&self, _: PhysAddr, _: usize, _: bool) -> Result<HostSpan, BusError> {
        Err(BusError::NoMemory)
    }
    fn lost(&self, _: PhysAddr, _: bool) {}
}

impl Interrupts for Nothing {
    fn page_fault(&self, _: PageFault) {}
    fn signal_event(&self, _: Vmid, _: u32) {}
    fn queue_error(&self, _: Vmid, _: QueueId, _: QueueError) {}
}

fn gpu() -> &'static Arc<Gpu> {
    static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
    GPU.get_or_init(|| {
        let fabric = Fabric::new(&[VRAM_BYTES]).expect("VRAM");
        let config = Config { vram_bytes: VRAM_BYTES, ..Config::default() };
        Gpu::new(config, 0, fabric, Arc::new(Nothing), Arc::new(Nothing)).expect("a GPU")
    })
}

/// Where `va` leads: system memory or not, and the address. The format once more, on plain bytes.
fn reference(tables: &[u8], base: u64, va: u64) -> Option<(bool, u64)> {
    if va >> 48 != 0 {
        return None;
    }
    let word = |at: u64| -> Option<u64> {
        let offset = at.checked_sub(base).filter(|offset| *offset <= VRAM_BYTES - 8)?;
        let offset = usize::try_from(offset).ok()?;
        // VRAM beyond the tables is zero.
        Some(tables.get(offset..offset + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default())))
    };
    let (mut table, mut is_further) = (base, false);
    for shift in [39, 30, 21] {
        let entry = word(table + ((va >> shift) & 511) * 8)?;
        if entry & 1 == 0 {
            return None;
        }
        // Below a directory with a block fragment, what is no further table is a page.
        let is_page = if is_further { entry >> 56 & 1 == 0 } else { entry >> 54 & 1 != 0 };
        if is_page {
            let inside = va & 0x1f_ffff;
            return (shift == 21).then_some((entry & 2 != 0, (entry & 0xffff_ffff_f000) + inside));
        }
        if entry & 2 != 0 {
            return None;
        }
        table = entry & 0xffff_ffff_ffc0;
        is_further = shift == 30 && entry >> 59 != 0;
    }
    let entry = word(table + ((va >> 12) & 511) * 8)?;
    (entry & 1 != 0).then_some((entry & 2 != 0, (entry & 0xffff_ffff_f000) + (va & 0xfff)))
}

/// The first byte says how wild the tables are; addresses come from the bytes, too.
pub fn page_walk(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else { return };
    let gpu = gpu();
    let base = gpu.fabric().base(0).0;
    let mut tables = vec![0; TABLE_BYTES];
    let len = data.len().min(TABLE_BYTES);
    tables[..len].copy_from_slice(&data[..len]);
    if mode % 2 == 0 {
        // Plausible: entries that are valid and point into the tables or a little beyond.
        for entry in tables.chunks_exact_mut(8) {
            let word = u64::from_le_bytes(entry.try_into().unwrap_or_default());
            let near = base + (word & 0xf_f000);
            let flags = word & ((1 << 54) | (u64::from(*mode) & 2) | 0xff9) | 1;
            entry.copy_from_slice(&((near & 0xffff_ffff_f000) | flags).to_le_bytes());
        }
    }
    gpu.vram().copy_in(0, &tables).expect("the tables fit");
    gpu.set_root(Vmid(1), Some(FabricAddr(base)), false);
    for seed in data.chunks(8).take(64) {
        let mut bytes = [0; 8];
        bytes[..seed.len()].copy_from_slice(seed);
        let wild = u64::from_le_bytes(bytes);
        for va in [wild, wild & 0xffff_ffff_ffff, wild & 0x3fff_ffff, wild & 0x8000_4020_1fff] {
            let found = gpu.translate(Vmid(1), va).ok();
            let place = found.map(|t| {
                assert!(t.span.is_power_of_two() && t.base <= va && va - t.base < t.span, "{va:#x}: {t:x?}");
                let inside = va - t.base;
                match t.target {
                    vkfd_gpu::memory::pte::Target::System(at) => (true, at.0.wrapping_add(inside)),
                    vkfd_gpu::memory::pte::Target::Vram(at) => (false, at.0.wrapping_add(inside)),
                }
            });
            assert_eq!(place, reference(&tables, base, va), "GPU address {va:#x}");
        }
    }
    gpu.set_root(Vmid(1), None, false);
}
