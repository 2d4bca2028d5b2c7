// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Allocations, live and freed, and the findings of all threads.
//!
//! There are two layers. A *block* is an object of the driver: whole pages, which page tables bound
//! anyway. An *allocation* is a part of a block that a runtime has given its program, to the byte.
//! A block of device memory that has held an allocation is the runtime's. There, bytes of no
//! allocation are out of bounds. In the host's memory a runtime also places objects of its own, so
//! that only the rest of an allocation's last page is out of bounds there.
//!
//! One mutex guards both, another the findings; neither is taken within the gate. Engines look at a
//! copy ([`Map`]) that they renew outside of the gate.
//!
//! Limits: [`MOST`] blocks and allocations, [`FREED`] freed ranges. Beyond, bounds are not checked.

use super::hazards::Read;
use super::init::Bits;
use super::race::History;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vkfd_findings::{Bounds, Extent, Finding, Findings, Outcome, Suppressions};

/// Blocks and allocations that are known.
const MOST: usize = 1 << 17;
/// Freed ranges that are remembered.
const FREED: usize = 4096;
/// A runtime gives out whole pages.
const PAGE: u64 = 4096;

/// A block.
#[derive(Clone, Debug)]
pub struct Block {
    pub va: u64,
    pub bytes: u64,
    /// It is the GPU's memory.
    pub device: bool,
    /// The program's processors may write it without anybody's notice.
    pub visible: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) va: u64,
    pub(super) bytes: u64,
    /// The call that allocated it.
    pub(super) by: Option<Arc<str>>,
    /// It is a block without allocations, in device memory; or an allocation.
    pub(super) bits: Option<Arc<Bits>>,
}

impl Live {
    fn end(&self) -> u64 {
        self.va.saturating_add(self.bytes)
    }
}

/// A freed range.
#[derive(Clone, Debug)]
pub(super) struct Freed {
    pub(super) va: u64,
    pub(super) bytes: u64,
    pub(super) by: Option<Arc<str>>,
    pub(super) freed_by: Option<Arc<str>>,
}

impl Freed {
    fn contains(&self, va: u64) -> bool {
        va.wrapping_sub(self.va) < self.bytes
    }
}

#[derive(Clone, Debug)]
struct Held {
    live: Live,
    device: bool,
    visible: bool,
    /// A runtime has placed an allocation in it.
    managed: bool,
}

/// A copy of all ranges, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    version: u64,
    blocks: Vec<Held>,
    allocations: Vec<Live>,
    freed: Vec<Freed>,
    complete: bool,
}

/// What is to be said about an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Beyond the bounds.
    Beyond,
    /// In freed memory.
    Freed,
}

fn below<T>(list: &[T], va: u64, start: impl Fn(&T) -> u64) -> Option<&T> {
    list.partition_point(|item| start(item) <= va).checked_sub(1).and_then(|at| list.get(at))
}

impl Map {
    fn allocation(&self, va: u64) -> Option<&Live> {
        below(&self.allocations, va, |live| live.va)
    }

    fn block(&self, va: u64) -> Option<&Held> {
        below(&self.blocks, va, |held| held.live.va).filter(|held| va < held.live.end())
    }

    /// The newest freed range at an address.
    pub(super) fn freed(&self, va: u64) -> Option<&Freed> {
        self.freed.iter().rev().find(|freed| freed.contains(va))
    }

    /// The allocation, or the block without any, that contains an address, and its bounds.
    pub(super) fn bounds(&self, va: u64) -> Option<(u64, u64)> {
        let inside = self.allocation(va).filter(|live| va < live.end());
        let inside = inside.or_else(|| self.block(va).filter(|held| !held.managed).map(|held| &held.live));
        inside.map(|live| (live.va, live.end()))
    }

    /// The nearest allocation or block.
    pub(super) fn nearest(&self, va: u64) -> Option<&Live> {
        let next = self.allocations.get(self.allocations.partition_point(|live| live.va <= va));
        let block = self.block(va);
        let managed = block.is_some_and(|held| held.managed);
        if !managed {
            return block
                .map(|held| &held.live)
                .or_else(|| below(&self.blocks, va, |held| held.live.va).map(|h| &h.live));
        }
        let distance =
            |live: &&Live| if live.va > va { live.va - va } else { (va - live.va).saturating_sub(live.bytes) };
        [self.allocation(va), next].into_iter().flatten().min_by_key(distance)
    }

    /// Judges `bytes` at an address. `missed`: the page tables have nothing there.
    pub(super) fn judge(&self, va: u64, bytes: u64, missed: bool) -> Verdict {
        let end = va.saturating_add(bytes);
        if !self.complete {
            return Verdict::Fine;
        }
        let allocation = self.allocation(va);
        if let Some(live) = allocation.filter(|live| va < live.end()) {
            return if end <= live.end() { Verdict::Fine } else { Verdict::Beyond };
        }
        let Some(block) = self.block(va) else {
            return if missed && self.freed(va).is_some() { Verdict::Freed } else { Verdict::Fine };
        };
        match (block.managed, block.device) {
            (false, _) if end <= block.live.end() => Verdict::Fine,
            (false, _) => Verdict::Beyond,
            (true, true) if self.freed(va).is_some() => Verdict::Freed,
            (true, true) => Verdict::Beyond,
            (true, false) => match allocation {
                Some(live) if va < live.end().next_multiple_of(PAGE) => Verdict::Beyond,
                _ => Verdict::Fine,
            },
        }
    }

    /// The bits that say which bytes at an address were written, and where in them the address is.
    pub(super) fn bits(&self, va: u64) -> Option<(&Arc<Bits>, u64)> {
        let live = self.allocation(va).filter(|live| va < live.end());
        let live = live.or_else(|| self.block(va).filter(|held| !held.managed).map(|held| &held.live))?;
        live.bits.as_ref().map(|bits| (bits, va - live.va))
    }

    /// Whether an address is the device's memory.
    pub(super) fn is_device(&self, va: u64) -> bool {
        self.block(va).is_none_or(|held| held.device)
    }
}

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<u64, Held>,
    allocations: BTreeMap<u64, Live>,
    freed: VecDeque<Freed>,
    /// A range found no room.
    lost: bool,
}

/// Allocations and findings.
#[derive(Debug)]
pub struct Ledger {
    state: Mutex<State>,
    version: AtomicU64,
    findings: Mutex<Findings>,
    /// Accesses to memory, for races.
    history: History,
    /// Launches that were checked, and instructions of their waves.
    launches: AtomicU64,
    instructions: AtomicU64,
    /// Kernels that were read for hazards.
    read: Read,
    /// The checks want to know what was written.
    init: bool,
    /// Where findings are written.
    path: Option<PathBuf>,
    process: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// An empty one. `init`: which bytes were written is kept. With a path, findings are written
    /// there.
    #[must_use]
    pub fn new(init: bool, path: Option<PathBuf>) -> Ledger {
        Ledger {
            state: Mutex::default(),
            version: AtomicU64::new(1),
            findings: Mutex::new(Findings::new(Bounds::default(), Vec::new(), Suppressions::default())),
            history: History::new(),
            launches: AtomicU64::new(0),
            instructions: AtomicU64::new(0),
            read: Read::default(),
            init,
            path,
            process: std::process::id(),
        }
    }

    pub(super) fn read(&self) -> &Read {
        &self.read
    }

    pub(super) fn launched(&self) {
        self.launches.fetch_add(1, Relaxed);
    }

    /// Counts instructions. Nothing waits here: it may be called within the gate.
    pub(super) fn executed(&self, instructions: u32) {
        self.instructions.fetch_add(instructions.into(), Relaxed);
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
        self.version.fetch_add(1, SeqCst);
    }

    /// The driver has a block.
    pub fn add_block(&self, block: &Block) {
        let Block { va, bytes, device, visible } = *block;
        let bits = (self.init && device && !visible).then(|| Bits::new(bytes, false)).flatten();
        let live = Live { va, bytes, by: None, bits };
        self.change(|state| {
            if state.blocks.len() >= MOST {
                state.lost = true;
                return;
            }
            state.blocks.insert(va, Held { live, device, visible, managed: false });
        });
    }

    /// A block is freed.
    pub fn remove_block(&self, va: u64) {
        self.change(|state| {
            let Some(held) = state.blocks.remove(&va) else { return };
            if !held.managed {
                state.forget(held.live, None);
            }
        });
    }

    /// A runtime has allocated. If reads of unwritten bytes are looked for, the contents are
    /// garbage from now on: `fill` writes that.
    pub fn allocate(&self, va: u64, bytes: u64, by: Option<Arc<str>>, fill: impl FnOnce(&Bits)) {
        let (mut device, mut visible) = (false, true);
        if let Some(held) = lock(&self.state).block(va) {
            (device, visible) = (held.device, held.visible);
        }
        let bits = (self.init && device).then(|| Bits::new(bytes, visible)).flatten();
        if let Some(bits) = bits.as_ref().filter(|_| visible) {
            fill(bits);
        }
        self.change(|state| {
            if state.allocations.len() >= MOST {
                state.lost = true;
                return;
            }
            if let Some(held) = state.block(va) {
                held.managed = true;
            }
            state
                .freed
                .retain(|freed| freed.va.saturating_add(freed.bytes) <= va || va.saturating_add(bytes) <= freed.va);
            state.allocations.insert(va, Live { va, bytes, by, bits });
        });
    }

    /// A runtime has freed.
    pub fn free(&self, va: u64, by: Option<Arc<str>>) {
        self.change(|state| {
            if let Some(live) = state.allocations.remove(&va) {
                state.forget(live, by);
            }
        });
    }

    /// Whether `map` is no longer what there is.
    pub(super) fn is_newer_than(&self, map: &Map) -> bool {
        self.version.load(Relaxed) != map.version
    }

    /// What there is.
    pub(super) fn map(&self) -> Arc<Map> {
        let state = lock(&self.state);
        Arc::new(Map {
            // Read under the lock, or a later change would be missed.
            version: self.version.load(SeqCst),
            blocks: state.blocks.values().cloned().collect(),
            allocations: state.allocations.values().cloned().collect(),
            freed: state.freed.iter().cloned().collect(),
            complete: !state.lost,
        })
    }

    /// The bytes from `va` on were written by something else than a kernel.
    pub fn written(&self, va: u64, bytes: u64) {
        if !self.init {
            return;
        }
        let state = lock(&self.state);
        let inside = state.allocations.range(..va.saturating_add(bytes)).map(|(_, live)| live);
        let blocks = state.blocks.range(..va.saturating_add(bytes)).map(|(_, held)| &held.live);
        for live in
            inside.rev().take_while(|live| va < live.end()).chain(blocks.rev().take_while(|live| va < live.end()))
        {
            let (from, to) = (va.max(live.va), va.saturating_add(bytes).min(live.end()));
            if let Some(bits) = &live.bits {
                bits.define(from - live.va, to - from);
            }
        }
    }

    /// Adds a finding that was made `count` times.
    pub(super) fn report(&self, finding: Finding, count: u64) {
        if lock(&self.findings).add_many(finding, count) == Outcome::New {
            self.write();
        }
    }

    /// All findings so far.
    #[must_use]
    pub fn findings(&self) -> Vec<vkfd_findings::Counted> {
        lock(&self.findings).list().to_vec()
    }

    /// Writes the findings. Nothing happens without a path, or in a forked child.
    pub fn write(&self) {
        if let Some(path) = self.path.as_ref().filter(|_| std::process::id() == self.process) {
            let findings = lock(&self.findings);
            let extent =
                Extent { launches: self.launches.load(Relaxed), instructions: self.instructions.load(Relaxed) };
            let text = vkfd_findings::to_transport(&findings, extent);
            let new = path.with_extension("new");
            // Errors are for nobody: the program has no part in this.
            let _ = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
        }
    }
}

impl State {
    fn block(&mut self, va: u64) -> Option<&mut Held> {
        self.blocks.range_mut(..=va).next_back().map(|(_, held)| held).filter(|held| va < held.live.end())
    }

    fn forget(&mut self, live: Live, freed_by: Option<Arc<str>>) {
        if self.freed.len() >= FREED {
            self.freed.pop_front();
        }
        self.freed.push_back(Freed { va: live.va, bytes: live.bytes, by: live.by, freed_by });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_the_innermost_layer() {
        let ledger = Ledger::new(false, None);
        let judge = |va, bytes| ledger.map().judge(va, bytes, false);
        ledger.add_block(&Block { va: 0x10000, bytes: 0x10000, device: true, visible: true });
        assert_eq!(judge(0x1fffc, 4), Verdict::Fine);
        assert_eq!(judge(0x1fffe, 4), Verdict::Beyond);
        assert_eq!(judge(0x20000, 4), Verdict::Fine, "nothing is known of that");
        ledger.allocate(0x11000, 400, None, |_| {});
        assert_eq!(judge(0x11000 + 396, 4), Verdict::Fine);
        assert_eq!(judge(0x11000 + 400, 4), Verdict::Beyond);
        assert_eq!(judge(0x10ffc, 4), Verdict::Beyond);
        ledger.free(0x11000, None);
        assert_eq!(judge(0x11000, 4), Verdict::Freed);
        ledger.allocate(0x11000, 100, None, |_| {});
        assert_eq!(judge(0x11000 + 200, 4), Verdict::Beyond, "what was given out again is freed no more");
        assert_eq!(ledger.map().nearest(0x11000 + 200).map(|live| live.bytes), Some(100));
    }

    #[test]
    fn a_runtime_has_objects_of_its_own_in_the_hosts_memory() {
        let ledger = Ledger::new(false, None);
        ledger.add_block(&Block { va: 0x10000, bytes: 0x10000, device: false, visible: true });
        ledger.allocate(0x11000, 400, None, |_| {});
        assert_eq!(ledger.map().judge(0x11190, 4, false), Verdict::Beyond);
        assert_eq!(ledger.map().judge(0x12000, 4, false), Verdict::Fine);
    }

    #[test]
    fn memory_that_is_gone_is_reported_where_it_is_missed() {
        let ledger = Ledger::new(false, None);
        ledger.add_block(&Block { va: 0x10000, bytes: 0x10000, device: true, visible: true });
        ledger.remove_block(0x10000);
        assert_eq!(ledger.map().judge(0x10000, 4, true), Verdict::Freed);
        assert_eq!(ledger.map().judge(0x10000, 4, false), Verdict::Fine);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let ledger = Ledger::new(false, None);
        for number in 0..2 * FREED as u64 {
            ledger.allocate(number << 12, 1, None, |_| {});
            ledger.free(number << 12, None);
        }
        assert_eq!(ledger.map().freed.len(), FREED);
    }
}
