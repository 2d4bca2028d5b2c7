// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Checks: the reference engine with an eye on each access, for bugs that hardware hides.
//!
//! Mechanism: a launch with a [`Watch`] gives each work-group a [`State`]. [`Engine`] runs its
//! waves by the reference engine. The engine reports all bytes that an instruction reaches
//! ([`World::reaches`](crate::World::reaches)), and the checks look at them:
//!
//! | module | |
//! |---|---|
//! | `engine` | the loop around the reference engine |
//! | `access` | plain loads and stores, which the fast engine does |
//! | `codes` | decoded instructions |
//! | `ledger` | allocations, live and freed, and the findings; shared by all threads |
//! | `memory` | bounds of allocations, of LDS and of scratch; freed memory |
//! | `race` | accesses to LDS and memory by several waves, and what orders them |
//! | `waits` | registers that are used before their loads have arrived |
//! | `hazards` | too few wait states in the code of kernels that are launched |
//! | `late` | results of loads that arrive at the wait only, in another than the usual order |
//! | `init` | bits that nothing wrote, in registers, LDS, scratch and memory |
//! | `note` | what was found within the gate, until it becomes a finding outside |
//!
//! Without a watch nothing of this runs, and the fast engine has no branch for it.
//!
//! Nothing is allocated within the gate. The state of a group is made with the group. What a check
//! finds is noted in a fixed table, and the engine leaves the gate ([`Exit::Decode`]) to make a
//! finding of it. A finding that an old copy of the allocations suggests is looked at again there.
//!
//! Limits: order between lanes of one wave is not checked.
//! Allocations that adjoin each other hide an overrun from one into the other.
//!
//! [`Exit::Decode`]: crate::Exit::Decode

mod access;
mod bits;
mod codes;
mod engine;
mod hazards;
mod init;
mod late;
mod ledger;
mod map;
mod memory;
mod note;
mod race;
mod scratch;
mod seen;
mod waits;

pub use bits::Bits;
pub use engine::Engine;
pub use hazards::Kernel;
pub use ledger::Ledger;
pub use map::Block;

use crate::launch::{Launch, Schedule, Watcher};
use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use vkfd_findings::{Check, UnknownCheck};

/// All rules, with a sentence about each.
pub fn rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    let hazards = vkfd_lint::rules().into_iter().filter(|rule| rule.id.starts_with("hazards/"));
    note::rules().chain(hazards.map(|rule| (rule.id, rule.summary)))
}

/// Which checks are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    pub memory: bool,
    pub init: bool,
    pub race: bool,
    pub waits: bool,
    /// Kernels' code is read for hazards when they are launched first.
    pub hazards: bool,
}

impl Checks {
    /// All that exist at run time.
    pub const ALL: Checks = Checks { memory: true, init: true, race: true, waits: true, hazards: true };

    /// Whether one of them is on.
    #[must_use]
    pub const fn any(self) -> bool {
        self.memory || self.init || self.race || self.waits || self.hazards
    }

    fn names(self) -> impl Iterator<Item = Check> {
        [
            (self.memory, Check::Memory),
            (self.init, Check::Init),
            (self.race, Check::Race),
            (self.waits, Check::Waits),
            (self.hazards, Check::Hazards),
        ]
        .into_iter()
        .filter_map(|(on, check)| on.then_some(check))
    }
}

/// Their names, divided by commas.
impl fmt::Display for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, check) in self.names().enumerate() {
            write!(f, "{}{check}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Checks {
    type Err = UnknownCheck;

    /// Names divided by commas, or `all`.
    fn from_str(text: &str) -> Result<Checks, UnknownCheck> {
        let mut checks = Checks::default();
        for name in text.split(',') {
            if name == "all" {
                checks = Checks::ALL;
                continue;
            }
            match name.parse()? {
                Check::Memory => checks.memory = true,
                Check::Init => checks.init = true,
                Check::Race => checks.race = true,
                Check::Waits => checks.waits = true,
                Check::Hazards => checks.hazards = true,
            }
        }
        Ok(checks)
    }
}

/// What the work-groups of a launch are checked for.
#[derive(Debug)]
pub struct Watch {
    pub checks: Checks,
    /// Allocations and findings.
    pub ledger: Arc<Ledger>,
    /// The kernel's name.
    pub kernel: String,
    /// Where its code object lies, if that is known: program counters count from there.
    pub image: Option<u64>,
    /// Bytes of scratch that a lane asked for.
    pub private: u32,
    /// In another than the usual order, results of loads are late.
    pub schedule: Schedule,
}

impl Watch {
    /// Whether it is one of a runtime's own kernels, which move data for the host.
    fn moves_only(&self) -> bool {
        self.kernel.starts_with("__amd_rocclr_")
    }

    fn launch<'a>(&'a self, others: &'a dyn Fn(u32) -> Option<note::Kernel>) -> note::Launch<'a> {
        note::Launch { kernel: &self.kernel, image: self.image, others }
    }

    fn races(&self) -> bool {
        self.checks.race && !self.moves_only()
    }
}

/// A launch that is watched.
#[derive(Debug)]
struct Launched {
    watch: Arc<Watch>,
    /// The number of its first wave, and how many there are.
    first: u32,
    waves: u32,
    /// The number of the launch.
    number: u64,
}

/// What watches a launch.
pub fn watch(watch: &Arc<Watch>, launch: &Launch) -> Arc<dyn Watcher> {
    let waves = launch.groups().saturating_mul(launch.group_waves().into());
    let waves = u32::try_from(waves).unwrap_or(u32::MAX);
    let number = watch.ledger.launched();
    let kernel = || note::Kernel { name: watch.kernel.clone(), image: watch.image, entry: launch.program.entry };
    let first = if watch.races() { watch.ledger.begin(waves, kernel()) } else { 0 };
    Arc::new(Launched { watch: watch.clone(), first, waves, number })
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.end();
    }
}

impl Watcher for Launched {
    fn end(&self) {
        if self.watch.races() {
            self.watch.ledger.end(self.first);
        }
    }

    fn begin(self: Arc<Self>, launch: &Launch, id: [u32; 3], waves: u32, slots: &[u32]) -> Box<dyn Any + Send + Sync> {
        Box::new(State::new(&self, launch, id, waves, slots))
    }
}

/// What the checks know of a work-group under way.
#[derive(Clone, Debug)]
pub struct State {
    watch: Arc<Watch>,
    group: seen::WorkGroup,
    /// Bytes of LDS that the launch asked for; it is given more.
    lds: usize,
    race: Option<Box<race::Race>>,
    init: Option<init::Init>,
    waits: Option<waits::Waits>,
    late: Option<Box<late::Late>>,
}

impl State {
    fn new(launched: &Launched, launch: &Launch, id: [u32; 3], waves: u32, slots: &[u32]) -> State {
        let watch = &launched.watch;
        let checks = watch.checks;
        let groups = launch.sizes.groups();
        let races = watch.races() && launched.waves > 1;
        if races {
            watch.ledger.history().prepare();
        }
        let at = |axis: usize| id[axis].wrapping_sub(launch.start[axis]);
        let number = at(2).wrapping_mul(groups[1]).wrapping_add(at(1)).wrapping_mul(groups[0]).wrapping_add(at(0));
        let span = launch.group_waves();
        let family = race::Family {
            group: launched.first.wrapping_add(number.wrapping_mul(span)),
            first: launched.first,
            count: launched.waves,
            span,
        };
        let choices = watch.schedule.choices(launched.number).map(|choices| choices.branch(number.into()));
        let lds = usize::try_from(launch.lds).unwrap_or(0);
        let scratch = launch.scratch.map(|scratch| scratch::Scratch::new(scratch, slots, watch.private));
        State {
            watch: watch.clone(),
            lds,
            waits: checks.waits.then(|| waits::Waits::new(waves)),
            late: choices.map(|choices| Box::new(late::Late::new(choices, waves))),
            race: races.then(|| Box::new(race::Race::new(lds, waves, family))),
            init: checks.init.then(|| init::Init::new(launch, waves, lds, scratch.as_ref())),
            group: seen::WorkGroup {
                id,
                entry: launch.program.entry,
                start: launch.start,
                groups,
                scratch,
                moves_only: watch.moves_only(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_checks() {
        let memory = Checks { memory: true, ..Checks::default() };
        assert_eq!("memory".parse(), Ok(memory));
        assert_eq!("race,memory".parse::<Checks>().map(|checks| checks.to_string()), Ok("memory,race".into()));
        assert_eq!("all".parse(), Ok(Checks::ALL));
        assert_eq!("hazards,waits".parse::<Checks>().map(|checks| checks.to_string()), Ok("waits,hazards".into()));
        assert!("".parse::<Checks>().is_err());
    }
}
