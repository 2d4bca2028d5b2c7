// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What executes a kernel's instructions on one thread: the fast engine, or the one that it is
//! compared with.
//!
//! A launch begins with an invalidation of the instruction cache, as a packet's acquire fence asks
//! for: code that was written before is seen.

use crate::state::config::Translate;
use crate::state::profile::Profile;
use crate::state::shared::Shared;
use std::sync::Arc;
use vkfd_cu::reference::Reference;
use vkfd_cu::{check, fast, launch, Exit, Group, Wave, World};
use vkfd_sabotage::LiveSwitches;

enum Kind {
    Fast(Box<fast::Engine>),
    Reference(Reference),
    Checked(Box<check::Engine>),
}

/// An engine, one per thread.
pub(crate) struct Engine {
    kind: Kind,
    /// The launch that it ran last.
    launch: u64,
    /// Where it is reported what was translated.
    profile: Arc<Profile>,
}

/// Has an engine translate hot code.
fn translate(engine: &mut fast::Engine, how: Translate, perf_map: bool) {
    #[cfg(target_arch = "x86_64")]
    if let Some(translation) = fast::native::Translation::detect().filter(|_| how != Translate::Off) {
        let is_checked = how == Translate::Checked;
        engine.translate(fast::native::Translation { is_checked, perf_map, ..translation });
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (engine, how, perf_map);
}

impl Engine {
    /// An engine for the GPU's code; the reference engine if that is asked for.
    pub(crate) fn new(shared: &Shared) -> Engine {
        let kind = match (shared.config.target, &shared.config.checking) {
            (Some(target), Some(checking)) => {
                // Makes the decoder's tables now.
                let _ = vkfd_isa::decode_as_hardware(target, &[0]);
                Kind::Checked(Box::new(check::Engine::new(target, &checking.ledger)))
            }
            (Some(target), None) if !shared.config.reference => {
                let mut engine = Box::new(fast::Engine::sharing(target, &shared.code));
                // It runs inside of accesses, where nothing is allocated.
                engine.defer_decoding();
                translate(&mut engine, shared.config.translate, shared.config.perf_map);
                Kind::Fast(engine)
            }
            (target, _) => {
                // Makes the decoder's tables now.
                target.map(|target| vkfd_isa::decode_as_hardware(target, &[0]));
                Kind::Reference(Reference)
            }
        };
        Engine { kind, launch: 0, profile: shared.config.profile.clone() }
    }

    /// Breaks what is to be broken, in code that is decoded from now on.
    pub(crate) fn sabotage(&mut self, switches: &LiveSwitches) {
        if let Kind::Fast(engine) = &mut self.kind {
            engine.sabotage(switches.get());
        }
    }

    /// Reports what checks have found, outside of an access.
    pub(crate) fn flush(&mut self) {
        if let Kind::Checked(engine) = &mut self.kind {
            engine.flush();
        }
    }

    /// What runs next is of launch number `launch`.
    pub(crate) fn begin(&mut self, launch: u64) {
        if std::mem::replace(&mut self.launch, launch) != launch {
            match &mut self.kind {
                Kind::Fast(engine) => engine.invalidate(),
                Kind::Checked(engine) => engine.invalidate(),
                Kind::Reference(_) => {}
            }
        }
    }
}

impl launch::Engine for Engine {
    fn run<W: World>(&mut self, wave: &mut Wave, group: &mut Group, world: &mut W, budget: u32) -> Exit {
        match &mut self.kind {
            Kind::Fast(engine) => engine.run(wave, group, world, budget),
            Kind::Reference(engine) => engine.run(wave, group, world, budget),
            Kind::Checked(engine) => engine.run(wave, group, world, budget),
        }
    }

    fn section<W: World>(&mut self, wave: &Wave, world: &mut W) -> launch::Section {
        match &mut self.kind {
            Kind::Fast(engine) => engine.section(wave, world),
            Kind::Reference(engine) => engine.section(wave, world),
            Kind::Checked(engine) => engine.section(wave, world),
        }
    }

    fn decode(&mut self) {
        match &mut self.kind {
            Kind::Fast(engine) => {
                engine.decode();
                #[cfg(target_arch = "x86_64")]
                self.profile.translated(&engine.translated(), &engine.differences());
            }
            Kind::Checked(engine) => engine.decode(),
            Kind::Reference(_) => {}
        }
    }
}
