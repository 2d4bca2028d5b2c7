// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The drivers under test: two machines in this process, one whose ranges share notifiers and one
//! with a notifier per range. Each strategy has a client of its own, and none carries the objects
//! of another. The other form is the KFD of a device file, which chooses itself how ranges share
//! notifiers. AMD's has one process for an address space, so that all strategies share a client.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use vkfd_client::{
    AllocOptions, Buffer, Client, ComputeQueue, CopyQueue, GpuVa, Kernel, Machine, MachineOptions, RegisterOptions,
    Strategy, UserptrRange,
};
use vkfd_driver::userptr::window::WindowPolicy;
use vkfd_host::Source;

use crate::arena::{mappings, Arena};
use crate::subject::Subject;

/// How long one piece of work may take before the benchmark gives up.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long after the last registration ended the host still tidies up behind it, and more.
const REST: Duration = Duration::from_millis(300);
/// Mappings that the process has besides those of one arena, generously.
const MAPPINGS_BESIDE: usize = 2048;
/// Mappings by which the process may have grown when the host has tidied up: arenas, stacks, what
/// malloc took.
const SOME: usize = 256;
/// How long to wait at most for mappings to merge again.
const MERGE_LIMIT: Duration = Duration::from_secs(5);

/// A strategy's client, with a queue of each kind.
pub struct Seat {
    /// The client.
    pub client: Client,
    strategy: Strategy,
    compute: ComputeQueue,
    copy: CopyQueue,
    out: Buffer,
}

/// What is measured.
enum Drivers {
    /// Machines in this process.
    Here { clustered: Machine, per_range: Machine },
    /// A device file's.
    Device(PathBuf),
    /// AMD's.
    Stock(Client),
}

/// All drivers and clients.
pub struct Rig {
    // In the order of `Subject::STRATEGIES`; before the drivers, which they work on.
    seats: Vec<Option<Seat>>,
    drivers: Drivers,
    /// Mappings of the process before there was an arena.
    mappings: usize,
}

impl Rig {
    /// Starts the machines, or opens `device`.
    ///
    /// # Errors
    ///
    /// When they cannot be started or opened.
    pub fn new(device: Option<&Path>) -> Result<Self> {
        let drivers = device.map_or_else(Drivers::here, Drivers::at)?;
        let seat = |subject: &Subject| {
            let strategy = if *subject == Subject::Multi { Strategy::PerRange } else { Strategy::Auto };
            drivers.open(*subject)?.map(|client| Seat::new(client, strategy)).transpose()
        };
        let seats = Subject::STRATEGIES.iter().map(seat).collect::<Result<_>>()?;
        Ok(Self { seats, drivers, mappings: mappings().count() })
    }

    /// The strategies that there are.
    pub fn strategies(&self) -> Vec<Subject> {
        let seats = Subject::STRATEGIES.iter().zip(&self.seats);
        seats.filter(|(_, seat)| seat.is_some()).map(|(subject, _)| *subject).collect()
    }

    /// The seat of a strategy.
    ///
    /// # Errors
    ///
    /// For a subject that is none.
    pub fn seat(&mut self, subject: Subject) -> Result<&mut Seat> {
        let place = Subject::STRATEGIES.iter().position(|strategy| *strategy == subject);
        let seat = place.and_then(|place| self.seats.get_mut(place));
        seat.and_then(Option::as_mut).context("this subject does not use the driver")
    }

    /// The seat of the batch, or of one range where the driver has no batch.
    ///
    /// # Errors
    ///
    /// When there is neither.
    pub fn any_seat(&mut self) -> Result<&mut Seat> {
        let has_batch = self.strategies().contains(&Subject::Batch);
        self.seat(if has_batch { Subject::Batch } else { Subject::Contiguous })
    }

    /// Whether the driver counts invalidations, restores, and what it holds for an object.
    pub fn counts(&self) -> bool {
        !matches!(self.drivers, Drivers::Stock(_))
    }

    /// Where notifications of changed mappings come from.
    pub fn source(&self) -> String {
        match &self.drivers {
            Drivers::Here { clustered, .. } => clustered.memory().source().to_string(),
            Drivers::Device(_) => "kernel".into(),
            Drivers::Stock(_) => "kernel, AMD's driver".into(),
        }
    }

    /// Whether the driver is a kernel's.
    pub fn in_kernel(&self) -> bool {
        matches!(self.drivers, Drivers::Device(_) | Drivers::Stock(_))
    }

    fn watches_with_userfaultfd(&self) -> bool {
        matches!(&self.drivers, Drivers::Here { clustered, .. } if clustered.memory().source() == Source::Userfaultfd)
    }

    /// Why a strategy cannot watch so many ranges, if it cannot. With userfaultfd each watch is a
    /// registration, which cuts the memory into mappings; in a kernel there is no such limit.
    pub fn cannot_watch(&self, subject: Subject, ranges: usize) -> Option<String> {
        let watches_each = matches!(subject, Subject::Multi | Subject::BatchPerRange);
        if watches_each && self.watches_with_userfaultfd() {
            too_many_watches(ranges)
        } else {
            None
        }
    }

    /// Waits until the host has tidied up behind registrations that have ended, so that the next
    /// subject finds the memory as the last one did.
    pub fn rest(&self, split: bool) {
        if !self.watches_with_userfaultfd() {
            return;
        }
        rest(split.then_some(self.mappings));
    }
}

/// Why userfaultfd cannot watch so many ranges one by one, if it cannot.
pub fn too_many_watches(ranges: usize) -> Option<String> {
    let (needed, limit) = (2 * ranges + MAPPINGS_BESIDE, crate::peer::max_map_count());
    (needed > limit).then(|| {
        format!("one userfaultfd registration per range would need {needed} mappings, and vm.max_map_count is {limit}")
    })
}

/// Waits until the host has tidied up behind registrations that have ended, and until mappings that
/// they have split are about as many as there were `before`.
pub fn rest(before: Option<usize>) {
    std::thread::sleep(REST);
    let start = Instant::now();
    while before.is_some_and(|before| start.elapsed() < MERGE_LIMIT && mappings().count() > before + SOME) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Drivers {
    fn here() -> Result<Self> {
        let mut options = MachineOptions::default();
        // What the host alone takes is measured as well.
        options.driver.diagnosis = true;
        let clustered = Machine::new(&options).context("cannot start the driver in this process")?;
        let mut other = options;
        other.driver.windows = WindowPolicy::PerRange;
        let per_range = Machine::new(&other).context("cannot start a second driver in this process")?;
        Ok(Self::Here { clustered, per_range })
    }

    /// The driver of a device file.
    fn at(path: &Path) -> Result<Self> {
        let client = Client::open_at(path).with_context(|| format!("cannot use {}", path.display()))?;
        Ok(if client.caps().vkfd { Self::Device(path.into()) } else { Self::Stock(client) })
    }

    /// A client for `subject`; none if it needs a driver with other options.
    fn open(&self, subject: Subject) -> Result<Option<Client>> {
        let on = |machine| Client::on(machine).map(Some).context("cannot open the driver in this process");
        match self {
            Self::Here { per_range, .. } if subject == Subject::BatchPerRange => on(per_range),
            Self::Here { clustered, .. } => on(clustered),
            Self::Stock(client) => {
                let has = match subject {
                    Subject::Batch => client.caps().batch || client.caps().batch_flag,
                    subject => subject != Subject::BatchPerRange,
                };
                Ok(has.then(|| client.clone()))
            }
            Self::Device(path) => {
                let client = Client::open_apart(path).with_context(|| format!("cannot use {}", path.display()))?;
                // A KFD that is not vkfd has no such choice.
                let chosen = subject != Subject::BatchPerRange || client.set_window_gap(None).is_ok();
                Ok(chosen.then_some(client))
            }
        }
    }
}

impl Seat {
    /// Queues on the client's first GPU.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn new(client: Client, strategy: Strategy) -> Result<Self> {
        let gpu = client.gpus().first().context("the machine has no GPU")?.id;
        let compute = ComputeQueue::new(&client, gpu)?;
        let copy = CopyQueue::new(&client, gpu)?;
        let out = client.alloc(&AllocOptions::gtt(vkfd_client::PAGE))?;
        Ok(Self { client, strategy, compute, copy, out })
    }

    /// Registers memory, without mapping it.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn register(&self, ranges: &[UserptrRange]) -> Result<Buffer> {
        self.register_as(self.strategy, ranges)
    }

    /// Registers memory as another strategy would, without mapping it.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn register_as(&self, strategy: Strategy, ranges: &[UserptrRange]) -> Result<Buffer> {
        let options = RegisterOptions { strategy, map: false, ..RegisterOptions::default() };
        // SAFETY: the arenas' memory is accessed by raw pointers only, and never while the GPU
        // works on it.
        Ok(unsafe { self.client.register_ranges(ranges, &options)? })
    }

    /// Registers memory and maps it.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn register_and_map(&self, ranges: &[UserptrRange]) -> Result<Buffer> {
        let buffer = self.register(ranges)?;
        buffer.map(&vkfd_client::GpuSet::All)?;
        Ok(buffer)
    }

    /// What the strategy registers of an arena: everything at once if it is contiguous.
    pub fn list(subject: Subject, arena: &Arena) -> &[UserptrRange] {
        if subject == Subject::Contiguous {
            std::slice::from_ref(&arena.whole)
        } else {
            &arena.ranges
        }
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    ///
    /// What the queue stopped on.
    pub fn run(&mut self, kernel: &Kernel) -> Result<()> {
        Ok(self.compute.launch(kernel)?.wait(PATIENCE)?)
    }

    /// Sums all 64-bit words of a buffer.
    ///
    /// # Errors
    ///
    /// As [`Seat::run`].
    pub fn sum(&mut self, buffer: &Buffer) -> Result<()> {
        let out = self.out();
        self.run(&Kernel::Sum64 { src: buffer.gpu_va(), count: buffer.len() / 8, out })
    }

    /// Where kernels may put a result.
    pub fn out(&self) -> GpuVa {
        self.out.gpu_va()
    }

    /// Copies by the copy engine, to the end.
    ///
    /// # Errors
    ///
    /// What the queue stopped on.
    pub fn copy(&mut self, to: GpuVa, from: GpuVa, bytes: u64) -> Result<()> {
        Ok(self.copy.copy_now(to, from, bytes, PATIENCE)?)
    }

    /// The restores so far, if the queues run. A driver that does not count them has none.
    ///
    /// # Errors
    ///
    /// What the query failed with.
    pub fn restores(&mut self) -> Result<Option<u64>> {
        if !self.client.caps().vkfd {
            self.work()?;
            return Ok(Some(0));
        }
        let now = self.client.snapshot()?;
        Ok((now.evicted == 0).then_some(now.restores))
    }

    /// Waits until the queues run and there were more restores than `before`. When that was seen.
    /// Where the driver does not count them, a page is copied: queues that are stopped do it only
    /// when they run again.
    ///
    /// # Errors
    ///
    /// When it does not happen.
    pub fn restored(&mut self, before: u64) -> Result<Instant> {
        if !self.client.caps().vkfd {
            self.work()?;
            return Ok(Instant::now());
        }
        let start = Instant::now();
        loop {
            if self.restores()?.is_some_and(|restores| restores > before) {
                return Ok(Instant::now());
            }
            if start.elapsed() > PATIENCE {
                bail!("the queues were not restored within {PATIENCE:?}");
            }
            // A spinning poll would take the processor that the restore needs.
            std::thread::sleep(Duration::from_micros(10));
        }
    }

    /// A little work for the copy engine, to its end.
    fn work(&mut self) -> Result<()> {
        let half = vkfd_client::PAGE / 2;
        self.copy(self.out().offset(half), self.out(), half)
    }
}
