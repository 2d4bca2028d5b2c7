// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A launch under way on any number of threads, and the choice of the next work-group.
//!
//! Groups start in the order of their numbers. A group that does not end in its turn goes to the
//! end of the resident ones. As long as there is room, another group starts before its next turn.
//! So groups that wait for groups not yet started make progress, as far as the GPU's [`Units`] have
//! room for them. All launches under way share this room ([`Residency`]). The mutex guards
//! everything that changes; a thread holds it to take a group or to give it back, never while one
//! runs.
//!
//! Another [`Schedule`] chooses the next group, and how long its turn is.
//!
//! While waves wait for memory, turns are short, so that all groups reach the same memory.
//!
//! Limits: groups beyond the resident ones start only when others end, as on hardware.

use super::grid::Launch;
use super::residency::{Part, Residency};
use super::schedule::{Choices, Schedule};
use super::units::Units;
use super::workgroup::{Workgroup, SHORT};
use crate::group::Place;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Instructions that a wave may execute before another one's turn.
const BUDGET: u32 = 20_000;
/// Of the groups that have not begun, a thread takes no more than one of so many at once.
const PART: u64 = 8;
/// Turns that are short after one in which a wave had to wait for memory: several of each resident
/// group.
const SHORT_TURNS: u32 = 4096;

/// What a thread is to do.
#[derive(Debug)]
pub enum Next {
    /// Run this.
    Run(Box<Workgroup>),
    /// Nothing now: the groups that are left run on other threads.
    Wait,
    /// Nothing any more.
    Finished,
}

/// A group that a thread has taken as another one's successor: its number and its scratch, or the
/// other one's scratch when it has begun.
#[derive(Debug)]
pub struct Taken {
    number: u64,
    slots: Vec<u32>,
}

#[derive(Debug)]
struct State {
    /// Number of the next group to start.
    next: u64,
    parked: VecDeque<Box<Workgroup>>,
    /// Groups that threads have.
    running: u64,
    /// The part of the GPU that the begun groups have taken.
    part: Part,
    /// Scratch slots that nobody has.
    slots: Vec<u32>,
    /// The last group taken was a new one.
    started: bool,
    /// Turns in a row in which groups only waited.
    waiting: u64,
    /// What chooses among groups, if not their order does.
    choices: Option<Choices>,
}

/// A launch under way.
#[derive(Debug)]
pub struct Dispatch {
    launch: Launch,
    groups: u64,
    resident: u64,
    units: Units,
    residency: Arc<Residency>,
    stopped: AtomicBool,
    /// Turns that are to be short.
    short: AtomicU32,
    state: Mutex<State>,
}

impl Dispatch {
    /// Begins a launch that was checked, on a GPU with these units, of which `residency` has what
    /// is taken.
    pub fn new(launch: Launch, units: Units, residency: &Arc<Residency>) -> Dispatch {
        let waves = u64::from(launch.group_waves().max(1));
        let program = &launch.program;
        let mut resident =
            units.resident(program.target, program.lanes, launch.group_waves(), program.vgprs, launch.lds);
        let part = Part::begin(residency, resident);
        let mut slots = Vec::new();
        if let Some(scratch) = launch.scratch {
            resident = resident.min(u64::from(scratch.waves) / waves).max(1);
            // Only as many as can ever be taken, lowest last: it is the next to be.
            let most = u64::from(scratch.waves).min(resident * waves);
            slots.extend((0..u32::try_from(most).unwrap_or(u32::MAX)).rev());
        }
        let groups = launch.groups();
        let (parked, next, running, waiting) = (VecDeque::new(), 0, 0, 0);
        let state = State { next, parked, running, part, slots, started: false, waiting, choices: None };
        let (stopped, short) = (AtomicBool::new(false), AtomicU32::new(0));
        let (residency, state) = (residency.clone(), Mutex::new(state));
        Dispatch { launch, groups, resident, units, residency, stopped, short, state }
    }

    /// Has it run in the order of a schedule for launch number `number`.
    pub fn set_order(&mut self, schedule: Schedule, number: u64) {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).choices = schedule.choices(number);
    }

    /// The launch.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a group to start and scratch for it. Whether the GPU has room is another
    /// question.
    fn may_start(&self, state: &State) -> bool {
        state.next < self.groups && state.running + (state.parked.len() as u64) < self.resident
    }

    /// Takes a group to run.
    pub fn take(&self) -> Next {
        let mut state = self.state();
        if self.is_stopped() {
            return if state.running == 0 { Next::Finished } else { Next::Wait };
        }
        // While groups wait, one that waits alternates with a new one.
        let waits = state.started && state.waiting > 0;
        let parked = state.parked.len();
        let resume = parked > 0
            && match &mut state.choices {
                None => waits,
                Some(choices) => choices.below(2) == 0,
            };
        state.started = !resume && self.may_start(&state) && state.part.take(&self.residency);
        if state.started {
            let begun = self.start(&mut state);
            drop(state);
            return Next::Run(self.make(begun));
        }
        if let State { choices: Some(choices), parked, .. } = &mut *state {
            let chosen = choices.below(parked.len());
            parked.rotate_left(chosen.min(parked.len()));
        }
        match state.parked.pop_front() {
            Some(group) => {
                state.running += 1;
                Next::Run(group)
            }
            None if state.running == 0 && state.next >= self.groups => Next::Finished,
            None => Next::Wait,
        }
    }

    /// The next group begins: its number, its scratch, and what chooses in it.
    fn start(&self, state: &mut State) -> (u64, Vec<u32>, Option<Choices>) {
        let number = state.next;
        state.next += 1;
        state.running += 1;
        let left = match self.launch.scratch {
            Some(_) => state.slots.len().saturating_sub(usize::try_from(self.launch.group_waves()).unwrap_or(0)),
            None => state.slots.len(),
        };
        (number, state.slots.split_off(left), state.choices.as_ref().map(|choices| choices.branch(number)))
    }

    /// Makes a group that begins, outside of the lock.
    fn make(&self, (number, slots, choices): (u64, Vec<u32>, Option<Choices>)) -> Box<Workgroup> {
        let mut group = self.launch.workgroup(number, slots, self.place(number));
        group.choose(choices);
        Box::new(group)
    }

    fn place(&self, number: u64) -> Place {
        let unit = u32::try_from(number % u64::from(self.units.count.max(1))).unwrap_or(0);
        self.units.place(unit)
    }

    /// Takes more groups, at most `most`, as successors of `group`, for a thread that is done
    /// with it soon. Most of those that are left stay for other threads. None are taken while
    /// groups wait for others, and if the order is not the usual one. None are taken behind a
    /// group with fewer waves than others have.
    pub fn take_more(&self, group: &mut Workgroup, most: usize) -> Vec<Taken> {
        let mut taken = Vec::with_capacity(most);
        let is_whole = group.waves().len() as u64 == u64::from(self.launch.group_waves());
        if self.launch.watch.is_some() || !is_whole {
            return taken;
        }
        group.may_restart();
        let mut state = self.state();
        if self.is_stopped() || !state.parked.is_empty() || state.waiting > 0 || state.choices.is_some() {
            return taken;
        }
        let left = (self.groups - state.next) / PART;
        for _ in 0..left.min(most as u64) {
            if !self.may_start(&state) || !state.part.take(&self.residency) {
                break;
            }
            let (number, slots, _) = self.start(&mut state);
            taken.push(Taken { number, slots });
        }
        taken
    }

    /// Begins the successor of a group that has ended. Allocates nothing.
    pub fn replace(&self, group: &mut Workgroup, taken: &mut Taken) {
        self.launch.replace(group, taken.number, &mut taken.slots, self.place(taken.number));
    }

    /// Gives back groups that have ended, in whose place others have begun.
    pub fn finish_all(&self, ended: impl Iterator<Item = Taken>) {
        let mut state = self.state();
        for taken in ended {
            state.running -= 1;
            state.waiting = 0;
            state.part.give(&self.residency);
            state.slots.extend(taken.slots);
        }
    }

    /// Gives back groups that have not begun.
    pub fn return_all(&self, left: impl Iterator<Item = Taken>) {
        for Taken { number, slots } in left {
            self.park(self.make((number, slots, None)), false);
        }
    }

    /// Instructions that a wave may execute in a turn that begins now.
    pub fn budget(&self) -> u32 {
        let short = self.short.load(Relaxed);
        // A count that two threads lower once is as good.
        self.short.store(short.saturating_sub(1), Relaxed);
        if short > 0 {
            SHORT
        } else {
            BUDGET
        }
    }

    /// Gives back a group that is to run on. Whether all groups have done nothing but wait since
    /// each last ran: time to pause.
    pub fn park(&self, group: Box<Workgroup>, waiting: bool) -> bool {
        if group.has_missed() {
            self.short.store(SHORT_TURNS, Relaxed);
        }
        let mut state = self.state();
        state.running -= 1;
        state.parked.push_back(group);
        state.waiting = if waiting { state.waiting + 1 } else { 0 };
        let begun = state.running + state.parked.len() as u64;
        let more = self.may_start(&state) && state.part.has_room(&self.residency);
        !more && state.waiting >= begun
    }

    /// Gives back a group that has ended. Whether no group is left, running or not.
    pub fn finish(&self, mut group: Box<Workgroup>) -> bool {
        let slots = group.take_slots();
        drop(group);
        let mut state = self.state();
        state.running -= 1;
        state.waiting = 0;
        state.part.give(&self.residency);
        state.slots.extend(slots);
        self.has_finished(&state)
    }

    /// Gives back a group that cannot go on, and with it the launch: no group runs any more.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.state().running -= 1;
    }

    /// Ends the launch from outside.
    pub fn cancel(&self) {
        self.stopped.store(true, SeqCst);
    }

    /// Whether the launch was ended early: groups that still run are not needed.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// How many waves the groups have that have begun and not ended.
    pub fn waves(&self) -> u64 {
        let state = self.state();
        let groups = state.running.saturating_add(state.parked.len() as u64);
        groups.saturating_mul(self.launch.group_waves().into())
    }

    /// How many groups could run now that do not: 0, 1, or more.
    pub fn idle_groups(&self) -> usize {
        let state = self.state();
        if self.is_stopped() {
            return 0;
        }
        let begun = state.running + state.parked.len() as u64;
        let room = match state.part.has_room(&self.residency) {
            true => self.resident.saturating_sub(begun).min(self.groups - state.next),
            false => 0,
        };
        state.parked.len() + usize::try_from(room).unwrap_or(usize::MAX).min(2)
    }

    /// Whether no group is left, running or not.
    pub fn is_finished(&self) -> bool {
        self.has_finished(&self.state())
    }

    fn has_finished(&self, state: &State) -> bool {
        state.running == 0 && (self.is_stopped() || state.parked.is_empty() && state.next >= self.groups)
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Registers and LDS first, then the room for them.
        state.parked.clear();
        state.part.end(&self.residency);
    }
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::launch;
    use super::super::grid::{Scratch, Sizes};
    use super::super::section::Section;
    use super::super::workgroup::tests::{Toy, Void};
    use super::super::workgroup::{Engine, Turn};
    use super::*;
    use crate::exit::{Exit, Miss, Stop};
    use crate::group::Group;
    use crate::wave::Wave;
    use crate::world::{Access, Span, World};
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::atomic::AtomicU64;
    use vkfd_isa::Target;

    /// Begins a launch on a Vega 10 that does nothing else.
    fn begin(launch: Launch) -> Dispatch {
        Dispatch::new(launch, Units::VEGA10, &Arc::default())
    }

    /// Runs all groups of a launch on `threads` threads.
    fn run(launch: Launch, threads: usize, step: impl Fn(&mut Wave) -> Exit + Sync) {
        let dispatch = begin(launch);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut engine = Toy(|wave: &mut Wave, _: &mut _| step(wave));
                    loop {
                        match dispatch.take() {
                            Next::Finished => break,
                            Next::Wait => std::thread::yield_now(),
                            Next::Run(mut group) => match group.run(&mut engine, &mut Void::default(), 1) {
                                Turn::Done => _ = dispatch.finish(group),
                                Turn::More { waiting } => {
                                    dispatch.park(group, waiting);
                                }
                                Turn::Stop { .. } => {
                                    dispatch.stop();
                                }
                            },
                        }
                    }
                });
            }
        });
        assert!(dispatch.is_finished());
    }

    /// A grid of `groups` groups of one wave.
    fn grid(groups: u32) -> Launch {
        launch(Target::Gfx900, [groups * 64, 1, 1], [64, 1, 1])
    }

    #[test]
    fn every_group_runs_once() {
        for threads in [1, 4] {
            let (sum, count) = (AtomicU64::new(0), AtomicU64::new(0));
            run(grid(1000), threads, |wave| {
                sum.fetch_add(wave.scalar[2].into(), SeqCst);
                count.fetch_add(1, SeqCst);
                Exit::End
            });
            assert_eq!((sum.into_inner(), count.into_inner()), (999 * 500, 1000));
        }
    }

    /// The waves of a launch of 8 groups of 4, in the order in which they take their three steps.
    /// The second step is a barrier.
    fn log(schedule: Schedule) -> Vec<(u32, u16)> {
        let launch = launch(Target::Gfx900, [8 * 256, 1, 1], [256, 1, 1]);
        let mut dispatch = begin(launch);
        dispatch.set_order(schedule, 1);
        let mut log = Vec::new();
        let mut engine = Toy(|wave: &mut Wave, _: &mut _| {
            wave.pc += 1;
            log.push((wave.scalar[2], wave.index));
            match wave.pc - 0x100 {
                1 => Exit::Yield,
                2 => Exit::Barrier,
                _ => Exit::End,
            }
        });
        while let Next::Run(mut group) = dispatch.take() {
            match group.run(&mut engine, &mut Void::default(), dispatch.budget()) {
                Turn::Done => _ = dispatch.finish(group),
                Turn::More { waiting } => assert!(!dispatch.park(group, waiting)),
                turn @ Turn::Stop { .. } => panic!("{turn:?}"),
            }
        }
        assert!(dispatch.is_finished());
        log
    }

    #[test]
    fn a_number_has_one_order_and_another_number_another() {
        let usual = log(Schedule::Usual);
        let mut all = usual.clone();
        all.sort_unstable();
        for seed in 0..20 {
            let one = log(Schedule::Random(seed));
            assert_eq!(one, log(Schedule::Random(seed)));
            assert_ne!(one, usual);
            assert_ne!(one, log(Schedule::Random(seed + 1)));
            // Barriers hold: all four have taken two steps before one takes a third.
            for group in 0..8 {
                let steps: Vec<_> = one.iter().filter(|(of, _)| *of == group).map(|(_, wave)| *wave).collect();
                assert!((0..4).all(|wave| steps[..8].iter().filter(|step| **step == wave).count() == 2), "{steps:?}");
            }
            let mut same = one;
            same.sort_unstable();
            assert_eq!(same, all, "each wave takes each step once");
        }
    }

    #[test]
    fn a_thread_takes_a_part_of_the_groups_that_are_left_and_none_while_others_wait() {
        let mut launch = grid(80);
        launch.scratch = None;
        let dispatch = begin(launch);
        let Next::Run(mut group) = dispatch.take() else { panic!() };
        let mut taken = dispatch.take_more(&mut group, 100);
        assert_eq!(taken.len(), 9, "an eighth of the rest");
        taken.extend(dispatch.take_more(&mut group, 3));
        // All are run within one opening of the gate; the one that cannot go on ends that.
        let (mut world, mut ids, mut begun) = (Void::default(), Vec::new(), 0);
        let mut engine = Toy(|wave: &mut Wave, _: &mut _| {
            ids.push(wave.scalar[2]);
            match wave.scalar[2] {
                11 => Exit::Trap(2),
                _ => Exit::End,
            }
        });
        let next = |group: &mut Workgroup| {
            let Some(taken) = taken.get_mut(begun) else { return false };
            begun += 1;
            dispatch.replace(group, taken);
            true
        };
        let turn = group.run_all(next, (&mut engine, &mut world), 1);
        assert!(matches!(turn, Turn::Stop { .. }), "{turn:?}");
        assert_eq!((world.entered(), begun, group.id), (1, 11, [11, 0, 0]));
        assert_eq!(ids, (0..12).collect::<Vec<_>>());
        let left = taken.split_off(begun);
        assert_eq!(left.len(), 1);
        dispatch.finish_all(taken.into_iter());
        dispatch.return_all(left.into_iter());
        let Next::Run(mut other) = dispatch.take() else { panic!() };
        assert!(dispatch.take_more(&mut other, 8).is_empty(), "one waits");
    }

    #[test]
    fn groups_that_wait_for_later_ones_get_on_in_any_order() {
        for seed in 0..20 {
            let arrived = std::cell::Cell::new(0);
            let mut launch = grid(50);
            launch.scratch = None;
            let mut dispatch = begin(launch);
            dispatch.set_order(Schedule::Random(seed), 0);
            let mut engine = Toy(|wave: &mut Wave, _: &mut _| {
                wave.pc += 1;
                arrived.set(arrived.get() + u32::from(wave.pc == 0x101));
                if arrived.get() == 50 {
                    Exit::End
                } else {
                    Exit::Yield
                }
            });
            while let Next::Run(mut group) = dispatch.take() {
                match group.run(&mut engine, &mut Void::default(), 1) {
                    Turn::Done => _ = dispatch.finish(group),
                    _ => drop(dispatch.park(group, false)),
                }
            }
            assert!(dispatch.is_finished());
        }
    }

    #[test]
    fn groups_that_wait_for_later_ones_get_on() {
        for (threads, exit) in [(1, Exit::Sleep), (1, Exit::Yield), (3, Exit::Sleep), (3, Exit::Yield)] {
            let arrived = AtomicU64::new(0);
            let mut launch = grid(500);
            launch.scratch = Some(Scratch { base: 0, wave_bytes: 1024, waves: 2560 });
            run(launch, threads, |wave| {
                wave.pc += 1;
                if wave.pc == 0x101 {
                    arrived.fetch_add(1, SeqCst);
                }
                if arrived.load(SeqCst) == 500 {
                    Exit::End
                } else {
                    exit
                }
            });
        }
    }

    #[test]
    fn waves_that_run_side_by_side_have_scratch_of_their_own() {
        let taken: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        let mut launch = launch(Target::Gfx900, [128 * 300, 1, 1], [128, 1, 1]);
        launch.scratch = Some(Scratch { base: 0, wave_bytes: 64, waves: 7 });
        run(launch, 4, |wave| {
            wave.pc += 1;
            let slot = &taken[usize::try_from(wave.scalar[6] / 64).unwrap()];
            match wave.pc - 0x100 {
                1 => {
                    assert_eq!(slot.fetch_add(1, SeqCst), 0, "two waves have it");
                    Exit::Yield
                }
                2 => Exit::Barrier,
                _ => {
                    slot.fetch_sub(1, SeqCst);
                    Exit::End
                }
            }
        });
    }

    /// Memory that holds some blocks of pages at a time, and the engine of waves that go through
    /// all pages.
    #[derive(Clone)]
    struct Pages(Rc<RefCell<VecDeque<u64>>>);

    impl Pages {
        const ALL: u64 = 8192;
        const BLOCK: u64 = 512;
        const HELD: usize = 2;
    }

    impl Engine for Pages {
        fn run<W: World>(&mut self, wave: &mut Wave, _: &mut Group, _: &mut W, budget: u32) -> Exit {
            for _ in 0..budget {
                let page = wave.pc - 0x100;
                if page == Pages::ALL {
                    return Exit::End;
                }
                if !self.0.borrow().contains(&(page / Pages::BLOCK)) {
                    return Exit::Miss(Miss { va: page, access: Access::Read, lost: false, reason: 0 });
                }
                wave.pc += 1;
            }
            Exit::Yield
        }

        fn section<W: World>(&mut self, _: &Wave, _: &mut W) -> Section {
            Section::UNKNOWN
        }
    }

    /// Brings blocks, and counts.
    struct Swap(Pages, u64);

    impl World for Swap {
        fn enter(&mut self) -> Result<(), Stop> {
            Ok(())
        }
        fn leave(&mut self) {}
        fn wanted(&self) -> bool {
            false
        }
        fn translate(&mut self, va: u64, access: Access) -> Result<Span, Miss> {
            Err(Miss { va, access, lost: false, reason: 0 })
        }
        fn settle(&mut self, miss: &Miss) -> Result<(), Stop> {
            let mut blocks = self.0 .0.borrow_mut();
            if blocks.len() == Pages::HELD {
                blocks.pop_front();
            }
            blocks.push_back(miss.va / Pages::BLOCK);
            self.1 += 1;
            Ok(())
        }
        fn interrupt(&mut self, _: u32) {}
        fn clock(&self) -> u64 {
            0
        }

        fn cycles(&self) -> u64 {
            0
        }
    }

    #[test]
    fn waves_that_go_through_memory_that_does_not_fit_go_together() {
        let dispatch = begin(launch(Target::Gfx900, [256 * 8, 1, 1], [256, 1, 1]));
        let mut pages = Pages(Rc::default());
        let mut swap = Swap(pages.clone(), 0);
        while let Next::Run(mut group) = dispatch.take() {
            match group.run(&mut pages, &mut swap, dispatch.budget()) {
                Turn::Done => _ = dispatch.finish(group),
                Turn::More { waiting } => assert!(!dispatch.park(group, waiting)),
                turn @ Turn::Stop { .. } => panic!("{turn:?}"),
            }
        }
        assert!(dispatch.is_finished());
        // Each of the 32 waves by itself would bring all of them.
        let blocks = Pages::ALL / Pages::BLOCK;
        assert!((blocks..2 * blocks).contains(&swap.1), "{} of {blocks} blocks were brought", swap.1);
    }

    #[test]
    fn a_launch_that_stopped_starts_nothing_more() {
        let started = AtomicU64::new(0);
        run(grid(1000), 2, |_| if started.fetch_add(1, SeqCst) == 10 { Exit::Trap(2) } else { Exit::End });
        assert!(started.into_inner() < 20);
    }

    /// A launch of one-wave groups that wait for ever, with so many registers.
    fn waiting(vgprs: u16, residency: &Arc<Residency>) -> (Dispatch, u64) {
        let mut launch = grid(100_000);
        launch.program.vgprs = vgprs;
        launch.scratch = None;
        let dispatch = Dispatch::new(launch, Units::VEGA10, residency);
        let mut groups = 0;
        for _ in 0..10_000 {
            let Next::Run(group) = dispatch.take() else { panic!("there is always one to run") };
            if group.waves()[0].rows[0].0[1] == 1 {
                groups += 1;
            }
            let mut group = group;
            let turn = group.run(
                &mut Toy(|wave: &mut Wave, _: &mut _| {
                    wave.rows[0].0[1] = 0;
                    Exit::Sleep
                }),
                &mut Void::default(),
                1,
            );
            assert_eq!(turn, Turn::More { waiting: true });
            dispatch.park(group, true);
        }
        (dispatch, groups)
    }

    #[test]
    fn waiting_waves_are_as_many_as_the_gpu_has_registers_for() {
        let shared = Arc::default();
        let (first, groups) = waiting(256, &shared);
        assert_eq!(groups, 256);
        // Others have a group each while it has all.
        let others: Vec<_> = (0..3).map(|_| waiting(256, &shared)).collect();
        assert_eq!(others.iter().map(|(_, groups)| *groups).collect::<Vec<_>>(), [1; 3]);
        drop(first);
        assert!(shared.taken() < 0.02, "{}", shared.taken());
        // Each with a GPU of its own has as many.
        let (_alone, groups) = waiting(256, &Arc::default());
        assert_eq!(groups, 256);
        drop(others);
        assert!(shared.taken() == 0.0);
    }

    #[test]
    fn a_grid_of_any_size_begins() {
        let mut huge = grid(1);
        huge.sizes = Sizes::new(3, [u32::MAX; 3], [1; 3]).unwrap();
        assert_eq!(huge.groups(), u64::MAX, "more than can be counted");
        let dispatch = begin(huge);
        assert!(matches!(dispatch.take(), Next::Run(_)));
        dispatch.cancel();
        assert!(matches!(dispatch.take(), Next::Wait));
        dispatch.stop();
        assert!(matches!(dispatch.take(), Next::Finished));
    }
}
