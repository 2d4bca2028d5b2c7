// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loads of memory and LDS in regions, against a plain model. Addresses lie side by side, are all
//! the same, or lie anywhere; lanes are active at random. Some accesses miss or fault.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "registers are bit patterns")]

mod support;

use std::ffi::c_void;
use support::{load, Waves};
use vkfd_isa::{Extension, Format, Inst, Memory, Mods, Op, Operand};
use vkfd_sabotage::{Switch, Switches};
use vkfd_translate::{arena::Arena, translate, Accessing, Context, Left, Mending, Width};

const PAGE: u64 = 4096;
/// Where the GPU sees the pages.
const BASE: u64 = 0x7_ffff_c000;
const PAGES: u64 = 8;

/// Pages of the GPU: each has a place on the host, in another order, or none.
struct Pages {
    host: *mut u8,
    missing: u64,
}

impl Pages {
    fn new() -> Pages {
        let bytes = (PAGES * PAGE) as usize;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel picks.
        let host = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(host, libc::MAP_FAILED);
        Pages { host: host.cast(), missing: 0 }
    }

    fn protect(&self, page: u64, protection: libc::c_int) {
        // SAFETY: a page of the mapping, which nothing but machine code reads meanwhile.
        let done = unsafe { libc::mprotect(self.place(page).cast(), PAGE as usize, protection) };
        assert_eq!(done, 0);
    }

    fn place(&self, page: u64) -> *mut u8 {
        self.host.wrapping_add(((page * 5 + 3) % PAGES * PAGE) as usize)
    }

    /// The host's byte.
    fn at(&self, va: u64) -> Option<*mut u8> {
        let page = va.checked_sub(BASE)? / PAGE;
        let there = page < PAGES && self.missing >> page & 1 == 0;
        there.then(|| self.place(page).wrapping_add((va % PAGE) as usize))
    }

    fn word(&self, va: u64) -> Option<u32> {
        if va % PAGE > PAGE - 4 {
            return None;
        }
        // SAFETY: a word of the mapping, which may be protected.
        self.at(va).and_then(|at| unsafe { vkfd_raw::load_u32(at.cast()) }.ok())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: its own mapping, which nothing uses any more.
        unsafe { libc::munmap(self.host.cast(), (PAGES * PAGE) as usize) };
    }
}

unsafe extern "sysv64" fn mend(_: *mut c_void, _: *mut Mending) {}

unsafe extern "sysv64" fn access(user: *mut c_void, access: *mut Accessing) -> u32 {
    // SAFETY: the pages that the test has set, and the context's own.
    let (pages, access) = unsafe { (&*user.cast::<Pages>(), &mut *access) };
    access.calls += 1;
    let mut first = true;
    for lane in (0..16).filter(|lane| access.lanes >> lane & 1 != 0) {
        let address = u64::from(access.low[lane]) | u64::from(access.high[lane]) << 32;
        let va = access.base.wrapping_add(address);
        if va % PAGE + 4 * u64::from(access.words) > PAGE {
            return 0;
        }
        for word in 0..access.words as usize {
            let Some(value) = pages.word(va + 4 * word as u64) else { return 0 };
            access.result[word][lane] = value;
        }
        if std::mem::take(&mut first) {
            access.page = Accessing::tag(va & !(PAGE - 1), access.flat != 0);
            access.host = pages.at(va & !(PAGE - 1)).expect("the word was there");
        }
    }
    1
}

fn plain(op: Op, format: Format, dst: Operand, src: [Operand; 3]) -> Inst {
    Inst {
        op,
        format,
        extension: Extension::None,
        bytes: 4,
        entry: 0,
        dst,
        sdst: Operand::None,
        src,
        imm: 0,
        mods: Mods::default(),
        memory: Memory::default(),
        pair: None,
    }
}

/// A sum of two rows.
fn add(dst: u16, a: Operand, b: u16) -> Inst {
    plain(Op::VAddU32, Format::Vop2, Operand::Vgpr(dst), [a, Operand::Vgpr(b), Operand::None])
}

fn access_inst(op: Op, format: Format, dst: u16, address: u16) -> Inst {
    let mut inst = plain(op, format, Operand::Vgpr(dst), [Operand::None; 3]);
    inst.memory.vaddr = Operand::Vgpr(address);
    inst.memory.base = Operand::None;
    inst.memory.soffset = Operand::None;
    inst
}

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

#[derive(Clone)]
#[repr(align(64))]
struct State {
    rows: [[u32; 64]; 32],
    scalars: [u32; 128],
}

impl State {
    fn random(numbers: &mut Numbers) -> Box<State> {
        let mut state = Box::new(State { rows: [[0; 64]; 32], scalars: [0; 128] });
        state.rows.iter_mut().flatten().for_each(|word| *word = numbers.next() as u32);
        state.scalars.iter_mut().for_each(|word| *word = numbers.next() as u32);
        let exec = match numbers.below(6) {
            0 | 1 => u64::MAX,
            2 => 1 << numbers.below(64),
            3 => numbers.next() & 0xffff_0000_ff00_00ff,
            4 => u64::MAX << numbers.below(20) & u64::MAX >> numbers.below(20),
            _ => numbers.next(),
        };
        (state.scalars[126], state.scalars[127]) = (exec as u32, (exec >> 32) as u32);
        state
    }

    fn exec(&self) -> u64 {
        u64::from(self.scalars[126]) | u64::from(self.scalars[127]) << 32
    }

    fn active(&self) -> impl Iterator<Item = usize> {
        let exec = self.exec();
        (0..64).filter(move |lane| exec >> lane & 1 != 0)
    }
}

/// Offsets of lanes within `room` bytes, `bytes` each.
fn offsets(numbers: &mut Numbers, room: u64, bytes: u64) -> [u32; 64] {
    let strip = [8, 16, 64][numbers.below(3) as usize];
    let kind = numbers.below(6);
    let mut begin = numbers.below(room - 64 * bytes) & !3;
    std::array::from_fn(|lane| {
        if lane % strip == 0 && numbers.below(2) == 0 {
            begin = numbers.below(room - 64 * bytes) & !3;
        }
        let offset = match kind {
            0 | 1 => begin + bytes * lane as u64,
            2 | 3 => begin,
            4 => begin + bytes * (lane % 16) as u64,
            _ => numbers.below(room - 4 * bytes) & !3,
        };
        offset as u32
    })
}

const LDS: [(Op, u16, u16, u32); 8] = [
    (Op::DsReadB32, 1, 1, 0),
    (Op::DsReadB64, 1, 2, 0),
    (Op::DsReadB96, 1, 3, 0),
    (Op::DsReadB128, 1, 4, 0),
    (Op::DsRead2B32, 2, 1, 4),
    (Op::DsRead2B64, 2, 2, 8),
    (Op::DsRead2st64B32, 2, 1, 256),
    (Op::DsRead2st64B64, 2, 2, 512),
];

fn widths() -> impl Iterator<Item = Width> {
    [Width::Avx2, Width::Avx512].into_iter().filter(|width| width.is_there())
}

/// What a program does, one instruction after the other: whether it could.
fn model(insts: &[Inst], state: &mut State, lds: &[u8], pages: &Pages) -> Option<()> {
    for inst in insts {
        let before = state.clone();
        let row = |operand: Operand| match operand {
            Operand::Vgpr(n) => usize::from(n),
            _ => 0,
        };
        if inst.op == Op::VAddU32 {
            for lane in before.active() {
                let a = match inst.src[0] {
                    Operand::Int(number) => u32::from_ne_bytes(i32::from(number).to_ne_bytes()),
                    operand => before.rows[row(operand)][lane],
                };
                state.rows[row(inst.dst)][lane] = a.wrapping_add(before.rows[row(inst.src[1])][lane]);
            }
            continue;
        }
        let address = row(inst.memory.vaddr);
        let local = LDS.iter().find(|known| known.0 == inst.op);
        for lane in before.active() {
            let low = before.rows[address][lane];
            if let Some(&(_, parts, words, unit)) = local {
                for part in 0..parts {
                    let offset = if unit == 0 {
                        u32::from_ne_bytes(inst.memory.offset.to_ne_bytes())
                    } else {
                        u32::from(inst.memory.offsets[usize::from(part)]) * unit
                    };
                    for word in 0..words {
                        let from = (low.wrapping_add(offset) + 4 * u32::from(word)) as usize;
                        let bytes = lds.get(from..from + 4)?;
                        let value = u32::from_le_bytes(bytes.try_into().expect("four"));
                        state.rows[row(inst.dst) + usize::from(part * words + word)][lane] = value;
                    }
                }
                continue;
            }
            let high = match inst.memory.base {
                Operand::Scalar(n) => {
                    u64::from(before.scalars[usize::from(n)]) | u64::from(before.scalars[usize::from(n) + 1]) << 32
                }
                _ => u64::from(before.rows[address + 1][lane]) << 32,
            };
            let va = high.wrapping_add(low.into()).wrapping_add_signed(inst.memory.offset.into());
            let words = if matches!(inst.op, Op::GlobalLoadDword | Op::FlatLoadDword) { 1 } else { 2 };
            if va % PAGE + 4 * words > PAGE {
                return None;
            }
            for word in 0..words {
                state.rows[row(inst.dst) + word as usize][lane] = pages.word(va + 4 * word)?;
            }
        }
    }
    Some(())
}

struct Rig {
    arena: Arena,
    context: Box<Context>,
    lds: Vec<u8>,
    pages: Pages,
    time: u64,
}

impl Rig {
    fn new(numbers: &mut Numbers) -> Rig {
        let pages = Pages::new();
        for word in 0..(PAGES * PAGE / 4) as usize {
            // SAFETY: a word of the mapping.
            unsafe { pages.host.cast::<u32>().add(word).write(numbers.next() as u32) };
        }
        let lds = (0..8192).map(|_| numbers.next() as u8).collect();
        Rig { arena: Arena::default(), context: Context::new(load, mend, access), lds, pages, time: 1 }
    }

    /// The engine has new pages.
    fn reopen(&mut self) {
        self.time += 1;
        self.context.forget_pages(self.time);
    }

    fn run(&mut self, insts: &[Inst], width: Width, state: &mut State, limit: u32, sabotage: Switches) -> Left {
        let mut regions = translate(insts, &Waves::<32>, (width, true), &mut self.arena, &sabotage, |op, why| {
            panic!("{op:?}: {why:?}")
        });
        assert_eq!(regions.len(), 1, "{insts:?}");
        let region = regions.remove(0);
        assert_eq!(region.insts, 0..insts.len());
        self.context.user = (&raw mut self.pages).cast();
        self.context.set_lds(&self.lds);
        let (rows, scalars) = (state.rows.as_mut_ptr().cast(), state.scalars.as_mut_ptr());
        // SAFETY: as many rows and scalars as `Waves` has.
        let left = unsafe { region.run(&mut self.context, rows, scalars, limit) };
        drop(region);
        self.arena.clear();
        left
    }
}

/// So many programs of a kind, or as `VKFD_LOCKSTEP` says.
fn programs(few: u64) -> u64 {
    std::env::var("VKFD_LOCKSTEP").ok().and_then(|count| count.parse().ok()).unwrap_or(few)
}

/// Sums that make a region of the instructions between them.
fn around(numbers: &mut Numbers, mut accesses: Vec<Inst>) -> Vec<Inst> {
    for _ in 0..4 {
        let place = numbers.below(accesses.len() as u64 + 1) as usize;
        accesses.insert(place, add(20 + numbers.below(4) as u16, Operand::Vgpr(20), 4 + numbers.below(12) as u16));
    }
    accesses
}

/// How many of random programs differ from the model.
fn lds_differences(count: u64, sabotage: Switches) -> u64 {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut rig = Rig::new(&mut numbers);
    let mut wrong = 0;
    for _ in 0..count {
        let mut state = State::random(&mut numbers);
        state.rows[0] = offsets(&mut numbers, 4096, 4);
        state.rows[1] = offsets(&mut numbers, 4096, 8);
        state.rows[2] = offsets(&mut numbers, 4096, 16);
        if numbers.below(8) == 0 {
            let lane = numbers.below(64) as usize;
            state.rows[1][lane] = [8190, 8188, 9000, u32::MAX - 3][numbers.below(4) as usize];
        }
        let accesses = (0..1 + numbers.below(4)).map(|_| {
            let (op, _, _, unit) = LDS[numbers.below(LDS.len() as u64) as usize];
            let dst = if numbers.below(6) == 0 { numbers.below(3) } else { 4 + numbers.below(12) };
            let mut inst = access_inst(op, Format::Ds, dst as u16, numbers.below(3) as u16);
            inst.memory.offset = numbers.below(1024) as i32 * 4;
            inst.memory.offsets = [numbers.below(8) as u8, (numbers.below(1024) >> unit.count_ones()) as u8 % 8];
            inst
        });
        let accesses = accesses.collect();
        let insts = around(&mut numbers, accesses);
        for width in widths() {
            let (mut found, mut expected) = (state.clone(), state.clone());
            let left = rig.run(&insts, width, &mut found, 1, sabotage);
            let could = model(&insts, &mut expected, &rig.lds, &rig.pages).is_some();
            let expected = match left {
                Left::Done { .. } if could => expected,
                // Bounds are those of all accesses by an address, so it may leave early.
                Left::Missed => state.clone(),
                Left::Done { .. } => {
                    wrong += 1;
                    continue;
                }
            };
            let same = found.rows == expected.rows && found.scalars == expected.scalars;
            assert!(same || sabotage != Switches::NONE, "{width:?} {left:?} {insts:#?}");
            wrong += u64::from(!same);
        }
    }
    wrong
}

#[test]
fn lds_is_read_as_the_model_reads_it() {
    assert_eq!(lds_differences(programs(2000), Switches::NONE), 0);
}

#[test]
fn a_shape_that_is_not_looked_at_is_noticed() {
    assert_ne!(lds_differences(200, Switches::NONE.with(Switch::GuessedShape)), 0);
}

/// The same of memory: straight accesses are the handlers', so these are loops of one round.
fn memory_differences(count: u64, sabotage: Switches) -> (u64, [u64; 2]) {
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    let mut rig = Rig::new(&mut numbers);
    let (mut wrong, mut ends) = (0, [0, 0]);
    for _ in 0..count {
        let mut state = State::random(&mut numbers);
        if numbers.below(3) == 0 {
            rig.pages.missing = 1 << numbers.below(PAGES);
            rig.reopen();
        } else if numbers.below(3) == 0 {
            rig.pages.missing = 0;
            rig.reopen();
        }
        // Rows 0 and 1, 2 and 3 have addresses; row 16 has offsets from s[4:5].
        for row in [0, 2] {
            let places = offsets(&mut numbers, PAGES * PAGE, 8);
            for (lane, place) in places.into_iter().enumerate() {
                let va = BASE + u64::from(place);
                (state.rows[row][lane], state.rows[row + 1][lane]) = (va as u32, (va >> 32) as u32);
            }
        }
        state.rows[16] = offsets(&mut numbers, PAGES * PAGE, 4);
        (state.scalars[4], state.scalars[5]) = (BASE as u32, (BASE >> 32) as u32);
        let accesses = (0..1 + numbers.below(3)).map(|_| {
            let dst = if numbers.below(6) == 0 { numbers.below(4) } else { 6 + numbers.below(8) } as u16;
            let (op, format) = [
                (Op::GlobalLoadDword, Format::Global),
                (Op::GlobalLoadDwordx2, Format::Global),
                (Op::FlatLoadDword, Format::Flat),
                (Op::FlatLoadDwordx2, Format::Flat),
            ][numbers.below(4) as usize];
            let based = format == Format::Global && numbers.below(2) == 0;
            let mut inst = access_inst(op, format, dst, if based { 16 } else { [0, 2][numbers.below(2) as usize] });
            if based {
                inst.memory.base = Operand::Scalar(4);
            }
            inst.memory.offset = if numbers.below(2) == 0 { 0 } else { numbers.below(64) as i32 * 4 };
            inst
        });
        let mut accesses: Vec<Inst> = accesses.collect();
        for _ in 0..2 {
            let more = around(&mut numbers, std::mem::take(&mut accesses));
            accesses = around(&mut numbers, more);
        }
        let body = accesses;
        let mut insts = body.clone();
        // SCC is zero: the loop has one round.
        let scalar = |n| Operand::Scalar(n);
        insts.push(plain(Op::SCmpLgU32, Format::Sopc, Operand::None, [scalar(20), scalar(20), Operand::None]));
        let mut back = plain(Op::SCbranchScc1, Format::Sopp, Operand::None, [Operand::None; 3]);
        back.imm = -(insts.len() as i32 + 1);
        insts.push(back);
        for width in widths() {
            let (mut found, mut expected) = (state.clone(), state.clone());
            let left = rig.run(&insts, width, &mut found, 64, sabotage);
            let could = model(&body, &mut expected, &rig.lds, &rig.pages).is_some();
            ends[usize::from(could)] += 1;
            let same_end = (left == Left::Missed) != could;
            let expected = if could { expected } else { state.clone() };
            let same = same_end && found.rows == expected.rows && found.scalars == expected.scalars;
            assert!(same || sabotage != Switches::NONE, "{width:?} {left:?} {could} {insts:#?}");
            wrong += u64::from(!same);
        }
    }
    (wrong, ends)
}

#[test]
fn memory_is_read_as_the_model_reads_it() {
    let (wrong, ends) = memory_differences(programs(2000), Switches::NONE);
    assert_eq!(wrong, 0);
    assert!(ends.iter().all(|end| *end > 100), "{ends:?} missed, done");
}

#[test]
fn rows_that_are_not_put_back_after_a_miss_are_noticed() {
    assert_ne!(memory_differences(400, Switches::NONE.with(Switch::UnkeptRows)).0, 0);
}

/// A loop over an array, whose lanes are four words apart in each round.
fn walk() -> Vec<Inst> {
    let (row, scalar) = (Operand::Vgpr, Operand::Scalar);
    let mut back = plain(Op::SCbranchScc1, Format::Sopp, Operand::None, [Operand::None; 3]);
    back.imm = -9;
    vec![
        access_inst(Op::GlobalLoadDword, Format::Global, 4, 0),
        add(5, row(4), 5),
        add(6, row(5), 6),
        add(7, row(6), 7),
        add(8, row(7), 8),
        plain(Op::VAddU32, Format::Vop2, row(0), [scalar(5), row(0), Operand::None]),
        plain(Op::SSubU32, Format::Sop2, scalar(20), [scalar(20), Operand::Int(1), Operand::None]),
        plain(Op::SCmpLgU32, Format::Sopc, Operand::None, [scalar(20), Operand::Int(0), Operand::None]),
        back,
    ]
}

/// A page that vanishes from the host under machine code: rounds before the fault are done, and in
/// the one with the fault nothing has happened.
#[test]
fn a_fault_in_machine_code_is_a_miss_of_its_round() {
    let mut numbers = Numbers(77);
    for width in widths() {
        let mut rig = Rig::new(&mut numbers);
        let insts = walk();
        for gone in 0..3 {
            let mut state = State::random(&mut numbers);
            (state.scalars[126], state.scalars[127]) = (u32::MAX, u32::MAX);
            (state.scalars[5], state.scalars[20]) = (256, 40);
            for lane in 0..64 {
                let va = BASE + 4 * lane as u64;
                (state.rows[0][lane], state.rows[1][lane]) = (va as u32, (va >> 32) as u32);
            }
            // The pages' slot is that of the page before: each page has 16 rounds.
            let begin = state.clone();
            rig.reopen();
            let left = rig.run(&insts, width, &mut state, 64, Switches::NONE);
            assert_eq!(left, Left::Done { rounds: 40, again: false });
            let whole = state;
            // The code has the page in its slot, as it may while the gate is open.
            let mut state = begin.clone();
            rig.run(&insts, width, &mut state, 16 * gone as u32 + 1, Switches::NONE);
            rig.context.take_calls();
            rig.pages.protect(gone, libc::PROT_NONE);
            let mut state = begin.clone();
            let left = rig.run(&insts, width, &mut state, 64, Switches::NONE);
            assert!(gone != 0 || rig.context.take_calls() == 0, "the machine code itself has met the fault");
            rig.pages.protect(gone, libc::PROT_READ | libc::PROT_WRITE);
            let rounds = 16 * gone as u32;
            match (left, rounds) {
                (Left::Missed, 0) => assert!(state.rows == begin.rows && state.scalars == begin.scalars),
                (Left::Done { rounds: done, again: true }, 1..) => {
                    assert_eq!(done, rounds);
                    assert_eq!(state.scalars[20], 40 - rounds);
                    let left = rig.run(&insts, width, &mut state, 64, Switches::NONE);
                    assert_eq!(left, Left::Done { rounds: 40 - rounds, again: false });
                    assert!(state.rows == whole.rows, "{width:?}");
                }
                _ => panic!("{width:?} page {gone}: {left:?}"),
            }
        }
    }
}
