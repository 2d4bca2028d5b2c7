// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The last accesses to memory by all waves of all launches, and the check of these.
//!
//! Mechanism: every instruction that accesses memory has a time and a record of its wave. A word of
//! memory has the times of its last write and of two readers since. The lock is held from before an
//! instruction runs until it has been looked at, so that times are the accesses' order. An access
//! races with a record of its launch if its wave does not know of that one:
//!
//! - Waves of one group know each other by [`Race`]'s clocks.
//! - A wave learns of a foreign one from a word that this one has written: by an atomic operation,
//!   or by a load that no cache answers. It learns of the accesses that the writer had waited for.
//! - Plain loads know of it only when the wave has invalidated its caches. Loads of scalars have a
//!   cache and an instruction of their own.
//! - On gfx942, groups may have different caches above memory: what the writer has stored counts
//!   only when it has been written back (`buffer_wbl2 sc1`), and that has been waited for.
//!
//! A store and a load past the caches do not race: that is how flags are written and read. Neither
//! do a store that follows a wait for everything and an atomic operation: a lock's release. All
//! waves that write the same value may do so. A load that guesses for a compare-and-swap may meet
//! atomic operations.
//!
//! Launches have an order: what one writes is nothing to those that begin when it has ended. Those
//! that run at the same time, in several queues, are compared as groups of one launch are.
//!
//! The lock is taken within the gate, and nothing is allocated or waited for with it. Pages for
//! words are made outside of the gate ([`History::prepare`]).
//!
//! Limits: [`RECORDS`] instructions, [`PAGES`] pages of 1 KiB; then the oldest are forgotten, or
//! all. Lanes of one wave, copies and processors are not compared. Neither are launches that happen
//! to run one after the other, whatever orders them, nor more than [`RUNNING`] at a time. A store
//! of a part of a word displaces that of another part. Waves of a group share one scalar cache.

use super::super::note::{Notes, Other, Rule};
use super::super::seen::Seen;
use super::known::Entry;
use super::loads::{Loads, Purpose};
use super::own::Own;
use super::{Race, WAVES};
use crate::world::{Access, Reach, Spot, Touch, World};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vkfd_isa::{Format, Inst, Op, Target};
use vkfd_sabotage::{process, Switch};

/// Instructions that are remembered: 28 MiB.
const RECORDS: usize = 1 << 20;
/// Pages that are remembered: 250 MiB.
const PAGES: usize = 32_000;
/// Bytes of a page, as a power of two.
const PAGE: u32 = 10;
const WORDS: usize = 1 << (PAGE - 2);
/// Places of the table of pages.
const SLOTS: usize = 1 << 17;
/// Pages that are ready before an instruction: as many as its lanes may reach.
const SPARE: usize = 160;
const LOW: usize = 130;
/// Launches that run at the same time.
const RUNNING: usize = 64;

/// A group's waves among those of its launch, by numbers that no other wave has.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::check) struct Family {
    /// The group's first one.
    pub(in crate::check) group: u32,
    /// The launch's first one, and how many there are.
    pub(in crate::check) first: u32,
    pub(in crate::check) count: u32,
    /// Waves of a group.
    pub(in crate::check) span: u32,
}

/// An instruction of the past.
#[derive(Clone, Copy, Debug)]
struct Record {
    group: u32,
    /// The wave's step in its group.
    step: u32,
    /// The instruction, from the kernel's first one.
    offset: u32,
    /// The wave's own accesses up to then had completed.
    done: u32,
    /// It was ordered behind its group's accesses up to then.
    mates: u32,
    /// It knew of accesses by other groups up to then.
    knows: u32,
    index: u8,
    touch: Touch,
    /// A store behind a wait for everything, as a release has it.
    releases: bool,
    /// No cache answers it.
    coherent: bool,
    /// It is a load of scalars.
    scalar: bool,
}

impl Record {
    const NONE: Record = Record {
        group: 0,
        step: 0,
        offset: 0,
        done: 0,
        mates: 0,
        knows: 0,
        index: 0,
        touch: Touch::Read,
        releases: false,
        coherent: false,
        scalar: false,
    };

    fn is_of(&self, other: &Record) -> bool {
        (self.group, self.index) == (other.group, other.index)
    }
}

/// A word of memory. Time 0: none.
#[derive(Clone, Copy, Debug)]
struct Word {
    write: u32,
    /// The last store, which atomic operations may have followed.
    store: u32,
    reads: [u32; 2],
    /// What the atomic operations on it have released, up to then.
    released: u32,
    /// What was written last.
    value: u32,
    /// Bytes of the write and of the reads.
    masks: [u8; 3],
    /// Waves that had no order wrote the same, or atomic operations by several.
    agreed: bool,
    several: bool,
}

const UNTOUCHED: Word =
    Word { write: 0, store: 0, reads: [0; 2], released: 0, value: 0, masks: [0; 3], agreed: false, several: false };

struct Page([Word; WORDS]);

/// See the module.
pub(in crate::check) struct Table {
    /// The time of the last instruction.
    now: u32,
    /// The number of the next launch's first wave.
    next: u32,
    /// Launches that have begun and not ended: their first waves' numbers, and how many there are.
    running: [(u32, u32); RUNNING],
    records: Vec<Record>,
    /// Numbers of pages and one, by their hash; 0: none.
    keys: Vec<u64>,
    places: Vec<u32>,
    /// The first `used` of them are used.
    pages: Vec<Box<Page>>,
    used: usize,
}

impl Table {
    const EMPTY: Table = Table {
        now: 0,
        next: 0,
        running: [(0, 0); RUNNING],
        records: Vec::new(),
        keys: Vec::new(),
        places: Vec::new(),
        pages: Vec::new(),
        used: 0,
    };

    fn new() -> Table {
        Table {
            records: vec![Record::NONE; RECORDS],
            keys: vec![0; SLOTS],
            places: vec![0; SLOTS],
            pages: Vec::with_capacity(PAGES),
            ..Table::EMPTY
        }
    }
}

/// The table of a process.
pub(in crate::check) struct History(Mutex<Table>);

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("History")
    }
}

impl History {
    pub(in crate::check) const fn new() -> History {
        History(Mutex::new(Table::EMPTY))
    }

    pub(in crate::check) fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for the next instructions. Outside of the gate.
    pub(in crate::check) fn prepare(&self) {
        if self.lock().records.is_empty() {
            let fresh = Table::new();
            let mut table = self.lock();
            if table.records.is_empty() {
                *table = Table { next: table.next, running: table.running, ..fresh };
            }
        }
        // Made with the lock free: a thread within the gate may wait for it.
        while self.lock().wants_pages() {
            let page = Box::new(Page([UNTOUCHED; WORDS]));
            let mut table = self.lock();
            if table.pages.len() < PAGES {
                table.pages.push(page);
            }
        }
    }

    /// Numbers for the waves of a launch: the first.
    pub(in crate::check) fn launch(&self, waves: u32) -> u32 {
        let mut table = self.lock();
        let first = table.next;
        table.next = first.wrapping_add(waves);
        if let Some(place) = table.running.iter_mut().find(|(_, count)| *count == 0) {
            *place = (first, waves);
        }
        first
    }

    /// The launch of this first wave has ended.
    pub(in crate::check) fn end(&self, first: u32) {
        self.lock().running.iter_mut().filter(|(other, _)| *other == first).for_each(|place| *place = (0, 0));
    }
}

/// An instruction that is looked at.
struct Now<'a> {
    record: Record,
    race: &'a Race,
}

impl Now<'_> {
    /// Whether a record is of another launch.
    fn is_foreign(&self, past: &Record) -> bool {
        let Family { first, count, .. } = self.race.family;
        past.group.wrapping_sub(first) >= count
    }

    /// Whether it is ordered behind a record.
    fn follows(&self, past: &Record, time: u32, running: &[(u32, u32)]) -> bool {
        let Family { group, .. } = self.race.family;
        let runs = || running.iter().any(|(first, count)| past.group.wrapping_sub(*first) < *count);
        if past.is_of(&self.record) || self.is_foreign(past) && (!runs() || process().has(Switch::OneQueue)) {
            return true;
        }
        let Some(clock) = self.race.clocks.get(usize::from(self.record.index)) else { return true };
        let mate = past.group == group;
        if mate && clock.steps.get(usize::from(past.index)).is_some_and(|known| past.step <= *known) {
            return true;
        }
        // A cache may answer a plain load with an old value.
        let known = match self.record {
            Record { scalar: true, .. } if !process().has(Switch::OneCache) => &clock.scalars,
            Record { touch: Touch::Read, coherent: false, .. } => &clock.known,
            _ => &clock.pending,
        };
        known.covers(past.group, past.index, time)
    }

    /// Whether the two may meet without an order.
    fn agrees(&self, past: &Record) -> bool {
        let flag = |one: &Record, other: &Record| match (one.touch, other.touch) {
            (Touch::Atomic, Touch::Atomic) => true,
            (Touch::Read, Touch::Write | Touch::Atomic) => one.coherent,
            (Touch::Write, Touch::Atomic) => one.releases || one.coherent,
            _ => false,
        };
        // Within a group, loads of its scope are plain ones.
        let mates = past.group == self.record.group
            && matches!((self.record.touch, past.touch), (Touch::Read, Touch::Atomic) | (Touch::Atomic, Touch::Read));
        mates || flag(&self.record, past) || flag(past, &self.record)
    }
}

impl Table {
    fn wants_pages(&self) -> bool {
        self.pages.len() < PAGES && self.pages.len() - self.used < SPARE
    }

    /// Whether the gate is to be left for pages.
    pub(in crate::check) fn is_low(&self) -> bool {
        self.pages.len() < PAGES && self.pages.len() - self.used < LOW
    }

    /// The time.
    pub(in crate::check) fn now(&self) -> u32 {
        self.now
    }

    fn forget(&mut self) {
        self.keys.fill(0);
        self.used = 0;
    }

    fn record(&self, time: u32) -> Option<&Record> {
        let is_kept = time != 0 && time < self.now && ((self.now - time) as usize) < RECORDS;
        self.records.get(time as usize % RECORDS).filter(|_| is_kept)
    }

    /// The place of the page that has an address; none where there is no room.
    fn page(&mut self, va: u64) -> Option<usize> {
        let key = (va >> PAGE) + 1;
        let mut slot = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % SLOTS;
        loop {
            match self.keys.get(slot).copied()? {
                found if found == key => return self.places.get(slot).map(|place| *place as usize),
                0 => break,
                _ => slot = (slot + 1) % SLOTS,
            }
        }
        if self.used == PAGES {
            self.forget();
            return self.page(va);
        }
        let page = self.pages.get_mut(self.used)?;
        page.0.fill(UNTOUCHED);
        *self.keys.get_mut(slot)? = key;
        *self.places.get_mut(slot)? = u32::try_from(self.used).ok()?;
        self.used += 1;
        Some(self.used - 1)
    }

    fn tick(&mut self) -> u32 {
        if self.now == u32::MAX {
            self.forget();
            self.now = 0;
        }
        self.now += 1;
        self.now
    }

    /// Compares an instruction's accesses to memory with those of other waves. It has run.
    pub(in crate::check) fn look<W: World>(
        &mut self,
        race: &mut Race,
        (seen, inst): (&Seen<'_>, &Inst),
        (world, loads): (&mut W, &mut Loads),
        reaches: &[Reach],
        notes: &mut Notes,
    ) {
        let scratch = seen.group.scratch.as_ref();
        let is_shared = |va| !scratch.is_some_and(|scratch| scratch.contains(va));
        let shared = |reach: &&Reach| matches!(reach.spot, Spot::Memory(va) if is_shared(va));
        if self.records.is_empty() || process().has(Switch::BlindMemoryRace) {
            return;
        }
        let Some(first) = reaches.iter().find(shared) else { return };
        let wave = usize::from(seen.wave);
        let time = self.tick();
        let coherent = is_coherent(seen.target, inst);
        let scalar = inst.format == Format::Smem;
        let Some(record) = race.record(seen, (first.touch, coherent, scalar), time) else { return };
        if let Some(place) = self.records.get_mut(time as usize % RECORDS) {
            *place = record;
        }
        let asks = first.touch == Touch::Atomic || first.touch == Touch::Read && coherent;
        for reach in reaches.iter().filter(shared) {
            let Spot::Memory(va) = reach.spot else { continue };
            let end = va.saturating_add(reach.len.into());
            let mut at = va & !3;
            while at < end {
                let from = va.max(at) - at;
                let to = (end - at).min(4);
                let mask = 0xf_u8 << from & 0xf >> (4 - to);
                let value = if reach.touch == Touch::Read { None } else { value(world, at) };
                let page = self.page(at);
                let slot = page.and_then(|page| self.pages.get(page)?.0.get((at >> 2) as usize % WORDS).copied());
                let Some(mut word) = slot else { break };
                let now = Now { record, race };
                let met = self.compare(&now, &word, mask, value);
                let writer = self.record(word.write).copied().filter(|_| word.masks[0] & mask != 0);
                let writer = writer.filter(|writer| !writer.is_of(&record));
                if let Some((other, _)) = met.as_ref().filter(|(_, said)| *said) {
                    // The one that reads may only wait for the other, or guess. Another launch may
                    // run other code.
                    let reader = match (reach.touch, other.touch) {
                        (Touch::Read, _) => Some(record.offset),
                        (_, Touch::Read) if !now.is_foreign(other) => Some(other.offset),
                        _ => None,
                    };
                    let mates = other.group == record.group;
                    let swaps = [reach.touch, other.touch].contains(&Touch::Atomic);
                    match reader.map(|reader| loads.purpose(seen, reader, world)) {
                        Some(Purpose::Spins) if mates && reach.touch == Touch::Read => {
                            race.follows(wave, other.index.into());
                        }
                        Some(Purpose::Spins) if mates => {}
                        Some(Purpose::Guesses) if swaps => {}
                        _ => notes.add(seen, Rule::MemoryRace, Some(*reach), Some(race.other(seen, other))),
                    }
                }
                if let Some(writer) = writer.filter(|_| asks) {
                    race.learns(wave, &writer, &word);
                }
                word.take(&record, time, mask, value, met.is_some(), writer.as_ref());
                if let Some(place) =
                    page.and_then(|page| self.pages.get_mut(page)?.0.get_mut((at >> 2) as usize % WORDS))
                {
                    *place = word;
                }
                at += 4;
            }
        }
        let is_store =
            seen.target.is_rdna() && (first.touch == Touch::Write || first.touch == Touch::Atomic && !inst.memory.glc);
        race.issues(wave, time, is_store, scalar);
        if first.touch == Touch::Write && keeps_stores(seen.target) && !coherent {
            race.kept.add(time);
        }
    }

    /// The access that this one has no order with, and whether that is a race; otherwise both wrote
    /// the same.
    fn compare(&self, now: &Now<'_>, word: &Word, mask: u8, value: Option<u32>) -> Option<(Record, bool)> {
        let bits = (0..4).filter(|byte| mask >> byte & 1 == 1).fold(0, |bits, byte| bits | 0xffu32 << (8 * byte));
        let is_write = now.record.touch != Touch::Read;
        let past = |time: u32, bytes: u8| {
            let record = self.record(time).filter(|_| bytes & mask != 0)?;
            let apart = !now.follows(record, time, &self.running) && !now.agrees(record);
            apart.then_some(*record)
        };
        // A wave that has read a word past its caches comes behind that word's writer.
        let own = |time: u32| self.record(time).is_some_and(|read| read.coherent && read.is_of(&now.record));
        let saw = word.reads.into_iter().any(own);
        let under = if now.record.touch == Touch::Atomic { word.store } else { 0 };
        let before = || past(word.write, word.masks[0]).or_else(|| past(under, word.masks[0]));
        let write = if saw { None } else { before() };
        let same = now.record.touch == Touch::Write
            && word.write != 0
            && word.masks[0] & mask == mask
            && value.is_some_and(|value| (value ^ word.value) & bits == 0);
        if let Some(write) = write {
            return Some((write, !(same || word.agreed && now.record.touch == Touch::Read)));
        }
        let [first, second] = word.reads;
        let read = || past(first, word.masks[1]).or_else(|| past(second, word.masks[2]));
        (is_write && !same).then(read).flatten().map(|read| (read, true))
    }
}

impl Word {
    /// Keeps an access. `apart`: it had no order with the one before.
    fn take(&mut self, now: &Record, time: u32, mask: u8, value: Option<u32>, apart: bool, writer: Option<&Record>) {
        if now.touch == Touch::Read {
            let slot = usize::from(self.reads[0] != 0 && self.masks[1] & !mask == 0 && self.reads[1] < self.reads[0]);
            self.reads[slot] = time;
            self.masks[slot + 1] = mask;
            return;
        }
        let both = now.touch == Touch::Atomic && writer.is_some_and(|writer| writer.touch == Touch::Atomic);
        let chain = if both || now.touch == Touch::Atomic && self.several { self.released } else { 0 };
        let agreed = apart && now.touch == Touch::Write && value == Some(self.value);
        *self = Word {
            write: time,
            store: if now.touch == Touch::Write { time } else { self.store },
            reads: [0; 2],
            released: chain.max(now.done).max(now.knows),
            value: value.unwrap_or(0),
            masks: [mask, 0, 0],
            agreed: agreed || self.agreed && value == Some(self.value),
            several: both || now.touch == Touch::Atomic && self.several,
        };
    }
}

impl Race {
    fn record(&self, seen: &Seen<'_>, (touch, coherent, scalar): (Touch, bool, bool), time: u32) -> Option<Record> {
        let wave = usize::from(seen.wave);
        let (clock, own) = (self.clocks.get(wave)?, self.own.get(wave)?);
        Some(Record {
            group: self.family.group,
            step: clock.steps.get(wave).copied()?,
            offset: seen.offset(),
            done: self.kept.limit(own.done(time)),
            mates: self.kept.limit(own.mates),
            knows: clock.known.newest().max(clock.pending.newest()),
            index: u8::try_from(wave).ok()?,
            touch,
            releases: own.is_fenced(),
            coherent,
            scalar,
        })
    }

    fn issues(&mut self, wave: usize, time: u32, is_store: bool, is_scalar: bool) {
        self.last = time;
        if let Some(own) = self.own.get_mut(wave).filter(|_| !is_scalar) {
            Own::issue(own, time, is_store);
        }
    }

    /// A wave has read what another has written for it.
    fn learns(&mut self, wave: usize, writer: &Record, word: &Word) {
        if writer.group == self.family.group {
            self.follows(wave, writer.index.into());
            return;
        }
        let Some(clock) = self.clocks.get_mut(wave) else { return };
        // What the writer knew itself is known, too; of whom is not.
        clock.pending.raise(if word.several { word.released.max(writer.knows) } else { writer.knows });
        let Record { group, index, done, mates, .. } = *writer;
        // With nothing under way before it, the write itself is known, too.
        let done = if done.saturating_add(1) == word.write { word.write } else { done };
        clock.pending.add(Entry { group, index, done, mates });
    }

    fn other(&self, seen: &Seen<'_>, record: &Record) -> Other {
        let Family { first, span, .. } = self.family;
        let number = record.group.wrapping_sub(first) / span.max(1);
        let group = (record.group != self.family.group).then(|| seen.group.at(number.into()));
        let is_foreign = record.group.wrapping_sub(first) >= self.family.count;
        let launch = is_foreign.then_some(record.group);
        let group = group.filter(|_| !is_foreign);
        Other { offset: record.offset, group, wave: record.index.into(), touch: record.touch, launch }
    }
}

/// Whether no cache of a compute unit answers an access.
fn is_coherent(target: Target, inst: &Inst) -> bool {
    let memory = &inst.memory;
    let vector = matches!(inst.format, Format::Flat | Format::Global | Format::Mubuf | Format::Mtbuf);
    vector
        && match target {
            Target::Gfx942 => memory.dlc,
            Target::Gfx900 | Target::Gfx90a | Target::Gfx1030 | Target::Gfx1100 => memory.glc,
        }
}

/// Whether work-groups may have caches of their own above memory that keep what is stored. A gfx942
/// GPU has several dies, and an L2 in each.
const fn has_dies(target: Target) -> bool {
    match target {
        Target::Gfx942 => true,
        Target::Gfx900 | Target::Gfx90a | Target::Gfx1030 | Target::Gfx1100 => false,
    }
}

/// Whether an instruction invalidates the caches that plain loads are answered by; with several
/// dies, for the scope of all of them.
pub(in crate::check) fn invalidates(target: Target, inst: &Inst) -> bool {
    match inst.op {
        Op::BufferInv => !has_dies(target) || inst.memory.dlc,
        op => matches!(op, Op::BufferWbinvl1 | Op::BufferWbinvl1Vol | Op::BufferGl0Inv),
    }
}

/// Whether an instruction invalidates the cache of scalars.
pub(in crate::check) fn invalidates_scalars(op: Op) -> bool {
    matches!(op, Op::SDcacheInv | Op::SDcacheInvVol)
}

fn keeps_stores(target: Target) -> bool {
    has_dies(target) && !process().has(Switch::OneCache)
}

/// Whether an instruction writes such caches back, for the scope of all dies.
pub(in crate::check) fn writes_back(target: Target, inst: &Inst) -> bool {
    keeps_stores(target) && inst.op == Op::BufferWbl2 && inst.memory.dlc
}

/// A word of memory, if it can be read.
fn value<W: World>(world: &mut W, va: u64) -> Option<u32> {
    let span = world.translate(va, Access::Read).ok().filter(|span| span.len >= 4)?;
    let mut bytes = [0; 4];
    // SAFETY: the span is the world's, good until the gate is left, and may vanish; the destination
    // is this frame's.
    unsafe { vkfd_raw::copy(bytes.as_mut_ptr(), span.ptr, 4) }.ok()?;
    Some(u32::from_le_bytes(bytes))
}

// A wave's index fits.
const _: () = assert!(WAVES <= 256);
