// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An address space as the driver wants it: one word, with a version.
//!
//! The driver does not send changes ("suspend") but states ("root here, suspended, version 7"). So
//! commands for one VMID may overtake each other: the device applies a state only if it is newer
//! than its own. And a new device process is brought up to date by sending it every VMID's state
//! once more, whatever other threads change meanwhile.
//!
//! | bits | |
//! | --- | --- |
//! | 0 | there is a page-table root |
//! | 1 | faults are retried |
//! | 2 | accesses are suspended |
//! | 47:12 | the root's fabric address |
//! | 63:48 | version, counts up and wraps |

use vkfd_driver::base::addr::{FabricAddr, PAGE};

const ROOT: u64 = 1 << 0;
const RETRY: u64 = 1 << 1;
const SUSPENDED: u64 = 1 << 2;
const ADDRESS: u64 = (1 << 48) - PAGE;
const VERSION_SHIFT: u32 = 48;

/// The state of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VmidState(u64);

impl VmidState {
    /// A state from its word.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The page-table root.
    pub const fn root(self) -> Option<FabricAddr> {
        if self.0 & ROOT == 0 {
            return None;
        }
        Some(FabricAddr(self.0 & ADDRESS))
    }

    /// Whether faults are retried.
    pub const fn retry(self) -> bool {
        self.0 & RETRY != 0
    }

    /// Whether accesses are suspended.
    pub const fn suspended(self) -> bool {
        self.0 & SUSPENDED != 0
    }

    /// The same with another root (page aligned, below 2^48) and retry mode.
    #[must_use]
    pub const fn with_root(self, root: Option<FabricAddr>, retry: bool) -> Self {
        let word = match root {
            Some(at) => (at.0 & ADDRESS) | ROOT,
            None => 0,
        };
        let retry = if retry { RETRY } else { 0 };
        Self((self.0 & !(ROOT | RETRY | ADDRESS)) | word | retry)
    }

    /// The same, suspended or not.
    #[must_use]
    pub const fn with_suspended(self, suspended: bool) -> Self {
        let bit = if suspended { SUSPENDED } else { 0 };
        Self((self.0 & !SUSPENDED) | bit)
    }

    /// The same as the next version.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1 << VERSION_SHIFT))
    }

    /// Whether this is a later version than `other`. Versions wrap; nobody falls back half of them.
    pub const fn is_newer_than(self, other: Self) -> bool {
        let ahead = (self.0 >> VERSION_SHIFT).wrapping_sub(other.0 >> VERSION_SHIFT) & 0xffff;
        ahead != 0 && ahead < 0x8000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_disturb_each_other() {
        let at = FabricAddr(0xffff_ffff_f000);
        let state = VmidState::default().with_suspended(true).next().with_root(Some(at), true);
        assert_eq!((state.root(), state.retry(), state.suspended()), (Some(at), true, true));
        let state = state.with_suspended(false).with_root(None, false);
        assert_eq!(state, VmidState::default().next());
    }

    #[test]
    fn versions_wrap() {
        let mut state = VmidState::default();
        for _ in 0..0x1_0003 {
            assert!(state.next().is_newer_than(state) && !state.is_newer_than(state.next()));
            state = state.next();
        }
        assert!(!state.is_newer_than(state));
        assert_eq!(state.word() & ((1 << VERSION_SHIFT) - 1), 0);
    }
}
