// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Allocations, live and freed, and the findings of all threads.
//!
//! One mutex guards the ranges, another the findings; neither is taken within the gate. Engines
//! look at a copy ([`Map`]) that they renew outside of the gate.
//!
//! Limits: [`MOST`] blocks and allocations, [`FREED`] freed ranges. Beyond, bounds are not checked.

use super::bits::Bits;
use super::hazards::{Kernel, Read};
use super::map::{Block, Freed, Held, Live, Map};
use super::note;
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
/// Launches whose kernels are remembered.
const LAUNCHES: usize = 256;

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
    /// The numbers of the last launches' waves, and their kernels.
    kernels: Mutex<VecDeque<(u32, u32, note::Kernel)>>,
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
            kernels: Mutex::default(),
            launches: AtomicU64::new(0),
            instructions: AtomicU64::new(0),
            read: Read::default(),
            init,
            path,
            process: std::process::id(),
        }
    }

    /// Reads a kernel's code for hazards, unless that was done.
    pub fn lint(&self, kernel: Kernel<'_>) {
        for (finding, count) in self.read.lint(kernel) {
            self.report(finding, count);
        }
    }

    /// The number of a launch.
    pub(super) fn launched(&self) -> u64 {
        self.launches.fetch_add(1, Relaxed)
    }

    /// Counts instructions. Nothing waits here: it may be called within the gate.
    pub(super) fn executed(&self, instructions: u32) {
        self.instructions.fetch_add(instructions.into(), Relaxed);
    }

    /// A launch of so many waves begins whose accesses to memory are looked at: the number of its
    /// first wave.
    pub(super) fn begin(&self, waves: u32, kernel: note::Kernel) -> u32 {
        let first = self.history.launch(waves);
        let mut kernels = lock(&self.kernels);
        if kernels.len() >= LAUNCHES {
            kernels.pop_front();
        }
        kernels.push_back((first, waves, kernel));
        first
    }

    /// The launch of this first wave has ended.
    pub(super) fn end(&self, first: u32) {
        self.history.end(first);
    }

    /// The kernel that the wave of a number is of.
    pub(super) fn kernel_of(&self, wave: u32) -> Option<note::Kernel> {
        let kernels = lock(&self.kernels);
        kernels
            .iter()
            .rev()
            .find(|(first, count, _)| wave.wrapping_sub(*first) < *count)
            .map(|(.., kernel)| kernel.clone())
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
    use super::super::map::Verdict;
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
