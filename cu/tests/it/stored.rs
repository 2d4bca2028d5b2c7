// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Translated code that stores, and loops that end when no lane is active any more, against the
//! reference engine: registers, memory and LDS. Loads and stores overlap.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

use crate::support::random::REGISTERS;
use crate::support::{Numbers, BASE};
use crate::translated::{body, difference, engine, listing, local, programs, start, widths, DATA, END, GLOBAL, LOCAL};
use vkfd_cu::fast::native::Report;
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Wave};
use vkfd_isa::Target;
use vkfd_sabotage::{Switch, Switches};

/// The row that counts rounds, which random code does not write.
const COUNT: u32 = REGISTERS as u32 + 3;
const BYTES: usize = 0x2000;

/// Waves, and how their target has instructions.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) target: Target,
    pub(crate) lanes: u8,
}

pub(crate) const GFX900: Form = Form { target: Target::Gfx900, lanes: 64 };
const FORMS: [Form; 4] = [
    Form { target: Target::Gfx90a, lanes: 64 },
    Form { target: Target::Gfx942, lanes: 64 },
    Form { target: Target::Gfx1030, lanes: 64 },
    Form { target: Target::Gfx1030, lanes: 32 },
];

impl Form {
    /// v_add_u32 dst, first, second
    fn add(self, dst: u32, first: u32, second: u32) -> u32 {
        let op = if self.target.is_rdna() { 0x25 } else { 0x34 };
        op << 25 | dst << 17 | second << 9 | first
    }

    /// v_cmp_gt_u32 vcc, 8, COUNT
    fn compare(self) -> u32 {
        let op = if self.target.is_rdna() { 0xc4 } else { 0xcc };
        0x3e << 25 | op << 17 | COUNT << 9 | 136
    }

    /// A scalar operation on masks: `or` or `and`.
    fn mask(self, or: bool, dst: u32, first: u32, second: u32) -> u32 {
        let op = match (self.target.is_rdna(), self.lanes) {
            (false, _) => {
                if or {
                    0x0f
                } else {
                    0x0d
                }
            }
            (true, 64) => {
                if or {
                    0x11
                } else {
                    0x0f
                }
            }
            (true, _) => {
                if or {
                    0x10
                } else {
                    0x0e
                }
            }
        };
        0b10 << 30 | op << 23 | dst << 16 | second << 8 | first
    }
}

/// A store to LDS or memory, or a sum in LDS.
fn store(form: Form, numbers: &mut Numbers) -> Vec<u32> {
    let data = |numbers: &mut Numbers| numbers.below(REGISTERS - 4) as u32;
    let first = data(numbers);
    let rdna = form.target.is_rdna();
    if numbers.below(2) == 0 {
        // global_store_dword, dwordx2, dwordx3, dwordx4
        let op = 0x1c + numbers.below(4) as u32;
        let offset = numbers.below(16) as u32 * 4;
        let null = if rdna { 0x7d } else { 0x7f };
        return vec![0xdc00_8000 | op << 18 | offset, null << 16 | first << 8 | GLOBAL];
    }
    // ds_add_u32, ds_write_b32, write2, write2st64, b64, write2_b64, b96, b128
    let op = [0, 0x0d, 0x0e, 0x0f, 0x4d, 0x4e, 0xde, 0xdf][numbers.below(8) as usize];
    let offsets = match op {
        0 | 0x0d | 0x4d | 0xde | 0xdf => numbers.below(64) as u32 * 4,
        0x0f => (numbers.below(3) as u32) << 8 | numbers.below(3) as u32,
        _ => (numbers.below(64) as u32) << 8 | numbers.below(64) as u32,
    };
    vec![0xd800_0000 | op << if rdna { 18 } else { 17 } | offsets, data(numbers) << 16 | first << 8 | LOCAL]
}

/// ds_bpermute_b32: each lane takes from the lane that it names.
fn exchange(form: Form, numbers: &mut Numbers) -> Vec<u32> {
    let (op, shift) = if form.target.is_rdna() { (0xb3, 18) } else { (0x3f, 17) };
    let [to, from, name] = [(); 3].map(|()| numbers.below(REGISTERS - 4) as u32);
    vec![0xd800_0000 | op << shift | (4 * numbers.below(70) as u32), to << 24 | from << 8 | name]
}

/// Sums over lanes: vector code between exchanges, and a store.
fn exchanging(form: Form, numbers: &mut Numbers) -> Vec<u32> {
    let mut code = body(form.target, numbers, 6, (true, false, false));
    for _ in 0..1 + numbers.below(5) {
        for _ in 0..1 + numbers.below(2) {
            code.extend(exchange(form, numbers));
        }
        let length = 2 + numbers.below(8) as usize;
        code.extend(body(form.target, numbers, length, (true, false, false)));
    }
    code.extend(store(form, numbers));
    code.push(END);
    code
}

/// Vector code, then stores.
fn part(form: Form, numbers: &mut Numbers, length: usize, pure: bool) -> Vec<u32> {
    // Loads are encoded as gfx9 has them.
    let accesses = numbers.below(2) == 0 && form.target.is_gfx9();
    let mut code = body(form.target, numbers, length, (pure, false, accesses));
    for _ in 0..numbers.below(4) {
        code.extend(store(form, numbers));
    }
    code
}

fn straight(form: Form, numbers: &mut Numbers) -> Vec<u32> {
    let mut code = part(form, numbers, 16, false);
    // s_or_b64 s[12:13], vcc, s[12:13]: a mask that strips have made.
    code.push(form.mask(true, 12, 0x6a, 12));
    code.extend(part(form, numbers, 8, false));
    code.push(END);
    code
}

fn back(code: &mut Vec<u32>, branch: u32) {
    let back = -(code.len() as i16 + 1);
    code.extend([branch | u32::from(back as u16), END]);
}

/// Addresses move on.
fn move_on(form: Form, numbers: &mut Numbers, code: &mut Vec<u32>) {
    // v_add_u32 of 0, 4, 16 or 64.
    let by = [128, 132, 144, 192][numbers.below(4) as usize];
    code.push(form.add(GLOBAL, by, GLOBAL));
}

/// A loop of s20 rounds.
fn counted(form: Form, numbers: &mut Numbers) -> Vec<u32> {
    let length = 10 + numbers.below(8) as usize;
    let mut code = body(form.target, numbers, length, (true, false, false));
    move_on(form, numbers, &mut code);
    code.extend(part(form, numbers, 4, true));
    // s_sub_u32 s20, s20, 1; s_cmp_lg_u32 s20, 0; s_cbranch_scc1
    code.extend([0x8094_8114, 0xbf07_8014]);
    back(&mut code, 0xbf85_0000);
    code
}

/// A loop that lanes leave one after the other.
fn leaving(form: Form, numbers: &mut Numbers) -> Vec<u32> {
    let length = 10 + numbers.below(8) as usize;
    let mut code = body(form.target, numbers, length, (true, false, false));
    move_on(form, numbers, &mut code);
    // v_add_u32 COUNT, 1, COUNT; v_cmp_gt_u32 vcc, 8, COUNT; s_or_b64 s[12:13], vcc, s[12:13]
    code.extend([form.add(COUNT, 129, COUNT), form.compare(), form.mask(true, 12, 0x6a, 12)]);
    for _ in 0..numbers.below(3) {
        // v_add_u32 v0, v0, v1 behind it.
        code.push(form.add(0, 256, 1));
    }
    for _ in 0..numbers.below(3) {
        code.extend(store(form, numbers));
    }
    // s_and_b64 exec, exec, vcc; s_cbranch_execnz
    code.push(form.mask(false, 0x7e, 0x7e, 0x6a));
    back(&mut code, 0xbf89_0000);
    code
}

pub(crate) type Program = fn(Form, &mut Numbers) -> Vec<u32>;

/// Runs programs on both engines; the first difference as text.
pub(crate) fn compare(
    engine: &mut Engine,
    (form, program): (Form, Program),
    (count, seed, budget): (u64, u64, u32),
) -> Result<Report, String> {
    let Form { target, lanes } = form;
    let mut numbers = Numbers(seed);
    let mut world = Flat::new(BASE, 4);
    let data = Numbers(5).bytes(BYTES);
    let mut report = Report::default();
    for index in 0..count {
        let code = program(form, &mut numbers);
        world.write_words(BASE, &code);
        engine.invalidate();
        for _ in 0..4 {
            let mut expected: Wave = start(target, &mut numbers, lanes);
            expected.rows[COUNT as usize].0.fill_with(|| numbers.below(12) as u32);
            let mut wave = expected.clone();
            let (mut right, mut group) = (local(), local());
            world.write(DATA, &data);
            let exit = reference::run(&mut expected, &mut right, &mut world, 1 << 20);
            let memory = world.read(DATA, BYTES);
            world.write(DATA, &data);
            let mut runs = 0;
            let translated = loop {
                runs += 1;
                match engine.run(&mut wave, &mut group, &mut world, budget) {
                    Exit::Yield if runs < 1 << 20 => {}
                    exit => break exit,
                }
            };
            let differs = difference(&expected, &wave);
            // Of a store that faults, some lanes may be done.
            let same_memory = matches!(exit, Exit::Miss(_)) || world.read(DATA, BYTES) == memory;
            if exit != translated || differs.is_some() || !same_memory || right.lds != group.lds {
                return Err(format!(
                    "program {index}: {exit:?} {translated:?} memory {same_memory} LDS {}\n{}{}",
                    right.lds == group.lds,
                    listing(target, &code),
                    differs.unwrap_or_default()
                ));
            }
        }
        report.add(&engine.translated());
    }
    Ok(report)
}

pub(crate) fn check((form, program): (Form, Program), how: (u64, u64, u32), share: u64) {
    let Form { target, lanes } = form;
    for width in widths() {
        let mut engine = engine(target, width, false);
        let report = compare(&mut engine, (form, program), how)
            .unwrap_or_else(|text| panic!("{target} {lanes} {width:?}: {text}"));
        println!("{target} {lanes} {width:?}: {report:?}");
        assert!(100 * report.translated >= share * report.instructions, "too little was translated: {report:?}");
    }
}

#[test]
fn stores_are_the_reference_s() {
    check((GFX900, straight), (programs(300), 31, 1000), 40);
    check((GFX900, counted), (programs(200), 32, 1 << 20), 30);
    check((GFX900, counted), (programs(60), 33, 1), 30);
}

#[test]
fn loops_that_lanes_leave_are_the_reference_s() {
    check((GFX900, leaving), (programs(200), 34, 1 << 20), 30);
    check((GFX900, leaving), (programs(60), 35, 1), 30);
}

#[test]
fn stores_of_other_targets_are_the_reference_s() {
    for form in FORMS {
        check((form, straight), (programs(100), 41, 1000), 25);
        check((form, counted), (programs(60), 42, 1 << 20), 20);
        check((form, leaving), (programs(60), 43, 1 << 20), 20);
    }
}

#[test]
fn exchanges_are_the_reference_s() {
    check((GFX900, exchanging), (programs(300), 51, 1000), 30);
    for form in FORMS {
        check((form, exchanging), (programs(100), 52, 1000), 25);
    }
}

#[test]
fn faults_in_exchanges_are_noticed() {
    for width in widths() {
        for switch in [Switch::LostExchange, Switch::SwappedSegments] {
            let mut engine = engine(Target::Gfx900, width, false);
            engine.sabotage(Switches::NONE.with(switch));
            let differs = compare(&mut engine, (GFX900, exchanging), (100, 53, 1000)).is_err();
            assert!(differs, "{width:?}: {switch:?} was not noticed");
        }
    }
}

#[test]
fn faults_in_stores_are_noticed() {
    for width in widths() {
        let switches = [
            Switch::SwappedStores,
            Switch::SwappedSegments,
            Switch::OpenLanes,
            Switch::GuessedShape,
            Switch::LeftEarly,
        ];
        for switch in switches {
            let noticed = [straight as Program, counted, leaving].into_iter().any(|program| {
                let mut engine = engine(Target::Gfx900, width, false);
                engine.sabotage(Switches::NONE.with(switch));
                compare(&mut engine, (GFX900, program), (100, 36, 1 << 20)).is_err()
            });
            assert!(noticed, "{width:?}: {switch:?} was not noticed");
        }
    }
}

/// Sums of words in LDS: many lanes have one word, some are beyond its end, and one in the last
/// strip is not aligned, or none. Nothing is added twice.
#[test]
fn sums_in_lds_are_the_reference_s() {
    let run = |width, spoiled: bool, sabotage| {
        let mut numbers = Numbers(9);
        let mut code: Vec<u32> = (0..6).map(|row| GFX900.add(row, 256 + row, row + 1)).collect();
        // ds_add_u32 LOCAL, v0 offset:8
        code.extend([0xd800_0008, LOCAL, END]);
        let mut world = Flat::new(BASE, 4);
        world.write_words(BASE, &code);
        let mut expected: Wave = start(Target::Gfx900, &mut numbers, 64);
        expected.set_pair(vkfd_isa::Operand::EXEC, 0xffff_0fff_f0ff_fffd);
        for (lane, word) in expected.rows[LOCAL as usize].0.iter_mut().enumerate() {
            *word = if lane % 7 == 0 { 0x2_0000 } else { 4 * (lane as u32 % 5) };
        }
        if spoiled {
            expected.rows[LOCAL as usize].0[62] = 2;
        }
        let mut wave = expected.clone();
        let mut engine = engine(Target::Gfx900, width, false);
        engine.sabotage(sabotage);
        let (mut right, mut group) = (local(), local());
        let exit = reference::run(&mut expected, &mut right, &mut world, 1000);
        let translated = engine.run(&mut wave, &mut group, &mut world, 1000);
        assert_eq!(engine.translated().translated, 7, "all but the end is a region");
        exit == translated && difference(&expected, &wave).is_none() && right.lds == group.lds
    };
    for width in widths() {
        for spoiled in [false, true] {
            assert!(run(width, spoiled, Switches::NONE), "{width:?} {spoiled}");
        }
        let unchecked = Switches::NONE.with(Switch::GuessedShape);
        assert!(!run(width, true, unchecked), "{width:?}: a word that is not aligned was not noticed");
    }
}
