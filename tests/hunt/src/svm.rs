// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random SVM sequences on a real machine in this process: memory goes to a GPU and back, and is
//! written and read on both sides. It is unmapped, mapped again, discarded and copied by a fork,
//! under a VRAM that is too small for it. The flat model holds each page's content, and whether the
//! GPU may use it. A thread that reads must see what was written last, wherever the page is.
//!
//! [`run_together`] does that from several threads of one process at once, each with stripes of the
//! same memory. Every block has stripes of all threads. A thread's changes of its stripes, and
//! moves of whole blocks, must not disturb the others.

use std::cell::RefCell;
use std::fmt::Display;
use std::io::ErrorKind;

use proptest::prelude::*;
use vkfd_client::uapi::vkfd::SVM_MEMORY_NONE;
use vkfd_client::{AllocOptions, Errno, GpuVa, Location, SvmAccess, SvmSet};
use vkfd_driver::sabotage::Switches;
use vkfd_driver::seams::device_memory::Kind;
use vkfd_scenarios::{pattern, Engine, Memory, Seen, Stop, World, WorldSpec};

const PAGE: u64 = 4096;
/// Pages of memory: six blocks, the last one not whole.
const PAGES: u64 = 2900;
/// VRAM: less than that.
const VRAM: u64 = 8 << 20;
/// Pages in a row that a thread has of memory that is several threads'.
const STRIPE: u64 = 16;

/// First page and pages.
pub type Piece = (u64, u64);

/// What is done.
#[derive(Clone, Debug)]
pub enum Op {
    /// The CPU writes.
    Write(Piece, u64),
    /// The GPU writes where it may.
    GpuWrite(Piece, u64),
    /// The GPU reads where it may.
    GpuRead(Piece),
    /// The GPU is given access.
    Give(Piece),
    /// Access is taken from it.
    Take(Piece),
    /// What was said of the first page is asked for.
    Get(u64),
    /// Prefetch to the GPU.
    ToGpu(Piece),
    /// Prefetch to system memory.
    ToSystem(Piece),
    Unmap(Piece),
    /// mmap where nothing is.
    MapAgain(Piece),
    /// mmap over existing memory.
    Replace(Piece),
    /// MADV_DONTNEED.
    Discard(Piece),
    /// mprotect: nobody may touch it.
    Forbid(Piece),
    /// mprotect: everybody may again.
    Permit(Piece),
    /// A buffer of so many MiB of VRAM, for which SVM memory gives way.
    Vram(u64),
    /// fork; the child writes to a page of each ten, and ends.
    Fork,
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let piece = prop_oneof![3 => (0..PAGES, 1..80_u64), 2 => (0..PAGES, 300..1100_u64), 1 => Just((0, PAGES))];
    let written = (piece.clone(), any::<u64>());
    let op = prop_oneof![
        4 => written.clone().prop_map(|(piece, seed)| Op::Write(piece, seed)),
        4 => written.prop_map(|(piece, seed)| Op::GpuWrite(piece, seed)),
        6 => piece.clone().prop_map(Op::GpuRead),
        5 => piece.clone().prop_map(Op::Give),
        1 => piece.clone().prop_map(Op::Take),
        2 => (0..PAGES).prop_map(Op::Get),
        6 => piece.clone().prop_map(Op::ToGpu),
        3 => piece.clone().prop_map(Op::ToSystem),
        2 => piece.clone().prop_map(Op::Unmap),
        2 => piece.clone().prop_map(Op::MapAgain),
        1 => piece.clone().prop_map(Op::Replace),
        2 => piece.clone().prop_map(Op::Discard),
        1 => piece.clone().prop_map(Op::Forbid),
        2 => piece.prop_map(Op::Permit),
        1 => (1..4_u64).prop_map(Op::Vram),
        1 => Just(Op::Fork),
    ];
    proptest::collection::vec(op, 4..24)
}

#[derive(Clone, Copy, Debug)]
struct Page {
    mapped: bool,
    forbidden: bool,
    given: bool,
    /// The seed of its pattern; zeros without.
    seed: Option<u64>,
}

const FRESH: Page = Page { mapped: true, forbidden: false, given: false, seed: None };

impl Page {
    /// Whether it may be touched.
    const fn open(&self) -> bool {
        self.mapped && !self.forbidden
    }

    fn bytes(self, page: u64) -> Vec<u8> {
        self.seed.map_or_else(|| vec![0; pattern(0, 0).len()], |seed| pattern(page, seed))
    }
}

/// A machine's kind of memory, and how its GPU faults.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Whether the CPU uses VRAM in place.
    pub coherent: bool,
    /// Whether the GPU retries faults.
    pub xnack: bool,
    /// What is broken on purpose.
    pub sabotage: Switches,
}

/// Which pages a thread has: of so many threads, which one it is.
#[derive(Clone, Copy)]
struct Share {
    of: u64,
    number: u64,
}

impl Share {
    const fn has(self, page: u64) -> bool {
        page / STRIPE % self.of == self.number
    }
}

struct Live<'a> {
    world: &'a World,
    memory: &'a Memory,
    engine: RefCell<Engine>,
    share: Share,
    /// All pages of the memory; the other threads' pages are never looked at.
    pages: Vec<Page>,
    xnack: bool,
}

type Verdict<T = ()> = Result<T, String>;

fn told<E: Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

fn world(shape: Shape) -> Verdict<World> {
    let Shape { coherent, xnack, sabotage } = shape;
    let device_memory = if coherent { Kind::Coherent } else { Kind::Private };
    let spec = WorldSpec { xnack, sabotage, device_memory, vram_bytes: VRAM, ..WorldSpec::default() };
    World::new(spec).map_err(|stop| match stop {
        Stop::Skip(why) => format!("skipped: {why}"),
        Stop::Fail(error) => format!("{error:#}"),
    })
}

/// Runs a sequence on a machine of its own. How many pages went to the GPU; `None` where the host
/// moves none.
///
/// # Errors
///
/// The first thing that is not as the model has it.
pub fn run(shape: Shape, ops: &[Op]) -> Verdict<Option<u64>> {
    let (world, memory) = (world(shape)?, Memory::anonymous(PAGES * PAGE).map_err(told("memory"))?);
    Live::new(&world, &memory, shape, Share { of: 1, number: 0 })?.act_all(ops)?;
    moved(&world)
}

/// Runs sequences on one machine, each on a thread of its own. How many pages went to the GPU;
/// `None` where the host moves none.
///
/// # Errors
///
/// The first thing that is not as the model of the thread that found it has it.
///
/// # Panics
///
/// When a thread does.
pub fn run_together(shape: Shape, threads: &[Vec<Op>]) -> Verdict<Option<u64>> {
    let (world, memory) = (world(shape)?, Memory::anonymous(PAGES * PAGE).map_err(told("memory"))?);
    let of = threads.len() as u64;
    let verdicts: Vec<Verdict> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..of)
            .zip(threads)
            .map(|(number, ops)| {
                let (world, memory) = (&world, &memory);
                scope.spawn(move || Live::new(world, memory, shape, Share { of, number })?.act_all(ops))
            })
            .collect();
        started.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
    });
    for (number, verdict) in verdicts.into_iter().enumerate() {
        verdict.map_err(|why| format!("thread {number}: {why}"))?;
    }
    moved(&world)
}

fn moved(world: &World) -> Verdict<Option<u64>> {
    let info = world.client().svm().map_err(told("the snapshot"))?;
    Ok((info.memory != SVM_MEMORY_NONE).then_some(info.pages_in))
}

impl<'a> Live<'a> {
    fn new(world: &'a World, memory: &'a Memory, shape: Shape, share: Share) -> Verdict<Self> {
        let engine = RefCell::new(Engine::new(world.client(), world.gpu(0)).map_err(told("an engine"))?);
        let pages = vec![FRESH; usize::try_from(PAGES).unwrap_or(0)];
        Ok(Self { world, memory, engine, share, pages, xnack: shape.xnack })
    }

    fn act_all(&mut self, ops: &[Op]) -> Verdict {
        for (i, op) in ops.iter().enumerate() {
            self.act(op).map_err(|why| format!("step {i} ({op:?}): {why}"))?;
        }
        let all = (0, PAGES);
        self.gpu_reads(all).and_then(|()| self.cpu_reads(all)).map_err(|why| format!("at the end: {why}"))
    }

    fn page(&self, page: u64) -> &Page {
        &self.pages[usize::try_from(page).unwrap_or(0)]
    }

    fn change(&mut self, (first, count): Piece, mut f: impl FnMut(&mut Page)) {
        let first = usize::try_from(first).unwrap_or(0);
        self.pages[first..first + usize::try_from(count).unwrap_or(0)].iter_mut().for_each(&mut f);
    }

    /// The parts of a piece, in order, whose pages are the thread's and all are as wanted.
    fn parts(&self, (first, count): Piece, wanted: impl Fn(&Page) -> bool) -> Vec<Piece> {
        let mut parts: Vec<Piece> = Vec::new();
        for page in (first..first + count).filter(|page| self.share.has(*page) && wanted(self.page(*page))) {
            match parts.last_mut() {
                Some(last) if last.0 + last.1 == page => last.1 += 1,
                _ => parts.push((page, 1)),
            }
        }
        parts
    }

    fn usable(&self, piece: Piece) -> Vec<Piece> {
        self.parts(piece, |page| page.open() && (self.xnack || page.given))
    }

    fn va(&self, page: u64) -> GpuVa {
        GpuVa(self.memory.whole().start + page * PAGE)
    }

    fn bytes(&self, (first, count): Piece) -> Vec<u8> {
        (first..first + count).flat_map(|page| self.page(page).bytes(page)).collect()
    }

    fn same(&self, who: &str, piece: Piece, seen: &[u8]) -> Verdict {
        let step = pattern(0, 0).len();
        let wrong = seen.chunks(step).zip(self.bytes(piece).chunks(step)).position(|(seen, wanted)| seen != wanted);
        match wrong {
            None => Ok(()),
            Some(at) => {
                let page = piece.0 + at as u64;
                Err(format!("{who} does not see what is in page {page}, {:?}", self.page(page)))
            }
        }
    }

    fn gpu_reads(&self, piece: Piece) -> Verdict {
        for part in self.usable(piece) {
            let read = self.engine.borrow_mut().read(self.va(part.0), part.1 * PAGE);
            let seen = read.map_err(told("the GPU reads"))?;
            self.same("the GPU", part, &seen)?;
        }
        Ok(())
    }

    fn cpu_reads(&self, piece: Piece) -> Verdict {
        for part in self.parts(piece, Page::open) {
            self.same("the CPU", part, &self.memory.read(part.0 * PAGE, part.1 * PAGE))?;
        }
        Ok(())
    }

    fn set(&self, piece: Piece, what: SvmSet) -> Verdict {
        let range = self.memory.range(piece.0 * PAGE, piece.1 * PAGE);
        // SAFETY: the memory is the model's own, of which no reference is ever made.
        unsafe { self.world.client().svm_set(range, &[what]) }.map_err(told("setting"))
    }

    fn act(&mut self, op: &Op) -> Verdict {
        let clamp = |piece: &Piece| (piece.0, piece.1.min(PAGES - piece.0));
        let gpu = self.world.gpu(0);
        match op {
            Op::Write(piece, seed) => {
                for part in self.parts(clamp(piece), Page::open) {
                    self.memory.fill_pages(part.0..part.0 + part.1, *seed);
                    self.change(part, |page| page.seed = Some(*seed));
                }
            }
            Op::GpuWrite(piece, seed) => {
                for part in self.usable(clamp(piece)) {
                    self.change(part, |page| page.seed = Some(*seed));
                    let written = self.engine.borrow_mut().write(self.va(part.0), &self.bytes(part));
                    written.map_err(told("the GPU writes"))?;
                }
                self.cpu_reads(clamp(piece))?;
            }
            Op::GpuRead(piece) => self.gpu_reads(clamp(piece))?,
            Op::Give(piece) | Op::Take(piece) => {
                let give = matches!(op, Op::Give(_));
                let access = if give { SvmAccess::Migrate } else { SvmAccess::None };
                // With retried faults access is there from the beginning, and stays.
                for part in self.parts(clamp(piece), |page| page.open() && (give || !self.xnack)) {
                    self.set(part, SvmSet::Access(gpu, access))?;
                    self.change(part, |page| page.given = give);
                }
            }
            Op::Get(page) => {
                let model = *self.page(*page);
                if self.share.has(*page) && model.mapped && !self.xnack {
                    let range = self.memory.range(page * PAGE, PAGE);
                    let access = self.world.client().svm_get(range, gpu).map_err(told("asking"))?.access;
                    if (access == SvmAccess::Migrate) != model.given {
                        return Err(format!("the GPU's access is {access:?}, not as in {model:?}"));
                    }
                }
            }
            Op::ToGpu(piece) | Op::ToSystem(piece) => {
                let to = if matches!(op, Op::ToGpu(_)) { Location::Gpu(gpu) } else { Location::System };
                for part in self.parts(clamp(piece), Page::open) {
                    self.set(part, SvmSet::Prefetch(to))?;
                }
                self.cpu_reads((piece.0, piece.1.min(20).min(PAGES - piece.0)))?;
            }
            Op::Unmap(piece) => {
                for part in self.parts(clamp(piece), |page| page.mapped) {
                    self.memory.unmap(part.0 * PAGE, part.1 * PAGE).map_err(told("munmap"))?;
                    self.change(part, |page| *page = Page { mapped: false, ..FRESH });
                }
            }
            Op::MapAgain(piece) => {
                for part in self.parts(clamp(piece), |page| !page.mapped) {
                    match self.memory.map_again(part.0 * PAGE, part.1 * PAGE) {
                        // Another thread was given the addresses.
                        Err(error) if self.share.of > 1 && error.kind() == ErrorKind::AlreadyExists => continue,
                        mapped => mapped.map_err(told("mmap"))?,
                    }
                    self.change(part, |page| *page = FRESH);
                }
            }
            Op::Replace(piece) => {
                for part in self.parts(clamp(piece), |page| page.mapped) {
                    self.memory.replace(part.0 * PAGE, part.1 * PAGE).map_err(told("mmap"))?;
                    self.change(part, |page| *page = FRESH);
                }
            }
            Op::Discard(piece) => {
                for part in self.parts(clamp(piece), |page| page.mapped) {
                    self.memory.discard(part.0 * PAGE, part.1 * PAGE).map_err(told("madvise"))?;
                    self.change(part, |page| page.seed = None);
                }
            }
            Op::Forbid(_) | Op::Permit(_) if self.world.sees(Seen::Protect).is_err() => {}
            Op::Forbid(piece) | Op::Permit(piece) => {
                let forbidden = matches!(op, Op::Forbid(_));
                let prot = if forbidden { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
                for part in self.parts(clamp(piece), |page| page.mapped && page.forbidden != forbidden) {
                    self.memory.protect(part.0 * PAGE, part.1 * PAGE, prot).map_err(told("mprotect"))?;
                    self.change(part, |page| page.forbidden = forbidden);
                }
            }
            Op::Vram(mebibytes) => {
                let options = AllocOptions::vram(gpu, mebibytes << 20);
                let buffer = match self.world.client().alloc(&options) {
                    // Several have buffers, and there is no room for all of them.
                    Err(error) if self.share.of > 1 && error.errno() == Some(Errno::NOMEM) => return Ok(()),
                    buffer => buffer.map_err(told("VRAM"))?,
                };
                self.engine.get_mut().write(buffer.gpu_va(), &pattern(1, 1)).map_err(told("a write to VRAM"))?;
                let seen = self.engine.get_mut().read(buffer.gpu_va(), PAGE).map_err(told("a read of VRAM"))?;
                if seen != pattern(1, 1) {
                    return Err("VRAM does not keep what is written".into());
                }
            }
            Op::Fork => self.fork()?,
        }
        // A thread that waits for nothing may use memory before the driver has learned of a change
        // of it; that is another test's.
        self.world.told();
        Ok(())
    }

    fn fork(&self) -> Verdict {
        let ours: Vec<u64> =
            (0..PAGES).step_by(10).filter(|page| self.share.has(*page) && self.page(*page).open()).collect();
        // SAFETY: the child writes to memory of its own, and ends.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                for page in &ours {
                    self.memory.at(page * PAGE).write_volatile(0xa5);
                }
                libc::_exit(0);
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            status
        };
        if status != 0 {
            return Err(format!("the child ended with {status:#x}"));
        }
        Ok(())
    }
}
