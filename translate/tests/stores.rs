// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Stores to memory and LDS in regions and loops, against a plain model. Loads and stores overlap,
//! pages are missing or may not be written, and lanes are active at random.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "registers are bit patterns")]

mod support;

use support::memory::*;
use vkfd_isa::{Format, Inst, Op, Operand};
use vkfd_sabotage::{Switch, Switches};
use vkfd_translate::{Left, Width};

/// Rows 0 to 3 have addresses in memory, row 16 offsets from s[4:5], and rows 17 to 19 ones in LDS.
fn start(numbers: &mut Numbers) -> Box<State> {
    let mut state = State::random(numbers);
    for row in [0, 2] {
        // Both are in the same two pages, so that accesses overlap.
        let bytes = [4, 8, 12, 16][numbers.below(4) as usize];
        let places = offsets(numbers, 2 * PAGE, bytes);
        for (lane, place) in places.into_iter().enumerate() {
            let va = BASE + u64::from(place);
            (state.rows[row][lane], state.rows[row + 1][lane]) = (va as u32, (va >> 32) as u32);
        }
    }
    state.rows[16] = offsets(numbers, 2 * PAGE, 4);
    (state.scalars[4], state.scalars[5]) = (BASE as u32, (BASE >> 32) as u32);
    for (row, bytes) in [(17, 4), (18, 8), (19, 16)] {
        state.rows[row] = offsets(numbers, 2048, bytes);
    }
    if numbers.below(8) == 0 {
        let lane = numbers.below(64) as usize;
        state.rows[18][lane] = [8190, 8188, 9000, u32::MAX - 3][numbers.below(4) as usize];
    }
    state
}

fn memory_access(numbers: &mut Numbers, store: bool) -> Inst {
    let kinds = [
        (Op::GlobalLoadDword, Op::GlobalStoreDword, Format::Global),
        (Op::GlobalLoadDwordx2, Op::GlobalStoreDwordx2, Format::Global),
        (Op::GlobalLoadDwordx3, Op::GlobalStoreDwordx3, Format::Global),
        (Op::GlobalLoadDwordx4, Op::GlobalStoreDwordx4, Format::Global),
        (Op::FlatLoadDword, Op::FlatStoreDword, Format::Flat),
        (Op::FlatLoadDwordx4, Op::FlatStoreDwordx4, Format::Flat),
    ];
    let (load, stored, format) = kinds[numbers.below(kinds.len() as u64) as usize];
    let based = format == Format::Global && numbers.below(2) == 0;
    let address = if based { 16 } else { [0, 2][numbers.below(2) as usize] };
    let mut inst = access_inst(if store { stored } else { load }, format, 6 + numbers.below(7) as u16, address);
    if based {
        inst.memory.base = Operand::Scalar(4);
    }
    inst.memory.offset = if numbers.below(2) == 0 { 0 } else { numbers.below(64) as i32 * 4 };
    inst.memory.data = Operand::Vgpr(4 + numbers.below(9) as u16);
    inst
}

fn local_access(numbers: &mut Numbers, store: bool) -> Inst {
    let (op, parts, _, unit) = if store { STORES } else { LDS }[numbers.below(8) as usize];
    let mut inst = access_inst(op, Format::Ds, 6 + numbers.below(7) as u16, 17 + numbers.below(3) as u16);
    inst.memory.offset = numbers.below(256) as i32 * 4;
    // Two stores of a lane come before those of the next one, which regions do only where it makes
    // no difference.
    let apart = if unit < 256 { 19 } else { 4 };
    inst.memory.offsets = [numbers.below(4) as u8, apart + numbers.below(4) as u8];
    inst.memory.data = Operand::Vgpr(4 + numbers.below(9) as u16);
    if parts == 2 {
        inst.memory.data2 = Operand::Vgpr(4 + numbers.below(9) as u16);
    }
    inst
}

/// Loads, sums and stores, in half of the loops with stores anywhere; a loop of s20 rounds if there
/// are any.
fn program(numbers: &mut Numbers, rounds: u32) -> Vec<Inst> {
    let access = |numbers: &mut Numbers, store| {
        if numbers.below(2) == 0 {
            memory_access(numbers, store)
        } else {
            local_access(numbers, store)
        }
    };
    let mut insts: Vec<Inst> = (0..numbers.below(3)).map(|_| access(numbers, false)).collect();
    let mut stores: Vec<Inst> = (0..1 + numbers.below(3)).map(|_| access(numbers, true)).collect();
    let sums = insts.len() + stores.len();
    if rounds > 0 && numbers.below(2) == 0 {
        for store in stores.drain(..) {
            let place = numbers.below(insts.len() as u64 + 1) as usize;
            insts.insert(place, store);
        }
    }
    for _ in 0..sums {
        insts = around(numbers, insts);
    }
    if rounds > 0 {
        // Addresses move on.
        for row in [0, 16, 17, 18] {
            if numbers.below(2) == 0 {
                insts.push(add(row, Operand::Int([4, 16, 64][numbers.below(3) as usize]), row));
            }
        }
    }
    insts.extend(stores);
    if rounds > 0 {
        let scalar = Operand::Scalar;
        insts.push(plain(Op::SSubU32, Format::Sop2, scalar(20), [scalar(20), Operand::Int(1), Operand::None]));
        insts.push(plain(Op::SCmpLgU32, Format::Sopc, Operand::None, [scalar(20), Operand::Int(0), Operand::None]));
        let mut back = plain(Op::SCbranchScc1, Format::Sopp, Operand::None, [Operand::None; 3]);
        back.imm = -(insts.len() as i32 + 1);
        insts.push(back);
    }
    insts
}

/// What a comparison has met: how often regions were done, stopped at a store, and missed.
#[derive(Debug, Default)]
struct Met {
    wrong: u64,
    done: u64,
    stored: u64,
    missed: u64,
    /// Rows that were not what they are for a wave that goes on.
    dropped: u64,
}

fn differences(count: u64, sabotage: Switches) -> Met {
    differences_of(count, sabotage, false)
}

/// `ends`: of waves that end behind the region, whose rows do not count.
fn differences_of(count: u64, sabotage: Switches, ends: bool) -> Met {
    let mut numbers = Numbers(0xfeed_5eed_1234_5677);
    let mut rig = Box::new(Rig::new(&mut numbers));
    let mut met = Met::default();
    for _ in 0..count {
        let rounds = if ends { 0 } else { [0, 1, 3, 20][numbers.below(4) as usize] };
        rig.ends = ends;
        let mut state = start(&mut numbers);
        state.scalars[20] = rounds.max(1);
        // All but the first four pages stay: rounds go on into them.
        rig.pages.missing = if numbers.below(3) == 0 { 1 << numbers.below(4) } else { 0 };
        rig.pages.fixed = if numbers.below(3) == 0 { 1 << numbers.below(4) } else { 0 };
        rig.reopen();
        let insts = program(&mut numbers, rounds);
        compare(&mut rig, &insts, &state, sabotage, &mut met);
    }
    met
}

/// Compares a program's results with the model's, in each width.
fn compare(rig: &mut Rig, insts: &[Inst], state: &State, sabotage: Switches, met: &mut Met) {
    let memory = rig.pages.copy();
    let lds = rig.lds.clone();
    for width in widths() {
        let mut expected = state.clone();
        let end = model(insts, &mut expected, &mut rig.lds, &rig.pages, 0);
        let whole = (rig.pages.copy(), std::mem::replace(&mut rig.lds, lds.clone()));
        rig.pages.put_back(&memory);
        let mut found = state.clone();
        let same_end = finish(rig, insts, (width, sabotage), &mut found, met) == end;
        let same_memory = (rig.pages.copy(), std::mem::replace(&mut rig.lds, lds.clone())) == whole;
        rig.pages.put_back(&memory);
        let same_rows = found.rows == expected.rows;
        met.dropped += u64::from(!same_rows);
        let same_state = (same_rows || rig.ends) && found.scalars == expected.scalars;
        let same = same_end && same_memory && same_state;
        assert!(
            same || sabotage != Switches::NONE,
            "{width:?} end {same_end} memory {same_memory} state {same_state} {end:?} {insts:#?}"
        );
        met.wrong += u64::from(!same);
    }
}

/// Runs a region, and what it leaves to the engine by the model.
fn finish(
    rig: &mut Rig,
    insts: &[Inst],
    (width, sabotage): (Width, Switches),
    state: &mut State,
    met: &mut Met,
) -> Result<(), usize> {
    loop {
        let from = match rig.run(insts, width, state, 8, sabotage) {
            Left::Done { again: true, .. } => continue,
            Left::Done { .. } => {
                met.done += 1;
                return Ok(());
            }
            Left::Within { at, .. } | Left::SideExit { at } => {
                met.stored += 1;
                at
            }
            Left::Missed => {
                met.missed += 1;
                0
            }
        };
        return model(insts, state, &mut rig.lds, &rig.pages, from);
    }
}

#[test]
fn memory_is_written_as_the_model_writes_it() {
    let met = differences(programs(3000), Switches::NONE);
    assert_eq!(met.wrong, 0);
    assert!([met.done, met.stored, met.missed].into_iter().all(|count| count > 50), "{met:?}");
}

#[test]
fn waves_that_end_store_the_same_and_keep_no_rows() {
    let met = differences_of(programs(3000), Switches::NONE, true);
    assert_eq!(met.wrong, 0);
    assert!([met.done, met.stored, met.missed, met.dropped].into_iter().all(|count| count > 50), "{met:?}");
    assert_ne!(differences_of(300, Switches::NONE.with(Switch::SwappedStores), true).wrong, 0);
}

#[test]
fn stores_in_another_order_are_noticed() {
    assert_ne!(differences(300, Switches::NONE.with(Switch::SwappedStores)).wrong, 0);
}

#[test]
fn segments_in_another_order_are_noticed() {
    assert_ne!(differences(300, Switches::NONE.with(Switch::SwappedSegments)).wrong, 0);
}

#[test]
fn stores_of_lanes_that_are_not_active_are_noticed() {
    assert_ne!(differences(300, Switches::NONE.with(Switch::OpenLanes)).wrong, 0);
}

#[test]
fn shapes_of_stores_that_are_not_looked_at_are_noticed() {
    assert_ne!(differences(300, Switches::NONE.with(Switch::GuessedShape)).wrong, 0);
}

/// What one lane, or the line itself, has that code for a whole wave must not take for a line in
/// one page.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    Low,
    High,
    Inactive,
    /// The line ends in the next page, or beyond LDS.
    End,
    /// Low words begin anew within the line, and the store's offset leads all of it over the end.
    Wrap,
}

/// A wave whose lanes lie side by side but for a flaw, and its store or load.
fn line(numbers: &mut Numbers, flaw: Flaw, is_store: bool) -> (Box<State>, Inst) {
    let mut state = State::random(numbers);
    (state.scalars[126], state.scalars[127]) = (u32::MAX, u32::MAX);
    let lds = flaw != Flaw::High && flaw != Flaw::Wrap && numbers.below(2) == 0;
    let mut store = if lds { local_access(numbers, is_store) } else { memory_access(numbers, is_store) };
    let words = match store.op {
        Op::GlobalStoreDword | Op::FlatStoreDword | Op::DsWriteB32 | Op::DsWrite2B32 | Op::DsWrite2st64B32 => 1,
        Op::GlobalLoadDword | Op::FlatLoadDword | Op::DsReadB32 | Op::DsRead2B32 | Op::DsRead2st64B32 => 1,
        Op::GlobalStoreDwordx3 | Op::DsWriteB96 | Op::GlobalLoadDwordx3 | Op::DsReadB96 => 3,
        Op::GlobalStoreDwordx4 | Op::FlatStoreDwordx4 | Op::DsWriteB128 => 4,
        Op::GlobalLoadDwordx4 | Op::FlatLoadDwordx4 | Op::DsReadB128 => 4,
        _ => 2,
    };
    let bytes = 4 * words;
    let room = if lds { 4096 } else { PAGE };
    (store.memory.data, store.memory.data2) = (Operand::Vgpr(4), Operand::Vgpr(8));
    if flaw == Flaw::Wrap || flaw == Flaw::High {
        store.memory.base = Operand::None;
    }
    store.memory.vaddr = Operand::Vgpr(0);
    let lane = numbers.below(64) as usize;
    let mut begin = numbers.below((room - 64 * bytes) / 4) * 4;
    let offset = if lds { 0 } else { store.memory.offset.unsigned_abs().into() };
    match flaw {
        Flaw::End if lds => begin = 8192 - 4 * numbers.below(16 * bytes) - 4,
        Flaw::End => begin = PAGE - 4 * (1 + numbers.below(16 * bytes - 1)) - offset,
        Flaw::Wrap => {
            begin = 4 * PAGE - 4 * (1 + numbers.below(16 * bytes - 1));
            store.memory.offset = 4 * 16 * bytes as i32;
        }
        _ => begin = begin.saturating_sub(offset),
    }
    let based = store.memory.base != Operand::None;
    (state.scalars[4], state.scalars[5]) = (BASE as u32, (BASE >> 32) as u32);
    for at in 0..64 {
        let mut low = begin + bytes * at as u64;
        if at == lane && flaw == Flaw::Low {
            low ^= 4 << numbers.below(4);
        }
        if lds || based {
            state.rows[0][at] = low as u32;
            continue;
        }
        (state.rows[0][at], state.rows[1][at]) = ((BASE + low) as u32, (BASE >> 32) as u32);
        if at == lane && flaw == Flaw::High {
            state.rows[1][at] ^= 1 << numbers.below(3);
        }
    }
    if flaw == Flaw::Inactive {
        state.scalars[126 + lane / 32] ^= 1 << (lane % 32);
    }
    (state, store)
}

/// Vector code, and before it a load or behind it a store of lanes that lie side by side, each with
/// every flaw.
fn lines(count: u64, (flaw, is_store): (Flaw, bool), sabotage: Switches) -> Met {
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    let mut rig = Box::new(Rig::new(&mut numbers));
    let mut met = Met::default();
    for _ in 0..count {
        let (state, access) = line(&mut numbers, flaw, is_store);
        rig.pages.missing = u64::from(flaw == Flaw::None && numbers.below(8) == 0);
        rig.reopen();
        let mut insts: Vec<Inst> = (0..8).map(|n| add(20 + n % 4, Operand::Vgpr(20 + n % 4), 4 + n)).collect();
        insts.insert(if is_store { insts.len() } else { 0 }, access);
        compare(&mut rig, &insts, &state, sabotage, &mut met);
    }
    met
}

/// The same of a store of a whole wave, and of a load, whose later strips go by the first one.
fn whole_waves(is_store: bool) {
    for flaw in [Flaw::None, Flaw::Low, Flaw::High, Flaw::Inactive, Flaw::End, Flaw::Wrap] {
        let met = lines(programs(400), (flaw, is_store), Switches::NONE);
        // A load misses beyond LDS and across a page's end, and where a high word is wrong.
        let (counted, least) = match (flaw, is_store) {
            (Flaw::High | Flaw::Wrap, false) => (met.missed, 300),
            (_, false) => (met.done, 100),
            (_, true) => (met.done + met.stored, 300),
        };
        assert!(counted > least, "{flaw:?} {met:?}");
    }
    assert_ne!(lines(50, (Flaw::Inactive, is_store), Switches::NONE.with(Switch::OpenLanes)).wrong, 0);
    for flaw in [Flaw::Low, Flaw::High] {
        assert_ne!(lines(50, (flaw, is_store), Switches::NONE.with(Switch::GuessedShape)).wrong, 0, "{flaw:?}");
    }
}

#[test]
fn whole_waves_store_as_the_model_does() {
    whole_waves(true);
}

#[test]
fn whole_waves_load_as_the_model_does() {
    whole_waves(false);
}

/// A page that vanishes from the host under machine code that stores to it.
#[test]
fn a_fault_in_machine_code_is_at_its_store() {
    let mut numbers = Numbers(99);
    for width in widths() {
        let mut rig = Box::new(Rig::new(&mut numbers));
        let mut state = State::random(&mut numbers);
        (state.scalars[126], state.scalars[127]) = (u32::MAX, u32::MAX);
        for lane in 0..64 {
            let va = BASE + 4 * lane as u64;
            (state.rows[0][lane], state.rows[1][lane]) = (va as u32, (va >> 32) as u32);
        }
        let mut insts: Vec<Inst> = (0..8).map(|n| add(6 + n % 4, Operand::Vgpr(6 + n % 4), 5)).collect();
        for (place, row) in [(0, 6), (4096, 7)] {
            let mut store = access_inst(Op::GlobalStoreDword, Format::Global, 0, 0);
            (store.memory.data, store.memory.offset) = (Operand::Vgpr(row), place);
            insts.push(store);
        }
        rig.reopen();
        let done = Left::Done { rounds: 1, again: false };
        assert_eq!(rig.run(&insts, width, &mut state.clone(), 1, Switches::NONE), done);
        rig.context.take_calls();
        rig.pages.protect(1, libc::PROT_READ);
        let mut found = state.clone();
        let left = rig.run(&insts, width, &mut found, 1, Switches::NONE);
        rig.pages.protect(1, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!((left, rig.context.take_calls()), (Left::Within { rounds: 0, at: 9 }, 0));
        let mut expected = state.clone();
        assert_eq!(model(&insts[..8], &mut expected, &mut rig.lds, &rig.pages, 0), Ok(()));
        assert!(found.rows == expected.rows);
    }
}
