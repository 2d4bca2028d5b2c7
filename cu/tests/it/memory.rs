// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory instructions of the reference engine, against byte by byte models of their own.
//!
//! llvm-mc has made the words beside each text.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

use crate::support;

use support::{code, group, set_pair, wave, Numbers, APERTURES, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::reference::memory::execute;
use vkfd_cu::{Access, Exit, Flat, Lds, Miss, Refusal, Rights, Span, Stop, World};
use vkfd_isa::{Inst, Operand, Target};

const PAGE: u64 = 4096;

fn world(numbers: &mut Numbers) -> Flat {
    let mut world = Flat::new(BASE, 8);
    world.scatter();
    world.write(BASE, &numbers.bytes(8 * 4096));
    world
}

/// A load, its width, and what becomes of the bytes, as a function of them and the old register.
type Load = (Inst, usize, fn(u32, u32) -> u32);

fn loads() -> Vec<Load> {
    vec![
        (
            code(Target::Gfx900, "global_load_ubyte v8, v[2:3], off offset:5", &[0xdc408005, 0x087f0002]),
            1,
            |value, _| value & 0xff,
        ),
        (
            code(Target::Gfx900, "global_load_sbyte v8, v[2:3], off offset:5", &[0xdc448005, 0x087f0002]),
            1,
            |value, _| value as u8 as i8 as u32,
        ),
        (
            code(Target::Gfx900, "global_load_ushort v8, v[2:3], off offset:5", &[0xdc488005, 0x087f0002]),
            2,
            |value, _| value & 0xffff,
        ),
        (
            code(Target::Gfx900, "global_load_sshort v8, v[2:3], off offset:5", &[0xdc4c8005, 0x087f0002]),
            2,
            |value, _| value as u16 as i16 as u32,
        ),
        (
            code(Target::Gfx900, "global_load_dword v8, v[2:3], off offset:5", &[0xdc508005, 0x087f0002]),
            4,
            |value, _| value,
        ),
        (
            code(Target::Gfx900, "global_load_dwordx2 v[8:9], v[2:3], off offset:5", &[0xdc548005, 0x087f0002]),
            8,
            |value, _| value,
        ),
        (
            code(Target::Gfx900, "global_load_dwordx3 v[8:10], v[2:3], off offset:5", &[0xdc588005, 0x087f0002]),
            12,
            |value, _| value,
        ),
        (
            code(Target::Gfx90a, "global_load_dwordx4 v[8:11], v[2:3], off offset:5", &[0xdc5c8005, 0x087f0002]),
            16,
            |value, _| value,
        ),
        (
            code(Target::Gfx900, "global_load_ubyte_d16 v8, v[2:3], off offset:5", &[0xdc808005, 0x087f0002]),
            1,
            |value, old| old >> 16 << 16 | value & 0xff,
        ),
        (
            code(Target::Gfx900, "global_load_sbyte_d16_hi v8, v[2:3], off offset:5", &[0xdc8c8005, 0x087f0002]),
            1,
            |value, old| old & 0xffff | (value as u8 as i8 as u32) << 16,
        ),
        (
            code(Target::Gfx900, "global_load_short_d16 v8, v[2:3], off offset:5", &[0xdc908005, 0x087f0002]),
            2,
            |value, old| old >> 16 << 16 | value & 0xffff,
        ),
        (
            code(Target::Gfx900, "flat_load_short_d16_hi v8, v[2:3] offset:5", &[0xdc940005, 0x08000002]),
            2,
            |value, old| old & 0xffff | value << 16,
        ),
        (
            code(Target::Gfx900, "flat_load_dwordx4 v[8:11], v[2:3] offset:5", &[0xdc5c0005, 0x08000002]),
            16,
            |value, _| value,
        ),
    ]
}

#[test]
fn loads_at_any_address() {
    let mut numbers = Numbers(1);
    let mut world = world(&mut numbers);
    for (inst, bytes, extend) in loads() {
        let mut wave = wave(inst_target(&inst));
        let mut exec = 0;
        for lane in 0..64 {
            // A third near the end of a page.
            let near = numbers.below(3) == 0;
            let at = if near { PAGE - numbers.below(18) } else { numbers.below(PAGE) };
            let va = BASE + numbers.below(6) * PAGE + at;
            set_pair(&mut wave, 2, lane, va);
            exec |= (numbers.below(4).min(1)) << lane;
            for row in 8..12 {
                wave.rows[row].0[lane] = numbers.word();
            }
        }
        wave.set_pair(Operand::EXEC, exec);
        let before = wave.clone();
        execute(&inst, &mut wave, &mut group(0), &mut world).unwrap();
        let mut expected = before.clone();
        for lane in (0..64).filter(|lane| exec >> lane & 1 != 0) {
            let va = u64::from(before.rows[2].0[lane]) | u64::from(before.rows[3].0[lane]) << 32;
            let mut data = world.read(va + 5, bytes);
            data.resize(bytes.next_multiple_of(4), 0);
            for (index, word) in data.chunks(4).enumerate() {
                let slot = &mut expected.rows[8 + index].0[lane];
                *slot = extend(u32::from_le_bytes(word.try_into().unwrap()), *slot);
            }
        }
        assert!(wave == expected, "{:?}", inst.op);
    }
}

fn inst_target(inst: &Inst) -> Target {
    // What the list assembles for gfx90a needs its registers' alignment only.
    if inst.op == vkfd_isa::Op::GlobalLoadDwordx4 {
        Target::Gfx90a
    } else {
        Target::Gfx900
    }
}

#[test]
fn stores_at_any_address() {
    let mut numbers = Numbers(2);
    let list = [
        (code(Target::Gfx900, "global_store_byte v2, v4, s[6:7] offset:-7", &[0xdc609ff9, 0x00060402]), 1, 0),
        (code(Target::Gfx900, "global_store_byte_d16_hi v2, v4, s[6:7] offset:-7", &[0xdc649ff9, 0x00060402]), 1, 16),
        (code(Target::Gfx900, "global_store_short v2, v4, s[6:7] offset:-7", &[0xdc689ff9, 0x00060402]), 2, 0),
        (code(Target::Gfx900, "global_store_short_d16_hi v2, v4, s[6:7] offset:-7", &[0xdc6c9ff9, 0x00060402]), 2, 16),
        (code(Target::Gfx900, "global_store_dword v2, v4, s[6:7] offset:-7", &[0xdc709ff9, 0x00060402]), 4, 0),
        (code(Target::Gfx900, "global_store_dwordx2 v2, v[4:5], s[6:7] offset:-7", &[0xdc749ff9, 0x00060402]), 8, 0),
        (code(Target::Gfx900, "global_store_dwordx3 v2, v[4:6], s[6:7] offset:-7", &[0xdc789ff9, 0x00060402]), 12, 0),
        (code(Target::Gfx900, "global_store_dwordx4 v2, v[4:7], s[6:7] offset:-7", &[0xdc7c9ff9, 0x00060402]), 16, 0),
    ];
    for (inst, bytes, shift) in list {
        let mut world = world(&mut numbers);
        let mut wave = wave(Target::Gfx900);
        wave.set_pair(6, BASE);
        let exec = numbers.next() | 1;
        wave.set_pair(Operand::EXEC, exec);
        let mut model = world.read(BASE, 8 * 4096);
        for lane in 0..64 {
            let offset = 7 + numbers.below(7 * PAGE);
            wave.rows[2].0[lane] = offset as u32;
            let mut data = Vec::new();
            for row in 4..8 {
                let value = numbers.word();
                wave.rows[row].0[lane] = value;
                data.extend((value >> shift).to_le_bytes());
            }
            if exec >> lane & 1 != 0 {
                let at = offset as usize - 7;
                model[at..at + bytes].copy_from_slice(&data[..bytes]);
            }
        }
        let before = wave.clone();
        execute(&inst, &mut wave, &mut group(0), &mut world).unwrap();
        assert!(wave == before && world.read(BASE, model.len()) == model, "{:?}", inst.op);
    }
}

#[test]
fn a_miss_changes_nothing_and_the_instruction_runs_again() {
    let mut numbers = Numbers(3);
    let load = code(Target::Gfx900, "global_load_dwordx2 v[2:3], v[2:3], off", &[0xdc548000, 0x027f0002]);
    let store = code(Target::Gfx900, "global_store_dwordx2 v[2:3], v[4:5], off", &[0xdc748000, 0x007f0402]);
    let add = code(Target::Gfx900, "global_atomic_add v4, v[2:3], v4, off glc", &[0xdd098000, 0x047f0402]);
    for (inst, access) in [(load, Access::Read), (store, Access::Write), (add, Access::Write)] {
        let mut world = world(&mut numbers);
        let mut wave = wave(Target::Gfx900);
        for lane in 0..64 {
            // The last lane is the only one that meets the page that is away.
            set_pair(&mut wave, 2, lane, BASE + 64 * lane as u64 + if lane == 63 { PAGE } else { 0 });
            set_pair(&mut wave, 4, lane, numbers.next());
        }
        let miss = u64::from(wave.rows[2].0[63]) | u64::from(wave.rows[3].0[63]) << 32;
        world.protect(miss, Rights::Absent);
        let (before, memory) = (wave.clone(), world.read(BASE, 8 * 4096));
        let exit = execute(&inst, &mut wave, &mut group(0), &mut world).unwrap_err();
        let expected = Miss { va: miss, access, lost: false, reason: 0 };
        assert_eq!(exit, Exit::Miss(expected));
        assert!(wave == before && world.read(BASE, memory.len()) == memory);
        world.settle(&expected).unwrap();
        execute(&inst, &mut wave, &mut group(0), &mut world).unwrap();
        assert!(wave != before || world.read(BASE, memory.len()) != memory);
    }
}

#[test]
fn a_read_only_page_takes_no_writes() {
    let mut world = world(&mut Numbers(4));
    world.protect(BASE, Rights::ReadOnly);
    let mut wave = wave(Target::Gfx900);
    wave.set_pair(Operand::EXEC, 1);
    set_pair(&mut wave, 2, 0, BASE);
    let load = code(Target::Gfx900, "global_load_dword v4, v[2:3], off", &[0xdc508000, 0x047f0002]);
    execute(&load, &mut wave, &mut group(0), &mut world).unwrap();
    for inst in [
        code(Target::Gfx900, "global_store_dword v[2:3], v4, off", &[0xdc708000, 0x007f0402]),
        code(Target::Gfx900, "global_atomic_or v[2:3], v5, off", &[0xdd248000, 0x007f0502]),
    ] {
        let exit = execute(&inst, &mut wave, &mut group(0), &mut world).unwrap_err();
        assert!(matches!(exit, Exit::Miss(Miss { va: BASE, access: Access::Write, lost: false, .. })));
    }
}

/// An atomic operation in memory and in LDS, and the new value of the old one and the data.
type Atomic = (Inst, Inst, fn(u32, u32) -> u32);

fn atomics32() -> Vec<Atomic> {
    vec![
        (
            code(Target::Gfx900, "global_atomic_swap v8, v[2:3], v4, off glc", &[0xdd018000, 0x087f0402]),
            code(Target::Gfx900, "ds_wrxchg_rtn_b32 v8, v1, v4", &[0xd85a0000, 0x08000401]),
            |_, a| a,
        ),
        (
            code(Target::Gfx900, "global_atomic_add v8, v[2:3], v4, off glc", &[0xdd098000, 0x087f0402]),
            code(Target::Gfx900, "ds_add_rtn_u32 v8, v1, v4", &[0xd8400000, 0x08000401]),
            |old, a| old.wrapping_add(a),
        ),
        (
            code(Target::Gfx900, "global_atomic_sub v8, v[2:3], v4, off glc", &[0xdd0d8000, 0x087f0402]),
            code(Target::Gfx900, "ds_sub_rtn_u32 v8, v1, v4", &[0xd8420000, 0x08000401]),
            |old, a| old.wrapping_sub(a),
        ),
        (
            code(Target::Gfx900, "global_atomic_smin v8, v[2:3], v4, off glc", &[0xdd118000, 0x087f0402]),
            code(Target::Gfx900, "ds_min_rtn_i32 v8, v1, v4", &[0xd84a0000, 0x08000401]),
            |old, a| {
                if (a as i32) < old as i32 {
                    a
                } else {
                    old
                }
            },
        ),
        (
            code(Target::Gfx900, "global_atomic_umin v8, v[2:3], v4, off glc", &[0xdd158000, 0x087f0402]),
            code(Target::Gfx900, "ds_min_rtn_u32 v8, v1, v4", &[0xd84e0000, 0x08000401]),
            |old, a| {
                if a < old {
                    a
                } else {
                    old
                }
            },
        ),
        (
            code(Target::Gfx900, "global_atomic_smax v8, v[2:3], v4, off glc", &[0xdd198000, 0x087f0402]),
            code(Target::Gfx900, "ds_max_rtn_i32 v8, v1, v4", &[0xd84c0000, 0x08000401]),
            |old, a| {
                if (a as i32) < old as i32 {
                    old
                } else {
                    a
                }
            },
        ),
        (
            code(Target::Gfx900, "global_atomic_umax v8, v[2:3], v4, off glc", &[0xdd1d8000, 0x087f0402]),
            code(Target::Gfx900, "ds_max_rtn_u32 v8, v1, v4", &[0xd8500000, 0x08000401]),
            |old, a| {
                if a < old {
                    old
                } else {
                    a
                }
            },
        ),
        (
            code(Target::Gfx900, "global_atomic_and v8, v[2:3], v4, off glc", &[0xdd218000, 0x087f0402]),
            code(Target::Gfx900, "ds_and_rtn_b32 v8, v1, v4", &[0xd8520000, 0x08000401]),
            |old, a| old & a,
        ),
        (
            code(Target::Gfx900, "global_atomic_or v8, v[2:3], v4, off glc", &[0xdd258000, 0x087f0402]),
            code(Target::Gfx900, "ds_or_rtn_b32 v8, v1, v4", &[0xd8540000, 0x08000401]),
            |old, a| old | a,
        ),
        (
            code(Target::Gfx900, "global_atomic_xor v8, v[2:3], v4, off glc", &[0xdd298000, 0x087f0402]),
            code(Target::Gfx900, "ds_xor_rtn_b32 v8, v1, v4", &[0xd8560000, 0x08000401]),
            |old, a| old ^ a,
        ),
        (
            code(Target::Gfx900, "global_atomic_inc v8, v[2:3], v4, off glc", &[0xdd2d8000, 0x087f0402]),
            code(Target::Gfx900, "ds_inc_rtn_u32 v8, v1, v4", &[0xd8460000, 0x08000401]),
            |old, a| {
                if old >= a {
                    0
                } else {
                    old + 1
                }
            },
        ),
        (
            code(Target::Gfx900, "global_atomic_dec v8, v[2:3], v4, off glc", &[0xdd318000, 0x087f0402]),
            code(Target::Gfx900, "ds_dec_rtn_u32 v8, v1, v4", &[0xd8480000, 0x08000401]),
            |old, a| {
                if old == 0 || old > a {
                    a
                } else {
                    old - 1
                }
            },
        ),
    ]
}

#[test]
fn atomics_of_lanes_at_one_word_come_one_after_another() {
    let mut numbers = Numbers(5);
    for (global, local, combine) in atomics32() {
        let mut world = world(&mut numbers);
        let mut group = group(64);
        let (mut one, mut two) = (wave(Target::Gfx900), wave(Target::Gfx900));
        let exec = numbers.next();
        let start = numbers.word();
        world.write(BASE + 8, &start.to_le_bytes());
        group.lds[8..12].copy_from_slice(&start.to_le_bytes());
        let mut value = start;
        let mut expected = [0; 64];
        for (lane, slot) in expected.iter_mut().enumerate() {
            set_pair(&mut one, 2, lane, BASE + 8);
            two.rows[1].0[lane] = 8;
            // Small ones, too, so that inc and dec wrap.
            let data = if numbers.below(2) == 0 { numbers.word() } else { numbers.below(4) as u32 };
            one.rows[4].0[lane] = data;
            two.rows[4].0[lane] = data;
            if exec >> lane & 1 != 0 {
                *slot = value;
                value = combine(value, data);
            }
        }
        for wave in [&mut one, &mut two] {
            wave.set_pair(Operand::EXEC, exec);
        }
        execute(&global, &mut one, &mut group, &mut world).unwrap();
        execute(&local, &mut two, &mut group, &mut world).unwrap();
        assert_eq!((one.rows[8].0, one.done), (expected, 0), "{:?}", global.op);
        assert_eq!(two.rows[8].0, expected, "{:?}", local.op);
        assert_eq!(world.read_words(BASE + 8, 1), [value], "{:?}", global.op);
        assert_eq!(group.lds[8..12], value.to_le_bytes(), "{:?}", local.op);
    }
}

#[test]
fn compare_and_swap_of_both_widths() {
    let mut world = world(&mut Numbers(6));
    let mut wave = wave(Target::Gfx900);
    wave.set_pair(Operand::EXEC, 3);
    for lane in 0..2 {
        set_pair(&mut wave, 2, lane, BASE + 16);
        // FLAT: the new value, then what is expected.
        set_pair(&mut wave, 4, lane, 0x2222_2222_1111_1111);
        set_pair(&mut wave, 6, lane, [0x10, 0x2222_2222_1111_1111][lane]);
    }
    world.write(BASE + 16, &0x10u64.to_le_bytes());
    let x2 =
        code(Target::Gfx900, "global_atomic_cmpswap_x2 v[8:9], v[2:3], v[4:7], off glc", &[0xdd858000, 0x087f0402]);
    execute(&x2, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!(world.read(BASE + 16, 8), 0x2222_2222_1111_1111u64.to_le_bytes());
    assert_eq!([wave.rows[8].0[0], wave.rows[8].0[1], wave.rows[9].0[1]], [0x10, 0x1111_1111, 0x2222_2222]);
    // DS of gfx9: what is expected, then the new value.
    let mut group = group(16);
    group.lds[4..8].copy_from_slice(&7u32.to_le_bytes());
    for lane in 0..2 {
        (wave.rows[1].0[lane], wave.rows[4].0[lane], wave.rows[5].0[lane]) = (4, 7, 9);
    }
    let local = code(Target::Gfx900, "ds_cmpst_rtn_b32 v8, v1, v4, v5", &[0xd8600000, 0x08050401]);
    execute(&local, &mut wave, &mut group, &mut world).unwrap();
    assert_eq!((group.lds[4], wave.rows[8].0[0], wave.rows[8].0[1]), (9, 7, 9));
}

#[test]
fn floating_point_atomics() {
    let mut world = world(&mut Numbers(7));
    let mut wave = wave(Target::Gfx90a);
    wave.set_pair(Operand::EXEC, 1);
    set_pair(&mut wave, 2, 0, BASE);
    let mut run = |inst: Inst, old: u64, data: u64| {
        world.write(BASE, &old.to_le_bytes());
        set_pair(&mut wave, 4, 0, data);
        execute(&inst, &mut wave, &mut group(0), &mut world).unwrap();
        u64::from_le_bytes(world.read(BASE, 8).try_into().unwrap())
    };
    let add32 = code(Target::Gfx90a, "global_atomic_add_f32 v[2:3], v4, off", &[0xdd348000, 0x007f0402]);
    assert_eq!(run(add32, 0x3f80_0000, 0x4000_0000), 0x4040_0000);
    assert_eq!(run(add32, 0x0000_0001, 0x0000_0001), 0, "denormals are flushed");
    let add64 = code(Target::Gfx90a, "global_atomic_add_f64 v[2:3], v[4:5], off", &[0xdd3c8000, 0x007f0402]);
    assert_eq!(run(add64, 1.5f64.to_bits(), 0.25f64.to_bits()), 1.75f64.to_bits());
    assert_eq!(run(add64, 1, 1), 2, "denormals are kept");
    let min = code(Target::Gfx90a, "global_atomic_min_f64 v[2:3], v[4:5], off", &[0xdd408000, 0x007f0402]);
    assert_eq!(run(min, 1.5f64.to_bits(), (-2f64).to_bits()), (-2f64).to_bits());
    assert_eq!(run(min, 1.5f64.to_bits(), f64::NAN.to_bits()), 1.5f64.to_bits());
    let packed = code(Target::Gfx90a, "global_atomic_pk_add_f16 v[2:3], v4, off", &[0xdd388000, 0x007f0402]);
    assert_eq!(run(packed, 0x4000_3c00, 0x3c00_3c00), 0x4200_4000);
}

/// Memory of which one page translates, but is not there.
struct Leaky {
    flat: Flat,
    page: u64,
    hole: *mut u8,
}

impl World for Leaky {
    fn enter(&mut self) -> Result<(), Stop> {
        self.flat.enter()
    }
    fn leave(&mut self) {}
    fn wanted(&self) -> bool {
        false
    }
    fn translate(&mut self, va: u64, access: Access) -> Result<Span, Miss> {
        if va & !(PAGE - 1) == self.page {
            return Ok(Span { ptr: self.hole.wrapping_add((va % PAGE) as usize), len: (PAGE - va % PAGE) as usize });
        }
        self.flat.translate(va, access)
    }
    fn settle(&mut self, _: &Miss) -> Result<(), Stop> {
        self.page = u64::MAX;
        Ok(())
    }
    fn interrupt(&mut self, _: u32) {}
    fn clock(&self) -> u64 {
        0
    }

    fn cycles(&self) -> u64 {
        0
    }
}

#[test]
fn atomics_that_lose_a_page_half_way_are_not_done_twice() {
    // An address that is never mapped.
    let hole = std::ptr::without_provenance_mut(PAGE as usize);
    let mut world = Leaky { flat: Flat::new(BASE, 4), page: BASE + PAGE, hole };
    let mut wave = wave(Target::Gfx900);
    for lane in 0..64 {
        set_pair(&mut wave, 2, lane, BASE + if lane % 4 == 3 { PAGE } else { 0 });
        wave.rows[4].0[lane] = 1;
    }
    let inst = code(Target::Gfx900, "global_atomic_add v4, v[2:3], v4, off glc", &[0xdd098000, 0x047f0402]);
    let exit = execute(&inst, &mut wave, &mut group(0), &mut world).unwrap_err();
    let Exit::Miss(miss) = exit else { panic!("{exit:?}") };
    assert_eq!((miss.va, miss.lost, wave.done), (BASE + PAGE, true, 0b111));
    world.settle(&miss).unwrap();
    execute(&inst, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!(wave.done, 0);
    assert_eq!(world.flat.read_words(BASE, 1), [48]);
    assert_eq!(world.flat.read_words(BASE + PAGE, 1), [16]);
    assert_eq!(wave.rows[4].0[..8], [0, 1, 2, 0, 3, 4, 5, 1]);
}

#[test]
fn flat_decides_for_each_lane() {
    let mut world = world(&mut Numbers(8));
    let mut group = group(256);
    let mut wave = wave(Target::Gfx900);
    wave.set_pair(Operand::FLAT_SCRATCH, BASE + 2 * PAGE);
    for lane in 0..64 {
        let va = match lane % 3 {
            0 => BASE + 4 * lane as u64,
            1 => (u64::from(APERTURES.shared) << 32) + 3 * lane as u64,
            _ => u64::from(APERTURES.private) << 32 | 10,
        };
        set_pair(&mut wave, 2, lane, va);
        wave.rows[4].0[lane] = 0x0101_0101 * lane as u32;
    }
    let store = code(Target::Gfx900, "flat_store_dword v[2:3], v4", &[0xdc700000, 0x00000402]);
    let load = code(Target::Gfx900, "flat_load_dword v5, v[2:3]", &[0xdc500000, 0x05000002]);
    execute(&store, &mut wave, &mut group, &mut world).unwrap();
    execute(&load, &mut wave, &mut group, &mut world).unwrap();
    assert_eq!(wave.rows[5], wave.rows[4]);
    assert_eq!(world.read_words(BASE + 4 * 9, 1), [0x0909_0909]);
    assert_eq!(group.lds[3 * 10..3 * 10 + 4], [10; 4]);
    // Private address 10: two bytes in the dwords of address 8, two in those of 12.
    let dword = |row: u64, lane: u64| world.read(BASE + 2 * PAGE + row * 256 + 4 * lane, 4);
    assert_eq!((dword(2, 20)[2..].to_vec(), dword(3, 20)[..2].to_vec()), (vec![20; 2], vec![20; 2]));
}

#[test]
fn scratch_by_buffer_and_by_flat_is_the_same() {
    let mut world = world(&mut Numbers(9));
    let mut wave = wave(Target::Gfx90a);
    wave.set_pair(Operand::FLAT_SCRATCH, BASE);
    // ROCR's descriptor: swizzled, thread ids added, 64 lanes together.
    for (index, word) in [BASE as u32, (BASE >> 32) as u32 | 1 << 31, 0x8000, 1 << 23 | 3 << 21].into_iter().enumerate()
    {
        wave.scalar[index] = word;
    }
    wave.scalar[32] = 64 * 8;
    for lane in 0..64 {
        set_pair(&mut wave, 2, lane, u64::from(APERTURES.private) << 32 | 12);
        set_pair(&mut wave, 4, lane, 0x1_0000_0001 * lane as u64);
    }
    let store =
        code(Target::Gfx90a, "buffer_store_dwordx2 v[4:5], off, s[0:3], s32 offset:4", &[0xe0740004, 0x20000400]);
    let load = code(Target::Gfx90a, "flat_load_dwordx2 v[6:7], v[2:3]", &[0xdc540000, 0x06000002]);
    let short = code(Target::Gfx90a, "scratch_load_short_d16_hi v8, v2, off offset:0", &[0xdc944000, 0x087f0002]);
    execute(&store, &mut wave, &mut group(0), &mut world).unwrap();
    execute(&load, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!((wave.rows[6], wave.rows[7]), (wave.rows[4], wave.rows[5]));
    execute(&short, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!(wave.rows[8].0[63], 63 << 16);
}

#[test]
fn local_data_share() {
    let mut numbers = Numbers(10);
    let mut group = group(8192);
    group.lds = Lds::from(&numbers.bytes(8192)[..]);
    let mut world = Flat::new(BASE, 1);
    let mut wave = wave(Target::Gfx900);
    for lane in 0..64 {
        wave.rows[1].0[lane] = 3 * lane as u32;
    }
    let word = |lds: &[u8], at: usize| u32::from_le_bytes(lds[at..at + 4].try_into().unwrap());
    let read2 = code(Target::Gfx900, "ds_read2st64_b32 v[4:5], v1 offset0:1 offset1:30", &[0xd8701e01, 0x04000001]);
    execute(&read2, &mut wave, &mut group, &mut world).unwrap();
    assert_eq!(wave.rows[4].0[7], word(&group.lds, 21 + 256));
    assert_eq!(wave.rows[5].0[7], word(&group.lds, 21 + 30 * 256));
    let b96 = code(Target::Gfx900, "ds_read_b96 v[4:6], v1 offset:8177", &[0xd9fc1ff1, 0x04000001]);
    execute(&b96, &mut wave, &mut group, &mut world).unwrap();
    assert_eq!(wave.rows[4].0[2], word(&group.lds, 8183));
    assert_eq!(wave.rows[5].0[2].to_le_bytes(), [group.lds[8187], group.lds[8188], group.lds[8189], group.lds[8190]]);
    assert_eq!(wave.rows[6].0[2], u32::from(group.lds[8191]), "zero beyond the end");
    let write2 =
        code(Target::Gfx900, "ds_write2_b64 v1, v[8:9], v[10:11] offset0:0 offset1:1", &[0xd89c0100, 0x000a0801]);
    wave.set_pair(Operand::EXEC, 1 << 5);
    set_pair(&mut wave, 8, 5, 0x1122_3344_5566_7788);
    set_pair(&mut wave, 10, 5, 0x99aa_bbcc_ddee_ff00);
    execute(&write2, &mut wave, &mut group, &mut world).unwrap();
    assert_eq!(
        group.lds[15..31],
        [0x1122_3344_5566_7788u64.to_le_bytes(), 0x99aa_bbcc_ddee_ff00u64.to_le_bytes()].concat()
    );
    let unaligned = code(Target::Gfx900, "ds_add_u32 v1, v4", &[0xd8000000, 0x00000401]);
    let exit = execute(&unaligned, &mut wave, &mut group, &mut world).unwrap_err();
    assert_eq!(exit, Exit::Refused(Refusal::Aperture { va: u64::from(APERTURES.shared) << 32 | 15 }));
    let append = code(Target::Gfx900, "ds_append v12 offset:4", &[0xd97c0004, 0x0c000000]);
    wave.set_pair(Operand::EXEC, 0xff00);
    wave.scalar[usize::from(Operand::M0)] = 0x0100_0000;
    group.lds[0x104..0x108].copy_from_slice(&5u32.to_le_bytes());
    execute(&append, &mut wave, &mut group, &mut world).unwrap();
    assert_eq!((group.lds[0x104], wave.rows[12].0[15], wave.rows[12].0[7]), (13, 5, 0));
    let gds = code(Target::Gfx900, "ds_add_u32 v1, v4 gds", &[0xd8010000, 0x00000401]);
    let exit = execute(&gds, &mut wave, &mut group, &mut world).unwrap_err();
    assert_eq!(exit, Exit::Refused(Refusal::Unsupported(gds.op)));
}

#[test]
fn loads_of_halves_keep_the_other_one_where_registers_have_no_ecc() {
    for (target, kept) in [(Target::Gfx900, u32::MAX), (Target::Gfx90a, 0), (Target::Gfx942, 0)] {
        let mut numbers = Numbers(11);
        let mut world = world(&mut numbers);
        let mut group = group(64);
        group.lds = Lds::from(&numbers.bytes(64)[..]);
        let mut wave = wave(target);
        let old = numbers.word();
        for lane in 0..64 {
            set_pair(&mut wave, 2, lane, BASE);
            wave.rows[1].0[lane] = 8;
            wave.rows[8].0[lane] = old;
        }
        let half = |bytes: &[u8]| u32::from(u16::from_le_bytes(bytes.try_into().unwrap()));
        let low = code(target, "global_load_short_d16 v8, v[2:3], off offset:5", &[0xdc908005, 0x087f0002]);
        let high = code(target, "ds_read_u16_d16_hi v8, v1 offset:6", &[0xd8b60006, 0x08000001]);
        execute(&low, &mut wave, &mut group, &mut world).unwrap();
        let expected = kept & old >> 16 << 16 | half(&world.read(BASE + 5, 2));
        assert_eq!(wave.rows[8].0[3], expected, "{target:?}");
        execute(&high, &mut wave, &mut group, &mut world).unwrap();
        assert_eq!(wave.rows[8].0[3], kept & expected & 0xffff | half(&group.lds[14..16]) << 16, "{target:?}");
    }
}

#[test]
fn lanes_exchange_registers() {
    let mut world = Flat::new(BASE, 1);
    let mut wave = wave(Target::Gfx900);
    let exec = !(1 << 9);
    wave.set_pair(Operand::EXEC, exec);
    for lane in 0..64 {
        wave.rows[1].0[lane] = 4 * ((lane as u32 + 8) % 64);
        wave.rows[2].0[lane] = 100 + lane as u32;
    }
    let backward = code(Target::Gfx900, "ds_bpermute_b32 v4, v1, v2", &[0xd87e0000, 0x04000201]);
    let forward = code(Target::Gfx900, "ds_permute_b32 v5, v1, v2 offset:4", &[0xd87c0004, 0x05000201]);
    execute(&backward, &mut wave, &mut group(0), &mut world).unwrap();
    execute(&forward, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!([wave.rows[4].0[0], wave.rows[4].0[1], wave.rows[4].0[60], wave.rows[4].0[9]], [108, 0, 104, 0]);
    assert_eq!([wave.rows[5].0[10], wave.rows[5].0[18], wave.rows[5].0[2]], [101, 0, 157]);
    // RDNA keeps within 32 lanes.
    wave.target = Target::Gfx1030;
    execute(&backward, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!([wave.rows[4].0[30], wave.rows[4].0[60]], [106, 136]);
}

#[test]
fn scalar_memory() {
    let mut world = world(&mut Numbers(14));
    let mut wave = wave(Target::Gfx900);
    wave.set_pair(4, BASE + PAGE - 24);
    let load = code(Target::Gfx900, "s_load_dwordx16 s[4:19], s[4:5], 0x5", &[0xc0120102, 0x00000005]);
    execute(&load, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!(wave.scalar[4..20], world.read_words(BASE + PAGE - 20, 16), "two low bits do not count");
    wave.set_pair(4, BASE + 64);
    wave.scalar[6] = 16;
    let indexed = code(Target::Gfx900, "s_load_dwordx2 s[20:21], s[4:5], s6", &[0xc0040502, 0x00000006]);
    execute(&indexed, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!(wave.scalar[20..22], world.read_words(BASE + 80, 2));
    let negative = code(Target::Gfx900, "s_load_dword s20, s[4:5], -0x8", &[0xc0020502, 0x001ffff8]);
    execute(&negative, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!(wave.scalar[20..21], world.read_words(BASE + 56, 1));
    // A buffer of three elements of four bytes.
    for (index, word) in [BASE as u32, (BASE >> 32) as u32 | 4 << 16, 3, 0].into_iter().enumerate() {
        wave.scalar[8 + index] = word;
    }
    let buffer = code(Target::Gfx900, "s_buffer_load_dwordx4 s[24:27], s[8:11], 0x4", &[0xc02a0604, 0x00000004]);
    execute(&buffer, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!(wave.scalar[24..28], [world.read_words(BASE + 4, 2), vec![0, 0]].concat());
    let store = code(Target::Gfx900, "s_store_dwordx2 s[24:25], s[4:5], 0x10", &[0xc0460602, 0x00000010]);
    execute(&store, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!(world.read_words(BASE + 80, 2), wave.scalar[24..26]);
    let atomic = code(Target::Gfx900, "s_atomic_add s24, s[4:5], 0x10 glc", &[0xc20b0602, 0x00000010]);
    let old = wave.scalar[24];
    execute(&atomic, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!((world.read_words(BASE + 80, 1)[0], wave.scalar[24]), (old.wrapping_add(old), old));
}

#[test]
fn registers_that_there_are_not_are_refused() {
    let mut world = Flat::new(BASE, 1);
    let mut wave = wave(Target::Gfx900);
    wave.rows.truncate(10);
    for inst in [
        code(Target::Gfx900, "global_load_dwordx4 v[8:11], v[2:3], off", &[0xdc5c8000, 0x087f0002]),
        code(Target::Gfx900, "global_load_dword v2, v[20:21], off", &[0xdc508000, 0x027f0014]),
        code(Target::Gfx900, "ds_write_b32 v1, v10", &[0xd81a0000, 0x00000a01]),
        code(Target::Gfx900, "buffer_load_format_xyz v[8:10], off, s[4:7], 0", &[0xe0080000, 0x80010800]),
    ] {
        let before = wave.clone();
        let exit = execute(&inst, &mut wave, &mut group(0), &mut world).unwrap_err();
        assert_eq!(exit, Exit::Refused(Refusal::Register), "{:?}", inst.op);
        assert!(wave == before);
    }
}

#[test]
fn words_in_two_pages_are_loaded_by_the_fast_engine() {
    // global_load_dword v8, v[2:3], off; dwordx2 v[8:9]; dwordx3 v[8:10]
    for (load, words) in [(0xdc50_8000, 1), (0xdc54_8000, 2), (0xdc58_8000, 3)] {
        let mut world = Flat::new(BASE, 80);
        world.scatter();
        world.write(BASE, &Numbers(7).bytes(80 * 4096));
        world.write_words(BASE, &[load, 0x087f_0002, 0xbf81_0000]);
        let mut wave = wave(Target::Gfx900);
        wave.pc = BASE;
        // Each lane's first word ends one to three bytes into the next page.
        let place = |lane: usize| BASE + PAGE * (lane as u64 + 2) - 1 - lane as u64 % 3;
        for lane in 0..64 {
            set_pair(&mut wave, 2, lane, place(lane));
        }
        assert_eq!(Engine::new(Target::Gfx900).run(&mut wave, &mut group(0), &mut world, 100), Exit::End);
        for lane in 0..64 {
            for word in 0..words {
                let expected = world.read_words(place(lane) + 4 * word as u64, 1)[0];
                assert_eq!(wave.rows[8 + word].0[lane], expected, "word {word} of {words}, lane {lane}");
            }
        }
        assert!(world.detours.is_empty(), "{words} words: {:?}", world.detours);
    }
}
