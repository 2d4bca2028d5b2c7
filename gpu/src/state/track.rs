// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A port's place in a timeline.

use crate::base::clock;
use crate::state::access::Port;
use crate::state::timeline::Track;

impl Port {
    /// Its queue's place in a timeline.
    pub(crate) fn track(&self) -> Track {
        Track { gpu: self.shared.index, queue: self.control.id.0 }
    }

    /// The time, if there is a timeline.
    pub(crate) fn timed(&self) -> Option<u64> {
        self.shared.config.timeline.as_ref().map(|_| clock::nanoseconds())
    }
}
