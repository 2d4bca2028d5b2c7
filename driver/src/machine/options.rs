// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How the driver behaves: a kernel module's parameters.

use crate::damping::Damping;
use crate::device_memory;
use crate::sabotage::Sabotage;
use crate::window::WindowPolicy;
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
    /// Most ranges in one call.
    pub max_ranges: u32,
    /// Bytes of RAM; the system-memory limit follows from it.
    pub ram: u64,
    /// What the GPUs' memory is to SVM memory that moves there.
    pub device_memory: device_memory::Kind,
    /// What to do about memory that goes to and fro.
    pub damping: Damping,
    /// Whether clients may have what is there for tests and benchmarks only: MEASURE, MOVE, SET_WINDOWS. EPERM otherwise. Each lets a
    /// client hold what others need (references to pages, VRAM, notifiers), so a machine with strangers on it has it off.
    pub diagnosis: bool,
    /// What is broken on purpose (nothing, unless built for that).
    pub sabotage: Sabotage,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            windows: WindowPolicy::default(),
            register_deadline: Duration::from_secs(10),
            restore_pause: Duration::from_millis(64),
            max_ranges: 1 << 20,
            ram: 16 << 30,
            device_memory: device_memory::Kind::default(),
            damping: Damping::default(),
            diagnosis: false,
            sabotage: Sabotage::default(),
        }
    }
}
