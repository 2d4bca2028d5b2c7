// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Any code, on both forms of the fast engine and on the reference engine: random instructions of
//! every encoding, with operands near the ends of the wave's registers and memory. They give the
//! same on all three and access nothing else.
//!
//! Registers and LDS are allocated against pages that cannot be touched, so that an access beyond
//! them ends the test by a signal. Memory is pages with a pattern between them, which nothing may
//! change.
#![allow(clippy::cast_possible_truncation, reason = "registers are bit patterns")]

use crate::support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use support::{Numbers, APERTURES};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Access, Exit, Group, Lds, Miss, Mode, Place, Row, Span, Stop, Watched, Wave, World};
use vkfd_isa::{decode, encodings, Encoding, Inst, Op, Operand, Target};

const PAGE: usize = 4096;
/// Addresses that guarded allocations are made in, none of them twice.
const ARENA: usize = 1 << 36;

thread_local! {
    /// Whether allocations are guarded now.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// The allocator: guarded allocations end where a page begins that nobody may touch.
struct Guard;

static NEXT: AtomicUsize = AtomicUsize::new(0);
static FIRST: AtomicUsize = AtomicUsize::new(0);

/// Anonymous memory.
fn map(at: *mut u8, bytes: usize, protection: i32, fixed: i32) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: a fresh mapping, or pages of the arena that this allocation alone has.
    let place = unsafe { libc::mmap(at.cast(), bytes, protection, flags, -1, 0) };
    assert_ne!(place, libc::MAP_FAILED);
    place.cast()
}

/// The arena's first byte.
fn arena() -> *mut u8 {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let place = map(std::ptr::null_mut(), ARENA, libc::PROT_NONE, 0);
        FIRST.store(place.expose_provenance(), SeqCst);
    });
    std::ptr::with_exposed_provenance_mut(FIRST.load(SeqCst))
}

// SAFETY: guarded allocations are pages of the arena that nobody else has, as large as asked for;
// all others are the system's.
unsafe impl GlobalAlloc for Guard {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !GUARDED.try_with(Cell::get).unwrap_or(false) || layout.align() > PAGE {
            // SAFETY: the caller's.
            return unsafe { System.alloc(layout) };
        }
        let pages = layout.size().div_ceil(PAGE) * PAGE;
        let at = NEXT.fetch_add(pages + PAGE, SeqCst);
        if at + pages + PAGE > ARENA {
            return std::ptr::null_mut();
        }
        let begin = map(arena().wrapping_add(at), pages, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED);
        begin.wrapping_add(pages - layout.size().next_multiple_of(layout.align()))
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let first = FIRST.load(SeqCst);
        if first == 0 || !(first..first + ARENA).contains(&ptr.addr()) {
            // SAFETY: the caller's; the system made it.
            return unsafe { System.dealloc(ptr, layout) };
        }
        // What is used after this ends by a signal, too.
        let begin = ptr.map_addr(|at| at & !(PAGE - 1));
        map(begin, layout.size().div_ceil(PAGE) * PAGE, libc::PROT_NONE, libc::MAP_FIXED);
    }
}

#[global_allocator]
static ALLOCATOR: Guard = Guard;

/// Makes something whose allocations are guarded.
fn guarded<T>(make: impl FnOnce() -> T) -> T {
    GUARDED.set(true);
    let made = make();
    GUARDED.set(false);
    made
}

const CODE: u64 = 0x7f00_0000_0000;
const CODE_PAGES: usize = 2;
const DATA_PAGES: usize = 8;
const PAGES: usize = CODE_PAGES + DATA_PAGES;
const PATTERN: u8 = 0xa5;

/// Pages of memory, the first for code, each between two of the pattern. Every address is in one of
/// them, or in none.
struct Pages {
    memory: Box<[[u8; PAGE]]>,
    polls: Cell<u32>,
    opening: u64,
}

impl Pages {
    fn new() -> Pages {
        let memory = vec![[PATTERN; PAGE]; 2 * PAGES + 1].into_boxed_slice();
        Pages { memory, polls: Cell::new(0), opening: 0 }
    }

    /// Fills the data with numbers that a seed decides.
    fn fill(&mut self, seed: u64) {
        let mut numbers = Numbers(seed);
        for page in 0..PAGES {
            self.memory[2 * page + 1] = [0; PAGE];
        }
        for page in CODE_PAGES..PAGES {
            for word in self.memory[2 * page + 1].chunks_exact_mut(4).step_by(7) {
                word.copy_from_slice(&value(&mut numbers).to_le_bytes());
            }
        }
    }

    fn write_code(&mut self, offset: usize, code: &[u32]) {
        for (index, word) in code.iter().enumerate() {
            let at = offset + 4 * index;
            if at / PAGE < CODE_PAGES {
                self.memory[2 * (at / PAGE) + 1][at % PAGE..at % PAGE + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.memory.iter().step_by(2).all(|page| page.iter().all(|byte| *byte == PATTERN))
    }
}

impl World for Pages {
    fn enter(&mut self) -> Result<(), Stop> {
        Ok(())
    }

    fn leave(&mut self) {}

    fn wanted(&self) -> bool {
        // A program without end is left.
        self.polls.set(self.polls.get() + 1);
        self.polls.get() > 2000
    }

    fn opening(&self) -> Option<u64> {
        Some(self.opening)
    }

    fn translate(&mut self, va: u64, access: Access) -> Result<Span, Miss> {
        let miss = Err(Miss { va, access, lost: false, reason: 0 });
        let code = va.wrapping_sub(CODE) / PAGE as u64;
        let hash = ((va >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        let page = match (code < CODE_PAGES as u64, access) {
            (true, Access::Read | Access::Execute) => code as usize,
            (true, Access::Write) | (false, Access::Execute) => return miss,
            (false, _) if hash % 16 == 0 => return miss,
            (false, _) => CODE_PAGES + hash % DATA_PAGES,
        };
        let within = va as usize % PAGE;
        Ok(Span { ptr: self.memory[2 * page + 1].as_mut_ptr().wrapping_add(within), len: PAGE - within })
    }

    fn settle(&mut self, _: &Miss) -> Result<(), Stop> {
        Err(Stop)
    }

    fn interrupt(&mut self, _: u32) {}

    fn clock(&self) -> u64 {
        7
    }

    fn cycles(&self) -> u64 {
        9
    }
}

/// What a wave has.
struct Limits {
    rows: usize,
    acc: usize,
    sgprs: u8,
}

/// A number around one at which something ends.
fn near(numbers: &mut Numbers, end: usize) -> u32 {
    (end as u64 + 2).saturating_sub(numbers.below(8)) as u32
}

/// The bits of an operand.
fn operand(numbers: &mut Numbers, width: u32, limits: &Limits) -> u32 {
    let vector = match numbers.below(3) {
        0 => near(numbers, limits.rows),
        1 => near(numbers, limits.acc),
        _ => numbers.below(limits.rows as u64) as u32,
    };
    let value = match numbers.below(8) {
        0 => numbers.word(),
        1 => numbers.below(4) as u32,
        2 => near(numbers, limits.sgprs.into()),
        3 => 96 + numbers.below(32) as u32,
        4 if width > 8 => 128 + numbers.below(128) as u32,
        _ if width > 8 => 256 + vector,
        _ => vector,
    };
    value & u32::MAX.checked_shr(32 - width).unwrap_or(u32::MAX)
}

/// An instruction of one of the encodings, if these bits are one.
fn instruction(numbers: &mut Numbers, target: Target, table: &[Encoding], limits: &Limits) -> Option<(Inst, Vec<u32>)> {
    let encoding = &table[numbers.below(table.len() as u64) as usize];
    let mut words = encoding.value;
    for field in &encoding.fields {
        let value = operand(numbers, field.width(), limits);
        field.set(&mut words, value);
    }
    if encoding.words < words.len() {
        words[encoding.words] = numbers.word();
    }
    let inst = decode(target, &words).ok()?;
    let count = usize::from(inst.bytes) / 4;
    Some((inst, words[..count].to_vec()))
}

/// A register's first value: small numbers, addresses, floats, anything.
fn value(numbers: &mut Numbers) -> u32 {
    match numbers.below(10) {
        0 => 0,
        1 => 1,
        2 => u32::MAX,
        3 => APERTURES.shared << numbers.below(2),
        4 | 5 => numbers.below(300) as u32,
        6 => (numbers.below(8) * PAGE as u64) as u32 + 4090 + numbers.below(8) as u32,
        7 => numbers.word() & 0x87ff_ffff | 0x3800_0000,
        8 => 0x7f80_0000 | numbers.word() & 0x80c0_0001,
        _ => numbers.word(),
    }
}

/// A wave with so much, at `pc`.
fn wave(numbers: &mut Numbers, target: Target, lanes: u8, limits: &Limits, pc: u64) -> Wave {
    let random = |numbers: &mut Numbers| Row(std::array::from_fn(|_| value(numbers)));
    let mut wave = Wave {
        target,
        lanes,
        pc,
        scalar: std::array::from_fn(|_| value(numbers)),
        scc: false,
        mode: Mode::DEFAULT,
        rows: guarded(|| Vec::with_capacity(limits.rows)),
        acc: limits.acc as u16,
        sgprs: limits.sgprs,
        flat_scratch: 0x1000_0000 + numbers.below(8192),
        trapsts: 0,
        done: 0,
        index: 3,
    };
    wave.rows.extend((0..limits.rows).map(|_| random(numbers)));
    if numbers.below(4) == 0 {
        wave.mode = Mode(numbers.word() & 0x07ff_ffff);
    }
    wave.scalar[usize::from(Operand::NULL)] = 0;
    let exec = match numbers.below(5) {
        0 | 1 => u64::MAX,
        2 => numbers.next(),
        3 => 1 << numbers.below(64),
        _ => 0xffff_ffff,
    };
    wave.set_pair(Operand::EXEC, exec);
    wave
}

/// A copy whose registers are guarded, too.
fn copy(wave: &Wave) -> Wave {
    let mut rows = guarded(|| Vec::with_capacity(wave.rows.len()));
    rows.extend(wave.rows.iter().copied());
    Wave { rows, ..wave.clone() }
}

/// How a run ended, and what is left of it.
type Outcome = (Exit, Wave, Vec<u8>, Box<[[u8; PAGE]]>);

/// Operations of which engines may leave different things: a program that is left in the middle, or
/// whose miss was half done.
fn is_comparable(exit: Exit) -> bool {
    matches!(exit, Exit::End | Exit::Refused(_) | Exit::Trap(_) | Exit::Barrier)
}

/// Runs `count` programs; how often they ended, and what is wrong with the first that is.
fn programs(target: Target, count: u64, seed: u64) -> Result<u64, String> {
    let table: Vec<Encoding> = encodings(target).collect();
    let mut engines = [Engine::new(target), Engine::portable(target)];
    let mut world = Pages::new();
    let mut ended = 0;
    for index in 0..count {
        let mut numbers = Numbers(seed.wrapping_mul(1_000_003).wrapping_add(index).wrapping_mul(0x9e37_79b9));
        let rows = [4, 8, 12, 16, 24, 32, 40, 64][numbers.below(8) as usize];
        let acc = if target.is_cdna() { (4 * (1 + numbers.below(rows as u64 / 4)) as usize).min(rows) } else { rows };
        let sgprs = if target.is_gfx9() { [16, 32, 48, 96, 102][numbers.below(5) as usize] } else { 106 };
        let limits = Limits { rows, acc, sgprs };
        let lanes = if target.is_gfx9() || numbers.below(2) == 0 { 64 } else { 32 };
        let (mut code, mut list) = (Vec::new(), Vec::new());
        for _ in 0..400 {
            if list.len() as u64 > numbers.below(8) {
                break;
            }
            if let Some((inst, words)) = instruction(&mut numbers, target, &table, &limits) {
                code.extend(words);
                list.push(inst);
            }
        }
        code.push(if target == Target::Gfx1100 { 0xbfb0_0000 } else { 0xbf81_0000 });
        // Now and then across the end of a page.
        let offset = if numbers.below(3) == 0 { PAGE - 4 * (1 + numbers.below(12) as usize) } else { 0 };
        let start = wave(&mut numbers, target, lanes, &limits, CODE + offset as u64);
        // What is no multiple of a line has room behind it, which is not guarded.
        let lds = [0, 4, 60, 64, 256, 1024][numbers.below(6) as usize];
        let mut run = |which: usize| -> Outcome {
            world.fill(index);
            world.write_code(offset, &code);
            world.opening += 1;
            world.polls.set(0);
            let mut one = copy(&start);
            let mut lds = guarded(|| Lds::new(lds));
            lds.fill(0x77);
            let mut group = Group { lds, apertures: APERTURES, watch: Watched::default(), place: Place::default() };
            let exit = match which.checked_sub(1).and_then(|fast| engines.get_mut(fast)) {
                None => reference::run(&mut one, &mut group, &mut world, 200),
                Some(engine) => {
                    engine.invalidate();
                    engine.run(&mut one, &mut group, &mut world, 200)
                }
            };
            assert!(world.is_whole(), "{target} program {index}: beyond a page");
            (exit, one, group.lds.to_vec(), world.memory.clone())
        };
        let expected = run(0);
        for which in 1..3 {
            let got = run(which);
            if is_comparable(expected.0) && got != expected {
                let ops: Vec<Op> = list.iter().map(|inst| inst.op).collect();
                let differ = [got.1 != expected.1, got.2 != expected.2, got.3 != expected.3];
                let rows: Vec<_> = (0..rows).filter(|row| got.1.rows[*row] != expected.1.rows[*row]).collect();
                return Err(format!(
                    "{target} program {index} form {which}: {:?} {:?}, wave, LDS, memory differ: {differ:?}, rows {rows:?} \
                     of {} lanes {lanes} mode {:#x} {ops:?}",
                    expected.0, got.0, limits.rows, start.mode.0
                ));
            }
        }
        ended += u64::from(is_comparable(expected.0));
    }
    Ok(ended)
}

/// How many programs: `VKFD_PROGRAMS` for more.
fn wanted() -> u64 {
    std::env::var("VKFD_PROGRAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(600)
}

fn check(target: Target) {
    let count = wanted();
    let seed = std::env::var("VKFD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    match programs(target, count, seed) {
        Ok(ended) => assert!(ended > count / 2, "only {ended} of {count} programs ended"),
        Err(text) => panic!("{text}"),
    }
}

#[test]
fn any_code_of_gfx900_stays_in_its_place() {
    check(Target::Gfx900);
}

#[test]
fn any_code_of_gfx90a_stays_in_its_place() {
    check(Target::Gfx90a);
}

#[test]
fn any_code_of_gfx942_stays_in_its_place() {
    check(Target::Gfx942);
}

#[test]
fn any_code_of_gfx1030_stays_in_its_place() {
    check(Target::Gfx1030);
}

#[test]
fn any_code_of_gfx1100_stays_in_its_place() {
    check(Target::Gfx1100);
}

/// The control: a guarded allocation ends where it says.
#[test]
fn what_is_behind_a_guarded_allocation_cannot_be_touched() {
    let rows: Vec<Row> = guarded(|| vec![Row::ZERO; 5]);
    let mut vector = [0u8; 2];
    // SAFETY: asks the kernel about pages; nothing is touched.
    let answer = |at: *const Row, into: &mut u8| unsafe {
        let page = at.map_addr(|at| at & !(PAGE - 1));
        let mut pipe = [0; 2];
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        // Writing from memory that is not there is EFAULT.
        *into = u8::from(libc::write(pipe[1], page.cast(), 1) == 1);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    };
    let end = rows.as_ptr().wrapping_add(rows.len());
    assert_eq!(end.addr() % PAGE, 0);
    answer(rows.as_ptr(), &mut vector[0]);
    answer(end, &mut vector[1]);
    assert_eq!(vector, [1, 0], "the registers are there, and nothing behind them");
}
