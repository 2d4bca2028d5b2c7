// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The device: what the bus does with it, and the thread that is its firmware.

use crate::chip;
use crate::host::Host;
use crate::packets::Processor;
use crate::pci::{bar, Config, DOORBELL_BYTES};
use crate::queues::user::VMIDS;
use crate::registers::file::{name, BYTES};
use crate::shape::Shape;
use crate::state::{Shared, State};
use crate::trail::Step;
use crate::vbios::vbios;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use vkfd_gpu::{Bus, Fabric, Gpu, GpuError, PageFault, QueueError, QueueId, Vmid, Vram, VramError};

/// How long a ring that waits rests before it is tried again.
const REST: Duration = Duration::from_micros(100);

/// Why a device cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum AsicError {
    /// The VRAM.
    #[error(transparent)]
    Vram(#[from] VramError),
    /// The GPU behind it.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Its thread.
    #[error("cannot start the firmware's thread: {0}")]
    Thread(std::io::Error),
}

/// The way from the GPU's queues to the device, which is made after them.
struct Line(OnceLock<Weak<Shared>>);

impl Line {
    fn shared(&self) -> Option<Arc<Shared>> {
        self.0.get()?.upgrade()
    }
}

impl vkfd_gpu::Interrupts for Line {
    fn page_fault(&self, fault: PageFault) {
        if let Some(shared) = self.shared() {
            shared.fault(&fault);
        }
    }

    fn signal_event(&self, vmid: Vmid, event_id: u32) {
        self.queue_event(vmid, QueueId(u32::MAX), event_id);
    }

    fn queue_event(&self, vmid: Vmid, queue: QueueId, event_id: u32) {
        if let Some(shared) = self.shared() {
            shared.event(vmid, queue, event_id);
        }
    }

    fn queue_error(&self, vmid: Vmid, queue: QueueId, error: QueueError) {
        tracing::warn!(%vmid, %queue, %error, "a program's queue has halted");
        if let (Some(shared), Some(exception)) = (self.shared(), error.exception()) {
            shared.exception(vmid, queue, exception);
        }
    }
}

/// What a device has done, for people and for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub reads: u64,
    pub writes: u64,
    pub doorbells: u64,
    pub interrupts: u64,
    /// Registers that were read and are in no table, by name.
    pub unmodelled: Vec<String>,
    /// Packets of the driver's own rings, by name.
    pub packets: BTreeMap<String, u64>,
    /// Rings that stand still because of an error.
    pub halted: Vec<String>,
    /// The last accesses and interrupts, the oldest first.
    pub last: Vec<String>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { reads, writes, doorbells, interrupts, unmodelled, packets, halted, last } = self;
        writeln!(f, "registers: {reads} reads, {writes} writes; {doorbells} doorbells, {interrupts} interrupts")?;
        for (packet, count) in packets {
            writeln!(f, "packet: {packet} {count}")?;
        }
        for register in unmodelled {
            writeln!(f, "not modelled: {register}")?;
        }
        for ring in halted {
            writeln!(f, "halted: {ring}")?;
        }
        for step in last {
            writeln!(f, "last: {step}")?;
        }
        Ok(())
    }
}

/// A device.
pub struct Asic {
    shared: Arc<Shared>,
    config: Mutex<Config>,
    shape: Shape,
    rom: Vec<u8>,
    firmware: Option<JoinHandle<()>>,
}

impl Asic {
    /// A device of this shape, whose VRAM is `vram`. `config` says what its kernels run on; the
    /// fields that the device knows better are not looked at.
    ///
    /// # Errors
    /// [`AsicError`].
    pub fn new(
        shape: Shape,
        config: vkfd_gpu::Config,
        vram: Vram,
        bus: Arc<dyn Bus>,
        host: Arc<dyn Host>,
    ) -> Result<Self, AsicError> {
        let vram_bytes = vram.size();
        let fabric = Fabric::with_vrams(vec![vram])?;
        let line = Arc::new(Line(OnceLock::new()));
        // Each hub has VMIDs of its own.
        let config = vkfd_gpu::Config {
            vram_bytes,
            vmids: 2 * u32::from(VMIDS),
            units: shape.units,
            shader_mhz: shape.shader_mhz,
            ..config
        };
        let gpu = Gpu::new(config, 0, fabric, bus, line.clone())?;
        let mut state = State::new(shape.clone());
        chip::reset(&mut state, vram_bytes);
        let shared = Arc::new(Shared::new(gpu, host, state));
        // Set once, here.
        let _ = line.0.set(Arc::downgrade(&shared));
        let worker = shared.clone();
        let firmware = std::thread::Builder::new()
            .name("firmware".into())
            .spawn(move || run(Processor::new(worker)))
            .map_err(AsicError::Thread)?;
        let rom = vbios(&shape);
        let config = Mutex::new(Config::new(&shape, vram_bytes));
        Ok(Self { shared, config, shape, rom, firmware: Some(firmware) })
    }

    /// The GPU behind the registers.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.shared.gpu
    }

    /// The VBIOS.
    pub fn rom(&self) -> &[u8] {
        &self.rom
    }

    /// Reads the configuration space.
    pub fn read_config(&self, offset: u64, data: &mut [u8]) {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).read(offset, data);
    }

    /// Writes the configuration space.
    pub fn write_config(&self, offset: u64, data: &[u8]) {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).write(offset, data);
    }

    /// Reads from a BAR. What is not there reads as zero; registers are read in whole words.
    pub fn read(&self, bar: u32, offset: u64, data: &mut [u8]) {
        data.fill(0);
        match bar {
            bar::VRAM => {
                // Outside of it, and where the machine has no memory, there are zeroes.
                let _ = self.shared.gpu.vram().copy_out(offset, data);
            }
            bar::REGISTERS => {
                let mut state = self.shared.lock();
                let mut at = offset;
                let mut rest = data;
                while !rest.is_empty() && at < BYTES {
                    let skip = usize::try_from(at % 4).unwrap_or(0);
                    let word = u32::try_from(at / 4).unwrap_or(u32::MAX);
                    let value = self.shared.read_register(&mut state, word);
                    state.trail.note(Step::Read { at: word, value });
                    let bytes = value.to_le_bytes();
                    let (part, after) = rest.split_at_mut(rest.len().min(4 - skip));
                    part.copy_from_slice(bytes.get(skip..skip + part.len()).unwrap_or_default());
                    at += part.len() as u64;
                    rest = after;
                }
            }
            _ => {}
        }
    }

    /// Writes to a BAR. Registers and doorbells take whole words; other writes are lost.
    pub fn write(&self, bar: u32, offset: u64, data: &[u8]) {
        match bar {
            bar::VRAM => {
                // Lost outside of it, as on hardware.
                let _ = self.shared.gpu.vram().copy_in(offset, data);
            }
            bar::REGISTERS if offset % 4 == 0 => {
                let mut state = self.shared.lock();
                for (index, bytes) in (0..).zip(data.chunks_exact(4)) {
                    let at = offset.saturating_add(4 * index);
                    if at >= BYTES {
                        break;
                    }
                    let value = u32::from_le_bytes(bytes.try_into().unwrap_or_default());
                    let at = u32::try_from(at / 4).unwrap_or(u32::MAX);
                    state.trail.note(Step::Write { at, value });
                    self.shared.write_register(&mut state, at, value);
                }
                drop(state);
                self.shared.sweep();
            }
            bar::DOORBELLS if offset % 4 == 0 && offset < DOORBELL_BYTES => {
                let mut value = [0; 8];
                let length = data.len().min(8);
                if let (Some(place), Some(part)) = (value.get_mut(..length), data.get(..length)) {
                    place.copy_from_slice(part);
                }
                let at = u32::try_from(offset / 4).unwrap_or(u32::MAX);
                let (mut state, value) = (self.shared.lock(), u64::from_le_bytes(value));
                state.trail.note(Step::Doorbell { at, value });
                self.shared.ring_doorbell(&mut state, at, value);
            }
            _ => tracing::debug!(bar, offset, bytes = data.len(), "a write that is lost"),
        }
    }

    /// As after power-on; the VRAM keeps its contents.
    pub fn reset(&self) {
        let vram_bytes = self.shared.gpu.vram().size();
        let mut state = self.shared.lock();
        for key in state.users.keys(|_| true) {
            state.users.remove(key);
        }
        let removed = state.users.take_removed();
        // Firmware may be in the middle of a packet: it has to see that the ring is another one.
        let (generation, resets, working) = (state.generation, state.resets + 1, state.working);
        *state = State { generation, resets, working, ..State::new(self.shape.clone()) };
        chip::reset(&mut state, vram_bytes);
        drop(state);
        for queue in removed {
            // All of them were there.
            let _ = self.shared.gpu.remove_queue(queue);
        }
        for vmid in 0..2 * u32::from(VMIDS) {
            self.shared.gpu.set_root(Vmid(vmid), None, false);
            self.shared.gpu.set_gart(Vmid(vmid), None);
            self.shared.gpu.flush_tlb(Vmid(vmid));
        }
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Config::new(&self.shape, vram_bytes);
    }

    /// Forgets all translations: memory of the machine goes away. When it returns, nothing uses
    /// memory that was found before.
    pub fn forget_memory(&self) {
        for vmid in 0..2 * u32::from(VMIDS) {
            self.shared.gpu.flush_tlb(Vmid(vmid));
        }
    }

    /// Waits until firmware has nothing to do, or as long as `patience`. Whether it has nothing.
    pub fn settle(&self, patience: Duration) -> bool {
        let busy = |state: &mut State| state.is_busy() || state.working;
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), patience, busy);
        waited.is_ok_and(|(_, result)| !result.timed_out())
    }

    /// What it has done.
    pub fn summary(&self) -> Summary {
        let state = self.shared.lock();
        let (reads, writes) = state.file.accesses();
        Summary {
            reads,
            writes,
            doorbells: state.rung,
            interrupts: state.ih.counts().0,
            unmodelled: state.file.unmodelled(),
            packets: state.packets.clone(),
            halted: state.rings.values().filter(|ring| ring.halted).map(|ring| ring.id.to_string()).collect(),
            last: state.trail.lines(usize::MAX),
        }
    }

    /// The name of the register at a byte offset of its BAR.
    pub fn register_name(offset: u64) -> String {
        name(u32::try_from(offset / 4).unwrap_or(u32::MAX))
    }
}

impl Drop for Asic {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.firmware.take() {
            // A panic has been reported by its hook.
            let _ = thread.join();
        }
    }
}

/// The firmware: commands and rings, one after the other.
fn run(mut processor: Processor) {
    let shared = processor.shared.clone();
    // The last ring that had its turn.
    let (mut last, mut resets) = (None, 0);
    loop {
        let mut state = shared.lock();
        state.working = false;
        if state.resets != resets {
            resets = state.resets;
            processor.scheduler = Default::default();
        }
        if !state.is_busy() {
            // Those that wait for the end of the work look again.
            shared.changed.notify_all();
        }
        while !state.stop && !state.is_busy() {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop {
            return;
        }
        state.working = true;
        if let Some(command) = state.commands.front().copied() {
            drop(state);
            if let Err(error) = processor.obey(command) {
                tracing::warn!(?command, %error, "the driver's command cannot be obeyed");
            }
            let mut state = shared.lock();
            // A reset may have taken it away.
            if state.commands.front() == Some(&command) {
                state.commands.pop_front();
            }
            continue;
        }
        let next = |after: Option<crate::ring::RingId>| {
            let mut busy = state.rings.values().filter(|ring| ring.is_busy());
            busy.find(|ring| after.is_none_or(|after| ring.id > after)).cloned()
        };
        let Some(mut ring) = next(last).or_else(|| next(None)) else { continue };
        drop(state);
        last = Some(ring.id);
        let turn = processor.turn(&mut ring);
        let mut state = shared.lock();
        let waits = matches!(turn, Ok(false)) && ring.is_busy();
        if let Err(error) = &turn {
            tracing::warn!(ring = %ring.id, rptr = ring.rptr, %error, "a ring of the driver halts");
        }
        if let Some(own) = state.rings.get_mut(&ring.id).filter(|own| own.generation == ring.generation) {
            // What was submitted meanwhile stays.
            own.rptr = ring.rptr;
            own.buffer = ring.buffer;
            own.wrote = ring.wrote;
            own.halted = turn.is_err();
        }
        drop(state);
        if waits {
            std::thread::sleep(REST);
        }
    }
}
