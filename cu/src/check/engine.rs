// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The loop around the reference engine.
//!
//! Pieces of code that only compute run on the fast engine, if no check has anything to look at.
//! That is: no register that they read has unwritten bits, and none that they use is late.

use super::access::{self, Reaches};
use super::codes::Codes;
use super::init;
use super::ledger::Ledger;
use super::map::Map;
use super::memory;
use super::note::Notes;
use super::race::{invalidates, invalidates_scalars, waits, writes_back, Loads, Race};
use super::seen::Seen;
use super::{State, Watch};
use crate::exit::{Exit, Miss, Stop};
use crate::fast;
use crate::few::Few;
use crate::group::Group;
use crate::launch;
use crate::reference::{self, execute};
use crate::wave::Wave;
use crate::world::{Access, Detour, Reach, Span, World};
use std::sync::Arc;
use vkfd_isa::{Format, Inst, Op, Target, MAX_WORDS};
use vkfd_sabotage::{process, Switch};

/// Instructions between two questions whether the gate is wanted.
const BATCH: u32 = 64;

/// The reference engine with checks, one per thread.
pub struct Engine {
    ledger: Arc<Ledger>,
    map: Arc<Map>,
    notes: Notes,
    reaches: Box<Reaches>,
    init: Box<init::Work>,
    loads: Box<Loads>,
    codes: Codes,
    /// Runs what only computes.
    fast: Box<fast::Engine>,
    /// Pages for the history of memory run low.
    low: bool,
    /// The launch whose notes these are.
    watch: Option<Arc<Watch>>,
}

impl Engine {
    /// An engine for a target's code that finds allocations in a ledger, and reports there.
    #[must_use]
    pub fn new(target: Target, ledger: &Arc<Ledger>) -> Engine {
        let mut fast = Box::new(fast::Engine::new(target));
        // It runs inside of accesses, where nothing is allocated.
        fast.defer_decoding();
        fast.only_compute();
        Engine {
            ledger: ledger.clone(),
            map: ledger.map(),
            notes: Notes::new(),
            reaches: Box::new(Few::new()),
            init: Box::default(),
            loads: Box::new(Loads::new()),
            codes: Codes::new(),
            fast,
            low: false,
            watch: None,
        }
    }

    /// A launch begins: its code may have changed.
    pub fn invalidate(&mut self) {
        self.fast.invalidate();
    }

    /// Renews the copy of the ledger. Outside of the gate.
    fn renew(&mut self) {
        if self.ledger.is_newer_than(&self.map) {
            self.map = self.ledger.map();
        }
    }

    /// Reports what has been found since the last time. A thread calls it after each turn of a
    /// work-group, outside of the gate.
    pub fn flush(&mut self) {
        self.renew();
        if let Some(watch) = self.watch.take() {
            let others = |wave| watch.ledger.kernel_of(wave);
            let launch = watch.launch(&others);
            self.notes.tell(&launch, &self.map, true, |finding, count| watch.ledger.report(finding, count));
        }
        self.loads.clear();
    }

    fn checked<W: World>(
        &mut self,
        wave: &mut Wave,
        group: &mut Group,
        world: &mut W,
        budget: u32,
        state: &mut State,
    ) -> Exit {
        self.watch.get_or_insert_with(|| state.watch.clone());
        if let Some(race) = &mut state.race {
            race.resumes(wave.index);
        }
        let (mut done, mut asks) = (0, 0);
        let exit = loop {
            if self.notes.is_fresh() || self.low || self.ledger.is_newer_than(&self.map) {
                break Exit::Decode { done };
            }
            if done >= budget {
                break Exit::Yield;
            }
            if done >= asks {
                asks = done + BATCH;
                if world.wanted() {
                    break Exit::Yield;
                }
            }
            let settled = state.race.as_ref().is_none_or(|race| race.is_settled(wave.index));
            let computed = if settled { self.compute(wave, group, world, state) } else { Ok(0) };
            match computed {
                Ok(0) => {}
                Ok(count) => {
                    done += count;
                    continue;
                }
                Err(Exit::Decode { .. }) => break Exit::Decode { done },
                Err(exit) => break exit,
            }
            match self.move_only(wave, group, world, state) {
                None => {}
                Some(Ok(())) => {
                    done += 1;
                    continue;
                }
                Some(Err(exit)) => break exit,
            }
            let fetched = match self.codes.fetch(wave, world) {
                Ok(fetched) => fetched,
                Err(exit) => break exit,
            };
            match self.step(&fetched, wave, group, world, state) {
                Ok(()) => done += 1,
                Err(exit @ (Exit::Miss(_) | Exit::Refused(_))) => break exit,
                Err(exit) => {
                    done += 1;
                    break exit;
                }
            }
        };
        world.retired(done.into());
        self.ledger.executed(done);
        exit
    }

    /// Runs a piece of code that only computes, if there is one here that no check has to look at;
    /// all of it, as the fast engine runs whole blocks. How many instructions have run.
    fn compute<W: World>(
        &mut self,
        wave: &mut Wave,
        group: &mut Group,
        world: &mut W,
        state: &mut State,
    ) -> Result<u32, Exit> {
        let Some(piece) = self.fast.piece(wave, world)? else { return Ok(0) };
        let is_late = state.waits.as_ref().is_some_and(|waits| waits.touches(wave.index, piece));
        if is_late || state.init.as_ref().is_some_and(|init| !init.allows(wave, piece)) {
            return Ok(0);
        }
        let (count, exec) = (piece.count, wave.exec());
        let written = state.init.is_some().then(|| piece.clone());
        match self.fast.run(wave, group, &mut Watching { world, reaches: None }, 1) {
            Exit::Yield => {}
            exit => return Err(exit),
        }
        if let (Some(init), Some(piece)) = (&mut state.init, written) {
            init.computed(wave, exec, &piece);
        }
        Ok(count)
    }

    /// Does a plain load or store, if it is one all of whose bytes are within an allocation or LDS,
    /// and no check but that looks at it. None: nothing was done.
    fn move_only<W: World>(
        &mut self,
        wave: &mut Wave,
        group: &mut Group,
        world: &mut W,
        state: &mut State,
    ) -> Option<Result<(), Exit>> {
        if state.init.is_some() || state.race.is_some() || state.late.is_some() {
            return None;
        }
        let fetched = self.codes.fetch(wave, world).ok()?;
        let (inst, words) = &fetched;
        let range = access::range(inst, wave)?;
        let looks = state.watch.checks.memory && !process().has(Switch::BlindMemory);
        if looks && !memory::contains(&self.map, (state.lds, state.group.scratch.as_ref()), range) {
            return None;
        }
        let (pc, exec) = (wave.pc, wave.exec());
        match self.fast.run(wave, group, &mut Watching { world: &mut *world, reaches: None }, 1) {
            Exit::Yield => {}
            // Nothing was done: the other way reports what it means.
            Exit::Decode { .. } | Exit::Miss(_) | Exit::Refused(_) => return None,
            exit => return Some(Err(exit)),
        }
        if let Some(waits) = &mut state.waits {
            let seen = Seen::of((&state.group, state.lds), wave, (pc, words), world.retries());
            waits.look(&seen, (exec, true), &mut self.codes, &mut self.notes);
        }
        Some(Ok(()))
    }

    /// What an instruction that has run does to the order of waves.
    /// `now`: the time of accesses to memory, of an instruction that may be one.
    fn orders(&self, race: &mut Race, (inst, now): (&Inst, Option<u32>), result: &Result<(), Exit>, wave: &Wave) {
        match result {
            Err(Exit::End) => race.ends(wave.index),
            Ok(()) if inst.format == Format::Sopp || inst.format == Format::Sopk => {
                race.waits(wave.index, waits(wave.target, inst));
            }
            Ok(()) if invalidates(wave.target, inst) => race.invalidates(wave.index),
            Ok(()) if invalidates_scalars(inst.op) => race.invalidates_scalars(wave.index),
            Ok(()) if writes_back(wave.target, inst) => race.writes_back(wave.index, now.unwrap_or(0)),
            // AMD's library invalidates no cache behind it on gfx9, and programs rely on that.
            Ok(()) if inst.op == Op::DsGwsBarrier => {
                race.passes_all(wave.index, self.ledger.history().lock().now());
                race.invalidates(wave.index);
                race.invalidates_scalars(wave.index);
            }
            _ => {}
        }
    }

    fn step<W: World>(
        &mut self,
        (inst, words): &(Inst, [u32; MAX_WORDS]),
        wave: &mut Wave,
        group: &mut Group,
        world: &mut W,
        state: &mut State,
    ) -> Result<(), Exit> {
        let (pc, checks) = (wave.pc, state.watch.checks);
        self.reaches.clear();
        let mut init = state.init.take();
        let mut race = state.race.take();
        let mut waits = state.waits.take();
        let mut late = state.late.take();
        let seen = Seen::of((&state.group, state.lds), wave, (pc, words), world.retries());
        let code = if late.is_some() { self.codes.code(&seen).cloned() } else { None };
        if let (Some(late), Some(code)) = (&mut late, &code) {
            late.before((inst, code), race.is_none(), wave, group, world);
        }
        let exec = wave.exec();
        if let Some(race) = &mut race {
            race.goes_on(wave.index, exec, || reads_exec(inst));
        }
        if let Some(init) = &mut init {
            init.before(&seen, inst, wave, group, &mut self.init, &mut self.notes);
        }
        // No other wave's access comes between this one and its time.
        let mut history = race.as_ref().filter(|_| shares(inst.format)).map(|_| self.ledger.history().lock());
        let fast = (&mut *self.fast, &mut *self.reaches);
        let result = plain_access(inst, wave, group, world, fast).unwrap_or_else(|| {
            let reaches = Some(&mut *self.reaches);
            execute(inst, wave, group, &mut Watching { world: &mut *world, reaches })
        });
        if checks.memory && !process().has(Switch::BlindMemory) {
            memory::look(&seen, &self.map, &self.reaches, &result, &mut self.notes);
        }
        if !matches!(result, Err(Exit::Miss(_) | Exit::Refused(_))) {
            if let Some(race) = &mut race {
                let loads = &mut *self.loads;
                if inst.format == Format::Ds || inst.format == Format::Flat {
                    race.look(&seen, world, (&group.lds, &self.reaches), loads, &mut self.notes);
                }
                if let Some(history) = &mut history {
                    history.look(race, (&seen, inst), (world, loads), &self.reaches, &mut self.notes);
                    self.low = history.is_low();
                }
                if matches!(result, Err(Exit::Barrier)) {
                    race.arrives(&seen, exec, &mut self.notes);
                } else if !self.reaches.is_empty() && inst.format != Format::Smem {
                    race.continues(&seen, exec, &mut self.notes);
                }
                let now = history.as_ref().map(|history| history.now());
                self.orders(race, (inst, now), &result, wave);
            }
            drop(history);
            if let Some(waits) = &mut waits {
                waits.look(&seen, (exec, !self.reaches.is_empty()), &mut self.codes, &mut self.notes);
            }
            if let Some(init) = &mut init {
                let work = (&mut *self.init, &*self.map, &mut self.notes);
                init.after(&seen, inst, (wave, world), &self.reaches, work);
            }
            if let (Some(late), Some(code)) = (&mut late, &code) {
                late.after(code, !self.reaches.is_empty(), wave, group, world);
            }
        }
        if inst.op == Op::SIcacheInv {
            self.fast.invalidate();
        }
        (state.init, state.race, state.waits, state.late) = (init, race, waits, late);
        result
    }
}

/// Has the fast engine do a plain load or store; none if the instruction is something else, and
/// nothing was done.
fn plain_access<W: World>(
    inst: &Inst,
    wave: &mut Wave,
    group: &mut Group,
    world: &mut W,
    (fast, reaches): (&mut fast::Engine, &mut Reaches),
) -> Option<Result<(), Exit>> {
    if !access::places(inst, wave, group, reaches) {
        return None;
    }
    match fast.run(wave, group, &mut Watching { world, reaches: None }, 1) {
        Exit::Yield => Some(Ok(())),
        // Its code was changed meanwhile.
        Exit::Decode { .. } => {
            reaches.clear();
            None
        }
        exit => Some(Err(exit)),
    }
}

/// Whether an instruction is done by lanes, as EXEC says, or begins a branch for some of them. What
/// ends a branch is neither.
fn reads_exec(inst: &Inst) -> bool {
    match inst.op {
        Op::BufferInv | Op::BufferWbl2 | Op::BufferWbinvl1 | Op::BufferWbinvl1Vol => false,
        Op::BufferGl0Inv | Op::BufferGl1Inv => false,
        _ => match inst.format {
            Format::Sop1 => inst.op.name().contains("saveexec"),
            Format::Sop2 | Format::Sopk | Format::Sopc | Format::Sopp | Format::Smem => false,
            _ => true,
        },
    }
}

/// Whether instructions of a format may access memory that waves share.
const fn shares(format: Format) -> bool {
    matches!(format, Format::Smem | Format::Flat | Format::Global | Format::Mubuf | Format::Mtbuf)
}

impl launch::Engine for Engine {
    fn run<W: World>(&mut self, wave: &mut Wave, group: &mut Group, world: &mut W, budget: u32) -> Exit {
        // Moved, not freed: an access is open.
        let watched = group.watch.0.take().map(|watched| watched.downcast::<State>());
        let Some(Ok(mut state)) = watched else { return reference::run(wave, group, world, budget) };
        let exit = self.checked(wave, group, world, budget, &mut state);
        group.watch.0 = Some(state);
        exit
    }

    // Waves stay side by side, as on hardware.
    fn section<W: World>(&mut self, _: &Wave, _: &mut W) -> launch::Section {
        launch::Section::UNKNOWN
    }

    fn decode(&mut self) {
        self.fast.decode();
        self.renew();
        if std::mem::take(&mut self.low) {
            self.ledger.history().prepare();
        }
        if let Some(watch) = &self.watch {
            let others = |wave| watch.ledger.kernel_of(wave);
            let launch = watch.launch(&others);
            self.notes.tell(&launch, &self.map, false, |finding, count| watch.ledger.report(finding, count));
        }
    }
}

/// A world that keeps what was reached. Nothing wants the gate while a piece of code or an
/// instruction runs: the loop asks. It also counts the instructions.
struct Watching<'a, W> {
    world: &'a mut W,
    reaches: Option<&'a mut Reaches>,
}

impl<W: World> World for Watching<'_, W> {
    fn reaches(&mut self, reach: Reach) {
        if let Some(reaches) = self.reaches.as_mut().filter(|reaches| reaches.len() < access::MOST) {
            reaches.push(reach);
        }
    }

    fn enter(&mut self) -> Result<(), Stop> {
        self.world.enter()
    }

    fn leave(&mut self) {
        self.world.leave();
    }

    fn wanted(&self) -> bool {
        // A run that gives way has done nothing, and would be looked at as if it had.
        process().has(Switch::HastyChecks) && self.world.wanted()
    }

    fn opening(&self) -> Option<u64> {
        self.world.opening()
    }

    fn translate(&mut self, va: u64, access: Access) -> Result<Span, Miss> {
        self.world.translate(va, access)
    }

    fn strict(&self) -> bool {
        self.world.strict()
    }

    fn is_host(&mut self, va: u64) -> bool {
        self.world.is_host(va)
    }

    fn retries(&self) -> bool {
        self.world.retries()
    }

    fn settle(&mut self, miss: &Miss) -> Result<(), Stop> {
        self.world.settle(miss)
    }

    fn interrupt(&mut self, event: u32) {
        self.world.interrupt(event);
    }

    fn clock(&self) -> u64 {
        self.world.clock()
    }

    fn cycles(&self) -> u64 {
        self.world.cycles()
    }

    fn wrote(&mut self) {
        self.world.wrote();
    }

    fn moved(&mut self, bytes: u64) {
        self.world.moved(bytes);
    }

    fn gws_init(&mut self, resource: u32, value: u32) {
        self.world.gws_init(resource, value);
    }

    fn gws_arrive(&mut self, resource: u32, value: u32) -> u64 {
        self.world.gws_arrive(resource, value)
    }

    fn gws_passed(&mut self, resource: u32, ticket: u64) -> bool {
        self.world.gws_passed(resource, ticket)
    }

    fn detour(&mut self, op: Op, why: Detour) {
        self.world.detour(op, why);
    }

    fn inexact(&mut self, op: Op) {
        self.world.inexact(op);
    }
}
