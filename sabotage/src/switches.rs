// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A set of switches, as a value.

use core::fmt;

#[cfg(any(debug_assertions, vkfd_sabotage))]
use crate::switch::{VALUES, WORDS};
use crate::Switch;

/// A set of switches: what stands in options. Empty, and of no size, in a release.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    #[cfg(any(debug_assertions, vkfd_sabotage))]
    pub(crate) on: [u64; WORDS],
    #[cfg(any(debug_assertions, vkfd_sabotage))]
    pub(crate) values: [u64; VALUES],
}

impl Switches {
    /// Nothing is broken.
    pub const NONE: Switches = Switches {
        #[cfg(any(debug_assertions, vkfd_sabotage))]
        on: [0; WORDS],
        #[cfg(any(debug_assertions, vkfd_sabotage))]
        values: [0; VALUES],
    };

    /// Whether a switch is on.
    #[inline]
    pub const fn has(&self, switch: Switch) -> bool {
        #[cfg(any(debug_assertions, vkfd_sabotage))]
        {
            let (word, bit) = switch.bit();
            self.on[word] & bit != 0
        }
        #[cfg(not(any(debug_assertions, vkfd_sabotage)))]
        {
            let _ = switch;
            false
        }
    }

    /// The value of a switch that is on and takes one.
    #[inline]
    pub const fn value(&self, switch: Switch) -> Option<u64> {
        #[cfg(any(debug_assertions, vkfd_sabotage))]
        if let (true, Some(slot)) = (self.has(switch), switch.slot()) {
            return Some(self.values[slot]);
        }
        let _ = switch;
        None
    }
}

#[cfg(any(debug_assertions, vkfd_sabotage))]
impl Switches {
    /// The same set with one more switch. If it takes a value, that is 0.
    #[must_use]
    pub const fn with(self, switch: Switch) -> Switches {
        self.with_value(switch, 0)
    }

    /// The same set with one more switch and its value, which a switch that takes none leaves out.
    #[must_use]
    pub const fn with_value(mut self, switch: Switch, value: u64) -> Switches {
        let (word, bit) = switch.bit();
        self.on[word] |= bit;
        if let Some(slot) = switch.slot() {
            self.values[slot] = value;
        }
        self
    }
}

impl Default for Switches {
    fn default() -> Switches {
        Switches::NONE
    }
}

#[cfg(any(debug_assertions, vkfd_sabotage))]
impl From<Switch> for Switches {
    fn from(switch: Switch) -> Switches {
        Switches::NONE.with(switch)
    }
}

/// As `parse` reads it, but for values that have names: they are numbers here.
impl fmt::Display for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(any(debug_assertions, vkfd_sabotage))]
        for (at, switch) in Switch::ALL.iter().filter(|switch| self.has(**switch)).enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match self.value(*switch) {
                Some(value) => write!(f, "{comma}{}={value}", switch.name())?,
                None => write!(f, "{comma}{}", switch.name())?,
            }
        }
        let _ = f;
        Ok(())
    }
}

impl fmt::Debug for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Switches({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn a_set_has_what_was_put_in() {
        let set = Switches::from(Switch::TlbFlush).with_value(Switch::Handler, 7).with_value(Switch::ShapeFlag, 9);
        let on = |set: &Switches| Switch::ALL.iter().filter(|switch| set.has(**switch)).count();
        assert_eq!(on(&set), 3);
        assert!(set.has(Switch::TlbFlush) && !set.has(Switch::SkipTlbFlush));
        assert_eq!(set.value(Switch::Handler), Some(7));
        assert_eq!(set.value(Switch::ShapeFlag), Some(9));
        assert_eq!(set.value(Switch::TlbFlush), None, "it takes none");
        assert_eq!(set.value(Switch::RecordValue), None, "it is off");
        assert_eq!(format!("{set}"), "driver.tlb_flush,cu.handler=7,isa.shape_flag=9");
        assert_eq!(on(&Switches::NONE), 0);
        assert_eq!(Switches::default(), Switches::NONE);
    }

    #[test]
    fn each_switch_is_one_of_its_own() {
        for switch in Switch::ALL {
            let set = Switches::from(*switch);
            assert!(Switch::ALL.iter().all(|other| set.has(*other) == (other == switch)), "{set}");
        }
    }
}
