// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What executes a kernel's instructions on one thread: the fast engine, or the one that it is
//! compared with.
//!
//! A launch begins with an invalidation of the instruction cache, as a packet's acquire fence asks
//! for: code that was written before is seen.

use crate::shared::Shared;
use vkfd_cu::reference::Reference;
use vkfd_cu::{fast, Exit, Group, Wave, World};
use vkfd_sabotage::LiveSwitches;

enum Kind {
    Fast(Box<fast::Engine>),
    Reference(Reference),
}

/// An engine, one per thread.
pub(crate) struct Engine {
    kind: Kind,
    /// The launch that it ran last.
    launch: u64,
}

impl Engine {
    /// An engine for the GPU's code; the reference engine if that is asked for.
    pub(crate) fn new(shared: &Shared) -> Engine {
        let kind = match shared.config.target {
            Some(target) if !shared.config.reference => {
                let mut engine = Box::new(fast::Engine::sharing(target, &shared.code));
                // It runs inside of accesses, where nothing is allocated.
                engine.defer_decoding();
                Kind::Fast(engine)
            }
            target => {
                // Makes the decoder's tables now.
                target.map(|target| vkfd_isa::decode_as_hardware(target, &[0]));
                Kind::Reference(Reference)
            }
        };
        Engine { kind, launch: 0 }
    }

    /// Breaks what is to be broken, in code that is decoded from now on.
    pub(crate) fn sabotage(&mut self, switches: &LiveSwitches) {
        if let Kind::Fast(engine) = &mut self.kind {
            engine.sabotage(switches.get());
        }
    }

    /// What runs next is of launch number `launch`.
    pub(crate) fn begin(&mut self, launch: u64) {
        if std::mem::replace(&mut self.launch, launch) != launch {
            if let Kind::Fast(engine) = &mut self.kind {
                engine.invalidate();
            }
        }
    }
}

impl vkfd_cu::launch::Engine for Engine {
    fn run<W: World>(&mut self, wave: &mut Wave, group: &mut Group, world: &mut W, budget: u32) -> Exit {
        match &mut self.kind {
            Kind::Fast(engine) => engine.run(wave, group, world, budget),
            Kind::Reference(engine) => engine.run(wave, group, world, budget),
        }
    }

    fn decode(&mut self) {
        if let Kind::Fast(engine) = &mut self.kind {
            engine.decode();
        }
    }
}
