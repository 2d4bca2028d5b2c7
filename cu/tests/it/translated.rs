// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Translated code against the reference engine, bit for bit: random straight programs and loops,
//! in strips of both widths that the processor has.
//!
//! Every block is translated before it runs the first time. The programs have instructions that are
//! translated, and some that are not, so that regions begin and end anywhere. `VKFD_LOCKSTEP=n`
//! runs n programs of each kind.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

use crate::support;

use support::random::{source, REGISTERS};
use support::{group, wave, Numbers, BASE};
use vkfd_cu::fast::native::{is_translated, Accesses, Report, Translation, Width};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Lds, Mode, Wave};
use vkfd_isa::{decode, Format, Inst, Op, Operand, Target};
use vkfd_sabotage::{Switch, Switches};

pub(crate) fn programs(few: u64) -> u64 {
    std::env::var("VKFD_LOCKSTEP").ok().and_then(|count| count.parse().ok()).unwrap_or(few)
}

pub(crate) fn widths() -> Vec<Width> {
    [Width::Avx2, Width::Avx512].into_iter().filter(|width| width.is_there()).collect()
}

pub(crate) fn engine(target: Target, width: Width, is_checked: bool) -> Engine {
    let mut engine = Engine::new(target);
    assert!(engine.translate(Translation { width, after: 0, accesses: Accesses::All, is_checked, perf_map: false }));
    engine
}

/// A number that makes trouble now and then.
pub(crate) fn value(numbers: &mut Numbers) -> u32 {
    const ODD: [u32; 23] = [
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
        0xff81_2345,
        0x807f_ffff,
        0x0080_0000,
        0x7f7f_ffff,
        0x4f00_0000,
        0x4f80_0000,
        // Halves.
        0x7c00_fc00,
        0x7e01_fd02,
        0x0001_83ff,
        0x7bff_0400,
        0x3c01_bc00,
    ];
    match numbers.below(16) {
        0..=2 => ODD[numbers.below(ODD.len() as u64) as usize],
        3..=5 => numbers.below(100) as u32,
        6..=12 => numbers.word() & 0x87ff_ffff | 0x3800_0000,
        _ => numbers.word(),
    }
}

/// A number of which products and sums are near the least one that is not denormal.
fn tiny(numbers: &mut Numbers) -> u32 {
    match numbers.below(4) {
        0 => numbers.word() & 0x80ff_ffff,
        1 | 2 => numbers.word() & 0x807f_ffff | (56 + numbers.below(16) as u32) << 23,
        _ => value(numbers),
    }
}

/// A random vector instruction's words, as gfx9 and gfx10 have them.
fn vector(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    let register = |numbers: &mut Numbers| numbers.below(REGISTERS) as u32;
    let first = if numbers.below(12) == 0 { 255 } else { source(numbers) };
    let mut words = match numbers.below(8) {
        0 | 1 => {
            let op = numbers.below(64) as u32;
            vec![op << 25 | register(numbers) << 17 | register(numbers) << 9 | first]
        }
        2 if target.is_gfx9() && numbers.below(3) == 0 => return sdwa(numbers),
        2 => vec![0x3f << 25 | register(numbers) << 17 | (numbers.below(64) as u32) << 9 | first],
        3 => vec![0x3e << 25 | (numbers.below(256) as u32) << 17 | register(numbers) << 9 | first],
        4 if numbers.below(3) == 0 => return packed(target, numbers),
        kind => {
            let op = numbers.below(1024) as u32;
            let dst = if op < 256 { [106, 8, 10][numbers.below(3) as usize] } else { register(numbers) };
            let mut low = if target.is_rdna() { 0b11_0101 } else { 0b11_0100 } << 26 | op << 16 | dst;
            // A third source that is a mask, for some.
            let third = if kind == 4 { [106, 8, 10][numbers.below(3) as usize] } else { source(numbers) };
            let mut high = third << 18 | source(numbers) << 9 | source(numbers);
            if numbers.below(4) == 0 {
                high |= (numbers.below(8) as u32) << 29;
                low |= (numbers.below(8) as u32) << 8;
            }
            if numbers.below(8) == 0 {
                low |= (numbers.below(16) as u32) << 11;
            }
            return vec![low, high];
        }
    };
    words.push(value(numbers));
    words
}

/// An operation on both halves, with any choice of them.
fn packed(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    let (op, dst) = (numbers.below(20) as u32, numbers.below(REGISTERS) as u32);
    let mut low = if target.is_rdna() { 0xcc00_0000 } else { 0xd380_0000 } | op << 16 | 1 << 14 | dst;
    let mut high = 3 << 27 | source(numbers) << 18 | source(numbers) << 9 | source(numbers);
    if numbers.below(2) == 0 {
        low ^= (numbers.below(16) as u32) << 11;
        high ^= (numbers.below(4) as u32) << 27;
    }
    if numbers.below(4) == 0 {
        low |= (numbers.below(8) as u32) << 8;
        high |= (numbers.below(8) as u32) << 29;
    }
    vec![low, high]
}

/// Parts of registers, as gfx9 has them.
fn sdwa(numbers: &mut Numbers) -> Vec<u32> {
    let register = |numbers: &mut Numbers| numbers.below(REGISTERS) as u32;
    let word = match numbers.below(3) {
        0 => 0x3f << 25 | register(numbers) << 17 | (numbers.below(64) as u32) << 9 | 0xf9,
        _ => (numbers.below(62) as u32) << 25 | register(numbers) << 17 | register(numbers) << 9 | 0xf9,
    };
    let select = |numbers: &mut Numbers| numbers.below(7) as u32;
    let (dst, unused) = (select(numbers), numbers.below(3) as u32);
    let signs = if numbers.below(2) == 0 { (numbers.below(16) as u32) << 20 & 0x30_0000 } else { 0 };
    let sext = (numbers.below(2) as u32) << 19 | (numbers.below(2) as u32) << 27;
    let parts = register(numbers) | dst << 8 | unused << 11 | select(numbers) << 16 | select(numbers) << 24;
    vec![word, parts | signs | sext]
}

/// A scalar one with a literal, any bit of which may be a sign. As a field, 1/(2 pi) has 34 bits.
fn scalar_literal(numbers: &mut Numbers) -> Vec<u32> {
    let other = [numbers.below(8), 128 + numbers.below(65), 248][numbers.below(3) as usize] as u32;
    let (first, second) = if numbers.below(3) == 0 { (other, 255) } else { (255, other) };
    let dst = 4 + numbers.below(3) as u32;
    let word = match numbers.below(4) {
        0 => 0b1_0111_1101 << 23 | dst << 16 | (numbers.below(64) as u32) << 8 | 255,
        1 => 0b1_0111_1110 << 23 | (numbers.below(32) as u32) << 16 | second << 8 | first,
        _ => 0b10 << 30 | (numbers.below(96) as u32) << 23 | dst << 16 | second << 8 | first,
    };
    vec![word, if numbers.below(2) == 0 { numbers.word() } else { value(numbers) }]
}

/// A scalar one, which writes s4 to s7.
fn scalar(numbers: &mut Numbers) -> Vec<u32> {
    let source = |numbers: &mut Numbers| match numbers.below(8) {
        0 => 128 + numbers.below(81) as u32,
        1 => 126,
        2 => 240 + numbers.below(9) as u32,
        _ => numbers.below(8) as u32,
    };
    let dst = 4 + numbers.below(3) as u32;
    let first = if numbers.below(8) == 0 { 255 } else { source(numbers) };
    // A field's first bit and its length are a literal, mostly.
    let is_field = numbers.below(8) == 0;
    let second = if is_field { 255 } else { source(numbers) };
    let word = match numbers.below(5) {
        0 | 1 => 0b10 << 30 | (numbers.below(96) as u32) << 23 | dst << 16 | second << 8 | first,
        2 => 0b1_0111_1101 << 23 | dst << 16 | (numbers.below(64) as u32) << 8 | first,
        3 => 0b1_0111_1110 << 23 | (numbers.below(32) as u32) << 16 | second << 8 | first,
        _ => 0b1011 << 28 | (numbers.below(16) as u32) << 23 | dst << 16 | numbers.below(1 << 16) as u32,
    };
    let field = numbers.below(64) as u32 | (numbers.below(70) as u32) << 16;
    vec![word, if is_field { field } else { value(numbers) }]
}

/// s_load of one or two words from s[2:3], to s4 and on.
fn load(numbers: &mut Numbers) -> Vec<u32> {
    vec![0b11_0000 << 26 | (numbers.below(2) as u32) << 18 | 1 << 17 | 4 << 6 | 1, numbers.below(64) as u32 * 4]
}

/// The row of LDS addresses, and the first of two rows with addresses in memory. Random code does
/// not write them.
pub(crate) const LOCAL: u32 = REGISTERS as u32;
pub(crate) const GLOBAL: u32 = LOCAL + 1;

/// A load of LDS or of memory, as gfx9 has it.
fn access(numbers: &mut Numbers) -> Vec<u32> {
    let dst = numbers.below(REGISTERS - 4) as u32;
    if numbers.below(3) == 0 {
        let op = 0x10 + numbers.below(8) as u32;
        // Bytes and halves are anywhere.
        let offset = numbers.below(64) as u32 & if op < 0x14 { !0 } else { !3 };
        return vec![0xdc00_8000 | op << 18 | offset, dst << 24 | 0x7f << 16 | GLOBAL];
    }
    // ds_read_b32, read2, read2st64, b64, read2_b64, b96, b128
    let op = [0x36, 0x37, 0x38, 0x76, 0x77, 0xfe, 0xff][numbers.below(7) as usize];
    let offsets = match op {
        0x36 | 0x76 | 0xfe | 0xff => numbers.below(64) as u32 * 4,
        0x38 => (numbers.below(3) as u32) << 8 | numbers.below(3) as u32,
        _ => (numbers.below(32) as u32) << 8 | numbers.below(32) as u32,
    };
    vec![0xd800_0000 | op << 17 | offsets, dst << 24 | LOCAL]
}

/// Addresses of lanes within so many bytes: side by side, all the same, in pieces, anywhere.
fn addresses(numbers: &mut Numbers, room: u64) -> [u32; 64] {
    let begin = numbers.below(room - 512) & !3;
    let kind = numbers.below(6);
    std::array::from_fn(|lane| {
        let offset = match kind {
            0 | 1 => begin + 4 * lane as u64,
            2 => begin,
            3 => begin + 8 * lane as u64,
            4 => begin + 4 * (lane as u64 / 16),
            _ => numbers.below(room - 512) & !3,
        };
        offset as u32
    })
}

const PLAIN: [Format; 10] = [
    Format::Vop1,
    Format::Vop2,
    Format::Vopc,
    Format::Vop3,
    Format::Vop3p,
    Format::Sop1,
    Format::Sop2,
    Format::Sopk,
    Format::Sopc,
    Format::Smem,
];

/// Whether a program may have it: what is translated, and now and then something else that is
/// harmless.
fn fits(inst: &Inst, numbers: &mut Numbers, pure: bool) -> bool {
    let harmless = matches!(inst.op, Op::VBfrevB32 | Op::VMadU32U24 | Op::VSadU32 | Op::SBrevB32 | Op::VFfbhU32);
    // Beside fused operations they are for one MODE only.
    let unfused = matches!(inst.op, Op::VMacF32 | Op::VMadF32 | Op::VMadmkF32 | Op::VMadakF32);
    PLAIN.contains(&inst.format)
        && (!unfused || numbers.below(8) == 0)
        && (is_translated(inst.op) || inst.format == Format::Smem || harmless && !pure && numbers.below(2) == 0)
}

/// Instructions, of which none writes EXEC.
pub(crate) fn body(target: Target, numbers: &mut Numbers, length: usize, how: (bool, bool, bool)) -> Vec<u32> {
    let (pure, loads, accesses) = how;
    let mut code = Vec::new();
    let mut count = 0;
    while count < length {
        if accesses && count % 5 == 4 {
            code.extend(access(numbers));
            count += 1;
            continue;
        }
        let words = match numbers.below(8) {
            0 | 1 => scalar(numbers),
            2 if loads && target.is_gfx9() => load(numbers),
            _ => vector(target, numbers),
        };
        let Ok(inst) = decode(target, &words) else { continue };
        let exec = |operand| matches!(operand, Operand::Scalar(Operand::EXEC..));
        // In a loop, a register that is a mask is no number, and masks do not overlap.
        let takes_mask = matches!(inst.op, Op::VCndmaskB32 | Op::VAddcCoU32 | Op::VSubbCoU32 | Op::VSubbrevCoU32);
        let is_mask = |operand: &Operand| matches!(operand, Operand::Scalar(8..=11 | 106 | 107));
        let numbers_of = inst.src.iter().take(if takes_mask { 2 } else { 3 });
        let mixed =
            numbers_of.into_iter().any(is_mask) || takes_mask && !matches!(inst.src[2], Operand::Scalar(8 | 10 | 106));
        let writes_exec = exec(inst.dst) || exec(inst.sdst);
        let is_mixed = pure && mixed;
        if fits(&inst, numbers, pure) && !(writes_exec || is_mixed) {
            code.extend(words.iter().take(usize::from(inst.bytes) / 4));
            count += 1;
        }
    }
    code
}

pub(crate) const END: u32 = 0xbf81_0000;
pub(crate) const DATA: u64 = BASE + 0x2000;

fn straight(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    let mut code = body(target, numbers, 24, (false, true, false));
    code.push(END);
    code
}

/// Scalar operations with literals, each before a sum of lanes that reads its result.
fn scalar_literals(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    let add = if target.is_gfx9() { 0x34 << 25 } else { 0x25 << 25 };
    let mut code = Vec::new();
    while code.len() < 48 {
        let words = scalar_literal(numbers);
        let Ok(inst) = decode(target, &words) else { continue };
        if is_translated(inst.op) && ![inst.dst, inst.sdst].contains(&Operand::Scalar(Operand::EXEC)) {
            code.extend(words.iter().take(usize::from(inst.bytes) / 4));
            let row = numbers.below(REGISTERS) as u32;
            code.push(add | row << 17 | row << 9 | (4 + numbers.below(4) as u32));
        }
    }
    code.push(END);
    code
}

fn straight_with_accesses(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    let mut code = body(target, numbers, 24, (false, false, true));
    code.push(END);
    code
}

/// A loop of s20 rounds.
fn looped(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    let loads = numbers.below(2) == 0;
    rounds(target, numbers, (true, loads, false))
}

/// A loop whose addresses in memory grow by v_add_u32, in rounds that reach beyond what is there.
fn looped_with_accesses(target: Target, numbers: &mut Numbers) -> Vec<u32> {
    rounds(target, numbers, (true, false, true))
}

fn rounds(target: Target, numbers: &mut Numbers, how: (bool, bool, bool)) -> Vec<u32> {
    let length = 6 + numbers.below(12) as usize;
    let mut code = body(target, numbers, length, how);
    if how.2 {
        // v_add_u32 of 0, 4, 16 or 64 to the addresses.
        let by = [128, 132, 144, 192][numbers.below(4) as usize];
        code.push(0x34 << 25 | GLOBAL << 17 | GLOBAL << 9 | by);
    }
    // s_sub_u32 s20, s20, 1; s_cmp_lg_u32 s20, 0; s_cbranch_scc1
    code.extend([0x8094_8114, 0xbf07_8014]);
    let back = -(code.len() as i16 + 1);
    code.push(0xbf85_0000 | u32::from(back as u16));
    code.push(END);
    code
}

/// Bytes of LDS.
const LDS: usize = 4096;

/// A group whose LDS has something to read.
pub(crate) fn local() -> vkfd_cu::Group {
    vkfd_cu::Group { lds: Lds::from(&Numbers(6).bytes(LDS)[..]), ..group(0) }
}

pub(crate) fn start(target: Target, numbers: &mut Numbers, lanes: u8) -> Wave {
    let mut wave = wave(target);
    (wave.pc, wave.lanes) = (BASE, lanes);
    // Singles lose denormals, as some libraries' kernels want it.
    let flushes = numbers.below(5) == 0;
    for row in wave.rows.iter_mut().take(REGISTERS as usize + 4) {
        row.0.fill_with(|| if flushes { tiny(numbers) } else { value(numbers) });
    }
    for word in wave.scalar.iter_mut().take(16) {
        *word = value(numbers);
    }
    wave.rows[LOCAL as usize].0 = addresses(numbers, LDS as u64 - 1536);
    let places = addresses(numbers, 0x2000);
    wave.rows[GLOBAL as usize].0 = places.map(|place| (DATA + u64::from(place)) as u32);
    wave.rows[GLOBAL as usize + 1].0 = [(DATA >> 32) as u32; 64];
    wave.set_pair(2, DATA);
    wave.scalar[20] = [1, 2, 3, 63, 64, 65, 130][numbers.below(7) as usize];
    wave.set_pair(Operand::VCC, numbers.next());
    wave.set_pair(
        Operand::EXEC,
        match numbers.below(8) {
            0..=3 => u64::MAX,
            4 => 0,
            5 => 1 << numbers.below(64),
            6 => numbers.next() & 0xffff_0000_00ff_0000,
            _ => numbers.next(),
        },
    );
    wave.scc = numbers.below(2) != 0;
    match numbers.below(8) {
        0 => wave.mode = Mode(Mode::DEFAULT.0 & !0x3ff | numbers.below(0x400) as u32),
        _ if flushes => wave.mode = Mode(Mode::DEFAULT.0 & !0x30),
        _ => {}
    }
    wave
}

/// Where two waves differ, in the lanes that there are.
pub(crate) fn difference(one: &Wave, two: &Wave) -> Option<String> {
    let lanes = usize::from(one.lanes);
    let mut text = String::new();
    if (one.pc, one.scc, one.mode) != (two.pc, two.scc, two.mode) {
        text += &format!("pc {:#x} {:#x}, scc {} {}", one.pc, two.pc, one.scc, two.scc);
    }
    for (index, (a, b)) in one.scalar.iter().zip(&two.scalar).enumerate().filter(|(_, (a, b))| a != b) {
        text += &format!("\n  s{index}: {a:#010x} {b:#010x}");
    }
    for (index, (a, b)) in one.rows.iter().zip(&two.rows).enumerate() {
        for (lane, (a, b)) in a.0.iter().zip(&b.0).take(lanes).enumerate().filter(|(_, (a, b))| a != b).take(4) {
            text += &format!("\n  v{index} lane {lane}: {a:#010x} {b:#010x}");
        }
    }
    (!text.is_empty()).then_some(text)
}

pub(crate) fn listing(target: Target, code: &[u32]) -> String {
    let (mut text, mut at) = (String::new(), 0);
    while let Some(Ok(inst)) = code.get(at..).filter(|rest| !rest.is_empty()).map(|rest| decode(target, rest)) {
        text += &format!("{:?} {:?} {:?} {:?} {:?}\n", inst.op, inst.dst, inst.sdst, inst.src, inst.mods);
        at += usize::from(inst.bytes) / 4;
    }
    text
}

pub(crate) type Program = fn(Target, &mut Numbers) -> Vec<u32>;

/// What a comparison is of.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) target: Target,
    pub(crate) lanes: u8,
    pub(crate) count: u64,
    pub(crate) seed: u64,
    /// Instructions at a time.
    pub(crate) budget: u32,
    pub(crate) program: Program,
}

/// Runs programs on both engines; the first difference as text.
pub(crate) fn compare(engine: &mut Engine, case: Case) -> Result<Report, String> {
    let Case { target, lanes, count, seed, budget, program } = case;
    let mut numbers = Numbers(seed);
    let mut world = Flat::new(BASE, 4);
    world.write(DATA, &Numbers(5).bytes(0x2000));
    let mut report = Report::default();
    for index in 0..count {
        let code = program(target, &mut numbers);
        world.write_words(BASE, &code);
        engine.invalidate();
        for _ in 0..4 {
            let mut expected = start(target, &mut numbers, lanes);
            let mut wave = expected.clone();
            let before = wave.clone();
            let exit = reference::run(&mut expected, &mut local(), &mut world, 1 << 20);
            let mut runs = 0;
            let translated = loop {
                runs += 1;
                match engine.run(&mut wave, &mut local(), &mut world, budget) {
                    Exit::Yield if runs < 1 << 20 => {}
                    exit => break exit,
                }
            };
            let differs = difference(&expected, &wave);
            if exit != translated || differs.is_some() {
                return Err(format!(
                    "program {index}: {exit:?} {translated:?} mode {:#x} exec {:#x} rounds {}\n{}{}",
                    before.mode.0,
                    before.exec(),
                    before.scalar[20],
                    listing(target, &code),
                    differs.unwrap_or_default()
                ));
            }
        }
        report.add(&engine.translated());
    }
    Ok(report)
}

fn check(case: Case, share: u64) {
    for width in widths() {
        let mut engine = engine(case.target, width, false);
        match compare(&mut engine, case) {
            Ok(report) => {
                println!("{} {width:?}: {report:?}", case.target);
                assert!(
                    100 * report.translated >= share * report.instructions,
                    "too little was translated: {report:?}"
                );
            }
            Err(text) => panic!("{} {width:?}: {text}", case.target),
        }
    }
}

const STRAIGHT: Case = Case { target: Target::Gfx900, lanes: 64, count: 0, seed: 1, budget: 1000, program: straight };
const LOOPED: Case = Case { target: Target::Gfx900, lanes: 64, count: 0, seed: 2, budget: 1 << 20, program: looped };

#[test]
fn straight_code_is_the_reference_s() {
    check(Case { count: programs(400), ..STRAIGHT }, 40);
    check(Case { target: Target::Gfx90a, count: programs(200), seed: 7, ..STRAIGHT }, 40);
}

/// Of 64 bits they have their sign above or zeros, as each operation wants it.
#[test]
fn literals_of_scalar_operations_are_the_reference_s() {
    check(Case { count: programs(400), seed: 31, program: scalar_literals, ..STRAIGHT }, 40);
    check(Case { target: Target::Gfx1100, count: programs(200), seed: 32, program: scalar_literals, ..STRAIGHT }, 20);
}

#[test]
fn loops_are_the_reference_s() {
    check(Case { count: programs(300), ..LOOPED }, 50);
    check(Case { target: Target::Gfx942, count: programs(100), seed: 8, ..LOOPED }, 30);
}

/// Loads of memory and LDS, also in waves that are suspended after each round and whose loads miss
/// in a later one. `faults_in_accesses_are_noticed` shows that such loops are translated.
#[test]
fn accesses_are_the_reference_s() {
    let straight = Case { program: straight_with_accesses, seed: 21, ..STRAIGHT };
    let looped = Case { program: looped_with_accesses, seed: 22, ..LOOPED };
    check(Case { count: programs(200), ..straight }, 0);
    check(Case { target: Target::Gfx90a, count: programs(100), seed: 23, ..straight }, 0);
    check(Case { count: programs(200), ..looped }, 0);
    check(Case { count: programs(60), budget: 1, seed: 24, ..looped }, 0);
    check(Case { target: Target::Gfx942, count: programs(100), seed: 25, ..looped }, 0);
}

#[test]
fn faults_in_accesses_are_noticed() {
    for width in widths() {
        for switch in [Switch::GuessedShape, Switch::UnkeptRows] {
            let mut engine = engine(Target::Gfx900, width, false);
            engine.sabotage(Switches::NONE.with(switch));
            let case = Case { count: 300, seed: 22, program: looped_with_accesses, ..LOOPED };
            assert!(compare(&mut engine, case).is_err(), "{width:?}: {switch:?} was not noticed");
        }
    }
}

#[test]
fn waves_of_32_are_the_reference_s() {
    check(Case { target: Target::Gfx1030, lanes: 32, count: programs(200), seed: 14, ..STRAIGHT }, 30);
    check(Case { target: Target::Gfx1030, lanes: 32, count: programs(150), seed: 15, ..LOOPED }, 30);
    check(Case { target: Target::Gfx1030, count: programs(100), seed: 16, ..STRAIGHT }, 30);
}

#[test]
fn a_loop_that_is_suspended_at_every_chunk_goes_on() {
    check(Case { count: programs(60), seed: 9, budget: 1, ..LOOPED }, 30);
    check(Case { count: programs(60), seed: 10, budget: 100, ..LOOPED }, 30);
}

/// A scalar load in a loop whose address grows until there is no memory.
#[test]
fn a_load_that_misses_in_a_later_round_is_at_its_instruction() {
    // s_load_dword s4, s[2:3], 0; v_add_u32 v0, s4, v0, four times; s_add_u32 s2, s2, 0x40;
    // s_addc_u32 s3, s3, 0; s_cmp_lg_u32 s2, 0; s_cbranch_scc1
    let mut code = vec![0xc002_0101, 0];
    code.extend([0x6800_0004, 0x6802_0204, 0x6804_0404, 0x6806_0604]);
    code.extend([0x8002_ff02, 0x40, 0x8203_8003, 0xbf07_8002]);
    let back = -(code.len() as i16 + 1);
    code.extend([0xbf85_0000 | u32::from(back as u16), END]);
    for width in widths() {
        let mut engine = engine(Target::Gfx900, width, false);
        let mut world = Flat::new(BASE, 4);
        world.write(DATA, &Numbers(6).bytes(0x2000));
        world.write_words(BASE, &code);
        let mut expected = start(Target::Gfx900, &mut Numbers(3), 64);
        expected.mode = Mode::DEFAULT;
        let mut wave = expected.clone();
        let exit = reference::run(&mut expected, &mut group(0), &mut world, 1 << 20);
        assert!(matches!(exit, Exit::Miss(miss) if miss.va == DATA + 0x2000), "{exit:?}");
        assert_eq!(engine.run(&mut wave, &mut group(0), &mut world, 1 << 20), exit);
        assert_eq!(difference(&expected, &wave), None);
        assert_eq!(engine.translated().translated, 9, "all but the end is a region");
    }
}

#[test]
fn checks_find_nothing_in_code_that_is_right() {
    for width in widths() {
        let mut engine = engine(Target::Gfx900, width, true);
        for case in [Case { count: 60, ..STRAIGHT }, Case { count: 40, ..LOOPED }] {
            compare(&mut engine, case).expect("the same results");
        }
        let found = engine.differences();
        assert!(found.checked > 100, "{found:?}");
        assert_eq!((found.wrong, found.first), (0, None));
    }
}

/// Lanes that vectors leave are the engine's, in the middle of a region.
#[test]
fn mended_lanes_are_the_reference_s() {
    for width in widths() {
        let mut engine = engine(Target::Gfx900, width, false);
        engine.sabotage(Switches::NONE.with(Switch::MendAll));
        for case in [Case { count: 300, seed: 12, ..STRAIGHT }, Case { count: 100, seed: 13, ..LOOPED }] {
            compare(&mut engine, case).unwrap_or_else(|text| panic!("{width:?}: {text}"));
        }
    }
}

/// Each fault in translated code is noticed, and a checked engine notices it by itself and goes on
/// with the right results.
#[test]
fn faults_are_noticed() {
    for width in widths() {
        for switch in [
            Switch::LostRows,
            Switch::LostRound,
            Switch::SameStrip,
            Switch::OpenLanes,
            Switch::SwappedSources,
            Switch::LateScalars,
            Switch::DroppedMask,
            Switch::LeftEarly,
            Switch::KeptDenormals,
        ] {
            let cases = [Case { count: 100, ..STRAIGHT }, Case { count: 60, ..LOOPED }];
            let noticed = cases.into_iter().any(|case| {
                let mut engine = engine(Target::Gfx900, width, false);
                engine.sabotage(Switches::NONE.with(switch));
                compare(&mut engine, case).is_err()
            });
            assert!(noticed, "{width:?}: {switch:?} was not noticed");
            let mut engine = engine(Target::Gfx900, width, true);
            engine.sabotage(Switches::NONE.with(switch));
            for case in cases {
                if let Err(text) = compare(&mut engine, case) {
                    panic!("{width:?} {switch:?}: a checked engine has the reference's results\n{text}");
                }
            }
            assert!(engine.differences().wrong > 0, "{width:?}: a check does not find {switch:?}");
        }
    }
}
