// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the device's lock guards.

use crate::host::Host;
use crate::interrupts::{client, source, Interrupt, InterruptRing};
use crate::queues::exceptions;
use crate::queues::hqd::{Hqd, HqdId};
use crate::queues::user::{number, space, Key, Users, VMIDS};
use crate::registers::file::RegisterFile;
use crate::registers::hub::{gfxhub, mmhub};
use crate::registers::system::osssys;
use crate::registers::Dword;
use crate::ring::{Ring, RingId};
use crate::shape::Shape;
use crate::trail::{Step, Trail};
use crate::watchdog::Watchdog;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use vkfd_gpu::{Access, Exception, FaultReason, Gpu, PageFault, QueueId, Vmid};

/// What firmware is to do besides rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// The driver has loaded a program's queue into a hardware queue.
    Load(HqdId),
    /// The driver wants a hardware queue of the command processor back.
    Unload(HqdId),
    /// The driver has disabled a queue of a copy engine.
    Disable(usize, u32),
}

/// Commands that wait at most; a driver waits for each.
const COMMANDS: usize = 1024;
/// Retry faults that can wait for the driver.
pub(crate) const CAM_SLOTS: u16 = 1024;
/// Registers reached through the index window that are not in the BAR.
const INDEXED: usize = 4096;

/// The registers, and all that follows from them.
pub(crate) struct State {
    pub(crate) shape: Shape,
    pub(crate) file: RegisterFile,
    pub(crate) watchdog: Watchdog,
    pub(crate) trail: Trail,
    /// Registers of the window that are not in the BAR, by byte address.
    pub(crate) indexed: BTreeMap<u32, u32>,
    pub(crate) hqds: BTreeMap<HqdId, Hqd>,
    /// `SH_MEM_*` and the like, by VMID and register.
    pub(crate) spaces: BTreeMap<(u8, Dword), u32>,
    pub(crate) rings: BTreeMap<RingId, Ring>,
    pub(crate) doorbells: BTreeMap<Dword, RingId>,
    pub(crate) generation: u64,
    /// How often the device was reset.
    pub(crate) resets: u64,
    pub(crate) users: Users,
    pub(crate) ih: InterruptRing,
    pub(crate) commands: VecDeque<Command>,
    /// Retry faults that wait for the driver, by their number.
    pub(crate) faults: BTreeMap<u16, (Vmid, u64)>,
    pub(crate) packets: BTreeMap<String, u64>,
    pub(crate) rung: u64,
    /// Firmware works: not all that was asked for is done.
    pub(crate) working: bool,
    pub(crate) stop: bool,
}

impl State {
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            shape,
            file: RegisterFile::default(),
            watchdog: Watchdog::default(),
            trail: Trail::default(),
            indexed: BTreeMap::new(),
            hqds: BTreeMap::new(),
            spaces: BTreeMap::new(),
            rings: BTreeMap::new(),
            doorbells: BTreeMap::new(),
            generation: 0,
            resets: 0,
            users: Users::default(),
            ih: InterruptRing::default(),
            commands: VecDeque::new(),
            faults: BTreeMap::new(),
            packets: BTreeMap::new(),
            rung: 0,
            working: false,
            stop: false,
        }
    }

    pub(crate) fn command(&mut self, command: Command) {
        if self.commands.len() < COMMANDS {
            self.commands.push_back(command);
        } else {
            tracing::warn!(?command, "the driver does not wait for its queues: a command is lost");
        }
    }

    pub(crate) fn set_indexed(&mut self, at: u32, value: u32) {
        if self.indexed.len() < INDEXED || self.indexed.contains_key(&at) {
            self.indexed.insert(at, value);
        }
    }

    /// The process that a VMID belongs to; 0 for none.
    pub(crate) fn pasid(&self, vmid: u8, mmhub: bool) -> u16 {
        let table = if mmhub { osssys::IH_VMID_LUT_MM } else { osssys::IH_VMID_LUT };
        let [low, high, ..] = self.file.get(table + u32::from(vmid % VMIDS)).to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Whether there is something for firmware to do.
    pub(crate) fn is_busy(&self) -> bool {
        !self.commands.is_empty() || self.rings.values().any(Ring::is_busy)
    }
}

/// What the device's threads share.
pub(crate) struct Shared {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) host: Arc<dyn Host>,
    state: Mutex<State>,
    /// Something has changed: for firmware, and for those that wait for it.
    pub(crate) changed: Condvar,
}

impl Shared {
    pub(crate) fn new(gpu: Arc<Gpu>, host: Arc<dyn Host>, state: State) -> Self {
        Self { gpu, host, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what was given up, without the lock.
    pub(crate) fn sweep(&self) {
        let removed = self.lock().users.take_removed();
        for queue in removed {
            // It may have been removed by a reset.
            let _ = self.gpu.remove_queue(queue);
        }
    }

    pub(crate) fn interrupt(&self, interrupt: &Interrupt) {
        self.raise(&mut self.lock(), interrupt);
    }

    fn raise(&self, state: &mut State, interrupt: &Interrupt) {
        state.trail.note(Step::from(interrupt));
        state.ih.raise(&mut state.file, &*self.host, interrupt);
    }

    /// A program's queue signals an event.
    pub(crate) fn event(&self, vmid: Vmid, queue: QueueId, event: u32) {
        let state = &mut *self.lock();
        let (own, mmhub) = number(vmid);
        let engine = state.users.by_id(queue).and_then(|queue| queue.new.engine);
        let (client, source, ring) = match engine.and_then(|engine| client::SDMA.get(engine)) {
            // The number of the driver's own ring is 0.
            Some(client) => (*client, source::TRAP, 2),
            None => (client::GRBM_CP, source::END_OF_PIPE, 0),
        };
        let pasid = state.pasid(own, mmhub);
        let interrupt = Interrupt { client, source, ring, vmid: own, mmhub, pasid, data: [event, 0, 0, 0] };
        self.raise(state, &interrupt);
    }

    /// A program's queue has halted. The driver finds it by its doorbell.
    pub(crate) fn exception(&self, vmid: Vmid, queue: QueueId, exception: Exception) {
        let state = &mut *self.lock();
        // The driver does not ask about a copy engine's queue.
        let queue = state.users.by_id(queue).filter(|queue| queue.new.engine.is_none());
        let Some(doorbell) = queue.map(|queue| queue.new.doorbell) else { return };
        let (vmid, _) = number(vmid);
        let (client, source, data) = exceptions::told(exception, doorbell);
        let pasid = state.pasid(vmid, false);
        self.raise(state, &Interrupt { client, source, ring: exceptions::RING, vmid, mmhub: false, pasid, data });
    }

    /// A page fault, of a program's queue or of a ring.
    pub(crate) fn fault(&self, fault: &PageFault) {
        /// Flags of the second word.
        const WRITE: u32 = 0x20;
        const RETRY: u32 = 0x80;
        let state = &mut *self.lock();
        let (vmid, mmhub) = number(fault.vmid);
        let write = fault.access == Access::Write;
        let slot = if fault.retry {
            // More than there are threads that can wait. The driver's answer has ten bits.
            let free = (0..CAM_SLOTS).find(|slot| !state.faults.contains_key(slot)).unwrap_or(0);
            state.faults.insert(free, (fault.vmid, fault.va));
            u32::from(free)
        } else {
            0
        };
        // What the entry lacked: to be valid, or the permission.
        let lacked = match (fault.reason, write) {
            (FaultReason::Permission, true) => 0x20,
            (FaultReason::Permission, false) => 0x10,
            _ => 0x08,
        };
        let status = 0xf << 4 | u32::from(write) << 18 | u32::from(vmid) << 20;
        let [page, high] = crate::registers::file::halves(fault.va >> 12);
        let (registers, client) = if mmhub {
            ((mmhub::VM_L2_PROTECTION_FAULT_STATUS, mmhub::VM_L2_PROTECTION_FAULT_ADDR_LO32), client::VMC)
        } else {
            ((gfxhub::VM_L2_PROTECTION_FAULT_STATUS, gfxhub::VM_L2_PROTECTION_FAULT_ADDR_LO32), client::UTCL2)
        };
        state.file.set(registers.0, status);
        state.file.set_wide(registers.1, registers.1 + 1, fault.va >> 12);
        let interrupt = Interrupt {
            client,
            source: source::FAULT,
            ring: lacked,
            vmid,
            mmhub,
            pasid: state.pasid(vmid, mmhub),
            data: [page, high & 0xf | if write { WRITE } else { 0 } | if fault.retry { RETRY } else { 0 }, slot, 0],
        };
        tracing::debug!(%fault, "page fault");
        self.raise(state, &interrupt);
    }

    /// Forgets the translations of all VMIDs in `mask`, of one hub.
    pub(crate) fn flush(&self, mask: u32, mmhub: bool) {
        for vmid in (0..VMIDS).filter(|vmid| mask >> vmid & 1 != 0) {
            self.gpu.flush_tlb(space(vmid, mmhub));
        }
    }

    /// The queue that a key names, gone.
    pub(crate) fn drop_queue(&self, key: Key) {
        self.lock().users.remove(key);
        self.sweep();
    }
}
