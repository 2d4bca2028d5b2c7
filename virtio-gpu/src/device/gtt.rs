// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How much system memory the host gives a guest beyond the window (GTT memory).
//!
//! A machine of one guest has a limit: the option `--gtt`. Without it, the limit is the size of the
//! guest's own memory, and at most [`share`] of the host's memory. The guest's memory is known when
//! its VMM or its program has shown it; until then the share alone is the limit. Registered memory
//! does not count here ([`vkfd_host::grants`]).

use std::sync::Arc;

use vkfd_client::MachineOptions;
use vkfd_driver::device::limit::Limit;

/// The most that a guest has without `--gtt`: a quarter of the host's memory.
pub fn share() -> u64 {
    MachineOptions::default().driver.ram / 4
}

/// The limit of one guest's machine.
#[derive(Clone)]
pub struct Gtt {
    limit: Arc<Limit>,
    asked: Option<u64>,
}

impl Gtt {
    /// The machine's `limit`, for a guest whose memory is not known yet.
    pub fn new(limit: Arc<Limit>, asked: Option<u64>) -> Self {
        limit.resize(asked.unwrap_or_else(share));
        Self { limit, asked }
    }

    /// The guest has `bytes` of memory from now on.
    pub fn guest_has(&self, bytes: u64) {
        self.limit.resize(self.asked.unwrap_or_else(|| share().min(bytes)));
    }
}
