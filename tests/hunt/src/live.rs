// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random sequences on a real machine in this process, through the client library, on real memory.
//! The flat model holds each CPU page's content and mapping, and each buffer's list of ranges. A
//! GPU's reads are compared with it page by page, and a GPU's writes show in every alias. An access
//! to lost memory must fault.
//!
//! Some changes may escape the notification source: a protection, a mapping that came back. They
//! make a range *unsure* until it is mapped again. An access to it may fault, but if it does not,
//! it must be right.

use std::fmt::Display;

use proptest::prelude::*;
use vkfd_client::{AllocOptions, Buffer, ClientError, GpuSet, RegisterOptions, Strategy as Form, UserptrRange};
use vkfd_driver::sabotage::Switches;
use vkfd_scenarios::{pattern, Memory, Stop, World, WorldSpec};

const PAGE: u64 = 4096;
/// Pages of memory.
const PAGES: u64 = 64;
/// Buffers at a time.
const MOST_BUFFERS: usize = 5;

/// First page and pages.
pub type Piece = (u64, u64);

/// What is done.
#[derive(Clone, Debug)]
pub enum Op {
    /// The CPU writes.
    Write(Piece, u64),
    Unmap(Piece),
    /// mmap where nothing is.
    MapAgain(Piece),
    /// mmap over existing memory.
    Replace(Piece),
    /// mremap elsewhere.
    Remap(Piece),
    /// MADV_DONTNEED.
    Discard(Piece),
    /// mprotect, writable or not.
    Protect(Piece, bool),
    /// fork; the child ends at once.
    Fork,
    /// Registers ranges, writable or not.
    Register(Vec<Piece>, bool, Form),
    /// Maps a buffer again.
    Revalidate(usize),
    /// Unmaps a buffer for the GPU.
    UnmapGpu(usize),
    /// Maps a buffer for the GPU.
    MapGpu(usize),
    /// Frees a buffer.
    Free(usize),
    /// The GPU reads a range of a buffer.
    Read(usize, usize),
    /// The GPU writes a page of a buffer.
    GpuWrite(usize, u64, u64),
    /// The GPU adds up a buffer with a kernel.
    Sum(usize),
    /// Allocates VRAM and gives it back.
    Vram(u64),
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let piece = (0..PAGES, 1..6_u64);
    let buffer = 0..MOST_BUFFERS;
    let form = prop_oneof![3 => Just(Form::Batch), 2 => Just(Form::BatchFlag), 1 => Just(Form::PerRange)];
    let ranges = proptest::collection::vec(piece.clone(), 1..8);
    let op = prop_oneof![
        4 => (piece.clone(), any::<u64>()).prop_map(|(piece, seed)| Op::Write(piece, seed)),
        2 => piece.clone().prop_map(Op::Unmap),
        3 => piece.clone().prop_map(Op::MapAgain),
        2 => piece.clone().prop_map(Op::Replace),
        1 => piece.clone().prop_map(Op::Remap),
        2 => piece.clone().prop_map(Op::Discard),
        1 => (piece, any::<bool>()).prop_map(|(piece, writable)| Op::Protect(piece, writable)),
        1 => Just(Op::Fork),
        4 => (ranges, any::<bool>(), form).prop_map(|(ranges, writable, form)| Op::Register(ranges, writable, form)),
        1 => buffer.clone().prop_map(Op::Revalidate),
        1 => buffer.clone().prop_map(Op::UnmapGpu),
        1 => buffer.clone().prop_map(Op::MapGpu),
        1 => buffer.clone().prop_map(Op::Free),
        8 => (buffer.clone(), 0..8_usize).prop_map(|(buffer, range)| Op::Read(buffer, range)),
        4 => (buffer.clone(), 0..64_u64, any::<u64>()).prop_map(|(buffer, page, seed)| Op::GpuWrite(buffer, page, seed)),
        1 => buffer.prop_map(Op::Sum),
        1 => (1..64_u64).prop_map(Op::Vram),
    ];
    proptest::collection::vec(op, 1..40)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Zero,
    /// The pattern of a page and a seed.
    Pattern(u64, u64),
}

impl Content {
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Zero => vec![0; pattern(0, 0).len()],
            Self::Pattern(page, seed) => pattern(page, seed),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Page {
    mapped: bool,
    writable: bool,
    content: Content,
}

struct Registered {
    buffer: Buffer,
    ranges: Vec<Piece>,
    unsure: Vec<bool>,
    writable: bool,
    mapped: bool,
}

struct Live {
    world: World,
    memory: Memory,
    pages: Vec<Page>,
    buffers: Vec<Registered>,
    // What was moved away lives on: a buffer must not see it.
    moved: Vec<Memory>,
    xnack: bool,
}

/// What an access must come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Works,
    Faults,
    Either,
}

type Verdict<T = ()> = Result<T, String>;

fn told<E: Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

fn stopped(stop: Stop) -> String {
    match stop {
        Stop::Skip(why) => format!("skipped: {why}"),
        Stop::Fail(error) => format!("{error:#}"),
    }
}

/// Runs a sequence on a machine of its own.
///
/// # Errors
///
/// The first thing that is not as the model has it.
pub fn run(xnack: bool, sabotage: Switches, ops: &[Op]) -> Verdict {
    let world =
        World::new(WorldSpec { xnack, sabotage, vram_bytes: 64 << 20, ..WorldSpec::default() }).map_err(stopped)?;
    let memory = Memory::anonymous(PAGES * PAGE).map_err(told("memory"))?;
    let page = Page { mapped: true, writable: true, content: Content::Zero };
    let pages = vec![page; usize::try_from(PAGES).unwrap_or(0)];
    let mut live = Live { world, memory, pages, buffers: Vec::new(), moved: Vec::new(), xnack };
    for (i, op) in ops.iter().enumerate() {
        live.act(op).map_err(|why| format!("step {i} ({op:?}): {why}"))?;
    }
    live.end()
}

impl Live {
    fn piece(piece: Piece) -> Piece {
        let first = piece.0 % PAGES;
        (first, piece.1.clamp(1, PAGES - first))
    }

    fn page(&self, page: u64) -> &Page {
        &self.pages[usize::try_from(page).unwrap_or(0)]
    }

    fn page_mut(&mut self, page: u64) -> &mut Page {
        &mut self.pages[usize::try_from(page).unwrap_or(0)]
    }

    fn all(&self, (first, count): Piece, holds: impl Fn(&Page) -> bool) -> bool {
        (first..first + count).all(|page| holds(self.page(page)))
    }

    fn set(&mut self, (first, count): Piece, page: Page) {
        for at in first..first + count {
            *self.page_mut(at) = page;
        }
    }

    /// Ranges that a change of permission or mapping has touched.
    fn doubt(&mut self, (first, count): Piece) {
        for buffer in &mut self.buffers {
            for (range, unsure) in buffer.ranges.iter().zip(&mut buffer.unsure) {
                *unsure |= range.0 < first + count && first < range.0 + range.1;
            }
        }
    }

    /// Whether nothing is mapped at a page: something else may have been put into a hole.
    fn is_hole(&self, page: u64) -> bool {
        // SAFETY: msync without MS_INVALIDATE changes nothing; of an unmapped page it says ENOMEM.
        unsafe { libc::msync(self.memory.at(page * PAGE).cast(), 4096, libc::MS_ASYNC) != 0 }
    }

    fn act(&mut self, op: &Op) -> Verdict {
        let fresh = Page { mapped: true, writable: true, content: Content::Zero };
        match op {
            Op::Write(piece, seed) => {
                let (first, count) = Self::piece(*piece);
                for page in first..first + count {
                    if self.page(page).mapped && self.page(page).writable {
                        self.memory.fill_pages(page..page + 1, *seed);
                        self.page_mut(page).content = Content::Pattern(page, *seed);
                    }
                }
            }
            Op::Unmap(piece) | Op::Remap(piece) => {
                let (first, count) = Self::piece(*piece);
                // mremap needs one mapping: of one permission.
                let one = |p: &Page| p.mapped && (p.writable || matches!(op, Op::Unmap(_)));
                if !self.all((first, count), one) {
                    return Ok(());
                }
                if matches!(op, Op::Unmap(_)) {
                    self.memory.unmap(first * PAGE, count * PAGE).map_err(told("munmap"))?;
                } else {
                    for page in first..first + count {
                        self.moved.push(self.memory.remap(page * PAGE, PAGE).map_err(told("mremap"))?);
                    }
                }
                self.set((first, count), Page { mapped: false, ..fresh });
                self.doubt((first, count));
            }
            Op::MapAgain(piece) => {
                let (first, count) = Self::piece(*piece);
                for page in first..first + count {
                    if !self.page(page).mapped && self.memory.map_again(page * PAGE, PAGE).is_ok() {
                        *self.page_mut(page) = fresh;
                    }
                }
            }
            Op::Replace(piece) => {
                let piece = Self::piece(*piece);
                if self.all(piece, |p| p.mapped) {
                    // A page that was not writable becomes so.
                    if !self.all(piece, |p| p.writable) {
                        self.doubt(piece);
                    }
                    self.memory.replace(piece.0 * PAGE, piece.1 * PAGE).map_err(told("mmap"))?;
                    self.set(piece, fresh);
                }
            }
            Op::Discard(piece) => {
                let piece = Self::piece(*piece);
                if self.all(piece, |p| p.mapped) {
                    self.memory.discard(piece.0 * PAGE, piece.1 * PAGE).map_err(told("madvise"))?;
                    for page in piece.0..piece.0 + piece.1 {
                        self.page_mut(page).content = Content::Zero;
                    }
                }
            }
            Op::Protect(piece, writable) => {
                let piece = Self::piece(*piece);
                if self.all(piece, |p| p.mapped) {
                    let prot = libc::PROT_READ | if *writable { libc::PROT_WRITE } else { 0 };
                    self.memory.protect(piece.0 * PAGE, piece.1 * PAGE, prot).map_err(told("mprotect"))?;
                    for page in piece.0..piece.0 + piece.1 {
                        self.page_mut(page).writable = *writable;
                    }
                    self.doubt(piece);
                }
            }
            Op::Fork => fork()?,
            Op::Register(ranges, writable, form) => self.register(ranges, *writable, *form)?,
            Op::Revalidate(buffer) => self.with(*buffer, |this, at| {
                if this.buffers[at].mapped {
                    this.world.told();
                    this.buffers[at].buffer.revalidate().map_err(told("mapping again"))?;
                    this.looked_at(at);
                }
                Ok(())
            })?,
            Op::UnmapGpu(buffer) => self.with(*buffer, |this, at| {
                this.buffers[at].mapped = false;
                this.buffers[at].buffer.unmap(&GpuSet::All).map_err(told("unmap"))
            })?,
            Op::MapGpu(buffer) => self.with(*buffer, |this, at| {
                if !this.buffers[at].mapped {
                    this.world.told();
                    this.buffers[at].buffer.map(&GpuSet::All).map_err(told("map"))?;
                    this.buffers[at].mapped = true;
                    this.looked_at(at);
                }
                Ok(())
            })?,
            Op::Free(buffer) => {
                self.with(*buffer, |this, at| this.buffers.swap_remove(at).buffer.free().map_err(told("free")))?
            }
            Op::Read(buffer, range) => self.with(*buffer, |this, at| {
                let range = range % this.buffers[at].ranges.len();
                this.read(at, range)
            })?,
            Op::GpuWrite(buffer, page, seed) => self.with(*buffer, |this, at| this.write(at, *page, *seed))?,
            Op::Sum(buffer) => self.with(*buffer, Self::sum)?,
            Op::Vram(pages) => {
                let gpu = self.world.gpu(0);
                let buffer = self.world.client().alloc(&AllocOptions::vram(gpu, pages * PAGE)).map_err(told("VRAM"))?;
                let bytes = Content::Pattern(*pages, 1).bytes();
                self.world.write_gpu(buffer.gpu_va(), &bytes).map_err(told("a write to VRAM"))?;
                let seen = self.world.read_gpu(buffer.gpu_va(), PAGE).map_err(told("a read of VRAM"))?;
                ensure(seen == bytes, || "VRAM does not keep what is written".into())?;
            }
        }
        Ok(())
    }

    fn with(&mut self, buffer: usize, f: impl FnOnce(&mut Self, usize) -> Verdict) -> Verdict {
        if self.buffers.is_empty() {
            return Ok(());
        }
        let at = buffer % self.buffers.len();
        f(self, at)
    }

    /// The driver has looked at all of a buffer's memory.
    fn looked_at(&mut self, at: usize) {
        let fine: Vec<bool> =
            self.buffers[at].ranges.iter().map(|range| self.all(*range, |p| p.mapped && p.writable)).collect();
        for (unsure, fine) in self.buffers[at].unsure.iter_mut().zip(fine) {
            *unsure &= !fine;
        }
    }

    fn register(&mut self, ranges: &[Piece], writable: bool, form: Form) -> Verdict {
        if self.buffers.len() >= MOST_BUFFERS {
            return Ok(());
        }
        let list: Vec<Piece> = ranges.iter().map(|r| Self::piece(*r)).collect();
        let fits = list.iter().all(|r| self.all(*r, |p| p.mapped && (p.writable || !writable)));
        let filled =
            list.iter().flat_map(|r| r.0..r.0 + r.1).any(|page| !self.page(page).mapped && !self.is_hole(page));
        if filled {
            return Ok(());
        }
        self.world.told();
        let cpu: Vec<UserptrRange> = list.iter().map(|r| self.memory.range(r.0 * PAGE, r.1 * PAGE)).collect();
        let options = RegisterOptions { writable, strategy: form, ..RegisterOptions::default() };
        // SAFETY: nothing holds references to the memory.
        let result = unsafe { self.world.client().register_ranges(&cpu, &options) };
        match result {
            Ok(buffer) => {
                ensure(fits, || "memory that is not there was registered".into())?;
                let unsure = vec![false; list.len()];
                self.buffers.push(Registered { buffer, ranges: list, unsure, writable, mapped: true });
                Ok(())
            }
            Err(error @ ClientError::Range { .. }) => ensure(!fits, || format!("registering: {error}")),
            Err(error) => Err(format!("registering: {error}")),
        }
    }

    fn wanted(&self, at: usize, range: usize, write: Option<u64>) -> Option<Wanted> {
        let buffer = &self.buffers[at];
        let (first, count) = buffer.ranges[range];
        let holes: Vec<u64> = (first..first + count).filter(|page| !self.page(*page).mapped).collect();
        // Somebody else's memory by now: not ours to look at, still less to write.
        if holes.iter().any(|page| !self.is_hole(*page)) {
            return None;
        }
        let denied = write.is_some_and(|page| !buffer.writable || !self.page(page).writable);
        Some(match () {
            () if !buffer.mapped || !holes.is_empty() || denied => Wanted::Faults,
            () if buffer.unsure[range] => Wanted::Either,
            () => Wanted::Works,
        })
    }

    fn settled(&self) -> Verdict {
        self.world.told();
        self.world.settle().map_err(stopped)
    }

    fn read(&mut self, at: usize, range: usize) -> Verdict {
        self.settled()?;
        let Some(wanted) = self.wanted(at, range, None) else { return Ok(()) };
        let buffer = &self.buffers[at];
        let before: u64 = buffer.ranges[..range].iter().map(|r| r.1).sum();
        let (first, count) = buffer.ranges[range];
        let va = buffer.buffer.gpu_va().offset(before * PAGE);
        let seen = self.world.read_gpu(va, count * PAGE);
        let Some(seen) = self.outcome(wanted, seen)? else { return Ok(()) };
        for (page, bytes) in (first..first + count).zip(seen.chunks(pattern(0, 0).len())) {
            let content = self.page(page).content;
            ensure(bytes == content.bytes(), || format!("the GPU does not see {content:?} in page {page}"))?;
            ensure(self.memory.read(page * PAGE, PAGE) == bytes, || format!("CPU and GPU differ in page {page}"))?;
        }
        Ok(())
    }

    /// What an access gave, if it is as wanted.
    fn outcome<T>(&self, wanted: Wanted, result: Result<T, ClientError>) -> Verdict<Option<T>> {
        match (result, wanted) {
            (Ok(value), Wanted::Works | Wanted::Either) => Ok(Some(value)),
            (Ok(_), Wanted::Faults) => Err("an access worked that must fault".into()),
            (Err(ClientError::GpuFault { .. }), Wanted::Faults | Wanted::Either) => Ok(None),
            (Err(error), _) => Err(format!("{wanted:?}, xnack {}: {error}", self.xnack)),
        }
    }

    fn write(&mut self, at: usize, page: u64, seed: u64) -> Verdict {
        self.settled()?;
        let buffer = &self.buffers[at];
        let pages: u64 = buffer.ranges.iter().map(|r| r.1).sum();
        let place = page % pages;
        let mut left = place;
        let mut found = None;
        for (number, (first, count)) in buffer.ranges.iter().enumerate() {
            if left < *count {
                found = Some((number, first + left));
                break;
            }
            left -= count;
        }
        let Some((range, page)) = found else { return Ok(()) };
        let Some(wanted) = self.wanted(at, range, Some(page)) else { return Ok(()) };
        let content = Content::Pattern(page + PAGES, seed);
        let result = self.world.write_gpu(buffer.buffer.gpu_va().offset(place * PAGE), &content.bytes());
        if self.outcome(wanted, result)?.is_some() {
            self.page_mut(page).content = content;
            ensure(self.memory.read(page * PAGE, PAGE) == content.bytes(), || {
                format!("the CPU does not see what the GPU wrote to page {page}")
            })?;
        }
        Ok(())
    }

    fn sum(&mut self, at: usize) -> Verdict {
        self.settled()?;
        let buffer = &self.buffers[at];
        let all_work = (0..buffer.ranges.len()).all(|range| self.wanted(at, range, None) == Some(Wanted::Works));
        if !all_work {
            return Ok(());
        }
        let pages = buffer.ranges.iter().flat_map(|r| r.0..r.0 + r.1);
        let words = pages.flat_map(|page| self.page(page).content.bytes());
        let bytes: Vec<u8> = words.collect();
        let wanted = bytes
            .chunks_exact(8)
            .fold(0_u64, |sum, word| sum.wrapping_add(word.try_into().map_or(0, u64::from_le_bytes)));
        let sum = self.world.sum64(buffer.buffer.gpu_va(), buffer.buffer.len()).map_err(told("the kernel"))?;
        ensure(sum == wanted, || format!("the kernel's sum is {sum:#x}, not {wanted:#x}"))
    }

    fn end(mut self) -> Verdict {
        self.settled()?;
        for page in (0..PAGES).filter(|page| self.page(*page).mapped) {
            let content = self.page(page).content;
            ensure(self.memory.read(page * PAGE, PAGE) == content.bytes(), || {
                format!("page {page} is not {content:?}")
            })?;
        }
        for registered in self.buffers.drain(..) {
            registered.buffer.free().map_err(told("free"))?;
        }
        let info = self.world.client().snapshot().map_err(told("snapshot"))?;
        let left = (info.userptr_bos, info.notifiers, info.userptr_bytes);
        ensure(left == (0, 0, 0), || format!("left after all was freed: {info:?}"))
    }
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Verdict {
    if holds {
        Ok(())
    } else {
        Err(why())
    }
}

fn fork() -> Verdict {
    // SAFETY: the child only ends, which is safe after a fork of a process with threads.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(format!("fork: {}", std::io::Error::last_os_error())),
        // SAFETY: as above.
        0 => unsafe { libc::_exit(0) },
        _ => {
            let mut status = 0;
            // SAFETY: a child of this process, and a place for its status.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            ensure(ended == child && status == 0, || format!("the child ended with {status:#x}"))
        }
    }
}
