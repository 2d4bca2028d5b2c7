// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What registers do when they are read and written.
//!
//! Reads never wait: the machine gives up a device that does not answer. Writes wait for accesses
//! in flight at most, when they invalidate translations. All of it runs with the device's lock,
//! by the driver's accesses and by packets alike.

use crate::queues::hqd::{self, HqdId};
use crate::queues::user::{space, Key, NewQueue, VMIDS};
use crate::registers::file::{name, BYTES};
use crate::registers::hub::{gfxhub, mmhub};
use crate::registers::system::{athub, mp0, nbio, osssys};
use crate::registers::{gc, sdma, Dword};
use crate::ring::{Ring, RingId};
use crate::state::{Command, Shared, State, CAM_SLOTS};
use vkfd_gpu::{clock, FabricAddr, Gart, QueueKind};

/// Engines of a hub that invalidate.
const INVALIDATORS: Dword = 18;
/// MiB from one step of the frame buffer's registers to the next: 16.
const LOCATION_SHIFT: u32 = 24;
/// Where the frame buffer is in the address space of VMID 0, in such steps.
const LOCATION: u32 = 0x8000;
/// The firmware of the security processor is there.
const FIRMWARE_IS_UP: u32 = 1 << 31;
/// The BIOS has set the card up.
const IS_SET_UP: u32 = 0x200;
/// Where the driver looks for that before it has read the VBIOS.
const EARLY_SCRATCH: Dword = 7;
/// A copy engine's queue is idle.
const IDLE: u32 = 4;
/// Steps in front of a register that the driver spins on that the log shows.
const BEFORE: usize = 8;
/// Bits of a doorbell register.
const DOORBELL_ENABLE: u32 = 1 << 28;
const DOORBELL_OFFSET: u32 = 0x03ff_ffff;
/// Registers that exist once for each VMID.
const BY_VMID: [Dword; 6] = [
    gc::SH_MEM_CONFIG,
    gc::SH_MEM_BASES,
    gc::SQ_SHADER_TBA_LO,
    gc::SQ_SHADER_TBA_HI,
    gc::SQ_SHADER_TMA_LO,
    gc::SQ_SHADER_TMA_HI,
];

fn within(at: Dword, first: Dword, count: Dword) -> bool {
    at.checked_sub(first).is_some_and(|offset| offset < count)
}

/// The registers as they are after a reset.
pub(crate) fn reset(state: &mut State, vram_bytes: u64) {
    let mib = u32::try_from(vram_bytes >> 20).unwrap_or(u32::MAX);
    let top = LOCATION + u32::try_from((vram_bytes >> LOCATION_SHIFT).saturating_sub(1)).unwrap_or(0);
    let file = &mut state.file;
    for (base, end) in [
        (gfxhub::MC_VM_FB_LOCATION_BASE, gfxhub::MC_VM_FB_LOCATION_TOP),
        (mmhub::MC_VM_FB_LOCATION_BASE, mmhub::MC_VM_FB_LOCATION_TOP),
    ] {
        file.set(base, LOCATION);
        file.set(end, top);
    }
    file.set(nbio::RCC_CONFIG_MEMSIZE, mib);
    file.set(mp0::MP0_SMN_C2PMSG_33, FIRMWARE_IS_UP);
    file.set(nbio::BIOS_SCRATCH_7, IS_SET_UP);
    file.set(EARLY_SCRATCH, IS_SET_UP);
    for engine in sdma::ENGINES {
        // Idle.
        file.set(engine + sdma::STATUS_REG, 1);
    }
}

impl Shared {
    /// The driver, or a packet, reads a register.
    pub(crate) fn read_register(&self, state: &mut State, at: Dword) -> u32 {
        state.file.note_read(at);
        let value = self.value(state, at);
        // The driver reads the size of VRAM to push its writes out, and not for the value.
        if at != nbio::RCC_CONFIG_MEMSIZE && state.watchdog.read(at, value) {
            let before = state.trail.lines(BEFORE).join("; ");
            tracing::warn!("the driver spins on {}, which reads {value:#010x}; before: {before}", name(at));
        }
        value
    }

    fn value(&self, state: &State, at: Dword) -> u32 {
        let file = &state.file;
        match at {
            nbio::MM_DATA => {
                let offset = window(state);
                let word = self.gpu.vram().read_u64(offset & !7).unwrap_or(0);
                crate::registers::file::halves(word)[usize::from(offset & 4 != 0)]
            }
            nbio::PCIE_DATA2 => {
                let address = file.get(nbio::PCIE_INDEX2);
                match address / 4 {
                    // Not the window itself, which would have no end.
                    nbio::PCIE_DATA2 => 0,
                    inside if u64::from(address) < BYTES => self.value(state, inside),
                    _ => state.indexed.get(&address).copied().unwrap_or(0),
                }
            }
            // Any mapping is done as soon as it is asked for. The driver waits without end for
            // that.
            athub::ATC_VMID_PASID_MAPPING_UPDATE_STATUS => u32::MAX,
            gc::CC_GC_SHADER_ARRAY_CONFIG => state.shape.missing_units(selected_array(state)) << 16,
            gc::RLC_GPU_CLOCK_COUNT_LSB => crate::registers::file::halves(clock())[0],
            gc::RLC_GPU_CLOCK_COUNT_MSB => crate::registers::file::halves(clock())[1],
            _ if hqd::place(at).is_some() => {
                state.hqds.get(&HqdId::selected(file.get(gc::GRBM_GFX_CNTL))).map_or(0, |hqd| hqd.get(at))
            }
            _ if BY_VMID.contains(&at) => state.spaces.get(&(selected_vmid(state), at)).copied().unwrap_or(0),
            // Nobody else wants the invalidators.
            _ if within(at, gfxhub::VM_INVALIDATE_SEM, INVALIDATORS)
                || within(at, mmhub::VM_INVALIDATE_SEM, INVALIDATORS) =>
            {
                1
            }
            _ => match sdma::engine_of(at) {
                Some((engine, inner)) => copy_value(state, engine, inner, at),
                None => file.get(at),
            },
        }
    }

    /// The driver, or a packet, writes a register.
    pub(crate) fn write_register(&self, state: &mut State, at: Dword, value: u32) {
        state.file.note_write();
        match at {
            nbio::MM_DATA => self.write_window(state, value),
            nbio::PCIE_DATA2 => {
                let address = state.file.get(nbio::PCIE_INDEX2);
                match address / 4 {
                    nbio::PCIE_DATA2 => {}
                    inside if u64::from(address) < BYTES => self.write_register(state, inside, value),
                    _ => state.set_indexed(address, value),
                }
            }
            gc::RLC_SAFE_MODE => state.file.set(at, value & !1),
            nbio::GPU_HDP_FLUSH_REQ => {
                state.file.set(at, value);
                state.file.set(nbio::GPU_HDP_FLUSH_DONE, value);
            }
            _ if hqd::place(at).is_some() => self.write_hqd(state, at, value),
            _ if BY_VMID.contains(&at) => {
                state.spaces.insert((selected_vmid(state), at), value);
            }
            _ if within(at, gfxhub::VM_INVALIDATE_REQ, INVALIDATORS) => {
                self.invalidate(state, false, at - gfxhub::VM_INVALIDATE_REQ, value);
            }
            _ if within(at, mmhub::VM_INVALIDATE_REQ, INVALIDATORS) => {
                self.invalidate(state, true, at - mmhub::VM_INVALIDATE_REQ, value);
            }
            _ if within(at, gfxhub::VM_CONTEXT_BASE_LO, 2 * Dword::from(VMIDS)) => {
                state.file.set(at, value);
                self.set_root(state, false, (at - gfxhub::VM_CONTEXT_BASE_LO) / 2);
            }
            _ if within(at, mmhub::VM_CONTEXT_BASE_LO, 2 * Dword::from(VMIDS)) => {
                state.file.set(at, value);
                self.set_root(state, true, (at - mmhub::VM_CONTEXT_BASE_LO) / 2);
            }
            gfxhub::VM_CONTEXT_START_LO..=gfxhub::VM_CONTEXT_START_HI
            | gfxhub::VM_CONTEXT_END_LO..=gfxhub::VM_CONTEXT_END_HI => {
                state.file.set(at, value);
                self.set_root(state, false, 0);
            }
            mmhub::VM_CONTEXT_START_LO..=mmhub::VM_CONTEXT_START_HI
            | mmhub::VM_CONTEXT_END_LO..=mmhub::VM_CONTEXT_END_HI => {
                state.file.set(at, value);
                self.set_root(state, true, 0);
            }
            osssys::IH_RB_CNTL | osssys::IH_RB_RPTR | osssys::IH_RB_WPTR => {
                state.file.set(at, value);
                state.ih.written(&mut state.file, &*self.host, at, value);
            }
            _ => match sdma::engine_of(at) {
                Some((engine, inner)) => self.write_copy(state, engine, inner, at, value),
                None => state.file.set(at, value),
            },
        }
    }

    fn write_window(&self, state: &State, value: u32) {
        let offset = window(state);
        // A word outside of the VRAM is lost, as on hardware.
        let _ = self.gpu.vram().copy_in(offset & !3, &value.to_le_bytes());
    }

    /// Forgets translations, and says so when they are forgotten.
    fn invalidate(&self, state: &mut State, mmhub: bool, engine: Dword, request: u32) {
        let mask = request & 0xffff;
        self.flush(mask, mmhub);
        let (own, ack) = if mmhub {
            (mmhub::VM_INVALIDATE_REQ, mmhub::VM_INVALIDATE_ACK)
        } else {
            (gfxhub::VM_INVALIDATE_REQ, gfxhub::VM_INVALIDATE_ACK)
        };
        state.file.set(own + engine, request);
        state.file.set(ack + engine, mask);
    }

    /// The tables of a VMID as the registers have them now.
    pub(crate) fn set_root(&self, state: &State, mmhub: bool, vmid: Dword) {
        let file = &state.file;
        let (low, high) = if mmhub {
            (mmhub::VM_CONTEXT_BASE_LO, mmhub::VM_CONTEXT_BASE_HI)
        } else {
            (gfxhub::VM_CONTEXT_BASE_LO, gfxhub::VM_CONTEXT_BASE_HI)
        };
        let word = file.wide(low + 2 * vmid, high + 2 * vmid);
        let table = FabricAddr(word & 0xffff_ffff_ffc0);
        let number = u8::try_from(vmid).unwrap_or(0);
        if vmid != 0 {
            let config = state.spaces.get(&(number, gc::SH_MEM_CONFIG)).copied().unwrap_or(RETRY_DISABLE);
            let retry = config & RETRY_DISABLE == 0;
            self.gpu.set_root(space(number, mmhub), (word & 1 != 0).then_some(table), retry);
            return;
        }
        let (first, last) = if mmhub {
            (
                file.wide(mmhub::VM_CONTEXT_START_LO, mmhub::VM_CONTEXT_START_HI),
                file.wide(mmhub::VM_CONTEXT_END_LO, mmhub::VM_CONTEXT_END_HI),
            )
        } else {
            (
                file.wide(gfxhub::VM_CONTEXT_START_LO, gfxhub::VM_CONTEXT_START_HI),
                file.wide(gfxhub::VM_CONTEXT_END_LO, gfxhub::VM_CONTEXT_END_HI),
            )
        };
        // The registers count pages.
        let page = |value: u64| (value & 0xf_ffff_ffff) << 12;
        let gart = Gart {
            frame_buffer: u64::from(LOCATION) << LOCATION_SHIFT,
            frame_buffer_bytes: self.gpu.vram().size(),
            first: page(first),
            last: page(last) | 0xfff,
            table: FabricAddr(table.0 & !0xfff),
        };
        self.gpu.set_gart(space(0, mmhub), Some(gart));
    }

    fn write_hqd(&self, state: &mut State, at: Dword, value: u32) {
        let id = HqdId::selected(state.file.get(gc::GRBM_GFX_CNTL));
        let hqd = state.hqds.entry(id).or_default();
        match at {
            gc::CP_HQD_DEQUEUE_REQUEST if value != 0 => {
                if hqd.vmid() == 0 {
                    self.stop_ring(state, RingId::Compute(id));
                    state.hqds.entry(id).or_default().set(gc::CP_HQD_ACTIVE, 0);
                } else if hqd.is_active() {
                    state.command(Command::Unload(id));
                    self.changed.notify_all();
                }
            }
            gc::CP_HQD_ACTIVE if value & 1 != 0 && !hqd.is_active() => {
                hqd.set(at, value);
                if hqd.vmid() == 0 {
                    self.start_ring(state, id, None);
                } else {
                    state.command(Command::Load(id));
                    self.changed.notify_all();
                }
            }
            _ => hqd.set(at, value),
        }
    }

    /// Starts a ring of the driver's own, with the write pointer that was found in memory.
    pub(crate) fn start_ring(&self, state: &mut State, id: HqdId, wptr: Option<u64>) {
        let Some(hqd) = state.hqds.get(&id).copied() else { return };
        let ring_id = RingId::Compute(id);
        self.stop_ring(state, ring_id);
        state.generation += 1;
        let rptr = u64::from(hqd.get(gc::CP_HQD_PQ_RPTR));
        let ring = Ring {
            id: ring_id,
            vmid: space(0, false),
            va: hqd.ring(),
            words: hqd.ring_words(),
            rptr,
            wptr: wptr.unwrap_or_else(|| hqd.wptr()).max(rptr),
            report: hqd.report(),
            buffer: None,
            wrote: false,
            generation: state.generation,
            halted: false,
        };
        tracing::debug!(%ring_id, doorbell = hqd.doorbell(), va = ring.va, words = ring.words, "ring");
        state.doorbells.insert(hqd.doorbell(), ring_id);
        state.rings.insert(ring_id, ring);
        self.changed.notify_all();
    }

    /// Ends a ring of the driver's own.
    pub(crate) fn stop_ring(&self, state: &mut State, id: RingId) {
        state.rings.remove(&id);
        state.doorbells.retain(|_, ring| *ring != id);
    }

    fn write_copy(&self, state: &mut State, engine: usize, inner: Dword, at: Dword, value: u32) {
        let before = state.file.get(at);
        state.file.set(at, value);
        let base = at - inner;
        match inner {
            sdma::GFX_RB_CNTL if (before ^ value) & 1 != 0 => {
                self.stop_ring(state, RingId::Copy(engine));
                if value & 1 != 0 {
                    self.start_copy_ring(state, engine, base);
                }
            }
            sdma::GFX_DOORBELL | sdma::GFX_DOORBELL_OFFSET => set_copy_doorbell(state, engine, base),
            _ => match sdma::queue_of(inner) {
                Some((queue, sdma::RLC_RB_CNTL)) if (before ^ value) & 1 != 0 => {
                    if value & 1 != 0 {
                        self.load_copy_queue(state, engine, queue);
                    } else if state.users.get(Key::Copy(engine, queue)).is_some() {
                        state.command(Command::Disable(engine, queue));
                        self.changed.notify_all();
                    }
                }
                _ => {}
            },
        }
    }

    fn start_copy_ring(&self, state: &mut State, engine: usize, base: Dword) {
        let file = &state.file;
        let wide = |low: Dword, high: Dword| file.wide(base + low, base + high);
        let control = file.get(base + sdma::GFX_RB_CNTL);
        let write_back = control >> 12 & 1 != 0;
        let report = wide(sdma::GFX_RB_RPTR_ADDR_LO, sdma::GFX_RB_RPTR_ADDR_HI) & !3;
        state.generation += 1;
        let ring = Ring {
            id: RingId::Copy(engine),
            vmid: space(0, true),
            va: wide(sdma::GFX_RB_BASE, sdma::GFX_RB_BASE_HI) << 8,
            words: 1 << (control >> 1 & 0x1f),
            // The registers count bytes.
            rptr: wide(sdma::GFX_RB_RPTR, sdma::GFX_RB_RPTR_HI) / 4,
            wptr: wide(sdma::GFX_RB_WPTR, sdma::GFX_RB_WPTR_HI) / 4,
            report: if write_back { report } else { 0 },
            buffer: None,
            wrote: false,
            generation: state.generation,
            halted: false,
        };
        state.rings.insert(RingId::Copy(engine), ring);
        set_copy_doorbell(state, engine, base);
        self.changed.notify_all();
    }

    /// The driver has loaded a program's queue into a copy engine.
    fn load_copy_queue(&self, state: &mut State, engine: usize, queue: u32) {
        let Some(base) = sdma::ENGINES.get(engine).map(|base| base + queue * sdma::QUEUE_STRIDE) else { return };
        let file = &state.file;
        if file.get(base + sdma::RLC_DOORBELL) & DOORBELL_ENABLE == 0 {
            // How the driver leaves a queue that it has taken out.
            return;
        }
        let wide = |low: Dword, high: Dword| file.wide(base + low, base + high);
        let control = file.get(base + sdma::RLC_RB_CNTL);
        let vmid = control.to_le_bytes()[3] & 0xf;
        let new = NewQueue {
            key: Key::Copy(engine, queue),
            vmid,
            pasid: state.pasid(vmid, true),
            engine: Some(engine),
            kind: QueueKind::Sdma,
            ring_va: wide(sdma::RLC_RB_BASE, sdma::RLC_RB_BASE_HI) << 8,
            ring_bytes: 4 << (control >> 1 & 0x1f),
            rptr_va: wide(sdma::RLC_RB_RPTR_ADDR_LO, sdma::RLC_RB_RPTR_ADDR_HI) & !7,
            wptr_va: 0,
            start: wide(sdma::RLC_RB_RPTR, sdma::RLC_RB_RPTR_HI),
            doorbell: file.get(base + sdma::RLC_DOORBELL_OFFSET) >> 2 & DOORBELL_OFFSET,
        };
        let wptr = wide(sdma::RLC_RB_WPTR, sdma::RLC_RB_WPTR_HI);
        match state.users.start(&self.gpu, new) {
            Ok(_) => state.users.submit(&self.gpu, new.key, wptr),
            Err(error) => tracing::warn!(engine, queue, %error, "a program's queue cannot run"),
        }
    }

    /// A doorbell was written: a word, or two.
    pub(crate) fn ring_doorbell(&self, state: &mut State, at: Dword, value: u64) {
        state.rung += 1;
        if let Some(id) = state.doorbells.get(&at).copied() {
            if let Some(ring) = state.rings.get_mut(&id) {
                // Copy engines count bytes.
                ring.wptr = if matches!(id, RingId::Copy(_)) { value / 4 } else { value };
                self.changed.notify_all();
            }
            return;
        }
        if state.users.doorbell(&self.gpu, at, value) {
            return;
        }
        let [low, _] = crate::registers::file::halves(value);
        if crate::interrupts::InterruptRing::is_retry_doorbell(&state.file, at) {
            let slot = u16::try_from(low).unwrap_or(0) % CAM_SLOTS;
            if let Some((vmid, va)) = state.faults.remove(&slot) {
                self.gpu.fault_done(vmid, va, vkfd_gpu::FaultOutcome::Retry);
            }
            return;
        }
        if !state.ih.doorbell(&mut state.file, &*self.host, at, low) {
            tracing::debug!(at, value, "a doorbell that no queue has");
        }
    }
}

/// A program's faults do not wait for the driver.
pub(crate) const RETRY_DISABLE: u32 = 1 << 12;

/// The byte of VRAM that the window shows.
fn window(state: &State) -> u64 {
    let low = u64::from(state.file.get(nbio::MM_INDEX) & 0x7fff_ffff);
    u64::from(state.file.get(nbio::MM_INDEX_HI)) << 31 | low
}

fn selected_vmid(state: &State) -> u8 {
    state.file.get(gc::GRBM_GFX_CNTL).to_le_bytes()[0] >> 4
}

/// The shader array that `GRBM_GFX_INDEX` selects; the first, when it selects all.
fn selected_array(state: &State) -> u32 {
    let [_, array, engine, broadcast] = state.file.get(gc::GRBM_GFX_INDEX).to_le_bytes();
    let array = if broadcast >> 5 & 1 != 0 { 0 } else { u32::from(array) };
    let engine = if broadcast >> 7 & 1 != 0 { 0 } else { u32::from(engine) };
    engine.saturating_mul(state.shape.units.arrays).saturating_add(array)
}

fn copy_value(state: &State, engine: usize, inner: Dword, at: Dword) -> u32 {
    let stored = state.file.get(at);
    match sdma::queue_of(inner) {
        Some((queue, sdma::RLC_CONTEXT_STATUS)) => {
            let stopping = state.commands.contains(&Command::Disable(engine, queue));
            stored & !IDLE | if stopping { 0 } else { IDLE }
        }
        _ => stored,
    }
}

/// The doorbell of a copy engine's own ring as its registers have it now.
fn set_copy_doorbell(state: &mut State, engine: usize, base: Dword) {
    let id = RingId::Copy(engine);
    state.doorbells.retain(|_, ring| *ring != id);
    if state.file.get(base + sdma::GFX_DOORBELL) & DOORBELL_ENABLE != 0 && state.rings.contains_key(&id) {
        let at = state.file.get(base + sdma::GFX_DOORBELL_OFFSET) >> 2 & DOORBELL_OFFSET;
        state.doorbells.insert(at, id);
    }
}
