// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How the driver behaves: a kernel module's parameters.

use crate::base::addr::CpuSpan;
use crate::base::hook::Hook;
use crate::device::damping::Damping;
use crate::sabotage::{Switch, Switches};
use crate::seams::device_memory;
use crate::userptr::window::WindowPolicy;
use core::time::Duration;

/// How the driver behaves; a kernel module's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How ranges share interval notifiers.
    pub windows: WindowPolicy,
    /// How long one call may go on retrying memory that keeps changing.
    pub register_deadline: Duration,
    /// The longest pause between two tries of a restore.
    pub restore_pause: Duration,
    /// How often memory that a restore did not find is looked for again: after 2, 4, ... 64 ms. An
    /// allocator that gives memory back and takes it anew is done by then.
    pub looks: u32,
    /// Most ranges in one call.
    pub max_ranges: u32,
    /// Bytes of RAM; the system-memory limit follows from it.
    pub ram: u64,
    /// Bytes of system memory that all processes together may have as GTT memory and registered;
    /// `None`: what KFD allows on a machine with that RAM.
    pub gtt: Option<u64>,
    /// What the GPUs' memory is to SVM memory that moves there.
    pub device_memory: device_memory::Kind,
    /// Bytes of each GPU's VRAM that SVM memory may have; `None`: all. What is then oversubscribed
    /// is data, however much a program's code and its buffers take.
    pub svm_vram: Option<u64>,
    /// What to do about memory that goes to and fro.
    pub damping: Damping,
    /// Whether clients may have what is there for tests and benchmarks only: MEASURE, MOVE,
    /// SET_WINDOWS. EPERM otherwise. Each lets a client hold what others need (references to pages,
    /// VRAM, notifiers), so a machine with strangers on it has it off.
    pub diagnosis: bool,
    /// What is broken on purpose (nothing, unless built for that). In a process, also what is
    /// broken of the machine's GPUs.
    pub sabotage: Switches,
    /// What [`Switch::BeforeCommit`] calls.
    pub before_commit: Hook,
}

impl Options {
    /// Pages of `span` and what follows were faulted in and are not committed yet. No lock that an
    /// invalidation takes is held.
    pub(crate) fn before_commit(&self, span: CpuSpan) {
        if self.sabotage.has(Switch::BeforeCommit) {
            self.before_commit.call(span);
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            windows: WindowPolicy::default(),
            register_deadline: Duration::from_secs(10),
            restore_pause: Duration::from_millis(64),
            looks: 6,
            max_ranges: 1 << 20,
            ram: 16 << 30,
            gtt: None,
            device_memory: device_memory::Kind::default(),
            svm_vram: None,
            damping: Damping::default(),
            diagnosis: false,
            sabotage: Switches::NONE,
            before_commit: Hook::default(),
        }
    }
}
