// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What kind of GPU to make.

use crate::state::profile::Profile;
use crate::state::timeline::Timeline;
use std::sync::Arc;
use vkfd_cu::check::{Checks, Ledger};
use vkfd_cu::launch::{Schedule, Units};
pub use vkfd_targets::Family;
use vkfd_targets::Target;

/// Whether hot code is translated to code of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Translate {
    /// It is interpreted.
    Off,
    /// It is translated where the processor has AVX2.
    #[default]
    On,
    /// Translated code is run twice, the second time by the reference engine, whose results count.
    Checked,
}

/// What kernels are checked for.
#[derive(Clone, Debug)]
pub struct Checking {
    pub checks: Checks,
    /// Allocations, and what is found.
    pub ledger: Arc<Ledger>,
}

/// What kind of GPU to make.
#[derive(Clone, Debug)]
pub struct Config {
    /// Size of the VRAM in bytes; must be that of the fabric's VRAM of the same index.
    pub vram_bytes: u64,
    /// Number of VMIDs, 1 to 256.
    pub vmids: u32,
    /// Translations of 4 KiB pages and small fragments that each queue caches; a quarter as many 2
    /// MiB blocks come on top.
    pub tlb_entries: usize,
    /// Packet format.
    pub family: Family,
    /// Whose machine code it executes; without, it executes none.
    pub target: Option<Target>,
    /// Kernels run on the reference engine, which says what instructions mean and is slow.
    pub reference: bool,
    /// Whether hot code is translated.
    pub translate: Translate,
    /// Translated code is listed in /tmp/perf-PID.map, for perf.
    pub perf_map: bool,
    /// What hardware does not do, and the engine could, ends a kernel.
    pub strict: bool,
    /// Kernels run on the reference engine, which checks them.
    pub checking: Option<Checking>,
    /// In which order work-groups and waves run. In another than the usual one, results of loads
    /// are late. The engine with checks runs such kernels, also without a check.
    pub schedule: Schedule,
    /// Its compute units.
    pub units: Units,
    /// The shaders' clock, in MHz.
    pub shader_mhz: u32,
    /// Threads that run a kernel, the queue's own included; 0 for as many as there are processors.
    /// With 1, the order in which a kernel's work-groups run is always the same.
    pub threads: usize,
    /// Where kernels' costs are added up.
    pub profile: Arc<Profile>,
    /// Where it is recorded when kernels and copies ran, if that is wanted.
    pub timeline: Option<Arc<Timeline>>,
    /// Name in logs.
    pub name: String,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            vram_bytes: 1 << 30,
            vmids: 16,
            tlb_entries: 1024,
            family: Family::Gfx9,
            target: Some(Target::Gfx900),
            reference: false,
            translate: Translate::default(),
            perf_map: false,
            strict: false,
            checking: None,
            schedule: Schedule::Usual,
            units: Units::VEGA10,
            shader_mhz: 1600,
            threads: 0,
            profile: Arc::new(Profile::new(None)),
            timeline: None,
            name: "gfx900".into(),
        }
    }
}

impl Config {
    /// The same, with the engine that makes loads late where the order wants that.
    pub(crate) fn with_late_loads(mut self) -> Config {
        if self.schedule != Schedule::Usual {
            let nothing = || Checking { checks: Checks::default(), ledger: Arc::new(Ledger::new(false, None)) };
            self.checking.get_or_insert_with(nothing);
        }
        self
    }
}
