// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The fast engine against the reference engine, bit for bit: random programs, registers, MODE and
//! EXEC.
//!
//! A program is a few random instructions of the vector and scalar encodings. `VKFD_LOCKSTEP=n`
//! runs n programs of each kind instead of a few hundred, and says how often each operation was
//! among them.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

use crate::support;

use std::collections::BTreeMap;
use support::random::{source, REGISTERS};
use support::{group, wave, Numbers, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Mode, Wave};
use vkfd_isa::{decode, Format, Inst, Op, Operand, Target};
use vkfd_sabotage::{Switch, Switches};

const PROGRAM: usize = 12;

/// How many programs to run, of a number for everyday.
fn programs(few: u64) -> u64 {
    std::env::var("VKFD_LOCKSTEP").ok().and_then(|count| count.parse().ok()).unwrap_or(few)
}

/// A number that makes trouble now and then.
fn value(numbers: &mut Numbers) -> u32 {
    const ODD: [u32; 20] = [
        0,
        1,
        0x8000_0000,
        0x7fff_ffff,
        u32::MAX,
        0x3f80_0000,
        0xbf80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc0_1234,
        0x7f80_0001,
        0x0000_0001,
        0x807f_ffff,
        0x0080_0000,
        0x7f7f_ffff,
        0x4f00_0000,
        0x4f80_0000,
        0xcf00_0001,
        0x3c00_7c00,
    ];
    match numbers.below(16) {
        0 => ODD[numbers.below(ODD.len() as u64) as usize],
        1..=4 => numbers.below(100) as u32,
        // Floats of a middling size, which do not overflow.
        5..=12 => numbers.word() & 0x87ff_ffff | 0x3800_0000,
        _ => numbers.word(),
    }
}

fn scalar_source(numbers: &mut Numbers) -> u32 {
    (match numbers.below(8) {
        0 => 128 + numbers.below(81),
        1 => 106 + numbers.below(2),
        2 => 126,
        3 => 240 + numbers.below(9),
        _ => numbers.below(REGISTERS),
    }) as u32
}

/// What makes a random instruction's words.
type Words = fn(&mut Numbers) -> Vec<u32>;

/// A random instruction's words.
fn vector(numbers: &mut Numbers) -> Vec<u32> {
    let register = |numbers: &mut Numbers| numbers.below(REGISTERS) as u32;
    let literal = numbers.below(12) == 0;
    let first = if literal { 255 } else { source(numbers) };
    let mut words = match numbers.below(8) {
        0 | 1 => {
            let op = numbers.below(64) as u32;
            vec![op << 25 | register(numbers) << 17 | register(numbers) << 9 | first]
        }
        2 => vec![0x3f << 25 | register(numbers) << 17 | (numbers.below(128) as u32) << 9 | first],
        3 => vec![0x3e << 25 | (numbers.below(256) as u32) << 17 | register(numbers) << 9 | first],
        kind => {
            let first = source(numbers);
            let op = numbers.below(1024) as u32;
            // Comparisons write a mask, which is an SGPR or VCC.
            let dst = if op < 256 && kind == 4 { 106 } else { register(numbers) };
            let mut low = 0b11_0100 << 26 | op << 16 | dst;
            let mut high = source(numbers) << 18 | source(numbers) << 9 | first;
            if numbers.below(4) == 0 {
                high |= (numbers.below(8) as u32) << 29;
                low |= (numbers.below(8) as u32) << 8;
            }
            if numbers.below(8) == 0 {
                high |= (numbers.below(4) as u32) << 27;
                low |= (numbers.below(2) as u32) << 15;
            }
            return vec![low, high];
        }
    };
    // A literal, or what the instruction has anyway.
    words.push(value(numbers));
    words
}

fn scalar(numbers: &mut Numbers) -> Vec<u32> {
    let dst = if numbers.below(12) == 0 { 106 } else { numbers.below(REGISTERS) as u32 };
    let literal = numbers.below(8) == 0;
    let first = if literal { 255 } else { scalar_source(numbers) };
    let second = scalar_source(numbers);
    let word = match numbers.below(5) {
        0 | 1 => 0b10 << 30 | (numbers.below(96) as u32) << 23 | dst << 16 | second << 8 | first,
        2 => 0b1_0111_1101 << 23 | dst << 16 | (numbers.below(128) as u32) << 8 | first,
        3 => 0b1_0111_1110 << 23 | (numbers.below(128) as u32) << 16 | second << 8 | first,
        _ => 0b1011 << 28 | (numbers.below(16) as u32) << 23 | dst << 16 | numbers.below(1 << 16) as u32,
    };
    vec![word, value(numbers)]
}

/// What a straight program may contain: nothing that goes elsewhere, stops, or leaves MODE strange.
fn fits(inst: &Inst) -> bool {
    let control = matches!(
        inst.op,
        Op::SSetpcB64
            | Op::SSwappcB64
            | Op::SCallB64
            | Op::SRfeB64
            | Op::SRfeRestoreB64
            | Op::SGetpcB64
            | Op::SCbranchIFork
            | Op::SCbranchGFork
            | Op::SCbranchJoin
            | Op::SSetregB32
            | Op::SSetregImm32B32
            | Op::SGetregB32
            | Op::SSetvskip
            | Op::SSetGprIdxOn
            | Op::SSetGprIdxIdx
            | Op::SMovrelsB32
            | Op::SMovrelsB64
            | Op::SMovreldB32
            | Op::SMovreldB64
    );
    let format = matches!(
        inst.format,
        Format::Vop1
            | Format::Vop2
            | Format::Vopc
            | Format::Vop3
            | Format::Vop3p
            | Format::Sop1
            | Format::Sop2
            | Format::Sopk
            | Format::Sopc
    );
    format && !control
}

/// A program, its instructions, and `s_endpgm`.
fn program(
    target: Target,
    numbers: &mut Numbers,
    mut words: impl FnMut(&mut Numbers) -> Vec<u32>,
) -> (Vec<u32>, Vec<Inst>) {
    let (mut code, mut insts) = (Vec::new(), Vec::new());
    while insts.len() < PROGRAM {
        let words = words(numbers);
        let Ok(inst) = decode(target, &words) else { continue };
        if fits(&inst) {
            code.extend(words.iter().take(usize::from(inst.bytes) / 4));
            insts.push(inst);
        }
    }
    code.push(0xbf81_0000);
    (code, insts)
}

fn start(target: Target, numbers: &mut Numbers, pc: u64) -> Wave {
    let mut wave = wave(target);
    wave.pc = pc;
    for row in wave.rows.iter_mut().take(REGISTERS as usize + 4) {
        let same = (numbers.below(8) == 0).then(|| value(numbers));
        for lane in &mut row.0 {
            *lane = same.unwrap_or_else(|| value(numbers));
        }
    }
    for word in wave.scalar.iter_mut().take(REGISTERS as usize + 4) {
        *word = value(numbers);
    }
    wave.set_pair(Operand::VCC, numbers.next());
    let exec = match numbers.below(8) {
        0..=3 => u64::MAX,
        4 => 0,
        5 => 1 << numbers.below(64),
        6 => numbers.next() & numbers.next() & numbers.next(),
        _ => numbers.next(),
    };
    wave.set_pair(Operand::EXEC, exec);
    wave.scc = numbers.below(2) != 0;
    if numbers.below(6) == 0 {
        wave.mode = Mode(Mode::DEFAULT.0 & !0x3ff | numbers.below(0x400) as u32);
    }
    wave
}

/// Where two waves differ.
fn difference(one: &Wave, two: &Wave) -> String {
    let mut text = format!("pc {:#x} {:#x}, scc {} {}", one.pc, two.pc, one.scc, two.scc);
    for (index, (a, b)) in one.scalar.iter().zip(&two.scalar).enumerate().filter(|(_, (a, b))| a != b) {
        text += &format!("\n  s{index}: {a:#010x} {b:#010x}");
    }
    for (index, (a, b)) in one.rows.iter().zip(&two.rows).enumerate() {
        for (lane, (a, b)) in a.0.iter().zip(&b.0).enumerate().filter(|(_, (a, b))| a != b).take(4) {
            text += &format!("\n  v{index} lane {lane}: {a:#010x} {b:#010x}");
        }
    }
    text
}

/// Runs programs on both engines; the first difference as text, and how often each operation was
/// there.
fn compare(
    engine: &mut Engine,
    target: Target,
    count: u64,
    seed: u64,
    words: Words,
) -> Result<BTreeMap<Op, u64>, String> {
    let mut numbers = Numbers(seed);
    let mut world = Flat::new(BASE, 4);
    let mut seen = BTreeMap::new();
    for index in 0..count {
        let (code, insts) = program(target, &mut numbers, words);
        // Elsewhere each time, so that no code need be invalidated but now and then.
        let pc = BASE + index % 32 * 256;
        if index % 32 == 0 {
            engine.invalidate();
        }
        world.write_words(pc, &code);
        for inst in &insts {
            *seen.entry(inst.op).or_default() += 1;
        }
        for _ in 0..3 {
            let mut expected = start(target, &mut numbers, pc);
            let mut wave = expected.clone();
            let before = wave.clone();
            let exit = reference::run(&mut expected, &mut group(64), &mut world, 1000);
            let fast = engine.run(&mut wave, &mut group(64), &mut world, 1000);
            if (exit, &expected) != (fast, &wave) {
                return Err(format!(
                    "program {index}: {exit:?} {fast:?} mode {:#x} exec {:#x}\n{}\nreference and fast: {}",
                    before.mode.0,
                    before.exec(),
                    insts
                        .iter()
                        .map(|inst| format!(
                            "{:?} {:?} {:?} {:?} {:?}",
                            inst.op, inst.dst, inst.sdst, inst.src, inst.mods
                        ))
                        .collect::<Vec<_>>()
                        .join("\n"),
                    difference(&expected, &wave)
                ));
            }
            if !matches!(exit, Exit::End | Exit::Refused(_)) {
                return Err(format!("program {index} was left by {exit:?}"));
            }
        }
    }
    Ok(seen)
}

fn check(target: Target, few: u64, seed: u64, words: Words) {
    for mut engine in [Engine::new(target), Engine::portable(target)] {
        match compare(&mut engine, target, programs(few), seed, words) {
            Ok(seen) if std::env::var_os("VKFD_LOCKSTEP").is_some() => {
                for (op, count) in seen {
                    println!("{op:?} {}", 3 * 64 * count);
                }
            }
            Ok(_) => {}
            Err(text) => panic!("{target}: {text}"),
        }
    }
}

#[test]
fn vector_operations_are_the_reference_s() {
    check(Target::Gfx900, 400, 1, vector);
    check(Target::Gfx90a, 400, 2, vector);
}

#[test]
fn packed_operations_are_the_reference_s() {
    check(Target::Gfx90a, 300, 10, packed);
}

#[test]
fn scalar_operations_are_the_reference_s() {
    check(Target::Gfx900, 1000, 3, scalar);
    check(Target::Gfx90a, 1000, 4, scalar);
}

/// Pairs and packed halves.
fn packed(numbers: &mut Numbers) -> Vec<u32> {
    let even = |numbers: &mut Numbers| (numbers.below(REGISTERS / 2) * 2) as u32;
    let op = if numbers.below(2) == 0 { 0x30 + numbers.below(4) } else { numbers.below(48) } as u32;
    let dst = even(numbers);
    // Low with low, high with high, now and then otherwise.
    let high = if numbers.below(4) == 0 { numbers.below(8) } else { 7 } as u32;
    let low = 0b1_1010_0111 << 23 | op << 16 | (high >> 2) << 14 | dst;
    let modifiers = if numbers.below(4) == 0 { (numbers.below(8) as u32) << 29 } else { 0 };
    let sources = (256 + even(numbers)) << 18 | (256 + even(numbers)) << 9 | (256 + even(numbers));
    vec![low, modifiers | (high & 3) << 27 | sources]
}

/// Matrix operations, their words, on values that are not NaN.
#[test]
fn matrix_operations_are_the_reference_s() {
    const OPERATIONS: [(&str, [u32; 2]); 6] = [
        ("v_mfma_f32_32x32x8f16 a[0:15], v[0:1], v[2:3], a[0:15]", [0xd3cc8000, 0x04020500]),
        ("v_mfma_f32_32x32x8f16 v[16:31], v[0:1], v[2:3], 1.0", [0xd3cc0010, 0x03ca0500]),
        ("v_mfma_f32_16x16x16f16 a[0:3], v[4:5], v[6:7], a[4:7]", [0xd3cd8000, 0x04120d04]),
        ("v_mfma_f32_16x16x16f16 v[0:3], v[0:1], v[2:3], v[0:3]", [0xd3cd0000, 0x04020500]),
        ("v_mfma_f32_32x32x2f32 a[0:15], v8, v9, a[0:15]", [0xd3c48000, 0x04021308]),
        ("v_mfma_f32_16x16x4f32 a[0:3], v8, v9, 0", [0xd3c58000, 0x02021308]),
    ];
    let target = Target::Gfx90a;
    let engines = [Engine::new(target), Engine::narrow(target), Engine::portable(target)];
    for (mut engine, vectors) in engines.into_iter().zip(["all", "AVX2", "none"]) {
        let mut numbers = Numbers(9);
        let mut world = Flat::new(BASE, 4);
        for index in 0..programs(6) {
            for (text, words) in OPERATIONS {
                world.write_words(BASE, &words);
                world.write_words(BASE + 8, &[0xbf81_0000]);
                engine.invalidate();
                let mut expected = start(target, &mut numbers, BASE);
                // A half of a middling size, or a denormal or zero one.
                let half = |numbers: &mut Numbers| match numbers.below(12) {
                    0 => numbers.below(0x400) as u32 | (numbers.below(2) as u32) << 15,
                    1 => 0,
                    _ => numbers.word() & 0x83ff | (8 + numbers.below(14) as u32) << 10,
                };
                for row in expected.rows.iter_mut().take(8) {
                    row.0 = std::array::from_fn(|_| half(&mut numbers) | half(&mut numbers) << 16);
                }
                for row in expected.rows.iter_mut().skip(8) {
                    row.0 = std::array::from_fn(|_| match numbers.below(20) {
                        0 => numbers.word() & 0x807f_ffff,
                        _ => numbers.word() & 0x87ff_ffff | 0x3800_0000,
                    });
                }
                let mut wave = expected.clone();
                let exit = reference::run(&mut expected, &mut group(0), &mut world, 10);
                assert_eq!(exit, engine.run(&mut wave, &mut group(0), &mut world, 10));
                assert!(expected == wave, "{text} {index} {vectors}: {}", difference(&expected, &wave));
            }
        }
    }
}

/// Bytes of memory that the programs work on, from here on.
const DATA: u64 = BASE + 0x10_0000;
const PAGES: usize = 8;
const LDS: usize = 1024;

/// A random memory instruction: addresses are in v[0:1], v2 (an offset from s[2:3]) and v3 (LDS);
/// data are in v4 and on.
fn memory(numbers: &mut Numbers) -> Vec<u32> {
    let data = |numbers: &mut Numbers| 4 + numbers.below(REGISTERS - 4) as u32;
    match numbers.below(5) {
        0 | 1 => {
            let saddr = numbers.below(2) == 0;
            let flat = !saddr && numbers.below(3) == 0;
            let op = if numbers.below(4) == 0 { numbers.below(128) } else { 16 + numbers.below(22) } as u32;
            let offset = if flat { numbers.below(64) } else { numbers.below(128).wrapping_sub(64) & 0x1fff } as u32;
            let segment = if flat { 0 } else { 2 };
            let glc = numbers.below(2) as u32;
            let low = 0b11_0111 << 26 | op << 18 | glc << 16 | segment << 14 | offset;
            let (address, base) = if saddr { (2, 2) } else { (0, 0x7f) };
            vec![low, data(numbers) << 24 | base << 16 | data(numbers) << 8 | address]
        }
        2 | 3 => {
            // Loads and stores more often than the many others.
            const COMMON: [u32; 22] =
                [13, 14, 15, 30, 31, 54, 55, 56, 57, 58, 59, 60, 77, 78, 79, 118, 119, 120, 222, 223, 254, 255];
            let common = numbers.below(3) != 0;
            let op = if common { COMMON[numbers.below(22) as usize] } else { numbers.below(256) as u32 };
            let offsets = numbers.below(8) as u32 | (numbers.below(8) as u32) << 8;
            let offsets = if numbers.below(2) == 0 { offsets & 0xff } else { offsets };
            // Fields that an instruction does not have are zero.
            let mut field = |shift: u32| if numbers.below(2) == 0 { 0 } else { data(numbers) << shift };
            vec![0b11_0110 << 26 | op << 17 | offsets, field(24) | field(16) | field(8) | 3]
        }
        _ => {
            let op = numbers.below(5) as u32;
            let offset = numbers.below(512) as u32;
            vec![0b11_0000 << 26 | op << 18 | 1 << 17 | (4 + numbers.below(4) as u32) << 6 | 1, offset]
        }
    }
}

/// Lanes' addresses in one of the ways that programs have.
fn places(numbers: &mut Numbers, end: u64) -> [u64; 64] {
    let start = numbers.below(end - 64 * 16);
    let aligned = start & !15;
    match numbers.below(8) {
        0 => std::array::from_fn(|lane| aligned + 4 * lane as u64),
        1 => std::array::from_fn(|lane| aligned + 8 * lane as u64),
        2 => std::array::from_fn(|lane| aligned + 16 * lane as u64),
        3 => std::array::from_fn(|lane| start + 4 * lane as u64),
        4 => [aligned; 64],
        5 => std::array::from_fn(|lane| aligned + 4 * (lane as u64 % 16)),
        6 => std::array::from_fn(|_| numbers.below(end - 64) & !7),
        _ => std::array::from_fn(|_| numbers.below(end - 64)),
    }
}

/// Memory instructions: registers, LDS, memory and misses are the same.
fn compare_memory(engine: &mut Engine, target: Target, count: u64, seed: u64) -> Result<BTreeMap<Op, u64>, String> {
    let mut numbers = Numbers(seed);
    let mut seen = BTreeMap::new();
    let bytes = numbers.bytes(4096 * PAGES);
    let worlds = || {
        let mut world = Flat::new(BASE, 256 + PAGES);
        world.scatter();
        world.write(DATA, &bytes);
        world
    };
    let (mut first, mut second) = (worlds(), worlds());
    for index in 0..count {
        let mut insts = Vec::new();
        let mut code = Vec::new();
        while insts.len() < 4 {
            let words = memory(&mut numbers);
            let Ok(inst) = decode(target, &words) else { continue };
            code.extend(words.iter().take(usize::from(inst.bytes) / 4));
            insts.push(inst);
        }
        code.push(0xbf81_0000);
        let pc = BASE + index % 32 * 256;
        engine.invalidate();
        for inst in &insts {
            *seen.entry(inst.op).or_default() += 1;
        }
        let mut expected = start(target, &mut numbers, pc);
        let far = numbers.below(64) == 0;
        let (global, offset, lds) = (
            places(&mut numbers, 4096 * PAGES as u64),
            places(&mut numbers, 4096 * PAGES as u64),
            places(&mut numbers, 2 * LDS as u64 - 64),
        );
        let near = numbers.below(4) != 0;
        for lane in 0..64 {
            let va = if far && lane == 40 { 0x1234_5678 } else { DATA + 64 + global[lane] };
            support::set_pair(&mut expected, 0, lane, va);
            expected.rows[2].0[lane] = 64 + offset[lane] as u32;
            let at = if near { lds[lane] % (LDS as u64 - 64) } else { lds[lane] };
            expected.rows[3].0[lane] = if index % 2 == 0 { at & !7 } else { at } as u32;
        }
        expected.set_pair(2, DATA);
        let mut wave = expected.clone();
        let (mut one, mut two) = (group(LDS), group(LDS));
        one.lds.copy_from_slice(&bytes[..LDS]);
        two.lds.copy_from_slice(&bytes[..LDS]);
        let mut exits = Vec::new();
        for (world, is_fast) in [(&mut first, false), (&mut second, true)] {
            world.write_words(pc, &code);
            exits.push(if is_fast {
                engine.run(&mut wave, &mut two, world, 1000)
            } else {
                reference::run(&mut expected, &mut one, world, 1000)
            });
        }
        let same_memory = first.read(DATA, 4096 * PAGES) == second.read(DATA, 4096 * PAGES);
        if exits[0] != exits[1] || expected != wave || one.lds != two.lds || !same_memory {
            return Err(format!(
                "program {index}: {exits:?} memory {same_memory} LDS {}\n{insts:#?}\nreference and fast: {}",
                one.lds == two.lds,
                difference(&expected, &wave)
            ));
        }
    }
    Ok(seen)
}

#[test]
fn memory_instructions_are_the_reference_s() {
    for (target, seed) in [(Target::Gfx900, 6), (Target::Gfx90a, 7)] {
        for mut engine in [Engine::new(target), Engine::portable(target)] {
            if let Err(text) = compare_memory(&mut engine, target, programs(500), seed) {
                panic!("{target}: {text}");
            }
        }
    }
}

#[test]
fn a_wrong_handler_is_noticed() {
    let plants: [(Op, Words); 5] = [
        (Op::VAddU32, vector),
        (Op::VFmaF32, vector),
        (Op::VAddCoU32, vector),
        (Op::VCvtF32F16, vector),
        (Op::SAddU32, scalar),
    ];
    for (op, words) in plants {
        for mut engine in [Engine::new(Target::Gfx900), Engine::portable(Target::Gfx900)] {
            engine.sabotage(Switches::NONE.with_value(Switch::Handler, op as u64));
            let result = compare(&mut engine, Target::Gfx900, 4000, 5, words);
            assert!(result.is_err(), "{op:?} is broken, and nothing was noticed");
        }
    }
    for op in [Op::GlobalLoadDword, Op::DsReadB32] {
        let mut engine = Engine::new(Target::Gfx900);
        engine.sabotage(Switches::NONE.with_value(Switch::Handler, op as u64));
        let result = compare_memory(&mut engine, Target::Gfx900, 2000, 8);
        assert!(result.is_err(), "{op:?} is broken, and nothing was noticed");
    }
}

/// The fast engine executes ordinary numbers itself, also in operations for which random programs
/// seldom have ordinary numbers.
#[test]
fn ordinary_numbers_do_not_need_the_reference() {
    let cases: [(Op, &str, [u32; 2]); 6] = [
        (Op::VRcpF32, "v_rcp_f32 v4, v0", [0x7e084500, 0x00000000]),
        (Op::VRsqF32, "v_rsq_f32 v4, v0", [0x7e084900, 0x00000000]),
        (Op::VExpF32, "v_exp_f32 v4, v0", [0x7e084100, 0x00000000]),
        (Op::VLogF32, "v_log_f32 v4, v0", [0x7e084300, 0x00000000]),
        (Op::VDivFixupF32, "v_div_fixup_f32 v4, v0, v1, v2", [0xd1de0004, 0x040a0300]),
        (Op::VDivFmasF32, "v_div_fmas_f32 v4, v0, v1, v2", [0xd1e20004, 0x040a0300]),
    ];
    for (op, text, words) in cases {
        for mut engine in [Engine::new(Target::Gfx900), Engine::portable(Target::Gfx900)] {
            let mut world = Flat::new(BASE, 1);
            world.write_words(BASE, &words);
            let after = 4 * if decode(Target::Gfx900, &words).unwrap().bytes == 8 { 2 } else { 1 };
            world.write_words(BASE + after, &[0xbf81_0000]);
            for broken in [false, true] {
                let mut expected = wave(Target::Gfx900);
                expected.pc = BASE;
                for row in &mut expected.rows {
                    row.0 = std::array::from_fn(|lane| (1.5 + lane as f32 / 7.0).to_bits());
                }
                let mut fast = expected.clone();
                if broken {
                    engine = Engine::new(Target::Gfx900);
                    engine.sabotage(Switches::NONE.with_value(Switch::Handler, op as u64));
                }
                reference::run(&mut expected, &mut group(0), &mut world, 10);
                engine.run(&mut fast, &mut group(0), &mut world, 10);
                assert_eq!(expected == fast, !broken, "{text}: {}", difference(&expected, &fast));
            }
        }
    }
}
