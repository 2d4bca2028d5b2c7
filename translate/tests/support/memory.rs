// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory and LDS for regions by themselves, and a plain model of their accesses.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "registers are bit patterns"
)]

use super::Waves;
use std::ffi::c_void;
use vkfd_isa::{Extension, Format, Inst, Memory, Mods, Op, Operand};
use vkfd_sabotage::Switches;
use vkfd_translate::{translate, Accesses, Accessing, Context, Left, Mending, Translator, Width};

pub const PAGE: u64 = 4096;
/// Where the GPU sees the pages.
pub const BASE: u64 = 0x7_ffff_c000;
pub const PAGES: u64 = 8;

/// Pages of the GPU: each has a place on the host, in another order, or none.
pub struct Pages {
    pub host: *mut u8,
    pub missing: u64,
    /// Pages that may not be written.
    pub fixed: u64,
}

impl Pages {
    pub fn new() -> Pages {
        let bytes = (PAGES * PAGE) as usize;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel picks.
        let host = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(host, libc::MAP_FAILED);
        Pages { host: host.cast(), missing: 0, fixed: 0 }
    }

    pub fn protect(&self, page: u64, protection: libc::c_int) {
        // SAFETY: a page of the mapping, which nothing but machine code reads meanwhile.
        let done = unsafe { libc::mprotect(self.place(page).cast(), PAGE as usize, protection) };
        assert_eq!(done, 0);
    }

    pub fn place(&self, page: u64) -> *mut u8 {
        self.host.wrapping_add(((page * 5 + 3) % PAGES * PAGE) as usize)
    }

    /// The host's byte.
    pub fn at(&self, va: u64) -> Option<*mut u8> {
        let page = va.checked_sub(BASE)? / PAGE;
        let there = page < PAGES && self.missing >> page & 1 == 0;
        there.then(|| self.place(page).wrapping_add((va % PAGE) as usize))
    }

    pub fn word(&self, va: u64) -> Option<u32> {
        if va % PAGE > PAGE - 4 {
            return None;
        }
        // SAFETY: a word of the mapping, which may be protected.
        self.at(va).and_then(|at| unsafe { vkfd_raw::load_u32(at.cast()) }.ok())
    }
}

impl Pages {
    /// A byte or a half.
    pub fn part(&self, va: u64, bytes: u64) -> Option<u32> {
        if va % PAGE > PAGE - bytes {
            return None;
        }
        let (from, mut value) = ([self.at(va)?], 0u32);
        // SAFETY: a part of the mapping, which may be protected.
        unsafe { vkfd_raw::load_each((&raw mut value).cast(), &from, bytes as usize) }.ok()?;
        Some(value)
    }

    /// All bytes.
    pub fn copy(&self) -> Vec<u8> {
        // SAFETY: its mapping, none of whose pages is protected now.
        unsafe { std::slice::from_raw_parts(self.host, (PAGES * PAGE) as usize) }.to_vec()
    }

    /// Has all bytes be these.
    pub fn put_back(&self, bytes: &[u8]) {
        // SAFETY: as above; `copy` has made as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.host, bytes.len()) };
    }

    /// Stores a word.
    pub fn store(&self, va: u64, value: u32) -> Option<()> {
        if va % PAGE > PAGE - 4 || self.fixed >> (va.wrapping_sub(BASE) / PAGE % 64) & 1 != 0 {
            return None;
        }
        let to = [self.at(va)?];
        // SAFETY: a word of the mapping, which may be protected.
        unsafe { vkfd_raw::store_each((&raw const value).cast(), &to, 4) }.ok()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: its own mapping, which nothing uses any more.
        unsafe { libc::munmap(self.host.cast(), (PAGES * PAGE) as usize) };
    }
}

pub unsafe extern "sysv64" fn mend(_: *mut c_void, _: *mut Mending) {}

pub unsafe extern "sysv64" fn access(user: *mut c_void, access: *mut Accessing) -> u32 {
    // SAFETY: the rig that the test has set, and the context's own.
    let (rig, access) = unsafe { (&mut *user.cast::<Rig>(), &mut *access) };
    if let Accessing::PAGE | Accessing::PAGE_TO_WRITE = access.kind {
        let (page, write) = (access.base & !(PAGE - 1), access.kind == Accessing::PAGE_TO_WRITE);
        let is_fixed = write && rig.pages.fixed >> (page.wrapping_sub(BASE) / PAGE % 64) & 1 != 0;
        let Some(host) = rig.pages.at(page).filter(|_| !is_fixed) else { return 0 };
        (access.page, access.host) = (Accessing::tag(page, access.flat != 0, write), host);
        return 1;
    }
    access.calls += 1;
    let mut first = true;
    let write = access.kind != Accessing::LOAD;
    for lane in (0..16).filter(|lane| access.lanes >> lane & 1 != 0) {
        let address = u64::from(access.low[lane]) | u64::from(access.high[lane]) << 32;
        let va = access.base.wrapping_add(address);
        let bytes = if access.narrow == 0 { 4 * u64::from(access.words) } else { access.narrow.into() };
        if va % PAGE + bytes > PAGE {
            return 0;
        }
        if access.narrow != 0 {
            let Some(value) = rig.pages.part(va, bytes) else { return 0 };
            access.result[0][lane] = value;
            if std::mem::take(&mut first) {
                access.page = Accessing::tag(va & !(PAGE - 1), access.flat != 0, write);
                access.host = rig.pages.at(va & !(PAGE - 1)).expect("the part was there");
            }
            continue;
        }
        for word in 0..access.words as usize {
            let place = va + 4 * word as u64;
            if write {
                if rig.pages.store(place, access.result[word][lane]).is_none() {
                    return 0;
                }
            } else {
                let Some(value) = rig.pages.word(place) else { return 0 };
                access.result[word][lane] = value;
            }
        }
        if std::mem::take(&mut first) {
            access.page = Accessing::tag(va & !(PAGE - 1), access.flat != 0, write);
            access.host = rig.pages.at(va & !(PAGE - 1)).expect("the word was there");
        }
    }
    1
}

pub fn plain(op: Op, format: Format, dst: Operand, src: [Operand; 3]) -> Inst {
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
pub fn add(dst: u16, a: Operand, b: u16) -> Inst {
    plain(Op::VAddU32, Format::Vop2, Operand::Vgpr(dst), [a, Operand::Vgpr(b), Operand::None])
}

pub fn access_inst(op: Op, format: Format, dst: u16, address: u16) -> Inst {
    let mut inst = plain(op, format, Operand::Vgpr(dst), [Operand::None; 3]);
    inst.memory.vaddr = Operand::Vgpr(address);
    inst.memory.base = Operand::None;
    inst.memory.soffset = Operand::None;
    inst
}

pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

#[derive(Clone)]
#[repr(align(64))]
pub struct State {
    pub rows: [[u32; 64]; 32],
    pub scalars: [u32; 128],
}

impl State {
    pub fn random(numbers: &mut Numbers) -> Box<State> {
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

    pub fn exec(&self) -> u64 {
        u64::from(self.scalars[126]) | u64::from(self.scalars[127]) << 32
    }

    pub fn active(&self) -> impl Iterator<Item = usize> {
        let exec = self.exec();
        (0..64).filter(move |lane| exec >> lane & 1 != 0)
    }
}

/// Offsets of lanes within `room` bytes, `bytes` each.
pub fn offsets(numbers: &mut Numbers, room: u64, bytes: u64) -> [u32; 64] {
    let strip = [8, 16, 64][numbers.below(3) as usize];
    let kind = numbers.below(8);
    let aligned = if bytes < 4 { !0 } else { !3 };
    let mut begin = numbers.below(room - 64 * bytes) & aligned;
    let page = numbers.below((room / PAGE).max(1)) * PAGE;
    // One that lies elsewhere.
    let apart = if numbers.below(4) == 0 { numbers.below(64) as usize } else { 64 };
    std::array::from_fn(|lane| {
        if lane % strip == 0 && numbers.below(2) == 0 {
            begin = numbers.below(room - 64 * bytes) & aligned;
        }
        let offset = match kind {
            _ if lane == apart => numbers.below(room - 4 * bytes) & aligned,
            0 => begin + bytes * lane as u64,
            1 => begin + 4 * lane as u64,
            2 | 3 => begin,
            4 => begin + bytes * (lane % 16) as u64,
            // Of one page, but for some lanes.
            5 | 6 if room >= PAGE && numbers.below(200) != 0 => page + (numbers.below(PAGE - 1024) & aligned),
            _ => numbers.below(room - 4 * bytes) & aligned,
        };
        offset as u32
    })
}

/// Bytes of a lane, and whether their sign goes up, of operations that load less than a word.
fn narrow(op: Op) -> Option<(u64, bool)> {
    Some(match op {
        Op::GlobalLoadUbyte | Op::FlatLoadUbyte => (1, false),
        Op::GlobalLoadSbyte | Op::FlatLoadSbyte => (1, true),
        Op::GlobalLoadUshort | Op::FlatLoadUshort => (2, false),
        Op::GlobalLoadSshort | Op::FlatLoadSshort => (2, true),
        _ => return None,
    })
}

pub const LDS: [(Op, u16, u16, u32); 8] = [
    (Op::DsReadB32, 1, 1, 0),
    (Op::DsReadB64, 1, 2, 0),
    (Op::DsReadB96, 1, 3, 0),
    (Op::DsReadB128, 1, 4, 0),
    (Op::DsRead2B32, 2, 1, 4),
    (Op::DsRead2B64, 2, 2, 8),
    (Op::DsRead2st64B32, 2, 1, 256),
    (Op::DsRead2st64B64, 2, 2, 512),
];

pub fn widths() -> impl Iterator<Item = Width> {
    [Width::Avx2, Width::Avx512].into_iter().filter(|width| width.is_there())
}

pub const STORES: [(Op, u16, u16, u32); 8] = [
    (Op::DsWriteB32, 1, 1, 0),
    (Op::DsWriteB64, 1, 2, 0),
    (Op::DsWriteB96, 1, 3, 0),
    (Op::DsWriteB128, 1, 4, 0),
    (Op::DsWrite2B32, 2, 1, 4),
    (Op::DsWrite2B64, 2, 2, 8),
    (Op::DsWrite2st64B32, 2, 1, 256),
    (Op::DsWrite2st64B64, 2, 2, 512),
];

/// Scalar loads and their words.
pub const SCALAR: [(Op, u8); 5] =
    [(Op::SLoadDword, 1), (Op::SLoadDwordx2, 2), (Op::SLoadDwordx4, 4), (Op::SLoadDwordx8, 8), (Op::SLoadDwordx16, 16)];

fn words_of(op: Op) -> u16 {
    match op {
        Op::GlobalLoadDword | Op::FlatLoadDword | Op::GlobalStoreDword | Op::FlatStoreDword => 1,
        Op::GlobalLoadDwordx3 | Op::GlobalStoreDwordx3 => 3,
        Op::GlobalLoadDwordx4 | Op::FlatLoadDwordx4 | Op::GlobalStoreDwordx4 | Op::FlatStoreDwordx4 => 4,
        _ => 2,
    }
}

fn row(operand: Operand) -> usize {
    match operand {
        Operand::Vgpr(n) => usize::from(n),
        _ => 0,
    }
}

/// Rounds of a loop, at most.
const ROUNDS: u32 = 1000;

/// What a program does, one instruction after the other, and the loop if it ends with a branch: the
/// number of the one that could not be done.
pub fn model(insts: &[Inst], state: &mut State, lds: &mut [u8], pages: &Pages, from: usize) -> Result<(), usize> {
    let (mut index, mut scc, mut rounds) = (from, false, 0);
    while let Some(inst) = insts.get(index) {
        match inst.op {
            Op::SSubU32 => state.scalars[20] = state.scalars[20].wrapping_sub(1),
            Op::SCmpLgU32 => scc = state.scalars[20] != 0 && inst.src[1] == Operand::Int(0),
            // A broken region may leave a number of rounds that does not end.
            Op::SCbranchScc1 if scc && rounds == ROUNDS => return Err(index),
            Op::SCbranchScc1 if scc => {
                (index, rounds) = (0, rounds + 1);
                continue;
            }
            Op::SCbranchScc1 => {}
            _ => step(inst, state, lds, pages).ok_or(index)?,
        }
        index += 1;
    }
    Ok(())
}

/// One instruction of the lanes. A store that cannot be done is done as far as it can be.
fn step(inst: &Inst, state: &mut State, lds: &mut [u8], pages: &Pages) -> Option<()> {
    let before = state.clone();
    if inst.op == Op::VAddU32 {
        for lane in before.active() {
            let a = match inst.src[0] {
                Operand::Int(number) => u32::from_ne_bytes(i32::from(number).to_ne_bytes()),
                Operand::Scalar(n) => before.scalars[usize::from(n)],
                operand => before.rows[row(operand)][lane],
            };
            state.rows[row(inst.dst)][lane] = a.wrapping_add(before.rows[row(inst.src[1])][lane]);
        }
        return Some(());
    }
    if let (Some((_, words)), Operand::Scalar(to), Operand::Scalar(base)) =
        (SCALAR.iter().find(|known| known.0 == inst.op), inst.dst, inst.memory.base)
    {
        let pair = |n: u8| [n, n + 1].map(|n| u64::from(before.scalars[usize::from(n)]));
        let [low, high] = pair(base);
        let offset = match inst.memory.soffset {
            Operand::Scalar(n) => u64::from(before.scalars[usize::from(n)]),
            _ => 0,
        };
        let va = (low | high << 32).wrapping_add(offset).wrapping_add_signed(inst.memory.offset.into()) & !3;
        if va % PAGE + 4 * u64::from(*words) > PAGE {
            return None;
        }
        for word in 0..*words {
            match pages.word(va + 4 * u64::from(word)) {
                Some(value) => state.scalars[usize::from(to + word)] = value,
                None => {
                    *state = before;
                    return None;
                }
            }
        }
        return Some(());
    }
    let mut done = Some(());
    let address = row(inst.memory.vaddr);
    let local = LDS.iter().chain(&STORES).find(|known| known.0 == inst.op);
    let is_store = STORES.iter().any(|known| known.0 == inst.op) || inst.op.name().contains("store");
    let data = [inst.memory.data, inst.memory.data2].map(row);
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
                    let from = low.wrapping_add(offset) as usize + 4 * usize::from(word);
                    let Some(bytes) = lds.get_mut(from..from + 4) else {
                        done = None;
                        continue;
                    };
                    if is_store {
                        let value = before.rows[data[usize::from(part)] + usize::from(word)][lane];
                        bytes.copy_from_slice(&value.to_le_bytes());
                    } else {
                        let value = u32::from_le_bytes((&*bytes).try_into().expect("four"));
                        state.rows[row(inst.dst) + usize::from(part * words + word)][lane] = value;
                    }
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
        if let Some((bytes, signed)) = narrow(inst.op) {
            match pages.part(va, bytes) {
                Some(value) => {
                    let up = 32 - 8 * bytes as u32;
                    let extended = if signed { ((value << up) as i32 >> up) as u32 } else { value };
                    state.rows[row(inst.dst)][lane] = extended;
                }
                None => done = None,
            }
            continue;
        }
        let words = u64::from(words_of(inst.op));
        let within = va % PAGE + 4 * words <= PAGE;
        if !within {
            done = None;
        }
        for word in 0..words {
            let at = va.wrapping_add(4 * word);
            if is_store {
                let value = before.rows[data[0] + word as usize][lane];
                if !within || pages.store(at, value).is_none() {
                    done = None;
                }
            } else {
                match pages.word(at).filter(|_| within) {
                    Some(value) => state.rows[row(inst.dst) + word as usize][lane] = value,
                    None => done = None,
                }
            }
        }
    }
    if done.is_none() {
        *state = before;
    }
    done
}

pub struct Rig {
    translator: Translator,
    pub context: Box<Context>,
    pub lds: Vec<u8>,
    pub pages: Pages,
    /// The wave ends behind what it runs.
    pub ends: bool,
    time: u64,
}

impl Rig {
    pub fn new(numbers: &mut Numbers) -> Rig {
        let pages = Pages::new();
        for word in 0..(PAGES * PAGE / 4) as usize {
            // SAFETY: a word of the mapping.
            unsafe { pages.host.cast::<u32>().add(word).write(numbers.next() as u32) };
        }
        let lds = (0..8192).map(|_| numbers.next() as u8).collect();
        Rig { translator: Translator::default(), context: Context::new(mend, access), lds, pages, ends: false, time: 1 }
    }

    /// The engine has new pages.
    pub fn reopen(&mut self) {
        self.time += 1;
        self.context.forget_pages(self.time);
    }

    pub fn run(&mut self, insts: &[Inst], width: Width, state: &mut State, limit: u32, sabotage: Switches) -> Left {
        let (mut code, mut accesses) = (insts.to_vec(), Accesses::All);
        if self.ends {
            code.push(plain(Op::SEndpgm, Format::Sopp, Operand::None, [Operand::None; 3]));
            accesses = Accesses::Last;
        }
        let mut regions =
            translate(&code, &Waves::<32>, (width, accesses), &mut self.translator, &sabotage, |op, why| {
                assert_eq!(op, Op::SEndpgm, "{why:?}");
            });
        assert_eq!(regions.len(), 1, "{insts:?}");
        let region = regions.remove(0);
        assert_eq!(region.insts, 0..insts.len());
        self.context.user = (&raw mut *self).cast();
        self.context.set_lds(&mut self.lds);
        let (rows, scalars) = (state.rows.as_mut_ptr().cast(), state.scalars.as_mut_ptr());
        // SAFETY: as many rows and scalars as `Waves` has.
        let left = unsafe { region.run(&mut self.context, rows, scalars, limit) };
        drop(region);
        self.translator.clear();
        left
    }
}

/// So many programs of a kind, or as `VKFD_LOCKSTEP` says.
pub fn programs(few: u64) -> u64 {
    std::env::var("VKFD_LOCKSTEP").ok().and_then(|count| count.parse().ok()).unwrap_or(few)
}

/// Sums that make a region of the instructions between them: enough for an access of four words.
pub fn around(numbers: &mut Numbers, mut accesses: Vec<Inst>) -> Vec<Inst> {
    for _ in 0..8 {
        let place = numbers.below(accesses.len() as u64 + 1) as usize;
        accesses.insert(place, add(20 + numbers.below(4) as u16, Operand::Vgpr(20), 4 + numbers.below(12) as u16));
    }
    accesses
}
