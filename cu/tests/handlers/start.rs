// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Waves with random registers, and addresses where the instructions of `words` have them.

use super::support::{self, Numbers};
use super::{DATA, LDS, PAGES};
use vkfd_cu::{Mode, Wave};
use vkfd_isa::{Format, Inst, Operand, Target};

/// The kind of words whose sums and products are mostly zeros of both signs.
const SIGNED: u64 = 4;
const ZEROS: [u32; 8] = [0, 1, 1 << 31, 1 << 31 | 1, 0x8000_8000, 0xbc00_bc00, 0xbc00_bc00, 0xbc00_3c00];

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
        SIGNED => ZEROS[numbers.below(ZEROS.len() as u64) as usize],
        _ => numbers.below(40) as u32,
    }
}

/// Eight or sixteen lanes each side by side, as the rows of a matrix's tile.
fn runs(numbers: &mut Numbers, end: u64) -> [u64; 64] {
    let (lanes, bytes) = (8 << numbers.below(2), 4 << numbers.below(3));
    let starts: [u64; 8] = std::array::from_fn(|_| numbers.below(end - 16 * 16));
    std::array::from_fn(|lane| starts[lane / lanes] + (lane % lanes) as u64 * bytes)
}

/// Lanes' addresses in one of the ways that programs have.
fn places(numbers: &mut Numbers, end: u64) -> [u64; 64] {
    let start = numbers.below(end - 64 * 16 - 64);
    let aligned = start & !15;
    match numbers.below(10) {
        0 => std::array::from_fn(|lane| aligned + 4 * lane as u64),
        1 => std::array::from_fn(|lane| aligned + 8 * lane as u64),
        2 => std::array::from_fn(|lane| aligned + 16 * lane as u64),
        3 => std::array::from_fn(|lane| start + 4 * lane as u64),
        4 => [aligned; 64],
        5 => std::array::from_fn(|lane| aligned + 4 * (lane as u64 % 16)),
        6 => std::array::from_fn(|_| numbers.below(end - 64) & !7),
        7 | 8 => runs(numbers, end - 64),
        _ => std::array::from_fn(|_| numbers.below(end - 64)),
    }
}

/// A wave that is about to execute an instruction.
pub fn start(target: Target, lanes: u8, inst: &Inst, numbers: &mut Numbers, pc: u64) -> Wave {
    let mut wave = support::wave(target);
    (wave.pc, wave.lanes) = (pc, lanes);
    let matrix = super::is_matrix(inst.op);
    let same = numbers.below(4);
    let signed = matrix && numbers.below(4) == 0;
    for row in &mut wave.rows {
        // One kind for all registers as often as one each.
        let kind = if numbers.below(2) == 0 && !matrix { numbers.below(4) } else { same };
        let kind = if signed {
            SIGNED
        } else if matrix {
            kind.max(1)
        } else {
            kind
        };
        row.0.fill_with(|| value(kind, numbers));
    }
    let kind = numbers.below(4);
    for word in wave.scalar.iter_mut().take(16) {
        *word = value(kind, numbers);
    }
    wave.set_pair(Operand::VCC, if numbers.below(4) == 0 { 0 } else { numbers.next() });
    let exec = match numbers.below(8) {
        0..=3 => u64::MAX,
        4 => u64::MAX >> numbers.below(64),
        5 => 1 << numbers.below(lanes.into()),
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
    addresses(&mut wave, inst.format, numbers);
    wave
}

/// Addresses: in v[0:1]; v2, an offset from s[2:3]; v3, in LDS; v12 and v13, index and offset of
/// the buffer s[8:11].
fn addresses(wave: &mut Wave, format: Format, numbers: &mut Numbers) {
    if !matches!(format, Format::Ds | Format::Flat | Format::Global | Format::Mubuf | Format::Scratch | Format::Smem) {
        return;
    }
    let bytes = 4096 * PAGES as u64;
    let (global, offset) = (places(numbers, bytes), places(numbers, bytes));
    let lds = places(numbers, 2 * LDS as u64);
    let near = numbers.below(8) != 0;
    for lane in 0..64 {
        support::set_pair(wave, 0, lane, DATA + 64 + global[lane]);
        wave.rows[2].0[lane] = 64 + offset[lane] as u32;
        let at = if near { lds[lane] % (LDS as u64 - 64) } else { lds[lane] };
        wave.rows[3].0[lane] = if format == Format::Ds && numbers.0 % 2 == 0 { at & !7 } else { at } as u32;
        wave.rows[12].0[lane] = numbers.below(16) as u32;
        wave.rows[13].0[lane] = numbers.below(16) as u32 * 4;
    }
    wave.set_pair(2, DATA);
    match format {
        Format::Smem => {
            wave.set_pair(8, DATA);
            wave.scalar[1] = numbers.below(64) as u32;
            wave.scalar[10] = if numbers.below(2) == 0 { numbers.below(600) as u32 } else { numbers.word() };
        }
        Format::Scratch => scratch(wave, numbers),
        Format::Flat => in_apertures(wave, &lds, numbers),
        Format::Mubuf => buffer(wave, numbers),
        _ => {}
    }
}

/// The wave's scratch, where each generation has it.
fn set_scratch(wave: &mut Wave) {
    if wave.target.is_gfx9() {
        wave.set_pair(Operand::FLAT_SCRATCH, DATA);
    }
    wave.flat_scratch = DATA;
}

/// Private addresses in v2, or one in s2: all are small.
fn scratch(wave: &mut Wave, numbers: &mut Numbers) {
    set_scratch(wave);
    // Twice that, an offset and four words are below 128: the pages of data end there for waves of
    // 64.
    let end = 40;
    let (same, together, aligned) = (numbers.below(end), numbers.below(2) == 0, numbers.below(3) != 0);
    for lane in 0..64 {
        let at = if together { same } else { numbers.below(end) };
        wave.rows[2].0[lane] = (if aligned { at & !3 } else { at }) as u32;
    }
    wave.scalar[2] = wave.rows[2].0[0];
}

/// Scratch as ROCR has it, or strided, plain, swizzled.
fn buffer(wave: &mut Wave, numbers: &mut Numbers) {
    wave.scalar[1] = numbers.below(32) as u32 * 4;
    let swizzled = if wave.target == Target::Gfx1100 { 1 << 30 } else { 1 << 31 };
    let together = if wave.lanes == 32 { 2 << 21 } else { 3 << 21 };
    let (stride, mut last) = match numbers.below(4) {
        0 => (swizzled, 1 << 23 | together),
        1 => (16 << 16, 0),
        2 => (swizzled | 16 << 16, 0),
        _ => (0, 0),
    };
    if wave.target.is_rdna() {
        // How it is checked.
        last |= (numbers.below(4) as u32) << 28;
    }
    wave.set_pair(8, DATA);
    wave.scalar[9] |= stride;
    wave.scalar[10] = 4096 * PAGES as u32;
    if numbers.below(3) == 0 {
        // Some lanes are out of range, or all, or some words of one.
        wave.scalar[10] = numbers.below(256) as u32;
    }
    wave.scalar[11] = last;
    if numbers.below(2) == 0 {
        let offset = wave.rows[13].0[0];
        (wave.rows[12].0, wave.rows[13].0) = ([offset; 64], [offset; 64]);
    }
    if numbers.below(3) == 0 {
        // As rocBLAS's kernels have lanes beyond an edge.
        for lane in 0..64 {
            if numbers.below(3) == 0 {
                wave.rows[13].0[lane] = u32::MAX;
            }
        }
    }
    if numbers.below(4) == 0 {
        // Side by side.
        let bytes = 4 << numbers.below(3);
        for lane in 0..64 {
            wave.rows[12].0[lane] = lane as u32 * bytes;
            wave.rows[13].0[lane] = lane as u32 * bytes;
        }
    } else if numbers.below(3) == 0 {
        let at = runs(numbers, 4096);
        for (lane, at) in at.into_iter().enumerate() {
            wave.rows[13].0[lane] = at as u32 & !3;
        }
    }
}

/// Puts the addresses of some lanes, or of all, into LDS or scratch, which begins where the data
/// do.
fn in_apertures(wave: &mut Wave, lds: &[u64; 64], numbers: &mut Numbers) {
    set_scratch(wave);
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
