// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `race`: accesses by two waves, one of them a write, without an order.
//!
//! Mechanism: vector clocks. A wave's own clock counts its steps. The wave knows of each other one
//! of its group how far that had come when the two last met. They meet at barriers, and by atomic
//! operations on the same bytes, of LDS or of memory. Every byte of LDS has its last write and two
//! readers since. An access is ordered after another wave's if the wave knows of that step. What is
//! known of waves of other groups goes with these clocks ([`known`]).
//!
//! | module | |
//! |---|---|
//! | `barriers` | barriers that not all come to |
//! | `history` | the last accesses to memory by all waves, and the check of these |
//! | `known` | what is known of other groups' waves |
//! | `own` | a wave's accesses that have not completed |
//! | `loads` | loads of words that others may change: spinning, and guesses |
//!
//! No race: a write that changes nothing (waves that all write the same), atomic operations among
//! themselves, and whatever one wave does. A load of LDS in a loop that only waits for its value is
//! no race either, and orders the wave after the writer.
//!
//! Limits: other plain loads and stores of LDS that are meant as flags make no order. A third
//! reader of a byte displaces the second. Atomic operations on more than [`PLACES`] places count as
//! one place, which makes too much order. A byte of LDS takes 32 bytes here.

mod barriers;
mod history;
mod known;
mod loads;
mod own;

pub(super) use history::{invalidates, invalidates_scalars, writes_back, Family, History};
pub(super) use loads::Loads;
pub(super) use own::waits;

use super::note::{Notes, Other, Rule};
use super::seen::Seen;
use crate::world::{Reach, Spot, Touch, World};
use barriers::Barriers;
use known::Known;
use loads::Purpose;
use own::{Counts, Kept, Own};
use vkfd_sabotage::{process, Switch};

/// Places of atomic operations that are told apart.
const PLACES: usize = 32;
/// Waves of a group, at most.
const WAVES: usize = 32;
const NOBODY: Known = Known::NOBODY;

/// How far a wave knows each wave of its group to have come, and what it knows of others.
#[derive(Clone, Copy, Debug)]
struct Clock {
    steps: [u32; WAVES],
    known: Known,
    /// The same, until its caches are invalidated: for accesses that no cache answers.
    pending: Known,
    /// The same for loads of scalars, whose cache has an instruction of its own.
    scalars: Known,
}

impl Clock {
    const ZERO: Clock = Clock { steps: [0; WAVES], known: NOBODY, pending: NOBODY, scalars: NOBODY };

    fn join(&mut self, other: &Clock) {
        for (own, other) in self.steps.iter_mut().zip(&other.steps) {
            *own = (*own).max(*other);
        }
        self.known.join(&other.known);
        self.pending.join(&other.pending);
        self.scalars.join(&other.scalars);
    }

    /// A wave's own clock goes on.
    fn step(&mut self, wave: usize) {
        if let Some(own) = self.steps.get_mut(wave) {
            *own = own.saturating_add(1);
        }
    }
}

/// An access of the past. Step 0: none.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    step: u32,
    /// The instruction, from the kernel's first one.
    at: u32,
    wave: u8,
    touch: Option<Touch>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Byte {
    write: Past,
    reads: [Past; 2],
}

#[derive(Clone, Copy, Debug)]
struct Place {
    spot: Spot,
    clock: Clock,
}

/// What is known of a group.
#[derive(Clone, Debug)]
pub(super) struct Race {
    bytes: Vec<Byte>,
    /// LDS as it was before the instruction.
    before: Vec<u8>,
    clocks: Vec<Clock>,
    places: Vec<Place>,
    /// The clock of all places beyond.
    rest: Clock,
    /// The clock of all waves that have come to a barrier, of even and odd ones.
    barriers: [Clock; 2],
    places_of_barriers: Barriers,
    /// How many barriers each wave has come to, and has left.
    come: Vec<u32>,
    left: Vec<u32>,
    /// The last barrier that a wave came to.
    newest: u32,
    own: Vec<Own>,
    /// Its waves among those of its launch.
    family: Family,
    /// The time of the group's last access to memory, and that at the last two barriers.
    last: u32,
    met: [u32; 2],
    /// Stores that are not written back to a cache that other groups share.
    kept: Kept,
}

impl Race {
    pub(super) fn new(lds: usize, waves: u32, family: Family) -> Race {
        let count = usize::try_from(waves).unwrap_or(WAVES).min(WAVES);
        // One wave has no race in LDS.
        let lds = if count > 1 { lds } else { 0 };
        // A wave's own first step is 1: 0 stands for none.
        let clock = |wave| Clock { steps: std::array::from_fn(|other| u32::from(other == wave)), ..Clock::ZERO };
        Race {
            bytes: vec![Byte::default(); lds],
            before: vec![0; lds],
            clocks: (0..count).map(clock).collect(),
            places: Vec::with_capacity(if count > 1 { PLACES } else { 0 }),
            rest: Clock::ZERO,
            barriers: [Clock::ZERO; 2],
            places_of_barriers: Barriers::new(count),
            come: vec![0; count],
            left: vec![0; count],
            newest: 0,
            own: vec![Own::NEW; count],
            family,
            last: 0,
            met: [0; 2],
            kept: Kept::default(),
        }
    }

    /// A wave runs on: if it was at a barrier, all others have come there.
    pub(super) fn resumes(&mut self, wave: u16) {
        let at = usize::from(wave);
        let (Some(&come), Some(left)) = (self.come.get(at), self.left.get_mut(at)) else { return };
        if *left == come {
            return;
        }
        *left = come;
        let side = (come % 2) as usize;
        if let (Some(clock), Some(known)) = (self.clocks.get_mut(at), self.barriers.get(side)) {
            clock.join(known);
            clock.step(at);
        }
        if let (Some(own), Some(met)) = (self.own.get_mut(at), self.met.get(side)) {
            own.mates = own.mates.max(*met);
        }
    }

    /// A wave has come to a barrier with these lanes.
    pub(super) fn arrives(&mut self, seen: &Seen<'_>, exec: u64, notes: &mut Notes) {
        self.comes(seen.wave, false);
        if let Some(number) = self.come.get(usize::from(seen.wave)) {
            self.places_of_barriers.arrives(seen, *number, exec, notes);
        }
    }

    /// A wave has ended: nobody waits for it.
    pub(super) fn ends(&mut self, wave: u16) {
        self.comes(wave, true);
    }

    /// Whether a wave's next instructions say nothing of its last barrier.
    pub(super) fn is_settled(&self, wave: u16) -> bool {
        self.places_of_barriers.is_settled(wave)
    }

    /// A wave's next instruction is one of its lanes, or of the wave as a whole.
    pub(super) fn goes_on(&mut self, wave: u16, exec: u64, of_lanes: impl FnOnce() -> bool) {
        self.places_of_barriers.goes_on(wave, exec, of_lanes);
    }

    /// Lanes of a wave access memory.
    pub(super) fn continues(&mut self, seen: &Seen<'_>, exec: u64, notes: &mut Notes) {
        self.places_of_barriers.continues(seen, exec, notes);
    }

    fn comes(&mut self, wave: u16, ends: bool) {
        let at = usize::from(wave);
        let (Some(clock), Some(come)) = (self.clocks.get(at), self.come.get_mut(at)) else { return };
        if ends {
            // The next barrier, and the one after that, of which some may still wait for this one.
            self.barriers.iter_mut().for_each(|known| known.join(clock));
            self.met = [self.last; 2];
            return;
        }
        *come += 1;
        if *come > self.newest {
            self.newest = *come;
        }
        let side = (*come % 2) as usize;
        if let (Some(known), Some(met)) = (self.barriers.get_mut(side), self.met.get_mut(side)) {
            known.join(clock);
            *met = self.last;
        }
    }

    /// Two atomic operations on the same bytes have an order.
    fn meets(&mut self, wave: usize, spot: Spot) {
        let known = self.places.iter().position(|place| place.spot == spot);
        let at = known.or_else(|| {
            // Nothing is allocated here. A group of one wave has no room.
            (self.places.len() < self.places.capacity()).then(|| {
                self.places.push(Place { spot, clock: Clock::ZERO });
                self.places.len() - 1
            })
        });
        let shared = match at.and_then(|at| self.places.get_mut(at)) {
            Some(place) => &mut place.clock,
            None => &mut self.rest,
        };
        if let Some(clock) = self.clocks.get_mut(wave) {
            shared.join(clock);
            clock.join(shared);
            clock.step(wave);
        }
        self.meets_all(wave);
    }

    /// It is ordered behind its group's accesses until now, as far as others are to know.
    fn meets_all(&mut self, wave: usize) {
        if let Some(own) = self.own.get_mut(wave) {
            own.mates = self.last;
        }
    }

    /// A wave has seen what another of its group has written for it.
    fn follows(&mut self, wave: usize, writer: usize) {
        let Some(theirs) = self.clocks.get_mut(writer) else { return };
        let known = *theirs;
        // What the writer does from now on is not known.
        theirs.step(writer);
        if let Some(clock) = self.clocks.get_mut(wave) {
            clock.join(&known);
        }
        self.meets_all(wave);
    }

    /// A wave waits for its accesses.
    pub(super) fn waits(&mut self, wave: u16, counts: Counts) {
        if let Some(own) = self.own.get_mut(usize::from(wave)) {
            own.wait(counts);
            if let Some(time) = own.written_back() {
                self.kept.written(time);
            }
        }
    }

    /// A wave has its caches' contents written back, and a wait will say when that is done.
    pub(super) fn writes_back(&mut self, wave: u16, now: u32) {
        if let Some(own) = self.own.get_mut(usize::from(wave)) {
            own.write_back(now);
        }
    }

    /// A wave invalidates its caches: it sees what others had written before they told it.
    pub(super) fn invalidates(&mut self, wave: u16) {
        if let Some(Clock { known, pending, .. }) = self.clocks.get_mut(usize::from(wave)) {
            known.join(pending);
        }
    }

    /// The same for loads of scalars.
    pub(super) fn invalidates_scalars(&mut self, wave: u16) {
        if let Some(Clock { scalars, pending, .. }) = self.clocks.get_mut(usize::from(wave)) {
            scalars.join(pending);
        }
    }

    /// A wave has passed a barrier of the whole grid.
    pub(super) fn passes_all(&mut self, wave: u16, now: u32) {
        if let Some(clock) = self.clocks.get_mut(usize::from(wave)) {
            clock.pending.raise(now);
        }
    }

    /// Compares an instruction's accesses with those of other waves. LDS is as it is afterwards.
    pub(super) fn look<W: World>(
        &mut self,
        seen: &Seen<'_>,
        world: &mut W,
        (lds, reaches): (&[u8], &[Reach]),
        loads: &mut Loads,
        notes: &mut Notes,
    ) {
        if process().has(Switch::BlindRace) {
            return;
        }
        let wave = usize::from(seen.wave);
        for reach in reaches.iter().filter(|reach| reach.touch == Touch::Atomic) {
            self.meets(wave, reach.spot);
        }
        let mut last = None;
        for reach in reaches {
            let Spot::Lds(start) = reach.spot else { continue };
            // Lanes often read the same.
            let bytes = Some((start, reach.len, reach.touch));
            if reach.touch == Touch::Read && last == bytes {
                continue;
            }
            last = bytes;
            let start = usize::try_from(start).unwrap_or(usize::MAX);
            for at in start..start.saturating_add(reach.len.into()) {
                let changed = lds.get(at) != self.before.get(at);
                let other = self.byte(wave, at, reach.touch, changed, seen.offset());
                let Some(other) = other else { continue };
                // The one that reads may only wait for the other.
                let reader = match (reach.touch, other.touch) {
                    (Touch::Read, _) => seen.offset(),
                    (_, Touch::Read) => other.offset,
                    _ => u32::MAX,
                };
                if reader == u32::MAX || loads.purpose(seen, reader, world) != Purpose::Spins {
                    notes.add(seen, Rule::Race, Some(*reach), Some(other));
                    break;
                }
                if reach.touch == Touch::Read {
                    self.follows(wave, other.wave.into());
                }
            }
        }
        for reach in reaches.iter().filter(|reach| reach.touch != Touch::Read) {
            let Spot::Lds(start) = reach.spot else { continue };
            let start = usize::try_from(start).unwrap_or(usize::MAX);
            let range = start..start.saturating_add(reach.len.into());
            for at in range {
                if let (Some(before), Some(now)) = (self.before.get_mut(at), lds.get(at)) {
                    *before = *now;
                }
            }
        }
    }

    /// An access to a byte: the one that it races with.
    fn byte(&mut self, wave: usize, at: usize, touch: Touch, changed: bool, offset: u32) -> Option<Other> {
        let clock = self.clocks.get(wave)?;
        let byte = self.bytes.get_mut(at)?;
        let ordered = |past: &Past| {
            let other = usize::from(past.wave);
            past.step == 0 || other == wave || clock.steps.get(other).is_some_and(|known| past.step <= *known)
        };
        let both_atomic = |past: &Past| touch == Touch::Atomic && past.touch == Some(Touch::Atomic);
        let now = Past {
            step: clock.steps.get(wave).copied().unwrap_or(0),
            at: offset,
            wave: u8::try_from(wave).unwrap_or(u8::MAX),
            touch: Some(touch),
        };
        let mut with = None;
        let writes = touch != Touch::Read && (changed || touch == Touch::Atomic);
        if (touch == Touch::Read || writes) && !ordered(&byte.write) && !both_atomic(&byte.write) {
            with = Some(byte.write);
        }
        if writes {
            with = with.or_else(|| byte.reads.iter().find(|read| !ordered(read) && !both_atomic(read)).copied());
            *byte = Byte { write: now, reads: [Past::default(); 2] };
        } else if touch == Touch::Read {
            let [first, second] = &mut byte.reads;
            let slot = if first.wave == now.wave || ordered(first) { first } else { second };
            *slot = now;
        }
        with.map(|past| Other {
            offset: past.at,
            group: None,
            launch: None,
            wave: past.wave.into(),
            touch: past.touch.unwrap_or(Touch::Write),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn race() -> Race {
        Race::new(16, 2, Family::default())
    }

    fn both(race: &mut Race) {
        (0..2).for_each(|wave| race.comes(wave, false));
        (0..2).for_each(|wave| race.resumes(wave));
    }

    #[test]
    fn barriers_make_an_order() {
        let mut race = race();
        assert!(race.byte(0, 4, Touch::Write, true, 8).is_none());
        assert!(race.byte(1, 5, Touch::Read, false, 8).is_none(), "another byte");
        let other = race.byte(1, 4, Touch::Read, false, 16).expect("a race");
        assert_eq!((other.offset, other.wave, other.touch), (8, 0, Touch::Write));
        for round in 0..5 {
            both(&mut race);
            assert!(race.byte(round % 2, 4, Touch::Write, true, 8).is_none(), "{round}");
        }
    }

    #[test]
    fn a_write_after_anothers_read_races() {
        let mut race = race();
        assert!(race.byte(0, 0, Touch::Read, false, 0).is_none());
        assert!(race.byte(1, 0, Touch::Write, false, 0).is_none(), "nothing changes");
        assert!(race.byte(1, 0, Touch::Write, true, 0).is_some());
    }

    #[test]
    fn atomic_operations_make_an_order() {
        let mut race = race();
        assert!(race.byte(0, 0, Touch::Write, true, 0).is_none());
        race.meets(0, Spot::Lds(8));
        assert!(race.byte(0, 8, Touch::Atomic, true, 0).is_none());
        race.meets(1, Spot::Lds(8));
        assert!(race.byte(1, 8, Touch::Atomic, true, 0).is_none());
        assert!(race.byte(1, 0, Touch::Read, false, 0).is_none());
        assert!(race.byte(0, 0, Touch::Write, true, 0).is_some(), "the other way round there is none");
    }

    #[test]
    fn atomic_operations_allocate_nothing() {
        for (waves, room) in [(1, 0), (2, PLACES)] {
            let mut race = Race::new(64, waves, Family::default());
            let before = race.places.capacity();
            assert!(before >= room);
            (0..100).for_each(|at| race.meets(0, Spot::Lds(at)));
            assert_eq!(race.places.capacity(), before);
        }
    }

    #[test]
    fn a_wave_that_has_ended_is_no_race() {
        let mut race = race();
        assert!(race.byte(0, 0, Touch::Write, true, 0).is_none());
        race.ends(0);
        race.comes(1, false);
        race.resumes(1);
        assert!(race.byte(1, 0, Touch::Read, false, 0).is_none());
    }
}
