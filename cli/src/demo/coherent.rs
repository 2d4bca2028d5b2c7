// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd demo coherent`: the life of a buffer that has no copies. It moves to a GPU, is computed
//! on, and is read and written by the CPU in place. It is evicted when the GPU's memory is needed,
//! and fetched again, always at the same addresses.
//!
//! After every step, the driver's counters show the moved pages, and checksums of the GPU and of
//! the CPU compare the buffer's contents. With private memory the same life, except that pages come
//! back when the CPU touches them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use vkfd_client::uapi::vkfd::{SvmInfo, SVM_MEMORY_COHERENT, SVM_MEMORY_NONE};
use vkfd_client::{AllocOptions, Client, GpuId, GpuVa, Kernel, Location, SvmAccess, SvmSet, UserptrRange, PAGE};
use vkfd_driver::seams::device_memory::Kind;
use vkfd_host::size;

use super::conclude;
use crate::engine::{Comparison, Engine, Segment};
use crate::format::{self, bytes, count, rate, time};
use crate::memory::{self, Mapping};
use crate::report::{Output, Report, Step, Title};
use crate::session::{Session, SessionArgs, PATIENCE};

/// Bytes of one checksum.
const SEGMENT: u64 = 2 << 20;
/// The largest buffer.
const MOST: u64 = 1 << 40;

/// The options of `vkfd demo coherent`.
#[derive(Args, Clone, Debug)]
pub struct CoherentArgs {
    #[command(flatten)]
    session: SessionArgs,

    /// Use private device memory, for comparison: its pages come back when the CPU touches them. A
    /// kernel's driver has one of the two kinds
    #[arg(long, conflicts_with = "device")]
    private: bool,

    /// The buffer's size, a multiple of 2M; the GPU's memory must have room for it. A number alone
    /// counts MiB
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = segments)]
    size: u64,

    /// Say what each step has checked
    #[arg(long, short)]
    verbose: bool,

    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// What the run takes besides its buffer: it fills the GPU's memory.
const NEEDED: u64 = 1100 << 20;

/// Whole segments.
fn segments(text: &str) -> Result<u64, String> {
    match size::parse_counting(text, 1 << 20)? {
        bytes @ SEGMENT..=MOST if bytes % SEGMENT == 0 => Ok(bytes),
        _ => Err("a multiple of 2M, up to 1T, is wanted".into()),
    }
}

const INTRODUCTION: &str = "A buffer moves to a GPU's memory and keeps its addresses. CPU and GPUs use it where it is, without copies in the program. Each \
    step below was done and checked (-v says what); the driver's counters say how many pages moved.";

/// Runs it.
///
/// # Errors
///
/// What kept it from starting; what fails later is in the report.
pub fn run(args: &CoherentArgs) -> Result<ExitCode> {
    if args.session.device.is_none() {
        memory::require(NEEDED + (args.size))?;
    }
    let output = Output::new(args.json).with_checks(args.verbose);
    let kind = if args.private { Kind::Private } else { Kind::Coherent };
    let session = Session::with_memory(&args.session, kind)?;
    let client = &session.client;
    let info = client.svm().context("this driver does not tell where memory is (it is not vkfd, or an older one)")?;
    output.text(INTRODUCTION)?;
    output.line("")?;
    output.text(&session.describe())?;
    let mut report = Report::new(&output);
    if info.memory == SVM_MEMORY_NONE {
        let why = match &session.machine {
            Some(machine) => format!(
                "memory cannot be moved in this process: {}",
                vkfd_host::migrate::why_not_moved(machine.memory())
            ),
            None => "this driver moves no memory: load it with the parameter memory=1 or memory=2".to_owned(),
        };
        report.skip("life", "The life of a buffer in a GPU's memory", &why)?;
    } else {
        life(args, &session, &mut report, info.memory == SVM_MEMORY_COHERENT)?;
    }
    conclude(&output, &[&report])?;
    let memory = match info.memory {
        SVM_MEMORY_NONE => "none",
        SVM_MEMORY_COHERENT => "coherent",
        _ => "private",
    };
    output.document(&json!({
        "vkfd": env!("CARGO_PKG_VERSION"), "command": "demo coherent", "ok": report.ok(), "kfd": session.json(),
        "memory": memory, "bytes": args.size, "steps": report.steps,
    }))?;
    Ok(if report.ok() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn life(args: &CoherentArgs, session: &Session, report: &mut Report<'_>, coherent: bool) -> Result<()> {
    let mut buffer = Buffer::new(session, args.size, coherent)?;
    report.output().heading(&format!("The life of {}", bytes(buffer.bytes)))?;
    let born = report.step("begin", "The CPU fills it; GPUs may use it", |step| buffer.begin(step))?;
    if !born {
        return Ok(());
    }
    report.step("prefetch", Title::new("Prefetching to the GPU", "Prefetched to the GPU"), |step| {
        buffer.prefetch(step)
    })?;
    report.step("compute", "The GPU computes on it: numbers all its words", |step| buffer.compute(step))?;
    report.step("cpu-reads", "The CPU reads all of it", |step| buffer.cpu_reads(step))?;
    report.step("cpu-writes", "The CPU writes a word to every page", |step| buffer.cpu_writes(step))?;
    report.step("pressure", "Somebody needs the GPU's memory", |step| buffer.pressure(step))?;
    report.step("again", "The memory is free again, and the buffer is prefetched again", |step| buffer.again(step))?;
    let title = Title::new("Prefetching back", "Prefetched back, and the GPUs' access ends");
    report.step("end", title, |step| buffer.end(step))?;
    Ok(())
}

/// The buffer.
struct Buffer<'a> {
    client: &'a Client,
    /// One for each GPU; the buffer moves to the first's memory.
    engines: Vec<Engine>,
    memory: Mapping,
    bytes: u64,
    coherent: bool,
    in_process: bool,
    /// Bytes of the GPU's memory that were free before there was a buffer.
    free: u64,
}

impl<'a> Buffer<'a> {
    fn new(session: &'a Session, bytes: u64, coherent: bool) -> Result<Self> {
        let client = &session.client;
        let segments = usize::try_from(bytes / SEGMENT)?;
        let engines: Vec<Engine> =
            client.gpus().iter().map(|gpu| Engine::new(client, gpu.id, segments)).collect::<Result<_>>()?;
        let gpu = engines.first().context("there is no GPU")?.gpu;
        let free = client.available_vram(gpu)?;
        // Page tables take 8 bytes a page, and some more around the buffer.
        let most = (free - free / 256).saturating_sub(2 * SEGMENT) / SEGMENT * SEGMENT;
        anyhow::ensure!(
            bytes <= most,
            "a buffer of {} does not fit into the GPU's memory: --size {}M does",
            format::bytes(bytes),
            most >> 20
        );
        let memory = Mapping::anonymous(bytes).context("cannot map the buffer; a smaller --size needs less")?;
        let in_process = session.machine.is_some();
        Ok(Self { client, free, engines, memory, bytes, coherent, in_process })
    }

    fn gpu(&self) -> GpuId {
        self.engines[0].gpu
    }

    fn pages(&self) -> u64 {
        self.bytes / PAGE
    }

    fn range(&self) -> UserptrRange {
        UserptrRange { start: self.memory.start().0, size: self.bytes }
    }

    fn va(&self) -> GpuVa {
        GpuVa(self.memory.start().0)
    }

    fn set(&self, list: &[SvmSet]) -> Result<()> {
        // SAFETY: the buffer is only copied to and from, never referred to.
        unsafe { self.client.svm_set(self.range(), list)? };
        Ok(())
    }

    /// The counters, with nothing waiting for a restore.
    fn counters(&self) -> Result<SvmInfo> {
        let start = Instant::now();
        while self.client.snapshot()?.evicted != 0 {
            anyhow::ensure!(start.elapsed() < PATIENCE, "the queues were not restored within {PATIENCE:?}");
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(self.client.svm()?)
    }

    /// CPU and GPUs must see the same. With private memory this brings it back: the GPUs look
    /// first.
    fn verify(&mut self, step: &mut Step) -> Result<()> {
        let segments: Vec<Segment> =
            (0..self.bytes / SEGMENT).map(|i| Segment { va: self.va().offset(i * SEGMENT), bytes: SEGMENT }).collect();
        let seen: Vec<Vec<u32>> =
            self.engines.iter_mut().map(|engine| engine.checksums(&segments)).collect::<Result<_>>()?;
        let mut piece = vec![0; usize::try_from(SEGMENT)?];
        let mut checksum = |i: u64| {
            self.memory.read(i * SEGMENT, &mut piece);
            crc32fast::hash(&piece)
        };
        let cpu: Vec<u32> = (0..self.bytes / SEGMENT).map(&mut checksum).collect();
        for (engine, seen) in self.engines.iter().zip(seen) {
            let found = Comparison::new(&cpu, &seen);
            let who = if self.engines.len() > 1 { format!("GPU {}", engine.gpu) } else { "the GPU".to_owned() };
            step.check(format!("{who} sees what the CPU sees"), found.same(), || found.difference());
        }
        Ok(())
    }

    /// Calls `f` with each page's number and its contents, in order, and writes back what `write`
    /// says.
    fn each_page(&self, write: bool, mut f: impl FnMut(u64, &mut [u8])) -> Result<()> {
        let mut page = vec![0; usize::try_from(PAGE)?];
        for number in 0..self.pages() {
            self.memory.read(number * PAGE, &mut page);
            f(number, &mut page);
            if write {
                self.memory.write(number * PAGE, &page[..8]);
            }
        }
        Ok(())
    }

    fn begin(&mut self, step: &mut Step) -> Result<()> {
        let before = self.client.svm()?;
        let mut page = vec![0; usize::try_from(PAGE)?];
        for number in 0..self.pages() {
            page.fill(u8::try_from(number % 251)?);
            page[..8].copy_from_slice(&number.to_le_bytes());
            self.memory.write(number * PAGE, &page);
        }
        // In place: where it is, is said by prefetches alone.
        let access = |engine: &Engine| SvmSet::Access(engine.gpu, SvmAccess::InPlace);
        let list: Vec<SvmSet> = self.engines.iter().map(access).collect();
        self.set(&list)?;
        self.verify(step)?;
        let after = self.counters()?;
        step.check("all of it is in system memory", after.vram_pages == 0, || on_gpu(&after));
        step.note(format!("CPU and GPUs have it at {}", self.memory.start()));
        step.moves(&before, &after);
        Ok(())
    }

    /// Moves all of it to the GPU.
    fn fetch(&mut self, step: &mut Step) -> Result<()> {
        let before = self.counters()?;
        let start = Instant::now();
        self.client.prefetch(self.range(), Location::Gpu(self.gpu()))?;
        let took = start.elapsed();
        let after = self.counters()?;
        let (moved, wanted) = (after.pages_in - before.pages_in, self.pages() - before.vram_pages);
        step.took("prefetch", took);
        step.note(format!("moved {} in {} ({})", bytes(moved * PAGE), time(took), rate(moved * PAGE, took)));
        step.check("all of it is in the GPU's memory", after.vram_pages == self.pages(), || on_gpu(&after));
        step.check("each page moved once", moved == wanted, || {
            format!("{} pages moved, not {}", count(moved), count(wanted))
        });
        step.moves(&before, &after);
        Ok(())
    }

    fn prefetch(&mut self, step: &mut Step) -> Result<()> {
        self.fetch(step)?;
        if self.in_process {
            step.note("the first time is the slowest: the GPU's memory, a file here, gets its own pages");
        }
        Ok(())
    }

    fn compute(&mut self, step: &mut Step) -> Result<()> {
        let before = self.counters()?;
        let kernel = Kernel::Iota64 { dst: self.va(), count: self.bytes / 8, start: 1 << 32 };
        self.engines[0].run(&kernel)?;
        let after = self.counters()?;
        step.check("no page moved", unmoved(&before, &after), || moved(&before, &after));
        step.moves(&before, &after);
        Ok(())
    }

    fn cpu_reads(&mut self, step: &mut Step) -> Result<()> {
        let before = self.counters()?;
        let mut wrong = None;
        let mut expected = 1_u64 << 32;
        let start = Instant::now();
        self.each_page(false, |number, page| {
            for word in page.chunks_exact(8) {
                if word != expected.to_le_bytes() {
                    wrong.get_or_insert(number);
                }
                expected += 1;
            }
        })?;
        let took = start.elapsed();
        step.took("read", took).note(format!("read in {} ({})", time(took), rate(self.bytes, took)));
        step.check("every word is what the GPU wrote", wrong.is_none(), || {
            format!("page {} is not", wrong.unwrap_or(0))
        });
        self.in_place(step, &before)
    }

    /// What a look of the CPU at all pages must have done to them.
    fn in_place(&self, step: &mut Step, before: &SvmInfo) -> Result<()> {
        let mut after = self.counters()?;
        if self.coherent {
            step.check("no page moved: it was used in the GPU's memory", unmoved(before, &after), || {
                moved(before, &after)
            });
        } else {
            // The driver gets the report of a returned page a moment after the touching thread has
            // it.
            let start = Instant::now();
            while after.vram_pages != 0 && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_micros(50));
                after = self.counters()?;
            }
            let all = before.vram_pages == self.pages() && after.vram_pages == 0;
            step.check("private memory: all of it came back", all, || on_gpu(&after));
        }
        step.moves(before, &after);
        Ok(())
    }

    fn cpu_writes(&mut self, step: &mut Step) -> Result<()> {
        if !self.coherent {
            self.client.prefetch(self.range(), Location::Gpu(self.gpu()))?;
        }
        let before = self.counters()?;
        self.each_page(true, |number, page| page[..8].copy_from_slice(&(!number).to_le_bytes()))?;
        self.in_place(step, &before)?;
        self.verify(step)
    }

    fn pressure(&mut self, step: &mut Step) -> Result<()> {
        if !self.coherent {
            self.client.prefetch(self.range(), Location::Gpu(self.gpu()))?;
        }
        let before = self.counters()?;
        // The free memory without half of the buffer, because SVM memory counts as available.
        let wanted = self.client.available_vram(self.gpu())?.saturating_sub(self.bytes / 2) / SEGMENT * SEGMENT;
        let options = AllocOptions { cpu_map: false, ..AllocOptions::vram(self.gpu(), wanted) };
        let start = Instant::now();
        let other = self.client.alloc(&options)?;
        let took = start.elapsed();
        let after = self.counters()?;
        let (evicted, out) = (after.evictions - before.evictions, after.pages_out - before.pages_out);
        step.did(format!("A buffer object of {} is allocated in the GPU's memory ({})", bytes(wanted), time(took)));
        step.took("allocate", took).number("evicted_bytes", out * PAGE);
        step.check(
            "for that the driver evicted half of the buffer, or more",
            evicted > 0 && out * PAGE >= self.bytes / 2,
            || format!("{} evictions, {} pages out", count(evicted), count(out)),
        );
        let sum = after.vram_pages + out;
        step.check("every page is in one place", sum == before.vram_pages, || on_gpu(&after));
        step.moves(&before, &after);
        // With private memory this is a touch, too.
        self.verify(step)?;
        other.free()?;
        Ok(())
    }

    fn again(&mut self, step: &mut Step) -> Result<()> {
        self.fetch(step)?;
        self.verify(step)
    }

    fn end(&mut self, step: &mut Step) -> Result<()> {
        let before = self.counters()?;
        self.client.prefetch(self.range(), Location::System)?;
        self.verify(step)?;
        let list: Vec<SvmSet> = self.engines.iter().map(|engine| SvmSet::Access(engine.gpu, SvmAccess::None)).collect();
        self.set(&list)?;
        let after = self.counters()?;
        step.check("nothing of it is in the GPU's memory", after.vram_pages == 0, || on_gpu(&after));
        let counted = after.pages_in == after.pages_out;
        step.check("as many pages came back as had gone there", counted, || moved(&before, &after));
        let free = self.client.available_vram(self.gpu())?;
        // Page tables stay for the next time.
        let tables = self.client.snapshot()?.page_table_bytes;
        step.check("the GPU's memory is free again, but for page tables", free + tables >= self.free, || {
            format!("{} are free, and {} were", bytes(free), bytes(self.free))
        });
        step.moves(&before, &after);
        Ok(())
    }
}

impl Step {
    /// Shows the counters that report moved pages, before and after.
    fn moves(&mut self, before: &SvmInfo, after: &SvmInfo) -> &mut Self {
        self.counts(&[
            ("pages_on_gpu", before.vram_pages, after.vram_pages),
            ("moved_in", before.pages_in, after.pages_in),
            ("moved_out", before.pages_out, after.pages_out),
            ("evictions", before.evictions, after.evictions),
        ])
    }
}

fn on_gpu(info: &SvmInfo) -> String {
    format!("{} pages are in the GPU's memory", count(info.vram_pages))
}

fn unmoved(before: &SvmInfo, after: &SvmInfo) -> bool {
    let of = |info: &SvmInfo| (info.vram_pages, info.pages_in, info.pages_out, info.evictions);
    of(before) == of(after)
}

fn moved(before: &SvmInfo, after: &SvmInfo) -> String {
    let (into, out) = (after.pages_in - before.pages_in, after.pages_out - before.pages_out);
    format!("{} pages moved in and {} out; {}", count(into), count(out), on_gpu(after))
}
