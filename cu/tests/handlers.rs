// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Every handler of the fast engine against the reference engine, bit for bit: as many cases of
//! each as are asked for.
//!
//! The handlers are found: every operation of every encoding is tried with random fields, and what
//! the engine has a handler for is in the table, by operation and encoding. A case is a lane that
//! the handler itself has computed; what it left to the reference engine does not count.
//! `VKFD_CASES=n` asks for n cases of each instead of a few hundred; 100,000 take minutes.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use support::random::{source, REGISTERS};
use support::{group, wave, Numbers, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Mode, Wave};
use vkfd_isa::{decode, Extension, Format, Inst, Op, Operand, Target};
use vkfd_sabotage::{Switch, Switches};

/// Memory that instructions work on.
const DATA: u64 = BASE + 0x10_0000;
const PAGES: usize = 2;
const LDS: usize = 1024;

/// Cases asked for of each handler.
fn cases() -> u64 {
    std::env::var("VKFD_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(256)
}

/// An encoding, as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Sop1,
    Sop2,
    Sopc,
    Sopk,
    Vop1,
    Vop2,
    Vopc,
    Vop3,
    Vop3p,
    Matrix,
    Sdwa1,
    Sdwa2,
    SdwaC,
    Dpp1,
    Dpp2,
    DppC,
    Ds,
    Flat,
    Global,
    Buffer,
    Scratch,
    Scalar,
}

const FORMS: [(Form, u64); 22] = [
    (Form::Sop1, 256),
    (Form::Sop2, 96),
    (Form::Sopc, 128),
    (Form::Sopk, 32),
    (Form::Vop1, 256),
    (Form::Vop2, 62),
    (Form::Vopc, 256),
    (Form::Vop3, 1024),
    (Form::Vop3p, 64),
    (Form::Matrix, 128),
    (Form::Sdwa1, 256),
    (Form::Sdwa2, 62),
    (Form::SdwaC, 256),
    (Form::Dpp1, 256),
    (Form::Dpp2, 62),
    (Form::DppC, 256),
    (Form::Ds, 256),
    (Form::Flat, 128),
    (Form::Global, 128),
    (Form::Buffer, 128),
    (Form::Scratch, 128),
    (Form::Scalar, 16),
];

fn register(numbers: &mut Numbers) -> u32 {
    numbers.below(REGISTERS) as u32
}

/// The first of two registers.
fn even_register(numbers: &mut Numbers) -> u32 {
    2 * (register(numbers) / 2)
}

fn scalar_source(numbers: &mut Numbers) -> u32 {
    (match numbers.below(8) {
        0 => 128 + numbers.below(81),
        1 => 106,
        2 => 126,
        3 => 240 + numbers.below(9),
        _ => numbers.below(REGISTERS),
    }) as u32
}

/// Words of operation number `op` in an encoding, its other fields at random.
fn words(form: Form, op: u32, numbers: &mut Numbers) -> Vec<u32> {
    let sdwa = |numbers: &mut Numbers, compares: bool| {
        let part = |numbers: &mut Numbers| numbers.below(7) as u32;
        let rest = if compares {
            // A mask register, or VCC.
            if numbers.below(2) == 0 {
                0
            } else {
                (1 << 7 | register(numbers) & !1) << 8
            }
        } else {
            part(numbers) << 8 | (numbers.below(3) as u32) << 11 | u32::from(numbers.below(4) == 0) << 13
        };
        let signs = if numbers.below(2) == 0 { 0 } else { numbers.word() & 0x3838_0000 & !0x0808_0000 };
        let extend = if numbers.below(3) == 0 { numbers.word() & 0x0808_0000 } else { 0 };
        register(numbers) | rest | part(numbers) << 16 | part(numbers) << 24 | signs | extend
    };
    let dpp = |numbers: &mut Numbers| {
        let control = match numbers.below(4) {
            0 => numbers.below(256) as u32,
            _ => [0x101, 0x10f, 0x111, 0x118, 0x121, 0x12c, 0x130, 0x134, 0x138, 0x13c, 0x140, 0x141, 0x142, 0x143]
                [numbers.below(14) as usize],
        };
        let masks = if numbers.below(2) == 0 { 0xff } else { numbers.word() & 0xff };
        let signs = if numbers.below(2) == 0 { 0 } else { numbers.word() & 0xf0_0000 };
        register(numbers) | control << 8 | (numbers.below(2) as u32) << 19 | signs | masks << 24
    };
    let literal = numbers.word();
    match form {
        Form::Sop1 => {
            // EXEC, which some of these write by themselves, too.
            let dst = if numbers.below(12) == 0 { 126 } else { register(numbers) };
            vec![0xbe80_0000 | dst << 16 | op << 8 | scalar_source(numbers), literal]
        }
        Form::Sop2 => {
            let dst = if numbers.below(12) == 0 { 106 } else { register(numbers) };
            vec![1 << 31 | op << 23 | dst << 16 | scalar_source(numbers) << 8 | scalar_source(numbers), literal]
        }
        Form::Sopc => vec![0xbf00_0000 | op << 16 | scalar_source(numbers) << 8 | scalar_source(numbers), literal],
        Form::Sopk => vec![0xb000_0000 | op << 23 | register(numbers) << 16 | numbers.word() & 0xffff, literal],
        Form::Vop1 => vec![0x7e00_0000 | register(numbers) << 17 | op << 9 | source(numbers), literal],
        Form::Vop2 => vec![op << 25 | register(numbers) << 17 | register(numbers) << 9 | source(numbers), literal],
        Form::Vopc => vec![0x7c00_0000 | op << 17 | register(numbers) << 9 | source(numbers), literal],
        Form::Sdwa1 => vec![0x7e00_0000 | register(numbers) << 17 | op << 9 | 249, sdwa(numbers, false)],
        Form::Sdwa2 => vec![op << 25 | register(numbers) << 17 | register(numbers) << 9 | 249, sdwa(numbers, false)],
        Form::SdwaC => vec![0x7c00_0000 | op << 17 | register(numbers) << 9 | 249, sdwa(numbers, true)],
        Form::Dpp1 => vec![0x7e00_0000 | register(numbers) << 17 | op << 9 | 250, dpp(numbers)],
        Form::Dpp2 => vec![op << 25 | register(numbers) << 17 | register(numbers) << 9 | 250, dpp(numbers)],
        Form::DppC => vec![0x7c00_0000 | op << 17 | register(numbers) << 9 | 250, dpp(numbers)],
        Form::Vop3 => {
            // Of those with a mask, VCC has it.
            let dst = if op < 256 && numbers.below(2) == 0 { 106 } else { register(numbers) };
            let with_mask = numbers.below(3);
            let mut low = 0xd000_0000 | op << 16 | dst;
            let third = match with_mask {
                0 => 106,
                1 => 0,
                _ => source(numbers),
            };
            let mut high = third << 18 | source(numbers) << 9 | source(numbers);
            if numbers.below(6) == 0 {
                high &= 0x1ff;
            }
            match numbers.below(6) {
                0 => {
                    high |= (numbers.below(8) as u32) << 29;
                    low |= (numbers.below(8) as u32) << 8;
                }
                1 => {
                    high |= (numbers.below(4) as u32) << 27;
                    low |= (numbers.below(2) as u32) << 15;
                }
                2 => low |= (numbers.below(16) as u32) << 11,
                3 => low |= 106 << 8,
                _ => {}
            }
            vec![low, high]
        }
        Form::Vop3p => {
            let (select, high) = if numbers.below(2) == 0 { (0, 7) } else { (numbers.word() & 7, numbers.word() & 7) };
            let signs = if numbers.below(2) == 0 { 0 } else { numbers.word() & 7 };
            let above = if numbers.below(2) == 0 { 0 } else { numbers.word() & 7 };
            let even = |numbers: &mut Numbers| {
                if numbers.below(4) == 0 {
                    source(numbers)
                } else {
                    256 + 2 * (register(numbers) / 2)
                }
            };
            let low = 0xd380_0000 | op << 16 | above << 8 | select << 11 | (high >> 2) << 14 | even_register(numbers);
            // Most have no third source, and nothing where it would be.
            let third = if numbers.below(2) == 0 { 0 } else { even(numbers) };
            let sources = third << 18 | even(numbers) << 9 | even(numbers);
            vec![low, sources | signs << 29 | (high & 3) << 27]
        }
        Form::Matrix => {
            let (a, b) = (2 * (register(numbers) / 2), 2 * (register(numbers) / 2));
            // Accumulation registers or others; the sum goes on, or begins with a constant.
            let (to, kind) = if numbers.below(2) == 0 { (0, 1) } else { (16, 0) };
            let c = match numbers.below(4) {
                0 => 128 + numbers.below(5) as u32,
                1 => 242,
                _ => 256 + to,
            };
            vec![0xd3c0_0000 | (op & 0x3f) << 16 | kind << 15 | to, (c << 18) | (256 + b) << 9 | (256 + a)]
        }
        Form::Ds => {
            let offsets = (numbers.below(8) as u32) << 3 | (numbers.below(8) as u32) << 8;
            let offsets = if numbers.below(2) == 0 { offsets & 0xff } else { offsets };
            let mut field = |shift: u32| if numbers.below(3) == 0 { 0 } else { (4 + numbers.below(6) as u32) << shift };
            vec![0xd800_0000 | op << 17 | offsets, field(24) | field(16) | field(8) | 3]
        }
        Form::Flat | Form::Global => {
            let flat = form == Form::Flat;
            let saddr = !flat && numbers.below(2) == 0;
            let offset =
                if flat { numbers.below(64) } else { numbers.below(128).wrapping_sub(64) & 0x1fff } as u32 & !7;
            let low =
                0xdc00_0000 | op << 18 | (numbers.below(2) as u32) << 16 | if flat { 0 } else { 2 << 14 } | offset;
            let (address, base) = if saddr {
                (2, 2)
            } else if flat {
                (0, 0)
            } else {
                (0, 0x7f)
            };
            let dst = if numbers.below(2) == 0 { 0 } else { 4 + numbers.below(8) as u32 };
            let data = if numbers.below(3) == 0 { 0 } else { 4 + numbers.below(6) as u32 };
            vec![low, dst << 24 | base << 16 | data << 8 | address]
        }
        Form::Buffer => {
            let (index, offset) = (numbers.below(2) as u32, numbers.below(2) as u32);
            let immediate = numbers.below(16) as u32 * 4;
            let low = 0xe000_0000 | op << 18 | index << 13 | offset << 12 | immediate;
            // The descriptor is in s[8:11]; the scalar offset in s1, or a constant.
            let scalar = if numbers.below(2) == 0 { 128 + numbers.below(9) as u32 } else { 1 };
            vec![low, scalar << 24 | 2 << 16 | (4 + numbers.below(6) as u32) << 8 | 12]
        }
        Form::Scratch => {
            // A private address in v2, or one in s2; what either has is small.
            let offset = numbers.below(8) as u32 * 4;
            let (address, base) = if numbers.below(2) == 0 { (0, 2) } else { (2, 0x7f) };
            let low = 0xdc00_0000 | op << 18 | 1 << 14 | offset;
            let dst = 4 + numbers.below(8) as u32;
            vec![low, dst << 24 | base << 16 | (4 + numbers.below(6) as u32) << 8 | address]
        }
        Form::Scalar => {
            let offset = numbers.below(512) as u32;
            // An address in s[2:3], or a buffer's descriptor in s[8:11].
            let base = if op < 8 { 1 } else { 4 };
            vec![0xc000_0000 | op << 18 | 1 << 17 | (4 + numbers.below(4) as u32) << 6 | base, offset]
        }
    }
}

/// An instruction of an operation; which it is says the decoder.
fn instruction(target: Target, form: Form, op: u32, numbers: &mut Numbers) -> Option<(Inst, Vec<u32>)> {
    let mut words = words(form, op, numbers);
    let inst = decode(target, &words).ok()?;
    words.truncate(usize::from(inst.bytes) / 4);
    let extended = matches!(form, Form::Sdwa1 | Form::Sdwa2 | Form::SdwaC | Form::Dpp1 | Form::Dpp2 | Form::DppC);
    // High numbers of some encodings are others.
    let own = match form {
        Form::Sopk => inst.format == Format::Sopk,
        Form::Vop3 => inst.format == Format::Vop3,
        _ => inst.format != Format::Sopp,
    };
    (own && extended == (inst.extension != Extension::None)).then_some((inst, words))
}

/// Handlers by operation and encoding, with the number of the operation there.
type Table = BTreeMap<(Op, Form), u32>;

fn table(target: Target, engine: &mut Engine) -> Table {
    let mut numbers = Numbers(3);
    let mut table = Table::new();
    let wave = wave(target);
    for (form, count) in FORMS {
        for op in 0..count as u32 {
            for _ in 0..60 {
                let Some((inst, _)) = instruction(target, form, op, &mut numbers) else { continue };
                if !goes_elsewhere(inst.op) && engine.handles(&wave, &inst) {
                    table.insert((inst.op, form), op);
                    break;
                }
            }
        }
    }
    table
}

/// What has no place in a program of one instruction.
fn goes_elsewhere(op: Op) -> bool {
    matches!(op, Op::SSetpcB64 | Op::SSwappcB64 | Op::SGetpcB64 | Op::SCallB64)
}

/// What has no result that could be wrong.
fn does_nothing(op: Op) -> bool {
    matches!(
        op,
        Op::VNop
            | Op::VPipeflush
            | Op::VClrexcp
            | Op::DsNop
            | Op::BufferWbinvl1
            | Op::BufferWbinvl1Vol
            | Op::BufferWbl2
            | Op::BufferInvl2
    )
}

/// A word of a kind: whatever there is, floating point of a middling size, positive such, small
/// numbers.
fn value(kind: u64, numbers: &mut Numbers) -> u32 {
    const ODD: [u32; 16] = [
        0,
        1,
        0x8000_0000,
        0x7fff_ffff,
        u32::MAX,
        0x3f80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x7f80_0001,
        0x807f_ffff,
        0x0080_0000,
        0x4f00_0000,
        0x3c00_7c00,
        0x8000_7e00,
        0xfc01_0001,
    ];
    match kind {
        0 => match numbers.below(12) {
            0 => ODD[numbers.below(ODD.len() as u64) as usize],
            1..=4 => numbers.below(100) as u32,
            5..=8 => numbers.word() & 0x87ff_87ff | 0x3800_3800,
            _ => numbers.word(),
        },
        1 => numbers.word() & 0x87ff_87ff | 0x3800_3800,
        2 => numbers.word() & 0x07ff_07ff | 0x3800_3800,
        _ => numbers.below(40) as u32,
    }
}

/// Lanes' addresses in one of the ways that programs have.
fn places(numbers: &mut Numbers, end: u64) -> [u64; 64] {
    let start = numbers.below(end - 64 * 16 - 64);
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

fn start(target: Target, form: Form, numbers: &mut Numbers, pc: u64) -> Wave {
    let mut wave = wave(target);
    wave.pc = pc;
    let same = numbers.below(4);
    for row in &mut wave.rows {
        // One kind for all registers as often as one each.
        let kind = if numbers.below(2) == 0 && form != Form::Matrix { numbers.below(4) } else { same };
        let kind = if form == Form::Matrix { kind.max(1) } else { kind };
        row.0.fill_with(|| value(kind, numbers));
    }
    let kind = numbers.below(4);
    for word in wave.scalar.iter_mut().take(REGISTERS as usize + 4) {
        *word = value(kind, numbers);
    }
    wave.set_pair(Operand::VCC, if numbers.below(4) == 0 { 0 } else { numbers.next() });
    let exec = match numbers.below(8) {
        0..=3 => u64::MAX,
        4 => u64::MAX >> numbers.below(64),
        5 => 1 << numbers.below(64),
        6 => numbers.next() & numbers.next() & numbers.next(),
        _ => numbers.next(),
    };
    wave.set_pair(Operand::EXEC, exec);
    wave.scc = numbers.below(2) != 0;
    if numbers.below(6) == 0 {
        wave.mode = Mode(Mode::DEFAULT.0 & !0x3ff | numbers.below(0x400) as u32);
    } else if numbers.below(5) == 0 {
        // What changes only whether singles may be denormal, as some libraries' kernels want it.
        wave.mode = Mode(Mode::DEFAULT.0 & !0x30 | (numbers.below(4) as u32) << 4);
    }
    if matches!(form, Form::Ds | Form::Flat | Form::Global | Form::Buffer | Form::Scratch | Form::Scalar) {
        addresses(&mut wave, form, numbers);
    }
    wave
}

/// Addresses: in v[0:1]; v2, an offset from s[2:3]; v3, in LDS; v12 and v13, index and offset of
/// the buffer s[8:11].
fn addresses(wave: &mut Wave, form: Form, numbers: &mut Numbers) {
    let bytes = 4096 * PAGES as u64;
    let (global, offset) = (places(numbers, bytes), places(numbers, bytes));
    let lds = places(numbers, 2 * LDS as u64);
    let near = numbers.below(8) != 0;
    for lane in 0..64 {
        support::set_pair(wave, 0, lane, DATA + 64 + global[lane]);
        wave.rows[2].0[lane] = 64 + offset[lane] as u32;
        let at = if near { lds[lane] % (LDS as u64 - 64) } else { lds[lane] };
        wave.rows[3].0[lane] = if form == Form::Ds && numbers.0 % 2 == 0 { at & !7 } else { at } as u32;
        wave.rows[12].0[lane] = numbers.below(16) as u32;
        wave.rows[13].0[lane] = numbers.below(16) as u32 * 4;
    }
    wave.set_pair(2, DATA);
    if form == Form::Scalar {
        wave.set_pair(8, DATA);
        wave.scalar[10] = if numbers.below(2) == 0 { numbers.below(600) as u32 } else { numbers.word() };
    }
    if form == Form::Scratch {
        wave.set_pair(Operand::FLAT_SCRATCH, DATA);
        let (same, together, aligned) = (numbers.below(48), numbers.below(2) == 0, numbers.below(3) != 0);
        for lane in 0..64 {
            let at = if together { same } else { numbers.below(48) };
            wave.rows[2].0[lane] = (if aligned { at & !3 } else { at }) as u32;
        }
        wave.scalar[2] = wave.rows[2].0[0];
    }
    if form == Form::Flat {
        in_apertures(wave, &lds, numbers);
    }
    if form == Form::Buffer {
        wave.scalar[1] = numbers.below(32) as u32 * 4;
        // Scratch as ROCR has it, or strided, plain, swizzled.
        let (stride, last) = match numbers.below(4) {
            0 => (1 << 31, 1 << 23 | 3 << 21),
            1 => (16 << 16, 0),
            2 => (1 << 31 | 16 << 16, 0),
            _ => (0, 0),
        };
        wave.set_pair(8, DATA);
        wave.scalar[9] |= stride;
        wave.scalar[10] = 4096 * PAGES as u32;
        wave.scalar[11] = last;
        if numbers.below(2) == 0 {
            let offset = wave.rows[13].0[0];
            (wave.rows[12].0, wave.rows[13].0) = ([offset; 64], [offset; 64]);
        }
    }
}

/// Puts the addresses of some lanes, or of all, into LDS or scratch, which begins where the data
/// do.
fn in_apertures(wave: &mut Wave, lds: &[u64; 64], numbers: &mut Numbers) {
    wave.set_pair(Operand::FLAT_SCRATCH, DATA);
    let kind = numbers.below(8);
    let same = numbers.below(2) == 0;
    let first = numbers.below(48);
    for (lane, place) in lds.iter().enumerate() {
        let (high, low) = match (kind, numbers.below(3)) {
            (0, _) | (2, 0) => (support::APERTURES.shared, place % (LDS as u64 - 160)),
            (1, _) | (2, 1) => (support::APERTURES.private, if same { first & !3 } else { numbers.below(48) & !3 }),
            _ => continue,
        };
        support::set_pair(wave, 0, lane, u64::from(high) << 32 | low);
    }
}

/// Two memories with the same content.
struct Worlds {
    reference: Flat,
    fast: Flat,
    bytes: Vec<u8>,
    since: u32,
}

impl Worlds {
    fn new(numbers: &mut Numbers) -> Worlds {
        let bytes = numbers.bytes(4096 * PAGES);
        let world = || {
            let mut world = Flat::new(BASE, 256 + PAGES);
            world.scatter();
            world.write(DATA, &bytes);
            world
        };
        Worlds { reference: world(), fast: world(), bytes, since: 0 }
    }

    /// Whether they are the same; looked at now and then.
    fn same(&mut self) -> bool {
        self.since += 1;
        self.since % 16 != 0 || self.reference.read(DATA, self.bytes.len()) == self.fast.read(DATA, self.bytes.len())
    }
}

/// Runs a handler until it has computed so many cases. `Err`: a difference.
fn run(
    engine: &mut Engine,
    target: Target,
    (op, form, number): (Op, Form, u32),
    wanted: u64,
    numbers: &mut Numbers,
    worlds: &mut Worlds,
) -> Result<u64, String> {
    let (mut counted, mut turns) = (0, 0);
    let memory = matches!(form, Form::Flat | Form::Global | Form::Buffer | Form::Scratch);
    let mut code = None;
    let limit = 256 + wanted * 16;
    while counted < wanted && turns < limit {
        turns += 1;
        if turns % 4 == 1 || code.is_none() {
            code = instruction(target, form, number, numbers).filter(|(inst, _)| inst.op == op);
            let Some((_, words)) = &code else { continue };
            let words = [words.as_slice(), &[0xbf81_0000]].concat();
            worlds.reference.write_words(BASE, &words);
            worlds.fast.write_words(BASE, &words);
            engine.invalidate();
        }
        let Some((inst, _)) = &code else { continue };
        let mut expected = start(target, form, numbers, BASE);
        let mut wave = expected.clone();
        let lanes = u64::from(expected.exec().count_ones());
        let (mut one, mut two) = (group(LDS), group(LDS));
        one.lds.copy_from_slice(&worlds.bytes[..LDS]);
        two.lds.copy_from_slice(&worlds.bytes[..LDS]);
        let before = engine.slow().get(&op).copied().unwrap_or(0);
        let exits = [
            reference::run(&mut expected, &mut one, &mut worlds.reference, 10),
            engine.run(&mut wave, &mut two, &mut worlds.fast, 10),
        ];
        let same = exits[0] == exits[1] && expected == wave && one.lds == two.lds;
        if !same || memory && !worlds.same() {
            return Err(format!("{op:?} {form:?}: {exits:?}\n{inst:?}{}", difference(&expected, &wave)));
        }
        let scalar = matches!(form, Form::Sop1 | Form::Sop2 | Form::Sopc | Form::Sopk | Form::Scalar);
        if exits[0] == Exit::End && engine.slow().get(&op).copied().unwrap_or(0) == before {
            // A scalar operation is one case; a matrix operation asks no EXEC.
            counted += if scalar {
                1
            } else if form == Form::Matrix {
                64
            } else {
                lanes
            };
        }
    }
    Ok(counted)
}

/// Where two waves differ.
fn difference(one: &Wave, two: &Wave) -> String {
    let mut text = format!("\nmode {:#x} exec {:#x} scc {} {}", one.mode.0, one.exec(), one.scc, two.scc);
    for (index, (a, b)) in one.scalar.iter().zip(&two.scalar).enumerate().filter(|(_, (a, b))| a != b) {
        text += &format!("\n  s{index}: {a:#010x} {b:#010x}");
    }
    for (index, (a, b)) in one.rows.iter().zip(&two.rows).enumerate() {
        for (lane, (a, b)) in a.0.iter().zip(&b.0).enumerate().filter(|(_, (a, b))| a != b).take(3) {
            text += &format!("\n  v{index} lane {lane}: {a:#010x} {b:#010x}");
        }
    }
    text
}

fn check(target: Target, mut engine: Engine, seed: u64, least: usize) {
    let table = table(target, &mut engine);
    let mut numbers = Numbers(seed);
    let mut worlds = Worlds::new(&mut numbers);
    let (mut wrong, mut few) = (Vec::new(), Vec::new());
    for (&(op, form), &number) in &table {
        let scalar = matches!(form, Form::Sop1 | Form::Sop2 | Form::Sopc | Form::Sopk | Form::Scalar);
        let wanted = if scalar && cases() < 1000 { 32 } else { cases() };
        match run(&mut engine, target, (op, form, number), wanted, &mut numbers, &mut worlds) {
            Ok(counted) if counted < wanted => few.push(format!("{op:?} {form:?}: {counted} of {wanted}")),
            Ok(_) => {}
            Err(text) => wrong.push(text),
        }
        if wrong.len() > 4 {
            break;
        }
    }
    println!("{target}: {} handlers", table.len());
    assert!(wrong.is_empty(), "{target}, reference and fast:\n{}", wrong.join("\n\n"));
    assert!(few.is_empty(), "{target}: too few cases\n{}", few.join("\n"));
    assert!(table.len() >= least, "{target}: only {} handlers were found", table.len());
}

#[test]
fn every_handler_of_gfx900_is_the_reference_s() {
    check(Target::Gfx900, Engine::new(Target::Gfx900), 11, 900);
}

#[test]
fn every_handler_of_gfx90a_is_the_reference_s() {
    check(Target::Gfx90a, Engine::new(Target::Gfx90a), 12, 900);
}

#[test]
fn every_portable_handler_is_the_reference_s() {
    check(Target::Gfx90a, Engine::portable(Target::Gfx90a), 13, 850);
}

/// Each handler is broken, and that is noticed.
#[test]
fn every_broken_handler_is_noticed() {
    for target in [Target::Gfx900, Target::Gfx90a] {
        let mut numbers = Numbers(14);
        let table = table(target, &mut Engine::new(target));
        let mut unnoticed = Vec::new();
        for (&(op, form), &number) in table.iter().filter(|((op, _), _)| !does_nothing(*op)) {
            let mut worlds = Worlds::new(&mut numbers);
            let mut engine = Engine::new(target);
            engine.sabotage(Switches::NONE.with_value(Switch::Handler, op as u64));
            if run(&mut engine, target, (op, form, number), 4096, &mut numbers, &mut worlds).is_ok() {
                unnoticed.push((op, form));
            }
        }
        assert!(unnoticed.is_empty(), "{target}: broken, and nothing was noticed: {unnoticed:?}");
    }
}
