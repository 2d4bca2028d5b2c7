// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The hardware scheduler (HWS): processes get VMIDs, and their queues run.
//!
//! KFD writes a run list: processes, each with its queues. It unmaps all queues before the next
//! one. Here queues never take turns on hardware queues, because the GPU has as many threads as
//! there are queues. A process keeps its VMID while it has queues, also parked ones, since a parked
//! queue's waves use it. When a process needs a VMID and none is free, the processes whose queues
//! are all parked give way, the oldest first. Their parked queues end. The log warns if one of them
//! is mapped again.
//!
//! Whose queue a mapping finds is decided by the ticket in the MQD ([`user`](super::user)).

use crate::packets::{pm4, PacketError, Processor, Words};
use crate::queues::hqd::{Hqd, HqdId, IN_MQD, WORDS};
use crate::queues::user::{space, Key, NewQueue, VMIDS};
use crate::registers::hub::{gfxhub, mmhub};
use crate::registers::system::{athub, osssys};
use crate::registers::{gc, sdma};
use crate::state::Command;
use vkfd_gpu::{QueueKind, View};

/// Words of all run lists that one packet starts.
const LIST_WORDS: u64 = 1 << 20;
/// A RUN_LIST packet that is the last of its list, and leads to the next one.
const CHAIN: u32 = 1 << 20;
/// KFD's VMIDs until it says which.
const KFD_VMIDS: u32 = 0xfff8;
/// Words of a copy engine's MQD that are registers of its queue.
const COPY_WORDS: usize = 64;
/// Reserved words of MQDs, which hold tickets.
const TICKET: u64 = 113;
const COPY_TICKET: u64 = 58;
/// A valid mapping of a VMID to a process.
const MAPPED: u32 = 1 << 31;

/// A process that has a VMID.
#[derive(Clone, Copy, Debug)]
struct Process {
    pasid: u16,
    root: u64,
    /// When it was mapped last.
    turn: u64,
}

/// What the scheduler knows.
pub(crate) struct Scheduler {
    processes: [Option<Process>; VMIDS as usize],
    /// VMIDs that it may give.
    vmids: u32,
    turn: u64,
    /// The VMID of the process whose queues follow in the run list.
    current: Option<u8>,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self { processes: [None; VMIDS as usize], vmids: KFD_VMIDS, turn: 0, current: None }
    }
}

impl Scheduler {
    /// SET_RESOURCES: the VMIDs, if there are any.
    pub(crate) fn set_resources(&mut self, control: u32) {
        if control & 0xffff != 0 {
            self.vmids = control & 0xffff;
        }
    }
}

fn bad<T>(message: String) -> Result<T, PacketError> {
    Err(PacketError::Bad(message))
}

/// Reads a word that need not be there.
fn peek(view: &mut View, va: u64) -> Option<u64> {
    view.load_u64(va).ok().filter(|_| va != 0)
}

impl Processor {
    /// RUN_LIST: a list of `words` words at `va`, and those that it leads to.
    pub(crate) fn run_list(&mut self, mut va: u64, mut words: u64) -> Result<(), PacketError> {
        let own = space(0, false);
        let start = va;
        let mut budget = LIST_WORDS;
        let mut at = 0;
        self.scheduler.current = None;
        while at < words {
            let header = self.load(own, va.wrapping_add(4 * at))?;
            let length = pm4::length(header)?;
            let op = header >> 8 & 0xff;
            budget = match budget.checked_sub(length) {
                Some(left) if at + length <= words => left,
                _ => return bad("a run list without an end".into()),
            };
            let mut body = [0; crate::packets::BODY];
            for (index, word) in (0..length).zip(&mut body) {
                *word = self.load(own, va.wrapping_add(4 * (at + index)))?;
            }
            let body = Words::new(body);
            self.count(&format!("run list: {}", pm4::op_name(op)));
            match op {
                pm4::op::NOP => {}
                pm4::op::MAP_PROCESS => self.map_process(&body)?,
                pm4::op::MAP_QUEUES => self.map_queues(&body)?,
                pm4::op::RUN_LIST => {
                    let next = body.wide(1) & !3;
                    // Of more queues or processes than fit hardware makes rounds for ever: it gives
                    // each its time. Here all of them run after the first round.
                    if next == start && body.get(3) & CHAIN != 0 {
                        return Ok(());
                    }
                    (va, words, at) = (next, u64::from(body.get(3) & 0xf_ffff), 0);
                    continue;
                }
                _ => return bad(format!("{} in a run list", pm4::op_name(op))),
            }
            at += length;
        }
        Ok(())
    }

    /// MAP_PROCESS: gives a process a VMID, and sets its tables.
    fn map_process(&mut self, words: &Words) -> Result<(), PacketError> {
        let [low, high, ..] = words.get(1).to_le_bytes();
        let pasid = u16::from_le_bytes([low, high]);
        let root = words.wide(2);
        self.scheduler.turn += 1;
        let turn = self.scheduler.turn;
        let is = |process: &Option<Process>| process.is_some_and(|process| process.pasid == pasid);
        let had = self.scheduler.processes.iter().position(is);
        let vmid = match had {
            Some(vmid) => u8::try_from(vmid).unwrap_or(0),
            None => self.free_vmid(pasid)?,
        };
        let slot = self.scheduler.processes.get_mut(usize::from(vmid));
        let before = slot.and_then(|slot| slot.replace(Process { pasid, root, turn }));
        if before.is_none_or(|before| before.root != root || before.pasid != pasid) {
            // Another process, also one that has the number of an earlier one.
            self.end_queues(vmid);
        }
        self.scheduler.current = Some(vmid);
        let shared = self.shared.clone();
        let mut state = shared.lock();
        for (register, word) in [
            (gc::SH_MEM_BASES, 4),
            (gc::SH_MEM_CONFIG, 5),
            (gc::SQ_SHADER_TBA_LO, 6),
            (gc::SQ_SHADER_TBA_HI, 7),
            (gc::SQ_SHADER_TMA_LO, 8),
            (gc::SQ_SHADER_TMA_HI, 9),
        ] {
            state.spaces.insert((vmid, register), words.get(word));
        }
        let number = u32::from(vmid);
        for (low, high) in [
            (gfxhub::VM_CONTEXT_BASE_LO, gfxhub::VM_CONTEXT_BASE_HI),
            (mmhub::VM_CONTEXT_BASE_LO, mmhub::VM_CONTEXT_BASE_HI),
        ] {
            state.file.set_wide(low + 2 * number, high + 2 * number, root);
        }
        for table in [osssys::IH_VMID_LUT, osssys::IH_VMID_LUT_MM] {
            state.file.set(table + number, pasid.into());
        }
        state.file.set(athub::ATC_VMID_PASID_MAPPING + number, u32::from(pasid) | MAPPED);
        for hub in [false, true] {
            shared.set_root(&state, hub, number);
        }
        drop(state);
        for hub in [false, true] {
            shared.flush(1 << vmid, hub);
        }
        Ok(())
    }

    /// A VMID for a process that has none.
    fn free_vmid(&mut self, pasid: u16) -> Result<u8, PacketError> {
        let shared = self.shared.clone();
        let mut oldest: Option<(u64, u8)> = None;
        for vmid in (1..VMIDS).filter(|vmid| self.scheduler.vmids >> vmid & 1 != 0) {
            let Some(process) = self.scheduler.processes.get(usize::from(vmid)).copied().flatten() else {
                return Ok(vmid);
            };
            let state = shared.lock();
            let of = |mapped: bool| {
                !state.users.keys(|queue| queue.new.vmid == vmid && (!mapped || queue.mapped)).is_empty()
            };
            if !of(false) {
                return Ok(vmid);
            }
            if !of(true) && oldest.is_none_or(|(turn, _)| process.turn < turn) {
                oldest = Some((process.turn, vmid));
            }
        }
        match oldest {
            Some((_, vmid)) => {
                // Most often that process has ended, which the driver does not tell.
                tracing::info!(vmid, pasid, "no VMID is free: the parked queues of another process end");
                Ok(vmid)
            }
            None => bad(format!("process {pasid:#x} needs a VMID, and all have queues that run")),
        }
    }

    /// Ends all queues of a VMID.
    fn end_queues(&mut self, vmid: u8) {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        for key in state.users.keys(|queue| queue.new.vmid == vmid && matches!(queue.new.key, Key::Mqd(_))) {
            state.users.remove(key);
        }
        drop(state);
        shared.sweep();
    }

    /// MAP_QUEUES: a ring of the driver's own by KIQ, or a program's queue by a run list.
    pub(crate) fn map_queues(&mut self, words: &Words) -> Result<(), PacketError> {
        let (control, mqd, wptr_va) = (words.get(1), words.wide(3), words.wide(5));
        if control >> 4 & 3 == 0 {
            return self.map_ring(control, words.get(2), mqd, wptr_va);
        }
        let Some(vmid) = self.scheduler.current else { return bad("a queue without a process in a run list".into()) };
        let Some(process) = self.scheduler.processes.get(usize::from(vmid)).copied().flatten() else {
            return bad("a queue of a process that has no VMID".into());
        };
        let (engine, extended) = (control >> 26 & 7, control >> 2 & 3);
        // Engines 2 and 3 of the older numbering are the first two of the newer one.
        let engine = match (extended, engine) {
            (0, 0) => None,
            (0, engine @ 2..=3) => Some(engine - 2),
            (1, engine) => Some(engine),
            _ => return bad(format!("MAP_QUEUES for engine {engine} of group {extended}")),
        };
        let doorbell = words.get(2) >> 2 & 0x03ff_ffff;
        let new = match engine {
            None => {
                let hqd = self.descriptor(mqd)?;
                let (kind, unit) = if hqd.is_aql() { (QueueKind::Aql, 0) } else { (QueueKind::Pm4, 1) };
                NewQueue {
                    key: Key::Mqd(mqd),
                    vmid,
                    pasid: process.pasid,
                    engine: None,
                    kind,
                    ring_va: hqd.ring(),
                    ring_bytes: hqd.ring_words() * 4,
                    rptr_va: hqd.report(),
                    wptr_va,
                    start: unit * u64::from(hqd.get(gc::CP_HQD_PQ_RPTR)),
                    doorbell,
                }
            }
            Some(engine) => {
                let engine = usize::try_from(engine).unwrap_or(usize::MAX);
                if engine >= sdma::ENGINES.len() {
                    return bad(format!("MAP_QUEUES for SDMA{engine}"));
                }
                self.copy_queue(mqd, wptr_va, vmid, process.pasid, engine, doorbell)?
            }
        };
        self.map_user(&new, wptr_va)
    }

    /// The registers in an MQD.
    fn descriptor(&mut self, mqd: u64) -> Result<Hqd, PacketError> {
        let view = self.view(space(0, false))?;
        let mut words = [0; WORDS];
        for (index, word) in (0..).zip(&mut words) {
            *word = view.load_u32(mqd.wrapping_add(4 * (IN_MQD + index)))?;
        }
        Ok(Hqd(words))
    }

    /// What the MQD of a copy engine's queue describes.
    fn copy_queue(
        &mut self,
        mqd: u64,
        wptr_va: u64,
        vmid: u8,
        pasid: u16,
        engine: usize,
        doorbell: u32,
    ) -> Result<NewQueue, PacketError> {
        let view = self.view(space(0, false))?;
        let mut words = [0; COPY_WORDS];
        for (index, word) in (0..).zip(&mut words) {
            *word = view.load_u32(mqd.wrapping_add(4 * index))?;
        }
        // In an MQD registers are as far from each other as in a queue.
        let get = |register: u32| {
            let index = usize::try_from(register - sdma::RLC_RB_CNTL).unwrap_or(usize::MAX);
            words.get(index).copied().unwrap_or(0)
        };
        let wide = |low: u32, high: u32| u64::from(get(low)) | u64::from(get(high)) << 32;
        Ok(NewQueue {
            key: Key::Mqd(mqd),
            vmid,
            pasid,
            engine: Some(engine),
            kind: QueueKind::Sdma,
            ring_va: wide(sdma::RLC_RB_BASE, sdma::RLC_RB_BASE_HI) << 8,
            ring_bytes: 4 << (get(sdma::RLC_RB_CNTL) >> 1 & 0x1f),
            rptr_va: wide(sdma::RLC_RB_RPTR_ADDR_LO, sdma::RLC_RB_RPTR_ADDR_HI) & !7,
            wptr_va,
            start: wide(sdma::RLC_RB_RPTR, sdma::RLC_RB_RPTR_HI),
            doorbell,
        })
    }

    /// Maps a program's queue: the parked one that its MQD has the ticket of, or a new one.
    fn map_user(&mut self, new: &NewQueue, wptr_va: u64) -> Result<(), PacketError> {
        let Key::Mqd(mqd) = new.key else { return Ok(()) };
        let ticket_va = mqd.wrapping_add(4 * if new.engine.is_some() { COPY_TICKET } else { TICKET });
        let ticket = self.load(space(0, false), ticket_va)?;
        // What was submitted while nobody looked at the doorbell.
        let wptr = peek(self.view(new.space())?, wptr_va).unwrap_or(new.start);
        let shared = self.shared.clone();
        let mut state = shared.lock();
        let parked = ticket != 0 && state.users.resume(&shared.gpu, new, ticket);
        if ticket != 0 && !parked {
            tracing::warn!(?new, "a parked queue had to end, and is mapped again: its waves are lost");
        }
        let ticket = if parked { ticket } else { state.users.start(&shared.gpu, *new)? };
        state.users.submit(&shared.gpu, new.key, wptr);
        drop(state);
        shared.sweep();
        tracing::debug!(?new, wptr, parked, "queue mapped");
        self.store(space(0, false), ticket_va, ticket)
    }

    /// Puts a ring of the driver's own into a hardware queue.
    fn map_ring(&mut self, control: u32, doorbell: u32, mqd: u64, wptr_va: u64) -> Result<(), PacketError> {
        let part = |shift: u32, mask: u32| u8::try_from(control >> shift & mask).unwrap_or(0);
        let id = HqdId { me: part(18, 1) + 1, pipe: part(16, 3), queue: part(13, 7) };
        let mut hqd = self.descriptor(mqd)?;
        if hqd.vmid() != 0 {
            return bad(format!("a ring of the driver's in VMID {}", hqd.vmid()));
        }
        hqd.set(gc::CP_HQD_PQ_DOORBELL_CONTROL, doorbell & 0x0fff_fffc | 1 << 30);
        hqd.set(gc::CP_HQD_ACTIVE, 1);
        let wptr = peek(self.view(space(0, false))?, wptr_va);
        let shared = self.shared.clone();
        let mut state = shared.lock();
        state.hqds.insert(id, hqd);
        shared.start_ring(&mut state, id, wptr);
        Ok(())
    }

    /// UNMAP_QUEUES: parks programs' queues, or ends a ring of the driver's own.
    pub(crate) fn unmap_queues(&mut self, words: &Words) -> Result<(), PacketError> {
        let (control, doorbell) = (words.get(1), words.get(2) >> 2 & 0x03ff_ffff);
        let [low, high, ..] = words.get(2).to_le_bytes();
        let pasid = u16::from_le_bytes([low, high]);
        let reset = control & 3 == 1;
        let shared = self.shared.clone();
        let mut state = shared.lock();
        let by_scheduler = |key: Key| matches!(key, Key::Mqd(_));
        let keys = match control >> 4 & 3 {
            0 => {
                if let Some(ring) = state.doorbells.get(&doorbell).copied() {
                    shared.stop_ring(&mut state, ring);
                    return Ok(());
                }
                state.users.keys(|queue| queue.mapped && queue.new.doorbell == doorbell)
            }
            1 => state.users.keys(|queue| queue.mapped && queue.new.pasid == pasid && by_scheduler(queue.new.key)),
            _ => state.users.keys(|queue| queue.mapped && by_scheduler(queue.new.key)),
        };
        for key in &keys {
            match reset {
                true => state.users.remove(*key),
                false => state.users.park(&shared.gpu, *key),
            }
        }
        let copies: Vec<NewQueue> =
            keys.iter().filter_map(|key| state.users.get(*key)).map(|queue| queue.new).collect();
        drop(state);
        shared.sweep();
        for queue in copies.iter().filter(|queue| queue.engine.is_some()) {
            self.save_copy_queue(queue)?;
        }
        Ok(())
    }

    /// Writes the read pointer of a copy engine's queue into its MQD, where the driver looks.
    fn save_copy_queue(&mut self, queue: &NewQueue) -> Result<(), PacketError> {
        let Key::Mqd(mqd) = queue.key else { return Ok(()) };
        if let Some(rptr) = peek(self.view(queue.space())?, queue.rptr_va) {
            let at = mqd.wrapping_add(4 * u64::from(sdma::RLC_RB_RPTR - sdma::RLC_RB_CNTL));
            let [low, high] = crate::registers::file::halves(rptr);
            self.store(space(0, false), at, low)?;
            self.store(space(0, false), at.wrapping_add(4), high)?;
        }
        Ok(())
    }

    /// What the driver asked for by registers, without a scheduler.
    pub(crate) fn obey(&mut self, command: Command) -> Result<(), PacketError> {
        let shared = self.shared.clone();
        match command {
            Command::Load(id) => {
                let Some(hqd) = shared.lock().hqds.get(&id).copied() else { return Ok(()) };
                let vmid = hqd.vmid();
                let kind = if hqd.is_aql() { QueueKind::Aql } else { QueueKind::Pm4 };
                let start = if hqd.is_aql() { 0 } else { u64::from(hqd.get(gc::CP_HQD_PQ_RPTR)) };
                let pasid = shared.lock().pasid(vmid, false);
                let new = NewQueue {
                    key: Key::Hqd(id),
                    vmid,
                    pasid,
                    engine: None,
                    kind,
                    ring_va: hqd.ring(),
                    ring_bytes: hqd.ring_words() * 4,
                    rptr_va: hqd.report(),
                    wptr_va: hqd.wptr_address(),
                    start,
                    doorbell: hqd.doorbell(),
                };
                let wptr = peek(self.view(new.space())?, new.wptr_va).unwrap_or_else(|| hqd.wptr());
                let mut state = shared.lock();
                state.users.start(&shared.gpu, new)?;
                state.users.submit(&shared.gpu, new.key, wptr);
                drop(state);
                shared.sweep();
            }
            Command::Unload(id) => {
                shared.lock().users.park(&shared.gpu, Key::Hqd(id));
                shared.drop_queue(Key::Hqd(id));
                if let Some(hqd) = shared.lock().hqds.get_mut(&id) {
                    hqd.set(gc::CP_HQD_ACTIVE, 0);
                }
            }
            Command::Disable(engine, queue) => {
                let key = Key::Copy(engine, queue);
                let mut state = shared.lock();
                state.users.park(&shared.gpu, key);
                let new = state.users.get(key).map(|queue| queue.new);
                drop(state);
                if let Some(new) = new {
                    let rptr = peek(self.view(new.space())?, new.rptr_va).unwrap_or(new.start);
                    let base = sdma::ENGINES.get(engine).copied().unwrap_or(0) + queue * sdma::QUEUE_STRIDE;
                    shared.lock().file.set_wide(base + sdma::RLC_RB_RPTR, base + sdma::RLC_RB_RPTR_HI, rptr);
                }
                shared.drop_queue(key);
            }
        }
        Ok(())
    }
}
