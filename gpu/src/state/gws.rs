// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Global wave sync resources of an address space: barriers between work-groups.
//!
//! As in AMD's description of `ds_gws_barrier`: a wave that arrives at a counter of zero sets it to
//! its own value, and releases all waiting waves. Other waves count down. The mutex guards the
//! resources and is held for a few instructions.

use crate::base::lock::lock;
use std::sync::Mutex;

/// Resources that there are.
const RESOURCES: usize = 64;

#[derive(Clone, Copy, Default)]
struct Resource {
    counter: u32,
    /// How often all have come.
    phase: u64,
}

/// The resources of an address space.
pub(crate) struct Gws(Mutex<[Resource; RESOURCES]>);

impl Gws {
    pub(crate) fn new() -> Gws {
        Gws(Mutex::new([Resource::default(); RESOURCES]))
    }

    fn with<R>(&self, resource: u32, f: impl FnOnce(&mut Resource) -> R) -> Option<R> {
        lock(&self.0).get_mut(usize::try_from(resource).ok()?).map(f)
    }

    /// The next `value` that arrive wait for the one after them.
    pub(crate) fn init(&self, resource: u32, value: u32) {
        self.with(resource, |resource| resource.counter = value);
    }

    /// Arrives. 0 if all have come, else what to wait for.
    pub(crate) fn arrive(&self, resource: u32, value: u32) -> u64 {
        let arrived = self.with(resource, |resource| match resource.counter.checked_sub(1) {
            Some(left) => {
                resource.counter = left;
                resource.phase + 1
            }
            None => {
                (resource.counter, resource.phase) = (value, resource.phase + 1);
                0
            }
        });
        arrived.unwrap_or(0)
    }

    /// Whether what `ticket` waits for has come.
    pub(crate) fn passed(&self, resource: u32, ticket: u64) -> bool {
        self.with(resource, |resource| resource.phase >= ticket).unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lets_all_go_and_the_next_round_begins() {
        let gws = Gws::new();
        gws.init(3, 2);
        for round in 0..3 {
            let tickets = [gws.arrive(3, 2), gws.arrive(3, 2)];
            assert!(tickets.iter().all(|&ticket| ticket == round + 1 && !gws.passed(3, ticket)));
            assert_eq!(gws.arrive(3, 2), 0);
            assert!(tickets.iter().all(|&ticket| gws.passed(3, ticket)));
        }
        assert_eq!(gws.arrive(64, 9), 0, "there is none");
    }
}
