// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Stress in ztest's manner: many threads of simple operations, a checker that never stops,
//! failures on purpose.
//!
//! Processes of the driver live on one or more machines and are closed and opened again at any
//! time. Each thread owns a piece of memory and the buffers on it, and knows what its GPU must see.
//! The threads share everything else: the driver's locks, the GPUs, the notification source, the
//! process. Beside that (`svm`) threads have stripes of the same blocks of SVM memory. A checker
//! looks at all processes all the time, and at the end nothing may be left.
//!
//! The machines are of this process, or, where `VKFD_DEVICE` names a KFD, the one machine is the
//! system's.
//!
//! Lock: the thread that closes a process replaces the process of its `Place`. A thread that works
//! in it holds a clone, so a process ends with the last of its users.

mod svm;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use vkfd_client::{AllocOptions, Buffer, Client, GpuSet, Machine, MachineOptions, RegisterOptions, Strategy};
use vkfd_driver::sabotage::Switches;
use vkfd_driver::seams::device_memory::Kind;
use vkfd_scenarios::{pattern, wrong_page, Engine, Host, Memory, Stop};

const PAGE: u64 = 4096;
/// Pages that a thread owns.
const PAGES: u64 = 48;
/// Operations that a thread remembers.
const TRACE: usize = 24;
/// How long a process may stay evicted: longer than any restore takes while its neighbours work.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same in a guest, which may be emulated, with a kernel that looks at each access to memory.
const GUESTS_PATIENCE: Duration = Duration::from_secs(300);

/// How much.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How long.
    pub time: Duration,
    pub threads: usize,
    /// Machines, where they are of this process.
    pub machines: usize,
    /// Processes on each.
    pub processes: usize,
    /// For everything that is chosen.
    pub seed: u64,
    /// Failures of the driver's operations on purpose.
    pub failures: bool,
    /// What is broken on purpose.
    pub sabotage: Switches,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub operations: u64,
    /// Failures, each with the last operations of its thread.
    pub failures: Vec<String>,
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A process, whose KFD it is of, and its memory for SVM.
#[derive(Clone)]
struct Process {
    host: Arc<Host>,
    client: Client,
    area: Arc<svm::Area>,
}

impl Process {
    fn open(host: &Arc<Host>, xnack: bool) -> Result<Self> {
        let client = match host.open(xnack) {
            Err(Stop::Skip(_)) => host.open(false),
            opened => opened,
        };
        let client = client.map_err(said).context("open")?;
        Ok(Self { host: host.clone(), client, area: Arc::new(svm::Area::new()?) })
    }
}

/// Where a process is, which may be replaced by a new one.
struct Place(Mutex<Process>);

impl Place {
    fn process(&self) -> Process {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts a new one there; what was there before.
    fn replace(&self, fresh: Process) -> Process {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), fresh)
    }
}

struct Shared {
    plan: Plan,
    places: Vec<Place>,
    stop: AtomicBool,
    operations: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Shared {
    fn fail(&self, failure: String) {
        self.stop.store(true, Ordering::SeqCst);
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }
}

/// Runs a plan.
///
/// # Errors
///
/// When the machines cannot be made. What goes wrong later is in the report.
pub fn run(plan: Plan) -> Result<Report> {
    let hosts = hosts(plan)?;
    let free = hosts.iter().map(|host| free_vram(host)).collect::<Result<Vec<_>>>()?;
    let mut places = Vec::new();
    for host in &hosts {
        for number in 0..plan.processes.max(1) {
            let process = Process::open(host, number % 2 == 1)?;
            places.push(Place(Mutex::new(process)));
        }
    }
    let shared = Arc::new(Shared {
        plan,
        places,
        stop: AtomicBool::new(false),
        operations: AtomicU64::new(0),
        failures: Mutex::default(),
    });
    let mut threads = Vec::new();
    for number in 0..plan.threads.max(1) {
        let shared = shared.clone();
        threads.push(std::thread::spawn(move || work(&shared, number)));
    }
    let checker = {
        let shared = shared.clone();
        std::thread::spawn(move || {
            if let Err(error) = watch(&shared) {
                shared.fail(format!("checker: {error:#}"));
            }
        })
    };
    let end = Instant::now() + plan.time;
    while Instant::now() < end && shared.goes_on() {
        std::thread::sleep(Duration::from_millis(20));
    }
    shared.stop.store(true, Ordering::SeqCst);
    for thread in threads.into_iter().chain([checker]) {
        if thread.join().is_err() {
            shared.fail("a thread panicked; its message is above".into());
        }
    }
    let operations = shared.operations.load(Ordering::SeqCst);
    let failures = std::mem::take(&mut *shared.failures.lock().unwrap_or_else(PoisonError::into_inner));
    drop(shared);
    let mut report = Report { operations, failures };
    for (host, free) in hosts.iter().zip(free) {
        if let Err(left) = nothing_left(host, &free) {
            report.failures.push(format!("{left:#}"));
        }
    }
    Ok(report)
}

/// The system's KFD, or machines with one kind of memory and the other.
fn hosts(plan: Plan) -> Result<Vec<Arc<Host>>> {
    if let Some(system) = Host::of_the_system() {
        ensure!(plan.sabotage == Switches::NONE, "only a driver in this process can be broken by its user");
        let gpus = system.open(false).map_err(said)?.gpus().len();
        ensure!(gpus >= 2, "there have to be two GPUs, and there are {gpus}");
        return Ok(vec![Arc::new(system)]);
    }
    let machine = |number: usize| {
        let mut options = MachineOptions { gpus: 2, vram_bytes: 64 << 20, ..MachineOptions::default() };
        options.driver.sabotage = plan.sabotage;
        options.driver.device_memory = if number % 2 == 0 { Kind::Coherent } else { Kind::Private };
        Ok(Arc::new(Host::InProcess(Machine::new(&options).context("a machine")?)))
    };
    (0..plan.machines.max(1)).map(machine).collect()
}

/// The free part of each GPU's memory.
fn free_vram(host: &Host) -> Result<Vec<u64>> {
    let client = host.open(false).map_err(said)?;
    client.gpus().iter().map(|gpu| Ok(client.available_vram(gpu.id)?)).collect()
}

/// All processes are closed; `free` has the free bytes from before the first one.
fn nothing_left(host: &Host, free: &[u64]) -> Result<()> {
    if let Host::InProcess(machine) = host {
        let used = machine.driver().limit().used();
        ensure!(used == 0, "{used:#x} bytes stay charged when all processes have ended");
        for device in machine.driver().devices() {
            let used = device.vram().used();
            ensure!(used == 0, "{used:#x} bytes of VRAM are left of processes that have ended");
        }
    }
    let now = free_vram(host)?;
    ensure!(
        now == free,
        "{free:x?} bytes of the GPUs' memory were free, and {now:x?} are when all processes have ended"
    );
    Ok(())
}

/// A scenario's way to stop as an error of a test.
pub(crate) fn said(stop: Stop) -> anyhow::Error {
    match stop {
        Stop::Skip(why) => anyhow::anyhow!("it cannot be done here: {why}"),
        Stop::Fail(error) => error,
    }
}

/// What must hold at any time.
fn watch(shared: &Shared) -> Result<()> {
    let mut evicted_since: Vec<Option<(Instant, u64)>> = vec![None; shared.places.len()];
    while shared.goes_on() {
        for (place, since) in shared.places.iter().zip(&mut evicted_since) {
            let process = place.process();
            let patience = if matches!(*process.host, Host::Device(_)) { GUESTS_PATIENCE } else { PATIENCE };
            let info = process.client.snapshot()?;
            ensure!(info.restores <= info.evictions, "more restores than evictions: {info:?}");
            ensure!(info.evictions - info.restores <= 1, "evicted twice without a restore: {info:?}");
            ensure!(info.evicted <= 1 && info.vms <= 2, "{info:?}");
            *since = match *since {
                _ if info.evicted == 0 => None,
                Some((start, restores)) if restores == info.restores => {
                    ensure!(start.elapsed() < patience, "evicted for {patience:?}: {info:?}");
                    Some((start, restores))
                }
                _ => Some((Instant::now(), info.restores)),
            };
            for bo in process.client.bos()? {
                let counted = bo.invalid_ranges + bo.gone_ranges;
                ensure!(counted <= bo.ranges, "more ranges invalid than there are: {bo:?}");
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

fn work(shared: &Arc<Shared>, number: usize) {
    let seed = shared.plan.seed.wrapping_add((number as u64) << 32);
    let trace = VecDeque::with_capacity(TRACE);
    let mut worker = Worker { shared: shared.clone(), number: number as u64, dice: Dice(seed), trace };
    if let Err(error) = worker.run() {
        let trace: Vec<_> = worker.trace.iter().map(String::as_str).collect();
        shared.fail(format!("thread {number}: {error:#}\nlast operations:\n  {}", trace.join("\n  ")));
    }
}

struct Worker {
    shared: Arc<Shared>,
    /// Which thread it is.
    number: u64,
    dice: Dice,
    trace: VecDeque<String>,
}

/// What a thread has in a process: its memory, all of which has a pattern, and a buffer on it.
struct Job {
    process: Process,
    engine: Engine,
    memory: Memory,
    buffer: Buffer,
    /// Page of memory at each page of the buffer.
    pages: Vec<u64>,
    seeds: Vec<u64>,
}

impl Worker {
    fn note(&mut self, what: String) {
        if self.trace.len() == TRACE {
            self.trace.pop_front();
        }
        self.trace.push_back(what);
        self.shared.operations.fetch_add(1, Ordering::Relaxed);
    }

    fn run(&mut self) -> Result<()> {
        while self.shared.goes_on() {
            let at = usize::try_from(self.dice.below(self.shared.places.len() as u64))?;
            if self.dice.below(2) == 0 {
                self.use_svm(at)?;
                continue;
            }
            self.note(format!("a job in process {at}"));
            let mut job = self.start(at)?;
            for _ in 0..self.dice.below(60) {
                if !self.shared.goes_on() {
                    break;
                }
                self.act(&mut job).with_context(|| format!("in process {at}: {:?}", job.process.client.snapshot()))?;
            }
            self.finish(job, at)?;
        }
        Ok(())
    }

    /// A job of SVM in a process.
    fn use_svm(&mut self, at: usize) -> Result<()> {
        self.note(format!("SVM in process {at}"));
        let process = self.shared.places[at].process();
        let thread = (self.number, self.shared.plan.threads.max(1) as u64);
        let mut job = svm::Job::start(self, &process, thread)?;
        for _ in 0..self.dice.below(120) {
            if !self.shared.goes_on() {
                break;
            }
            job.act(self).with_context(|| format!("SVM in process {at}: {:?}", process.client.svm()))?;
        }
        job.finish(self)
    }

    /// Makes a call, sometimes with one of the driver's operations failing: then it fails with
    /// ENOMEM, or does not, and works the next time.
    fn call<T>(&mut self, process: &Process, what: &str, call: impl Fn() -> vkfd_client::Result<T>) -> Result<T> {
        let named_before = process.area.ended();
        if self.shared.plan.failures && self.dice.below(4) == 0 {
            let n = self.dice.below(40);
            self.note(format!("{what}, failpoint {n}"));
            let (result, reached) = process.host.fail_nth(n, &call).map_err(said)?;
            match result {
                Ok(value) => return Ok(value),
                Err(error) if !reached && !process.area.has_named(&error, named_before) => {
                    return Err(error).context(format!("{what}, without a failure on purpose"))
                }
                Err(_) => {}
            }
        }
        self.note(what.to_owned());
        loop {
            let named_before = process.area.ended();
            match call() {
                Err(error) if process.area.has_named(&error, named_before) => {}
                done => return done.with_context(|| what.to_owned()),
            }
        }
    }

    fn start(&mut self, at: usize) -> Result<Job> {
        let process = self.shared.places[at].process();
        let client = &process.client;
        let gpu = client.gpus()[usize::try_from(self.dice.below(2))?].id;
        let engine = self.call(&process, "an engine", || Engine::new(client, gpu))?;
        let memory = Memory::anonymous(PAGES * PAGE)?;
        memory.fill(0);
        let mut pages = Vec::new();
        let mut ranges = Vec::new();
        for _ in 0..1 + self.dice.below(12) {
            let first = self.dice.below(PAGES);
            let count = 1 + self.dice.below((PAGES - first).min(6));
            pages.extend(first..first + count);
            ranges.push(memory.range(first * PAGE, count * PAGE));
        }
        let strategy = [Strategy::Batch, Strategy::BatchFlag, Strategy::PerRange][usize::try_from(self.dice.below(3))?];
        let options = RegisterOptions { gpus: GpuSet::from(gpu), strategy, ..RegisterOptions::default() };
        // SAFETY: nobody has references to the memory, and only this thread and its GPU touch it.
        let buffer = self.call(&process, "register", || unsafe { client.register_ranges(&ranges, &options) })?;
        Ok(Job { process, engine, memory, buffer, pages, seeds: vec![0; usize::try_from(PAGES)?] })
    }

    fn act(&mut self, job: &mut Job) -> Result<()> {
        let first = self.dice.below(PAGES);
        let count = 1 + self.dice.below((PAGES - first).min(8));
        let seed = self.dice.next();
        let piece = (first * PAGE, count * PAGE);
        match self.dice.below(12) {
            0 => {
                self.note(format!("discard {first}+{count}"));
                job.memory.discard(piece.0, piece.1)?;
                self.fill(job, first, count, seed);
            }
            1 => {
                self.note(format!("replace {first}+{count}"));
                job.memory.replace(piece.0, piece.1)?;
                self.fill(job, first, count, seed);
            }
            2 | 3 => {
                self.note(format!("write {first}+{count}"));
                self.fill(job, first, count, seed);
            }
            4..=6 => self.read(job)?,
            7 | 8 => self.write(job, seed)?,
            9 => {
                let gpus = GpuSet::Only(job.buffer.mapped_on());
                self.call(&job.process, "unmap", || job.buffer.unmap(&gpus))?;
                self.call(&job.process, "map", || job.buffer.map(&gpus))?;
            }
            10 => {
                let gpu = job.process.client.gpus()[usize::try_from(self.dice.below(2))?].id;
                let bytes = (1 + self.dice.below(32)) * PAGE;
                let options =
                    if self.dice.below(2) == 0 { AllocOptions::vram(gpu, bytes) } else { AllocOptions::gtt(bytes) };
                let buffer = self.call(&job.process, "alloc", || job.process.client.alloc(&options))?;
                self.note("free".into());
                buffer.free()?;
            }
            _ => {
                self.note("snapshot".into());
                let handles: Vec<_> = job.buffer.handles().collect();
                for handle in handles {
                    job.process.client.ranges(handle)?;
                }
            }
        }
        Ok(())
    }

    fn fill(&self, job: &mut Job, first: u64, count: u64, seed: u64) {
        job.memory.fill_pages(first..first + count, seed);
        for page in first..first + count {
            if let Some(slot) = usize::try_from(page).ok().and_then(|page| job.seeds.get_mut(page)) {
                *slot = seed;
            }
        }
    }

    fn seed_of(job: &Job, page: u64) -> u64 {
        usize::try_from(page).ok().and_then(|page| job.seeds.get(page)).copied().unwrap_or(0)
    }

    fn read(&mut self, job: &mut Job) -> Result<()> {
        self.note("GPU read".into());
        let seen = job.engine.read(job.buffer.gpu_va(), job.buffer.len())?;
        let chunks = seen.chunks(pattern(0, 0).len());
        for (place, (page, bytes)) in job.pages.iter().zip(chunks).enumerate() {
            let seed = Self::seed_of(job, *page);
            if wrong_page(bytes, [*page], seed).is_some() {
                bail!("the GPU sees something else in page {page}, page {place} of the buffer, than the CPU wrote with seed {seed:#x}");
            }
        }
        Ok(())
    }

    fn write(&mut self, job: &mut Job, seed: u64) -> Result<()> {
        let place = self.dice.below(job.pages.len() as u64);
        let page = job.pages[usize::try_from(place)?];
        self.note(format!("GPU write to page {page}"));
        job.engine.write(job.buffer.gpu_va().offset(place * PAGE), &pattern(page, seed))?;
        if let Some(slot) = job.seeds.get_mut(usize::try_from(page)?) {
            *slot = seed;
        }
        if let Some(wrong) = job.memory.find_wrong(page..page + 1, seed) {
            bail!("the CPU does not see what the GPU wrote to page {wrong}");
        }
        Ok(())
    }

    /// Frees the buffer, or leaves that to the end of the process; sometimes replaces the process
    /// by a new one.
    fn finish(&mut self, job: Job, at: usize) -> Result<()> {
        let Job { process, engine, memory, buffer, .. } = job;
        self.note("the job ends".into());
        match self.dice.below(3) {
            0 => {
                // The memory goes first.
                drop(memory);
                buffer.free()?;
            }
            1 => buffer.free()?,
            _ => drop(buffer),
        }
        drop(engine);
        if self.dice.below(4) == 0 {
            self.note(format!("process {at} is replaced"));
            let fresh = Process::open(&process.host, self.dice.below(2) == 0)?;
            drop(self.shared.places[at].replace(fresh));
        }
        drop(process);
        Ok(())
    }
}
