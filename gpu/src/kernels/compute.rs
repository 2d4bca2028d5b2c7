// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Launches of kernels, as packet processors make them: of AQL's dispatch packets and of PM4's
//! registers.
//!
//! What firmware does before a launch is done here: the kernel object is read, user SGPRs are
//! filled, and a queue of the HSA runtime is asked for scratch ([`HsaQueue::scratch`]). Then the
//! launch is checked and run; why it failed becomes a [`QueueError`] with the kernel's name.

use crate::base::counters::count;
use crate::base::queue_error::{KernelError, KernelName, QueueError, Stop, WaveAt};
use crate::kernels::engine::Engine;
use crate::kernels::hsa_queue::HsaQueue;
use crate::kernels::symbol;
use crate::kernels::worker;
use crate::state::access::Port;
use crate::state::busy::Running;
use crate::state::config::Checking;
use crate::state::pool::{Failed, Failure};
use crate::state::profile::{mnemonic, KernelId};
use crate::state::shared::Shared;
use crate::state::tally::Tally;
use crate::state::timeline::{Record, Span};
use std::sync::Arc;
use vkfd_cu::check::{self, Watch};
use vkfd_cu::launch::{Cause, Descriptor, Launch, LaunchError, Program, Schedule, Sizes, DESCRIPTOR_BYTES};
use vkfd_cu::{Apertures, Refusal};
use vkfd_isa::Target;
use vkfd_sabotage::Switch;

/// High halves of the addresses at which FLAT finds LDS and scratch, as KFD sets them.
pub(crate) const APERTURES: Apertures = Apertures { shared: 1 << 16, private: 2 << 16 };

/// A kernel dispatch packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// Its address.
    pub(crate) va: u64,
    /// Its index in the queue.
    pub(crate) id: u64,
    pub(crate) dimensions: u32,
    pub(crate) group: [u32; 3],
    pub(crate) grid: [u32; 3],
    /// Scratch of a work-item in bytes.
    pub(crate) private: u32,
    /// LDS of a work-group in bytes.
    pub(crate) lds: u32,
    pub(crate) object: u64,
    pub(crate) kernarg: u64,
}

/// A queue's compute unit: what its own thread keeps between launches.
pub(crate) struct Compute {
    target: Option<Target>,
    engine: Engine,
    known: [Option<Known>; KNOWN],
    /// What kernels are checked for, by object and bytes of scratch.
    watches: Vec<(Known, u32, Arc<Watch>)>,
    /// Kernels that were read for hazards: their entries and descriptors.
    linted: Vec<(u64, [u8; DESCRIPTOR_BYTES])>,
}

/// Kernel objects of which a queue remembers which kernel they are.
const KNOWN: usize = 16;

/// Kernels whose names checks do not look up again.
const WATCHES: usize = 64;

/// A launched kernel object: its address, its contents, and its kernel.
#[derive(Clone, Copy)]
struct Known {
    object: u64,
    bytes: [u8; DESCRIPTOR_BYTES],
    kernel: KernelId,
}

impl Compute {
    pub(crate) fn new(shared: &Shared) -> Compute {
        Compute {
            target: shared.config.target,
            engine: Engine::new(shared),
            known: [None; KNOWN],
            watches: Vec::new(),
            linted: Vec::new(),
        }
    }

    /// The target, if its machine code can be executed.
    pub(crate) fn target(&self, port: &mut Port, object: u64) -> Result<Target, Stop> {
        match self.target {
            Some(target) => Ok(target),
            None => Err(QueueError::UnknownKernel { kernel: named(port, object)? }.into()),
        }
    }

    /// Runs the kernel of a dispatch packet.
    pub(crate) fn dispatch(&mut self, port: &mut Port, packet: &Packet) -> Result<(), Stop> {
        let Packet { object, dimensions, grid, group, .. } = *packet;
        let target = self.target(port, object)?;
        // AMD's firmware looks for this, and does not read address 0.
        if object == 0 {
            return Err(refused(port, object, LaunchError::Code("the packet names no kernel"))?);
        }
        let mut bytes = [0; DESCRIPTOR_BYTES];
        port.read_code(object, &mut bytes)?;
        let read = Descriptor::parse(target, object, &bytes);
        let (descriptor, sizes) = match read.and_then(|read| Ok((read, Sizes::new(dimensions, grid, group)?))) {
            Ok(both) => both,
            Err(error) => return Err(refused(port, object, error)?),
        };
        let queue = HsaQueue::of(port)?;
        let mut memory = None;
        if descriptor.program.scratch && packet.private != 0 {
            let lanes = descriptor.program.lanes.into();
            memory = match queue {
                Some(queue) => queue.scratch(port, target, packet.private, lanes)?,
                None => None,
            };
            if memory.is_none() {
                return Err(QueueError::NoScratch { kernel: named(port, object)?, bytes: packet.private }.into());
            }
        }
        let mut user = User(Vec::with_capacity(32));
        if descriptor.wants(Descriptor::PRIVATE_BUFFER) {
            user.words(&memory.map_or([0; 4], |memory| memory.buffer));
        }
        for (property, value) in [
            (Descriptor::DISPATCH_PTR, packet.va),
            (Descriptor::QUEUE_PTR, queue.map_or(0, |queue| queue.base())),
            (Descriptor::KERNARG_PTR, packet.kernarg),
            (Descriptor::DISPATCH_ID, packet.id),
            (Descriptor::FLAT_SCRATCH, memory.map_or(0, |memory| memory.scratch.base)),
        ] {
            if descriptor.wants(property) {
                user.wide(value);
            }
        }
        if descriptor.wants(Descriptor::PRIVATE_SIZE) {
            user.words(&[packet.private]);
        }
        for index in 0..descriptor.preload.words {
            let mut word = [0; 4];
            let offset = u64::from(descriptor.preload.offset) + u64::from(index);
            port.read(packet.kernarg.wrapping_add(offset * 4), &mut word)?;
            user.words(&[u32::from_le_bytes(word)]);
        }
        let watch = self.watch(port, object, &bytes, packet.private)?;
        if let Some(watch) = watch.as_ref().filter(|watch| watch.checks.hazards) {
            self.lint(port, watch, &bytes, descriptor.program.entry)?;
        }
        let mut launch = Launch {
            program: descriptor.program,
            sizes,
            start: [0; 3],
            user: user.0,
            lds: packet.lds,
            scratch: memory.map(|memory| memory.scratch),
            apertures: APERTURES,
            watch: None,
        };
        launch.watch = watch.map(|watch| check::watch(&watch, &launch));
        self.run(port, object, &bytes, launch)?;
        match queue {
            Some(queue) if memory.is_some() => queue.scratch_used(port),
            _ => Ok(()),
        }
    }

    /// What a kernel is checked for; nothing on most GPUs. `private`: bytes of scratch that a
    /// work-item asked for.
    pub(crate) fn watch(
        &mut self,
        port: &mut Port,
        object: u64,
        bytes: &[u8; DESCRIPTOR_BYTES],
        private: u32,
    ) -> Result<Option<Arc<Watch>>, Stop> {
        let Some(Checking { checks, ledger }) = port.shared.config.checking.clone() else { return Ok(None) };
        let kernel = self.kernel(port, object, bytes)?;
        let same = |(known, of, _): &&(Known, u32, Arc<Watch>)| {
            known.object == object && known.bytes == *bytes && *of == private
        };
        if let Some((_, _, watch)) = self.watches.iter().find(same) {
            return Ok(Some(watch.clone()));
        }
        let found = symbol::find(port, object)?;
        let image = found.as_ref().map(|(image, _)| *image);
        let name = found.and_then(|(_, name)| name).unwrap_or_else(|| format!("(at GPU address {object:#x})"));
        let usual = port.shared.sabotage.has(Switch::UsualOrder);
        let schedule = if usual { Schedule::Usual } else { port.shared.config.schedule };
        let watch = Arc::new(Watch { checks, ledger, kernel: name, image, private, schedule });
        if self.watches.len() >= WATCHES {
            self.watches.clear();
        }
        self.watches.push((Known { object, bytes: *bytes, kernel }, private, watch.clone()));
        Ok(Some(watch))
    }

    /// Reads a kernel's code for hazards, unless that was done.
    fn lint(
        &mut self,
        port: &mut Port,
        watch: &Watch,
        descriptor: &[u8; DESCRIPTOR_BYTES],
        entry: u64,
    ) -> Result<(), Stop> {
        let (Some(target), Some(image)) = (self.target, watch.image) else { return Ok(()) };
        let same = |(known, bytes): &(u64, [u8; DESCRIPTOR_BYTES])| *known == entry && bytes == descriptor;
        if self.linted.iter().any(same) {
            return Ok(());
        }
        if self.linted.len() >= WATCHES {
            self.linted.clear();
        }
        self.linted.push((entry, *descriptor));
        let Some((flags, version)) = symbol::flags(port, image)? else { return Ok(()) };
        let Some(bytes) = symbol::size(port, image, entry)? else { return Ok(()) };
        let mut code = vec![0; usize::try_from(bytes).unwrap_or(0)];
        if port.peek(entry, &mut code)? {
            let kernel = check::Kernel { target, name: &watch.kernel, image, entry, descriptor, flags, version, code };
            watch.ledger.lint(kernel);
        }
        Ok(())
    }

    /// Runs a launch of the kernel whose object or program is at `object` and begins with `bytes`.
    pub(crate) fn run(
        &mut self,
        port: &mut Port,
        object: u64,
        bytes: &[u8; DESCRIPTOR_BYTES],
        mut launch: Launch,
    ) -> Result<(), Stop> {
        if let Err(error) = launch.check() {
            return Err(refused(port, object, error)?);
        }
        if port.shared.sabotage.has(Switch::ShortGrid) && launch.sizes.grid[0] > 1 {
            launch.sizes.grid[0] -= 1;
        }
        let Program { entry, target, .. } = launch.program;
        let at = port.timed();
        let shared = port.shared.clone();
        // The GPU's time is never less than a VMID's.
        let running = Running::begin(&shared.busy, &shared.vmid_of(&port.control).busy);
        let (result, tally) = worker::run((port, &shared), &mut self.engine, launch, running.begun());
        let took = running.end();
        count(&port.shared.counters.kernels, 1);
        let result = result.or_else(|failed| {
            if let Failure::Wave(Cause::Refused(Refusal::Unsupported(op))) = failed.failure {
                port.shared.config.profile.missing(op);
            }
            Err(explained(port, object, entry, failed)?)
        });
        match result {
            Err(Stop::Removed) => {}
            _ => {
                let kernel = self.kernel(port, object, bytes)?;
                port.shared.config.profile.add(kernel, target, &tally, took);
                if let (Some(timeline), Some(at)) = (&port.shared.config.timeline, at) {
                    let Tally { groups, waves, instructions, .. } = tally;
                    let name = port.shared.config.profile.name(kernel);
                    let (track, span) = (port.track(), Span::since(at));
                    timeline.add(Record::Kernel { track, span, groups, waves, instructions, name: &name });
                }
            }
        }
        result
    }

    /// Which kernel the profile calls this. The bytes are compared: another kernel may have been
    /// loaded where one was.
    fn kernel(&mut self, port: &mut Port, object: u64, bytes: &[u8; DESCRIPTOR_BYTES]) -> Result<KernelId, Stop> {
        // Objects are aligned to 64 bytes.
        let slot = usize::try_from(object / 64 % KNOWN as u64).unwrap_or(0);
        if let Some(known) = self.known[slot].filter(|known| known.object == object && known.bytes == *bytes) {
            return Ok(known.kernel);
        }
        let (space, key) = ((port.shared.index, port.control.vmid.0), (object, *bytes));
        let known = port.shared.config.profile.kernel(space, &key);
        let kernel = match known {
            Some(kernel) => kernel,
            None => {
                let name = symbol::name(port, object)?.unwrap_or_else(|| format!("(at GPU address {object:#x})"));
                port.shared.config.profile.add_object(space, key, &name)
            }
        };
        self.known[slot] = Some(Known { object, bytes: *bytes, kernel });
        Ok(kernel)
    }
}

/// User SGPRs being filled: at most 32, so that there is one allocation.
struct User(Vec<u32>);

impl User {
    fn words(&mut self, words: &[u32]) {
        self.0.extend_from_slice(words);
    }

    fn wide(&mut self, value: u64) {
        let half = |value: u64| u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
        self.words(&[half(value), half(value >> 32)]);
    }
}

/// The name of the kernel at `object`.
pub(crate) fn named(port: &mut Port, object: u64) -> Result<KernelName, Stop> {
    Ok(KernelName { object, name: symbol::name(port, object)? })
}

/// The error of a launch that is not made.
pub(crate) fn refused(port: &mut Port, object: u64, error: LaunchError) -> Result<Stop, Stop> {
    Ok(QueueError::Launch { kernel: named(port, object)?, error }.into())
}

/// The error of a launch that failed.
fn explained(port: &mut Port, object: u64, entry: u64, failed: Failed) -> Result<Stop, Stop> {
    let cause = match failed.failure {
        Failure::Stop(Stop::Error(QueueError::Fault(fault))) => KernelError::Fault(fault),
        Failure::Stop(stop) => return Ok(stop),
        Failure::Wave(Cause::Trap(number)) => KernelError::Trap { number },
        Failure::Wave(Cause::Refused(refusal)) => match refusal {
            Refusal::Illegal { word } => KernelError::Illegal(word),
            Refusal::Unsupported(op) => KernelError::Unsupported(format!("{op:?}")),
            Refusal::Register => KernelError::Register,
            Refusal::HostAtomic { op, va } => KernelError::HostAtomic { name: mnemonic(op), va },
            Refusal::Aperture { va } => KernelError::Aperture(va),
        },
        // A world that stops says why.
        Failure::Wave(Cause::World) => return Ok(Stop::Removed),
    };
    let Failed { group, wave, pc, .. } = failed;
    let at = WaveAt { group, wave, pc, offset: pc.wrapping_sub(entry) };
    Ok(QueueError::Kernel { kernel: named(port, object)?, at, cause }.into())
}
