// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What was found within the gate, until it becomes a finding outside.
//!
//! The table has [`ROOM`] notes. One that is there already is counted. A full table counts nothing
//! more until the engine has left the gate, which it does at the next instruction.

use super::map::{Live, Map, Verdict};
use super::seen::Seen;
use crate::world::{Reach, Spot, Touch};
use std::sync::Arc;
use vkfd_findings::{
    Access, Address, Allocation, Check, Finding, Note as FindingNote, Place, Position, Severity, Thread,
};
use vkfd_isa::{decode_as_hardware, Inst, Target, MAX_WORDS};
use vkfd_lint::live::Early;

/// Notes that the table has room for.
const ROOM: usize = 128;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Bounds,
    Freed,
    Lds,
    Scratch,
    Misaligned,
    Race,
    MemoryRace,
    /// Not all come to the same barrier.
    Barrier,
    /// A register is used before a wait.
    Vmcnt,
    Lgkmcnt,
    Expcnt,
    /// Bits that nothing wrote decide a branch.
    Branch,
    /// They decide which lanes run.
    Lanes,
    /// They are part of an address.
    Address,
    /// What was computed from them is stored, or they are stored where the host reads.
    Store,
}

/// A rule's check, its name, and a sentence about it.
struct Entry(Check, &'static str, &'static str);

impl Rule {
    const ALL: [Rule; 15] = [
        Rule::Bounds,
        Rule::Freed,
        Rule::Lds,
        Rule::Scratch,
        Rule::Misaligned,
        Rule::Race,
        Rule::MemoryRace,
        Rule::Barrier,
        Rule::Vmcnt,
        Rule::Lgkmcnt,
        Rule::Expcnt,
        Rule::Branch,
        Rule::Lanes,
        Rule::Address,
        Rule::Store,
    ];

    /// That of a name, of which only waits' have others than these here.
    pub(super) fn of(name: &str) -> Rule {
        let named = |rule: &Rule| rule.entry().1 == name;
        Rule::ALL.into_iter().find(named).unwrap_or(Rule::Vmcnt)
    }

    const fn entry(self) -> Entry {
        match self {
            Rule::Bounds => Entry(Check::Memory, "memory/bounds", "An access outside of the bounds of an allocation"),
            Rule::Freed => Entry(Check::Memory, "memory/freed", "An access to freed memory"),
            Rule::Lds => Entry(Check::Memory, "memory/lds", "An access behind the end of a work-group's LDS"),
            Rule::Scratch => Entry(Check::Memory, "memory/scratch", "An access outside of a lane's scratch"),
            Rule::Misaligned => {
                Entry(Check::Memory, "memory/alignment", "An atomic operation at an address that is not aligned")
            }
            Rule::Race => Entry(Check::Race, "race/lds", "Two waves access LDS without an order"),
            Rule::MemoryRace => Entry(Check::Race, "race/memory", "Two waves access memory without an order"),
            Rule::Barrier => Entry(Check::Race, "race/barrier", "Not all of a work-group come to the same barrier"),
            Rule::Vmcnt => Entry(Check::Waits, "waits/vmcnt", "A register is used before `s_waitcnt vmcnt`"),
            Rule::Lgkmcnt => Entry(Check::Waits, "waits/lgkmcnt", "A register is used before `s_waitcnt lgkmcnt`"),
            Rule::Expcnt => Entry(Check::Waits, "waits/expcnt", "A register is used before `s_waitcnt expcnt`"),
            Rule::Branch => Entry(Check::Init, "init/branch", "A branch depends on bits that nothing wrote"),
            Rule::Lanes => Entry(Check::Init, "init/lanes", "Bits that nothing wrote decide which lanes run"),
            Rule::Address => Entry(Check::Init, "init/address", "An address has bits that nothing wrote"),
            Rule::Store => {
                Entry(Check::Init, "init/store", "A value that depends on bits that nothing wrote is stored")
            }
        }
    }
}

/// All rules, with a sentence about each.
pub(super) fn rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    Rule::ALL.into_iter().map(|rule| {
        let Entry(_, name, about) = rule.entry();
        (name, about)
    })
}

/// The other access of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Other {
    /// Its instruction, from the kernel's first one.
    pub(super) offset: u32,
    /// Its work-group, if that is another.
    pub(super) group: Option<[u32; 3]>,
    pub(super) wave: u16,
    pub(super) touch: Touch,
    /// The number of its wave, if that is one of another launch.
    pub(super) launch: Option<u32>,
}

impl Other {
    const fn whose(&self) -> &'static str {
        match (self.launch, self.group) {
            (Some(_), _) => "launch at the same time",
            (None, Some(_)) => "work-group",
            (None, None) => "wave of the work-group",
        }
    }
}

#[derive(Clone, Copy)]
struct Note {
    rule: Rule,
    pc: u64,
    entry: u64,
    target: Target,
    words: [u32; MAX_WORDS],
    group: [u32; 3],
    wave: u16,
    lane: Option<u8>,
    reach: Option<Reach>,
    other: Option<Other>,
    early: Option<Early>,
    lds: usize,
    count: u64,
    /// It has become a finding.
    told: bool,
}

/// The kernel of a launch.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    pub(super) name: String,
    /// Where its code object lies, if that is known.
    pub(super) image: Option<u64>,
    /// Its first instruction.
    pub(super) entry: u64,
}

/// The launch that notes are of.
pub(super) struct Launch<'a> {
    /// The kernel's name.
    pub(super) kernel: &'a str,
    /// Where its code object lies, if that is known.
    pub(super) image: Option<u64>,
    /// The kernel that the wave of a number is of.
    pub(super) others: &'a dyn Fn(u32) -> Option<Kernel>,
}

/// The table.
pub(super) struct Notes {
    notes: Vec<Note>,
    /// There is one that is no finding yet.
    fresh: bool,
}

impl Notes {
    pub(super) fn new() -> Notes {
        Notes { notes: Vec::with_capacity(ROOM), fresh: false }
    }

    /// Whether the gate is to be left for a new one.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Notes something about an instruction, and the lane of the reach.
    pub(super) fn add(&mut self, seen: &Seen<'_>, rule: Rule, reach: Option<Reach>, other: Option<Other>) {
        let lane = reach.map(|reach| reach.lane).filter(|lane| *lane != Reach::SCALAR);
        self.add_at(seen, rule, (lane, reach), other);
    }

    /// The same, about a lane that need not have reached anything.
    pub(super) fn add_at(
        &mut self,
        seen: &Seen<'_>,
        rule: Rule,
        at: (Option<u8>, Option<Reach>),
        other: Option<Other>,
    ) {
        self.note(seen, rule, at, (other, None));
    }

    /// Notes a register that is used too early.
    pub(super) fn add_early(&mut self, seen: &Seen<'_>, rule: Rule, early: Early) {
        let (offset, wave) = (early.by(), seen.wave);
        let other = Other { offset, group: None, wave, touch: Touch::Read, launch: None };
        self.note(seen, rule, (None, None), (Some(other), Some(early)));
    }

    fn note(
        &mut self,
        seen: &Seen<'_>,
        rule: Rule,
        (lane, reach): (Option<u8>, Option<Reach>),
        (other, early): (Option<Other>, Option<Early>),
    ) {
        let by = other.map(|other| other.offset);
        let same =
            |note: &&mut Note| note.rule == rule && note.pc == seen.pc && note.other.map(|other| other.offset) == by;
        if let Some(note) = self.notes.iter_mut().find(same) {
            note.count = note.count.saturating_add(1);
            return;
        }
        if self.notes.len() >= ROOM {
            self.fresh = true;
            return;
        }
        self.notes.push(Note {
            rule,
            pc: seen.pc,
            entry: seen.group.entry,
            target: seen.target,
            words: *seen.words,
            group: seen.group.id,
            wave: seen.wave,
            lane,
            reach,
            other,
            early,
            lds: seen.lds,
            count: 1,
            told: false,
        });
        self.fresh = true;
    }

    /// Makes findings of all. Outside of the gate. `all`: counts, too, and the table is empty
    /// afterwards.
    pub(super) fn tell(&mut self, launch: &Launch<'_>, map: &Map, all: bool, mut report: impl FnMut(Finding, u64)) {
        self.fresh = false;
        let all = all || self.notes.len() >= ROOM;
        self.notes.retain_mut(|note| {
            if note.told && !all {
                return true;
            }
            if !note.told && note.is_outdated(map) {
                return false;
            }
            if note.count > 0 {
                report(note.finding(launch, map), note.count);
            }
            (note.told, note.count) = (true, 0);
            !all
        });
    }
}

fn access(touch: Touch) -> Access {
    match touch {
        Touch::Read => Access::Read,
        Touch::Write => Access::Write,
        Touch::Atomic => Access::Atomic,
    }
}

fn verb(touch: Touch) -> &'static str {
    match touch {
        Touch::Read => "a read",
        Touch::Write => "a write",
        Touch::Atomic => "an atomic operation",
    }
}

fn position(va: u64, start: u64, bytes: u64) -> Position {
    match va.checked_sub(start) {
        None => Position::Before(start - va),
        Some(offset) if offset < bytes => Position::Inside(offset),
        Some(offset) => Position::Behind(offset - bytes),
    }
}

impl Note {
    /// An allocation was made after the engine had copied the ledger.
    fn is_outdated(&self, map: &Map) -> bool {
        match (self.rule, self.reach) {
            (Rule::Bounds | Rule::Freed, Some(Reach { spot: Spot::Memory(va), len, .. })) => {
                map.judge(va, len.into(), true) == Verdict::Fine
            }
            _ => false,
        }
    }

    fn place(&self, launch: &Launch<'_>) -> Place {
        let offset = self.pc.wrapping_sub(self.entry);
        let inst: Option<Inst> = decode_as_hardware(self.target, &self.words).ok();
        Place {
            object: None,
            kernel: Some(launch.kernel.to_owned()),
            pc: launch.image.map_or(offset, |image| self.pc.wrapping_sub(image)),
            offset: Some(offset),
            instruction: inst.map(|inst| inst.text(self.target, &self.words)),
            source: None,
        }
    }

    fn finding(&self, launch: &Launch<'_>, map: &Map) -> Finding {
        let Entry(check, rule, _) = self.rule.entry();
        let mut finding = Finding::new(check, rule, Severity::Error, String::new(), self.place(launch));
        finding.thread = Some(Thread { group: self.group, wave: self.wave.into(), lane: self.lane });
        finding.message = match self.reach {
            Some(reach) if check != Check::Init => {
                let (nearest, notes) = self.surroundings(&reach, map);
                let message = self.message(&reach, nearest.as_ref());
                finding.address = Some(Address {
                    address: match reach.spot {
                        Spot::Memory(va) => va,
                        Spot::Lds(at) => at.into(),
                    },
                    bytes: reach.len.into(),
                    access: access(reach.touch),
                    nearest,
                });
                finding.notes = notes;
                message
            }
            _ => self.early.map_or_else(|| self.undefined().into(), |early| early.message()),
        };
        if let Some(other) = self.other {
            let offset = u64::from(other.offset);
            let own = || Kernel { name: launch.kernel.to_owned(), image: launch.image, entry: self.entry };
            let Kernel { name, image, entry } =
                other.launch.and_then(|number| (launch.others)(number)).unwrap_or_else(own);
            let pc = image.map_or(offset, |image| entry.wrapping_add(offset).wrapping_sub(image));
            let place = Place { kernel: Some(name), pc, offset: Some(offset), ..Place::default() };
            let group = other.group.unwrap_or(self.group);
            if self.early.is_some() {
                let message = "the result is that of".into();
                finding.notes.push(FindingNote { message, place: Some(place), thread: None });
                return finding;
            }
            let thread = Thread { group, wave: other.wave.into(), lane: None };
            let message = match (self.rule, self.lane) {
                (Rule::Barrier, Some(_)) => "the barrier".into(),
                (Rule::Barrier, None) => "another wave of the work-group waits here".into(),
                _ => format!("{} by another {}", verb(other.touch), other.whose()),
            };
            finding.notes.push(FindingNote { message, place: Some(place), thread: Some(thread) });
        }
        finding
    }

    /// The nearest allocation, and the calls that allocated and freed it.
    fn surroundings(&self, reach: &Reach, map: &Map) -> (Option<Allocation>, Vec<FindingNote>) {
        let lds = u64::try_from(self.lds).unwrap_or(u64::MAX);
        let va = match reach.spot {
            Spot::Lds(at) => {
                let position = position(at.into(), 0, lds);
                return (Some(Allocation { address: 0, bytes: lds, name: "LDS".into(), position }), Vec::new());
            }
            Spot::Memory(_) if self.rule == Rule::Scratch => return (None, Vec::new()),
            Spot::Memory(va) => va,
        };
        let note = |what: &str, by: &Option<Arc<str>>| {
            let message = by.as_ref().map(|by| format!("{what} by {by}"))?;
            Some(FindingNote { message, place: None, thread: None })
        };
        if let Some(freed) = map.freed(va).filter(|_| self.rule == Rule::Freed) {
            let position = position(va, freed.va, freed.bytes);
            let nearest = Allocation { address: freed.va, bytes: freed.bytes, name: "freed memory".into(), position };
            let notes = [note("allocated", &freed.by), note("freed", &freed.freed_by)];
            return (Some(nearest), notes.into_iter().flatten().collect());
        }
        let Some(Live { va: start, bytes, by, .. }) = map.nearest(va) else { return (None, Vec::new()) };
        // The first byte outside counts, where the access begins inside.
        let first = if va >= *start && va < start.saturating_add(*bytes) { start.saturating_add(*bytes) } else { va };
        let first = if self.rule == Rule::Bounds { first } else { va };
        let name = if map.is_device(va) { "device memory" } else { "host memory" };
        let position = position(first, *start, *bytes);
        let nearest = Allocation { address: *start, bytes: *bytes, name: name.into(), position };
        (Some(nearest), note("allocated", by).into_iter().collect())
    }

    fn message(&self, reach: &Reach, nearest: Option<&Allocation>) -> String {
        let what = format!("{} of {} bytes", verb(reach.touch), reach.len);
        match self.rule {
            Rule::Bounds => match nearest {
                Some(Allocation { bytes, position: Position::Behind(distance), .. }) => {
                    format!("{what} out of bounds, {distance} bytes behind an allocation of {bytes} bytes")
                }
                Some(Allocation { bytes, position: Position::Before(distance), .. }) => {
                    format!("{what} out of bounds, {distance} bytes before an allocation of {bytes} bytes")
                }
                _ => format!("{what} out of bounds"),
            },
            Rule::Freed => format!("{what} of freed memory"),
            Rule::Lds => format!("{what} behind the end of the work-group's LDS, which has {} bytes", self.lds),
            Rule::Scratch => format!("{what} outside of the lane's scratch"),
            Rule::Misaligned => format!("{what} at an address that is not aligned"),
            Rule::Race => match self.other.map(|other| other.touch) {
                Some(other) => format!("{what} of LDS and {} by another wave without a barrier between", verb(other)),
                None => format!("{what} of LDS without an order"),
            },
            Rule::MemoryRace => match self.other {
                Some(other) => {
                    format!("{what} and {} by another {} have no order", verb(other.touch), other.whose())
                }
                None => format!("{what} without an order"),
            },
            _ => self.undefined().into(),
        }
    }

    const fn undefined(&self) -> &'static str {
        match self.rule {
            Rule::Branch => "a branch depends on bits that nothing wrote",
            Rule::Lanes => "bits that nothing wrote decide which lanes run",
            Rule::Address => "an address has bits that nothing wrote",
            Rule::Barrier if self.lane.is_some() => "a lane goes on that has not come to a barrier of its wave",
            Rule::Barrier => "waves of a work-group wait at different barriers",
            _ => "a value that depends on bits that nothing wrote is stored",
        }
    }
}
