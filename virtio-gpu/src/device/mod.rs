// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The device: what the control queue's commands do.
//!
//! | module | what |
//! | --- | --- |
//! | [`window`] | the host-visible window |
//! | [`ram`] | the guest's memory |
//! | [`gtt`] | how much memory of the host's a guest has besides |
//! | `space` | addresses that a context gives out |
//! | `fences` | answers in the order that a ring's fences want |
//! | `hsakmt` | contexts of capset 8 |
//! | `forward` | contexts of vkfd's own capset |
//! | `sharing` | what a process that shares its machine has besides |
//! | `mapping_changes` | memory that a program elsewhere unmaps, empties or protects |
//! | `relay` | doorbells that the guest writes in the window, carried on to the driver's |
//! | [`register`] | the ways of registering scattered memory |
//!
//! Commands are executed one after the other by a thread that calls [`Device::execute`]; a
//! context's wait for an event alone goes on without the device, and its answer comes later. A
//! guest that says something wrong gets an error for it, and everything else goes on.
//!
//! Bounds: [`MAX_CONTEXTS`], [`MAX_RESOURCES`], [`MAX_RUNS`] for a device; the window's size for
//! all memory that the guest maps; what KFD allows for the rest.

mod fences;
mod forward;
pub mod gtt;
mod hsakmt;
mod kfd;
mod mapping_changes;
pub mod ram;
pub mod register;
mod relay;
mod sharing;
mod space;
mod topology;
pub mod window;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use vkfd_client::{ClientError, Confined, Embedded, Machine};
use vkfd_host::{Description, Grants, HostError};
use vkfd_sabotage::{Switch, Switches};

use self::fences::Fences;
use self::forward::Forward;
use self::gtt::Gtt;
use self::hsakmt::Hsakmt;
use self::ram::{GuestMemory, RamTable};
use self::register::Method;
pub use self::sharing::{Handles, SharingProcess};
use self::topology::Topology;
use self::window::{Place, Refused, Window};
use vkfd_remote::protocol::control::{Answer, Command, ErrorCode, Header, FLAG_FENCE, FLAG_RING, RINGS};
use vkfd_remote::protocol::{blob, capset, Malformed, PAGE};

/// Most contexts of a device; KFD has room for fewer, as each is a process with an address space on
/// the GPUs.
pub const MAX_CONTEXTS: usize = 64;
/// Most resources of a device.
pub const MAX_RESOURCES: usize = 65_536;
/// Most runs of guest memory that all resources have together.
pub const MAX_RUNS: usize = 4 << 20;

/// What a device is made of.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The machine that the guest sees.
    pub machine: Description,
    /// Bytes of the host-visible window.
    pub window: u64,
    /// Bytes of system memory that the host gives beyond the window; `None`: see [`gtt`], and for a
    /// shared machine what KFD allows.
    pub gtt: Option<u64>,
    /// How scattered memory is registered.
    pub method: Method,
    /// What is broken on purpose.
    pub sabotage: Switches,
}

impl Default for Options {
    fn default() -> Self {
        let (machine, method, sabotage) = (Description::default(), Method::Batch, Switches::NONE);
        Self { machine, window: 4 << 30, gtt: None, method, sabotage }
    }
}

/// Takes the bytes of an answer, once, at any time, on any thread.
pub type Reply = Box<dyn FnOnce(&[u8]) + Send>;

/// What became of a submission.
enum Submitted {
    /// It is done.
    Done,
    /// It has a mistake.
    Refused(ErrorCode),
    /// It waits for something; the work ends when this returns.
    Waiting(Box<dyn FnOnce() + Send>),
}

/// A context of some capset.
trait Context: Send {
    /// The guest makes a resource of the context's object `id`.
    fn claim(&mut self, resource: u32, id: u64, size: u64) -> Result<(), ErrorCode>;
    /// The guest makes a resource of its own memory.
    fn adopt(&mut self, resource: u32, memory: GuestMemory) -> Result<(), ErrorCode>;
    /// The resource is in the window from now on.
    fn bind(&mut self, resource: u32, place: Place) -> Result<(), ErrorCode>;
    /// And not any more.
    fn unbind(&mut self, resource: u32);
    /// The resource is gone.
    fn release(&mut self, resource: u32);
    /// Does what the guest asks for.
    fn submit(&mut self, payload: &[u8]) -> Submitted;
}

#[derive(Clone, Copy, Debug)]
struct Resource {
    /// `None` once its context has ended: a guest's kernel ends a context before what was made in
    /// it.
    context: Option<u32>,
    size: u64,
    runs: usize,
    mappable: bool,
    bound: bool,
}

/// What contexts share.
struct Shared {
    /// Its processes have the guest's memory and the window, and nothing else of this process.
    machine: Confined,
    /// What a process has besides whose machine is others', too.
    sharing: Option<SharingProcess>,
    /// KFD processes that were opened; ended ones are forgotten at the next.
    processes: Mutex<Vec<Weak<Embedded>>>,
    topology: Topology,
    options: Options,
}

impl Shared {
    /// A KFD process, for a context.
    fn open(&self) -> Result<Arc<Embedded>, ClientError> {
        let process = Arc::new(Embedded::open_confined(&self.machine)?);
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.retain(|process| process.strong_count() > 0);
        processes.push(Arc::downgrade(&process));
        Ok(process)
    }
}

/// A virtio-gpu of a guest.
pub struct Device {
    machine: Arc<Machine>,
    shared: Arc<Shared>,
    window: Arc<Window>,
    ram: Arc<RamTable>,
    contexts: HashMap<u32, Box<dyn Context>>,
    resources: HashMap<u32, Resource>,
    runs: usize,
    fences: Arc<Fences>,
}

impl Device {
    /// A device with a machine of its own.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn new(options: Options) -> Result<Self, HostError> {
        let mut machine = options.machine.options();
        // Nobody maps a device file: what the guest maps is the window.
        machine.device_file = false;
        let machine = Arc::new(Machine::new(&machine)?);
        let limited = !options.sabotage.has(Switch::AllMemory);
        let gtt = limited.then(|| Gtt::new(machine.driver().limit().clone(), options.gtt));
        Self::make(machine, None, gtt, options)
    }

    /// A device on a machine that others have, too, for a process that joins them.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn on(machine: Arc<Machine>, sharing: Option<SharingProcess>, options: Options) -> Result<Self, HostError> {
        Self::make(machine, sharing, None, options)
    }

    fn make(
        machine: Arc<Machine>,
        sharing: Option<SharingProcess>,
        gtt: Option<Gtt>,
        options: Options,
    ) -> Result<Self, HostError> {
        if options.window == 0 || options.window % PAGE != 0 {
            return Err(HostError::Option("the window has whole pages".into()));
        }
        let topology = Topology::new(&options.machine);
        let grants = Arc::new(Grants::default());
        let window = Window::new(options.window, &grants).map_err(|e| HostError::DeviceFile(e.to_string()))?;
        let confined = Confined::new(machine.clone(), grants.clone(), options.sabotage);
        let confined = confined.of_process(sharing.as_ref().map_or(0, |process| process.pid));
        Ok(Self {
            machine,
            shared: Arc::new(Shared { machine: confined, sharing, processes: Mutex::default(), topology, options }),
            window,
            ram: Arc::new(RamTable::new(grants, gtt)),
            contexts: HashMap::new(),
            resources: HashMap::new(),
            runs: 0,
            fences: Arc::default(),
        })
    }

    /// The window.
    pub fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// The guest's memory, which the VMM may change at any time.
    pub fn ram(&self) -> &Arc<RamTable> {
        &self.ram
    }

    /// The machine behind it, to inspect it.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// Contexts and resources that there are.
    pub fn counts(&self) -> (usize, usize) {
        (self.contexts.len(), self.resources.len())
    }

    /// KFD processes and parts of the window that are in use, or their resources.
    pub fn left(&self) -> usize {
        let processes = self.shared.processes.lock().unwrap_or_else(PoisonError::into_inner);
        let open = processes.iter().filter(|process| process.strong_count() > 0).count();
        open + self.window.places() + self.resources.len()
    }

    /// Forgets everything that the guest has made, as when it is switched off.
    pub fn reset(&mut self) {
        let contexts: Vec<u32> = self.contexts.keys().copied().collect();
        for context in contexts {
            self.destroy_context(context);
        }
        self.resources.clear();
        self.runs = 0;
        self.fences.reset();
    }

    /// Does a command, whose bytes nobody else can change. `reply` gets the answer when it is due.
    pub fn execute(&mut self, bytes: &[u8], reply: Reply) {
        let Ok(header) = Header::decode(bytes) else {
            return reply(&Answer::Error(ErrorCode::Unspecified).encode(&Header::default()));
        };
        let timeline = if header.flags & FLAG_FENCE == 0 {
            None
        } else {
            let ring = (header.flags & FLAG_RING != 0).then_some((header.context, header.ring));
            match self.fences.enter(ring) {
                // Too many are due: this one is not done.
                None => return reply(&Answer::Error(ErrorCode::OutOfMemory).encode(&header)),
                due => due,
            }
        };
        let fences = self.fences.clone();
        let finish = move |answer: Answer| {
            let bytes = answer.encode(&header);
            match timeline {
                Some(ticket) => fences.done(ticket, bytes, reply),
                None => reply(&bytes),
            }
        };
        if self.shared.options.sabotage.has(Switch::EarlyFence) && header.flags & FLAG_FENCE != 0 {
            finish(Answer::Done);
            std::thread::sleep(std::time::Duration::from_millis(20));
            if let Ok(command) = Command::decode(&header, bytes) {
                let _ = self.perform(&header, command);
            }
            return;
        }
        match Command::decode(&header, bytes).map_err(refusal).and_then(|command| self.perform(&header, command)) {
            Ok(Performed::Answer(answer)) => finish(answer),
            Ok(Performed::Waiting(wait)) => {
                let waiter = std::thread::Builder::new().name("gpu-wait".into());
                // The closure is dropped when there is no thread for it, and the guest's fence with
                // it: it would wait for ever.
                let slot = Arc::new(Mutex::new(Some(finish)));
                let theirs = slot.clone();
                let take = |slot: &Mutex<Option<_>>| slot.lock().unwrap_or_else(PoisonError::into_inner).take();
                let started = waiter.spawn(move || {
                    wait();
                    if let Some(finish) = take(&theirs) {
                        finish(Answer::Done);
                    }
                });
                if let Err(error) = started {
                    tracing::error!(%error, "a wait has no thread");
                    if let Some(finish) = take(&slot) {
                        finish(Answer::Error(ErrorCode::OutOfMemory));
                    }
                }
            }
            Err(code) => {
                tracing::debug!(?code, kind = format_args!("{:#x}", header.kind), "refused");
                finish(Answer::Error(code));
            }
        }
    }

    fn perform(&mut self, header: &Header, command: Command<'_>) -> Result<Performed, ErrorCode> {
        let context = header.context;
        if header.flags & FLAG_RING != 0 && header.ring >= RINGS {
            return Err(ErrorCode::InvalidParameter);
        }
        match command {
            Command::CapsetInfo { index } => {
                // The first thing that a kernel asks when it finds the device: what an earlier one
                // has left is nobody's.
                if index == 0 && !self.contexts.is_empty() {
                    tracing::info!("the guest has started anew");
                    self.reset();
                }
                let id = usize::try_from(index).ok().and_then(|index| capset::ALL.get(index).copied());
                let (id, (version, size)) =
                    id.and_then(|id| Some((id, capset::info(id)?))).ok_or(ErrorCode::InvalidParameter)?;
                return Ok(Performed::Answer(Answer::CapsetInfo { id, version, size }));
            }
            Command::Capset { id } => {
                let machine = self.shared.options.machine.to_string();
                let data = capset::data(id, &machine).ok_or(ErrorCode::InvalidParameter)?;
                return Ok(Performed::Answer(Answer::Capset(data)));
            }
            Command::CreateContext { capset } => self.create_context(context, capset)?,
            Command::DestroyContext => {
                self.context(context)?;
                self.destroy_context(context);
            }
            Command::CreateBlob { resource, memory, flags, id, size, runs } => {
                self.create_blob(context, resource, memory, flags, id, size, &runs)?;
            }
            Command::Unref { resource } => self.unref(resource)?,
            Command::Attach { resource } | Command::Detach { resource } => {
                // A resource belongs to the context that it was made in.
                let of = self.resources.get(&resource).ok_or(ErrorCode::InvalidResource)?.context;
                if of != Some(context) {
                    return Err(ErrorCode::InvalidContext);
                }
            }
            Command::Submit { payload } => match self.context(context)?.submit(payload) {
                Submitted::Done => {}
                Submitted::Refused(code) => return Err(code),
                Submitted::Waiting(wait) => return Ok(Performed::Waiting(wait)),
            },
            Command::Map { resource, offset } => {
                self.map(resource, offset)?;
                return Ok(Performed::Answer(Answer::Mapped));
            }
            Command::Unmap { resource } => self.unmap(resource)?,
        }
        Ok(Performed::Answer(Answer::Done))
    }

    fn context(&mut self, number: u32) -> Result<&mut Box<dyn Context>, ErrorCode> {
        self.contexts.get_mut(&number).ok_or(ErrorCode::InvalidContext)
    }

    fn create_context(&mut self, number: u32, capset: u32) -> Result<(), ErrorCode> {
        if number == 0 || self.contexts.contains_key(&number) {
            return Err(ErrorCode::InvalidContext);
        }
        if self.contexts.len() >= MAX_CONTEXTS {
            return Err(ErrorCode::OutOfMemory);
        }
        let context: Box<dyn Context> = match capset {
            capset::HSAKMT => Box::new(Hsakmt::new(self.shared.clone()).map_err(|error| {
                tracing::warn!(%error, "no context");
                ErrorCode::OutOfMemory
            })?),
            capset::KFD => Box::new(Forward::new(self.shared.clone()).map_err(|error| {
                tracing::warn!(%error, "no context");
                ErrorCode::OutOfMemory
            })?),
            _ => return Err(ErrorCode::InvalidParameter),
        };
        // One process is this context's own.
        tracing::info!(context = number, capset, others = self.left() - 1, "a context begins");
        self.contexts.insert(number, context);
        Ok(())
    }

    fn destroy_context(&mut self, number: u32) {
        self.contexts.remove(&number);
        for resource in self.resources.values_mut().filter(|resource| resource.context == Some(number)) {
            resource.context = None;
        }
    }

    fn forget(&mut self, resource: u32) {
        if let Some(gone) = self.resources.remove(&resource) {
            self.runs -= gone.runs;
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn create_blob(
        &mut self,
        context: u32,
        resource: u32,
        memory: u32,
        flags: u32,
        id: u64,
        size: u64,
        runs: &[blob::Run],
    ) -> Result<(), ErrorCode> {
        if resource == 0 || self.resources.contains_key(&resource) {
            return Err(ErrorCode::InvalidResource);
        }
        if size == 0 || size % PAGE != 0 {
            return Err(ErrorCode::InvalidParameter);
        }
        if self.resources.len() >= MAX_RESOURCES || self.runs + runs.len() > MAX_RUNS {
            return Err(ErrorCode::OutOfMemory);
        }
        let mappable = memory == blob::MEM_HOST3D && flags & blob::FLAG_MAPPABLE != 0;
        match memory {
            blob::MEM_HOST3D => self.context(context)?.claim(resource, id, size)?,
            // Guest memory that no context knows: a kernel's dumb buffer.
            blob::MEM_GUEST if context == 0 => {}
            blob::MEM_GUEST | blob::MEM_HOST3D_GUEST => {
                let ram = self.ram.read();
                ram.give_back(runs);
                let found = ram.find(runs);
                drop(ram);
                let memory = found.ok_or(ErrorCode::InvalidParameter)?;
                self.context(context)?.adopt(resource, memory)?;
            }
            _ => return Err(ErrorCode::InvalidParameter),
        }
        self.runs += runs.len();
        self.resources
            .insert(resource, Resource { context: Some(context), size, runs: runs.len(), mappable, bound: false });
        Ok(())
    }

    fn unref(&mut self, number: u32) -> Result<(), ErrorCode> {
        let resource = *self.resources.get(&number).ok_or(ErrorCode::InvalidResource)?;
        if let Some(context) = resource.context.and_then(|context| self.contexts.get_mut(&context)) {
            if resource.bound {
                context.unbind(number);
            }
            context.release(number);
        }
        self.forget(number);
        Ok(())
    }

    fn map(&mut self, number: u32, offset: u64) -> Result<(), ErrorCode> {
        let resource = *self.resources.get(&number).ok_or(ErrorCode::InvalidResource)?;
        if !resource.mappable || resource.bound {
            return Err(ErrorCode::InvalidParameter);
        }
        let place = self.window.bind(offset, resource.size).map_err(|refused| match refused {
            Refused::Outside | Refused::Taken => ErrorCode::InvalidParameter,
        })?;
        self.context(resource.context.ok_or(ErrorCode::InvalidContext)?)?.bind(number, place)?;
        if let Some(resource) = self.resources.get_mut(&number) {
            resource.bound = true;
        }
        Ok(())
    }

    fn unmap(&mut self, number: u32) -> Result<(), ErrorCode> {
        let resource = self.resources.get_mut(&number).ok_or(ErrorCode::InvalidResource)?;
        if !std::mem::take(&mut resource.bound) {
            return Err(ErrorCode::InvalidParameter);
        }
        // With the context its places have gone, too.
        let Some(context) = resource.context else { return Ok(()) };
        self.context(context)?.unbind(number);
        Ok(())
    }
}

enum Performed {
    Answer(Answer),
    Waiting(Box<dyn FnOnce() + Send>),
}

fn refusal(malformed: Malformed) -> ErrorCode {
    match malformed {
        Malformed::Unknown => ErrorCode::Unspecified,
        Malformed::Short | Malformed::Value => ErrorCode::InvalidParameter,
        Malformed::TooMuch => ErrorCode::OutOfMemory,
    }
}
