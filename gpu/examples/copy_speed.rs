// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Prints how fast SDMA copies, beside plain memcpy, for several page sizes and placements.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vkfd_gpu::memory::pte::{Entry, EntryFlags, Level, Target};
use vkfd_gpu::{
    raw, Bus, BusError, Config, DoorbellPtr, Fabric, FabricAddr, Gpu, HostSpan, Interrupts, PageFault, PhysAddr,
    QueueConfig, QueueError, QueueId, QueueKind, Vmid, Vram,
};

const VMID: Vmid = Vmid(1);
const MEMORY: u64 = 64 << 20;
const LEN: u32 = 16 << 20;
const ROUNDS: u32 = 16;

/// System memory is one shared mapping; physical addresses are offsets in it.
struct Host(Vram);

impl Bus for Host {
    fn resolve(&self, pa: PhysAddr, max: usize, _write: bool) -> Result<HostSpan, BusError> {
        let (ptr, len) = self.0.span(pa.0, max).map_err(|_| BusError::NoMemory)?;
        Ok(HostSpan { ptr, len })
    }

    fn lost(&self, pa: PhysAddr, _write: bool) {
        eprintln!("lost {pa}");
    }
}

impl Interrupts for Host {
    fn page_fault(&self, fault: PageFault) {
        eprintln!("{fault}");
    }

    fn signal_event(&self, _vmid: Vmid, _event_id: u32) {}

    fn queue_error(&self, _vmid: Vmid, queue: QueueId, error: QueueError) {
        eprintln!("{queue}: {error}");
        std::process::exit(1);
    }
}

fn halves(value: u64) -> Result<[u32; 2], std::num::TryFromIntError> {
    Ok([(value & 0xffff_ffff).try_into()?, (value >> 32).try_into()?])
}

fn report(what: &str, time: Duration) {
    let bytes = f64::from(LEN) * f64::from(ROUNDS);
    println!("{what:32} {:6.2} GB/s", bytes / time.as_secs_f64() / 1e9);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = Arc::new(Host(Vram::create(MEMORY)?));
    let config = Config { vram_bytes: MEMORY, ..Config::default() };
    let gpu = Gpu::new(config, 0, Fabric::new(&[MEMORY])?, host.clone(), host.clone())?;

    // One table of each level, and one PTB for each 2 MiB of system memory; they are at the start
    // of VRAM.
    let flags = EntryFlags::READABLE | EntryFlags::WRITEABLE;
    let (pdb1, pdb0, ptbs) = (0x1000, 0x2000, 0x3000);
    let vram = gpu.vram();
    vram.write_u64(0, Entry::table(FabricAddr(pdb1)).0)?;
    vram.write_u64(pdb1, Entry::table(FabricAddr(pdb0)).0)?;
    let entry = |va: u64| pdb0 + Level::Pdb0.index(va) * 8;
    for block in (0..MEMORY).step_by(2 << 20) {
        let table = ptbs + (block >> 9);
        vram.write_u64(entry(block), Entry::table(FabricAddr(table)).0)?;
        for page in 0..512 {
            let target = Target::System(PhysAddr(block + page * 4096));
            vram.write_u64(table + page * 8, Entry::page(target, flags, 0).0)?;
        }
        let huge = Entry::huge_page(Target::System(PhysAddr(block)), flags);
        vram.write_u64(entry(MEMORY + block), huge.0)?;
        let huge = Entry::huge_page(Target::Vram(FabricAddr(block)), flags);
        vram.write_u64(entry(2 * MEMORY + block), huge.0)?;
    }
    gpu.set_root(VMID, Some(FabricAddr(0)), false);

    let slot = Arc::new(AtomicU64::new(0));
    let ptr = NonNull::new(slot.as_ptr()).ok_or("no doorbell")?;
    // SAFETY: the Arc keeps the slot in place.
    let doorbell = unsafe { DoorbellPtr::new(ptr, slot.clone()) };
    gpu.add_queue(QueueConfig {
        vmid: VMID,
        kind: QueueKind::Sdma,
        ring_va: 0,
        ring_bytes: 4096,
        rptr_va: 4096,
        wptr_va: 0,
        doorbell,
        enabled: true,
    })?;

    let (from, to) = (8 << 20, 32 << 20);
    host.0.fill(from, u64::from(LEN), 1)?;
    host.0.fill(to, u64::from(LEN), 2)?;
    vram.fill(to, u64::from(LEN), 3)?;
    let (src, dst) = (host.0.span(from, 1)?.0, host.0.span(to, 1)?.0);

    let len = usize::try_from(LEN)?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        // SAFETY: both lie in the mapping, apart; no queue uses it now.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
    }
    report("memcpy, 16 MiB", start.elapsed());
    for piece in [4096, 64 << 10, 256 << 10] {
        for raw_copy in [false, true] {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                for at in (0..len).step_by(piece) {
                    // SAFETY: as above.
                    unsafe {
                        if raw_copy {
                            raw::copy(dst.wrapping_add(at), src.wrapping_add(at), piece)?;
                        } else {
                            std::ptr::copy_nonoverlapping(src.wrapping_add(at), dst.wrapping_add(at), piece);
                        }
                    }
                }
            }
            let name = if raw_copy { "raw::copy" } else { "memcpy" };
            report(&format!("{name}, pieces of {} KiB", piece >> 10), start.elapsed());
        }
    }

    let mut wptr = 0u64;
    for (name, dst, src) in [
        ("SDMA, 4 KiB pages", to, from),
        ("SDMA, 2 MiB pages", MEMORY + to, MEMORY + from),
        ("SDMA, 2 MiB pages to VRAM", 2 * MEMORY + to, MEMORY + from),
    ] {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let ([d0, d1], [s0, s1]) = (halves(dst)?, halves(src)?);
            for word in [1, LEN - 1, 0, s0, s1, d0, d1] {
                host.0.copy_in(wptr % 4096, &word.to_le_bytes())?;
                wptr += 4;
            }
        }
        slot.store(wptr, Ordering::SeqCst);
        gpu.ring();
        while host.0.read_u64(4096)? != wptr {
            std::hint::spin_loop();
        }
        report(name, start.elapsed());
    }
    println!("{:?}", gpu.counters());
    Ok(())
}
