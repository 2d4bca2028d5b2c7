// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Stress of SVM beside that of userptr: each process has memory of a few blocks that all threads
//! use at once. Each thread has its own stripes, and every block has stripes of all threads. A
//! thread's changes of its stripes, and moves of whole blocks, must not disturb the others. A call
//! about a thread's own memory succeeds, and CPU and GPU see the last write.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use vkfd_client::{Client, ClientError, Errno, GpuId, GpuVa, Location, SvmAccess, SvmSet, UserptrRange};
use vkfd_scenarios::{pattern, wrong_page, Engine, Memory};

use super::{Process, Worker, PAGE};

/// Pages that threads share: two blocks, and parts of those beside them.
const PAGES: u64 = 1400;
/// Pages in a row that are one thread's.
const STRIPE: u64 = 8;
/// Stripes that a job uses.
const STRIPES: u64 = 24;

/// A process's memory for SVM, between two pages that nobody may touch: so nothing else is in a
/// mapping with it, of which a GPU's fault would make a range.
pub(super) struct Area {
    memory: Memory,
    /// Stripes that something else of the program has got the addresses of.
    lost: Mutex<BTreeSet<u64>>,
    /// Calls about all of it that have begun.
    begun: AtomicU64,
    /// And that have ended.
    ended: AtomicU64,
}

impl Area {
    pub(super) fn new() -> Result<Self> {
        let memory = Memory::anonymous((PAGES + 2) * PAGE)?;
        for guard in [0, PAGES + 1] {
            memory.protect(guard * PAGE, PAGE, libc::PROT_NONE)?;
        }
        Ok(Self { memory, lost: Mutex::default(), begun: AtomicU64::new(0), ended: AtomicU64::new(0) })
    }

    /// The part of it that threads use.
    fn whole(&self) -> UserptrRange {
        self.memory.range(PAGE, PAGES * PAGE)
    }

    /// How many calls about all of it have ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether a call failed for addresses of an SVM range, while another thread made a call about
    /// all of this memory. That call may have named memory that was unmapped a moment ago, and that
    /// the client library has reserved since. `ended` is from before the call.
    pub(super) fn has_named(&self, error: &ClientError, ended: u64) -> bool {
        error.errno() == Some(Errno::ADDRINUSE) && self.begun.load(Ordering::SeqCst) != ended
    }

    /// Makes a call about all of it, only for its effect on the other threads' calls.
    fn name_all(&self, client: &Client, set: SvmSet) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        // What has no mapping just now fails it.
        // SAFETY: the memory is the stress's own, of which no reference is ever made.
        let _ = unsafe { client.svm_set(self.whole(), &[set]) };
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    fn lose(&self, stripe: u64) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).insert(stripe);
    }

    fn has(&self, stripe: u64) -> bool {
        !self.lost.lock().unwrap_or_else(PoisonError::into_inner).contains(&stripe)
    }
}

/// Some pages of a thread's own, and what is known of them.
struct Stripe {
    number: u64,
    /// What its pages have; zeroes without.
    seed: Option<u64>,
    /// The GPU may use it.
    given: bool,
    /// It has gone, and something else has its place.
    lost: bool,
}

impl Stripe {
    fn pages(&self) -> std::ops::Range<u64> {
        let first = 1 + self.number * STRIPE;
        first..(first + STRIPE).min(PAGES + 1)
    }

    /// Offset and bytes.
    fn bytes(&self) -> (u64, u64) {
        let pages = self.pages();
        (pages.start * PAGE, (pages.end - pages.start) * PAGE)
    }

    fn is_right(&self, seen: &[u8]) -> bool {
        match self.seed {
            Some(seed) => wrong_page(seen, self.pages(), seed).is_none(),
            None => seen.iter().all(|byte| *byte == 0),
        }
    }
}

/// What a thread does with its stripes of a process's memory.
pub(super) struct Job<'a> {
    process: &'a Process,
    gpu: GpuId,
    engine: Engine,
    xnack: bool,
    stripes: Vec<Stripe>,
}

impl<'a> Job<'a> {
    /// Of thread `number` of `threads`.
    pub(super) fn start(worker: &mut Worker, process: &'a Process, (number, threads): (u64, u64)) -> Result<Self> {
        let (client, area) = (&process.client, &process.area);
        let gpu = client.gpus()[usize::try_from(worker.dice.below(2))?].id;
        let engine = worker.call(process, "an engine", || Engine::new(client, gpu))?;
        let own = (number..PAGES.div_ceil(STRIPE)).step_by(usize::try_from(threads)?).filter(|n| area.has(*n));
        let stripe = |number| Stripe { number, seed: None, given: false, lost: false };
        let mut job = Self { process, gpu, engine, xnack: client.xnack()?, stripes: own.map(stripe).collect() };
        let count = job.stripes.len().max(1);
        job.stripes.rotate_left(usize::try_from(worker.dice.below(count as u64))? % count);
        job.stripes.truncate(usize::try_from(STRIPES)?);
        for at in 0..job.stripes.len() {
            // Whatever an earlier job has left.
            job.replace(at)?;
        }
        Ok(job)
    }

    fn va(&self, at: usize) -> GpuVa {
        GpuVa(self.process.area.memory.range(self.stripes[at].bytes().0, PAGE).start)
    }

    fn replace(&mut self, at: usize) -> Result<()> {
        let (offset, bytes) = self.stripes[at].bytes();
        self.process.area.memory.replace(offset, bytes).context("mmap")?;
        self.process.host.told();
        (self.stripes[at].seed, self.stripes[at].given) = (None, false);
        Ok(())
    }

    fn set(&self, worker: &mut Worker, what: &str, range: UserptrRange, set: SvmSet) -> Result<()> {
        // SAFETY: the memory is the stress's own, of which no reference is ever made.
        worker.call(self.process, what, || unsafe { self.process.client.svm_set(range, &[set]) })
    }

    fn give(&mut self, worker: &mut Worker, at: usize) -> Result<()> {
        let (offset, bytes) = self.stripes[at].bytes();
        let access = if worker.dice.below(4) == 0 { SvmAccess::InPlace } else { SvmAccess::Migrate };
        let range = self.process.area.memory.range(offset, bytes);
        self.set(worker, "SVM access", range, SvmSet::Access(self.gpu, access))?;
        self.stripes[at].given = true;
        Ok(())
    }

    fn write(&mut self, at: usize, seed: u64) {
        self.process.area.memory.fill_pages(self.stripes[at].pages(), seed);
        self.stripes[at].seed = Some(seed);
    }

    fn cpu_sees(&self, at: usize) -> Result<()> {
        let stripe = &self.stripes[at];
        let (offset, bytes) = stripe.bytes();
        if !stripe.is_right(&self.process.area.memory.read(offset, bytes)) {
            bail!(
                "the CPU sees something else in pages {:?} than was written last ({:x?})",
                stripe.pages(),
                stripe.seed
            );
        }
        Ok(())
    }

    fn gpu_sees(&mut self, at: usize) -> Result<()> {
        let (va, bytes) = (self.va(at), self.stripes[at].bytes().1);
        let seen = self.engine.read(va, bytes)?;
        let stripe = &self.stripes[at];
        if !stripe.is_right(&seen) {
            bail!(
                "the GPU sees something else in pages {:?} than was written last ({:x?})",
                stripe.pages(),
                stripe.seed
            );
        }
        Ok(())
    }

    /// One thing with one stripe, or with the memory as a whole.
    pub(super) fn act(&mut self, worker: &mut Worker) -> Result<()> {
        if self.stripes.is_empty() {
            return Ok(());
        }
        let at = usize::try_from(worker.dice.below(self.stripes.len() as u64))?;
        if self.stripes[at].lost {
            return Ok(());
        }
        let seed = worker.dice.next();
        let (offset, bytes) = self.stripes[at].bytes();
        let (pages, usable) = (self.stripes[at].pages(), self.stripes[at].given || self.xnack);
        match worker.dice.below(16) {
            0 | 1 => {
                worker.note(format!("SVM: write {pages:?}"));
                self.write(at, seed);
            }
            2 => {
                worker.note(format!("SVM: the CPU reads {pages:?}"));
                self.cpu_sees(at)?;
            }
            3..=5 if usable => {
                worker.note(format!("SVM: the GPU reads {pages:?}"));
                self.gpu_sees(at)?;
            }
            6 | 7 if usable => {
                worker.note(format!("SVM: the GPU writes {pages:?}"));
                let data: Vec<u8> = pages.flat_map(|page| pattern(page, seed)).collect();
                self.engine.write(self.va(at), &data)?;
                self.stripes[at].seed = Some(seed);
                self.cpu_sees(at)?;
            }
            3..=9 => self.give(worker, at)?,
            10 => {
                let range = self.process.area.memory.range(offset, bytes);
                self.set(worker, "SVM prefetch", range, SvmSet::Prefetch(Location::Gpu(self.gpu)))?;
            }
            11 => {
                // Everybody's.
                let to = if worker.dice.below(3) == 0 { Location::System } else { Location::Gpu(self.gpu) };
                worker.note(format!("SVM: prefetch of all to {to:?}"));
                self.process.area.name_all(&self.process.client, SvmSet::Prefetch(to));
            }
            12 => {
                worker.note(format!("SVM: discard {pages:?}"));
                self.process.area.memory.discard(offset, bytes)?;
                self.process.host.told();
                self.stripes[at].seed = None;
            }
            13 => {
                worker.note(format!("SVM: replace {pages:?}"));
                self.replace(at)?;
            }
            14 => {
                worker.note(format!("SVM: unmap {pages:?}"));
                self.process.area.memory.unmap(offset, bytes)?;
                self.process.host.told();
                (self.stripes[at].seed, self.stripes[at].given) = (None, false);
                match self.process.area.memory.map_again(offset, bytes) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        self.stripes[at].lost = true;
                        self.process.area.lose(self.stripes[at].number);
                    }
                    mapped => mapped.context("mmap")?,
                }
            }
            _ => {
                worker.note(format!("SVM: protect {pages:?}"));
                if worker.dice.below(2) == 0 {
                    self.process.area.memory.protect(offset, bytes, libc::PROT_READ)?;
                    self.cpu_sees(at)?;
                } else {
                    // Long enough for others to make a call beside it.
                    self.process.area.memory.protect(offset, bytes, libc::PROT_NONE)?;
                    std::thread::sleep(Duration::from_millis(2));
                }
                self.process.area.memory.protect(offset, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
                self.process.host.told();
            }
        }
        Ok(())
    }

    /// Looks at everything once more.
    pub(super) fn finish(mut self, worker: &mut Worker) -> Result<()> {
        worker.note("SVM: the job ends".into());
        for at in 0..self.stripes.len() {
            if self.stripes[at].lost {
                continue;
            }
            if self.stripes[at].given || self.xnack {
                self.gpu_sees(at)?;
            }
            self.cpu_sees(at)?;
        }
        Ok(())
    }
}
