// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loads of memory and LDS in regions, against a plain model. Addresses lie side by side, are all
//! the same, or lie anywhere; lanes are active at random. Some accesses miss or fault.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "registers are bit patterns")]

mod support;

use support::memory::*;
use vkfd_isa::{Format, Inst, Op, Operand};
use vkfd_sabotage::{Switch, Switches};
use vkfd_translate::{Left, Width};

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
            let could = model(&insts, &mut expected, &mut rig.lds, &rig.pages, 0).is_ok();
            let expected = match left {
                Left::Done { .. } if could => expected,
                // Bounds are those of all accesses by an address, so it may leave early.
                Left::Missed => state.clone(),
                Left::Done { .. } | Left::Within { .. } | Left::SideExit { .. } => {
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

/// Addresses on both sides of the end of 4 GiB, with one high word: some are far away.
fn around_4_gib(numbers: &mut Numbers, state: &mut State, row: usize) {
    let (high, is_line) = ((BASE >> 32) as u32 + numbers.below(2) as u32, numbers.below(2) == 0);
    let mut near = || (4 * numbers.below(64) as u32).wrapping_sub(128);
    let begin = near();
    for lane in 0..64 {
        state.rows[row][lane] = if is_line { begin.wrapping_add(4 * lane as u32 % 64) } else { near() };
        state.rows[row + 1][lane] = high;
    }
}

/// Whether a region does one round of a program, or misses and does nothing, as the model does what
/// is in its loop. Counts which of both it was.
fn is_modelled(
    rig: &mut Rig,
    (insts, body): (&[Inst], &[Inst]),
    width: Width,
    state: &State,
    sabotage: Switches,
    ends: &mut [u64; 2],
) -> bool {
    let (mut found, mut expected) = (Box::new(state.clone()), Box::new(state.clone()));
    let left = rig.run(insts, width, &mut found, 64, sabotage);
    let could = model(body, &mut expected, &mut rig.lds, &rig.pages, 0).is_ok();
    ends[usize::from(could)] += 1;
    let same_end = (left == Left::Missed) != could;
    let expected = if could { &*expected } else { state };
    let same = same_end && found.rows == expected.rows && found.scalars == expected.scalars;
    assert!(same || sabotage != Switches::NONE, "{width:?} {left:?} {could} {insts:#?}");
    same
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
            let bytes = [8, 12, 16, 1, 2][numbers.below(5) as usize];
            let places = offsets(&mut numbers, PAGES * PAGE, bytes);
            for (lane, place) in places.into_iter().enumerate() {
                let va = BASE + u64::from(place);
                (state.rows[row][lane], state.rows[row + 1][lane]) = (va as u32, (va >> 32) as u32);
            }
        }
        if numbers.below(4) == 0 {
            around_4_gib(&mut numbers, &mut state, 2);
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
                (Op::GlobalLoadDwordx3, Format::Global),
                (Op::GlobalLoadDwordx4, Format::Global),
                (Op::FlatLoadDwordx4, Format::Flat),
                (Op::GlobalLoadUbyte, Format::Global),
                (Op::GlobalLoadSbyte, Format::Global),
                (Op::GlobalLoadUshort, Format::Global),
                (Op::GlobalLoadSshort, Format::Global),
                (Op::FlatLoadUshort, Format::Flat),
            ][numbers.below(12) as usize];
            let based = format == Format::Global && numbers.below(2) == 0;
            let mut inst = access_inst(op, format, dst, if based { 16 } else { [0, 2][numbers.below(2) as usize] });
            if based {
                inst.memory.base = Operand::Scalar(4);
            }
            inst.memory.offset = if numbers.below(2) == 0 { 0 } else { numbers.below(64) as i32 * 4 };
            inst
        });
        let mut accesses: Vec<Inst> = accesses.collect();
        for _ in 0..3 {
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
            let same = is_modelled(&mut rig, (&insts, &body), width, &state, sabotage, &mut ends);
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

/// Scalar loads of s[4:5] and s[6:7], and sums of the words that came: how many programs differ
/// from the model, and how many missed and were done.
fn scalar_differences(count: u64, sabotage: Switches) -> (u64, [u64; 2]) {
    let mut numbers = Numbers(0x0dd_ba11);
    let mut rig = Rig::new(&mut numbers);
    let (mut wrong, mut ends) = (0, [0, 0]);
    for _ in 0..count {
        let mut state = State::random(&mut numbers);
        if numbers.below(3) == 0 {
            rig.pages.missing = if numbers.below(2) == 0 { 0 } else { 1 << numbers.below(PAGES) };
            rig.reopen();
        }
        for base in [4, 6] {
            let va = BASE + numbers.below(PAGES) * PAGE + PAGE - numbers.below(4) * 300;
            (state.scalars[base], state.scalars[base + 1]) = (va as u32, (va >> 32) as u32);
        }
        state.scalars[8] = numbers.below(2 * PAGE) as u32;
        let loads = (0..1 + numbers.below(5)).map(|_| {
            let (op, words) = SCALAR[numbers.below(SCALAR.len() as u64) as usize];
            // Some load the other base.
            let dst = if numbers.below(6) == 0 && words < 4 { 6 } else { 16 + 4 * numbers.below(4) as u8 };
            let mut inst = plain(op, Format::Smem, Operand::Scalar(dst), [Operand::None; 3]);
            inst.memory.base = Operand::Scalar([4, 6][numbers.below(2) as usize]);
            let has_offset = numbers.below(3) == 0;
            inst.memory.soffset = if has_offset { Operand::Scalar(8) } else { Operand::None };
            let offset = numbers.below(512) as i32 - 128;
            // Whole words away from one another, they share a look for their page.
            inst.memory.offset = if numbers.below(3) == 0 { offset } else { offset & !3 };
            inst
        });
        let loads: Vec<Inst> = loads.collect();
        let mut insts = around(&mut numbers, loads);
        for number in 0..8 {
            let from = Operand::Scalar(16 + numbers.below(16) as u8);
            insts.push(add(4 + number, from, 4 + numbers.below(12) as u16));
        }
        for width in widths() {
            let same = is_modelled(&mut rig, (&insts, &insts), width, &state, sabotage, &mut ends);
            wrong += u64::from(!same);
        }
    }
    (wrong, ends)
}

#[test]
fn scalars_are_loaded_as_the_model_loads_them() {
    let (wrong, ends) = scalar_differences(programs(2000), Switches::NONE);
    assert_eq!(wrong, 0);
    assert!(ends.iter().all(|end| *end > 100), "{ends:?} missed, done");
}

#[test]
fn scalars_from_behind_a_page_are_noticed() {
    assert_ne!(scalar_differences(400, Switches::NONE.with(Switch::CrossedPage)).0, 0);
}

/// A page that is gone from the host when a slice loads of it, though its slot has it: nothing has
/// happened.
#[test]
fn a_fault_of_a_scalar_load_is_a_miss() {
    let mut numbers = Numbers(78);
    for width in widths() {
        let mut rig = Rig::new(&mut numbers);
        let mut load = plain(Op::SLoadDwordx8, Format::Smem, Operand::Scalar(16), [Operand::None; 3]);
        load.memory.base = Operand::Scalar(4);
        let mut insts = vec![load];
        insts.extend((0..8).map(|n| add(4 + u16::from(n), Operand::Scalar(16 + n), 4)));
        let mut begin = State::random(&mut numbers);
        (begin.scalars[4], begin.scalars[5]) = (BASE as u32, (BASE >> 32) as u32);
        let mut state = begin.clone();
        assert_eq!(rig.run(&insts, width, &mut state, 1, Switches::NONE), Left::Done { rounds: 1, again: false });
        rig.pages.protect(0, libc::PROT_NONE);
        let mut state = begin.clone();
        let left = rig.run(&insts, width, &mut state, 1, Switches::NONE);
        rig.pages.protect(0, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(left, Left::Missed);
        assert!(state.rows == begin.rows && state.scalars == begin.scalars, "{width:?}");
    }
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
