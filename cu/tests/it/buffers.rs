// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Buffer instructions of the reference engine: descriptors, formats, loads into LDS. As `memory`,
//! by models of their own.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

use crate::support;

use support::{code, group, wave, Numbers, BASE};
use vkfd_cu::reference::memory::execute;
use vkfd_cu::Flat;
use vkfd_isa::{Operand, Target};

fn world(numbers: &mut Numbers) -> Flat {
    let mut world = Flat::new(BASE, 8);
    world.scatter();
    world.write(BASE, &numbers.bytes(8 * 4096));
    world
}

#[test]
fn buffers_with_index_offset_and_range() {
    let mut world = world(&mut Numbers(11));
    let mut wave = wave(Target::Gfx900);
    // Elements of 12 bytes, 100 of them.
    for (index, word) in [BASE as u32, (BASE >> 32) as u32 | 12 << 16, 100, 0].into_iter().enumerate() {
        wave.scalar[4 + index] = word;
    }
    wave.scalar[9] = 256;
    for lane in 0..64 {
        (wave.rows[2].0[lane], wave.rows[3].0[lane]) = (2 * lane as u32, 4);
        (wave.rows[6].0[lane], wave.rows[7].0[lane]) = (!0, !0);
    }
    let load = code(
        Target::Gfx900,
        "buffer_load_dwordx2 v[6:7], v[2:3], s[4:7], s9 idxen offen offset:1",
        &[0xe0543001, 0x09010602],
    );
    execute(&load, &mut wave, &mut group(0), &mut world).unwrap();
    for lane in [0, 1, 49, 50, 63] {
        let va = BASE + 256 + 24 * lane as u64 + 5;
        let expected = if lane < 50 { world.read_words(va, 2) } else { vec![0, 0] };
        assert_eq!(vec![wave.rows[6].0[lane], wave.rows[7].0[lane]], expected, "lane {lane}");
    }
    // Without an index, records are bytes: dword by dword.
    let raw = code(Target::Gfx900, "buffer_store_dwordx2 v[2:3], v2, s[4:7], 0 offen", &[0xe0741000, 0x80010202]);
    let memory = world.read(BASE, 4096);
    execute(&raw, &mut wave, &mut group(0), &mut world).unwrap();
    let after = world.read(BASE, 4096);
    assert_eq!(after[100..], memory[100..]);
    assert_eq!(after[94..100], [94, 0, 96, 0, 0, 0][..], "lanes 47 and 48");
    // Dropped beyond, and old values are zero there.
    let atomic = code(Target::Gfx900, "buffer_atomic_add v6, v2, s[4:7], 0 idxen glc", &[0xe1086000, 0x80010602]);
    execute(&atomic, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!(wave.rows[6].0[50], 0);
}

#[test]
fn formats_of_buffers() {
    let mut world = world(&mut Numbers(12));
    let mut wave = wave(Target::Gfx900);
    wave.set_pair(Operand::EXEC, 1);
    // 8_8_8_8 unorm, BGRA.
    let last = 6 | 5 << 3 | 4 << 6 | 7 << 9 | 10 << 15;
    for (index, word) in [BASE as u32, (BASE >> 32) as u32 | 4 << 16, 100, last].into_iter().enumerate() {
        wave.scalar[4 + index] = word;
    }
    world.write(BASE + 8, &[0, 51, 255, 102]);
    wave.rows[2].0[0] = 2;
    let load = code(Target::Gfx900, "buffer_load_format_xyzw v[4:7], v2, s[4:7], 0 idxen", &[0xe00c2000, 0x80010402]);
    execute(&load, &mut wave, &mut group(0), &mut world).unwrap();
    let value = |wave: &vkfd_cu::Wave, row: usize| f32::from_bits(wave.rows[row].0[0]);
    assert_eq!([4, 5, 6, 7].map(|row| value(&wave, row)), [1.0, 0.2, 0.0, 0.4]);
    let store = code(
        Target::Gfx900,
        "tbuffer_store_format_xy v[4:5], v2, s[4:7], 0 format:[BUF_DATA_FORMAT_16_16,BUF_NUM_FORMAT_FLOAT] idxen",
        &[0xebaaa000, 0x80010402],
    );
    execute(&store, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!(world.read_words(BASE + 8, 1), [0x3266_3c00]);
    let half = code(
        Target::Gfx900,
        "tbuffer_load_format_d16_xyzw v[8:9], v2, s[4:7], 0 format:[BUF_DATA_FORMAT_16_16,BUF_NUM_FORMAT_FLOAT] idxen",
        &[0xebada000, 0x80010802],
    );
    execute(&half, &mut wave, &mut group(0), &mut world).unwrap();
    assert_eq!([wave.rows[8].0[0], wave.rows[9].0[0]], [0x3266_3c00, 0x3c00_0000]);
}

#[test]
fn loads_into_lds() {
    let mut world = world(&mut Numbers(13));
    let mut wave = wave(Target::Gfx900);
    let mut group = group(1024);
    for (index, word) in [BASE as u32, (BASE >> 32) as u32, 0x8000, 0].into_iter().enumerate() {
        wave.scalar[4 + index] = word;
    }
    wave.scalar[usize::from(Operand::M0)] = 64;
    wave.set_pair(Operand::EXEC, 0x8000_0000_0000_0001);
    for lane in 0..64 {
        wave.rows[2].0[lane] = 40 + lane as u32;
    }
    let load = code(Target::Gfx900, "buffer_load_dword v2, s[4:7], 0 offen offset:8 lds", &[0xe0511008, 0x80010002]);
    execute(&load, &mut wave, &mut group, &mut world).unwrap();
    assert_eq!(group.lds[72..76], world.read(BASE + 48, 4));
    assert_eq!(group.lds[76..80], [0; 4]);
    assert_eq!(group.lds[72 + 252..72 + 256], world.read(BASE + 48 + 63, 4));
}
