// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A set of switches that changes while what it breaks runs.

#[cfg(any(debug_assertions, vkfd_sabotage))]
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

#[cfg(any(debug_assertions, vkfd_sabotage))]
use crate::switch::{VALUES, WORDS};
use crate::{Switch, Switches};

/// A set of switches that a test turns on and off. Empty, and of no size, in a release.
#[derive(Debug)]
pub struct LiveSwitches {
    #[cfg(any(debug_assertions, vkfd_sabotage))]
    on: [AtomicU64; WORDS],
    #[cfg(any(debug_assertions, vkfd_sabotage))]
    values: [AtomicU64; VALUES],
}

impl LiveSwitches {
    /// All are off.
    pub const fn new() -> LiveSwitches {
        LiveSwitches {
            #[cfg(any(debug_assertions, vkfd_sabotage))]
            on: [const { AtomicU64::new(0) }; WORDS],
            #[cfg(any(debug_assertions, vkfd_sabotage))]
            values: [const { AtomicU64::new(0) }; VALUES],
        }
    }

    /// Whether a switch is on.
    #[inline]
    pub fn has(&self, switch: Switch) -> bool {
        #[cfg(any(debug_assertions, vkfd_sabotage))]
        {
            let (word, bit) = switch.bit();
            self.on[word].load(SeqCst) & bit != 0
        }
        #[cfg(not(any(debug_assertions, vkfd_sabotage)))]
        {
            let _ = switch;
            false
        }
    }

    /// The value of a switch that is on and takes one.
    #[inline]
    pub fn value(&self, switch: Switch) -> Option<u64> {
        self.get().value(switch)
    }

    /// What is on now.
    #[inline]
    pub fn get(&self) -> Switches {
        #[cfg(any(debug_assertions, vkfd_sabotage))]
        return Switches {
            on: core::array::from_fn(|word| self.on.get(word).map_or(0, |bits| bits.load(SeqCst))),
            values: core::array::from_fn(|slot| self.values.get(slot).map_or(0, |value| value.load(SeqCst))),
        };
        #[cfg(not(any(debug_assertions, vkfd_sabotage)))]
        Switches::NONE
    }

    /// Turns the switches of `set` on, and all others off.
    #[inline]
    pub fn set(&self, set: Switches) {
        #[cfg(any(debug_assertions, vkfd_sabotage))]
        {
            for (value, new) in self.values.iter().zip(set.values) {
                value.store(new, SeqCst);
            }
            for (bits, new) in self.on.iter().zip(set.on) {
                bits.store(new, SeqCst);
            }
        }
        let _ = set;
    }
}

#[cfg(any(debug_assertions, vkfd_sabotage))]
impl LiveSwitches {
    /// Turns a switch on or off. If it takes a value, [`turn_on_with`](LiveSwitches::turn_on_with)
    /// turns it on.
    pub fn turn(&self, switch: Switch, on: bool) {
        let (word, bit) = switch.bit();
        match on {
            true => self.on[word].fetch_or(bit, SeqCst),
            false => self.on[word].fetch_and(!bit, SeqCst),
        };
    }

    /// Turns a switch on that takes a value.
    pub fn turn_on_with(&self, switch: Switch, value: u64) {
        if let Some(place) = switch.slot().and_then(|slot| self.values.get(slot)) {
            place.store(value, SeqCst);
        }
        self.turn(switch, true);
    }
}

static PROCESS: LiveSwitches = LiveSwitches::new();

/// The set of this process, for everything that a process has once, such as its memory and its
/// files.
pub fn process() -> &'static LiveSwitches {
    &PROCESS
}

impl Default for LiveSwitches {
    fn default() -> LiveSwitches {
        LiveSwitches::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_go_on_and_off_by_themselves() {
        let live = LiveSwitches::new();
        assert_eq!(live.get(), Switches::NONE);
        live.turn(Switch::ShortCopy, true);
        live.turn_on_with(Switch::Handler, 3);
        assert!(live.has(Switch::ShortCopy) && !live.has(Switch::ShortGrid));
        assert_eq!(live.value(Switch::Handler), Some(3));
        live.turn(Switch::Handler, false);
        assert_eq!(live.value(Switch::Handler), None);
        live.set(Switch::ShortGrid.into());
        assert!(!live.has(Switch::ShortCopy) && live.has(Switch::ShortGrid));
    }
}
