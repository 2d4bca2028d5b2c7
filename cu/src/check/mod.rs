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
//! | `ledger` | allocations, live and freed, and the findings; shared by all threads |
//! | `memory` | bounds of allocations, of LDS and of scratch; freed memory |
//! | `race` | accesses to LDS by waves of a group, ordered by barriers and atomic operations |
//! | `init` | bits that nothing wrote, in registers, LDS, scratch and memory |
//! | `note` | what was found within the gate, until it becomes a finding outside |
//!
//! Without a watch nothing of this runs, and the fast engine has no branch for it.
//!
//! Nothing is allocated within the gate. The state of a group is made with the group. What a check
//! finds is noted in a fixed table, and the engine leaves the gate ([`Exit::Decode`]) to make a
//! finding of it. A finding that an old copy of the allocations suggests is looked at again there.
//!
//! Limits: order between lanes of one wave is not checked, nor races in global memory.
//! Allocations that adjoin each other hide an overrun from one into the other.
//!
//! [`Exit::Decode`]: crate::Exit::Decode

mod engine;
mod init;
mod ledger;
mod memory;
mod note;
mod race;

pub use engine::Engine;
pub use init::Bits;
pub use ledger::{Block, Ledger};
pub use note::rules;

use crate::launch::{Launch, Watcher};
use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use vkfd_findings::{Check, UnknownCheck};

/// Which checks are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    pub memory: bool,
    pub init: bool,
    pub race: bool,
}

impl Checks {
    /// All that exist at run time.
    pub const ALL: Checks = Checks { memory: true, init: true, race: true };

    /// Whether one of them is on.
    #[must_use]
    pub const fn any(self) -> bool {
        self.memory || self.init || self.race
    }

    fn names(self) -> impl Iterator<Item = Check> {
        [(self.memory, Check::Memory), (self.init, Check::Init), (self.race, Check::Race)]
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

/// No such list of checks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChecks {
    #[error(transparent)]
    Unknown(#[from] UnknownCheck),
    /// One that exists only over code objects.
    #[error("{0} is a check of code objects: `vkfd lint`")]
    Static(Check),
}

impl FromStr for Checks {
    type Err = BadChecks;

    /// Names divided by commas, or `all`.
    fn from_str(text: &str) -> Result<Checks, BadChecks> {
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
                other => return Err(BadChecks::Static(other)),
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
}

impl Watch {
    /// Whether it is one of a runtime's own kernels, which move data for the host.
    fn moves_only(&self) -> bool {
        self.kernel.starts_with("__amd_rocclr_")
    }
}

impl Watcher for Watch {
    fn begin(self: Arc<Self>, launch: &Launch, id: [u32; 3], waves: u32, slots: &[u32]) -> Box<dyn Any + Send + Sync> {
        Box::new(State::new(&self, launch, id, waves, slots))
    }
}

/// What the checks know of a work-group under way.
#[derive(Clone, Debug)]
pub struct State {
    watch: Arc<Watch>,
    /// The work-group.
    id: [u32; 3],
    /// The kernel's first instruction.
    entry: u64,
    scratch: Option<memory::Scratch>,
    race: Option<race::Race>,
    init: Option<init::Init>,
}

impl State {
    fn new(watch: &Arc<Watch>, launch: &Launch, id: [u32; 3], waves: u32, slots: &[u32]) -> State {
        let checks = watch.checks;
        let lds = usize::try_from(launch.lds).unwrap_or(0);
        let scratch = launch.scratch.map(|scratch| memory::Scratch::new(scratch, slots, watch.private));
        State {
            watch: watch.clone(),
            id,
            entry: launch.program.entry,
            race: (checks.race && waves > 1 && lds > 0).then(|| race::Race::new(lds, waves)),
            init: checks.init.then(|| init::Init::new(launch, waves, lds, scratch.as_ref())),
            scratch,
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
        assert_eq!("waits".parse::<Checks>(), Err(BadChecks::Static(Check::Waits)));
        assert!(matches!("".parse::<Checks>(), Err(BadChecks::Unknown(_))));
    }
}
