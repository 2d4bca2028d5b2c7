// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A work-group under way: its waves, their barriers, and a turn on a thread.
//!
//! A wave runs until it ends, waits, or its budget is used up; then the next one runs. So waves of
//! a group that wait for each other make progress. A turn ends after each wave had its budget, so
//! groups that wait for each other make progress, too. Between two runs the thread leaves the gate.
//!
//! A wave that had to wait for memory completes that access and then stops for its turn. The others
//! run not much further ([`SHORT`]). So waves that traverse the same memory stay together, and each
//! restored page serves all of them before its eviction. Otherwise, with less memory than the
//! kernel touches, each wave would fault all of it in for itself.
//!
//! After a barrier the waves run interleaved for a while, a few instructions each in turn, later
//! more. Hardware does so all the time, and some programs depend on it. In rocSOLVER's inverse
//! iteration and its Jacobi method all waves read LDS after a barrier. The first writes there again
//! without another barrier, but only after a round trip to memory, or some hundred instructions
//! later. Waves whose code up to the next barriers does not show their order
//! ([`Section::shows_order`]) run there one after the other: each enters the engine once.
//!
//! A [`Schedule`](super::Schedule) of random order has an order of its own for each round, and lets
//! a wave run 1 to 512 instructions at a time.

use super::schedule::{Choices, Order};
use super::section::Section;
use super::spare;
use crate::exit::{Exit, Refusal, Stop};
use crate::group::{Group, Place};
use crate::wave::Wave;
use crate::world::World;

/// What runs waves. One per thread.
pub trait Engine {
    /// Runs `wave` for about `budget` instructions, within the gate.
    fn run<W: World>(&mut self, wave: &mut Wave, group: &mut Group, world: &mut W, budget: u32) -> Exit;

    /// The accesses that `wave` may make before its next barrier. The gate is open.
    fn section<W: World>(&mut self, wave: &Wave, world: &mut W) -> Section;

    /// Decodes what the last run asked for ([`Exit::Decode`]), outside of the gate.
    fn decode(&mut self) {}
}

/// What a wave did that ends its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Something that is not executed.
    Refused(Refusal),
    /// `s_trap` with this number.
    Trap(u8),
    /// The world said stop; it knows why.
    World,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// All waves have ended.
    Done,
    /// There is more to do. Waiting: no wave did anything but sleep, for something outside of the
    /// group.
    More {
        /// Only sleeping.
        waiting: bool,
    },
    /// The launch cannot go on.
    Stop {
        cause: Cause,
        /// Index of the wave in the group.
        wave: u16,
        /// Its program counter.
        pc: u64,
    },
}

/// Barriers, misses and interrupts of a turn, and stretches.
const ROUNDS: u32 = 4096;
/// What is left of a wave's budget after a miss: enough for the access.
const AFTER_MISS: u32 = 1;
/// Budget of waves while others wait for memory.
pub(super) const SHORT: u32 = 256;
/// So often the waves go side by side after a barrier: about a thousand instructions.
const SIDE_BY_SIDE: u32 = 20;
/// In another than the usual order: powers of two of a wave's most instructions in a turn, and at
/// a time.
const LONGEST_TURN: u32 = 14;
const LONGEST_STRETCH: u32 = 9;
/// Debugger's breakpoint without a debugger: nothing.
const DEBUGTRAP: u8 = 3;
/// Valid bits of an event's id in M0.
const EVENT: u32 = 0x7f_ffff;

/// Whether the gate is open.
struct Gate(bool);

impl Gate {
    /// Opens it, unless it is open and nobody wants it.
    fn enter<W: World>(&mut self, world: &mut W) -> Result<(), Stop> {
        if self.0 && world.wanted() {
            self.leave(world);
        }
        if !self.0 {
            world.enter()?;
            self.0 = true;
        }
        Ok(())
    }

    fn leave<W: World>(&mut self, world: &mut W) {
        if std::mem::take(&mut self.0) {
            world.leave();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Barrier,
    Ended,
}

/// A wave's last sleep: where it was, after how many instructions since the one before, and how
/// many it has executed since.
#[derive(Clone, Copy, Debug, Default)]
struct Doze {
    last: Option<(u64, u64)>,
    since: u64,
}

impl Doze {
    /// The wave sleeps again. Whether it only waits: it went through the same loop as the time
    /// before, as far as its length tells. A wave that left its loop has done something that others
    /// may wait for, as has one that wrote.
    fn again(&mut self, pc: u64) -> bool {
        let now = (pc, std::mem::take(&mut self.since));
        self.last.replace(now).is_none_or(|last| last == now)
    }
}

/// How a wave gets on.
#[derive(Clone, Copy, Debug)]
struct Progress {
    state: State,
    doze: Doze,
    /// Instructions that it may execute in this turn.
    budget: u32,
}

impl Progress {
    /// Of a wave that begins.
    const NEW: Progress = Progress { state: State::Ready, doze: Doze { last: None, since: 0 }, budget: 0 };
}

/// A work-group under way.
#[derive(Debug)]
pub struct Workgroup {
    /// Its index in each dimension.
    pub id: [u32; 3],
    group: Group,
    waves: Vec<Wave>,
    progress: Vec<Progress>,
    /// Waves that the group before this one had, and this one has not.
    rest: Vec<Wave>,
    slots: Vec<u32>,
    /// A wave had to wait for memory in the last turn.
    missed: bool,
    /// How often the waves have gone side by side since a barrier.
    side_by_side: u32,
    /// What chooses the next wave and how far it gets, if not the usual order does.
    choices: Option<Choices>,
}

impl Workgroup {
    pub(super) fn new(id: [u32; 3], group: Group, waves: Vec<Wave>, slots: Vec<u32>) -> Workgroup {
        let progress = vec![Progress::NEW; waves.len()];
        let (rest, missed, side_by_side) = (Vec::new(), false, SIDE_BY_SIDE);
        Workgroup { id, group, waves, progress, rest, slots, missed, side_by_side, choices: None }
    }

    /// Makes room for [`Workgroup::restart`] with fewer waves.
    pub(super) fn may_restart(&mut self) {
        self.rest.reserve(self.waves.len());
    }

    /// This group, which has ended, becomes another one with so many waves: not more than there
    /// were. `begin` makes each one's state. Old slots are exchanged for the new ones.
    pub(super) fn restart(
        &mut self,
        id: [u32; 3],
        place: Place,
        (slots, waves): (&mut Vec<u32>, usize),
        mut begin: impl FnMut(usize, &mut Wave, u32),
    ) {
        while self.waves.len() > waves {
            self.rest.extend(self.waves.pop());
        }
        while self.waves.len() < waves && !self.rest.is_empty() {
            self.waves.extend(self.rest.pop());
        }
        std::mem::swap(&mut self.slots, slots);
        for (index, wave) in self.waves.iter_mut().enumerate() {
            begin(index, wave, self.slots.get(index).copied().unwrap_or(0));
        }
        self.progress.clear();
        self.progress.resize(self.waves.len(), Progress::NEW);
        self.group.lds.fill(0);
        self.group.place = place;
        (self.id, self.missed, self.side_by_side) = (id, false, SIDE_BY_SIDE);
    }

    /// Its waves run in an order that these choose.
    pub(super) fn choose(&mut self, choices: Option<Choices>) {
        self.choices = choices;
    }

    /// Its waves.
    pub fn waves(&self) -> &[Wave] {
        &self.waves
    }

    /// Whether a wave had to wait for memory in the last turn.
    pub(super) fn has_missed(&self) -> bool {
        self.missed
    }

    /// The scratch slots that it has occupied.
    pub(super) fn take_slots(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.slots)
    }

    /// Runs each wave for up to `budget` instructions at a time, until all have ended or had
    /// theirs.
    pub fn run<E: Engine, W: World>(&mut self, engine: &mut E, world: &mut W, budget: u32) -> Turn {
        let mut gate = Gate(false);
        let turn = self.turn(engine, world, budget, &mut gate);
        gate.leave(world);
        turn
    }

    /// Runs groups one after the other, each the successor of the one before, as [`Workgroup::run`]
    /// does, and leaves the gate behind the last one: for groups that end soon. `next` makes this
    /// the next one, or says that there is none. How the last turn ended: all before it are done.
    pub fn run_all<E: Engine, W: World>(
        &mut self,
        mut next: impl FnMut(&mut Workgroup) -> bool,
        (engine, world): (&mut E, &mut W),
        budget: u32,
    ) -> Turn {
        let mut gate = Gate(false);
        let turn = loop {
            let turn = self.turn(engine, world, budget, &mut gate);
            if turn != Turn::Done || !next(self) {
                break turn;
            }
        };
        gate.leave(world);
        turn
    }

    /// Whether waves that leave a barrier may see how far others are, before their next one.
    fn shows_order<E: Engine, W: World>(&self, engine: &mut E, world: &mut W, gate: &Gate) -> bool {
        let ready = || self.waves.iter().zip(&self.progress).filter(|(_, progress)| progress.state == State::Ready);
        if ready().nth(1).is_none() {
            return false;
        }
        let mut before = Section::NONE;
        !gate.0
            || ready().any(|(wave, _)| {
                let section = engine.section(wave, world);
                let meets = section.meets(before);
                before = before.and(section);
                meets
            })
    }

    fn turn<E: Engine, W: World>(&mut self, engine: &mut E, world: &mut W, budget: u32, gate: &mut Gate) -> Turn {
        let budget = self.choices.as_mut().map_or(budget, |choices| budget.min(choices.power(LONGEST_TURN)));
        // Waves that have used up their budget, or sleep, do not run again in this turn.
        self.progress.iter_mut().for_each(|progress| progress.budget = budget);
        let mut worked = false;
        self.missed = false;
        for _ in 0..ROUNDS {
            let mut ran = false;
            // An engine runs whole blocks, so that the first ones are longer than that: to a branch
            // or a wait for memory.
            let is_beside = self.side_by_side < SIDE_BY_SIDE
                && self.progress.iter().filter(|progress| progress.state != State::Ended).count() > 1;
            let stretch = if is_beside { 1 << (self.side_by_side / 2) } else { u32::MAX };
            self.side_by_side = SIDE_BY_SIDE.min(self.side_by_side + 1);
            let count = self.waves.len();
            let order = self.choices.as_mut().map_or(Order::USUAL, |choices| Order::chosen(choices, count));
            for place in 0..count {
                let at = order.at(place, count);
                let (Some(wave), Some(progress)) = (self.waves.get_mut(at), self.progress.get_mut(at)) else {
                    continue;
                };
                let Progress { state, doze, budget } = progress;
                if *state != State::Ready || *budget == 0 {
                    continue;
                }
                let stretch = self.choices.as_mut().map_or(stretch, |choices| choices.power(LONGEST_STRETCH));
                ran = true;
                let stop = |cause, wave: &Wave| Turn::Stop { cause, wave: wave.index, pc: wave.pc };
                if self.missed {
                    *budget = SHORT.min(*budget);
                }
                let stretch = stretch.min(*budget);
                let before = world.executed();
                let mut left = stretch;
                let exit = loop {
                    if gate.enter(world).is_err() {
                        return stop(Cause::World, wave);
                    }
                    let group = &mut self.group;
                    match engine.run(wave, group, world, left) {
                        Exit::Decode { done } => {
                            gate.leave(world);
                            engine.decode();
                            left = left.saturating_sub(done).max(1);
                        }
                        exit => break exit,
                    }
                };
                doze.since += world.executed().saturating_sub(before);
                let written = world.has_written();
                worked |= exit != Exit::Sleep || !doze.again(wave.pc) || written;
                let goes_on = exit == Exit::Yield && stretch < *budget;
                if !goes_on && !matches!(exit, Exit::Barrier | Exit::End) {
                    gate.leave(world);
                }
                match exit {
                    Exit::Yield | Exit::Decode { .. } => *budget -= stretch,
                    Exit::Sleep => *budget = 0,
                    Exit::Barrier => *state = State::Barrier,
                    Exit::End => *state = State::Ended,
                    Exit::Interrupt(event) => world.interrupt(event & EVENT),
                    Exit::Trap(DEBUGTRAP) => {}
                    Exit::Trap(number) => return stop(Cause::Trap(number), wave),
                    Exit::Refused(refusal) => return stop(Cause::Refused(refusal), wave),
                    Exit::Miss(miss) => {
                        if world.settle(&miss).is_err() {
                            return stop(Cause::World, wave);
                        }
                        *budget = AFTER_MISS;
                        self.missed = true;
                    }
                }
            }
            // A wave that has ended is no longer waited for.
            let any = |progress: &[Progress], state| progress.iter().any(|progress| progress.state == state);
            if !any(&self.progress, State::Ready) {
                if !any(&self.progress, State::Barrier) {
                    return Turn::Done;
                }
                for progress in self.progress.iter_mut().filter(|progress| progress.state == State::Barrier) {
                    progress.state = State::Ready;
                }
                self.side_by_side = if self.shows_order(engine, world, gate) { 0 } else { SIDE_BY_SIDE };
            } else if !ran {
                return Turn::More { waiting: !worked };
            }
        }
        Turn::More { waiting: false }
    }
}

impl Drop for Workgroup {
    fn drop(&mut self) {
        for wave in self.waves.iter_mut().chain(&mut self.rest) {
            spare::keep(std::mem::take(&mut wave.rows));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::grid::tests::launch;
    use super::*;
    use crate::exit::Miss;
    use crate::world::{Access, Span};
    use vkfd_isa::Target;

    /// An engine that asks a function what a wave does next.
    pub(crate) struct Toy<F>(pub F);

    impl<F: FnMut(&mut Wave, &mut Group) -> Exit> Engine for Toy<F> {
        fn run<W: World>(&mut self, wave: &mut Wave, group: &mut Group, _: &mut W, _: u32) -> Exit {
            (self.0)(wave, group)
        }

        fn section<W: World>(&mut self, _: &Wave, _: &mut W) -> Section {
            Section::UNKNOWN
        }
    }

    /// A world without memory, which counts.
    #[derive(Default)]
    pub(crate) struct Void {
        open: bool,
        entered: u32,
        settled: u32,
        executed: u64,
        written: bool,
        events: Vec<u32>,
    }

    impl Void {
        /// How often the gate was opened.
        pub(crate) fn entered(&self) -> u32 {
            self.entered
        }
    }

    impl World for Void {
        fn enter(&mut self) -> Result<(), Stop> {
            assert!(!std::mem::replace(&mut self.open, true));
            self.entered += 1;
            Ok(())
        }
        fn leave(&mut self) {
            assert!(std::mem::take(&mut self.open));
        }
        fn wanted(&self) -> bool {
            false
        }
        fn translate(&mut self, va: u64, access: Access) -> Result<Span, Miss> {
            Err(Miss { va, access, lost: false, reason: 0 })
        }
        fn settle(&mut self, miss: &Miss) -> Result<(), Stop> {
            assert!(!self.open);
            self.settled += 1;
            if miss.va == 0 {
                Err(Stop)
            } else {
                Ok(())
            }
        }
        fn interrupt(&mut self, event: u32) {
            assert!(!self.open);
            self.events.push(event);
        }
        fn retired(&mut self, instructions: u64) {
            self.executed += instructions;
        }
        fn executed(&self) -> u64 {
            self.executed
        }
        fn wrote(&mut self) {
            self.written = true;
        }
        fn has_written(&mut self) -> bool {
            std::mem::take(&mut self.written)
        }
        fn clock(&self) -> u64 {
            0
        }

        fn cycles(&self) -> u64 {
            0
        }
    }

    /// Runs one group of four waves of 64.
    fn group(step: impl FnMut(&mut Wave, &mut Group) -> Exit) -> (Turn, Void) {
        let mut group =
            launch(Target::Gfx900, [256, 1, 1], [256, 1, 1]).workgroup(0, vec![0, 1, 2, 3], Place::default());
        let mut world = Void::default();
        (group.run(&mut Toy(step), &mut world, 1), world)
    }

    /// Needs code decoded after 30 instructions, and notes its budgets.
    #[derive(Default)]
    struct Decoder {
        decoded: bool,
        budgets: Vec<u32>,
    }

    impl Engine for Decoder {
        fn run<W: World>(&mut self, _: &mut Wave, _: &mut Group, _: &mut W, budget: u32) -> Exit {
            self.budgets.push(budget);
            if self.decoded {
                Exit::End
            } else {
                Exit::Decode { done: 30 }
            }
        }

        fn section<W: World>(&mut self, _: &Wave, _: &mut W) -> Section {
            Section::UNKNOWN
        }

        fn decode(&mut self) {
            self.decoded = true;
        }
    }

    #[test]
    fn code_is_decoded_with_the_gate_closed_and_the_budget_goes_on() {
        let mut group = launch(Target::Gfx900, [64, 1, 1], [64, 1, 1]).workgroup(0, vec![0], Place::default());
        let (mut engine, mut world) = (Decoder::default(), Void::default());
        assert_eq!(group.run(&mut engine, &mut world, 100), Turn::Done);
        assert_eq!((engine.budgets, world.entered), (vec![100, 70], 2));
    }

    #[test]
    fn a_barrier_holds_until_all_that_live_are_there() {
        let mut log = Vec::new();
        let (turn, _) = group(|wave, _| {
            wave.pc += 1;
            log.push((wave.pc - 0x100, wave.index));
            match (wave.pc - 0x100, wave.index) {
                (1, 3) => Exit::End,
                (1 | 2, _) => Exit::Barrier,
                _ => Exit::End,
            }
        });
        assert_eq!(turn, Turn::Done);
        let expected = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2)];
        assert_eq!(log, expected);
    }

    #[test]
    fn a_wave_that_spins_does_not_keep_the_others() {
        let (turn, _) = group(|wave, _| if wave.index == 0 { Exit::Yield } else { Exit::End });
        assert_eq!(turn, Turn::More { waiting: false });
        let (turn, _) = group(|wave, _| if wave.index == 0 { Exit::Sleep } else { Exit::Barrier });
        assert_eq!(turn, Turn::More { waiting: false }, "three came to the barrier");
        let (turn, _) = group(|_, _| Exit::Sleep);
        assert_eq!(turn, Turn::More { waiting: true });
        let (turn, _) = group(|_, _| Exit::Barrier);
        assert_eq!(turn, Turn::More { waiting: false }, "barriers without end");
    }

    #[test]
    fn a_wave_that_left_its_loop_before_it_sleeps_does_not_wait() {
        let mut group = launch(Target::Gfx900, [64, 1, 1], [64, 1, 1]).workgroup(0, vec![0], Place::default());
        let mut world = Void::default();
        // Instructions of each turn: a loop, something else, the loop again.
        let waiting = [3, 3, 7, 3, 3].map(|instructions| {
            world.executed += instructions;
            let before = world.executed;
            let turn = group.run(&mut Toy(|_: &mut Wave, _: &mut _| Exit::Sleep), &mut world, 1);
            assert_eq!(world.executed, before);
            turn == Turn::More { waiting: true }
        });
        assert_eq!(waiting, [true, true, true, true, true], "what others have executed does not count");
        let mut counting = Counting([3, 3, 7, 3, 3].into_iter());
        let waiting = [(); 5].map(|()| group.run(&mut counting, &mut world, 1) == Turn::More { waiting: true });
        assert_eq!(waiting, [false, true, false, false, true]);
        // The same loop, in which it stores something.
        world.written = true;
        let mut counting = Counting([3, 3].into_iter());
        let waiting = [(); 2].map(|()| group.run(&mut counting, &mut world, 1) == Turn::More { waiting: true });
        assert_eq!(waiting, [false, true]);
    }

    /// An engine of a wave that always sleeps, after so many instructions.
    struct Counting<I>(I);

    impl<I: Iterator<Item = u64>> Engine for Counting<I> {
        fn run<W: World>(&mut self, _: &mut Wave, _: &mut Group, world: &mut W, _: u32) -> Exit {
            world.retired(self.0.next().unwrap_or(0));
            Exit::Sleep
        }

        fn section<W: World>(&mut self, _: &Wave, _: &mut W) -> Section {
            Section::UNKNOWN
        }
    }

    #[test]
    fn after_a_barrier_waves_go_side_by_side() {
        let mut log = Vec::new();
        let mut step = |wave: &mut Wave, _: &mut Group| {
            wave.pc += 1;
            log.push(wave.index);
            match wave.pc - 0x100 {
                2 => Exit::Barrier,
                5 => Exit::End,
                _ => Exit::Yield,
            }
        };
        let mut group = launch(Target::Gfx900, [128, 1, 1], [128, 1, 1]).workgroup(0, vec![0, 1], Place::default());
        let mut world = Void::default();
        let turn = |group: &mut Workgroup, step: &mut _, world: &mut _| group.run(&mut Toy(step), world, 1000);
        assert_eq!(turn(&mut group, &mut step, &mut world), Turn::More { waiting: false });
        assert_eq!(turn(&mut group, &mut step, &mut world), Turn::Done);
        // Before it each has its budget at once.
        assert_eq!(log, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn misses_are_settled_and_interrupts_delivered_outside_of_the_gate() {
        let miss = |va| Exit::Miss(Miss { va, access: Access::Read, lost: false, reason: 0 });
        let (turn, world) = group(|wave, _| {
            wave.pc += 1;
            match wave.pc - 0x100 {
                1 => miss(4096),
                2 => Exit::Interrupt(0xff80_0007),
                3 => Exit::Trap(3),
                _ => Exit::End,
            }
        });
        assert_eq!((turn, world.settled, world.events), (Turn::Done, 4, vec![7; 4]));
        let (turn, _) = group(|wave, _| if wave.index == 2 { miss(0) } else { Exit::Sleep });
        assert_eq!(turn, Turn::Stop { cause: Cause::World, wave: 2, pc: 0x100 });
        for number in [0, 1, 2, 4] {
            let (turn, _) = group(|_, _| Exit::Trap(number));
            assert_eq!(turn, Turn::Stop { cause: Cause::Trap(number), wave: 0, pc: 0x100 });
        }
    }
}
